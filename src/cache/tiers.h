/* Two tiers of a cache (expert_cache.h): experts that move between a device's memory and the
 * host's. Belongs to the thread that drives the plans. */
#ifndef FLASHMOE_CACHE_TIERS_H
#define FLASHMOE_CACHE_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cache/tier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_cache;
struct tier;

/* What travels between two tiers, by numbers that ascend. */
struct transfers {
    uint64_t n_started, n_settled;
    uint64_t n_joined; /* operations that are queued now wait for so many */
    enum chunk_state {
        CHUNK_UNUSED,
        CHUNK_LOCKED, /* its pages are, so that transfers are fast */
        CHUNK_PLAIN,  /* used, and not locked */
    } *chunks;        /* of the second pool */
    uint64_t n_chunks, n_plain;
    /* The slots of the first tier that experts are on their way to. */
    uint32_t arriving[TIER_MAX_ARRIVING];
    uint32_t n_arriving;
    struct tier_moves moves;
};

int transfers_init(struct expert_cache *cache, struct fm_error *err);
void transfers_clear(struct expert_cache *cache); /* unlocks all pages */
/* Puts those hits of the open plan that can be computed at once before the others. */
void tiers_sort_hits(struct expert_cache *cache);
/* Moves experts of a layer from the second tier to the first, if they are used more often than
 * others there. They are those of a plan that has ended, or of operations without one. */
void tiers_move_up(struct expert_cache *cache, uint32_t layer, const uint32_t *experts,
                   uint32_t n);
/* Moves an evictable expert of the first tier to the second. Drops it, and returns false, if all
 * experts there are hotter. The slot may be filled by another transfer at once; its memory may go
 * after tiers_settle. */
bool tiers_move_down(struct expert_cache *cache, uint32_t slot);
/* Moves experts up until the first tier has no empty slot. No plan is open. */
void tiers_fill_above(struct expert_cache *cache);
/* Returns where operations that are queued now find the bytes of a ready slot. They wait for them
 * if they must. */
const void *tiers_bytes(struct expert_cache *cache, uint32_t slot);
/* Returns whether a slot's expert is still on its way. */
bool tiers_is_moving(const struct expert_cache *cache, uint32_t slot);
/* Waits until nothing is on its way. */
void tiers_settle(struct expert_cache *cache);
/* Notes what the host knows without waiting: the queue is empty, so what it has joined is over. Or
 * all transfers are. */
void tiers_look(struct expert_cache *cache);
/* Locks the pages of a slot of the second tier, or unlocks a piece of its pool. */
void tiers_pin(struct expert_cache *cache, uint32_t slot);
void tiers_unpin(struct expert_cache *cache, const struct tier *tier, uint64_t begin,
                 uint64_t end);

#ifdef __cplusplus
}
#endif
#endif
