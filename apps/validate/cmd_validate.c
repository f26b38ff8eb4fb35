#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/plat.h"
#include "apps/cli/cmd.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/part_file.h"
#include "apps/validate/validate.h"

/* ---- the report's files ---------------------------------------------------------------------- */

struct outputs {
    char html[LIMIT_PATH_BYTES], json[LIMIT_PATH_BYTES];
};

/* Returns the model's name: the last part of its path, without what follows the last dot. */
static void name_of(const char *path, char *name, size_t bytes)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    (void)snprintf(name, bytes, "%.*s", (int)(n - begin), path + begin);
    char *dot = strrchr(name, '.');
    if (dot != NULL && dot != name && (strcmp(dot, ".fmoe") == 0 || strcmp(dot, ".gguf") == 0))
        *dot = '\0';
}

static int name_outputs(const struct args *args, struct outputs *out, struct fm_error *err)
{
    char name[256], stem[LIMIT_PATH_BYTES - 8];
    const char *given = args_text(args, "out");
    name_of(app_model_path(args), name, sizeof name);
    const int n = given != NULL ? snprintf(stem, sizeof stem, "%s", given)
                                : snprintf(stem, sizeof stem, "%s-validate", name);
    if (n < 0 || (size_t)n >= sizeof stem)
        return err_set(err, FM_ERR_ARG, "--out: the path has more than %zu bytes", sizeof stem);
    if (given != NULL && (given[0] == '\0' || given[n - 1] == '/'))
        return err_set(err, FM_ERR_ARG, "--out '%s' is not a file name; .html and .json are added "
                       "to it", given);
    (void)snprintf(out->html, sizeof out->html, "%s.html", stem);
    (void)snprintf(out->json, sizeof out->json, "%s.json", stem);
    return 0;
}

/* Finds out before the work whether the files can be written. Nothing is left in the meantime, so
 * an end of any kind leaves no half file. */
static int try_outputs(const struct outputs *out, struct fm_error *err)
{
    const char *const paths[] = {out->html, out->json};
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 2; i++) {
        struct part_file file = {0};
        rc = part_file_open(&file, "--out", paths[i], PLAT_SHARED, err);
        if (rc == 0)
            rc = part_file_close(&file, false, err);
    }
    return rc;
}

static int write_html(const struct validation *v, const char *path, struct fm_error *err)
{
    struct part_file file = {0};
    const int rc = part_file_open(&file, "--out", path, PLAT_SHARED, err);
    if (rc != 0)
        return rc;
    validation_html(v, file.file);
    return part_file_close(&file, true, err);
}

static int write_json(json_t *json, const char *path, struct fm_error *err)
{
    struct part_file file = {0};
    if (json == NULL)
        return err_set(err, FM_ERR_NOMEM, "no memory for the report");
    const int rc = part_file_open(&file, "--out", path, PLAT_SHARED, err);
    if (rc != 0)
        return rc;
    const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION(9); /* as out_json */
    const bool is_written = json_dumpf(json, file.file, flags) == 0 &&
                            fputc('\n', file.file) != EOF;
    const int closed = part_file_close(&file, is_written, err);
    return is_written ? closed : err_set(err, FM_ERR_IO, "--out: cannot write '%s'", path);
}

/* ---- the work -------------------------------------------------------------------------------- */

static int measure_machine(struct validation *v, struct fm_error *err)
{
    struct app_speeds *speeds = &v->speeds[v->n_measured];
    steps_part(&v->steps, "the speed of memory and disk");
    steps_pause(&v->steps);
    const int rc = app_speeds_measure(v->args, true, v->io[0] != '\0' ? v->io : NULL, speeds, err);
    if (rc == 0)
        app_gpu_measure(v->args, &speeds->gpu);
    v->n_measured += rc == 0;
    return rc == 0 && interrupt_seen() ? FM_ERR_CANCELLED : rc;
}

static int check_options(const struct args *args, struct fm_error *err)
{
    struct budgets ignored = {0};
    if (args_given(args, "heat"))
        return err_set(err, FM_ERR_ARG, "--heat cannot be used: validate measures cold starts "
                       "without a heat file");
    if (args_float(args, "cache-bias") > 0)
        return err_set(err, FM_ERR_ARG, "--cache-bias cannot be used: with it the answers depend "
                       "on the cache, so budgets cannot be compared");
    const char *list = args_text(args, "budgets");
    return list != NULL ? budgets_read(&ignored, list, err) : 0;
}

static int run_parts(struct validation *v, struct fm_error *err)
{
    int rc = validate_files(v, err);
    if (rc != 0 || validation_is_over(v))
        return rc;
    rc = measure_machine(v, err);
    if (rc == 0)
        rc = validate_ends(v, err);
    if (rc == 0)
        rc = validate_same_model(v, err);
    if (rc == 0)
        rc = validate_references(v, err);
    if (rc == 0)
        validate_against(v);
    if (rc == 0 && !v->is_cut)
        rc = validate_budgets(v, err);
    if (rc == 0 && !v->is_cut && !validation_is_over(v))
        rc = validate_long_run(v, err);
    if (rc == 0 && !v->is_cut && !validation_is_over(v))
        rc = validate_cycles(v, err);
    if (rc == 0 && !v->is_cut && !validation_is_over(v))
        rc = validate_cliff(v, err);
    if (rc == 0 && !v->is_quick)
        rc = measure_machine(v, err);
    return rc;
}

