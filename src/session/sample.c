/* Picks the next token. The same seed and logits give the same token on every machine. */
#include <assert.h>
#include <stdint.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/sized.h"
#include "base/splitmix.h"
#include "session/adjust.h"
#include "session/session_internal.h"

struct candidate {
    float logit; /* later its weight: probability times a constant */
    int32_t id;
};

struct fm_sampler {
    const struct fm_model *model;
    struct fm_sampling sampling;
    uint64_t random_state;
    struct adjust adjust;
    struct fm_grammar *grammar; /* borrowed; NULL: none */
    struct candidate *candidates; /* [vocabulary] */
    /* [vocabulary] scaled logits of kept candidates, best first; only for typical-p */
    float *scaled;
};

int fm_sampling_default(const struct fm_model *model, struct fm_sampling *sampling)
{
    return sized_give(sampling, &model->default_sampling, sizeof model->default_sampling);
}

int fm_sampler_open(const struct fm_model *model, const struct fm_sampling *sampling,
                    struct fm_sampler **out, struct fm_error *err)
{
    *out = NULL;
    struct fm_sampling own;
    const struct fm_sampling *p = &own;
    int rc = sized_take(&own, sizeof own, sampling != NULL ? sampling : &model->default_sampling,
                        "fm_sampling", err);
    if (rc != 0)
        return rc;
    const uint32_t vocabulary = model->engine.model->shape.vocabulary;
    if (!(p->temperature >= 0) || !(p->top_p >= 0 && p->top_p <= 1) ||
        !(p->min_p >= 0 && p->min_p <= 1) || !(p->typical_p >= 0 && p->typical_p <= 1))
        return err_set(err, FM_ERR_ARG, "temperature %g, top-p %g, min-p %g, typical-p %g: "
                       "expected 0 or more, 0 to 1, 0 to 1, 0 to 1", (double)p->temperature,
                       (double)p->top_p, (double)p->min_p, (double)p->typical_p);
    struct fm_sampler *s = mem_new(1, sizeof *s, "the sampler", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->model = model;
    s->sampling = own;
    s->sampling.logit_bias = NULL; /* the caller's memory; adjust_init has copied it */
    s->random_state = own.seed;
    rc = adjust_init(&s->adjust, &own, vocabulary, model->engine.model->shape.max_context, err);
    if (rc == 0) {
        s->candidates = mem_new(vocabulary, sizeof *s->candidates, "the sampler", err);
        rc = s->candidates != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (rc == 0 && p->typical_p > 0 && p->typical_p < 1) {
        s->scaled = mem_new(vocabulary, sizeof *s->scaled, "the sampler", err);
        rc = s->scaled != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (rc != 0) {
        fm_sampler_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void fm_sampler_close(struct fm_sampler *s)
{
    if (s == NULL)
        return;
    adjust_clear(&s->adjust);
    mem_free(s->candidates);
    mem_free(s->scaled);
    mem_free(s);
}

void fm_sampler_accept_prompt(struct fm_sampler *s, const int32_t *ids, size_t n_ids)
{
    for (size_t i = 0; i < n_ids; i++)
        adjust_accept(&s->adjust, ids[i], false);
}

void fm_sampler_accept(struct fm_sampler *s, int32_t id)
{
    adjust_accept(&s->adjust, id, true);
    if (s->grammar != NULL)
        (void)fm_grammar_accept(s->grammar, id, NULL); /* a picked token is allowed */
}

void fm_sampler_constrain(struct fm_sampler *s, struct fm_grammar *grammar)
{
    s->grammar = grammar;
}

static double next_random(struct fm_sampler *s)
{
    return (double)(splitmix_next(&s->random_state) >> 11) * 0x1p-53;
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

/* Moves the best of the first n candidates to index n - 1. */
static struct candidate heap_pop(struct candidate *heap, size_t n)
{
    struct candidate best = heap[0];
    assert(n > 0 && (n == 1 || !is_better(heap[n - 1], best)));
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
    return best;
}

/* ---- picking -------------------------------------------------------------------------------- */

/* Returns whether the token exists and the grammar, if any, allows it. */
static bool is_allowed(const struct fm_sampler *s, const uint32_t *allowed, uint32_t id)
{
    const struct tokenizer *tok = s->model->tokenizer;
    return (tok == NULL || tokenizer_has_id(tok, (int32_t)id)) &&
           (allowed == NULL || (allowed[id / 32] >> id % 32 & 1) != 0);
}

/* Returns whether the logits can be sampled. One NaN or INFINITY makes them useless. -INFINITY
 * forbids a token. */
static bool are_usable(const float *logits, uint32_t n)
{
    if (fmath_all_finite(logits, n))
        return true;
    for (uint32_t id = 0; id < n; id++)
        if (!(logits[id] < INFINITY))
            return false;
    return true;
}

/* Lists the allowed tokens and returns their count. */
static size_t list_candidates(struct fm_sampler *s, const float *logits)
{
    const uint32_t *allowed = s->grammar != NULL ? constraint_mask(s->grammar) : NULL;
    size_t n = 0;
    for (uint32_t id = 0; id < s->model->engine.model->shape.vocabulary; id++) {
        const float logit = s->adjust.is_on ? adjust_logit(&s->adjust, id, logits[id]) : logits[id];
        if (logit > -INFINITY && is_allowed(s, allowed, id))
            s->candidates[n++] = (struct candidate){logit, (int32_t)id};
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

#define GREEDY_BLOCK 256u

typedef float four_floats __attribute__((vector_size(16)));
typedef int32_t four_ints __attribute__((vector_size(16)));

/* What a few logits have shown. */
struct look {
    four_ints is_greater; /* than the best so far */
    four_ints is_odd;     /* not finite */
};

static inline void look_at(struct look *look, const float *logits, four_floats best)
{
    four_floats x;
    memcpy(&x, logits, sizeof x);
    const four_floats none = x - x; /* zeros, or NaN */
    look->is_greater |= x > best;
    look->is_odd |= (four_ints)none;
}

/* Returns whether one of GREEDY_BLOCK logits is greater than `best`. *seen becomes other than zero
 * if one of them is not finite: a look at a large vocabulary takes longer than all else between two
 * tokens, so there is one. In vectors that every processor has. */
static bool has_greater(const float *logits, float best, uint32_t *seen)
{
    const four_floats than = {best, best, best, best};
    struct look a = {{0}, {0}}, b = a;
    for (uint32_t i = 0; i < GREEDY_BLOCK; i += 16) {
        look_at(&a, logits + i, than);
        look_at(&b, logits + i + 4, than);
        look_at(&a, logits + i + 8, than);
        look_at(&b, logits + i + 12, than);
    }
    a.is_greater |= b.is_greater;
    a.is_odd |= b.is_odd;
    uint32_t any = 0;
    for (uint32_t k = 0; k < 4; k++) {
        any |= (uint32_t)a.is_greater[k];
        *seen |= (uint32_t)a.is_odd[k];
    }
    return any != 0;
}

/* The best token so far. */
struct best {
    int32_t id; /* -1: none */
    float logit;
};

/* Takes a token that is better and allowed; a tie goes to the lower id, which comes first. */
static void take_better(const struct fm_sampler *s, const float *logits, const uint32_t *allowed,
                        uint32_t id, struct best *best)
{
    const float logit = s->adjust.is_on ? adjust_logit(&s->adjust, id, logits[id]) : logits[id];
    if (logit > best->logit && is_allowed(s, allowed, id))
        *best = (struct best){(int32_t)id, logit};
}

/* Looks at a token only if its block has one that is better than the best so far. Returns whether
 * all logits are finite. */
static bool look_at_all(const struct fm_sampler *s, const float *logits, const uint32_t *allowed,
                        struct best *best)
{
    const uint32_t n = s->model->engine.model->shape.vocabulary;
    const uint32_t n_blocks = s->adjust.is_on ? 0 : n / GREEDY_BLOCK * GREEDY_BLOCK;
    uint32_t seen = 0;
    for (uint32_t id = 0; id < n; id++) {
        while (id < n_blocks && id % GREEDY_BLOCK == 0 &&
               !has_greater(logits + id, best->logit, &seen))
            id += GREEDY_BLOCK;
        if (id < n)
            take_better(s, logits, allowed, id, best);
    }
    return seen == 0 && fmath_all_finite(logits + n_blocks, n - n_blocks);
}

/* Returns the best token that list_candidates would list, without listing; -1: none. Fails as
 * fm_sampler_pick does. */
static int32_t pick_greedy(const struct fm_sampler *s, const float *logits)
{
    const struct fm_model *m = s->model;
    const uint32_t n = m->engine.model->shape.vocabulary;
    const int32_t peak = peaks_find(&m->peaks, logits); /* all are finite if it is known */
    const uint32_t *allowed = s->grammar != NULL ? constraint_mask(s->grammar) : NULL;
    struct best best = {-1, -INFINITY};
    bool is_finite = peak >= 0;
    if (peak >= 0 && !s->adjust.is_on && is_allowed(s, allowed, (uint32_t)peak))
        return peak;
    if (m->few_tokens == NULL) {
        is_finite |= look_at_all(s, logits, allowed, &best);
    } else {
        for (uint32_t i = 0; i < m->n_few_tokens; i++)
            take_better(s, logits, allowed, (uint32_t)m->few_tokens[i], &best);
    }
    return is_finite || are_usable(logits, n) ? best.id : -1;
}

/* Returns 0 for the best logit. */
static float scaled_logit(const struct fm_sampler *s, float logit, float best)
{
    return (logit - best) / s->sampling.temperature;
}

/* Returns 1 for the best logit. */
static float relative_weight(const struct fm_sampler *s, float logit, float best)
{
    return fmath_exp_of(scaled_logit(s, logit, best));
}

/* Keeps the top-k best candidates; of these the smallest set that holds top-p of the probability;
 * of these the ones with at least min-p of the best one's weight. Leaves them best first from the
 * end of the array, with their weights in `logit`. Returns their count and the sum of the
 * weights. */
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
            (void)heap_pop(c, n - n_sorted++); /* now at index n - 1 - n_kept */
        struct candidate *next = &c[n - 1 - n_kept];
        float weight = relative_weight(s, next->logit, best);
        if (weight < p->min_p)
            break;
        if (s->scaled != NULL)
            s->scaled[n_kept] = scaled_logit(s, next->logit, best);
        next->logit = weight;
        kept += weight;
        n_kept++;
    }
    assert(n_kept > 0 && n_kept <= k && kept > 0);
    *kept_weight = kept;
    return n_kept;
}

/* Chooses from the n_kept best candidates, the i-th at c[n - 1 - i], the smallest set with
 * typical-p of their weight whose surprise -ln p is nearest to the mean surprise, plus all that are
 * as near as the last of them. The distance in surprise is the distance of the scaled logit from
 * its mean. The scaled logits descend, so the chosen ones are contiguous: [*first, *end). */
static void keep_typical(const struct fm_sampler *s, size_t n, size_t n_kept, size_t *first,
                         size_t *end)
{
    const struct candidate *best = &s->candidates[n - 1];
    double total = 0, mean = 0;
    for (size_t i = 0; i < n_kept; i++) {
        const double weight = (best - i)->logit;
        total += weight;
        mean += weight > 0 ? weight * s->scaled[i] : 0; /* avoids 0 * infinity */
    }
    mean /= total;
    size_t a = 0;
    while (a < n_kept && s->scaled[a] >= mean)
        a++;
    size_t b = a;
    double kept = 0, last = 0;
    while (b - a < n_kept) {
        const double above = a > 0 ? s->scaled[a - 1] - mean : INFINITY;
        const double below = b < n_kept ? mean - s->scaled[b] : INFINITY;
        const double nearest = a > 0 && (above <= below || b == n_kept) ? above : below;
        if (kept >= (double)s->sampling.typical_p * total && nearest > last)
            break;
        last = nearest;
        kept += nearest == above && a > 0 ? (best - --a)->logit : (best - b++)->logit;
    }
    assert(a < b && b <= n_kept);
    *first = a;
    *end = b;
}

/* The candidates to draw from: the i-th best is best - i, for first <= i < end, with its weight in
 * `logit`. */
struct choice {
    const struct candidate *best;
    size_t first, end;
    double weight; /* sum over [first, end) */
};

static struct choice list_choice(struct fm_sampler *s, size_t n)
{
    struct choice c = {.best = &s->candidates[n - 1]};
    if (s->sampling.temperature == 0) {
        s->candidates[n - 1] = (struct candidate){1, pick_best(s->candidates, n)};
        c.weight = c.end = 1;
        return c;
    }
    c.end = keep_likely(s, n, &c.weight);
    if (s->scaled == NULL)
        return c;
    keep_typical(s, n, c.end, &c.first, &c.end);
    c.weight = 0;
    for (size_t i = c.first; i < c.end; i++)
        c.weight += (c.best - i)->logit;
    return c;
}

int32_t fm_sampler_pick(struct fm_sampler *s, const float *logits)
{
    if (logits == NULL)
        return FM_ERR_ARG; /* the session has none */
    if (s->sampling.temperature == 0) {
        const int32_t best = pick_greedy(s, logits);
        return best >= 0 ? best : FM_ERR_FORMAT;
    }
    if (!are_usable(logits, s->model->engine.model->shape.vocabulary))
        return FM_ERR_FORMAT;
    const size_t n = list_candidates(s, logits);
    if (n == 0)
        return FM_ERR_FORMAT; /* bias, grammar and -INFINITY allow none */
    const struct choice c = list_choice(s, n);
    double dice = next_random(s) * c.weight;
    for (size_t i = c.first; i + 1 < c.end; i++) {
        dice -= (c.best - i)->logit;
        if (dice < 0)
            return (c.best - i)->id;
    }
    return (c.best - (c.end - 1))->id;
}

int fm_sampler_distribution(struct fm_sampler *s, const float *logits, int32_t *ids,
                            float *probabilities)
{
    const bool is_good = are_usable(logits, s->model->engine.model->shape.vocabulary);
    const size_t n = is_good ? list_candidates(s, logits) : 0;
    if (n == 0)
        return FM_ERR_FORMAT;
    const struct choice c = list_choice(s, n);
    for (size_t i = c.first; i < c.end; i++) {
        ids[i - c.first] = (c.best - i)->id;
        probabilities[i - c.first] = (float)((c.best - i)->logit / c.weight);
    }
    return (int)(c.end - c.first);
}

/* ---- log probabilities ---------------------------------------------------------------------- */

/* Computes ln of the sum of e^(logit - best), adding in the order of ids. Returns false when the
 * logits give no distribution. */
static bool log_total(const float *logits, uint32_t n, float *best, double *out)
{
    *best = -INFINITY;
    *out = 0;
    for (uint32_t id = 0; id < n; id++)
        *best = logits[id] > *best ? logits[id] : *best;
    if (*best == -INFINITY || !are_usable(logits, n))
        return false;
    double total = 0; /* at least 1 in the end */
    for (uint32_t id = 0; id < n; id++)
        total += fmath_exp_of(logits[id] - *best);
    *out = fmath_log_of(total);
    return true;
}

int fm_logprobs(const struct fm_model *m, const float *logits, struct fm_logprob *chosen,
                struct fm_logprob *top, unsigned n_top)
{
    const uint32_t vocabulary = m->engine.model->shape.vocabulary;
    if (chosen->id < 0 || (uint32_t)chosen->id >= vocabulary)
        return FM_ERR_ARG;
    float best;
    double total;
    if (!log_total(logits, vocabulary, &best, &total))
        return FM_ERR_FORMAT;
    chosen->logprob = (float)((double)logits[chosen->id] - best - total);
    unsigned n = 0;
    for (uint32_t id = 0; id < vocabulary && n_top > 0; id++) {
        const float logit = logits[id];
        if ((n == n_top && !(logit > top[n - 1].logprob)) ||
            (m->tokenizer != NULL && !tokenizer_has_id(m->tokenizer, (int32_t)id)))
            continue;
        unsigned i = n < n_top ? n++ : n - 1;
        for (; i > 0 && logit > top[i - 1].logprob; i--)
            top[i] = top[i - 1];
        top[i] = (struct fm_logprob){(int32_t)id, logit};
    }
    assert(n <= n_top);
    for (unsigned i = 0; i < n; i++)
        top[i].logprob = (float)((double)top[i].logprob - best - total);
    return (int)n;
}
