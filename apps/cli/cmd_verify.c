#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "flashmoe_lab.h"
#include "apps/cli/work.h"

struct findings {
    bool is_json;
    json_t *bad, *extra;
};

static void show_finding(void *ctx, const struct fm_verify_item *item)
{
    struct findings *f = ctx;
    if (f->is_json) {
        json_t *what = json_text(item->what, strlen(item->what));
        if (item->is_bad)
            what = json_pack("{s:o, s:o, s:I, s:I, s:s}", "what", what, "file",
                             json_text(item->file, strlen(item->file)), "offset",
                             (json_int_t)item->offset, "bytes", (json_int_t)item->bytes, "why",
                             item->why);
        (void)json_array_append_new(item->is_bad ? f->bad : f->extra, what);
        return;
    }
    if (!item->is_bad) {
        say("note: '%s' in '%s' %s", item->what, item->file, item->why);
        return;
    }
    char what[NAME_BYTES], file[NAME_BYTES];
    (void)printf("BAD  %s %s: '%s', %llu bytes at byte %llu\n", out_name(item->what, what),
                 item->why, out_name(item->file, file), (unsigned long long)item->bytes,
                 (unsigned long long)item->offset);
}

/* Returns which layers a part of a model has; NULL: the model is whole. */
static const char *layers_here(const struct fm_verify_result *r)
{
    return r->layers_here[0] != '\0' ? r->layers_here : NULL;
}

static bool print_json(const char *path, const struct findings *f,
                       const struct fm_verify_result *r, double seconds)
{
    return out_json(json_pack("{s:o, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:O, s:O, s:f}",
                              "model", json_text(path, strlen(path)),
                              "layers_here", json_label(layers_here(r)),
                              "is_good", (int)(r->n_bad == 0),
                              "n_bytes", (json_int_t)r->n_bytes,
                              "n_experts", (json_int_t)r->n_experts,
                              "n_tensors", (json_int_t)r->n_tensors,
                              "n_files", (json_int_t)r->n_files,
                              "n_bad", (json_int_t)r->n_bad,
                              "bad", f->bad, "extra", f->extra, "seconds", seconds));
}

static void print_result(const struct fm_verify_result *r, double seconds)
{
    char size[UNIT_BYTES], rate[UNIT_BYTES], bad[UNIT_BYTES + 8] = "all good";
    if (r->n_bad > 0)
        (void)snprintf(bad, sizeof bad, "%llu bad", (unsigned long long)r->n_bad);
    (void)printf("%llu experts, %llu dense tensors, %llu other files (%s): %s, %s\n",
                 (unsigned long long)r->n_experts, (unsigned long long)r->n_tensors,
                 (unsigned long long)r->n_files, human_bytes(r->n_bytes, size), bad,
                 human_rate(seconds > 0 ? (double)r->n_bytes / seconds : 0, rate));
    if (layers_here(r) != NULL)
        (void)printf("part of a model: it has the experts of layers %s\n", layers_here(r));
}

static int run_verify(const struct args *args)
{
    const char *path = app_model_path(args);
    struct fm_error err = {0};
    struct work work;
    struct findings findings = {.is_json = args_flag(args, "json"), .bad = json_array(),
                                .extra = json_array()};
    struct fm_verify_result result = {.size = sizeof result};
    struct fm_verify_options options = {.size = sizeof options,
                                        .n_threads = (unsigned)args_uint(args, "threads"),
                                        .progress = work_show, .progress_ctx = &work,
                                        .found = show_finding, .found_ctx = &findings};
    say_library_log(false);
    work_begin(&work, "verifying", args_flag(args, "quiet"));
    int rc = fm_verify(path, &options, &result, &err);
    const double seconds = work_seconds(&work);
    work_end(&work);
    int status = STATUS_OK;
    if (rc == FM_ERR_CANCELLED) {
        say("stopped");
        status = STATUS_INTERRUPTED;
    } else if (rc != 0) {
        status = say_failed(&err, rc == FM_ERR_UNSUPPORTED ? STATUS_USAGE : STATUS_FAILED);
    } else {
        if (findings.is_json && !print_json(path, &findings, &result, seconds))
            status = STATUS_FAILED;
        if (!findings.is_json && !args_flag(args, "quiet"))
            print_result(&result, seconds);
        status = result.n_bad > 0 ? STATUS_FAILED : status;
    }
    json_decref(findings.bad);
    json_decref(findings.extra);
    return status;
}

static const struct option verify_options[] = {
    {.name = "threads", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = LIMIT_THREADS,
     .shown = "one per processor", .help = "Threads that compute checksums"},
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress and no summary line; damaged items are still listed"},
    {.name = NULL},
};
static const struct option_group group_verify = {"Output", verify_options};

const struct command cmd_verify = {
    .name = "verify",
    .summary = "Verify the checksums of a packed model",
    .description =
        "Reads everything from the disk, bypassing the page cache where possible, and names each "
        "damaged expert, tensor or file. The exit status is 1 if anything is damaged, and 2 for a "
        "model that has no checksums because it is not packed. Of a part of a model "
        "('flashmoe pack --layers') it reads what is there, and says that it is a part.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = "A packed model, NAME.fmoe"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_verify, &group_json, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe verify model.fmoe", "After copying a model, or when its answers look wrong"},
        {NULL, NULL}},
    .run = run_verify,
};
