/* Choosing the next token. The same seed and logits give the same token on every machine. */
#include <stdint.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "session/engine_internal.h"

struct candidate {
    float logit; /* becomes the probability's numerator */
    int32_t id;
};

struct fm_sampler {
    const struct fm_model *model;
    struct fm_sampling sampling;
    uint64_t random_state;
    struct candidate *candidates; /* [vocabulary] */
};

void fm_sampling_default(const struct fm_model *model, struct fm_sampling *sampling)
{
    *sampling = model->default_sampling;
}

int fm_sampler_open(const struct fm_model *model, const struct fm_sampling *sampling,
                    struct fm_sampler **out, struct fm_error *err)
{
    *out = NULL;
    const struct fm_sampling *p = sampling;
    if (!(p->temperature >= 0) || !(p->top_p >= 0 && p->top_p <= 1) ||
        !(p->min_p >= 0 && p->min_p <= 1))
        return err_set(err, FM_ERR_ARG,
                       "temperature %g, top-p %g, min-p %g: expected 0 or more, 0 to 1, 0 to 1",
                       (double)p->temperature, (double)p->top_p, (double)p->min_p);
    struct fm_sampler *s = mem_new(1, sizeof *s, "the sampler", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->model = model;
    s->sampling = *sampling;
    s->random_state = sampling->seed;
    s->candidates = mem_new(model->model->shape.vocabulary, sizeof *s->candidates, "the sampler",
                            err);
    if (s->candidates == NULL) {
        fm_sampler_close(s);
        return FM_ERR_NOMEM;
    }
    *out = s;
    return 0;
}

void fm_sampler_close(struct fm_sampler *s)
{
    if (s == NULL)
        return;
    mem_free(s->candidates);
    mem_free(s);
}

/* SplitMix64: one 64-bit state, full period. */
static double next_random(struct fm_sampler *s)
{
    uint64_t z = (s->random_state += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static bool is_better(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* ---- a heap with the best candidate on top -------------------------------------------------- */

static void sift_down(struct candidate *heap, size_t n, size_t i)
{
    struct candidate moving = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && is_better(heap[child + 1], heap[child]))
            child++;
        if (!is_better(heap[child], moving))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void heap_init(struct candidate *heap, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
}

/* Moves the best of the first n to place n - 1. */
static struct candidate heap_pop(struct candidate *heap, size_t n)
{
    struct candidate best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
    return best;
}

/* ---- picking -------------------------------------------------------------------------------- */

/* Tokens that exist and have a number for a logit. */
static size_t list_candidates(struct fm_sampler *s, const float *logits)
{
    const struct tokenizer *tok = s->model->tokenizer;
    size_t n = 0;
    for (uint32_t id = 0; id < s->model->model->shape.vocabulary; id++) {
        bool exists = tok == NULL || tokenizer_has_id(tok, (int32_t)id);
        if (exists && logits[id] == logits[id])
            s->candidates[n++] = (struct candidate){logits[id], (int32_t)id};
    }
    return n;
}

static int32_t pick_best(const struct candidate *c, size_t n)
{
    struct candidate best = c[0];
    for (size_t i = 1; i < n; i++)
        if (is_better(c[i], best))
            best = c[i];
    return best.id;
}

/* e^((logit - best) / temperature): 1 for the best. */
static float relative_weight(const struct fm_sampler *s, float logit, float best)
{
    return fmath_exp_of((logit - best) / s->sampling.temperature);
}

/* Keeps the top-k best, of these the fewest that hold top-p of the probability, of these the ones
 * with at least min-p of the best one's; leaves them best first from the end of the array, their
 * weights in `logit`. Returns how many, and the sum of the weights. */
static size_t keep_likely(struct fm_sampler *s, size_t n, double *kept_weight)
{
    const struct fm_sampling *p = &s->sampling;
    struct candidate *c = s->candidates;
    const size_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    heap_init(c, n);
    const float best = c[0].logit;
    double total = 0;
    if (k == n)
        for (size_t i = 0; i < n; i++)
            total += relative_weight(s, c[i].logit, best);
    size_t n_sorted = 0;
    for (; k < n && n_sorted < k; n_sorted++)
        total += relative_weight(s, heap_pop(c, n - n_sorted).logit, best);
    double kept = 0;
    size_t n_kept = 0;
    while (n_kept < k && (n_kept == 0 || kept < (double)p->top_p * total)) {
        if (n_kept == n_sorted)
            (void)heap_pop(c, n - n_sorted++); /* it is at n - 1 - n_kept now */
        struct candidate *next = &c[n - 1 - n_kept];
        float weight = relative_weight(s, next->logit, best);
        if (weight < p->min_p)
            break;
        next->logit = weight;
        kept += weight;
        n_kept++;
    }
    *kept_weight = kept;
    return n_kept;
}

static int32_t pick_random(struct fm_sampler *s, size_t n)
{
    double kept;
    const size_t n_kept = keep_likely(s, n, &kept);
    const struct candidate *c = s->candidates;
    double dice = next_random(s) * kept;
    for (size_t i = 0; i + 1 < n_kept; i++) {
        dice -= c[n - 1 - i].logit;
        if (dice < 0)
            return c[n - 1 - i].id;
    }
    return c[n - n_kept].id;
}

int32_t fm_sampler_pick(struct fm_sampler *s, const float *logits)
{
    size_t n = list_candidates(s, logits);
    if (n == 0)
        return FM_ERR_FORMAT; /* nothing but NaN: no choice is right */
    return s->sampling.temperature > 0 ? pick_random(s, n) : pick_best(s->candidates, n);
}
