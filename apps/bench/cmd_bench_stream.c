#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/part_file.h"
#include "apps/bench/budgets.h"
#include "apps/bench/stream_report.h"
#include "apps/cli/term.h"
#include "apps/bench/topics.h"
#include "flashmoe_lab.h"

/* Tokens are evaluated one by one; scratch for more would take memory from the experts. */
#define PREFILL_CHUNK 16
#define HASHES_BYTES (STREAM_PASSES * N_TOPICS * 33)

/* Positions of the default budgets between the floor and the whole model. */
static const double default_shares[] = {0, 0.1, 0.25, 0.45, 0.7, 1};
#define N_DEFAULT (sizeof default_shares / sizeof default_shares[0])

/* The command's own state, apart from its results. */
struct job {
    struct stream *stream;
    char *routes_wanted; /* opens the model with these; NULL: its own routers */
    unsigned n_context;
    bool is_again; /* the model was opened before */
    unsigned at;   /* index of the current budget */
    struct budgets budgets;
    const char *io; /* how experts are read */
    struct progress progress;
    char note[UNIT_BYTES + 32];
    uint64_t n_done; /* tokens */
    /* Logits hashes of every conversation: of the first budget and of this one. */
    char first_hashes[HASHES_BYTES], hashes[HASHES_BYTES];
};

/* ---- opening --------------------------------------------------------------------------------- */

static int open_model(struct job *job, uint64_t memory_bytes, struct fm_model **model,
                      struct fm_error *err)
{
    const struct app_model_options how = {
        .n_context = job->n_context, .routes = job->routes_wanted, .memory_bytes = memory_bytes,
        .prefill_chunk = PREFILL_CHUNK, .is_again = job->is_again,
    };
    job->is_again = true;
    return app_model_open(job->stream->args, &how, model, err);
}

/* Copies what is needed after the model is closed. */
static int keep_facts(struct stream *s, const struct fm_model *model, struct fm_error *err)
{
    struct fm_stats stats = {.size = sizeof stats};
    s->info.size = sizeof s->info;
    fm_model_info(model, &s->info);
    fm_model_stats(model, &stats);
    if (s->info.n_moe_layers == 0)
        return err_set(err, FM_ERR_ARG, "'%s' has no routed experts to stream",
                       app_model_path(s->args));
    s->architecture = mem_strdup(s->info.architecture, err);
    s->routes = stats.routes != NULL ? mem_strdup(stats.routes, err) : NULL;
    s->approximate = stats.approximate != NULL ? mem_strdup(stats.approximate, err) : NULL;
    if (s->architecture == NULL || (stats.routes != NULL && s->routes == NULL) ||
        (stats.approximate != NULL && s->approximate == NULL))
        return FM_ERR_NOMEM;
    (void)snprintf(s->cpu_level, sizeof s->cpu_level, "%s",
                   gpu_report_cpu_level(&stats));
    s->n_threads = stats.n_threads;
    s->is_text = s->info.has_tokenizer && stats.routes == NULL;
    s->info = (struct fm_model_info){
        .size = sizeof(struct fm_model_info),
        .architecture = s->architecture,
        .n_moe_layers = s->info.n_moe_layers,
        .n_experts = s->info.n_experts,
        .n_experts_per_token = s->info.n_experts_per_token,
        .experts_bytes = s->info.experts_bytes,
        .expert_token_bytes = s->info.expert_token_bytes,
        .dense_token_bytes = s->info.dense_token_bytes,
        .kv_position_bytes = s->info.kv_position_bytes,
        .state_bytes = s->info.state_bytes,
    };
    return 0;
}

/* Finds the smallest budget and the one that holds every expert, limited by --memory or the
 * machine, from how a large budget is divided. */
