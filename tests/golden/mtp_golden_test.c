/* mtp_golden_test MODEL GOLDEN EXACT: the logits of a model's block for multi-token prediction
 * against those of mtp.py, which EXACT has. The tokens are those of GOLDEN/golden.json. They are
 * evaluated in prompts of several lengths and one by one, so that the block follows both. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward_internal.h"
#include "session/draft_mtp.h"

#define DEPTH 3
#define N_TOKENS 48
#define TOLERANCE 1e-4

static void die(const char *what, const char *why)
{
    fprintf(stderr, "mtp_golden_test: %s: %s\n", what, why);
    exit(1);
}

static void read_ids(const char *folder, int32_t *ids)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/golden.json", folder);
    json_t *doc = json_load_file(path, 0, NULL);
    const json_t *list = json_object_get(doc, "input_ids");
    if (json_array_size(list) < N_TOKENS)
        die(path, "it has too few tokens");
    for (size_t i = 0; i < N_TOKENS; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    json_decref(doc);
}

static float *read_exact(const char *path, size_t n)
{
    float *exact = malloc(n * sizeof *exact);
    FILE *file = fopen(path, "rb");
    if (exact == NULL || file == NULL || fread(exact, sizeof *exact, n, file) != n)
        die(path, "cannot read it");
    fclose(file);
    return exact;
}

static uint32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* A part of the vocabulary has the bits of the whole, and the best token of the part is the draft,
 * with its distance to the next one. */
static void check_part(const struct mtp_row *part, const float *seen, const float *logits,
                       uint32_t n)
{
    const uint32_t best = best_of(logits, n);
    float next = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        next = i != best && logits[i] > next ? logits[i] : next;
    if (memcmp(seen, logits, n * sizeof *seen) != 0)
        die("part", "it has other logits than the whole vocabulary");
    if (part->draft != (int32_t)best || part->margin != logits[best] - next)
        die("part", "its draft is not the most likely token");
}

/* Drafts behind `token` without evaluating it. Returns the largest distance from `exact`
 * [DEPTH, vocabulary]. */
static double check_position(struct fm_session *s, int32_t token, const float *exact)
{
    struct engine *e = &s->owner->engine;
    const uint32_t n = e->model->shape.vocabulary, last = s->sequence->position - 1;
    double worst = 0;
    const int32_t prompt[] = {token, token};
    draft_mtp_follow(s, &(struct batch_segment){.tokens = prompt, .n_tokens = 2,
                                                .position = s->sequence->position});
    if (s->mtp.n_rows != last + 1 || s->mtp.first != last || s->mtp.n_hidden != 1)
        die("position", "the block does not follow the tokens");
    for (uint32_t d = 0; d < DEPTH; d++) {
        struct mtp_row row = {.sequence = s->sequence, .place = last + d,
                              .position = last + d, .token = token,
                              .hidden = d == 0 ? s->mtp.hidden : s->mtp.next, .next = s->mtp.next};
        static float next[1 << 12], seen[1 << 12];
        const uint32_t n_part = engine_mtp_tokens(e, 2);
        struct mtp_row part = row;
        part.next = next;
        if (n_part >= n || n > 1 << 12 || e->model->shape.hidden > 1 << 12 ||
            !engine_mtp_draft(e, &part, 1, n_part))
            die("part", "it failed");
        memcpy(seen, e->stages[0].forward->logits, n_part * sizeof *seen);
        if (!engine_mtp_draft(e, &row, 1, engine_mtp_tokens(e, 1)))
            die("draft", "it failed");
        check_part(&part, seen, e->stages[0].forward->logits, n_part);
        const float *logits = e->stages[0].forward->logits, *wanted = exact + d * n;
        for (uint32_t i = 0; i < n; i++) {
            const double far = fabs((double)logits[i] - wanted[i]);
            worst = far > worst || isnan(far) ? far : worst;
        }
        if (row.draft != (int32_t)best_of(logits, n))
            die("draft", "it is not the most likely token");
        token = (int32_t)best_of(wanted, n);
    }
    return worst;
}

/* Evaluates a prompt of so many tokens, then one by one. */
static double check_text(struct fm_session *s, const int32_t *ids, const float *exact,
                         uint32_t n_prompt)
{
    struct fm_error err;
    const size_t floats = (size_t)DEPTH * s->owner->engine.model->shape.vocabulary;
    double worst = 0;
    fm_session_reset(s);
    for (uint32_t i = 0, n = n_prompt; i < N_TOKENS - 1; i += n, n = 1) {
        if (fm_session_eval(s, ids + i, n, &err) != 0)
            die("token", err.text);
        if (i + n == N_TOKENS)
            break;
        const double far = check_position(s, ids[i + n], exact + (i + n - 1) * floats);
        worst = far > worst || isnan(far) ? far : worst;
    }
    return worst;
}

static void ignore_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                         const uint32_t *ids, const float *weights)
{
    (void)ctx, (void)layer, (void)position, (void)n, (void)ids, (void)weights;
}

int main(int argc, char **argv)
{
    int32_t ids[N_TOKENS];
    struct fm_error err;
    struct fm_model *model;
    struct fm_session *session;
    if (argc != 4)
        die("usage", "mtp_golden_test MODEL GOLDEN EXACT");
    const struct fm_model_options options = {
        .size = sizeof options, .n_context = 2 * N_TOKENS, .kv = "f32", .n_drafts = DEPTH,
        .draft_source = FM_DRAFT_MTP, .prefill_chunk = 16};
    if (fm_model_open(argv[1], &options, &model, &err) != 0 ||
        fm_session_open(model, &session, &err) != 0)
        die(argv[1], err.text);
    /* Whoever watches rows gets no drafts, so the block follows the tokens alone. */
    const struct fm_observer observer = {.size = sizeof observer, .route = ignore_route};
    if (fm_session_observe(session, &observer) != 0)
        die("observer", "it is refused");
    read_ids(argv[2], ids);
    float *exact =
        read_exact(argv[3], (size_t)(N_TOKENS - 1) * DEPTH * model->engine.model->shape.vocabulary);
    static const uint32_t prompts[] = {1, 2, 16, 17, 40};
    int failed = 0;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        const double worst = check_text(session, ids, exact, prompts[i]);
        printf("%s, prompt of %u: worst distance %.2e\n", argv[1], prompts[i], worst);
        failed |= !(worst <= TOLERANCE);
    }
    free(exact);
    fm_session_close(session);
    fm_model_close(model);
    return failed;
}
