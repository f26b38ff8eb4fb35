/* grammar_lines TOKENIZER.JSON: runs grammars. Reads one JSON request per line and writes one JSON
 * answer for each.
 *
 * {"schema": TEXT or null, "accept": [TEXT, ...]}: which of the texts are complete answers.
 * {"schema": TEXT or null, "seeds": N, "first_seed": S, "tokens": M, "bias": B}: answers of tokens
 *   drawn at random from those allowed; tokens that may end something are B times as likely as
 *   others. An answer that is incomplete after M tokens is completed with bytes, or null if that
 *   takes too long.
 * If the schema is refused, the answer is {"error": SENTENCE}. Every mask is checked: each token
 * that it allows is accepted, and some that it does not allow are refused. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/splitmix.h"
#include "grammar/grammar.h"

static struct tokenizer *tok;
static struct grammar_vocabulary *vocabulary;
static uint32_t n_ids;
static uint64_t random_state;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)((splitmix_next(&random_state) >> 16) % n);
}

static void fail(const char *what, int32_t id)
{
    (void)fprintf(stderr, "broken promise: %s: token %d\n", what, (int)id);
    exit(1);
}

static bool is_closing(int32_t id)
{
    size_t n;
    const char *piece = tokenizer_piece(tok, id, &n);
    return n > 0 && strchr("\"}]", piece[n - 1]) != NULL;
}

/* Picks a token that the mask allows; closing ones are `bias` times as likely. */
static int32_t pick(const uint32_t *mask, uint32_t bias)
{
    int32_t chosen = -1;
    uint32_t total = 0;
    for (uint32_t id = 0; id < n_ids; id++) {
        if ((mask[id / 32] >> id % 32 & 1) == 0)
            continue;
        const uint32_t weight = bias > 1 && is_closing((int32_t)id) ? bias : 1;
        total += weight;
        if (draw(total) < weight)
            chosen = (int32_t)id;
    }
    return chosen;
}

/* Checks that tokens outside the mask are refused and that this one inside is accepted. */
static void check_mask(struct grammar *g, const uint32_t *mask, int32_t chosen)
{
    for (unsigned i = 0; i < 20; i++) {
        const int32_t id = (int32_t)draw(n_ids);
        if ((mask[id / 32] >> id % 32 & 1) == 0 && grammar_accept(g, id, NULL) == 0) {
            int32_t added;
            size_t n;
            const char *piece = tokenizer_piece(tok, id, &n);
            char name[600] = "";
            memcpy(name, piece, n < sizeof name - 1 ? n : sizeof name - 1);
            if (!tokenizer_find(tok, name, &added)) /* excluded although its text would match */
                fail("a token outside the mask is taken", id);
            return;
        }
    }
    if (grammar_accept(g, chosen, NULL) != 0)
        fail("a token of the mask is refused", chosen);
}

static bool add_text(char **text, size_t *n, int32_t id)
{
    size_t bytes;
    const char *piece = tokenizer_piece(tok, id, &bytes);
    *text = realloc(*text, *n + bytes + 1);
    memcpy(*text + *n, piece, bytes);
    *n += bytes;
    (*text)[*n] = '\0';
    return *text != NULL;
}

static json_t *random_answer(struct grammar *g, unsigned n_tokens, uint32_t bias)
{
    char *text = calloc(1, 1);
    size_t n = 0;
    bool is_whole = false;
    grammar_reset(g);
    for (unsigned i = 0; i < 20 * n_tokens + 2000 && !is_whole; i++) {
        const bool may_end = grammar_may_end(g);
        is_whole = grammar_must_end(g) || (may_end && (i > n_tokens || draw(4) == 0));
        if (is_whole)
            break;
        const uint32_t *mask = grammar_mask(g);
        const int32_t id = pick(mask, i > n_tokens ? 100000 : bias);
        if (id < 0 && !may_end)
            fail("no token is allowed and the answer is not whole", -1);
        if (id < 0)
            continue;
        check_mask(g, mask, id);
        (void)add_text(&text, &n, id);
    }
    json_t *answer = is_whole ? json_stringn(text, n) : json_null();
    if (answer == NULL)
        fail("an answer is not UTF-8", -1);
    free(text);
    return answer;
}