static int find_ends(struct job *job, struct fm_error *err)
{
    struct stream *s = job->stream;
    struct fm_model *model;
    int rc = open_model(job, 0, &model, err);
    if (rc != 0)
        return rc;
    rc = keep_facts(s, model, err);
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(model, &stats);
    char division[GPU_REPORT_BYTES];
    if (stats.gpu != NULL)
        (void)snprintf(s->gpu_text, sizeof s->gpu_text, "%.127s, %s", stats.gpu,
                       gpu_report_division(&stats, division));
    fm_model_close(model);
    if (s->gpu_text[0] != '\0')
        app_gpu_measure(s->args, &s->gpu);
    if (rc != 0)
        return rc;
    job->io = stats.io;
    budgets_find_ends(&job->budgets, &stats, &s->info);
    return 0;
}

/* ---- budgets --------------------------------------------------------------------------------- */

static int choose_budgets(struct job *job, struct fm_error *err)
{
    struct stream *s = job->stream;
    const char *list = args_text(s->args, "budgets");
    int rc = 0;
    if (list != NULL)
        rc = budgets_read(&job->budgets, list, err);
    else
        budgets_take_shares(&job->budgets, default_shares, N_DEFAULT);
    s->n_points = job->budgets.n;
    for (unsigned i = 0; i < s->n_points; i++)
        s->points[i].budget_bytes = job->budgets.bytes[i];
    return rc;
}

/* ---- one budget ------------------------------------------------------------------------------ */

static int measure_machine(struct stream *s, const char *io, struct fm_error *err)
{
    struct app_speeds speeds;
    int rc = app_speeds_measure(s->args, true, io, &speeds, err);
    if (rc != 0)
        return rc;
    const uint64_t buffer_bytes = speeds.machine.read_buffer_bytes;
    if (s->n_measured == 0 || buffer_bytes < s->read_buffer_bytes)
        s->read_buffer_bytes = buffer_bytes;
    s->reads = speeds.disk;
    s->disk[s->n_measured] = speeds.disk.read;
    s->memory[s->n_measured++] = speeds.machine.read;
    return interrupt_seen() ? FM_ERR_CANCELLED : 0;
}

/* Decodes one topic, or the whole pass if routes are given. */
static int decode(struct job *job, struct topics *topics, const int32_t *opening, size_t n_opening,
                  unsigned n, struct fm_error *err)
{
    struct stream *s = job->stream;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        int32_t id;
        if (i < n_opening)
            id = opening[i];
        else
            rc = topics_pick(topics, &id, err);
        if (rc == 0)
            rc = interrupt_seen() ? FM_ERR_CANCELLED
                                  : fm_session_eval(topics->session, &id, 1, err);
        progress_steps(&job->progress, ++job->n_done,
                       (uint64_t)s->n_points * STREAM_PASSES * s->n_tokens, job->note);
    }
    return rc;
}

/* Evaluates all tokens of a pass alone. The first of a conversation counts as a prompt. */
static void count_all(const struct fm_model *model, struct fm_stats *stats)
{
    stats->size = sizeof *stats;
    fm_model_stats(model, stats);
    stats->n_decode_tokens += stats->n_prefill_tokens;
    stats->decode_ns += stats->prefill_ns;
}

static int run_pass(struct job *job, struct topics *topics, unsigned pass, struct fm_stats *before,
                    struct fm_stats *after, struct fm_error *err)
{
    static const int32_t first_token = 1; /* any: the routes are given */
    struct stream *s = job->stream;
    char budget[UNIT_BYTES];
    char *hashes = job->hashes + (size_t)pass * N_TOPICS * 33;
    (void)snprintf(job->note, sizeof job->note, "tokens  %s, %s",
                   human_bytes(s->points[job->at].budget_bytes, budget),
                   pass == STREAM_COLD ? "cold" : "warm");
    count_all(topics->model, before);
    int rc = 0;
    for (unsigned i = 0; rc == 0 && s->is_text && i < N_TOPICS; i++) {
        fm_session_reset(topics->session);
        rc = decode(job, topics, topics->openings[i].ids, topics->openings[i].n_ids,
                    s->n_topic_tokens, err);
        fm_session_logits_hash(topics->session, hashes + (size_t)i * 33);
    }
    if (!s->is_text) {
        rc = decode(job, topics, &first_token, pass == STREAM_COLD, s->n_tokens, err);
        fm_session_logits_hash(topics->session, hashes);
    }
    count_all(topics->model, after);
    return rc;
}

