#include "cache/lookahead.h"

#include <assert.h>
#include <string.h>

#include "base/limits.h"

_Static_assert(LIMIT_TOP_K <= 64, "a bit for each expert of a token");

/* Tokens of each half of a trial: without lookahead, then with it. */
#define TRIAL_TOKENS 16
/* Tokens until the next trial. Without lookahead the number doubles after every failed trial. */
#define SETTLED_WITH 256
#define SETTLED_WITHOUT 256
#define SETTLED_WITHOUT_MAX 8192
#define NO_LAYER UINT32_MAX
/* Maximum number of guesses per layer, largest router weight first. About as many as can be read
 * during the layer's other work. */
#define MAX_GUESSES 8

uint64_t lookahead_bytes(uint32_t n_layers, uint32_t n_used)
{
    return n_layers * sizeof(struct lookahead_layer) + n_used * sizeof(uint32_t);
}

void lookahead_init(struct lookahead *l, enum lookahead_mode mode, struct expert_cache *cache,
                    uint32_t n_layers, uint32_t n_used, void *memory)
{
    *l = (struct lookahead){.mode = mode, .cache = cache, .layers = memory, .n_layers = n_layers,
                            .n_used = n_used, .predicted_layer = NO_LAYER,
                            .n_tokens_left = TRIAL_TOKENS, .n_settled = SETTLED_WITHOUT};
    l->predicted = (uint32_t *)(void *)(l->layers + n_layers);
}

void lookahead_begin_token(struct lookahead *l)
{
    l->predicted_layer = NO_LAYER;
    l->is_on = l->mode == LOOKAHEAD_ON || (l->mode == LOOKAHEAD_AUTO && l->phase == LOOKAHEAD_WITH);
    if (l->mode == LOOKAHEAD_AUTO && l->phase == LOOKAHEAD_SETTLED)
        l->is_on = l->with_ns < l->without_ns;
}

static void settle(struct lookahead *l, bool is_on)
{
    l->phase = LOOKAHEAD_SETTLED;
    l->n_tokens_left = is_on ? SETTLED_WITH : l->n_settled;
    if (is_on)
        l->n_settled = SETTLED_WITHOUT;
    else if (l->n_settled < SETTLED_WITHOUT_MAX)
        l->n_settled *= 2;
}

static void begin_trial(struct lookahead *l)
{
    l->phase = LOOKAHEAD_WITHOUT;
    l->n_tokens_left = TRIAL_TOKENS;
    l->without_ns = l->with_ns = l->n_misses = 0;
}

void lookahead_end_token(struct lookahead *l, uint64_t ns, uint64_t n_misses)
{
    if (l->mode != LOOKAHEAD_AUTO)
        return;
    if (l->phase != LOOKAHEAD_SETTLED)
        *(l->phase == LOOKAHEAD_WITH ? &l->with_ns : &l->without_ns) += ns;
    if (l->phase == LOOKAHEAD_WITHOUT)
        l->n_misses += n_misses;
    assert(l->n_tokens_left > 0);
    if (--l->n_tokens_left > 0)
        return;
    if (l->phase == LOOKAHEAD_SETTLED) {
        begin_trial(l);
    } else if (l->phase == LOOKAHEAD_WITH) {
        settle(l, l->with_ns < l->without_ns);
    } else if (l->n_misses == 0) {
        l->with_ns = l->without_ns; /* no misses: nothing to gain */
        settle(l, false);
    } else {
        l->phase = LOOKAHEAD_WITH;
        l->n_tokens_left = TRIAL_TOKENS;
    }
}

/* Returns the estimated precision of the predictions. Predicted and used experts are equally many,
 * so precision equals recall. Estimates it from the past tokens of the layer, with a prior of
 * 0.5. */
static double precision_of(const struct lookahead_layer *l)
{
    return ((double)l->n_predicted + 1) / ((double)l->n_needed + 2);
}

void lookahead_guess(struct lookahead *l, uint32_t layer, const uint32_t *ids,
                     const float *weights)
{
    const double probability = precision_of(&l->layers[layer]);
    assert(layer < l->n_layers && l->n_used <= LIMIT_TOP_K);
    uint64_t tried = 0; /* a bit per prediction */
    l->predicted_layer = layer;
    memcpy(l->predicted, ids, l->n_used * sizeof *ids);
    for (uint32_t n_read = 0, n = 0; n < l->n_used && n_read < MAX_GUESSES; n++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < l->n_used; i++)
            if ((tried >> i & 1) == 0 && (best == UINT32_MAX || weights[i] > weights[best]))
                best = i;
        tried |= UINT64_C(1) << best;
        n_read += expert_cache_guess(l->cache, layer, ids[best], probability);
    }
}

void lookahead_check(struct lookahead *l, uint32_t layer, const struct expert_use *uses,
                     uint32_t n)
{
    if (l->predicted_layer != layer)
        return;
    struct lookahead_layer *at = &l->layers[layer];
    at->n_needed += n;
    /* Both lists are ascending. */
    for (uint32_t i = 0, j = 0; i < n && j < l->n_used;) {
        at->n_predicted += uses[i].expert == l->predicted[j];
        if (uses[i].expert < l->predicted[j])
            i++;
        else
            j++;
    }
    assert(at->n_predicted <= at->n_needed);
}
