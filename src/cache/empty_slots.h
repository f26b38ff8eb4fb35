/* The empty slots of a cache's tiers (empty_slots.c), for the thread that drives the plans. */
#ifndef FLASHMOE_CACHE_EMPTY_SLOTS_H
#define FLASHMOE_CACHE_EMPTY_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct expert_cache;
struct tier;

/* Adds an empty slot to the list of its tier, if the tier may fill it: as the next one to be taken,
 * or as the last one. */
void empty_slots_add(struct expert_cache *cache, uint32_t slot, bool is_last);
void empty_slots_remove(struct expert_cache *cache, uint32_t slot);
/* Makes the list of a tier anew. The caller holds the lock. */
void empty_slots_list(struct expert_cache *cache, struct tier *tier);
/* An empty slot of the second tier still has the bytes of an expert that moved to the first. */
void empty_slots_pair(struct expert_cache *cache, uint32_t above, uint32_t below);
/* Forgets that, if it is so: the bytes change, or the expert leaves. */
void empty_slots_part(struct expert_cache *cache, uint32_t slot);

#ifdef __cplusplus
}
#endif
#endif
