#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/plat.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/bench/eval_tokens.h"
#include "apps/cli/interrupt.h"
#include "apps/bench/route_trace.h"
#include "apps/cli/term.h"

/* Extra tokens of a window: the last of N tokens predicts the first token of the next window, which
 * makes N predictions. */
#define WINDOW_EXTRA 1

struct nll {
    const struct args *args;
    struct fm_model *model;
    struct fm_session *session;
    struct eval_tokens tokens;
    size_t window, n_windows; /* n_windows 0: the whole file */

    const int32_t *targets; /* of the current window, by position */
    size_t n_targets;
    struct nll_sum {
        double nats;
        uint64_t n_predicted, n_done_windows, elapsed_ns;
    } sum, exact; /* exact: the same text again without approximations */
    bool one_by_one; /* evaluates tokens alone, as in an answer, not as a prompt */
    bool has_bad_target;
    struct route_trace trace; /* every window is a turn */

    struct fm_stats stats; /* of the first evaluation; its strings are not kept */
    char architecture[64], approximate[160];
};

static double nats_per_token(const struct nll_sum *sum)
{
    return sum->nats / (double)sum->n_predicted;
}

/* ---- text to tokens -------------------------------------------------------------------- */

static int check_window(const struct nll *nll, struct fm_error *err)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(nll->model, &info);
    if (nll->window <= info.max_context)
        return 0;
    return err_set(err, FM_ERR_ARG, "--window %zu: the model supports a context of at most %u "
                   "positions", nll->window, info.max_context);
}

/* Tokenizes before opening the weights. The memory of the tokens then counts as the program's when
 * the budget is divided, and a bad file is found early. */
static int tokenize_file(struct nll *nll, struct fm_error *err)
{
    struct fm_model_options options = {.size = sizeof options};
    options.metadata_only = true;
    fm_log_to(NULL, NULL); /* the second opening repeats the messages */
    int rc = fm_model_open(app_model_path(nll->args), &options, &nll->model, err);
    if (rc == 0)
        rc = check_window(nll, err);
    if (rc == 0)
        rc = eval_tokens_read(&nll->tokens, nll->args, nll->model, args_operand(nll->args, 1),
                              nll->n_windows > 0 ? nll->n_windows * nll->window + WINDOW_EXTRA
                                                 : SIZE_MAX,
                              err);
    fm_model_close(nll->model);
    nll->model = NULL;
    return rc;
}

/* ---- tokens to nats -------------------------------------------------------------------- */

static void add_position(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct nll *nll = ctx;
    if (position >= nll->n_targets)
        return;
    const int32_t target = nll->targets[position];
    if (target < 0 || (unsigned)target >= n) {
        nll->has_bad_target = true;
        return;
    }
    float max = logits[0];
    for (unsigned i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (unsigned i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    nll->sum.nats += log(sum) + (double)max - (double)logits[target];
    nll->sum.n_predicted++;
}

static void record_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                         const uint32_t *ids, const float *weights)
{
    struct nll *nll = ctx;
    nll->trace.turn = (unsigned)nll->sum.n_done_windows;
    route_trace_row(&nll->trace, layer, position, n, ids, weights);
}

/* Returns the tokens of the window at `at`; fewer than 2 at the end of the text. */
static size_t window_tokens(const struct nll *nll, size_t at)
{
    size_t left = at < nll->tokens.n_ids ? nll->tokens.n_ids - at : 0;
    size_t max = nll->window + WINDOW_EXTRA;
    return left < max ? left : max;
}

static size_t count_windows(const struct nll *nll)
{
    size_t n = 0;
    while ((nll->n_windows == 0 || n < nll->n_windows) &&
           window_tokens(nll, n * nll->window) >= 2)
        n++;
    return n;
}

static int eval_window(struct nll *nll, size_t at, struct fm_error *err)
{
    const int32_t *ids = eval_tokens_at(&nll->tokens, at);
    nll->n_targets = window_tokens(nll, at) - 1;
    nll->targets = ids + 1;
    fm_session_reset(nll->session);
    const size_t n = nll->one_by_one ? 1 : nll->n_targets;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < nll->n_targets; i += n)
        rc = fm_session_eval(nll->session, ids + i, n, err);
    if (rc == 0 && nll->has_bad_target)
        rc = err_set(err, FM_ERR_FORMAT, "the tokenizer has ids outside the model's vocabulary");
    return rc;
}

