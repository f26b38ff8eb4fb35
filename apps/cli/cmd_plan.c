#include <stdlib.h>
#include <string.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/disk_report.h"
#include "apps/cli/engine_words.h"
#include "apps/bench/limit.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define ROWS_MAX 8
#define REPLAY_TOKENS 256
/* Without --context, speeds are predicted for half this many positions. */
#define USUAL_CONTEXT 4096u
#define MEBIBYTE ((uint64_t)1 << 20)

/* One budget and its predictions. */
struct plan_row {
    const char *what;
    struct fm_plan plan;
    double share, hit_rate; /* fraction of all experts cached; of used experts found there */
    double gpu_share, gpu_hit_rate; /* the same for the GPU's memory alone */
    struct limit limit;
    double first_token_s; /* negative: unknown */
};

struct planner {
    const struct args *args;
    struct fm_model *model;
    struct fm_model_options options; /* as run would use them */
    char io_path[LIMIT_PATH_BYTES]; /* file with the measured --io choice */
    struct fm_model_info info;
    uint64_t n_all;    /* routed experts of all layers */
    uint64_t min_bytes;
    double position;   /* of the token that speeds are predicted for */
    bool is_elsewhere; /* speeds were given: nothing is measured */
    struct app_speeds speeds;
    struct plan_row rows[ROWS_MAX]; /* the smallest budget first */
    unsigned n_rows, chosen;
};

/* ---- what fits ------------------------------------------------------------------------------- */

/* Rounds up to MiB with a reserve: the size of the program itself varies between runs. */
static uint64_t rounded_up(uint64_t bytes)
{
    return (bytes / MEBIBYTE + 2) * MEBIBYTE;
}

/* Lets all rows do as the first one, so that "auto" says only once why there is no GPU. */
static void keep_gpu(struct planner *p, bool is_used)
{
    if (!is_used)
        p->options.gpu_memory_bytes = 0;
    if (!is_used || strcmp(p->options.gpu, "auto") == 0)
        p->options.gpu = is_used ? "0" : "off";
}

/* Adds a row unless the budget is too small. Any other fault is an error. */
static int add_row(struct planner *p, const char *what, uint64_t memory_bytes,
                   struct fm_error *err)
{
    struct plan_row *row = &p->rows[p->n_rows];
    struct fm_model_options options = p->options;
    options.memory_bytes = memory_bytes;
    *row = (struct plan_row){.what = what, .plan.size = sizeof row->plan};
    int rc = fm_model_plan(p->model, &options, &row->plan, err);
    p->min_bytes = row->plan.min_bytes > 0 ? rounded_up(row->plan.min_bytes) : 0;
    if (rc == FM_ERR_BUDGET)
        return 0;
    if (rc != 0)
        return rc;
    const double n = p->n_all > 0 ? (double)p->n_all : 1;
    const bool has_all = p->n_all == 0 || row->plan.n_cache_slots >= p->n_all;
    row->share = has_all ? 1 : (double)row->plan.n_cache_slots / n;
    row->gpu_share = (double)row->plan.n_gpu_slots / n;
    keep_gpu(p, row->plan.gpu[0] != '\0');
    p->n_rows++;
    return 0;
}

/* Adds the budget that was asked for; fails if it is too small. */
static int add_chosen(struct planner *p, struct fm_error *err)
{
    const bool is_asked = p->options.memory_bytes > 0;
    int rc = add_row(p, is_asked ? "--memory" : "what is free now", p->options.memory_bytes, err);
    if (rc == 0 && p->n_rows == 0 && p->min_bytes == 0)
        return FM_ERR_BUDGET; /* more of the host's memory would not help */
    if (rc == 0 && p->n_rows == 0) {
        char text[FM_ERROR_BYTES];
        (void)snprintf(text, sizeof text, "%s", err->text);
        rc = err_set(err, FM_ERR_BUDGET, "%s; the smallest budget that works here is --memory "
                     "%lluM", text, (unsigned long long)(p->min_bytes / MEBIBYTE));
    }
    return rc;
}

static int compare_rows(const void *a, const void *b)
{
    const uint64_t x = ((const struct plan_row *)a)->plan.memory_budget_bytes;
    const uint64_t y = ((const struct plan_row *)b)->plan.memory_budget_bytes;
    return (x > y) - (x < y);
}

