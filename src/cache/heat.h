/* Heat: how often and how long ago each expert was used, kept for all experts, resident or not. Its
 * keys order the experts a cache could drop.
 *
 * Age is counted in tokens that have passed the expert's layer, not in time: in the middle of a
 * token the layers above are one token behind, and none of them looks older for it.
 *
 * Belongs to the thread that drives the plans. Nothing allocates after heat_init. */
#ifndef FLASHMOE_CACHE_HEAT_H
#define FLASHMOE_CACHE_HEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum heat_policy {
    /* Uses, halved for every HEAT_HALF_LIFE tokens since the last one and, of those before it, for
     * every HEAT_FADE tokens that they lie before it. */
    HEAT_LCP,
    HEAT_LRU, /* the latest use */
    N_HEAT_POLICIES,
};

/* LCP with the constant 16: frequency * 0.25^(idle / 16). Nothing that knows only the past was
 * better on all traces, nor were other constants (docs/decisions/0006). A frequency that does not
 * fade keeps the experts of subjects long left. */
#define HEAT_HALF_LIFE 8
#define HEAT_FADE 32
#define HEAT_AGAIN 0.36

const char *heat_policy_name(enum heat_policy policy);

struct heat {
    enum heat_policy policy;
    uint32_t n_layers, n_experts;
    uint64_t n_uses;
    uint32_t *clocks; /* [n_layers] tokens that have passed */
    float *counts;    /* [n_layers, n_experts] uses, faded up to the last one; 0: none */
    uint32_t *lasts;  /* [n_layers, n_experts] the layer's clock at the last one */
    double *keys;     /* [n_layers, n_experts] */
    double fades[HEAT_FADE]; /* what is left of a use after so many tokens */
};

int heat_init(struct heat *heat, enum heat_policy policy, uint32_t n_layers, uint32_t n_experts,
              struct fm_error *err);
void heat_clear(struct heat *heat);
uint64_t heat_bytes(uint32_t n_layers, uint32_t n_experts);

/* So many tokens pass the layer; then heat_use, once for each expert they use. */
void heat_pass(struct heat *heat, uint32_t layer, uint32_t n_tokens);
/* n uses, the last one `idle` tokens before the last token that has passed. */
void heat_use(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t n, uint32_t idle);

/* The larger, the rather to be kept. Changes with heat_use alone, so that a heap can hold it, and
 * is comparable within a layer; between layers, heat_key minus heat_age is. */
static inline double heat_key(const struct heat *heat, uint32_t layer, uint32_t expert)
{
    return heat->keys[(size_t)layer * heat->n_experts + expert];
}

static inline double heat_age(const struct heat *heat, uint32_t layer)
{
    return heat->policy == HEAT_LCP ? (double)heat->clocks[layer] / HEAT_HALF_LIFE : 0;
}

/* How hot an expert is, on the scale of heat_key minus heat_age, that the next token will use with
 * this likelihood, above 0. One that the last token used has the heat 0 and is used again with a
 * likelihood of HEAT_AGAIN: neighbouring tokens of the recorded traces share 38, 36 and 18 %. */
double heat_of_likely(const struct heat *heat, double likelihood);

/* Uses per token lately, 0 to 1: each use counts half as much after HEAT_FADE tokens. */
double heat_level(const struct heat *heat, uint32_t layer, uint32_t expert);

/* By how much another layer's expert must be colder for a layer to drop it before its own coldest:
 * keys of different layers tell less than those of one. */
static inline double heat_margin(const struct heat *heat)
{
    return heat->policy == HEAT_LCP ? 1 : 0; /* half as hot */
}

/* What was known of an expert when it was last saved: for a cold start. */
void heat_restore(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t count,
                  uint32_t idle);

#ifdef __cplusplus
}
#endif
#endif
