/* Compares the engine with transformers' results, through the public API only.
 *
 *   golden_test FOLDER [KV]
 *
 * Tests every folder below FOLDER that has a golden.json: every logit is within the tolerance,
 * every hidden state within 1e-4 of its norm, and the greedy continuation is identical. To add a
 * family, add a folder. KV is the format of keys and values, f32 or f16. The reference rounds
 * nothing, so f32 is the default; f16 is the program's default. With f16 a few tokens may be
 * further off.
 *
 * The tolerance is a share of the spread: the largest reference logit minus the smallest. Rounding
 * errors grow with the logits, which are several times as large in a model whose head is tied.
 *
 * The goldens are float32 and have rounding errors of their own, up to 1.9e-4 (qwen3_next, whose
 * chunked delta rule takes differences of long sums). golden_exact.f32 is the same computation in
 * float64. Our logits must be within the tolerance of that. Their distance from the float32 golden
 * may be larger by the golden's own error. */
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flashmoe_lab.h"

static const struct kv {
    const char *name;
    double tolerance;       /* for logits, as a share of the spread */
    double state_tolerance; /* as a share of the state's norm */
    /* The share of tokens whose logits may be further off. If two experts score about the same, the
     * rounding of f16 may choose the other one, and that token gets other logits. */
    double share_off;
} kvs[] = {{"f32", 1e-5, 1e-4, 0}, {"f16", 1e-3, INFINITY, 0.05}};

struct golden {
    char dir[1024];
    unsigned n_tokens, vocabulary, n_hidden, hidden;
    unsigned width; /* of a hidden state before the last one, which has `hidden` numbers */
    float *logits; /* [n_tokens, vocabulary] */
    float *exact;  /* the same in float64, rounded */
    float *states; /* [n_hidden, n_tokens, width] */
    double allowed; /* maximum distance of a logit */
    double worst_exact, worst_golden, golden_error, worst_state;
    double worst_kept; /* distance from float64, among the tokens within the tolerance */
    unsigned n_logits, n_states, n_rows_off;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "golden_test: %s: %s\n", what, why);
    exit(1);
}

static float *read_floats(const char *dir, const char *name, size_t n)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    float *data = malloc(n * sizeof *data);
    if (f == NULL || data == NULL || fread(data, sizeof *data, n, f) != n || fgetc(f) != EOF)
        die(path, "not the expected number of floats");
    fclose(f);
    return data;
}

static size_t read_ids(const json_t *doc, const char *field, int32_t **ids)
{
    const json_t *list = json_object_get(doc, field);
    size_t n = json_array_size(list);
    *ids = malloc((n + 1) * sizeof **ids);
    for (size_t i = 0; i < n; i++)
        (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, i));
    if (n == 0)
        die(field, "missing or empty in golden.json");
    return n;
}

/* Raises *worst to value. A NaN counts as the largest. */
static void raise_to(double *worst, double value)
{
    if (!(value <= *worst))
        *worst = value;
}

