#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/bench/bench_common.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "apps/bench/route_trace.h"
#include "apps/bench/topics.h"

#define STEADY_TOKENS 32 /* before the switch, and at the end */
#define WINDOW_TOKENS 8  /* single tokens vary too much to detect the steady state */
#define BACK_SHARE 1.1   /* maximum ratio to the steady state */
#define BACK_MISSES 0.5  /* plus this: 10 % of almost no misses is less than one */
#define OPENING_TOKENS 128 /* maximum: no opening has as many bytes */
#define PROMPT_TOKENS 16   /* without an opening */
#define SINGLE_TOKENS 8    /* rows of single tokens before rows of means */

/* The cost of evaluating a token or a prompt, or a mean of several. */
struct cost {
    double ms, misses, bytes;
};

struct switching {
    const struct args *args;
    unsigned n_tokens; /* before the switch, and also after it */
    struct fm_model *model;
    struct fm_model_info info;
    struct fm_stats stats; /* at the end */
    struct topics topics;
    struct route_trace trace;
    struct progress progress;
    struct cost *costs; /* [2 * n_tokens] */
    struct cost prompt; /* at the switch; empty with generated routes */
    size_t n_prompt;
    unsigned n_done;
    char logits_hash[2][33]; /* one per conversation */

    struct cost before, steady;
    unsigned worst; /* index of the slowest of the first STEADY_TOKENS after the switch */
    unsigned back_ms, back_misses; /* first token of the new steady state; n_tokens: not reached */
    struct cost extra; /* cost above the steady state until it is reached */
};

/* ---- the tokens ------------------------------------------------------------------------------ */

static int evaluate(struct switching *s, const int32_t *ids, size_t n, struct cost *cost,
                    struct fm_error *err)
{
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    fm_model_stats(s->model, &before);
    const uint64_t begin_ns = plat_now_ns();
    int rc = interrupt_seen() ? FM_ERR_CANCELLED : fm_session_eval(s->topics.session, ids, n, err);
    const uint64_t elapsed_ns = plat_now_ns() - begin_ns;
    fm_model_stats(s->model, &after);
    *cost = (struct cost){.ms = (double)elapsed_ns * 1e-6,
                          .misses = (double)(after.n_expert_misses - before.n_expert_misses),
                          .bytes = (double)(after.bytes_read - before.bytes_read)};
    return rc;
}

static int decode(struct switching *s, unsigned n, struct fm_error *err)
{
    int rc = 0;
    s->trace.is_decode = true;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        int32_t id;
        rc = topics_pick(&s->topics, &id, err);
        if (rc == 0)
            rc = evaluate(s, &id, 1, &s->costs[s->n_done++], err);
        progress_steps(&s->progress, s->n_done, 2 * (uint64_t)s->n_tokens, "tokens");
    }
    return rc;
}

/* Decodes two conversations, one after the other. */
static int decode_texts(struct switching *s, struct fm_error *err)
{
    static const unsigned topics[2] = {TOPIC_C, TOPIC_VERSE};
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 2; i++) {
        fm_session_reset(s->topics.session);
        s->trace.turn = i;
        s->trace.is_decode = false;
        s->n_prompt = s->topics.openings[topics[i]].n_ids;
        rc = evaluate(s, s->topics.openings[topics[i]].ids, s->n_prompt, &s->prompt, err);
        if (rc == 0)
            rc = decode(s, s->n_tokens, err);
        fm_session_logits_hash(s->topics.session, s->logits_hash[i]);
    }
    return rc;
}

static int decode_generated(struct switching *s, struct fm_error *err)
{
    int32_t prompt[PROMPT_TOKENS];
    struct cost cost;
    for (unsigned i = 0; i < PROMPT_TOKENS; i++)
        prompt[i] = (int32_t)(i * 7919 % s->info.vocabulary);
    int rc = evaluate(s, prompt, PROMPT_TOKENS, &cost, err);
    if (rc == 0)
        rc = decode(s, 2 * s->n_tokens, err);
    fm_session_logits_hash(s->topics.session, s->logits_hash[1]);
    return rc;
}

/* ---- what it comes to ------------------------------------------------------------------------ */