static int eval_windows(struct nll *nll, bool records, struct fm_error *err)
{
    const size_t n_windows = count_windows(nll);
    const struct fm_observer observer = {.size = sizeof observer,
                                         .ctx = nll, .logits = add_position,
                                         .route = records ? record_route : NULL};
    struct progress progress;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(nll->model, &info);
    if (records)
        route_trace_head(&nll->trace, app_model_path(nll->args), &info);
    int rc = fm_session_open(nll->model, &nll->session, err);
    if (rc != 0)
        return rc;
    fm_session_observe(nll->session, &observer);
    interrupt_watch(nll->session);
    progress_begin(&progress, "window", !args_flag(nll->args, "quiet"));
    const uint64_t start_ns = plat_now_ns();
    while (rc == 0 && nll->sum.n_done_windows < n_windows && !interrupt_seen()) {
        rc = eval_window(nll, nll->sum.n_done_windows * nll->window, err);
        if (rc != 0)
            break;
        nll->sum.n_done_windows++;
        char note[64];
        (void)snprintf(note, sizeof note, "%.4f nats/token",
                       nats_per_token(&nll->sum));
        progress_steps(&progress, nll->sum.n_done_windows, n_windows, note);
    }
    nll->sum.elapsed_ns = plat_now_ns() - start_ns;
    progress_end(&progress);
    if (rc == 0 && interrupt_seen())
        rc = FM_ERR_CANCELLED;
    return rc;
}

/* Evaluates again without approximations; the difference is their cost. Tokens are evaluated in
 * batches, which changes no bit. */
static int eval_exact(struct nll *nll, struct fm_error *err)
{
    const struct app_model_options how = {.n_context = (unsigned)nll->window, .is_exact = true};
    const struct nll_sum approximate = nll->sum;
    interrupt_watch(NULL);
    fm_session_close(nll->session);
    fm_model_close(nll->model);
    nll->session = NULL;
    nll->model = NULL;
    nll->sum = (struct nll_sum){0};
    nll->one_by_one = false;
    int rc = app_model_open(nll->args, &how, &nll->model, err);
    if (rc == 0)
        rc = eval_windows(nll, false, err);
    nll->exact = nll->sum;
    nll->sum = approximate;
    return rc;
}

/* ---- the result ------------------------------------------------------------------------ */

