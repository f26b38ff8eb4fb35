/* The expert cache: a fixed pool of slots, taken at open and reused until close. The unit of work
 * is one layer's plan: begin names the experts the layer needs and starts reading those that are
 * missing; next hands out those that are ready, resident ones first and the others as they land;
 * end closes the plan. An expert that was asked for is always the expert that is handed out; a read
 * that fails makes next fail.
 *
 * A plan may name more experts than there are slots: handing out the next experts releases those
 * before them, and their slots are reused.
 *
 * One thread drives plans; completions arrive from reader threads. The cache's lock is never held
 * across a read or a callback. */
#ifndef FLASHMOE_CACHE_EXPERT_CACHE_H
#define FLASHMOE_CACHE_EXPERT_CACHE_H

#include "store/expert_store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_cache;

/* Model and store must outlive the cache. n_slots >= 1; each takes model->expert_slot_bytes. */
int expert_cache_open(const struct model *model, struct expert_store *store, uint32_t n_slots,
                      struct expert_cache **out, struct fm_error *err);
void expert_cache_close(struct expert_cache *cache); /* accepts NULL; no plan is open */

/* Memory a cache of n_slots takes, bookkeeping included. */
uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots);

/* `ids` are distinct experts of model->expert_layers[layer]; borrowed until end. */
void expert_cache_begin(struct expert_cache *cache, uint32_t layer, const uint32_t *ids,
                        uint32_t n);

struct expert_item {
    uint32_t index;   /* into the ids given to begin */
    const void *slot; /* valid until the next call of next or end */
};

/* Up to `most` items that are ready, waiting for the first unless `polls`, which may find none. 1
 * when there is more to come or was just handed out, 0 when all have been handed out before, or
 * an error. */
int expert_cache_next(struct expert_cache *cache, bool polls, struct expert_item *items,
                      uint32_t most, uint32_t *n, struct fm_error *err);

/* Always called after begin, also after a failure; waits for reads still under way. */
void expert_cache_end(struct expert_cache *cache);

struct expert_cache_stats {
    uint64_t n_slots, n_hits, n_misses, bytes_read;
};

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
