/* Compares the engine with transformers' float64 results for exactly the weights of a file.
 *
 *   logits_test TOLERANCE MODEL EXPECTED.json
 *       Every logit of every prompt must be within TOLERANCE times the spread, which is the
 *       largest logit of EXPECTED minus the smallest. The greedy continuation must be the same,
 *       except where the choice was closer than that.
 *   logits_test ORIGINAL.json MODEL EXPECTED.json
 *       For formats whose kernels round activations to 8 bits. The rms distance to EXPECTED must
 *       be at most half the format's own error: the rms distance of EXPECTED from ORIGINAL, which
 *       has the results for the weights before conversion. A twentieth of the logits' rms is
 *       enough, too, because at 6 and 8 bits the format's error is smaller than that of the
 *       rounding (docs/decisions/0004).
 *
 * NAME.json and NAME.f32 are made by reference_logits.py, or are frozen files. */
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe_lab.h"

struct prompt {
    size_t first_row;
    bool has_rows;
    double worst, sum_squares, sum_want_squares;
    size_t n;
};

static float *expected; /* [n_rows, vocabulary] */
static size_t n_rows, vocabulary;
/* The maximum difference, or the maximum rms difference. */
static double tolerance = INFINITY, rms_tolerance = INFINITY;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "logits_test: %s: %s\n", what, why);
    exit(1);
}

static float *read_logits(const char *json_path, size_t *n)
{
    char path[4096];
    snprintf(path, sizeof path, "%.*sf32", (int)(strlen(json_path) - 4), json_path);
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die(path, "cannot be read");
    long bytes = ftell(f);
    rewind(f);
    float *logits = malloc((size_t)bytes + 1);
    if (logits == NULL || fread(logits, 1, (size_t)bytes, f) != (size_t)bytes)
        die(path, "cannot be read");
    fclose(f);
    *n = (size_t)bytes / sizeof(float);
    return logits;
}

static double format_error(const char *original_path, size_t n)
{
    size_t n_original;
    float *original = read_logits(original_path, &n_original);
    double sum = 0;
    if (n_original != n || n == 0)
        die(original_path, "has other prompts");
    for (size_t i = 0; i < n; i++)
        sum += ((double)original[i] - expected[i]) * ((double)original[i] - expected[i]);
    free(original);
    return sqrt(sum / (double)n);
}

static double spread_of(const float *logits, size_t n)
{
    double smallest = INFINITY, largest = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        smallest = fmin(smallest, logits[i]);
        largest = fmax(largest, logits[i]);
    }
    return largest - smallest;
}

