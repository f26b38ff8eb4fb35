/* The expert cache owns a pool of slots, each with room for one expert. The pool is reserved at
 * open and reused until close.
 *
 * A plan names the experts that one layer needs. begin starts to read the missing ones. next hands
 * out experts that are ready: resident ones first, then the others as they land. end closes the
 * plan. next always hands out exactly the expert that was asked for. It reports an expert that
 * cannot be read, and the plan goes on with the others. A plan may name more experts than there are
 * slots: each call of next releases the experts that the call before handed out, and their slots
 * are reused. Operations that read a slot may still be queued then, so the cache waits for them
 * before it has another expert read into the slot.
 *
 * An expert is handed out when its bytes have landed, possibly before its checksum is known.
 * Results computed from it count only after verify has returned 0.
 *
 * Guesses are reads that no plan waits for: experts that may be used soon (expert_cache_guess,
 * expert_cache_sweep), and experts that were hot in an earlier process (expert_cache_warm). They
 * are served after all needed reads. A guess evicts only a colder expert; a sweep has a small share
 * of the slots. A guess that cannot be read is dropped without an error.
 *
 * One thread drives the plans and calls all functions. Reads complete on reader threads. The
 * cache's lock is never held across a read or a callback. */
#ifndef FLASHMOE_CACHE_EXPERT_CACHE_H
#define FLASHMOE_CACHE_EXPERT_CACHE_H

#include "cache/heat.h"
#include "store/expert_store.h"

#ifdef __cplusplus
extern "C" {
#endif

struct expert_cache;

/* Opens a cache of n_slots >= 1 slots in `memory`; each takes model->expert_slot_bytes. Model
 * and memory must outlive the cache. The store is closed before the cache, whose slots its reads
 * write to. Fails with FM_ERR_NOMEM. */
int expert_cache_open(const struct model *model, struct expert_store *store,
                      const struct memory *memory, uint32_t n_slots, enum heat_policy policy,
                      struct expert_cache **out, struct fm_error *err);
/* Accepts NULL. No plan is open, and the store is closed already, so no read is under way. */
void expert_cache_close(struct expert_cache *cache);

/* Returns the memory that a cache of n_slots takes, bookkeeping included. */
uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots);

/* One expert of a plan. n_uses is 0 for an expert that is needed but does not count as a use, for
 * example one used only early in a long prompt. */
struct expert_use {
    uint32_t expert;
    uint32_t n_uses, idle; /* tokens that use it; tokens since the last of them */
};

/* Opens a plan for model->expert_layers[layer]. `uses` are distinct experts of that layer, borrowed
 * until end. n_tokens advances the clock that measures how long experts are idle. */
void expert_cache_begin(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n);

/* Sets resident[expert] for every expert of a layer. Does not wait. No plan is open. */
void expert_cache_resident(struct expert_cache *cache, uint32_t layer, bool *resident);

struct expert_item {
    uint32_t index;   /* into the uses given to begin */
    /* In the cache's memory. Operations that read it are queued before the next call of next or
     * end. */
    const void *slot;
};

/* Hands out up to `max` experts that are ready. Waits for the first one unless `polls`; then *n may
 * be 0. Returns 1 when experts were handed out or are still to come, and 0 when all have been
 * handed out before. Returns a negative code when an expert could not be read: items[*n].index
 * names it, the *n items before it are ready, and the plan goes on with the next call. Each such
 * expert is reported once, perhaps after it was handed out; the next plan that names it reads it
 * again. */
int expert_cache_next(struct expert_cache *cache, bool polls, struct expert_item *items,
                      uint32_t max, uint32_t *n, struct fm_error *err);

/* Closes the plan. Must be called after every begin, even when experts are left. Waits for the
 * plan's reads that are still under way. */
void expert_cache_end(struct expert_cache *cache);

/* Waits until the checksums of all experts that were handed out are known. Must be called after end
 * and before the next begin; the caller may compute in between. Returns 0 when all are right.
 * Returns a negative code for one damaged expert and sets *index into the uses given to begin; call
 * it again then, because there may be more. */
int expert_cache_verify(struct expert_cache *cache, uint32_t *index, struct fm_error *err);

/* ---- guesses --------------------------------------------------------------------------------- */

/* Reads an expert that the next plan will use with this probability, above 0. Queues it after
 * earlier guesses when it is not resident and there is an empty slot, or a slot whose expert is
 * colder than heat_at_probability. The guess is cancelled if that plan begins before its read does.
 * May be called while a plan is open. Returns true when the expert was queued. */
bool expert_cache_guess(struct expert_cache *cache, uint32_t layer, uint32_t expert,
                        double probability);

/* Returns the heat of all experts, which the cache owns. It may be restored before the first
 * plan. */
struct heat *expert_cache_heat(struct expert_cache *cache);
/* Starts to read the hottest experts into the empty slots, in disk order, while plans already run.
 * Called once, after the heat was restored and before the first plan. */
void expert_cache_warm(struct expert_cache *cache);
/* Reads the experts of the layer that a prompt reaches next, because a prompt uses nearly all of
 * them. Reads in disk order into a share of the slots, evicting the coldest experts of other
 * layers, until the layer's plan begins. No plan is open. */
void expert_cache_sweep(struct expert_cache *cache, uint32_t layer);
/* Starts no further guess, sweep or warm-up read. Called before the store is closed, which waits
 * for the reads that have begun. */
void expert_cache_stop_warming(struct expert_cache *cache);

/* ---- size ------------------------------------------------------------------------------------ */

/* Changes the number of slots in use, from 1 to the number given to open. No plan is open. More
 * slots are available at once. For fewer slots, call expert_cache_shrink between plans until it
 * returns true: it evicts the coldest experts, moves the others into the slots that stay, and gives
 * the freed memory back in whole pages. One call copies about move_bytes and waits for nothing; a
 * slot that is being read is freed by a later call. */
void expert_cache_resize(struct expert_cache *cache, uint32_t n_slots);
bool expert_cache_shrink(struct expert_cache *cache, uint64_t move_bytes);
/* Shrinks to the requested size now. Waits for reads that are under way. */
void expert_cache_settle(struct expert_cache *cache);

struct expert_cache_stats {
    uint64_t n_slots; /* in use, empty or not */
    uint64_t n_hits, n_misses; /* experts named by plans: resident, or not */
    uint64_t n_late;           /* misses whose guess was being read */
    uint64_t n_guesses, n_guesses_used, n_warmed; /* guesses that landed, without warm-up */
    uint64_t bytes_read;       /* of experts that landed */
    uint64_t wait_ns;          /* time that next waited for a read */
};

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats);

/* Returns the hit rate that a cache of n_slots would have had on all tokens decoded so far
 * (ghosts.h); negative before the first token. */
double expert_cache_hits_with(const struct expert_cache *cache, uint64_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