/* Computes the limits of a budget. Needs the machine's speed before and after it. */
static void sum_up(struct stream *s, unsigned i, unsigned pass, const struct fm_stats *before,
                   const struct fm_stats *after)
{
    struct stream_pass *out = &s->points[i].passes[pass];
    const double hits = (double)(after->n_expert_hits - before->n_expert_hits);
    const double misses = (double)(after->n_expert_misses - before->n_expert_misses);
    /* limit_between adds half the number of tokens to get the mean position. */
    const double first = s->is_text ? ((double)s->n_topic_tokens - s->n_tokens) / 2
                                    : (double)pass * s->n_tokens;
    out->hit_rate = hits + misses > 0 ? hits / (hits + misses) : 0;
    out->bytes_per_token = (double)(after->bytes_read - before->bytes_read) / s->n_tokens;
    const struct limit_speeds speeds = {
        .disk = (s->disk[i].median + s->disk[i + 1].median) / 2,
        .memory = (s->memory[i].median + s->memory[i + 1].median) / 2,
        .gpu = s->gpu.memory.median, .link = s->gpu.send.median};
    limit_between(before, after, &s->info, first, &speeds, &out->limit);
}

static int check_hashes(struct job *job, struct fm_error *err)
{
    const struct stream *s = job->stream;
    char first[UNIT_BYTES], this[UNIT_BYTES];
    if (job->at == 0)
        memcpy(job->first_hashes, job->hashes, sizeof job->hashes);
    if (s->depends_on_budget || memcmp(job->first_hashes, job->hashes, sizeof job->hashes) == 0)
        return 0;
    return err_set(err, FM_ERR_FORMAT, "'%s': the logits with a budget of %s differ from those "
                   "with %s. A file changed, the memory is faulty, or this is a bug",
                   app_model_path(s->args),
                   human_bytes(s->points[job->at].budget_bytes, this),
                   human_bytes(s->points[0].budget_bytes, first));
}