static uint64_t plan_sum(const struct fm_plan *plan)
{
    return plan->memory_program_bytes + plan->memory_dense_bytes + plan->memory_cache_bytes +
           plan->memory_kv_bytes + plan->memory_scratch_bytes;
}

static int add_rows(struct planner *p, struct fm_error *err)
{
    static const char *const parts[] = {"a quarter of the model", "half of the model",
                                        "three quarters of the model"};
    const uint64_t model_bytes = p->info.dense_bytes + p->info.experts_bytes;
    const char *chosen = p->rows[0].what;
    int rc = add_row(p, "the smallest that works", p->min_bytes, err);
    for (unsigned i = 0; rc == 0 && i < sizeof parts / sizeof parts[0]; i++)
        if (model_bytes / 4 * (i + 1) > p->min_bytes)
            rc = add_row(p, parts[i], model_bytes / 4 * (i + 1), err);
    if (rc == 0) /* asks for more than any model needs, then sets the exact size */
        rc = add_row(p, "every expert fits", UINT64_MAX / 2, err);
    if (rc != 0)
        return rc;
    struct plan_row *last = &p->rows[p->n_rows - 1];
    last->plan.memory_budget_bytes = rounded_up(plan_sum(&last->plan));
    qsort(p->rows, p->n_rows, sizeof p->rows[0], compare_rows);
    while (p->rows[p->chosen].what != chosen)
        p->chosen++;
    return 0;
}

/* ---- what to expect -------------------------------------------------------------------------- */

/* All rows use the same GPU, or none. */
static bool has_gpu(const struct planner *p)
{
    return p->rows[0].plan.gpu[0] != '\0';
}

static const char *policy_name(const struct planner *p)
{
    return word_text(&words_policy, (int)p->options.policy);
}

static unsigned policy_index(const char *name)
{
    unsigned i = 0;
    while (fm_replay_policy_name(i) != NULL && strcmp(fm_replay_policy_name(i), name) != 0)
        i++;
    return i;
}

/* Predicts each budget's hit rate with a warm cache: from the second half of the tokens. */
static int replay(struct planner *p, struct fm_error *err)
{
    struct fm_replay_point points[2 * ROWS_MAX] = {{0}};
    struct fm_routes_stats stats = {.size = sizeof stats, .n_layers = p->info.n_moe_layers,
                                    .n_experts = p->info.n_experts,
                                    .n_used = p->info.n_experts_per_token,
                                    .n_tokens = REPLAY_TOKENS};
    for (unsigned i = 0; i < p->n_rows; i++) {
        points[i].size = sizeof points[i];
        points[i].share = p->rows[i].share;
        p->rows[i].hit_rate = 1;
    }
    if (p->n_all == 0)
        return 0;
    unsigned n = p->n_rows;
    for (unsigned i = 0; i < p->n_rows && has_gpu(p); i++, n++) {
        points[n].size = sizeof points[n];
        points[n].share = p->rows[i].gpu_share;
    }
    int rc = fm_routes_replay(args_text(p->args, "routes"), &stats, points, n, err);
    const unsigned policy = policy_index(policy_name(p));
    for (unsigned i = 0; rc == 0 && i < p->n_rows; i++)
        p->rows[i].hit_rate = points[i].late_hits[policy];
    for (unsigned i = 0; rc == 0 && i < n - p->n_rows; i++)
        p->rows[i].gpu_hit_rate = points[p->n_rows + i].late_hits[policy];
    return rc;
}

/* Computes the limit of a token of whose experts these shares are in memory and on the GPU. Experts
 * below the GPU are divided between link and processor so that both take the same time. */
static void expect_token(const struct planner *p, double position, double hit_rate,
                         double gpu_hit_rate, struct limit *limit)
{
    const double experts = (double)p->info.expert_token_bytes;
    const struct limit_speeds speeds = {
        .disk = p->speeds.disk.read.median, .memory = p->speeds.machine.read.median,
        .gpu = p->speeds.gpu.memory.median, .link = p->speeds.gpu.send.median};
    struct limit_load load = limit_load_of(&p->info, position, (1 - hit_rate) * experts);
    const double below = (1 - gpu_hit_rate) * experts, both = speeds.link + speeds.memory;
    load.has_gpu = has_gpu(p);
    load.link_bytes = load.has_gpu && both > 0 ? below * speeds.link / both : 0;
    load.host_bytes = load.has_gpu ? below - load.link_bytes : 0;
    limit_set_speeds(&load, &speeds);
    limit_of(&load, 0, limit);
}

