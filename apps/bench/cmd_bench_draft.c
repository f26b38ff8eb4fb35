#include <stdlib.h>
#include <string.h>

#include "apps/bench/draft_report.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/part_file.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/splitmix.h"

#define PREFILL_CHUNK 64
#define AUTO_DRAFTS 4
#define PROMPT_TOKENS 128 /* before simulated drafts: the cache is full and in use */
#define SEED 1

/* The command's own state, apart from its results. */
struct job {
    struct draft_bench *bench;
    struct budgets budgets;
    char *routes_wanted; /* opens the model with these; NULL: its own routers */
    bool is_again;       /* the model was opened before */
    struct draft_point *point; /* at hand */
    struct topics topics;
    bool is_resident; /* the cache has room for every expert */
    bool is_counting; /* pairs are measured: not the one for warming up */
    bool is_running;  /* a run is, not the prompt before it */
    unsigned side;
    bool is_second; /* run of a pair */
    uint32_t run_end; /* simulated: the position at which the run at hand ends */
    struct progress progress;
    char note[UNIT_BYTES + 32];
    uint64_t n_done; /* tokens */
    char hashes[N_OPENINGS][33]; /* of the first run of a pair */
    char session_hash[33];     /* simulated: of all tokens with the first budget */
};

/* ---- simulated drafts ------------------------------------------------------------------------ */

/* The tokens that the session is given. They are known before, so drafts can be made right and
 * wrong. */
static int32_t token_at(const struct job *job, uint32_t position)
{
    return (int32_t)(splitmix_at(SEED, position) % job->topics.vocabulary);
}

/* Says whether draft i behind the token at a position is right, if those before it are. */
static bool is_right(const struct job *job, uint32_t position, uint32_t i)
{
    const uint64_t draw = splitmix_at(SEED + 1, (uint64_t)position * FM_DRAFTS_MAX + i);
    return (double)(draw >> 11) * 0x1p-53 < job->bench->acceptance[i];
}

/* Rows behind a wrong draft are wrong, too. */
static unsigned simulate(void *ctx, unsigned position, int32_t *drafts, unsigned max,
                         unsigned *n_right)
{
    const struct job *job = ctx;
    const uint32_t left = job->run_end - position - 1;
    uint32_t n = max < job->bench->n_acceptance ? max : job->bench->n_acceptance;
    n = n < left ? n : left; /* those of the next run would cost time in this one */
    *n_right = 0;
    for (uint32_t i = 0; i < n; i++) {
        *n_right += *n_right == i && is_right(job, position, i);
        drafts[i] = token_at(job, position + 1 + i);
        if (*n_right <= i)
            drafts[i] = (drafts[i] + 1) % (int32_t)job->topics.vocabulary;
    }
    return n;
}

