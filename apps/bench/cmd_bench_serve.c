#include <stdio.h>

#include "apps/bench/bench_common.h"
#include "apps/bench/own_server.h"
#include "apps/bench/serve_client.h"
#include "apps/bench/serve_report.h"
#include "apps/cli/cmd.h"
#include "apps/cli/interrupt.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"

#define SESSIONS_MORE 2
#define ROOM_TOKENS 64 /* of the context, beyond prompt and answer */

struct serving {
    const struct args *args;
    struct serve_shape shape;
    unsigned vocabulary; /* of the prompts: ids are below it */
    int32_t **prompts;   /* [n_users] */
    size_t n_prompt;
    struct own_server *own; /* NULL: only other servers are measured */
    struct serve_target targets[SERVE_TARGETS_MAX];
    struct http_url urls[SERVE_TARGETS_MAX];
    unsigned n_targets;
    struct serve_machine machine;
    struct progress progress;
    unsigned n_rounds_done, n_rounds;
    /* Between the first text of the last user and the end of the first answer. */
    struct fm_stats begin, end;
    uint64_t begin_ns, end_ns;
    bool has_begun, has_ended;
};

/* ---- the server of this process --------------------------------------------------------- */

static int open_own(struct serving *s, struct fm_error *err)
{
    const unsigned n_sessions = s->shape.n_users + SESSIONS_MORE;
    struct fm_model *model;
    const struct app_model_options how = {
        .n_context = (unsigned)(s->n_prompt + s->shape.n_tokens + ROOM_TOKENS), .n_marks = 4,
        .n_sessions = n_sessions, .caller_bytes = OWN_SERVER_REQUEST_BYTES,
        .routes = args_text(s->args, "routes")};
    const int rc = app_model_open(s->args, &how, &model, err);
    if (rc != 0)
        return rc;
    s->machine.info.size = sizeof s->machine.info;
    fm_model_info(model, &s->machine.info);
    const struct own_server_options options = {
        .model = model, .model_path = app_model_path(s->args), .n_users = s->shape.n_users,
        .n_sessions = n_sessions, .stall_ms = (unsigned)args_uint(s->args, "max-stall")};
    return own_server_open(&options, &s->own, err);
}

/* ---- prompts ---------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull; /* splitmix64 */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Makes the prompts of a round, which no earlier round had: a beginning that all users share, and
 * a part of each. */
static void make_prompts(struct serving *s, unsigned round)
{
    for (unsigned u = 0; u < s->shape.n_users; u++)
        for (size_t i = 0; i < s->n_prompt; i++) {
            const uint64_t user = i < s->shape.n_prefix ? 0 : u + 1u;
            s->prompts[u][i] = (int32_t)(
                mixed(mixed(mixed(round + 1u) + user) + i) % s->vocabulary);
        }
}

static int open_prompts(struct serving *s, struct fm_error *err)
{
    s->prompts = mem_new(s->shape.n_users, sizeof *s->prompts, "the prompts", err);
    if (s->prompts == NULL)
        return FM_ERR_NOMEM;
    for (unsigned u = 0; u < s->shape.n_users; u++) {
        s->prompts[u] = mem_new(s->n_prompt, sizeof **s->prompts, "the prompts", err);
        if (s->prompts[u] == NULL)
            return FM_ERR_NOMEM;
    }
    return 0;
}

static void close_prompts(struct serving *s)
{
    for (unsigned u = 0; s->prompts != NULL && u < s->shape.n_users; u++)
        mem_free(s->prompts[u]);
    mem_free(s->prompts);
}

/* ---- rounds ----------------------------------------------------------------------------- */

/* Notes the counters at both ends of the time in which all users get text. With short answers there
 * is none: the first one ends before the last one begins. */
static void see(void *ctx, unsigned n_begun, unsigned n_ended)
{
    struct serving *s = ctx;
    if (!s->has_begun && n_begun == s->shape.n_users && n_ended == 0) {
        own_server_counts(s->own, &s->begin, &s->begin_ns);
        s->has_begun = true;
    }
    if (s->has_begun && !s->has_ended && n_ended > 0) {
        own_server_counts(s->own, &s->end, &s->end_ns);
        s->has_ended = true;
    }
}

/* Has all users ask a server. In turns with the other servers, first with prompts that are new to
 * it and then with the same ones. */
