/* list, du and rm: what is in the models folder, what it takes, and removing it. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "apps/pull/store.h"

/* ---- list ------------------------------------------------------------------------------- */

struct listing {
    bool is_names;
    json_t *models; /* NULL: text */
    unsigned n;
};

/* Returns the state for people. */
static const char *state_text(const struct store_model *m, char out[64])
{
    if (strcmp(m->state, "partial") == 0)
        (void)snprintf(out, 64, "partial, %.0f%%",
                       m->all_bytes > 0 ? 100.0 * (double)m->bytes / (double)m->all_bytes : 0);
    else if (strcmp(m->state, "cache") == 0)
        (void)snprintf(out, 64, "huggingface_hub's cache");
    else
        (void)snprintf(out, 64, "%s", m->state);
    return out;
}

static int list_one(void *ctx, const struct store_model *m, struct fm_error *err)
{
    struct listing *l = ctx;
    char name[NAME_BYTES], size[UNIT_BYTES], state[64];
    (void)err;
    l->n++;
    if (l->models != NULL) {
        (void)json_array_append_new(
            l->models, json_pack("{s:o, s:s, s:s, s:I, s:I, s:o}", "name",
                                 json_text(m->name, strlen(m->name)), "kind", m->kind, "state",
                                 m->state, "bytes", (json_int_t)m->bytes, "all_bytes",
                                 (json_int_t)m->all_bytes, "path",
                                 json_text(m->path, strlen(m->path))));
    } else if (l->is_names) {
        /* A model that is not complete can be given to pull and rm alone. */
        (void)printf("%s\n", out_name(m->name, name));
    } else {
        (void)printf("%-52s %10s  %-12s  %s\n", out_name(m->name, name),
                     human_bytes(m->bytes, size), m->kind, state_text(m, state));
    }
    return 0;
}

static int run_list(const struct args *args)
{
    struct listing l = {.is_names = args_flag(args, "names"),
                        .models = args_flag(args, "json") ? json_array() : NULL};
    struct pull_env env;
    struct fm_error err = {0};
    int rc = pull_env_folders(&env, &err);
    if (rc == 0)
        rc = store_each(&env, list_one, &l, &err);
    if (rc == 0 && l.models != NULL)
        return out_json(json_pack("{s:o, s:o}", "folder",
                                  json_text(env.models, strlen(env.models)), "models", l.models))
                   ? STATUS_OK
                   : STATUS_FAILED;
    json_decref(l.models);
    if (rc != 0)
        return say_failed(&err, STATUS_FAILED);
    if (l.n == 0 && !l.is_names)
        say("no model was pulled; 'flashmoe pull ORG/NAME' downloads one to '%s'", env.models);
    return STATUS_OK;
}

/* ---- du --------------------------------------------------------------------------------- */

struct usage {
    json_t *models; /* NULL: text */
    uint64_t total_bytes;
};

static void show_usage(struct usage *u, const char *name, uint64_t bytes)
{
    char shown[NAME_BYTES], size[UNIT_BYTES];
    u->total_bytes += bytes;
    if (u->models != NULL)
        (void)json_array_append_new(u->models, json_pack("{s:o, s:I}", "name",
                                                         json_text(name, strlen(name)), "bytes",
                                                         (json_int_t)bytes));
    else
        (void)printf("%10s  %s\n", human_bytes(bytes, size), out_name(name, shown));
}

/* Counts folders: unfinished downloads and all models of one folder together. */
static int measure_one(void *ctx, const struct store_model *m, struct fm_error *err)
{
    struct usage *u = ctx;
    char folder[LIMIT_PATH_BYTES];
    (void)err;
    if (strcmp(m->state, "cache") == 0)
        return 0;
    const bool is_file = strcmp(m->kind, "GGUF") == 0 && strcmp(m->state, "complete") == 0;
    (void)snprintf(folder, sizeof folder, "%s", m->path);
    if (is_file && strchr(m->name, ':') == NULL)
        *strrchr(folder, '/') = '\0';
    show_usage(u, m->name,
               is_file && strchr(m->name, ':') != NULL ? m->bytes : store_disk_bytes(folder));
    return 0;
}

