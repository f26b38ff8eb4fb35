/* Runs the cases of all rounds and reads their results. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "apps/bench/all.h"
#include "apps/bench/child.h"
#include "apps/bench/limit.h"
#include "apps/cli/interrupt.h"
#include "base/path.h"
#include "base/plat.h"
#include "base/plat_dir.h"

#define LINE_EVERY_NS 10000000000u

/* ---- reading results ------------------------------------------------------------------------- */

static double known(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double member(const json_t *object, const char *name)
{
    return known(json_object_get(object, name));
}

/* Takes the share of a limit; `limit` may be missing or null. */
static void read_limit(const json_t *limit, struct all_run *run)
{
    run->limit = member(limit, "overlapped_tok_per_s");
    run->percent = member(limit, "percent");
    run->is_exceeded = json_is_true(json_object_get(limit, "was_busy"));
    (void)snprintf(run->bound, sizeof run->bound, "%s", all_string(limit, "bound_by"));
}

static void read_bench(const struct all_facts *facts, const json_t *object, struct all_run *run)
{
    const double n_experts = (double)facts->n_experts * facts->n_moe_layers;
    run->value = member(object, "tok_per_s");
    read_limit(json_object_get(object, "limit"), run);
    const double share = n_experts > 0 ? member(object, "n_cache_slots") / n_experts : NAN;
    run->extras[0] = share < 1 ? share : n_experts > 0 ? 1 : NAN;
    run->extras[1] = member(object, "hit_rate");
    run->extras[2] = member(object, "bytes_per_token");
    (void)snprintf(run->hash, sizeof run->hash, "%s", all_string(object, "logits_hash"));
}

static double median_of(const json_t *part, const char *name)
{
    return member(json_object_get(part, name), "median");
}

static void read_serve(const json_t *object, struct all_run *run)
{
    const json_t *server = json_array_get(json_object_get(object, "servers"), 0);
    const json_t *limit = json_object_get(server, "limit"), *new = json_object_get(server, "new");
    run->value = member(limit, "tok_per_s");
    read_limit(limit, run);
    run->extras[0] = median_of(new, "first_token_median_s");
    run->extras[1] = member(json_object_get(new, "longest_gap_s"), "max");
    run->extras[2] = median_of(json_object_get(server, "cached"), "user_tok_per_s");
    run->extras[3] = median_of(new, "tok_per_s");
}

static void read_draft(const json_t *object, struct all_run *run)
{
    const json_t *point = json_array_get(json_object_get(object, "budgets"), 0);
    const json_t *drafted = json_object_get(point, "drafted");
    run->value = median_of(drafted, "tok_per_s");
    run->extras[0] = member(point, "resident_share");
    run->extras[1] = median_of(point, "speedup");
    run->extras[2] = member(drafted, "tokens_per_pass");
}

bool all_read(const struct all_case *one, const struct all_facts *facts, const json_t *object,
              struct all_run *run, char why[ALL_WHY_BYTES])
{
    run->value = run->limit = run->percent = NAN;
    for (unsigned i = 0; i < ALL_EXTRAS; i++)
        run->extras[i] = NAN;
    if (one->kind == ALL_BENCH)
        read_bench(facts, object, run);
    else if (one->kind == ALL_SERVE)
        read_serve(object, run);
    else if (one->kind == ALL_DRAFT)
        read_draft(object, run);
    else
        return true;
    if (isfinite(run->value))
        return true;
    (void)snprintf(why, ALL_WHY_BYTES, "%s", one->kind == ALL_SERVE
                   ? "the users did not all get text at the same time, so there is no speed"
                   : "the command printed no speed");
    return false;
}

/* ---- cold files ------------------------------------------------------------------------------ */

struct dropping {
    const char *folder, *first, *suffix; /* files that begin and end so */
};

static int drop_one(void *ctx, const char *name, struct fm_error *err)
{
    const struct dropping *d = ctx;
    char path[2 * LIMIT_PATH_BYTES];
    uint64_t bytes;
    int fd;
    const size_t n = strlen(name), n_suffix = strlen(d->suffix);
    (void)snprintf(path, sizeof path, "%s/%s", d->folder, name);
    if (strncmp(name, d->first, strlen(d->first)) != 0 || n < n_suffix ||
        strcmp(name + n - n_suffix, d->suffix) != 0 || plat_open(path, &fd, &bytes, err) != 0)
        return 0;
    plat_drop_pages(fd, 0, bytes);
    plat_close(fd);
    return 0;
}

/* Drops files from the page cache: all of a folder, or a GGUF file and its parts. */
static void drop_pages(const char *model)
{
    struct plat_file_info info;
    struct fm_error ignored = {0};
    struct plat_dir dir;
    char folder[LIMIT_PATH_BYTES], real[LIMIT_PATH_BYTES], stem[256] = "";
    struct dropping d = {.folder = folder, .first = stem, .suffix = ""};
    if (!plat_real_path(model, real) || !plat_file_info(real, &info))
        return;
    (void)snprintf(folder, sizeof folder, "%s", real);
    if (!info.is_dir) {
        path_folder(real, folder);
        (void)snprintf(stem, sizeof stem, "%s", path_base(real));
        char *parts = strstr(stem, "-00001-of-");
        if (parts != NULL) {
            *parts = '\0';
            d.suffix = ".gguf";
        }
    }
    if (plat_dir_open(folder, PLAT_ANY_LINK, &dir, &ignored) != 0)
        return;
    (void)plat_dir_each_name(&dir, drop_one, &d, &ignored);
    plat_dir_close(&dir);
}

/* ---- one run --------------------------------------------------------------------------------- */

/* The loop's own state. */
struct loop {
    struct all *all;
    struct progress bar;
    unsigned n_done, n_all;
    uint64_t begin_ns, said_ns;
    char note[128];
    bool is_quiet;
};

/* Returns the seconds that are left: a case takes as long as it did last, others take the mean. */
static double seconds_left(const struct loop *l)
{
    const struct all *all = l->all;
    double known_s = 0;
    for (unsigned i = 0; i < all->n_cases; i++)
        for (unsigned p = 0; p < ALL_PROGRAMS; p++)
            for (unsigned r = 0; r < all->n_repeat; r++)
                known_s += all->cases[i].runs[p][r].was_run ? all->cases[i].runs[p][r].seconds : 0;
    return l->n_done > 0 ? known_s / l->n_done * (l->n_all - l->n_done) : -1;
}

static void tick(void *ctx)
{
    struct loop *l = ctx;
    progress_steps(&l->bar, l->n_done, l->n_all, l->note);
}

static void say_line(struct loop *l, bool is_first)
{
    char eta[UNIT_BYTES];
    const double left = seconds_left(l);
    if (l->is_quiet || l->bar.is_on ||
        (!is_first && plat_now_ns() - l->said_ns < LINE_EVERY_NS))
        return;
    l->said_ns = plat_now_ns();
    if (left < 0)
        say("bench all: %s", l->note);
    else
        say("bench all: %s; %u of %u runs done, ETA %s", l->note, l->n_done, l->n_all,
            human_seconds(left, eta));
}

static bool is_start(const struct all_case *one)
{
    return one->kind == ALL_COLD || one->kind == ALL_WARM;
}

/* A start is as fast as its first text; the limit is what `plan` says of this round's disk. */
static void read_start(const struct all *all, unsigned round, const struct child *child,
                       struct all_run *run)
{
    const double limit = all->first_token_s[round];
    run->value = (double)(child->first_ns > 0 ? child->first_ns : child->ns) * 1e-9;
    if (!(limit > 0))
        return;
    run->limit = limit;
    run->percent = 100 * limit / run->value;
    run->is_exceeded = limit_is_exceeded(run->percent);
    if (run->is_exceeded)
        run->percent = NAN;
    (void)snprintf(run->bound, sizeof run->bound, "disk");
}

static void give_up(struct all_case *one, const char *program, const char *why)
{
    (void)snprintf(one->failed, sizeof one->failed, "%.60s%.*s", program,
                   (int)sizeof one->failed - 61, why);
}

/* Compares the logits with those of the runs before. */
static void compare_bits(struct all_case *one, const struct all_run *run)
{
    for (unsigned p = 0; p < ALL_PROGRAMS; p++)
        for (unsigned r = 0; r < ALL_ROUNDS_MAX; r++) {
            const struct all_run *other = &one->runs[p][r];
            one->differs |= other->was_run && other->hash[0] != '\0' && run->hash[0] != '\0' &&
                            strcmp(other->hash, run->hash) != 0;
        }
}

static void read_result(struct loop *l, struct all_case *one, unsigned round, unsigned program,
                        const struct child *child, struct all_run *run)
{
    static const char *const names[ALL_PROGRAMS] = {"", "the other program: "};
    char why[ALL_WHY_BYTES] = "";
    json_t *object = is_start(one) ? NULL
                                   : json_loadb(child->out != NULL ? child->out : "",
                                                child->out_bytes, 0, NULL);
    if (child->status != 0) {
        char text[ALL_WHY_BYTES];
        (void)snprintf(text, sizeof text, "status %d", child->status);
        give_up(one, names[program], child->message[0] != '\0' ? child->message : text);
    } else if (!all_read(one, &l->all->facts, object, run, why)) {
        give_up(one, names[program], why);
    } else {
        if (is_start(one))
            read_start(l->all, round, child, run);
        compare_bits(one, run);
        run->was_run = true;
    }
    json_decref(object);
}

/* Returns false, and says why in the case, if the budget is more than what is free now. */
static bool fits_now(struct all_case *one)
{
    struct fm_machine_info machine = {.size = sizeof machine};
    char budget[UNIT_BYTES], available[UNIT_BYTES], why[ALL_WHY_BYTES];
    if (fm_machine_info(&machine) != 0 || one->budget_bytes <= machine.memory_available_bytes)
        return true;
    (void)snprintf(why, sizeof why, "it needs %s of memory, and only %s are free now",
                   human_bytes(one->budget_bytes, budget),
                   human_bytes(machine.memory_available_bytes, available));
    give_up(one, "", why);
    return false;
}

static int run_one(struct loop *l, struct all_case *one, unsigned round, unsigned program,
                   struct fm_error *err)
{
    const struct all *all = l->all;
    const char *argv[ALL_WORDS_MAX + 2] = {all->programs[program]};
    struct all_run *run = &one->runs[program][round];
    struct quiet_sample before, after;
    struct child child;
    memcpy(argv + 1, one->words, one->n_words * sizeof one->words[0]);
    (void)snprintf(l->note, sizeof l->note, "round %u of %u, %s: %s%s", round + 1, all->n_repeat,
                   all_regimes[one->regime].name, one->label,
                   program == ALL_OTHER ? " (other program)" : "");
    say_line(l, l->n_done == 0);
    if (one->kind == ALL_COLD) {
        drop_pages(all->model);
        for (unsigned i = 0; i < all->facts.n_disks; i++)
            drop_pages(all->facts.disk_folders[i]); /* "" does nothing */
        (void)unlink(all->heat_path); /* there is none after a first start */
    }
    quiet_take("/proc", &before);
    int rc = child_run(argv, tick, l, &child, err);
    quiet_take("/proc", &after);
    if (rc == 0 && child.was_interrupted)
        rc = FM_ERR_CANCELLED;
    if (rc == 0) {
        run->seconds = (double)child.ns * 1e-9;
        quiet_between(&before, &after, all->machine.n_cpus_of_machine, &run->quiet);
        read_result(l, one, round, program, &child, run);
    }
    child_free(&child);
    l->n_done++;
    return rc;
}

/* Runs a case with both programs; which one comes first changes from round to round. A failure ends
 * the case. */
static int run_case(struct loop *l, struct all_case *one, unsigned round, struct fm_error *err)
{
    const unsigned n = l->all->programs[ALL_OTHER] != NULL ? 2 : 1;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        if (one->failed[0] != '\0' || !fits_now(one)) {
            l->n_done++;
            continue;
        }
        rc = run_one(l, one, round, n > 1 ? (round + i) % 2 : ALL_THIS, err);
        if (rc == 0 && one->failed[0] != '\0') {
            progress_end(&l->bar);
            say_warning("%s, %s: left out: %s", all_regimes[one->regime].name, one->label,
                        one->failed);
            progress_begin(&l->bar, "bench all", !l->is_quiet);
        }
    }
    return rc;
}

