/* Needles in a haystack: checks whether a model recalls a number from somewhere in a long text. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/bench/eval_tokens.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/term.h"

#define MAX_DEPTHS 64
#define MAX_NEEDLE_TOKENS 256 /* sentence, question and answer together */

/* Results of one pass over all needles. */
struct needle_sum {
    unsigned n, n_hits; /* needles; needles whose answer is the model's first choice */
    unsigned hits[MAX_DEPTHS];
    double nats; /* of the answers' tokens */
    uint64_t n_tokens, n_same; /* of answers; with the same first choice as the exact pass */
};

struct needle {
    const struct args *args;
    struct fm_model *model;
    struct fm_session *session;
    struct eval_tokens filler;
    struct eval_tokens *texts; /* [3 * n_needles]: question, answer, end of the sentence */
    int32_t *prompt;
    unsigned n_context, n_depths, n_needles; /* needles at each depth */
    void *said; /* int32_t: first choices of the first pass, for every answer token */
    size_t said_capacity;
    struct needle_sum sum, exact; /* exact: again without approximations */
    char approximate[160];
};

/* ---- what is hidden ------------------------------------------------------------------------ */

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* Builds texts whose sentence and question begin with the same tokens, with the same answer. */
static int make_needle(struct needle *needle, unsigned i, uint32_t *state, struct fm_error *err)
{
    static const char *const names[] = {"Anna", "Ben", "Clara", "David",
                                        "Emma", "Frank", "Grace", "Henry"};
    const char *name = names[next_random(state) % 8];
    char question[64], answer[16];
    (void)snprintf(question, sizeof question, "\nThe code of %s is", name);
    (void)snprintf(answer, sizeof answer, " %u%u%u%u", 1 + next_random(state) % 9,
                   next_random(state) % 10, next_random(state) % 10, next_random(state) % 10);
    const char *const parts[] = {question, answer, ".\n"};
    size_t n_tokens = 0;
    int rc = 0;
    for (unsigned k = 0; rc == 0 && k < 3; k++) {
        struct eval_tokens *text = &needle->texts[3 * i + k];
        rc = eval_tokens_add(text, needle->model, parts[k], strlen(parts[k]), err);
        n_tokens += text->n_ids;
    }
    if (rc == 0 && (n_tokens > MAX_NEEDLE_TOKENS / 2 || needle->texts[3 * i + 1].n_ids == 0))
        rc = err_set(err, FM_ERR_UNSUPPORTED, "the tokenizer makes %zu tokens of a short sentence",
                     n_tokens);
    return rc;
}

/* Tokenizes before opening the weights, as in eval nll. */
static int prepare(struct needle *needle, struct fm_error *err)
{
    struct fm_model_options options = {.size = sizeof options};
    options.metadata_only = true;
    fm_log_to(NULL, NULL);
    int rc = fm_model_open(app_model_path(needle->args), &options, &needle->model, err);
    if (rc != 0)
        return rc;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(needle->model, &info);
    if (needle->n_context > info.max_context)
        rc = err_set(err, FM_ERR_ARG, "--context %u: the model supports a context of at most %u "
                     "positions", needle->n_context, info.max_context);
    const size_t enough = (size_t)needle->n_context * (needle->n_needles + 1);
    if (rc == 0)
        rc = eval_tokens_read(&needle->filler, needle->args, needle->model,
                              args_operand(needle->args, 1), enough, err);
    if (rc == 0 && needle->filler.n_ids < needle->n_context)
        rc = err_set(err, FM_ERR_ARG, "'%s' has %zu tokens; a context of %u needs as many",
                     args_operand(needle->args, 1), needle->filler.n_ids, needle->n_context);
    uint32_t state = 20240229;
    for (unsigned i = 0; rc == 0 && i < needle->n_needles; i++)
        rc = make_needle(needle, i, &state, err);
    fm_model_close(needle->model);
    needle->model = NULL;
    return rc;
}

static void put(struct needle *needle, size_t *at, const int32_t *ids, size_t n)
{
    memcpy(needle->prompt + *at, ids, n * sizeof *ids);
    *at += n;
}

static void put_text(struct needle *needle, size_t *at, const struct eval_tokens *text)
{
    put(needle, at, eval_tokens_at(text, 0), text->n_ids);
}

/* Builds filler, the sentence at its depth, filler and the question: n_context with the answer. */
static size_t make_prompt(struct needle *needle, unsigned i, unsigned depth)
{
    const struct eval_tokens *text = &needle->texts[3 * (size_t)i];
    const size_t taken = 2 * (text[0].n_ids + text[1].n_ids) + text[2].n_ids;
    const size_t n_filler = needle->n_context - taken;
    const size_t before = needle->n_depths > 1 ? n_filler * depth / (needle->n_depths - 1)
                                               : n_filler / 2;
    const size_t spare = needle->filler.n_ids - n_filler;
    const size_t from = spare > 0 ? (size_t)i * needle->n_context % spare : 0;
    size_t n = 0;
    put(needle, &n, eval_tokens_at(&needle->filler, from), before);
    for (unsigned k = 0; k < 3; k++)
        put_text(needle, &n, &text[k]);
    put(needle, &n, eval_tokens_at(&needle->filler, from + before), n_filler - before);
    put_text(needle, &n, &text[0]);
    return n;
}