static int run_budget(struct job *job, struct fm_error *err)
{
    struct stream *s = job->stream;
    struct stream_point *point = &s->points[job->at];
    struct fm_stats before[STREAM_PASSES], after[STREAM_PASSES];
    struct topics topics = {0};
    struct fm_model *model = NULL;
    const bool has_peak = plat_resident_peak_reset();
    int rc = open_model(job, point->budget_bytes, &model, err);
    if (rc == 0)
        rc = topics_open(&topics, s->args, model, err);
    for (unsigned pass = 0; rc == 0 && pass < STREAM_PASSES; pass++)
        rc = run_pass(job, &topics, pass, &before[pass], &after[pass], err);
    if (rc == 0) {
        point->n_slots = after[STREAM_WARM].n_cache_slots;
        point->n_shrinks = after[STREAM_WARM].n_shrinks;
        point->n_grows = after[STREAM_WARM].n_grows;
        point->peak_bytes = has_peak ? after[STREAM_WARM].memory_resident_peak_bytes : 0;
        rc = check_hashes(job, err);
    }
    topics_close(&topics);
    fm_model_close(model);
    if (rc == 0)
        rc = measure_machine(s, job->io, err);
    for (unsigned pass = 0; rc == 0 && pass < STREAM_PASSES; pass++)
        sum_up(s, job->at, pass, &before[pass], &after[pass]);
    return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_all(struct job *job, struct fm_error *err)
{
    struct stream *s = job->stream;
    if (args_given(s->args, "heat"))
        return err_set(err, FM_ERR_ARG, "--heat cannot be used: bench stream measures cold starts "
                       "without a heat file");
    int rc = choose_budgets(job, err); /* refuses a wrong list before loading anything */
    s->n_points = 0;
    if (rc == 0)
        rc = topics_choose_routes(s->args, s->n_topic_tokens, true, &job->routes_wanted, err);
    job->n_context = job->routes_wanted != NULL ? STREAM_PASSES * s->n_tokens : s->n_topic_tokens;
    if (rc == 0)
        rc = measure_machine(s, NULL, err); /* first, so that its memory counts as the program's */
    if (rc == 0)
        rc = find_ends(job, err);
    if (rc == 0 && strcmp(job->io, s->reads.io) != 0) { /* the model chose another mode */
        s->n_measured = 0;
        rc = measure_machine(s, job->io, err);
    }
    if (rc == 0)
        rc = choose_budgets(job, err);
    progress_begin(&job->progress, s->args->command->name, !args_flag(s->args, "quiet"));
    for (job->at = 0; rc == 0 && job->at < s->n_points; job->at++)
        rc = run_budget(job, err);
    progress_end(&job->progress);
    return rc;
}

static int run_bench_stream(const struct args *args)
{
    struct fm_error err = {0};
    struct stream s = {.args = args, .depends_on_budget = args_float(args, "cache-bias") > 0};
    struct job job = {.stream = &s};
    struct part_file svg = {0};
    s.n_topic_tokens = (unsigned)(args_uint(args, "tokens") + N_TOPICS - 1) / N_TOPICS;
    s.n_tokens = s.n_topic_tokens * N_TOPICS;
    interrupt_install();
    interrupt_hold(true); /* leaves no file half written */
    int rc = part_file_open(&svg, "--svg", args_text(args, "svg"), PLAT_SHARED, &err);
    if (rc == 0)
        rc = run_all(&job, &err);
    int status = STATUS_FAILED;
    if (rc == 0) {
        if (svg.file != NULL)
            stream_write_svg(&s, svg.file);
        status = args_flag(args, "json") ? stream_print_json(&s) : stream_print_table(&s);
    } else if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no result");
        status = STATUS_INTERRUPTED;
    } else {
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    }
    if (part_file_close(&svg, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    mem_free(s.architecture);
    mem_free(s.routes);
    mem_free(s.approximate);
    mem_free(job.routes_wanted);
    return status;
}

static const struct option stream_options[] = {
    {.name = "budgets", .kind = OPTION_STRING, .metavar = "LIST", .excludes = "memory",
     .shown = "six from floor to all",
     .help = "Memory budgets, separated by commas: sizes as for --memory, floor (the smallest "
             "possible), quarter, half and all (room for a quarter, half and all of the "
             "experts)"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 2 * N_TOPICS, .max = 1u << 16,
     .value = "288", .help = "Tokens per pass over all six topics"},
    {.name = "svg", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Plot speed, hit rate, bytes read and share of the limit against the budget"},
    {.name = NULL},
};
static const struct option_group group_stream = {"Measurement", stream_options};

const struct command cmd_bench_stream = {
    .name = "bench stream",
    .summary = "Show how speed depends on the memory budget, cold and warm",
    .description =
        "For every budget, opens the model without a heat file and decodes six topics in turn: the "
        "cold pass. Then decodes the topics again with other tokens: the warm pass. Every token is "
        "evaluated alone and counts, including the openings of the texts. The texts are sampled "
        "with a fixed seed and are identical at every budget; the hash of all logits proves it, "
        "and a difference is an error. With --cache-bias the logits depend on the budget, and the "
        "output says so. With --routes gen, or without a tokenizer, generated routes define the "
        "topics; a recording keeps its own.\n"
        "Measures the speeds of the disk, with random experts, and of memory before every budget "
        "and after the last one. The limit of a budget uses the measurements just before and after "
        "it; 'flashmoe help bench decode' defines it.\n"
        "The largest default budget holds every expert, or is --memory or the free memory if that "
        "is less.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_stream, &group_routes, &group_engine,
                                                   &group_ranks,
                                                   &group_json, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe bench stream nano --svg nano.svg", "The nano model, with a plot"},
        {"flashmoe bench stream MODEL --budgets floor,4G,8G,12G --routes gen",
         "A model with random weights and generated routes"},
        {NULL, NULL}},
    .run = run_bench_stream,
};
