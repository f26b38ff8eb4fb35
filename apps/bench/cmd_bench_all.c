#include <string.h>
#include <unistd.h>

#include "apps/bench/all.h"
#include "apps/bench/child.h"
#include "apps/cli/cmd.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/part_file.h"
#include "base/mem.h"
#include "base/plat.h"

#define WATCH_NS 1000000000u /* how long the machine is watched before the first run */
#define QUICK_REPEAT 2
#define OWN_NAME "flashmoe"

/* ---- files ----------------------------------------------------------------------------------- */

enum { FILE_JSON, FILE_MARKDOWN, FILE_HTML, N_FILES };
static const char *const file_names[N_FILES] = {"bench.json", "bench.md", "bench.html"};
static char out_folder[LIMIT_PATH_BYTES];

static void write_part(const struct all *all, unsigned which, FILE *out, bool *is_written)
{
    if (which == FILE_JSON) {
        json_t *json = all_json(all);
        const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION(9); /* as out_json */
        *is_written = json != NULL && json_dumpf(json, out, flags) == 0 && fputc('\n', out) != EOF;
        json_decref(json);
    } else if (which == FILE_MARKDOWN) {
        all_markdown(all, out);
    } else {
        all_html(all, out);
    }
}

#define FILE_PATH_BYTES (LIMIT_PATH_BYTES + 32)

static const char *file_path(unsigned which, char path[FILE_PATH_BYTES])
{
    (void)snprintf(path, FILE_PATH_BYTES, "%s/%s", out_folder, file_names[which]);
    return path;
}

static bool has_run(const struct all *all)
{
    bool has = false;
    for (unsigned i = 0; i < all->n_cases; i++)
        has |= all_has_result(&all->cases[i]);
    return has;
}

/* Fails if the files cannot be written. Earlier ones are left as they are. */
static int try_files(struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < N_FILES; i++) {
        char path[FILE_PATH_BYTES];
        struct part_file file = {0};
        struct plat_file_info info;
        if (plat_file_info(file_path(i, path), &info) && info.is_dir)
            return err_set(err, FM_ERR_IO, "--out: cannot write '%s': it is a folder", path);
        rc = part_file_open(&file, "--out", path, PLAT_SHARED, err);
        if (rc == 0)
            rc = part_file_close(&file, false, err);
    }
    return rc;
}

/* Writes all files; an earlier version of each is replaced as a whole. Until something was measured
 * there is nothing to replace it with. */
static int save(struct all *all, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < N_FILES && has_run(all); i++) {
        char path[FILE_PATH_BYTES];
        struct part_file file = {0};
        bool is_written = true;
        rc = part_file_open(&file, "--out", file_path(i, path), PLAT_SHARED, err);
        if (rc != 0)
            break;
        write_part(all, i, file.file, &is_written);
        rc = part_file_close(&file, is_written, err);
        if (rc == 0 && !is_written)
            rc = err_set(err, FM_ERR_IO, "--out: cannot write '%s'", path);
    }
    return rc;
}

static int open_folder(const struct all *all, struct fm_error *err)
{
    const char *given = args_text(all->args, "out");
    const int n = given != NULL
                      ? snprintf(out_folder, sizeof out_folder, "%s", given)
                      : snprintf(out_folder, sizeof out_folder, "%s-bench", all->facts.name);
    if (n <= 0 || (size_t)n >= sizeof out_folder)
        return err_set(err, FM_ERR_ARG, "--out: give the name of a folder");
    return plat_make_dir(out_folder, err);
}

/* ---- the programs ---------------------------------------------------------------------------- */

/* Asks a program for its version, which also shows that it can be started. */
static int find_version(struct all *all, unsigned program, struct fm_error *err)
{
    const char *argv[] = {all->programs[program], "--version", NULL};
    struct child child;
    int rc = child_run(argv, NULL, NULL, &child, err);
    if (rc == 0 && (child.status != 0 || child.out == NULL ||
                    strncmp(child.out, "flashmoe ", 9) != 0))
        rc = err_set(err, FM_ERR_ARG, "'%s' is not a flashmoe program", argv[0]);
    if (rc == 0)
        (void)snprintf(all->versions[program], sizeof all->versions[program], "%.*s",
                       (int)strcspn(child.out, "\n"), child.out);
    child_free(&child);
    return rc != 0 && program == ALL_OTHER ? err_wrap(err, rc, "--versus") : rc;
}