static int run_du(const struct args *args)
{
    struct usage u = {.models = args_flag(args, "json") ? json_array() : NULL};
    struct pull_env env;
    struct fm_error err = {0};
    char size[UNIT_BYTES], free_size[UNIT_BYTES], name[NAME_BYTES];
    int rc = pull_env_folders(&env, &err);
    if (rc == 0)
        rc = store_each(&env, measure_one, &u, &err);
    if (rc != 0) {
        json_decref(u.models);
        return say_failed(&err, STATUS_FAILED);
    }
    const uint64_t total = plat_file_exists(env.models) ? store_disk_bytes(env.models) : 0;
    const uint64_t free_bytes = plat_free_bytes(plat_file_exists(env.models) ? env.models : "/");
    if (u.models != NULL)
        return out_json(json_pack("{s:o, s:I, s:I, s:o}", "folder",
                                  json_text(env.models, strlen(env.models)), "bytes",
                                  (json_int_t)total, "free_bytes", (json_int_t)free_bytes,
                                  "models", u.models))
                   ? STATUS_OK
                   : STATUS_FAILED;
    (void)printf("%10s  in %s, %s are free\n", human_bytes(total, size),
                 out_name(env.models, name), human_bytes(free_bytes, free_size));
    return STATUS_OK;
}

/* ---- rm --------------------------------------------------------------------------------- */

static int run_rm(const struct args *args)
{
    struct pull_env env;
    struct fm_error err = {0};
    int rc = pull_env_folders(&env, &err);
    const uint64_t before = rc == 0 ? store_disk_bytes(env.models) : 0;
    for (size_t i = 0; rc == 0 && i < args->n_operands; i++) {
        struct model_name name;
        rc = model_name_parse(args->operands[i], "", &name, &err);
        if (rc == 0)
            rc = store_remove(&env, &name, &err);
    }
    if (rc != 0)
        return say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    char size[UNIT_BYTES];
    const uint64_t after = store_disk_bytes(env.models);
    if (!args_flag(args, "quiet"))
        say("removed; %s are free again", human_bytes(before > after ? before - after : 0, size));
    return STATUS_OK;
}

/* ---- the tables ------------------------------------------------------------------------- */

static const struct option list_options[] = {
    {.name = "names", .kind = OPTION_FLAG, .excludes = "json",
     .help = "Print the names alone, one per line, as the shell completions use them"},
    {.name = NULL},
};
static const struct option rm_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG, .help = "No summary line"},
    {.name = NULL},
};
static const struct option_group group_list = {"Output", list_options};
static const struct option_group group_rm = {"Output", rm_options};
static const struct operand no_operands[] = {{.name = NULL}};

const struct command cmd_list = {
    .name = "list",
    .summary = "List the models that were pulled",
    .description = "Shows the models of the models folder, complete or not, and those of "
                   "huggingface_hub's cache. Each name can be given wherever a command takes "
                   "MODEL.",
    .operands = no_operands,
    .groups = (const struct option_group *const[]){&group_list, &group_json, &group_help, NULL},
    .run = run_list,
};

const struct command cmd_du = {
    .name = "du",
    .summary = "Show the disk space of pulled models",
    .description = "Counts what is allocated on the disk, unfinished downloads included. "
                   "huggingface_hub's cache is not counted.",
    .operands = no_operands,
    .groups = (const struct option_group *const[]){&group_json, &group_help, NULL},
    .run = run_du,
};

const struct command cmd_rm = {
    .name = "rm",
    .summary = "Remove pulled models",
    .description = "Removes models from the models folder, also what an unfinished download has "
                   "left. Nothing else is removed: files elsewhere and huggingface_hub's cache "
                   "stay.",
    .operands = (const struct operand[]){
        {.name = "NAME", .is_many = true, .is_pulled_name = true,
         .help = "A name that 'flashmoe list' shows"},
        {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_rm, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe rm Qwen/Qwen3-Coder-Next", "Frees its disk space"}, {NULL, NULL}},
    .run = run_rm,
};