static int ask(struct serving *s, struct serve_target *target, bool is_cached, bool counts,
               struct fm_error *err)
{
    struct serve_answer answers[SERVE_USERS_MAX];
    const struct serve_load load = {
        .url = target->url, .api_key = args_text(s->args, "api-key"), .model = target->model,
        .n_users = s->shape.n_users, .n_tokens = s->shape.n_tokens,
        .prompts = (const int32_t *const *)s->prompts, .n_prompt = s->n_prompt,
        .seen = target->is_own ? see : NULL, .ctx = s};
    progress_steps(&s->progress, s->n_rounds_done, s->n_rounds, target->name);
    s->has_begun = s->has_ended = false;
    const int rc = serve_client_run(&load, answers, err);
    if (rc != 0)
        return rc;
    s->n_rounds_done++;
    if (!counts)
        return 0;
    serve_report_note(target, &s->shape, is_cached, answers);
    if (target->is_own && is_cached && s->has_begun && s->has_ended)
        serve_report_count(target, &s->begin, &s->end, s->end_ns - s->begin_ns);
    return 0;
}

static int run_rounds(struct serving *s, struct fm_error *err)
{
    int rc = 0;
    s->n_rounds = s->n_targets * (1 + 2 * s->shape.n_repeat);
    progress_begin(&s->progress, "bench serve", !args_flag(s->args, "quiet"));
    make_prompts(s, s->shape.n_repeat);
    for (unsigned i = 0; rc == 0 && i < s->n_targets; i++)
        rc = ask(s, &s->targets[i], false, false, err); /* fills caches */
    for (unsigned r = 0; rc == 0 && r < s->shape.n_repeat; r++) {
        make_prompts(s, r);
        for (unsigned i = 0; rc == 0 && i < 2 * s->n_targets; i++)
            rc = ask(s, &s->targets[i / 2], i % 2 == 1, true, err);
    }
    progress_end(&s->progress);
    return rc;
}

/* ---- the whole -------------------------------------------------------------------------- */

static int add_target(struct serving *s, const char *url, bool is_own, struct fm_error *err)
{
    struct serve_target *target = &s->targets[s->n_targets];
    unsigned vocabulary = 0;
    int rc = http_url_parse(url, &s->urls[s->n_targets], err);
    if (rc == 0 && s->urls[s->n_targets].is_https)
        rc = err_set(err, FM_ERR_ARG, "'%.100s': bench serve has no TLS; use http://", url);
    if (rc != 0)
        return rc;
    target->url = &s->urls[s->n_targets++];
    target->is_own = is_own;
    target->name = is_own ? "this program" : target->url->base;
    rc = serve_client_model(target->url, args_text(s->args, "api-key"), target->model,
                            &vocabulary, err);
    if (rc == 0 && vocabulary < SERVE_VOCABULARY_MIN && !is_own)
        rc = err_set(err, FM_ERR_IO, "%s/v1/models does not tell the size of the vocabulary "
                     "(data[0].meta.n_vocab), which prompts need", url);
    if (rc == 0 && vocabulary > 0 && (s->vocabulary == 0 || vocabulary < s->vocabulary))
        s->vocabulary = vocabulary;
    return rc;
}

static bool has_own(const struct args *args)
{
    return args_operand(args, 0) != NULL || args_count(args, "url") == 0;
}