/* Asks for the machine's speeds, with the processor alone. */
static int measure_machine(struct loop *l, unsigned round, struct fm_error *err)
{
    struct all *all = l->all;
    char memory[32];
    json_t *plan;
    (void)snprintf(memory, sizeof memory, "%llu", (unsigned long long)all->usable_bytes);
    const char *words[] = {"plan", all->model, "--json", "-q", "--memory", memory, "--gpu", "off",
                           "--io", args_text(all->args, "io"), NULL};
    (void)snprintf(l->note, sizeof l->note, "round %u of %u, the machine's speed", round + 1,
                   all->n_repeat);
    tick(l);
    const int rc = all_ask(all, words, &plan, err);
    if (rc != 0)
        return rc;
    const json_t *row = json_array_get(json_object_get(plan, "budgets"),
                                       (size_t)all_number(plan, "chosen"));
    all->memory_per_s[round] = 1e9 * member(plan, "memory_read_gb_per_s");
    all->disk_per_s[round] = 1e9 * member(plan, "disk_read_gb_per_s");
    all->first_token_s[round] = member(row, "first_token_s");
    json_decref(plan);
    return 0;
}

int all_run(struct all *all, int (*saved)(struct all *all, struct fm_error *err),
            struct fm_error *err)
{
    struct loop l = {.all = all, .begin_ns = plat_now_ns(),
                     .is_quiet = args_flag(all->args, "quiet")};
    const unsigned n_programs = all->programs[ALL_OTHER] != NULL ? 2 : 1;
    int rc = 0;
    l.n_all = all->n_repeat * all->n_cases * n_programs;
    progress_begin(&l.bar, "bench all", !l.is_quiet);
    for (unsigned r = 0; rc == 0 && r < all->n_repeat; r++) {
        all->n_rounds = r + 1;
        rc = measure_machine(&l, r, err);
        for (unsigned i = 0; rc == 0 && i < all->n_cases; i++)
            rc = run_case(&l, &all->cases[i], r, err);
        all->seconds = (double)(plat_now_ns() - l.begin_ns) * 1e-9;
        if (rc == 0)
            rc = saved(all, err);
    }
    progress_end(&l.bar);
    for (unsigned i = 0; i < all->n_cases; i++)
        if (is_start(&all->cases[i]))
            (void)unlink(all->heat_path); /* Ctrl-C may have come before it was made */
    return rc;
}