static int read_acceptance(struct draft_bench *b, struct fm_error *err)
{
    const char *list = args_text(b->args, "acceptance");
    while (list != NULL) {
        char *end;
        const double percent = strtod(list, &end);
        if (end == list || (*end != ',' && *end != '\0') || !(percent >= 0 && percent <= 100) ||
            b->n_acceptance == FM_DRAFTS_MAX)
            return err_set(err, FM_ERR_ARG, "--acceptance is '%s': expected up to %d percentages "
                           "from 0 to 100, separated by commas",
                           args_text(b->args, "acceptance"), FM_DRAFTS_MAX);
        b->acceptance[b->n_acceptance++] = percent / 100;
        list = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Positions that simulated drafts need: a pair of runs for warming up, then the measured ones. */
static unsigned n_positions(const struct draft_bench *b)
{
    return PROMPT_TOKENS + (b->n_repeat + 1) * DRAFT_SIDES * b->n_tokens;
}

static int open_model(struct job *job, uint64_t memory_bytes, struct fm_model **model,
                      struct fm_error *err)
{
    const struct draft_bench *b = job->bench;
    const bool is_simulated = b->n_acceptance > 0;
    const struct app_model_options how = {
        .n_context = is_simulated ? n_positions(b) : PROMPT_TOKENS + b->n_tokens,
        .routes = job->routes_wanted, .memory_bytes = memory_bytes,
        .prefill_chunk = PREFILL_CHUNK, .is_again = job->is_again,
        .n_drafts = is_simulated ? b->n_acceptance : AUTO_DRAFTS,
    };
    job->is_again = true;
    return app_model_open(b->args, &how, model, err);
}

/* Copies what is needed after the model is closed. */
static int keep_facts(struct job *job, const struct fm_model *model, struct fm_error *err)
{
    struct draft_bench *b = job->bench;
    struct fm_model_info info = {.size = sizeof info};
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_info(model, &info);
    fm_model_stats(model, &stats);
    if (info.n_moe_layers == 0)
        return err_set(err, FM_ERR_ARG, "'%s' has no routed experts to stream",
                       app_model_path(b->args));
    if (b->n_acceptance == 0 && (!info.has_tokenizer || stats.routes != NULL))
        return err_set(err, FM_ERR_ARG, "'%s' has %s: drafts of its text mean nothing. Simulate "
                       "them with --acceptance", app_model_path(b->args),
                       stats.routes != NULL ? "replaced routes" : "no tokenizer");
    budgets_find_ends(&job->budgets, &stats, &info);
    b->architecture = mem_strdup(info.architecture, err);
    b->routes = stats.routes != NULL ? mem_strdup(stats.routes, err) : NULL;
    b->approximate = stats.approximate != NULL ? mem_strdup(stats.approximate, err) : NULL;
    (void)snprintf(b->cpu_level, sizeof b->cpu_level, "%s", gpu_report_cpu_level(&stats));
    b->n_threads = stats.n_threads;
    b->n_experts = job->budgets.n_experts;
    b->experts_bytes = info.experts_bytes;
    return b->architecture == NULL || (stats.routes != NULL && b->routes == NULL) ||
                   (stats.approximate != NULL && b->approximate == NULL)
               ? FM_ERR_NOMEM : 0;
}

static int choose_budgets(struct job *job, struct fm_error *err)
{
    struct draft_bench *b = job->bench;
    const int rc = budgets_read(&job->budgets, args_text(b->args, "budgets"), err);
    b->n_points = job->budgets.n;
    for (unsigned i = 0; i < b->n_points; i++)
        b->points[i].budget_bytes = job->budgets.bytes[i];
    return rc;
}

static int find_budgets(struct job *job, struct fm_error *err)
{
    struct fm_model *model;
    int rc = open_model(job, 0, &model, err);
    if (rc != 0)
        return rc;
    rc = keep_facts(job, model, err);
    fm_model_close(model);
    return rc == 0 ? choose_budgets(job, err) : rc;
}

/* ---- one run --------------------------------------------------------------------------------- */

/* Counts the time of a pass by its rows. The last layer is the head. */
static void note_times(void *ctx, const struct fm_layer_profile *layer)
{
    struct job *job = ctx;
    if (!job->is_counting || !job->is_running || layer->n_tokens > 1 + FM_DRAFTS_MAX)
        return;
    struct draft_passes *p = &job->point->sides[job->side].passes[layer->n_tokens - 1];
    const bool is_head = layer->mix_ns == 0 && layer->route_ns == 0;
    p->n += is_head;
    p->n_experts += layer->n_hits + layer->n_misses;
    p->mix_ns += layer->mix_ns;
    p->route_ns += layer->route_ns;
    p->wait_ns += layer->wait_ns;
    *(is_head ? &p->head_ns : &p->compute_ns) += layer->compute_ns;
}

static int evaluate(struct job *job, const int32_t *ids, size_t n, struct fm_error *err)
{
    const int rc = interrupt_seen() ? FM_ERR_CANCELLED
                                    : fm_session_eval(job->topics.session, ids, n, err);
    const struct draft_bench *b = job->bench;
    job->n_done += n == 1;
    progress_steps(&job->progress, job->n_done, (uint64_t)b->n_points * (b->n_repeat + 1) *
                   DRAFT_SIDES * b->n_topics * b->n_tokens, job->note);
    return rc;
}

static int decode(struct job *job, struct fm_error *err)
{
    const struct draft_bench *b = job->bench;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < b->n_tokens; i++) {
        int32_t id;
        if (b->n_acceptance > 0)
            id = token_at(job, fm_session_position(job->topics.session));
        else
            rc = topics_pick(&job->topics, &id, err);
        if (rc == 0)
            rc = evaluate(job, &id, 1, err);
    }
    return rc;
}

/* Without drafts and with them, the text and every logit are the same. */
static int check_hash(struct job *job, unsigned topic, struct fm_error *err)
{
    char hash[33];
    fm_session_logits_hash(job->topics.session, hash);
    if (!job->is_second)
        memcpy(job->hashes[topic], hash, sizeof hash);
    return strcmp(hash, job->hashes[topic]) == 0
               ? 0 : err_set(err, FM_ERR_FORMAT, "'%s': the logits with drafts differ from those "
                             "without. The memory is faulty, or this is a bug",
                             app_model_path(job->bench->args));
}

static void add_counts(struct job *job, const struct fm_stats *before, const struct fm_stats *after)
{
    struct draft_side *side = &job->point->sides[job->side];
    side->n_tokens += job->bench->n_tokens;
    side->n_hits += after->n_expert_hits - before->n_expert_hits;
    side->n_misses += after->n_expert_misses - before->n_expert_misses;
    side->bytes_read += after->bytes_read - before->bytes_read;
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++) {
        job->point->n_drafted[i] += after->n_drafted[i] - before->n_drafted[i];
        job->point->n_accepted[i] += after->n_drafts_accepted[i] - before->n_drafts_accepted[i];
    }
}