static int open_targets(struct serving *s, struct fm_error *err)
{
    int rc = has_own(s->args) ? open_own(s, err) : 0;
    if (rc == 0 && s->own != NULL) {
        char url[64];
        (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", own_server_port(s->own));
        rc = add_target(s, url, true, err);
    }
    for (size_t i = 0; rc == 0 && i < args_count(s->args, "url"); i++)
        rc = add_target(s, args_text_at(s->args, "url", i), false, err);
    /* Tokens with a meaning of their own are mostly the last ones. */
    s->vocabulary -= s->vocabulary / 4;
    return rc;
}

static int close_own(struct serving *s, struct fm_error *err)
{
    const int rc = own_server_close(s->own, err);
    s->own = NULL;
    return rc;
}

/* Measures the machine when the model is closed: measuring memory takes as much. */
static int measure_after(struct serving *s, struct fm_error *err)
{
    struct serve_machine *m = &s->machine;
    uint64_t passed_ns;
    char io[32];
    if (s->own == NULL)
        return 0;
    own_server_counts(s->own, &m->stats, &passed_ns);
    (void)snprintf(io, sizeof io, "%s", m->stats.io != NULL ? m->stats.io : "");
    m->is_resident = m->stats.n_cache_slots >= (uint64_t)m->info.n_experts * m->info.n_moe_layers;
    const int rc = close_own(s, err);
    return rc == 0 ? serve_report_measure(m, s->args, io, err) : rc;
}

static int run_all(struct serving *s, struct fm_error *err)
{
    int rc = has_own(s->args) && plat_resident_peak_reset()
                 ? serve_report_measure(&s->machine, s->args, NULL, err) : 0;
    (void)plat_resident_peak_reset(); /* the measured memory is not the model's */
    if (rc == 0)
        rc = open_prompts(s, err);
    if (rc == 0)
        rc = open_targets(s, err);
    if (rc == 0)
        rc = run_rounds(s, err);
    if (rc == 0)
        rc = measure_after(s, err);
    return rc;
}

static int run_serve(const struct args *args)
{
    struct fm_error err = {0}, ignored = {0};
    struct serving *s = mem_new(1, sizeof *s, "the measurements", &err);
    if (s == NULL)
        return say_failed(&err, STATUS_FAILED);
    s->args = args;
    s->shape = (struct serve_shape){.n_users = (unsigned)args_uint(args, "users"),
                                    .n_prompt = (unsigned)args_uint(args, "prompt"),
                                    .n_prefix = (unsigned)args_uint(args, "prefix"),
                                    .n_tokens = (unsigned)args_uint(args, "tokens"),
                                    .n_repeat = (unsigned)args_uint(args, "repeat")};
    s->n_prompt = (size_t)s->shape.n_prefix + s->shape.n_prompt;
    interrupt_install();
    interrupt_hold(true);
    const int rc = run_all(s, &err);
    int status = STATUS_OK;
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted; no result");
        status = STATUS_INTERRUPTED;
    } else if (rc != 0) {
        status = say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    } else {
        status = serve_report_print(args, &s->shape, s->targets, s->n_targets, &s->machine);
    }
    (void)close_own(s, &ignored); /* after a failure; otherwise it is closed already */
    close_prompts(s);
    mem_free(s);
    return status;
}

static const struct option serve_options[] = {
    {.name = "users", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = SERVE_USERS_MAX,
     .value = "8", .help = "Users that ask at the same time"},
    {.name = "prompt", .kind = OPTION_UINT, .metavar = "N", .min = 2, .max = LIMIT_CONTEXT / 4,
     .value = "330", .help = "Tokens of each user's own prompt"},
    {.name = "prefix", .kind = OPTION_UINT, .metavar = "N", .max = LIMIT_CONTEXT / 4,
     .value = "0", .help = "Tokens before it that all users share"},
    {.name = "tokens", .kind = OPTION_UINT, .metavar = "N", .min = 2, .max = 1u << 16,
     .value = "48", .help = "Tokens of each answer"},
    {.name = "repeat", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = BENCH_REPEAT_MAX,
     .value = "3", .help = "Number of rounds, each with new prompts"},
    {.name = "url", .kind = OPTION_STRING, .metavar = "URL", .is_many = true,
     .help = "Measure the server at this address too, in turns, or alone without MODEL: any with "
             "OpenAI's completions, as llama-server. May be given several times"},
    {.name = "api-key", .kind = OPTION_STRING, .metavar = "KEY",
     .help = "Key for the servers at --url"},
    {.name = "max-stall", .kind = OPTION_UINT, .metavar = "MS", .min = 1, .max = 60000,
     .value = "200", .help = "As for flashmoe serve"},
    {.name = NULL},
};
static const struct option_group group_serve = {"Measurement", serve_options};

const struct command cmd_bench_serve = {
    .name = "bench serve",
    .summary = "Measure how fast a server answers several users at a time",
    .description =
        "Serves MODEL on a port of this machine and has all users ask at once, over HTTP, with "
        "prompts of tokens and answers that do not end early. A round has two parts: prompts "
        "that are new, and the same ones again, which the server has cached. One round before "
        "them fills caches and does not count.\n"
        "Prints the tokens per second of all users together, the time to the first token (first, "
        "median and last user), the speed of each user while text comes, and the longest gap in "
        "any stream. While all users with cached prompts get text, it also counts what the passes "
        "read, and prints the limit: dense weights once, the experts that any user needs once, "
        "and each user's keys, values and state, over the speed of memory or of the disk, which "
        "are measured in the same run.\n"
        "With --url, other servers are measured the same way, in turns with this one.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_serve, &group_routes, &group_engine,
                                                   &group_json, &group_messages, &group_help,
                                                   NULL},
    .examples = (const struct example[]){
        {"flashmoe bench serve MODEL --users 16", "Sixteen users with prompts of 330 tokens"},
        {"flashmoe bench serve MODEL --users 4 --prefix 10000 --prompt 200",
         "Four agents with the same 10,000 tokens before their own"},
        {"flashmoe bench serve MODEL --url http://127.0.0.1:8081", "Next to another server"},
        {NULL, NULL}},
    .run = run_serve,
};