static int find_programs(struct all *all, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES - sizeof OWN_NAME - 1];
    if (!plat_program_dir(folder, sizeof folder))
        return err_set(err, FM_ERR_UNSUPPORTED, "this system does not tell where the program is");
    (void)snprintf(all->own_path, sizeof all->own_path, "%s/%s", folder, OWN_NAME);
    all->programs[ALL_THIS] = all->own_path;
    all->programs[ALL_OTHER] = args_text(all->args, "versus");
    int rc = find_version(all, ALL_THIS, err);
    if (rc == 0 && all->programs[ALL_OTHER] != NULL)
        rc = find_version(all, ALL_OTHER, err);
    return rc;
}

/* ---- the work -------------------------------------------------------------------------------- */

static void say_machine(const struct all *all)
{
    char text[QUIET_TEXT_BYTES];
    if (!all->before.is_known)
        say_warning("whether the machine is quiet is %s", quiet_text(&all->before, text));
    else if (!all->before.is_quiet)
        say_warning("the machine is %s; results are marked where other programs took part",
                    quiet_text(&all->before, text));
    else if (!args_flag(all->args, "quiet"))
        say("the machine is %s", quiet_text(&all->before, text));
}

static void say_left_out(const struct all *all)
{
    for (unsigned i = 0; all_regimes[i].name != NULL && !args_flag(all->args, "quiet"); i++)
        if (all->is_chosen[i] && all->left_out[i][0] != '\0')
            say("%s: left out: %s", all_regimes[i].name, all->left_out[i]);
}

static int prepare(struct all *all, struct fm_error *err)
{
    const char *only = args_text(all->args, "only");
    all->n_repeat = args_given(all->args, "repeat") || !all->is_quick
                        ? (unsigned)args_uint(all->args, "repeat") : QUICK_REPEAT;
    all->cases = mem_new(ALL_CASES_MAX, sizeof *all->cases, "the cases", err);
    int rc = all->cases != NULL ? 0 : FM_ERR_NOMEM;
    if (rc == 0)
        rc = all_choose(all, only, err);
    if (rc == 0)
        rc = find_programs(all, err);
    if (rc == 0)
        rc = all_find_facts(all, err);
    return rc;
}

/* Returns the exit status: not good if nothing was measured, or if logits differ. */
static int status_of(const struct all *all)
{
    bool differs = false;
    for (unsigned i = 0; i < all->n_cases; i++)
        differs |= all->cases[i].differs;
    if (all->is_cut)
        return STATUS_INTERRUPTED;
    if (differs)
        say_warning("the logits of a case differ between runs; this must not be");
    return has_run(all) && !differs ? STATUS_OK : STATUS_FAILED;
}

static int measure(struct all *all, struct fm_error *err)
{
    int rc = all_build(all, err);
    if (rc != 0)
        return rc;
    say_left_out(all);
    if (all->n_cases == 0)
        return err_set(err, FM_ERR_ARG, "nothing can be measured: %s",
                       "every regime is left out for the reason above");
    rc = open_folder(all, err);
    if (rc == 0)
        rc = try_files(err); /* before the work */
    if (rc != 0)
        return rc;
    (void)snprintf(all->heat_path, sizeof all->heat_path, "%.*s/.flashmoe-bench-%ld.heat",
                   (int)sizeof all->heat_path - 48, out_folder, (long)getpid());
    quiet_watch("/proc", all->machine.n_cpus_of_machine, WATCH_NS, &all->before);
    say_machine(all);
    all->begin_wall_ns = plat_wall_ns();
    rc = all_run(all, save, err);
    all->is_cut = rc == FM_ERR_CANCELLED;
    if (!all->is_cut || !has_run(all))
        return rc;
    return save(all, err);
}

static int report(const struct all *all)
{
    if (args_flag(all->args, "json"))
        return out_json(all_json(all)) ? status_of(all) : STATUS_FAILED;
    all_print(all, stdout);
    if (has_run(all))
        (void)printf("\nwritten      %s/%s, %s, %s\n", out_folder, file_names[FILE_JSON],
                     file_names[FILE_MARKDOWN], file_names[FILE_HTML]);
    else
        (void)printf("\nNothing was measured, so nothing is written.\n");
    return status_of(all);
}

