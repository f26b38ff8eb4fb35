/* Replay computes the hits that a cache policy would have had on recorded routing. REPLAY_LRU and
 * REPLAY_LCP use the engine's own heat and victims, driven in the order in which expert_cache.c
 * drives them for decode, one token after the other. The other policies are for comparison.
 *
 * The functions borrow all arguments and keep nothing. Any thread may call them. */
#ifndef FLASHMOE_LAB_REPLAY_H
#define FLASHMOE_LAB_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A LAYER policy gives each layer the same number of slots. */
enum replay_policy {
    REPLAY_LRU, /* the engine's pool with HEAT_LRU */
    REPLAY_LCP, /* the engine's pool with HEAT_LCP */
    REPLAY_LAYER_LRU,
    REPLAY_LAYER_LFU, /* evicts the expert with the fewest uses, then the least recently used one */
    REPLAY_STATIC,       /* holds the most used experts of the first half; nothing is evicted */
    REPLAY_LAYER_BELADY, /* evicts what is used last: optimal for each layer alone */
    REPLAY_BELADY,       /* the same over all layers: the optimum of all policies */
    N_REPLAY_POLICIES,
};

const char *replay_policy_name(enum replay_policy policy);

struct replay_routes {
    uint32_t n_layers, n_experts, n_used;
    uint32_t n_positions;
    /* [n_positions, n_layers, n_used], distinct in each row; read cyclically */
    const uint16_t *ids;
    uint32_t n_warm, n_tokens; /* tokens that only fill the cache, then tokens that are measured */
};

/* Hits out of n_tokens * n_layers * n_used uses, and those of the second half of the tokens.
 * REPLAY_STATIC learns from the first half and has hits in the second half only. */
struct replay_hits {
    uint64_t n_all, n_late;
};

/* Replays the routes with n_slots >= n_layers slots for all layers together. Fails with
 * FM_ERR_NOMEM. */
int replay_run(const struct replay_routes *routes, enum replay_policy policy, uint32_t n_slots,
               struct replay_hits *hits, struct fm_error *err);

/* ---- two tiers ------------------------------------------------------------------------------- */

/* What happens to an expert that leaves the first tier for a hotter one of the second. */
enum replay_moves {
    REPLAY_MOVES_NONE, /* nothing moves: experts stay where they were read to */
    REPLAY_MOVES_DROP, /* it is dropped */
    REPLAY_MOVES_DOWN, /* it takes the place of the coldest of the second tier, if that is colder */
    N_REPLAY_MOVES,
};

const char *replay_moves_name(enum replay_moves moves);

struct replay_tier_counts {
    uint64_t n_above, n_below; /* hits */
    uint64_t n_moved_up, n_moved_down;
};

/* Replays the routes with the engine's policy and two tiers of slots, n_below >= n_layers. Counts
 * the tokens after the first n_warm. Fails with FM_ERR_NOMEM. */
int replay_tiers(const struct replay_routes *routes, enum replay_moves moves, uint32_t n_above,
                 uint32_t n_below, struct replay_tier_counts *counts, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