/* Predicts the speed of a warm token and the time of a first one, which reads the dense weights and
 * all its experts. */
static void expect(struct planner *p, struct plan_row *row)
{
    const double disk_per_s = p->speeds.disk.read.median;
    struct limit cold;
    expect_token(p, p->position, row->hit_rate, row->gpu_hit_rate, &row->limit);
    expect_token(p, 0, 0, 0, &cold);
    row->first_token_s = disk_per_s > 0 && cold.max_per_s > 0
                             ? (double)p->info.dense_bytes / disk_per_s + 1 / cold.max_per_s
                             : -1;
}

/* Takes the speeds that were given, or measures them. */
static int find_speeds(struct planner *p, struct fm_error *err)
{
    if (p->is_elsewhere) {
        p->speeds.disk.read.median = args_float(p->args, "disk-speed") * 1e9;
        p->speeds.machine.read.median = args_float(p->args, "memory-speed") * 1e9;
        return 0;
    }
    int rc = app_speeds_measure(p->args, p->n_all > 0, NULL, &p->speeds, err);
    if (rc == 0 && has_gpu(p))
        app_gpu_measure(p->args, &p->speeds.gpu);
    return rc;
}

/* Another machine has both speeds, a budget, and no GPU that could be asked here. */
static int check_elsewhere(struct planner *p, struct fm_error *err)
{
    const bool has_disk = args_float(p->args, "disk-speed") > 0;
    const bool has_memory = args_float(p->args, "memory-speed") > 0;
    p->is_elsewhere = has_disk && has_memory;
    if (has_disk != has_memory)
        return err_set(err, FM_ERR_ARG, "--%s needs --%s: a plan for another machine uses both",
                       has_disk ? "disk-speed" : "memory-speed",
                       has_disk ? "memory-speed" : "disk-speed");
    if (p->is_elsewhere && p->options.memory_bytes == 0)
        return err_set(err, FM_ERR_ARG, "--disk-speed and --memory-speed need --memory: what is "
                       "free here says nothing about another machine");
    if (p->is_elsewhere)
        p->options.gpu = "off";
    return 0;
}

