/* Replay: what a cache policy would have hit on a recorded routing. REPLAY_LRU and REPLAY_LCP are
 * the engine's own heat and victims, driven in the order in which expert_cache.c drives them for
 * decode, one token after the other; the others are what they are compared with.
 *
 * Everything is borrowed and nothing kept: any thread may call. */
#ifndef FLASHMOE_LAB_REPLAY_H
#define FLASHMOE_LAB_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The layer's ones give each layer the same number of slots. */
enum replay_policy {
    REPLAY_LRU, /* the engine's pool with HEAT_LRU */
    REPLAY_LCP, /* the engine's pool with HEAT_LCP */
    REPLAY_LAYER_LRU,
    REPLAY_LAYER_LFU,    /* the fewest uses since the beginning go first, then the least recent */
    REPLAY_STATIC,       /* the most used of the first half; nothing enters or leaves */
    REPLAY_LAYER_BELADY, /* keeps what is used next: no policy of a layer alone does better */
    REPLAY_BELADY,       /* the same over all layers: no policy does better at all */
    N_REPLAY_POLICIES,
};

const char *replay_policy_name(enum replay_policy policy);

struct replay_routes {
    uint32_t n_layers, n_experts, n_used;
    uint32_t n_positions;
    const uint16_t *ids; /* [n_positions, n_layers, n_used], each row distinct; the first follows
                          * the last */
    uint32_t n_warm, n_tokens; /* tokens that only fill the cache, then those that are measured */
};

/* Experts found in the cache, of n_tokens * n_layers * n_used; those of the second half of the
 * tokens apart. REPLAY_STATIC has the second half alone: it learns from the first. */
struct replay_hits {
    uint64_t n_all, n_late;
};

/* With n_slots for all layers together, of at least n_layers. */
int replay_run(const struct replay_routes *routes, enum replay_policy policy, uint32_t n_slots,
               struct replay_hits *hits, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