/* ---- what is found ------------------------------------------------------------------------- */

/* Evaluates one answer token; returns whether it is the model's first choice. */
static bool add_token(struct needle *needle, const float *logits, unsigned n, int32_t wanted)
{
    struct needle_sum *sum = &needle->sum;
    unsigned best = 0;
    for (unsigned i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    double total = 0;
    for (unsigned i = 0; i < n; i++)
        total += exp((double)logits[i] - (double)logits[best]);
    sum->nats += log(total) + (double)logits[best] - (double)logits[wanted];
    int32_t *said = (int32_t *)needle->said + sum->n_tokens++;
    sum->n_same += *said == (int32_t)best;
    *said = (int32_t)best;
    return (int32_t)best == wanted;
}

static int find_needle(struct needle *needle, unsigned i, unsigned depth, unsigned vocabulary,
                       struct fm_error *err)
{
    const struct eval_tokens *answer = &needle->texts[3 * (size_t)i + 1];
    const size_t n = make_prompt(needle, i, depth);
    fm_session_reset(needle->session);
    int rc = fm_session_eval(needle->session, needle->prompt, n, err);
    if (rc == 0)
        rc = mem_grow(&needle->said, &needle->said_capacity,
                      needle->sum.n_tokens + answer->n_ids, sizeof(int32_t), "the answers", err);
    bool is_hit = true;
    for (size_t k = 0; rc == 0 && k < answer->n_ids; k++) {
        const int32_t wanted = *eval_tokens_at(answer, k);
        const float *logits = fm_session_logits(needle->session);
        is_hit = add_token(needle, logits, vocabulary, wanted) && is_hit;
        if (k + 1 < answer->n_ids)
            rc = fm_session_eval(needle->session, &wanted, 1, err);
    }
    if (rc != 0)
        return rc;
    needle->sum.n++;
    needle->sum.n_hits += is_hit;
    needle->sum.hits[depth] += is_hit;
    return 0;
}

static int find_all(struct needle *needle, struct fm_error *err)
{
    const unsigned n = needle->n_depths * needle->n_needles;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(needle->model, &info);
    struct progress progress;
    int rc = fm_session_open(needle->model, &needle->session, err);
    if (rc != 0)
        return rc;
    interrupt_watch(needle->session);
    progress_begin(&progress, "needle", !args_flag(needle->args, "quiet"));
    for (unsigned i = 0; rc == 0 && i < n && !interrupt_seen(); i++) {
        rc = find_needle(needle, i / needle->n_depths, i % needle->n_depths, info.vocabulary, err);
        char note[64];
        (void)snprintf(note, sizeof note, "%u found", needle->sum.n_hits);
        progress_steps(&progress, i + 1, n, note);
    }
    progress_end(&progress);
    interrupt_watch(NULL);
    fm_session_close(needle->session);
    needle->session = NULL;
    return rc == 0 && interrupt_seen() ? FM_ERR_CANCELLED : rc;
}

static int eval_all(struct needle *needle, struct fm_error *err)
{
    struct app_model_options how = {.n_context = needle->n_context};
    int rc = prepare(needle, err);
    if (rc == 0)
        rc = app_model_open(needle->args, &how, &needle->model, err);
    if (rc == 0)
        rc = find_all(needle, err);
    if (rc != 0)
        return rc;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(needle->model, &info);
    if (info.approximate == NULL)
        return 0;
    (void)snprintf(needle->approximate, sizeof needle->approximate, "%s", info.approximate);
    fm_model_close(needle->model);
    needle->model = NULL;
    const struct needle_sum approximate = needle->sum;
    needle->sum = (struct needle_sum){0};
    how.is_exact = true;
    rc = app_model_open(needle->args, &how, &needle->model, err);
    if (rc == 0)
        rc = find_all(needle, err);
    needle->exact = needle->sum;
    needle->sum = approximate;
    return rc;
}

/* ---- the result ---------------------------------------------------------------------------- */

static double nats_of(const struct needle_sum *sum)
{
    return sum->nats / (double)sum->n_tokens;
}

static double depth_of(const struct needle *needle, unsigned i)
{
    return needle->n_depths > 1 ? (double)i / (needle->n_depths - 1) : 0.5;
}

static json_t *sum_json(const struct needle *needle, const struct needle_sum *sum)
{
    json_t *depths = json_array();
    for (unsigned i = 0; i < needle->n_depths; i++)
        (void)json_array_append_new(
            depths, json_pack("{s:f, s:i}", "depth", depth_of(needle, i), "hits",
                              (int)sum->hits[i]));
    return json_pack("{s:i, s:i, s:f, s:I, s:o}", "n_needles", (int)sum->n, "n_hits",
                     (int)sum->n_hits, "answer_nats_per_token", nats_of(sum), "n_answer_tokens",
                     (json_int_t)sum->n_tokens, "depths", depths);
}

static int print_json(const struct needle *needle)
{
    const char *path = app_model_path(needle->args), *file = args_operand(needle->args, 1);
    const bool is_approximate = needle->approximate[0] != '\0';
    json_t *all = sum_json(needle, &needle->sum);
    if (all != NULL && is_approximate) {
        (void)json_object_set_new(all, "exact", sum_json(needle, &needle->exact));
        (void)json_object_set_new(all, "n_same_answer_tokens",
                                  json_integer((json_int_t)needle->exact.n_same));
    }
    if (all != NULL) {
        (void)json_object_set_new(all, "n_context", json_integer(needle->n_context));
        (void)json_object_set_new(all, "model", json_text(path, strlen(path)));
        (void)json_object_set_new(all, "file", json_text(file, strlen(file)));
        (void)json_object_set_new(all, "approximate",
                                  json_label(is_approximate ? needle->approximate : NULL));
    }
    return out_json(all) ? STATUS_OK : STATUS_FAILED;
}

static int print_needle(const struct needle *needle)
{
    const struct needle_sum *sum = &needle->sum, *exact = &needle->exact;
    if (args_flag(needle->args, "json"))
        return print_json(needle);
    const bool is_approximate = needle->approximate[0] != '\0';
    (void)printf("needles found   %u of %u, in %u tokens\n", sum->n_hits, sum->n,
                 needle->n_context);
    if (is_approximate)
        (void)printf("                %s\n                exact %u of %u\n", needle->approximate,
                     exact->n_hits, exact->n);
    for (unsigned i = 0; i < needle->n_depths; i++)
        (void)printf("  depth %3.0f %%   %u of %u\n", 100 * depth_of(needle, i), sum->hits[i],
                     needle->n_needles);
    (void)printf("answers         %.4f nats per token", nats_of(sum));
    if (is_approximate)
        (void)printf(", exact %.4f: the cost is %+.4f\n                the same first choice for "
                     "%llu of %llu tokens", nats_of(exact), nats_of(sum) - nats_of(exact),
                     (unsigned long long)exact->n_same, (unsigned long long)exact->n_tokens);
    (void)printf("\n");
    return STATUS_OK;
}

static int run_needle(const struct args *args)
{
    struct fm_error err = {0};
    struct needle needle = {.args = args,
                            .n_context = (unsigned)args_uint(args, "context"),
                            .n_depths = (unsigned)args_uint(args, "depths"),
                            .n_needles = (unsigned)args_uint(args, "needles")};
    int rc = 0, status;
    interrupt_install();
    needle.texts = mem_new(3ul * needle.n_needles, sizeof *needle.texts, "the needles", &err);
    needle.prompt = mem_new(needle.n_context, sizeof *needle.prompt, "the prompt", &err);
    if (needle.texts == NULL || needle.prompt == NULL)
        rc = FM_ERR_NOMEM;
    if (rc == 0)
        rc = eval_all(&needle, &err);
    if (rc == FM_ERR_CANCELLED) {
        say("interrupted after %u needles; no result", needle.sum.n);
        status = STATUS_INTERRUPTED;
    } else {
        status = rc == 0 ? print_needle(&needle) : say_failed(&err, STATUS_FAILED);
    }
    fm_model_close(needle.model);
    for (unsigned i = 0; needle.texts != NULL && i < 3 * needle.n_needles; i++)
        eval_tokens_clear(&needle.texts[i]);
    eval_tokens_clear(&needle.filler);
    mem_free(needle.texts);
    mem_free(needle.prompt);
    mem_free(needle.said);
    return status;
}

static const struct option needle_options[] = {
    {.name = "context", .kind = OPTION_UINT, .metavar = "N", .min = MAX_NEEDLE_TOKENS,
     .max = LIMIT_CONTEXT, .value = "1024", .help = "Tokens of each prompt with its answer"},
    {.name = "depths", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = MAX_DEPTHS,
     .value = "5", .help = "Number of depths, from the start of the text to its end"},
    {.name = "needles", .kind = OPTION_UINT, .metavar = "N", .min = 1, .max = 1024, .value = "8",
     .help = "Needles per depth, hidden one at a time"},
    {.name = NULL},
};
static const struct option_group group_needles = {"Needles", needle_options};

const struct command cmd_eval_needle = {
    .name = "eval needle",
    .summary = "Measure whether a model recalls facts from a long text",
    .description =
        "Hides a sentence with somebody's code, four random digits, in the text of FILE, which "
        "ends with the beginning of that sentence. A needle is found if the tokens of the code are "
        "the model's first choice. If almost none or almost all are found, the nats per token of "
        "the codes tell more.\n"
        "With a --kv below f16, or another approximation, all needles are searched twice, the "
        "second time exactly.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help},
                                         {.name = "FILE", .help = operand_corpus_help},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_needles, &group_engine,
                                                   &group_ranks, &group_json,
                                                   &group_messages, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe eval needle MODEL heldout.jsonl --kv rot4", "The loss of 4-bit keys and values"},
        {NULL, NULL}},
    .run = run_needle,
};