static int make_plan(struct planner *p, struct fm_error *err)
{
    struct fm_model_options options = p->options;
    options.metadata_only = true;
    options.memory_bytes = 0;
    int rc = p->is_elsewhere ? 0 : fm_machine_check_memory(p->options.memory_bytes, err);
    if (rc == 0)
        rc = fm_model_open(app_model_path(p->args), &options, &p->model, err);
    if (rc != 0)
        return rc;
    p->info.size = sizeof p->info;
    fm_model_info(p->model, &p->info);
    p->n_all = (uint64_t)p->info.n_experts * p->info.n_moe_layers;
    rc = add_chosen(p, err);
    if (rc == 0)
        rc = add_rows(p, err);
    if (rc == 0)
        rc = replay(p, err);
    if (rc == 0)
        rc = find_speeds(p, err);
    const unsigned n_context = p->rows[p->chosen].plan.n_context;
    const bool is_asked = p->options.n_context > 0;
    p->position = (is_asked || n_context < USUAL_CONTEXT ? n_context : USUAL_CONTEXT) / 2.0;
    for (unsigned i = 0; rc == 0 && i < p->n_rows; i++)
        expect(p, &p->rows[i]);
    return rc;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_model(const struct planner *p)
{
    const struct fm_model_info *info = &p->info;
    char dense[UNIT_BYTES], experts[UNIT_BYTES], one[UNIT_BYTES], token[UNIT_BYTES];
    char name[NAME_BYTES];
    (void)printf("model        %s, %s: %s of dense weights, %s of experts\n",
                 out_name(app_model_path(p->args), name), info->architecture,
                 human_bytes(info->dense_bytes, dense), human_bytes(info->experts_bytes, experts));
    (void)printf("per token    %s of dense weights, %s of experts (%u in each of %u layers)\n",
                 human_bytes(info->dense_token_bytes, one),
                 human_bytes(info->expert_token_bytes, token), info->n_experts_per_token,
                 info->n_moe_layers);
    if (info->approximate != NULL)
        (void)printf("%s\n", info->approximate);
    if (info->layers_here[0] != '\0')
        (void)printf("part         only the experts of layers %s are here. This plan is for the "
                     "whole model\n             on one machine; 'flashmoe cluster plan' is for "
                     "several\n", info->layers_here);
}

static void print_machine(const struct planner *p)
{
    char memory[UNIT_BYTES], disk[UNIT_BYTES], expert[UNIT_BYTES];
    const struct fm_machine_speeds *m = &p->speeds.machine;
    const struct fm_disk_speeds *d = &p->speeds.disk;
    if (p->is_elsewhere)
        (void)printf("memory read  %s, as given\ndisk read    %s, as given\n",
                     human_rate(m->read.median, memory), human_rate(d->read.median, disk));
    else
        (void)printf("memory read  %s with %u thread%s, measured now\n",
                 human_rate(m->read.median, memory), m->n_threads, m->n_threads == 1 ? "" : "s");
    if (d->read.median > 0 && !p->is_elsewhere)
        (void)printf("disk read    %s, experts of %s, %u concurrent reads, %s, measured now\n",
                     human_rate(d->read.median, disk), human_bytes(d->expert_bytes, expert),
                     d->read_depth, d->io);
    disk_report_print_speeds(d);
    const struct fm_gpu_speeds *g = &p->speeds.gpu;
    if (g->memory.median > 0)
        (void)printf("GPU copies   %s in its memory, %s to it, measured now\n",
                     human_rate(g->memory.median, memory), human_rate(g->send.median, disk));
    if (p->n_all > 0)
        (void)printf("routing      %s: hit rates of policy %s with a warm cache\n",
                     args_text(p->args, "routes"), policy_name(p));
}

static void print_gpu(const struct planner *p)
{
    const struct plan_row *row = &p->rows[p->chosen];
    const struct fm_plan *plan = &row->plan;
    char budget[UNIT_BYTES], dense[UNIT_BYTES], cache[UNIT_BYTES], kv[UNIT_BYTES], max[UNIT_BYTES],
        scratch[UNIT_BYTES];
    (void)printf("GPU          %s, %s of its memory\n", plan->gpu,
                 human_bytes(plan->gpu_budget_bytes, budget));
    (void)printf("  dense weights  %10s\n", human_bytes(plan->gpu_dense_bytes, dense));
    (void)printf("  expert cache   %10s  %llu of %llu experts, %.1f%% of those used\n",
                 human_bytes(plan->gpu_cache_bytes, cache), (unsigned long long)plan->n_gpu_slots,
                 (unsigned long long)p->n_all, 100 * row->gpu_hit_rate);
    (void)printf("  KV and state   %10s  up to %s at %u positions\n",
                 human_bytes(plan->gpu_kv_bytes, kv), human_bytes(plan->gpu_kv_max_bytes, max),
                 plan->n_context);
    (void)printf("  scratch        %10s  %u tokens per batch\n",
                 human_bytes(plan->gpu_scratch_bytes, scratch), plan->prefill_chunk);
}

static void print_split(const struct planner *p)
{
    const struct fm_plan *plan = &p->rows[p->chosen].plan;
    if (has_gpu(p))
        print_gpu(p);
    char budget[UNIT_BYTES], program[UNIT_BYTES], dense[UNIT_BYTES], cache[UNIT_BYTES];
    char kv[UNIT_BYTES], max[UNIT_BYTES], scratch[UNIT_BYTES], min[UNIT_BYTES];
    (void)printf("budget       %s\n", human_bytes(plan->memory_budget_bytes, budget));
    (void)printf("  program        %10s\n", human_bytes(plan->memory_program_bytes, program));
    (void)printf("  dense weights  %10s\n", human_bytes(plan->memory_dense_bytes, dense));
    (void)printf("  expert cache   %10s  %llu of %llu experts\n",
                 human_bytes(plan->memory_cache_bytes, cache),
                 (unsigned long long)(plan->n_cache_slots - plan->n_gpu_slots),
                 (unsigned long long)p->n_all);
    (void)printf("  KV and state   %10s  up to %s at %u positions\n",
                 human_bytes(plan->memory_kv_bytes, kv),
                 human_bytes(plan->memory_kv_max_bytes, max), plan->n_context);
    (void)printf("  scratch        %10s  %u tokens per batch\n",
                 human_bytes(plan->memory_scratch_bytes, scratch), plan->prefill_chunk);
    (void)printf("minimum      %s\n", human_bytes(p->min_bytes, min));
}

static void print_table(const struct planner *p)
{
    (void)printf("\n    budget  experts    hits            tok/s  bound by  first token\n");
    for (unsigned i = 0; i < p->n_rows; i++) {
        const struct plan_row *row = &p->rows[i];
        char budget[UNIT_BYTES], speed[UNIT_BYTES], first[UNIT_BYTES] = "";
        (void)snprintf(speed, sizeof speed, "%.2f - %.2f", row->limit.min_per_s,
                       row->limit.max_per_s);
        if (row->first_token_s >= 0)
            (void)snprintf(first, sizeof first, "%.2f s", row->first_token_s);
        (void)printf("%10s  %6.1f%%  %5.1f%%  %15s  %-8s  %11s  %s%s\n",
                     human_bytes(row->plan.memory_budget_bytes, budget), 100 * row->share,
                     100 * row->hit_rate, speed, limit_bound_name(row->limit.bound), first,
                     row->what, i == p->chosen ? " <-" : "");
    }
    (void)printf("\nexperts: share that fits into the cache. hits: hit rate of a warm cache.\n"
                 "tok/s: range from no I/O overlap to full overlap, at position %.0f.\n"
                 "first token: cold start with a one-token prompt, including all reads.\n",
                 p->position);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Adds the division of the GPU's memory, if there is one. */
static json_t *put_gpu(json_t *object, const struct plan_row *row)
{
    const struct fm_plan *plan = &row->plan;
    if (plan->gpu[0] != '\0')
        (void)json_object_set_new(
            object, "gpu",
            json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "name",
                      json_text(plan->gpu, strlen(plan->gpu)),
                      "budget_bytes", (json_int_t)plan->gpu_budget_bytes,
                      "dense_bytes", (json_int_t)plan->gpu_dense_bytes,
                      "cache_bytes", (json_int_t)plan->gpu_cache_bytes,
                      "kv_bytes", (json_int_t)plan->gpu_kv_bytes,
                      "kv_max_bytes", (json_int_t)plan->gpu_kv_max_bytes,
                      "scratch_bytes", (json_int_t)plan->gpu_scratch_bytes,
                      "n_slots", (json_int_t)plan->n_gpu_slots, "share", row->gpu_share,
                      "hit_rate", row->gpu_hit_rate));
    return object;
}

static json_t *row_json(const struct plan_row *row)
{
    const struct fm_plan *plan = &row->plan;
    return put_gpu(json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o}",
        "what", row->what, "memory_budget_bytes", (json_int_t)plan->memory_budget_bytes,
        "memory_program_bytes", (json_int_t)plan->memory_program_bytes,
        "memory_dense_bytes", (json_int_t)plan->memory_dense_bytes,
        "memory_cache_bytes", (json_int_t)plan->memory_cache_bytes,
        "memory_kv_bytes", (json_int_t)plan->memory_kv_bytes,
        "memory_kv_max_bytes", (json_int_t)plan->memory_kv_max_bytes,
        "memory_scratch_bytes", (json_int_t)plan->memory_scratch_bytes,
        "n_cache_slots", (json_int_t)plan->n_cache_slots,
        "prefill_chunk", (json_int_t)plan->prefill_chunk, "n_context",
        (json_int_t)plan->n_context, "share", row->share, "hit_rate", row->hit_rate,
        "first_token_s",
        row->first_token_s >= 0 ? json_real(row->first_token_s) : json_null(),
        "limit", limit_json(&row->limit)), row);
}