/* Says whether the session drafts. Without drafts it does nothing for them, as with --draft off. */
static void control_drafts(struct job *job, bool is_off)
{
    const struct fm_draft_control control = {
        .size = sizeof control, .ctx = job, .is_off = is_off,
        .draft = job->bench->n_acceptance > 0 ? simulate : NULL};
    fm_session_control_drafts(job->topics.session, &control);
}

/* Decodes one run and measures it. */
static int run_one(struct job *job, unsigned topic, unsigned i, struct fm_error *err)
{
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    control_drafts(job, job->side == DRAFT_PLAIN);
    job->run_end = fm_session_position(job->topics.session) + job->bench->n_tokens;
    fm_model_stats(job->topics.model, &before);
    job->is_running = true;
    const uint64_t begin_ns = plat_now_ns();
    const int rc = decode(job, err);
    const uint64_t elapsed_ns = plat_now_ns() - begin_ns;
    job->is_running = false;
    fm_model_stats(job->topics.model, &after);
    control_drafts(job, true);
    if (!job->is_counting)
        return rc;
    job->point->tok_per_s[job->side][topic][i] = per_second(job->bench->n_tokens, elapsed_ns);
    add_counts(job, &before, &after);
    return rc;
}

/* Continues all openings, each in its own conversation; the tokens depend on the run's number. */
static int run_topics(struct job *job, unsigned i, struct fm_error *err)
{
    int rc = 0;
    for (unsigned t = 0; rc == 0 && t < N_OPENINGS; t++) {
        rc = topics_restart(&job->topics, SEED + i, err);
        control_drafts(job, job->side == DRAFT_PLAIN); /* the prompt prepares drafts */
        if (rc == 0)
            rc = evaluate(job, job->topics.openings[t].ids, job->topics.openings[t].n_ids, err);
        if (rc == 0)
            rc = run_one(job, t, i, err);
        if (rc == 0)
            rc = check_hash(job, t, err);
    }
    return rc;
}

/* ---- one budget ------------------------------------------------------------------------------ */