static int run_all(struct validation *v, struct fm_error *err)
{
    const uint64_t begin_ns = plat_now_ns();
    steps_begin(&v->steps, args_flag(v->args, "quiet"));
    const int rc = run_parts(v, err);
    steps_end(&v->steps);
    if (rc != 0)
        return rc;
    v->is_cut |= validation_is_over(v);
    validate_limits(v);
    v->seconds = (double)(plat_now_ns() - begin_ns) * 1e-9;
    return 0;
}

static int report(const struct validation *v, const struct outputs *out, struct fm_error *err)
{
    json_t *json = validation_json(v);
    int rc = write_json(json, out->json, err);
    if (rc == 0)
        rc = write_html(v, out->html, err);
    if (rc != 0) {
        json_decref(json);
        return say_failed(err, STATUS_FAILED);
    }
    int status = v->n_failures == 0 ? STATUS_OK : STATUS_FAILED;
    if (!args_flag(v->args, "json"))
        validation_print(v);
    else if (!out_json(json_incref(json)))
        status = STATUS_FAILED;
    json_decref(json);
    if (!args_flag(v->args, "quiet"))
        say("the report is in '%s' and '%s'", out->html, out->json);
    return status;
}

static int run_validate(const struct args *args)
{
    struct fm_error err = {0};
    struct validation *v = NULL;
    struct outputs out;
    interrupt_install();
    interrupt_hold(true);
    say_library_log(false);
    int rc = check_options(args, &err);
    if (rc == 0)
        rc = name_outputs(args, &out, &err);
    if (rc == 0)
        rc = validation_new(&v, args, &err);
    if (rc == 0)
        rc = validate_read_report(v, &err);
    if (rc == 0)
        rc = try_outputs(&out, &err);
    if (rc == 0)
        rc = run_all(v, &err);
    int status;
    if (rc == 0) {
        status = report(v, &out, &err);
    } else if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no report was written");
        status = STATUS_INTERRUPTED;
    } else {
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    }
    validation_free(v);
    return status;
}

static const struct option validate_options[] = {
    {.name = "quick", .kind = OPTION_FLAG,
     .help = "Four prompts of 8 tokens at three budgets, an answer of 64 tokens and six resets. "
             "All files are still verified"},
    {.name = "out", .kind = OPTION_PATH, .metavar = "NAME", .shown = "the model's name and "
                                                                     "-validate",
     .help = "Write the report to NAME.html and NAME.json"},
    {.name = "against", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Also compare with the JSON file of an earlier report of this model, made on any "
             "machine with the same --tokens"},
    {.name = "budgets", .kind = OPTION_STRING, .metavar = "LIST",
     .shown = "six from floor to all",
     .help = "Memory budgets, as for 'bench stream'. The largest one is the reference"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 1,
     .max = VALIDATE_TOKENS, .shown = "32, or 8 with --quick", .help = "Tokens of every answer"},
    {.name = "long", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 1u << 16,
     .shown = "1000, or 64 with --quick", .help = "Tokens of the long answer"},
    {.name = "cycles", .kind = OPTION_UINT, .metavar = "N", .min = 3, .max = VALIDATE_CYCLES,
     .shown = "20, or 6 with --quick", .help = "Resets of one session"},
    {.name = "pressure", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1 << 20,
     .shown = "so much that half of the experts fit", .excludes = "no-pressure",
     .help = "Memory that another process may take at most, to see the model under pressure. It "
             "takes a little at a time and stops before memory runs out"},
    {.name = "no-pressure", .kind = OPTION_FLAG, .help = "Start no such process"},
    {.name = NULL},
};
static const struct option_group group_validate = {"Validation", validate_options};

const struct command cmd_validate = {
    .name = "validate",
    .summary = "Find out whether a model can be trusted on this machine",
    .description =
        "Answers twelve prompts (prose, code, mathematics, logic, Chinese, Japanese, chats) at "
        "every "
        "memory budget from the smallest to one that holds every expert, each with an empty cache "
        "and again after another topic. Text and all logits must be those of the largest budget, "
        "bit "
        "for bit. If they are not, names budget, prompt, token and the first layer that differs.\n"
        "Also verifies the checksums of a packed model; writes a long answer at the smallest and "
        "the largest budget; resets a session again and again and watches its memory; raises the "
        "budget "
        "past what is free; and lets another process take memory. Measures cold start, first "
        "token, "
        "speed, hits, reads, times of every layer and the share of the hardware limit, which "
        "'flashmoe help bench decode' defines.\n"
        "Writes one page with all of it, NAME.html, and the numbers, NAME.json. The exit status "
        "is 1 if anything differs. docs/VALIDATE.md says what a report cannot see.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_validate, &group_routes, &group_engine,
                                                   &group_json, &group_messages, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe validate nano --quick", "A minute or less: nano-validate.html"},
        {"flashmoe validate MODEL --out report", "Everything: report.html and report.json"},
        {"flashmoe validate MODEL --against other.json", "Also against a report of another "
                                                         "machine"},
        {NULL, NULL}},
    .run = run_validate,
};