static int print_json(const struct nll *nll, const char *approximate)
{
    const double nats = nats_per_token(&nll->sum);
    const char *path = app_model_path(nll->args), *file = args_operand(nll->args, 1);
    json_t *all = json_pack(
        "{s:f, s:f, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:o, s:o, s:s, s:o}",
        "nats_per_token", nats, "perplexity", exp(nats),
        "n_tokens", (json_int_t)nll->sum.n_predicted,
        "n_windows", (json_int_t)nll->sum.n_done_windows, "window", (json_int_t)nll->window,
        "tok_per_s", per_second(nll->sum.n_predicted, nll->sum.elapsed_ns),
        "bytes_read", (json_int_t)nll->stats.bytes_read,
        "memory_bytes", (json_int_t)nll->stats.memory_resident_peak_bytes,
        "memory_budget_bytes", (json_int_t)nll->stats.memory_budget_bytes,
        "file", json_text(file, strlen(file)), "model", json_text(path, strlen(path)),
        "architecture", nll->architecture, "approximate", json_label(approximate));
    if (all != NULL && approximate != NULL) {
        const double exact = nats_per_token(&nll->exact);
        (void)json_object_set_new(all, "exact_nats_per_token", json_real(exact));
        (void)json_object_set_new(all, "cost_nats_per_token", json_real(nats - exact));
    }
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

static int print_nll(const struct nll *nll)
{
    const char *approximate = nll->approximate[0] != '\0' ? nll->approximate : NULL;
    if (args_flag(nll->args, "json"))
        return print_json(nll, approximate);
    const double nats = nats_per_token(&nll->sum), exact = nats_per_token(&nll->exact);
    char n[UNIT_BYTES];
    (void)printf("nats per token  %.4f\n", nats);
    if (approximate != NULL)
        (void)printf("                %s\n                exact %.4f: the cost is %+.4f\n",
                     approximate, exact, nats - exact);
    (void)printf("perplexity      %.3f\n", exp(nats));
    (void)printf("tokens          %s predicted, in %llu window%s of %zu\n",
                 grouped_digits(nll->sum.n_predicted, n),
                 (unsigned long long)nll->sum.n_done_windows,
                 nll->sum.n_done_windows == 1 ? "" : "s", nll->window);
    (void)printf("speed           %.2f tok/s\n",
                 per_second(nll->sum.n_predicted, nll->sum.elapsed_ns));
    return STATUS_OK;
}

static int eval_all(struct nll *nll, struct fm_error *err)
{
    const struct app_model_options how = {.n_context = (unsigned)nll->window};
    int rc = tokenize_file(nll, err);
    if (rc == 0)
        rc = app_model_open(nll->args, &how, &nll->model, err);
    if (rc != 0)
        return rc;
    nll->one_by_one = args_float(nll->args, "cache-bias") > 0;
    rc = eval_windows(nll, nll->trace.out.file != NULL, err);
    if (rc != 0)
        return rc;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(nll->model, &info);
    nll->stats.size = sizeof nll->stats;
    fm_model_stats(nll->model, &nll->stats);
    (void)snprintf(nll->architecture, sizeof nll->architecture, "%s", info.architecture);
    if (info.approximate == NULL)
        return 0;
    (void)snprintf(nll->approximate, sizeof nll->approximate, "%s", info.approximate);
    return eval_exact(nll, err);
}

static int run_nll(const struct args *args)
{
    struct fm_error err = {0};
    struct nll nll = {.args = args, .window = args_uint(args, "window"),
                      .n_windows = args_uint(args, "windows")};
    interrupt_install();
    int rc = route_trace_open(&nll.trace, args_text(args, "trace"), &err);
    if (rc == 0)
        rc = eval_all(&nll, &err);
    int status;
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted after %llu window%s; no result",
            (unsigned long long)nll.sum.n_done_windows, nll.sum.n_done_windows == 1 ? "" : "s");
        status = STATUS_INTERRUPTED;
    } else {
        status = rc == 0 ? print_nll(&nll) : say_failed(&err, STATUS_FAILED);
    }
    if (route_trace_close(&nll.trace, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    interrupt_watch(NULL);
    fm_session_close(nll.session);
    fm_model_close(nll.model);
    eval_tokens_clear(&nll.tokens);
    return status;
}

static const struct option window_options[] = {
    {.name = "window", .kind = OPTION_UINT, .metavar = "N", .min = 2, .max = LIMIT_CONTEXT,
     .value = "512", .help = "Tokens per window. Every window starts with an empty session"},
    {.name = "windows", .kind = OPTION_UINT, .metavar = "N", .max = 1u << 30, .value = "0",
     .help = "Evaluate only the first N windows; 0: the whole file"},
    {.name = NULL},
};
static const struct option_group group_windows = {"Windows", window_options};

const struct command cmd_eval_nll = {
    .name = "eval nll",
    .summary = "Measure how well a model predicts a text, in nats per token",
    .description =
        "Concatenates the documents and cuts them into windows without overlap. In each window, "
        "the model starts empty, reads N tokens and predicts the token after each. Lower is "
        "better; perplexity is e to the power of the nats per token.\n"
        "With --experts-per-token, --cache-bias or a --kv below f16, the text is evaluated twice, "
        "the second time exactly, and the difference is the cost in nats. With --cache-bias, "
        "tokens are evaluated one by one, as in an answer.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help},
                                         {.name = "FILE", .help = operand_corpus_help},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_windows, &group_engine,
                                                   &group_ranks,
                                                   &group_trace, &group_json, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe eval nll MODEL heldout.jsonl --windows 8", "The first 8 windows of 512 tokens"},
        {NULL, NULL}},
    .run = run_nll,
};