static void add(struct cost *sum, const struct cost *cost, double times)
{
    sum->ms += times * cost->ms;
    sum->misses += times * cost->misses;
    sum->bytes += times * cost->bytes;
}

static struct cost mean_of(const struct cost *costs, unsigned n)
{
    struct cost mean = {0};
    for (unsigned i = 0; i < n; i++)
        add(&mean, &costs[i], 1.0 / n);
    return mean;
}

static void sum_up(struct switching *s)
{
    const struct cost *after = s->costs + s->n_tokens;
    const unsigned n = s->n_tokens;
    s->before = mean_of(after - STEADY_TOKENS, STEADY_TOKENS);
    s->steady = mean_of(after + n - STEADY_TOKENS, STEADY_TOKENS);
    s->back_ms = s->back_misses = n;
    for (unsigned i = n - WINDOW_TOKENS + 1; i-- > 0;) {
        const struct cost mean = mean_of(after + i, WINDOW_TOKENS);
        if (mean.ms <= BACK_SHARE * s->steady.ms)
            s->back_ms = i;
        if (mean.misses <= BACK_SHARE * s->steady.misses + BACK_MISSES)
            s->back_misses = i;
    }
    for (unsigned i = 0; i < STEADY_TOKENS; i++)
        if (after[i].ms > after[s->worst].ms)
            s->worst = i;
    if (s->n_prompt > 0)
        s->extra = s->prompt;
    /* Later differences are noise and would add up. */
    for (unsigned i = 0; i < s->back_ms || i < s->back_misses; i++) {
        add(&s->extra, &after[i], 1);
        add(&s->extra, &s->steady, -1);
    }
}

static const char *title_of(const struct switching *s)
{
    return s->n_prompt > 0 ? "C code to Chinese verse" : "one generated topic to the next";
}

static json_t *cost_json(const struct cost *cost)
{
    return json_pack("{s:f, s:f, s:f}", "ms", cost->ms, "misses", cost->misses, "bytes",
                     cost->bytes);
}

/* Returns the number of tokens until the steady state; 0: from the first token. */
static json_t *back_json(const struct switching *s, unsigned back)
{
    return back < s->n_tokens ? json_integer(back) : json_null();
}

static json_t *tokens_json(const struct switching *s)
{
    json_t *tokens = json_array();
    for (unsigned i = 0; i < 2 * s->n_tokens; i++) {
        json_t *one = cost_json(&s->costs[i]);
        const json_int_t at = (json_int_t)i - s->n_tokens;
        (void)json_object_set_new(one, "token", json_integer(at < 0 ? at : at + 1));
        (void)json_array_append_new(tokens, one);
    }
    return tokens;
}