static int give_tokens(struct job *job, uint32_t n, struct fm_error *err)
{
    int32_t *ids = mem_new(n, sizeof *ids, "the tokens", err);
    if (ids == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = token_at(job, i);
    const int rc = evaluate(job, ids, n, err);
    mem_free(ids);
    return rc;
}

/* Prepares a session for simulated drafts. With room for every expert, those of all tokens are read
 * before anything is measured. */
static int begin_simulated(struct job *job, struct fm_error *err)
{
    int rc = 0;
    if (job->is_resident) {
        rc = give_tokens(job, n_positions(job->bench), err);
        fm_session_reset(job->topics.session);
    }
    return rc == 0 ? give_tokens(job, PROMPT_TOKENS, err) : rc;
}

/* Tokens are drawn as those of an answer are, since how many drafts are right depends on it. */
static void choose_sampling(struct job *job)
{
    const struct args *args = job->bench->args;
    fm_sampling_default(job->topics.model, &job->topics.sampling);
    if (args_given(args, "temp"))
        job->topics.sampling.temperature = (float)args_float(args, "temp");
    job->bench->temperature = job->topics.sampling.temperature;
}

/* Runs in pairs; which one comes first changes. The first pair warms up. */
static int run_pairs(struct job *job, struct fm_error *err)
{
    const struct draft_bench *b = job->bench;
    int rc = b->n_acceptance > 0 ? begin_simulated(job, err) : 0;
    for (unsigned i = 0; rc == 0 && i <= b->n_repeat; i++) {
        job->is_counting = i > 0;
        for (unsigned j = 0; rc == 0 && j < DRAFT_SIDES; j++) {
            job->is_second = j > 0;
            job->side = (i + j) % DRAFT_SIDES;
            rc = b->n_acceptance > 0 ? run_one(job, 0, i > 0 ? i - 1 : 0, err)
                                     : run_topics(job, i > 0 ? i - 1 : 0, err);
        }
    }
    return rc;
}

static int check_session(struct job *job, struct fm_error *err)
{
    char hash[33];
    fm_session_logits_hash(job->topics.session, hash);
    if (job->session_hash[0] == '\0')
        memcpy(job->session_hash, hash, sizeof hash);
    if (job->bench->n_acceptance == 0 || strcmp(hash, job->session_hash) == 0)
        return 0;
    return err_set(err, FM_ERR_FORMAT, "'%s': the logits differ between budgets. A file changed, "
                   "the memory is faulty, or this is a bug", app_model_path(job->bench->args));
}

static int run_budget(struct job *job, struct fm_error *err)
{
    const struct draft_bench *b = job->bench;
    struct fm_model *model = NULL;
    struct fm_stats stats = {.size = sizeof stats};
    char budget[UNIT_BYTES];
    (void)snprintf(job->note, sizeof job->note, "tokens  %s",
                   human_bytes(job->point->budget_bytes, budget));
    int rc = open_model(job, job->point->budget_bytes, &model, err);
    if (rc == 0)
        rc = topics_open(&job->topics, b->args, model, err);
    if (rc == 0) {
        const struct fm_observer observer = {.size = sizeof observer, .ctx = job,
                                             .profile = note_times};
        fm_session_observe(job->topics.session, &observer);
        choose_sampling(job);
        fm_model_stats(model, &stats);
        job->point->n_slots = stats.n_cache_slots < b->n_experts ? stats.n_cache_slots
                                                                 : b->n_experts;
        job->is_resident = job->point->n_slots == b->n_experts;
        rc = run_pairs(job, err);
    }
    if (rc == 0)
        rc = check_session(job, err);
    topics_close(&job->topics);
    fm_model_close(model);
    return rc;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int run_all(struct job *job, struct fm_error *err)
{
    struct draft_bench *b = job->bench;
    int rc = choose_budgets(job, err); /* refuses a wrong list before loading anything */
    if (rc == 0)
        rc = read_acceptance(b, err);
    if (rc == 0 && args_given(b->args, "draft") && strcmp(args_text(b->args, "draft"), "off") == 0)
        rc = err_set(err, FM_ERR_ARG, "--draft off leaves nothing to measure");
    b->n_topics = b->n_acceptance > 0 ? 1 : N_OPENINGS;
    if (rc == 0 && b->n_acceptance > 0 && args_text(b->args, "routes") != NULL) {
        job->routes_wanted = mem_strdup(args_text(b->args, "routes"), err);
        rc = job->routes_wanted != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (rc == 0)
        rc = find_budgets(job, err);
    progress_begin(&job->progress, b->args->command->name, !args_flag(b->args, "quiet"));
    for (unsigned i = 0; rc == 0 && i < b->n_points; i++) {
        job->point = &b->points[i];
        rc = run_budget(job, err);
    }
    progress_end(&job->progress);
    return rc;
}

static int finish(const struct draft_bench *b, int rc, FILE *svg, const struct fm_error *err)
{
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no result");
        return STATUS_INTERRUPTED;
    }
    if (rc != 0)
        return say_failed(err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    if (svg != NULL)
        draft_write_svg(b, svg);
    return args_flag(b->args, "json") ? draft_print_json(b) : draft_print_table(b);
}

static int run_bench_draft(const struct args *args)
{
    struct fm_error err = {0};
    struct part_file svg = {0};
    struct draft_bench *b = mem_new(1, sizeof *b, "the measurements", &err);
    if (b == NULL)
        return say_failed(&err, STATUS_FAILED);
    struct job job = {.bench = b};
    b->args = args;
    b->n_tokens = (unsigned)args_uint(args, "tokens");
    b->n_repeat = (unsigned)args_uint(args, "repeat");
    interrupt_install();
    interrupt_hold(true); /* leaves no file half written */
    int rc = part_file_open(&svg, "--svg", args_text(args, "svg"), PLAT_SHARED, &err);
    if (rc == 0)
        rc = run_all(&job, &err);
    int status = finish(b, rc, svg.file, &err);
    if (part_file_close(&svg, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    mem_free(b->architecture);
    mem_free(b->routes);
    mem_free(b->approximate);
    mem_free(job.routes_wanted);
    mem_free(b);
    return status;
}

static const struct option draft_options[] = {
    {.name = "acceptance", .kind = OPTION_STRING, .metavar = "LIST",
     .help = "Simulate drafts: percentages of drafts that are right, by their distance from the "
             "token before them, separated by commas. A draft can only be right if those before "
             "it are. Every output says that they are simulated"},
    {.name = "budgets", .kind = OPTION_STRING, .metavar = "LIST", .excludes = "memory",
     .value = "quarter,half,all",
     .help = "Memory budgets, separated by commas: sizes as for --memory, floor (the smallest "
             "possible), quarter, half and all (room for a quarter, half and all of the experts)"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 8, .max = 1u << 12,
     .value = "64", .help = "Tokens per run"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = BENCH_REPEAT_MAX,
     .value = "9", .help = "Runs without drafts, and as many with them"},
    {.name = "temp", .kind = OPTION_FLOAT, .metavar = "X", .float_min = 0, .float_max = 10,
     .shown = "the model's recommendation, or 0",
     .help = "Temperature of the model's own text; 0: the most likely token"},
    {.name = "svg", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Plot speed, speed-up, hit rate and bytes read against the budget"},
    {.name = NULL},
};
static const struct option_group group_draft = {"Measurement", draft_options};

const struct command cmd_bench_draft = {
    .name = "bench draft",
    .summary = "Compare decoding with drafts and without, by memory budget",
    .description =
        "For every budget, decodes runs of tokens without drafts and with them, in turns, in one "
        "open model. The first pair of runs warms up and does not count. Prints the median, lowest "
        "and highest speed, and how many times faster drafts are: the median of all pairs.\n"
        "With the model's own text, every run continues eight openings, each in its own "
        "conversation. Both runs of a pair give the same tokens; the hash of all logits proves it, "
        "and a difference is an error.\n"
        "A model with random weights writes random text. --acceptance simulates drafts for it: the "
        "tokens are known before, and a draft is made right or wrong with these probabilities and "
        "a fixed seed. Drafts are computed as any others. With --routes, rows of wrong drafts use "
        "experts of another token of the same topic. With room for every expert, those of all "
        "tokens are read before.\n"
        "As many drafts are computed as have lately been worth their time; --draft N computes "
        "always N. The memory that drafts need is taken from both sides.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_draft, &group_routes, &group_engine,
                                                   &group_ranks,
                                                   &group_json, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe bench draft nano --svg nano.svg", "Drafts for nano's text, with a plot"},
        {"flashmoe bench draft MODEL --acceptance 90,75,60 --routes gen",
         "Simulated drafts for a model with random weights"},
        {NULL, NULL}},
    .run = run_bench_draft,
};
