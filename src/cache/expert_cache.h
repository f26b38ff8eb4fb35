/* The expert cache owns pools of slots, each with room for one expert. They are reserved at open
 * and reused until close.
 *
 * A cache has one tier, or two: slots in a device's memory, and below them slots in the host's. An
 * expert is in one slot of one of them. Empty slots of the first tier are filled first. An expert
 * that is used and hotter than the coldest one of the first tier takes its place; that one moves
 * down, where the coldest of all is evicted. All tiers share one heat and one eviction policy.
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

#define CACHE_TIERS 2 /* at most */

struct cache_tier {
    const struct memory *memory;
    uint32_t n_slots; /* at least 1 */
};

/* Opens a cache; each slot takes model->expert_slot_bytes. The first of two tiers has a link to the
 * host's memory (base/link.h), where the second one is. Model and memories must outlive the cache.
 * The store is closed before the cache, whose slots its reads write to. Fails with FM_ERR_NOMEM. */
int expert_cache_open(const struct model *model, struct expert_store *store,
                      const struct cache_tier *tiers, uint32_t n_tiers, enum heat_policy policy,
                      struct expert_cache **out, struct fm_error *err);
/* Accepts NULL. No plan is open, and the store is closed already, so no read is under way. */
void expert_cache_close(struct expert_cache *cache);

/* Returns the memory that a tier of n_slots takes, bookkeeping included. */
uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots);
/* Returns the host's memory that reads into a tier in another memory take at a time. */
uint64_t expert_cache_piece_bytes(const struct model *model);

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
/* The same with the tier that each is in; CACHE_TIERS: none. */
void expert_cache_tiers(struct expert_cache *cache, uint32_t layer, uint8_t *tiers);

struct expert_item {
    uint32_t index;   /* into the uses given to begin */
    /* In the tier's memory. Operations that read it are queued before the next call of next or
     * end. */
    const void *slot;
    uint32_t tier;
    bool is_arriving; /* it is on its way to the first tier: operations that read it come after
                       * memory_link.join */
};

/* Copies an expert of the second tier, which was handed out, to a place in the first one's memory
 * beside the cache: transfers it after the operations before `mark` (base/link.h). */
void expert_cache_send(struct expert_cache *cache, const struct expert_item *item, void *to,
                       uint64_t mark);
/* The same before a plan of its layer is open. The expert may be evicted meanwhile. */
void expert_cache_send_ahead(struct expert_cache *cache, uint32_t layer, uint32_t expert, void *to,
                             uint64_t mark);
/* Returns whether an expert is in the second tier. No plan is open. */
bool expert_cache_is_below(struct expert_cache *cache, uint32_t layer, uint32_t expert);
/* Makes operations that are queued from now on wait for all experts that are on their way. */
void expert_cache_join(struct expert_cache *cache);
/* Waits for them: the host may read what was handed out as arriving. */
void expert_cache_await(struct expert_cache *cache);

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
/* The same while somebody still reads experts of the second tier that were handed out last. They
 * stay where they are until expert_cache_let_go, which comes before the next begin. None of them
 * waits for its checksum (expert_cache_is_verified). */
void expert_cache_end_in_use(struct expert_cache *cache);
void expert_cache_let_go(struct expert_cache *cache);
bool expert_cache_is_verified(const struct expert_cache *cache);
/* Returns whether `next` has nothing more to hand out or to report. */
bool expert_cache_is_over(const struct expert_cache *cache);

/* Waits until the checksums of all experts that were handed out are known. Must be called after end
 * and before the next begin; the caller may compute in between. Returns 0 when all are right.
 * Returns a negative code for one damaged expert and sets *index into the uses given to begin; call
 * it again then, because there may be more. */
int expert_cache_verify(struct expert_cache *cache, uint32_t *index, struct fm_error *err);

/* ---- whole layers ---------------------------------------------------------------------------- */

/* Returns whether all experts of a layer are resident and verified. *generation is above 0 then,
 * and changes whenever the bytes of one of them are elsewhere. It says nothing when this returns
 * false. Does not wait. No plan is open. */