static void check_hidden(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct golden *g = ctx;
    const float *want = g->states + (size_t)layer * g->n_tokens * g->width + (size_t)position * n;
    double distance = 0, norm = 0;
    for (unsigned i = 0; i < n; i++) {
        distance += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    raise_to(&g->worst_state, sqrt(distance) / sqrt(norm));
    g->n_states++;
}

static void check_logits(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct golden *g = ctx;
    const float *golden = g->logits + (size_t)position * g->vocabulary;
    const float *exact = g->exact + (size_t)position * g->vocabulary;
    double row_exact = 0, row_beyond = 0;
    for (unsigned i = 0; i < n; i++) {
        double from_golden = fabs((double)logits[i] - golden[i]);
        double own_error = fabs((double)golden[i] - exact[i]);
        raise_to(&row_exact, fabs((double)logits[i] - exact[i]));
        raise_to(&g->worst_golden, from_golden);
        raise_to(&row_beyond, from_golden - own_error);
        raise_to(&g->golden_error, own_error);
    }
    raise_to(&g->worst_exact, row_exact);
    if (row_exact <= g->allowed && row_beyond <= g->allowed)
        raise_to(&g->worst_kept, row_exact);
    else
        g->n_rows_off++;
    g->n_logits += n;
}

static int check_greedy(struct fm_model *model, struct fm_session *session, const json_t *doc)
{
    struct fm_error err;
    int32_t *prompt, *want;
    size_t n_prompt = read_ids(doc, "greedy_prompt", &prompt);
    size_t n_want = read_ids(doc, "greedy_continuation", &want);
    struct fm_sampler *sampler;
    /* No tokenizer masks logits here: the golden has the whole vocabulary. */
    if (fm_sampler_open(model, &(struct fm_sampling){.size = sizeof(struct fm_sampling),
                                                     .top_p = 1}, &sampler, &err) != 0 ||
        fm_session_eval(session, prompt, n_prompt, &err) != 0)
        die("greedy", err.text);
    size_t n_equal = 0;
    while (n_equal < n_want) {
        int32_t id = fm_sampler_pick(sampler, fm_session_logits(session));
        if (id != want[n_equal])
            break;
        n_equal++;
        if (n_equal < n_want && fm_session_eval(session, &id, 1, &err) != 0)
            die("greedy", err.text);
    }
    printf("  greedy continuation: %zu of %zu tokens equal\n", n_equal, n_want);
    fm_sampler_close(sampler);
    free(prompt);
    free(want);
    return n_equal == n_want ? 0 : 1;
}

static double spread_of(const float *logits, size_t n)
{
    float smallest = logits[0], largest = logits[0];
    for (size_t i = 1; i < n; i++) {
        smallest = logits[i] < smallest ? logits[i] : smallest;
        largest = logits[i] > largest ? logits[i] : largest;
    }
    return (double)largest - smallest;
}

static int check_states(struct golden *g, struct fm_session *session, const json_t *doc,
                        const struct kv *kv)
{
    struct fm_error err;
    int32_t *ids;
    g->n_tokens = (unsigned)read_ids(doc, "input_ids", &ids);
    g->n_hidden = (unsigned)json_integer_value(json_object_get(doc, "n_hidden"));
    const json_t *width = json_object_get(doc, "row_floats");
    g->width = width != NULL ? (unsigned)json_integer_value(width) : g->hidden;
    g->logits = read_floats(g->dir, "golden_logits.f32", (size_t)g->n_tokens * g->vocabulary);
    g->exact = read_floats(g->dir, "golden_exact.f32", (size_t)g->n_tokens * g->vocabulary);
    g->states = read_floats(g->dir, "golden_hidden.f32",
                            (g->n_hidden - 1) * (size_t)g->n_tokens * g->width +
                                (size_t)g->n_tokens * g->hidden);
    const double spread = spread_of(g->exact, (size_t)g->n_tokens * g->vocabulary);
    g->allowed = kv->tolerance * spread;
    const struct fm_observer observer = {.size = sizeof observer,
                                         .ctx = g, .hidden = check_hidden, .logits = check_logits};
    fm_session_observe(session, &observer);
    if (fm_session_eval(session, ids, g->n_tokens, &err) != 0)
        die(g->dir, err.text);
    fm_session_observe(session, NULL);
    printf("  %u logits: worst distance %.2e from float64 (%.1e of the spread, %.3g), %.2e from "
           "float32, which is itself off by %.2e\n"
           "  %u of %u tokens beyond the tolerance, the others within %.2e\n"
           "  %u hidden states: worst distance %.2e of the norm\n",
           g->n_logits, g->worst_exact, g->worst_exact / spread, spread, g->worst_golden,
           g->golden_error, g->n_rows_off, g->n_tokens, g->worst_kept, g->n_states,
           g->worst_state);
    int failed = g->n_rows_off > kv->share_off * g->n_tokens ||
                 !(g->worst_state <= kv->state_tolerance) ||
                 g->n_logits != g->n_tokens * g->vocabulary ||
                 g->n_states != g->n_tokens * g->n_hidden;
    free(ids);
    free(g->logits);
    free(g->exact);
    free(g->states);
    return failed;
}

static int check_folder(const char *dir, const json_t *doc, const struct kv *kv)
{
    struct golden g = {0};
    struct fm_model *model;
    struct fm_session *session;
    struct fm_error err;
    snprintf(g.dir, sizeof g.dir, "%s", dir);
    struct fm_model_options options = {.size = sizeof options};
    options.kv = kv->name;
    if (fm_model_open(dir, &options, &model, &err) != 0 ||
        fm_session_open(model, &session, &err) != 0)
        die(dir, err.text);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    g.vocabulary = info.vocabulary;
    g.hidden = info.hidden;
    printf("%s (%s)\n", dir, info.architecture);
    int failed = check_states(&g, session, doc, kv);
    fm_session_reset(session);
    failed |= check_greedy(model, session, doc);
    fm_session_close(session);
    fm_model_close(model);
    return failed;
}

int main(int argc, char **argv)
{
    const char *root = argc > 1 ? argv[1] : ".";
    const struct kv *kv = &kvs[argc > 2 && strcmp(argv[2], kvs[1].name) == 0];
    if (argc > 2 && strcmp(argv[2], kv->name) != 0)
        die(argv[2], "the format of keys and values is f32 or f16");
    DIR *d = opendir(root);
    if (d == NULL)
        die(root, "cannot open the folder");
    int n_passed = 0, n_failed = 0;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        char dir[1024], path[2048];
        snprintf(dir, sizeof dir, "%s/%s", root, entry->d_name);
        snprintf(path, sizeof path, "%s/golden.json", dir);
        if (access(path, F_OK) != 0)
            continue;
        json_t *doc = json_load_file(path, 0, NULL);
        if (doc == NULL)
            die(path, "not valid JSON");
        int failed = check_folder(dir, doc, kv);
        printf("  %s\n", failed ? "FAILED" : "ok");
        n_failed += failed;
        n_passed += !failed;
        json_decref(doc);
    }
    closedir(d);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed == 0;
}