static int run_all_regimes(const struct args *args)
{
    struct fm_error err = {0};
    struct all *all = mem_new(1, sizeof *all, "the measurements", &err);
    if (all == NULL)
        return say_failed(&err, STATUS_FAILED);
    all->args = args;
    all->model = app_model_path(args);
    all->packed = args_text(args, "packed");
    all->is_quick = args_flag(args, "quick");
    interrupt_install();
    interrupt_hold(true); /* what was measured is kept */
    int status = STATUS_OK, rc = prepare(all, &err);
    if (rc == 0 && args_flag(args, "list")) {
        (void)snprintf(all->heat_path, sizeof all->heat_path, "HEAT");
        rc = all_build(all, &err);
        if (rc == 0)
            all_list(all, stdout);
    } else if (rc == 0) {
        rc = measure(all, &err);
        if (rc == 0)
            status = report(all);
    }
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted; nothing was measured");
        status = STATUS_INTERRUPTED;
    } else if (rc != 0) {
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    }
    mem_free(all->cases);
    mem_free(all);
    return status;
}

static const struct option all_options[] = {
    {.name = "quick", .kind = OPTION_FLAG,
     .help = "Fewer cases, shorter ones, and 2 rounds unless --repeat is given"},
    {.name = "only", .kind = OPTION_STRING, .metavar = "REGIME,...", .shown = "all",
     .help = "Measure these regimes only: decode, stream, threads, prefill, prefill-threads, "
             "prefill-stream, users, users-half, start, drafts, levels, source, disks, gpu"},
    {.name = "list", .kind = OPTION_FLAG,
     .help = "Print the regimes, the command of every case and why others are left out; run no "
             "case"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = ALL_ROUNDS_MAX,
     .value = "5", .help = "Number of rounds. Each runs every case once"},
    {.name = "out", .kind = OPTION_PATH, .metavar = "DIR", .shown = "NAME-bench",
     .help = "Folder for bench.json, bench.md and bench.html"},
    {.name = "versus", .kind = OPTION_PATH, .metavar = "PROGRAM",
     .help = "Run every case with this other version of flashmoe too, in turns, and print the "
             "ratio of each pair of runs"},
    {.name = "packed", .kind = OPTION_PATH, .metavar = "PACKED",
     .help = "A packed copy of MODEL, for the regime source"},
    {.name = NULL},
};
static const struct option_group group_all = {"Measurement", all_options};

static const struct option engine_options[] = {
    {.name = "memory", .kind = OPTION_BYTES, .metavar = "SIZE", .min = 1,
     .shown = "nine tenths of the memory that is free",
     .help = "Largest budget of a case. It is never more than the default"},
    {.name = "io", .kind = OPTION_STRING, .metavar = "HOW", .value = "auto",
     .help = "How experts are read: direct, page or auto, as for 'flashmoe run'"},
    {.name = "pin", .kind = OPTION_FLAG, .help = option_pin_help},
    {.name = "cpu", .kind = OPTION_STRING, .metavar = "LEVEL",
     .shown = "the best for this processor", .help = option_cpu_help},
    {.name = NULL},
};
static const struct option_group group_some_engine = {"Memory and speed", engine_options};

const struct command cmd_bench_all = {
    .name = "bench all",
    .summary = "Measure every regime of a model and its share of the limit",
    .description =
        "Runs the other bench commands, each case as a process of its own, in rounds: every round "
        "runs every case once, so that a change of the machine touches all of them. Prints the "
        "median, lowest and highest speed of each case, the limit that the run itself measured and "
        "the share of it, and writes a table (bench.md), all figures (bench.json) and a page with "
        "plots (bench.html).\n"
        "Before the first run and during each one it looks at what other programs and the host "
        "of a virtual machine take of the processors. If the machine is not quiet it says so, and "
        "marks the cases.\n"
        "No budget is larger than the memory that is free. A regime that does not fit, or that "
        "this model or machine does not have, is left out with the reason. Runs with a GPU are in "
        "the regime gpu; all others use the processor alone. Ctrl-C ends the run and keeps what "
        "was measured.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_all, &group_routes, &group_some_engine,
                                                   &group_kv, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench all MODEL --quick", "A first look, in a few minutes"},
        {"flashmoe bench all MODEL --only decode,stream --repeat 7 --versus old/flashmoe",
         "Medians of seven rounds, in turns with another version"},
        {NULL, NULL}},
    .run = run_all_regimes,
};