static int print_json(const struct planner *p)
{
    const char *path = app_model_path(p->args), *routes = args_text(p->args, "routes");
    const double disk_per_s = p->speeds.disk.read.median;
    json_t *rows = json_array();
    for (unsigned i = 0; i < p->n_rows; i++)
        (void)json_array_append_new(rows, row_json(&p->rows[i]));
    json_t *all = json_pack(
               "{s:o, s:s, s:o, s:I, s:f, s:o, s:I, s:o, s:o, s:s, s:I, s:o}",
               "model", json_text(path, strlen(path)), "architecture", p->info.architecture,
               "layers_here", json_label(p->info.layers_here[0] != '\0' ? p->info.layers_here
                                                                        : NULL),
               "min_bytes", (json_int_t)p->min_bytes,
               "memory_read_gb_per_s", p->speeds.machine.read.median * 1e-9,
               "disk_read_gb_per_s",
               disk_per_s > 0 ? json_real(disk_per_s * 1e-9) : json_null(),
               "n_experts", (json_int_t)p->n_all, "routes", json_text(routes, strlen(routes)),
               "approximate", json_label(p->info.approximate),
               "policy", policy_name(p), "chosen", (json_int_t)p->chosen, "budgets", rows);
    if (all != NULL)
        disk_report_put_speeds(all, &p->speeds.disk);
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_plan(const struct args *args)
{
    struct fm_error err = {0};
    struct planner p = {.args = args};
    int status = STATUS_OK;
    say_library_log(false);
    if (app_engine_options(args, &p.options, &err) != 0)
        return say_failed(&err, STATUS_FAILED);
    app_keep_io(app_model_path(args), &p.options, p.io_path);
    p.options.n_context = (unsigned)args_uint(args, "context");
    if (check_elsewhere(&p, &err) != 0)
        return say_failed(&err, STATUS_USAGE);
    if (make_plan(&p, &err) != 0) {
        status = say_failed(&err, STATUS_FAILED);
    } else if (args_flag(args, "json")) {
        status = print_json(&p);
    } else {
        print_model(&p);
        print_machine(&p);
        print_split(&p);
        print_table(&p);
    }
    fm_model_close(p.model);
    return status;
}

static const struct option plan_options[] = {
    {.name = "routes", .kind = OPTION_PATH, .metavar = "SPEC|FILE", .value = "gen",
     .help = "Routing that hit rates are predicted for: 'gen' or 'gen:KEY=VALUE,...' as in "
             "'flashmoe bench decode', or a recording of this model made with 'flashmoe run "
             "--trace', which is more accurate"},
    {.name = NULL},
};
static const struct option_group group_plan = {"Routing", plan_options};

static const struct option machine_options[] = {
    {.name = "disk-speed", .kind = OPTION_FLOAT, .metavar = "GB/s", .float_min = 0.001,
     .float_max = 1e6, .shown = "measured",
     .help = "Plan for another machine whose disk reads so many gigabytes per second. Needs "
             "--memory-speed and --memory; nothing is measured, and the GPU is not used"},
    {.name = "memory-speed", .kind = OPTION_FLOAT, .metavar = "GB/s", .float_min = 0.001,
     .float_max = 1e6, .shown = "measured",
     .help = "The same for its memory"},
    {.name = NULL},
};
static const struct option_group group_machine = {"Machine", machine_options};

static const struct option quiet_options[] = {
    {.name = "quiet", .letter = 'q', .kind = OPTION_FLAG,
     .help = "No progress on standard error"},
    {.name = NULL},
};
static const struct option_group group_quiet = {"Output", quiet_options};

const struct command cmd_plan = {
    .name = "plan",
    .summary = "Predict what fits into memory and how fast it runs",
    .description =
        "Divides the budget as 'flashmoe run' would, without reading the weights. Predicts the "
        "decode speed and the time to the first token for this budget and for others, to show "
        "what more memory would change. Measures the speeds of memory and disk. Predicts hit "
        "rates by replaying a routing: a generated one with the statistics of a real model, or a "
        "recording. The speeds are upper limits set by disk and memory; 'flashmoe bench decode' "
        "measures what is reached. The options are those of 'flashmoe run'; the effects of "
        "--lookahead, --heat and --cache-bias on hit rates are not predicted.\n"
        "A budget that is too small fails; the error shows the sizes and the smallest budget that "
        "works.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_engine, &group_context, &group_plan,
                                                   &group_machine, &group_json, &group_quiet,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe plan MODEL --memory 8G", "What 8 GiB allow, and what more would"},
        {"flashmoe plan MODEL --context 32768", "What fits next to a long context"},
        {"flashmoe plan MODEL --memory 24G --disk-speed 5 --memory-speed 60",
         "What another machine would do"},
        {NULL, NULL}},
    .run = run_plan,
};