static int print_json(const struct switching *s)
{
    const char *path = app_model_path(s->args);
    const struct fm_stats *stats = &s->stats;
    json_t *prompt = s->n_prompt > 0 ? cost_json(&s->prompt) : json_null();
    if (s->n_prompt > 0)
        (void)json_object_set_new(prompt, "n_tokens", json_integer((json_int_t)s->n_prompt));
    json_t *worst = cost_json(&s->costs[s->n_tokens + s->worst]);
    (void)json_object_set_new(worst, "token", json_integer(s->worst + 1));
    json_t *all = json_pack(
               "{s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I,"
               " s:I, s:s, s:s, s:s?, s:o, s:s, s:o, s:o}",
               "switch", title_of(s), "n_tokens", (json_int_t)s->n_tokens,
               "before", cost_json(&s->before), "prompt", prompt, "worst", worst,
               "steady", cost_json(&s->steady), "extra", cost_json(&s->extra),
               "tokens_until_ms", back_json(s, s->back_ms),
               "tokens_until_misses", back_json(s, s->back_misses), "tokens", tokens_json(s),
               "n_experts_per_token",
               (json_int_t)s->info.n_experts_per_token * s->info.n_moe_layers,
               "n_cache_slots", (json_int_t)stats->n_cache_slots,
               "memory_bytes", (json_int_t)stats->memory_resident_peak_bytes,
               "memory_budget_bytes", (json_int_t)stats->memory_budget_bytes,
               "n_shrinks", (json_int_t)stats->n_shrinks, "n_grows", (json_int_t)stats->n_grows,
               "n_threads", (json_int_t)stats->n_threads, "cpu_level",
               gpu_report_cpu_level(stats),
               "logits_hash", s->logits_hash[1], "policy", stats->policy,
               "model", json_text(path, strlen(path)), "architecture", s->info.architecture,
               "routes", json_label(stats->routes),
               "approximate", json_label(stats->approximate));
    if (all != NULL)
        (void)gpu_report_put(all, NULL, stats);
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

static void write_csv(const struct switching *s, FILE *out)
{
    csv_labels(out, &s->info);
    (void)fprintf(out, "token,ms,misses,bytes\n");
    for (unsigned i = 0; i < 2 * s->n_tokens; i++) {
        const struct cost *c = &s->costs[i];
        if (i == s->n_tokens && s->n_prompt > 0)
            (void)fprintf(out, "0,%.4f,%.0f,%.0f\n", s->prompt.ms, s->prompt.misses,
                          s->prompt.bytes);
        (void)fprintf(out, "%ld,%.4f,%.0f,%.0f\n",
                      (long)i - (long)s->n_tokens + (i >= s->n_tokens), c->ms, c->misses,
                      c->bytes);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_row(const char *title, long first, long last, const struct cost *cost)
{
    char tokens[UNIT_BYTES];
    if (first == last)
        (void)snprintf(tokens, sizeof tokens, "%ld", first);
    else
        (void)snprintf(tokens, sizeof tokens, "%ld to %ld", first, last);
    (void)printf("%-8s%14s%12.3f%12.2f%12.3f\n", title, tokens, cost->ms, cost->misses,
                 cost->bytes * 1e-6);
}

static void print_after(const struct switching *s)
{
    const struct cost *after = s->costs + s->n_tokens;
    unsigned first = 0;
    while (first < s->n_tokens) { /* single tokens, then stretches of doubling length */
        unsigned n = first < SINGLE_TOKENS ? 1 : first;
        n = first + n < s->n_tokens ? n : s->n_tokens - first;
        const struct cost mean = mean_of(after + first, n);
        print_row(first == 0 ? "after" : "", (long)first + 1, (long)(first + n), &mean);
        first += n;
    }
    print_row("steady", (long)s->n_tokens - STEADY_TOKENS + 1, (long)s->n_tokens, &s->steady);
}

static void print_back(const char *what, const struct switching *s, unsigned back)
{
    if (back == s->n_tokens)
        (void)printf("%s not within %u tokens", what, s->n_tokens);
    else
        (void)printf("%s after %u token%s", what, back, back == 1 ? "" : "s");
}

static int print_table(const struct switching *s)
{
    const struct cost *worst = &s->costs[s->n_tokens + s->worst];
    (void)printf("switch       %s, %u tokens each\n\n", title_of(s), s->n_tokens);
    (void)printf("%22s%12s%12s%12s\n", "token", "ms", "misses", "MB read");
    print_row("before", -STEADY_TOKENS, -1, &s->before);
    if (s->n_prompt > 0)
        print_row("prompt", 0, 0, &s->prompt);
    print_after(s);
    (void)printf("\nA token needs %u experts. Rows with several tokens are means.\n\n",
                 s->info.n_experts_per_token * s->info.n_moe_layers);
    if (s->n_prompt > 0)
        (void)printf("prompt       %zu tokens in %.2f ms\n", s->n_prompt, s->prompt.ms);
    (void)printf("worst token  %.2f ms, token %u of the first %d; %.2f times the mean before\n",
                 worst->ms, s->worst + 1, STEADY_TOKENS,
                 s->before.ms > 0 ? worst->ms / s->before.ms : 0);
    (void)printf("steady       ");
    print_back("time", s, s->back_ms);
    print_back(", misses", s, s->back_misses);
    (void)printf(": means of %d tokens within 10%% of the last %d\n", WINDOW_TOKENS,
                 STEADY_TOKENS);
    (void)printf("extra        %.2f MB, %.0f misses and %.2f ms above the steady state until it "
                 "is reached%s\n", s->extra.bytes * 1e-6, s->extra.misses, s->extra.ms,
                 s->n_prompt > 0 ? ", including the prompt" : "");
    bench_print_engine(&s->stats);
    return STATUS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int open_model(struct switching *s, struct fm_error *err)
{
    char *routes = NULL;
    int rc = topics_choose_routes(s->args, PROMPT_TOKENS + s->n_tokens, false, &routes, err);
    const struct app_model_options how = {
        .n_context = routes != NULL ? PROMPT_TOKENS + 2 * s->n_tokens
                                    : OPENING_TOKENS + s->n_tokens,
        .routes = routes,
    };
    if (rc == 0)
        rc = app_model_open(s->args, &how, &s->model, err);
    mem_free(routes);
    if (rc == 0)
        rc = topics_open(&s->topics, s->args, s->model, err);
    return rc;
}

static int run_all(struct switching *s, struct fm_error *err)
{
    s->costs = mem_new(2 * (size_t)s->n_tokens, sizeof *s->costs, "the measurements", err);
    int rc = s->costs != NULL ? open_model(s, err) : FM_ERR_NOMEM;
    if (rc != 0)
        return rc;
    s->info.size = sizeof s->info;
    fm_model_info(s->model, &s->info);
    route_trace_head(&s->trace, app_model_path(s->args), &s->info);
    const struct fm_observer observer = {.size = sizeof observer,
                                         .ctx = &s->trace, .route = route_trace_row};
    if (s->trace.out.file != NULL)
        fm_session_observe(s->topics.session, &observer);
    progress_begin(&s->progress, s->args->command->name, !args_flag(s->args, "quiet"));
    rc = s->topics.is_text ? decode_texts(s, err) : decode_generated(s, err);
    progress_end(&s->progress);
    s->stats.size = sizeof s->stats;
    fm_model_stats(s->model, &s->stats);
    return rc;
}

static int run_bench_switch(const struct args *args)
{
    struct fm_error err = {0};
    struct switching s = {.args = args, .n_tokens = (unsigned)args_uint(args, "tokens")};
    struct part_file csv = {0};
    interrupt_install();
    interrupt_hold(true); /* leaves no file half written */
    int rc = part_file_open(&csv, "--csv", args_text(args, "csv"), PLAT_SHARED, &err);
    if (rc == 0)
        rc = route_trace_open(&s.trace, args_text(args, "trace"), &err);
    if (rc == 0)
        rc = run_all(&s, &err);
    int status = STATUS_FAILED;
    if (rc == 0) {
        sum_up(&s);
        if (csv.file != NULL)
            write_csv(&s, csv.file);
        status = args_flag(args, "json") ? print_json(&s) : print_table(&s);
    } else if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no result");
        status = STATUS_INTERRUPTED;
    } else {
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    }
    if (part_file_close(&csv, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    if (route_trace_close(&s.trace, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    topics_close(&s.topics);
    fm_model_close(s.model);
    mem_free(s.costs);
    return status;
}

static const struct option switch_options[] = {
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 2 * STEADY_TOKENS,
     .max = 1u << 16, .value = "256", .help = "Tokens before the switch, and also after it"},
    {.name = "csv", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Write the time, misses and bytes of each token; token 0 is the prompt at the switch"},
    {.name = NULL},
};
static const struct option_group group_switch = {"Measurement", switch_options};

const struct command cmd_bench_switch = {
    .name = "bench switch",
    .summary = "Show the cost of a topic change, token by token",
    .description =
        "A model with its own routers writes C code and then, in a new conversation, Chinese "
        "verse. Nothing is prepared in between. Tokens are sampled with a fixed seed and are "
        "identical at every budget; stop tokens are skipped. With --routes gen, or without a "
        "tokenizer, generated routes change their topic instead.\n"
        "The table shows time, cache misses and bytes read for the last tokens before the switch, "
        "the prompt, single tokens after it, and means of longer and longer stretches. The steady "
        "state is the mean of the last tokens. The cost of the switch is everything above the "
        "steady state until it is reached, including the prompt.\n"
        "Use a small --memory: with room for every expert, only experts that no token has used yet "
        "are read. With --trace, writing the recording takes part of the time.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_switch, &group_routes, &group_trace,
                                                   &group_engine,
                                                   &group_ranks, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe bench switch nano --memory 48M", "The nano model with part of its experts"},
        {"flashmoe bench switch MODEL --memory 8G --routes gen --csv switch.csv",
         "Generated routes, with every token in a file"},
        {NULL, NULL}},
    .run = run_bench_switch,
};
