/* Holds converted files to the logits that transformers gives for exactly their weights.
 *
 * usage: gguf_logits [--tolerance T] MODEL EXPECTED.json...   (pairs)
 *
 * EXPECTED.json has "vocab" and "prompts", a list of {label, ids, first_row, greedy,
 * greedy_margin}; EXPECTED.f32 beside it the float32 logits [rows, vocab]. Every logit must be
 * within the tolerance, and every greedy continuation equal up to the first choice whose margin is
 * below twice the tolerance. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe.h"

struct expected {
    json_t *doc;
    float *logits;
    unsigned vocabulary;
    size_t n_rows;
};

struct check {
    const float *want; /* of the prompt's first position */
    unsigned vocabulary, n_seen;
    double worst, sum;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "gguf_logits: %s: %s\n", what, why);
    exit(1);
}

static void load(const char *path, struct expected *e)
{
    e->doc = json_load_file(path, 0, NULL);
    e->vocabulary = (unsigned)json_integer_value(json_object_get(e->doc, "vocab"));
    if (e->vocabulary == 0)
        die(path, "not a description of expected logits");
    char data[4096];
    snprintf(data, sizeof data, "%.*s.f32", (int)strlen(path) - 5, path);
    FILE *f = fopen(data, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0)
        die(data, "cannot be read");
    const size_t bytes = (size_t)ftell(f);
    rewind(f);
    e->logits = malloc(bytes);
    if (e->logits == NULL || fread(e->logits, 1, bytes, f) != bytes)
        die(data, "cannot be read");
    fclose(f);
    e->n_rows = bytes / sizeof(float) / e->vocabulary;
}

static size_t read_ids(const json_t *list, int32_t **ids)
{
    const size_t n = json_array_size(list);
    *ids = malloc((n + 1) * sizeof **ids);
    for (size_t i = 0; i < n; i++)
        (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void check_logits(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct check *c = ctx;
    const float *want = c->want + (size_t)position * c->vocabulary;
    for (unsigned i = 0; i < n; i++) {
        const double distance = fabs((double)logits[i] - want[i]);
        if (!(distance <= c->worst))
            c->worst = distance;
        c->sum += distance;
    }
    c->n_seen += n;
}

/* Greedy tokens equal to those of the prompt; *n_certain is how many had to be. */
static size_t check_greedy(struct fm_model *model, struct fm_session *session,
                           const json_t *prompt, double tolerance, size_t *n_certain)
{
    struct fm_error err;
    int32_t *want;
    const size_t n = read_ids(json_object_get(prompt, "greedy"), &want);
    const json_t *margins = json_object_get(prompt, "greedy_margin");
    struct fm_sampler *sampler;
    if (fm_sampler_open(model, &(struct fm_sampling){.top_p = 1}, &sampler, &err) != 0)
        die("greedy", err.text);
    *n_certain = 0;
    while (*n_certain < n &&
           json_number_value(json_array_get(margins, *n_certain)) > 2 * tolerance)
        (*n_certain)++;
    size_t n_equal = 0;
    while (n_equal < n) {
        const int32_t id = fm_sampler_pick(sampler, fm_session_logits(session));
        if (id != want[n_equal])
            break;
        n_equal++;
        if (n_equal < n && fm_session_eval(session, &id, 1, &err) != 0)
            die("greedy", err.text);
    }
    fm_sampler_close(sampler);
    free(want);
    return n_equal;
}

static int check_prompt(struct fm_model *model, struct fm_session *session,
                        const struct expected *e, const json_t *prompt, double tolerance)
{
    struct fm_error err;
    const char *label = json_string_value(json_object_get(prompt, "label"));
    const size_t first = (size_t)json_integer_value(json_object_get(prompt, "first_row"));
    int32_t *ids;
    const size_t n = read_ids(json_object_get(prompt, "ids"), &ids);
    if (label == NULL || n == 0 || first + n > e->n_rows)
        die("a prompt", "has no label, no ids or no rows");
    struct check c = {.want = e->logits + first * e->vocabulary, .vocabulary = e->vocabulary};
    fm_session_reset(session);
    fm_session_observe(session, &(struct fm_observer){.ctx = &c, .logits = check_logits});
    if (fm_session_eval(session, ids, n, &err) != 0)
        die(label, err.text);
    fm_session_observe(session, NULL);
    size_t n_certain;
    const size_t n_equal = check_greedy(model, session, prompt, tolerance, &n_certain);
    const int failed = c.n_seen != n * e->vocabulary || !(c.worst <= tolerance) ||
                       n_equal < n_certain;
    printf("  %-16s %7u logits, worst %.2e, mean %.2e; greedy %zu of %zu certain%s\n", label,
           c.n_seen, c.worst, c.sum / (c.n_seen + !c.n_seen), n_equal, n_certain,
           failed ? "  FAILED" : "");
    free(ids);
    return failed;
}

static int check_model(const char *path, const char *expected, double tolerance)
{
    struct fm_error err;
    struct fm_model *model;
    struct fm_session *session;
    struct expected e = {0};
    load(expected, &e);
    if (fm_model_open(path, NULL, &model, &err) != 0 ||
        fm_session_open(model, &session, &err) != 0)
        die(path, err.text);
    struct fm_model_info info;
    fm_model_info(model, &info);
    printf("%s (%s)\n", path, info.architecture);
    if (info.vocabulary != e.vocabulary)
        die(path, "has another vocabulary than the expected logits");
    int failed = 0;
    const json_t *prompts = json_object_get(e.doc, "prompts");
    for (size_t i = 0; i < json_array_size(prompts); i++)
        failed |= check_prompt(model, session, &e, json_array_get(prompts, i), tolerance);
    fm_session_close(session);
    fm_model_close(model);
    json_decref(e.doc);
    free(e.logits);
    return failed;
}

int main(int argc, char **argv)
{
    double tolerance = 1e-4;
    int at = 1, failed = 0;
    if (argc > 2 && strcmp(argv[1], "--tolerance") == 0) {
        tolerance = strtod(argv[2], NULL);
        at = 3;
    }
    if (at + 1 >= argc)
        die("usage", "gguf_logits [--tolerance T] MODEL EXPECTED.json...");
    for (; at + 1 < argc; at += 2)
        failed |= check_model(argv[at], argv[at + 1], tolerance);
    return failed;
}
