/* The expert cache: a pool of slots, reserved at open and reused until close. The unit of work is
 * one layer's plan: begin names the experts the layer needs and starts reading those that are
 * missing; next hands out those that are ready, resident ones first and the others as they land;
 * end closes the plan. An expert that was asked for is always the expert that is handed out; one
 * that cannot be read is reported by next, and the plan goes on with the others.
 *
 * An expert is handed out when its bytes have landed, while its checksum is still computed: what
 * comes of it counts only when verify has found nothing wrong with it.
 *
 * A plan may name more experts than there are slots: handing out the next experts releases those
 * before them, and their slots are reused. Operations that read a slot may still be queued then:
 * the cache waits for them before it has another expert read into the slot.
 *
 * Guesses are reads that nobody waits for: experts that may be wanted soon (expert_cache_guess,
 * expert_cache_sweep) and those that an earlier run of the program found hot (expert_cache_warm).
 * They are served after everything needed, never take the slot of an expert that is hotter, but for
 * a sweep's share, and one that fails is forgotten.
 *
 * One thread drives plans; completions arrive from reader threads. The cache's lock is never held
 * across a read or a callback. */
#ifndef FLASHMOE_CACHE_EXPERT_CACHE_H
#define FLASHMOE_CACHE_EXPERT_CACHE_H

#include "cache/heat.h"
#include "store/expert_store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_cache;

/* Model, store and memory, where the slots are made, must outlive the cache. n_slots >= 1; each
 * takes model->expert_slot_bytes. */
int expert_cache_open(const struct model *model, struct expert_store *store,
                      const struct memory *memory, uint32_t n_slots, enum heat_policy policy,
                      struct expert_cache **out, struct fm_error *err);
/* Accepts NULL; no plan is open and the store is closed already, so that nothing is on its way. */
void expert_cache_close(struct expert_cache *cache);

/* Memory a cache of n_slots takes, bookkeeping included. */
uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots);

/* An expert of a plan. The cache remembers uses; one that is needed and not worth remembering, by a
 * token long before the last one of a prompt, has none. */
struct expert_use {
    uint32_t expert;
    uint32_t n_uses, idle; /* tokens that use it; tokens since the last of them */
};

/* `uses` are distinct experts of model->expert_layers[layer], borrowed until end. n_tokens is what
 * the experts' idle time is counted in: how many pass with this plan. */
void expert_cache_begin(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n);

/* Which experts of a layer are in memory, without waiting: resident[expert]. No plan is open. */
void expert_cache_resident(struct expert_cache *cache, uint32_t layer, bool *resident);

struct expert_item {
    uint32_t index;   /* into the uses given to begin */
    /* In the cache's memory. Operations that read it are queued before the next call of next or
     * end. */
    const void *slot;
};

/* Up to `max` items that are ready, waiting for the first unless `polls`, which may find none. 1
 * when there is more to come or was just handed out, 0 when all have been handed out before. A
 * negative code when an expert could not be read: items[*n].index is that expert, the *n items
 * before it are ready, and the plan goes on with the next call. Such an expert is reported once;
 * the next plan that names it reads it again. It may have been handed out before. */
int expert_cache_next(struct expert_cache *cache, bool polls, struct expert_item *items,
                      uint32_t max, uint32_t *n, struct fm_error *err);

/* Always called after begin, also when experts are left; waits for its reads still under way. */
void expert_cache_end(struct expert_cache *cache);

/* Waits until the checksums of all experts that were handed out are known. Always called after end
 * and before the next begin; meanwhile the caller may compute with the results. 0 when all are
 * right; a negative code for one that is not, whose index into the uses given to begin is *index:
 * then there may be more, and it is called again. */
int expert_cache_verify(struct expert_cache *cache, uint32_t *index, struct fm_error *err);

/* ---- guesses --------------------------------------------------------------------------------- */

/* The next plan will want the expert with this likelihood, above 0: reads it behind the guesses
 * before it when it is not there and an empty slot is to be had, or that of an expert that is
 * colder than one used so likely (heat_of_likely). Given up if that plan begins before its read
 * does. May be called while a plan is open. True when it waits to be read. */
bool expert_cache_guess(struct expert_cache *cache, uint32_t layer, uint32_t expert,
                        double likelihood);

/* What the cache remembers of all experts. Before the first plan it may be restored; then
 * expert_cache_warm starts to read the hottest experts into the empty slots, in the order in which
 * they lie on the disk, while plans already run. */
struct heat *expert_cache_heat(struct expert_cache *cache);
void expert_cache_warm(struct expert_cache *cache);
/* A prompt comes to this layer next and will use nearly all of its experts: reads those that are
 * not there, in the order of the disk, into a share of the slots, those of the coldest experts of
 * other layers, until the layer's plan begins. No plan is open. */
void expert_cache_sweep(struct expert_cache *cache, uint32_t layer);
/* Begins no more of these reads: before the store is closed, which waits for what has begun. */
void expert_cache_stop_warming(struct expert_cache *cache);

/* ---- size ------------------------------------------------------------------------------------ */

/* Uses so many slots from now on, at least one and at most those it was opened with; no plan is
 * open. Further ones are there at once. To use fewer, expert_cache_shrink is called between plans
 * until it returns true: the coldest experts are dropped, the others are moved to the slots that
 * stay, and the memory behind these is given back in whole pages. A call copies about move_bytes
 * and waits for nothing: a slot that is being read goes at a later call. */
void expert_cache_resize(struct expert_cache *cache, uint32_t n_slots);
bool expert_cache_shrink(struct expert_cache *cache, uint64_t move_bytes);
/* All of it now; waits for reads under way. */
void expert_cache_settle(struct expert_cache *cache);

struct expert_cache_stats {
    uint64_t n_slots; /* in use, empty or not */
    uint64_t n_hits, n_misses; /* experts that plans named: there, or not */
    uint64_t n_late;           /* of the misses, those whose guess was on its way */
    uint64_t n_guesses, n_guesses_used, n_warmed; /* guesses that landed; warmed ones apart */
    uint64_t bytes_read;       /* of experts that landed */
    uint64_t wait_ns;          /* next had nothing to hand out */
};

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats);

/* The share of its experts that a cache of n_slots would have had for every token decoded so far
 * (ghosts.h); negative before the first. */
double expert_cache_hits_with(const struct expert_cache *cache, uint64_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