static json_t *accepted(struct grammar *g, const json_t *texts)
{
    json_t *list = json_array();
    size_t i;
    json_t *text;
    json_array_foreach(texts, i, text) {
        grammar_reset(g);
        const int rc = grammar_accept_bytes(g, json_string_value(text), json_string_length(text),
                                            NULL);
        (void)json_array_append_new(list, json_boolean(rc == 0 && grammar_may_end(g)));
    }
    return list;
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* {"time": TEXT}: measures the masks along an answer in tokens, the first and the second time. */
static json_t *timed(struct grammar *g, const json_t *request)
{
    const char *text = json_string_value(json_object_get(request, "time"));
    int32_t *ids;
    size_t n;
    static double times[2][65536];
    if (tokenizer_encode(tok, text, strlen(text), false, &ids, &n, NULL) != 0 || n > 65536)
        fail("a text has no tokens", -1);
    json_t *out = json_object();
    for (int round = 0; round < 2; round++) {
        grammar_reset(g);
        const struct grammar_counts before = grammar_counts(g);
        for (size_t i = 0; i < n; i++) {
            const double start = now_s();
            (void)grammar_mask(g);
            times[round][i] = now_s() - start;
            if (grammar_accept(g, ids[i], NULL) != 0)
                fail("the text does not fit", ids[i]);
        }
        const struct grammar_counts after = grammar_counts(g);
        qsort(times[round], n, sizeof(double), compare_doubles);
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += times[round][i];
        (void)json_object_set_new(out, round == 0 ? "cold" : "warm", json_pack(
            "{s:f, s:f, s:f, s:f, s:I, s:I}", "median_ms", 1e3 * times[round][n / 2], "p95_ms",
            1e3 * times[round][n * 95 / 100], "max_ms", 1e3 * times[round][n - 1], "mean_ms",
            1e3 * sum / (double)n, "tokens", (json_int_t)n, "made",
            (json_int_t)(after.n_made - before.n_made)));
    }
    free(ids);
    return out;
}

static json_t *answer(const json_t *request)
{
    const json_t *schema = json_object_get(request, "schema");
    struct fm_error err = {0};
    struct grammar *g;
    const double start = now_s();
    if (grammar_open(vocabulary, json_string_value(schema), json_string_length(schema), &g,
                     &err) != 0)
        return json_pack("{s:s}", "error", err.text);
    const double compile_s = now_s() - start;
    json_t *list = json_object_get(request, "accept");
    json_t *out;
    if (json_object_get(request, "time") != NULL) {
        out = json_pack("{s:o, s:f}", "times", timed(g, request), "compile_s", compile_s);
    } else if (list != NULL) {
        out = json_pack("{s:o}", "accepted", accepted(g, list));
    } else {
        json_t *answers = json_array();
        const json_int_t n = json_integer_value(json_object_get(request, "seeds"));
        const json_int_t first = json_integer_value(json_object_get(request, "first_seed"));
        const unsigned tokens = (unsigned)json_integer_value(json_object_get(request, "tokens"));
        const uint32_t bias = (uint32_t)json_integer_value(json_object_get(request, "bias"));
        for (json_int_t i = 0; i < n; i++) {
            random_state = (uint64_t)(first + i);
            (void)json_array_append_new(answers, random_answer(g, tokens, bias));
        }
        out = json_pack("{s:o, s:f}", "answers", answers, "compile_s", compile_s);
    }
    grammar_close(g);
    return out;
}

int main(int argc, char **argv)
{
    struct fm_error err = {0};
    const double start = now_s();
    if (argc != 2 || tokenizer_open(argv[1], &tok, &err) != 0) {
        (void)fprintf(stderr, "usage: grammar_lines TOKENIZER.JSON; %s\n", err.text);
        return 2;
    }
    n_ids = (uint32_t)tokenizer_n_ids(tok);
    const double opened = now_s();
    if (grammar_vocabulary_open(tok, n_ids, &vocabulary, &err) != 0) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    (void)fprintf(stderr, "%u tokens, tokenizer %.3f s, vocabulary %.3f s\n", n_ids,
                  opened - start, now_s() - opened);
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *request = json_loads(line, JSON_ALLOW_NUL, NULL);
        json_t *reply = request != NULL ? answer(request) : json_pack("{s:s}", "error", "no JSON");
        char *text = json_dumps(reply, JSON_COMPACT);
        (void)printf("%s\n", text);
        (void)fflush(stdout);
        free(text);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    grammar_vocabulary_close(vocabulary);
    tokenizer_close(tok);
    return 0;
}
