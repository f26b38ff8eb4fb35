#include "cache/lookahead.h"

#include <assert.h>
#include <string.h>

#include "base/limits.h"

_Static_assert(LIMIT_TOP_K <= 64, "a bit for each expert of a token");

/* Passes of each half of a trial: without lookahead, then with it. */
#define TRIAL_PASSES 16
/* Passes until the next trial. Without lookahead the number doubles after every failed trial. */
#define SETTLED_WITH 256
#define SETTLED_WITHOUT 256
#define SETTLED_WITHOUT_MAX 8192
#define NO_LAYER UINT32_MAX
/* Maximum number of guesses per layer and row. About as many as can be read during the layer's
 * other work. */
#define MAX_GUESSES 8

uint64_t lookahead_bytes(const struct lookahead_sizes *sizes)
{
    return sizes->n_layers * sizeof(struct lookahead_layer) +
           sizes->max_rows * (sizeof(struct lookahead_trial) + sizes->n_used * sizeof(uint32_t));
}

void lookahead_init(struct lookahead *l, enum lookahead_mode mode, struct expert_cache *cache,
                    const struct lookahead_sizes *sizes, void *memory)
{
    *l = (struct lookahead){.mode = mode, .cache = cache, .layers = memory,
                            .n_layers = sizes->n_layers, .n_used = sizes->n_used,
                            .max_rows = sizes->max_rows, .predicted_layer = NO_LAYER};
    l->trials = (struct lookahead_trial *)(void *)(l->layers + sizes->n_layers);
    l->trial = l->trials;
    l->predicted = (uint32_t *)(void *)(l->trials + sizes->max_rows);
    for (uint32_t i = 0; i < sizes->max_rows; i++)
        l->trials[i] = (struct lookahead_trial){.n_passes_left = TRIAL_PASSES,
                                                .n_settled = SETTLED_WITHOUT};
}

/* ---- whether ------------------------------------------------------------------------------- */

void lookahead_begin(struct lookahead *l, uint32_t n_rows)
{
    assert(n_rows > 0 && n_rows <= l->max_rows);
    const struct lookahead_trial *t = l->trial = &l->trials[n_rows - 1];
    l->predicted_layer = NO_LAYER;
    l->is_on = l->mode == LOOKAHEAD_ON || (l->mode == LOOKAHEAD_AUTO && t->phase == LOOKAHEAD_WITH);
    if (l->mode == LOOKAHEAD_AUTO && t->phase == LOOKAHEAD_SETTLED)
        l->is_on = t->with_ns < t->without_ns;
}

static void settle(struct lookahead_trial *t, bool is_on)
{
    t->phase = LOOKAHEAD_SETTLED;
    t->n_passes_left = is_on ? SETTLED_WITH : t->n_settled;
    if (is_on)
        t->n_settled = SETTLED_WITHOUT;
    else if (t->n_settled < SETTLED_WITHOUT_MAX)
        t->n_settled *= 2;
}

static void begin_trial(struct lookahead_trial *t)
{
    t->phase = LOOKAHEAD_WITHOUT;
    t->n_passes_left = TRIAL_PASSES;
    t->without_ns = t->with_ns = t->n_misses = 0;
}

void lookahead_end(struct lookahead *l, uint64_t ns, uint64_t n_misses)
{
    struct lookahead_trial *t = l->trial;
    l->is_on = false;
    if (l->mode != LOOKAHEAD_AUTO)
        return;
    if (t->phase != LOOKAHEAD_SETTLED)
        *(t->phase == LOOKAHEAD_WITH ? &t->with_ns : &t->without_ns) += ns;
    if (t->phase == LOOKAHEAD_WITHOUT)
        t->n_misses += n_misses;
    assert(t->n_passes_left > 0);
    if (--t->n_passes_left > 0)
        return;
    if (t->phase == LOOKAHEAD_SETTLED) {
        begin_trial(t);
    } else if (t->phase == LOOKAHEAD_WITH) {
        settle(t, t->with_ns < t->without_ns);
    } else if (t->n_misses == 0) {
        t->with_ns = t->without_ns; /* no misses: nothing to gain */
        settle(t, false);
    } else {
        t->phase = LOOKAHEAD_WITH;
        t->n_passes_left = TRIAL_PASSES;
    }
}

/* ---- what ---------------------------------------------------------------------------------- */

/* Returns the estimated precision of the predictions, from the past passes of the layer, with a
 * prior of 0.5. */
static double precision_of(const struct lookahead_layer *l)
{
    return ((double)l->n_predicted + 1) / ((double)l->n_wanted + 2);
}

/* Guesses the experts of one row, the largest weight first. */
static void guess_row(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                      const float *weights, double probability)
{
    uint64_t tried = 0; /* a bit per prediction */
    for (uint32_t n_read = 0, n = 0; n < l->n_used && n_read < MAX_GUESSES; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < l->n_used; i++)
            if ((tried >> i & 1) == 0 && (best == UINT32_MAX || weights[i] > weights[best]))
                best = i;
        tried |= UINT64_C(1) << best;
        n_read += expert_cache_guess(l->cache, layer, ids[best], probability);
    }
}

/* Adds a prediction to those of the layer, which are ascending and distinct. */
static void add_predicted(struct lookahead *l, uint32_t id)
{
    uint32_t i = l->n_predicted;
    while (i > 0 && l->predicted[i - 1] > id)
        i--;
    if (i > 0 && l->predicted[i - 1] == id)
        return;
    memmove(l->predicted + i + 1, l->predicted + i, (l->n_predicted - i) * sizeof id);
    l->predicted[i] = id;
    l->n_predicted++;
}

void lookahead_predict(struct lookahead *l, uint32_t layer, const uint32_t *ids, uint32_t n_rows)
{
    assert(layer < l->n_layers && l->n_used <= LIMIT_TOP_K && n_rows <= l->max_rows);
    l->predicted_layer = layer;
    l->n_predicted = 0;
    for (uint32_t i = 0; i < n_rows * l->n_used; i++)
        add_predicted(l, ids[i]);
}

void lookahead_guess(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                     const float *weights, uint32_t n_rows)
{
    const double probability = precision_of(&l->layers[layer]);
    lookahead_predict(l, layer, ids, n_rows);
    if (n_rows == 1) {
        guess_row(l, layer, ids, weights, probability);
        return;
    }
    for (uint32_t i = 0, n_read = 0; i < l->n_predicted && n_read < n_rows * MAX_GUESSES; i++)
        n_read += expert_cache_guess(l->cache, layer, l->predicted[i], probability);
}

void lookahead_check(struct lookahead *l, uint32_t layer, const struct expert_use *uses,
                     uint32_t n)
{
    if (l->predicted_layer != layer)
        return;
    struct lookahead_layer *at = &l->layers[layer];
    at->n_needed += n;
    at->n_wanted += l->n_predicted;
    /* Both lists are ascending. */
    for (uint32_t i = 0, j = 0; i < n && j < l->n_predicted;) {
        at->n_predicted += uses[i].expert == l->predicted[j];
        if (uses[i].expert < l->predicted[j])
            i++;
        else
            j++;
    }
    assert(at->n_predicted <= at->n_needed && at->n_predicted <= at->n_wanted);
}