static size_t read_ids(const json_t *list, int32_t **ids)
{
    size_t n = json_array_size(list);
    *ids = malloc((n + 1) * sizeof **ids);
    for (size_t i = 0; i < n; i++)
        (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void compare_row(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct prompt *p = ctx;
    if (!p->has_rows)
        return;
    if (p->first_row + position >= n_rows)
        die("expected", "has too few rows");
    const float *want = expected + (p->first_row + position) * vocabulary;
    for (size_t i = 0; i < vocabulary && i < n; i++) {
        double d = fabs((double)logits[i] - want[i]);
        if (!(d <= p->worst)) /* a NaN is worse than any number */
            p->worst = d;
        p->sum_squares += d * d;
        p->sum_want_squares += (double)want[i] * want[i];
        p->n++;
    }
}

static int32_t best_of(const float *logits)
{
    size_t best = 0;
    for (size_t i = 1; i < vocabulary; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

/* Returns the number of tokens that agree before the first legitimate difference. Dies on an
 * illegitimate one. */
static size_t compare_greedy(struct fm_session *s, const json_t *entry)
{
    int32_t *want;
    size_t n = read_ids(json_object_get(entry, "greedy"), &want);
    const json_t *margins = json_object_get(entry, "greedy_margin");
    size_t i = 0;
    for (; i < n; i++) {
        int32_t id = best_of(fm_session_logits(s));
        if (id != want[i]) {
            double margin = json_number_value(json_array_get(margins, i));
            printf("    token %zu is %d, expected %d, margin %g\n", i, id, want[i], margin);
            if (margin > 2 * tolerance)
                die("greedy", "differs where the choice is clear");
            break;
        }
        struct fm_error err;
        if (fm_session_eval(s, &id, 1, &err) != 0)
            die("eval", err.text);
    }
    free(want);
    return i;
}

static int check_prompt(struct fm_model *model, const json_t *entry)
{
    struct fm_error err;
    struct fm_session *session;
    int32_t *ids;
    size_t n = read_ids(json_object_get(entry, "ids"), &ids);
    const json_t *first_row = json_object_get(entry, "first_row");
    struct prompt p = {.has_rows = first_row != NULL,
                       .first_row = (size_t)json_integer_value(first_row)};
    if (fm_session_open(model, &session, &err) != 0)
        die("session", err.text);
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                      .ctx = &p, .logits = compare_row});
    if (fm_session_eval(session, ids, n, &err) != 0)
        die("eval", err.text);
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer)});
    size_t same = compare_greedy(session, entry);
    const double rms = p.n > 0 ? sqrt(p.sum_squares / (double)p.n) : 0;
    const double size = p.n > 0 ? sqrt(p.sum_want_squares / (double)p.n) : 0;
    printf("  %-24s %3zu tokens: largest difference %.3g, rms %.3g of %.3g; greedy %zu of %zu\n",
           json_string_value(json_object_get(entry, "label")), n, p.worst, rms, size, same,
           json_array_size(json_object_get(entry, "greedy")));
    fm_session_close(session);
    free(ids);
    const double rms_allowed = size / 20 > rms_tolerance ? size / 20 : rms_tolerance;
    return (p.n > 0) == p.has_rows && p.worst <= tolerance && rms <= rms_allowed ? 0 : 1;
}

/* Frozen files have the keys of a golden.json. */
static json_t *prompts_of(json_t *doc)
{
    json_t *prompts = json_object_get(doc, "prompts");
    if (prompts != NULL)
        return json_incref(prompts);
    return json_pack("[{s:s, s:O, s:i}, {s:s, s:O, s:O, s:O}]", "label", "input_ids", "ids",
                     json_object_get(doc, "input_ids"), "first_row", 0, "label", "greedy_prompt",
                     "ids", json_object_get(doc, "greedy_prompt"), "greedy",
                     json_object_get(doc, "greedy_continuation"), "greedy_margin",
                     json_object_get(doc, "greedy_margin"));
}

int main(int argc, char **argv)
{
    if (argc != 4)
        die("usage", "logits_test TOLERANCE|ORIGINAL.json MODEL EXPECTED.json");
    json_error_t json_error;
    json_t *doc = json_load_file(argv[3], 0, &json_error);
    if (doc == NULL)
        die(argv[3], json_error.text);
    vocabulary = (size_t)json_integer_value(json_object_get(doc, "vocab"));
    size_t n;
    expected = read_logits(argv[3], &n);
    n_rows = n / vocabulary;
    char *end;
    double number = strtod(argv[1], &end);
    if (*end == '\0')
        tolerance = number * spread_of(expected, n);
    else
        rms_tolerance = format_error(argv[1], n) / 2;
    struct fm_error err;
    struct fm_model_options options = {.size = sizeof options};
    options.kv = "f32"; /* the reference rounds nothing */
    struct fm_model *model;
    if (fm_model_open(argv[2], &options, &model, &err) != 0)
        die(argv[2], err.text);
    printf("%s\n", argv[2]);
    int bad = 0;
    size_t i;
    const json_t *entry;
    json_t *prompts = prompts_of(doc);
    if (json_array_size(prompts) == 0)
        die(argv[3], "has no prompts");
    json_array_foreach(prompts, i, entry)
        bad |= check_prompt(model, entry);
    json_decref(prompts);
    fm_model_close(model);
    json_decref(doc);
    free(expected);
    if (bad)
        printf("  more than allowed: largest %g, rms %g\n", tolerance, rms_tolerance);
    return bad;
}