bool expert_cache_has_all(struct expert_cache *cache, uint32_t layer, uint64_t *generation);
/* The same if they may be in either of two tiers, the second on locked pages, and operations can
 * read those. expert_cache_look first: what has arrived meanwhile is read in the first tier. */
bool expert_cache_reaches(struct expert_cache *cache, uint32_t layer, uint64_t *generation);
void expert_cache_look(struct expert_cache *cache);
/* Says where the experts of such a layer are: bases[expert] bytes behind expert_cache_origin, which
 * never changes; counted round if they lie before it. */
void expert_cache_bases(struct expert_cache *cache, uint32_t layer, uint64_t *bases);
const void *expert_cache_origin(struct expert_cache *cache);
/* Called when operations have been queued that use such layers. Slots keep their bytes until these
 * operations are done. */
void expert_cache_use_all(struct expert_cache *cache);
/* Counts what such operations have used, as expert_cache_begin does: all of it was resident. The
 * cache copies it and works it in before it next looks at heat, or when expert_cache_catch_up is
 * called. That is for a time when the backend is busy. No plan is open. */
void expert_cache_count(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n);
void expert_cache_catch_up(struct expert_cache *cache);
/* Counts the experts of one token, which a plan or expert_cache_count had without a use: a draft
 * that was accepted. Hits and misses were counted there. No plan is open. */
void expert_cache_accept(struct expert_cache *cache, uint32_t layer, const struct expert_use *uses,
                         uint32_t n);
/* Reads all experts that are not resident, layer by layer, in the background: if all of them fit,
 * and if the memory is not the host's, where a layer gains nothing by being whole. A cache that
 * grows does so again. Called once, after expert_cache_warm or instead of it. */
void expert_cache_read_all(struct expert_cache *cache);

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
/* Tells that the plans from now on are of others than the prompt, which comes back to its layer:
 * they leave the sweep's reads in the queue. Or that they are the prompt's again. */
void expert_cache_keep_sweep(struct expert_cache *cache, bool keeps);
/* Starts no further guess, sweep or warm-up read. Called before the store is closed, which waits
 * for the reads that have begun. */
void expert_cache_stop_warming(struct expert_cache *cache);

/* ---- size ------------------------------------------------------------------------------------ */

/* Changes the number of slots of a tier in use, from 1 to the number given to open. No plan is
 * open. More slots are available at once, if their memory is still there: returns how many the tier
 * has then. For fewer slots, call expert_cache_shrink between plans until it returns true: it
 * evicts the coldest experts, moves the others into the slots that stay, and gives the freed memory
 * back in whole pages. One call copies about move_bytes and waits for nothing; a slot that is being
 * read is freed by a later call. */
uint32_t expert_cache_resize(struct expert_cache *cache, uint32_t tier, uint32_t n_slots);
bool expert_cache_shrink(struct expert_cache *cache, uint64_t move_bytes);
/* Shrinks to the requested size now. Waits for reads that are under way. */
void expert_cache_settle(struct expert_cache *cache);

struct expert_cache_stats {
    uint64_t n_slots; /* in use, empty or not; of all tiers */
    uint64_t n_hits, n_misses; /* experts named by plans: resident, or not */
    uint64_t n_hits_below;     /* of the hits: in the second tier */
    uint64_t n_plans_read;     /* plans with misses */
    uint64_t n_moved_up, n_moved_down; /* transfers between the tiers */
    uint64_t n_sent; /* for one use, or read by operations where they are */
    uint64_t n_late;           /* misses whose guess was being read */
    uint64_t n_guesses, n_guesses_used, n_warmed; /* guesses that landed, without warm-up */
    uint64_t bytes_read;       /* of experts that landed */
    uint64_t wait_ns;          /* time that next waited for a read */
};

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats);

/* Returns the hit rate that a cache of n_slots would have had on all tokens decoded so far
 * (ghosts.h); negative before the first token. */
double expert_cache_hits_with(struct expert_cache *cache, uint64_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
