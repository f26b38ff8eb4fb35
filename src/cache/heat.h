/* Heat records how often and how recently each expert was used, resident or not. Its keys are the
 * eviction order of the cache: the expert with the smallest key is evicted first.
 *
 * Age is counted in tokens that have passed the expert's layer, not in time. In the middle of a
 * token the later layers are one token behind, and their experts do not look older for it.
 *
 * The struct owns its arrays; nothing allocates after heat_init. It belongs to the thread that
 * drives the plans. */
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
    /* Frequency that decays: the sum of uses halves every HEAT_HALF_LIFE tokens after the last use,
     * and a use counts half for every HEAT_FADE tokens that it precedes the last one. */
    HEAT_LCP,
    HEAT_LRU, /* time of the last use */
    N_HEAT_POLICIES,
};

/* LCP with the constant 16 is frequency * 0.25^(idle / 16). No other policy without knowledge of
 * the future was better on all traces, nor were other constants (docs/decisions/0006). A frequency
 * that does not decay keeps the experts of topics that ended long ago. */
#define HEAT_HALF_LIFE 8
#define HEAT_FADE 32
#define HEAT_REUSE_PROBABILITY 0.36

const char *heat_policy_name(enum heat_policy policy);

struct heat {
    enum heat_policy policy;
    uint32_t n_layers, n_experts;
    uint64_t n_uses;
    uint32_t *clocks; /* [n_layers] tokens that have passed the layer */
    /* [n_layers, n_experts] uses, decayed to the time of the last one; 0: never used */
    float *counts;
    uint32_t *lasts;  /* [n_layers, n_experts] the layer's clock at the last use */
    double *keys;     /* [n_layers, n_experts] */
    double fades[HEAT_FADE]; /* [i]: weight of a use i tokens later */
};

int heat_init(struct heat *heat, enum heat_policy policy, uint32_t n_layers, uint32_t n_experts,
              struct fm_error *err);
void heat_clear(struct heat *heat);
uint64_t heat_bytes(uint32_t n_layers, uint32_t n_experts);

/* Advances the layer's clock by n_tokens. Call this first, then heat_use() once per expert used. */
void heat_advance(struct heat *heat, uint32_t layer, uint32_t n_tokens);
/* Adds n > 0 uses of an expert, the last one `idle` tokens before the clock's last token. */
void heat_use(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t n, uint32_t idle);

/* Returns the eviction key. It changes only in heat_use, so a heap can be ordered by it. Keys are
 * comparable within a layer; heat_key - heat_age is comparable between layers. */
static inline double heat_key(const struct heat *heat, uint32_t layer, uint32_t expert)
{
    return heat->keys[(size_t)layer * heat->n_experts + expert];
}

static inline double heat_age(const struct heat *heat, uint32_t layer)
{
    return heat->policy == HEAT_LCP ? (double)heat->clocks[layer] / HEAT_HALF_LIFE : 0;
}

/* Returns the heat, on the scale of heat_key - heat_age, of an expert that the next token uses with
 * this probability, above 0. An expert that the last token used has heat 0 and a reuse probability
 * of HEAT_REUSE_PROBABILITY: in the recorded traces neighbouring tokens share 38, 36 and 18 % of
 * their experts. */
double heat_at_probability(const struct heat *heat, double probability);

/* Returns the recent uses per token, 0 to 1. A use counts half after HEAT_FADE tokens. */
double heat_level(const struct heat *heat, uint32_t layer, uint32_t expert);

/* Returns the level of an expert that was used once, by the last token. */
static inline double heat_level_of_one(const struct heat *heat)
{
    return 1 - heat->fades[1];
}

/* Returns how much colder another layer's expert must be to be evicted before a layer's own
 * coldest. Keys of different layers are less comparable than those of one. */
static inline double heat_margin(const struct heat *heat)
{
    return heat->policy == HEAT_LCP ? 1 : 0; /* half as hot */
}

/* Restores an expert's heat from a file, before the first use: `count` uses, the last one `idle`
 * tokens ago. */
void heat_restore(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t count,
                  uint32_t idle);

#ifdef __cplusplus
}
#endif
#endif
