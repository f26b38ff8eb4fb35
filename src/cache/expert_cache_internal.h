/* What the files of the expert cache share: its struct, and how slots are filled and emptied. The
 * cache owns everything in the struct except model, store and memory. The comment on `lock` says
 * which thread may touch what. */
#ifndef FLASHMOE_CACHE_EXPERT_CACHE_INTERNAL_H
#define FLASHMOE_CACHE_EXPERT_CACHE_INTERNAL_H

#include <pthread.h>

#include "cache/expert_cache.h"
#include "cache/ghosts.h"
#include "cache/tiers.h"
#include "cache/victims.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NO_SLOT UINT32_MAX
/* Maximum number of experts being read at a time, by purpose. */
#define READS_NEEDED 64
#define READS_TO_DEVICE 16 /* of the needed ones: each has a piece of the host's memory */
#define READS_GUESSED 2 /* few: a guess that has begun is read to its end, even when it was wrong */
#define READS_BACKGROUND 8
#define READS_AT_ONCE (READS_TO_DEVICE + READS_GUESSED + READS_BACKGROUND) /* to a device */
#define N_READS (READS_NEEDED + READS_GUESSED + READS_BACKGROUND)

enum slot_state {
    SLOT_EMPTY,
    SLOT_QUEUED,  /* has an expert and waits in a background queue; no bytes yet */
    SLOT_READING, /* its read has begun */
    SLOT_LANDED,  /* all bytes are there; the checksum is not known yet */
    SLOT_READY,   /* holds a verified expert */
    SLOT_FAILED,  /* its read has failed */
};

struct slot {
    enum slot_state state;
    bool is_evictable; /* in the eviction order: ready and not pinned */
    bool is_wanted;  /* the plan waits for it */
    bool is_current; /* handed out by the last call of next */
    bool is_unverified; /* its checksum was not known when the plan took it */
    bool is_listed;     /* in the landed list */
    bool is_guess;   /* read by guess and not used yet */
    bool is_in_guesses;   /* while queued: in the queue of guesses, not in the bulk queue */
    uint32_t layer, expert;
    /* wanted or pinned: index into the plan's uses; queued: index into the queue */
    uint32_t plan_index;
    uint32_t next;       /* in the landed list or the empty list */
    uint32_t before;     /* in the empty list */
    /* Of an expert in the first tier: the empty slot of the second that still has its bytes; and
     * back. Plus 1; 0: none. */
    uint32_t twin;
    uint32_t read;       /* index of its read while it is being read */
    uint64_t last_use;   /* the fence after the operations that use its bytes; 0: none do */
    uint64_t last_move;  /* the number of the last transfer from or to it */
};

/* The slots in one memory. The slots of all tiers are numbered together. */
struct tier {
    const struct memory *memory;
    char *pool;           /* [n_max, slot_bytes], from `memory` */
    uint32_t first;       /* the number of its first slot */
    uint32_t n_max;
    uint32_t n_slots;     /* its slots from here on are empty and their memory is given back */
    uint32_t n_target;    /* its slots from here on are not filled: n_slots shrinks to it */
    uint32_t first_empty, last_empty; /* those whose bytes may be wanted again come last */
    struct victims victims;
};

/* An expert that was handed out and then found damaged, and the read that can explain it. */
struct damage {
    uint32_t plan_index, read;
};

/* The plan in progress. */
struct plan {
    bool is_open;
    uint32_t layer;
    const struct expert_use *uses;
    uint32_t *hit_slots; /* [n_hits]: pinned; when the plan is closed, the experts */
    uint32_t n_hits, next_hit;
    uint32_t *missing; /* [n_missing]: indices into uses */
    uint32_t n_missing, next_missing;
    uint32_t n_in_flight;
    /* These stay valid after end until verify has returned 0. */
    uint32_t n_unverified;
    struct damage damage[READS_NEEDED];
    uint32_t n_damaged; /* not reported yet */
    uint32_t *current; /* [n_current]: the slots handed out by the last call of next */
    uint32_t n_current;
};

/* Experts that are read one after another while no plan waits for them. An expert gets its slot
 * when it is queued. */
struct read_queue {
    uint32_t *slots; /* [n], capacity n_max; NO_SLOT: cancelled */
    uint32_t n, next;
    uint32_t idle_reads[READS_BACKGROUND]; /* a stack */
    uint32_t n_idle_reads;
};

struct background {
    /* Guesses for the next layer of a token, the most probable first; served before the bulk queue.
     * The bulk queue has hot experts from an earlier process, or a prompt's sweep, in disk
     * order. */
    struct read_queue guesses, bulk;
    bool is_sweep; /* the bulk queue is a sweep: its plan cancels what it does not want */
    bool keeps_sweep; /* the next plans are not its plan */
    bool is_stopped;
};

/* Uses that are counted later. */
struct use_log {
    struct logged_layer {
        uint32_t layer, n_tokens, n; /* n: uses */
    } *layers; /* [n_layers], capacity n_expert_layers */
    struct expert_use *uses; /* [n_uses], those of the first layer first; capacity max_uses */
    uint32_t n_layers, n_uses, max_uses;
};

/* The log holds what so many rows use. */
#define LOG_ROWS 8

struct expert_cache {
    const struct model *model;
    struct expert_store *store;
    uint32_t n_max, n_experts; /* slots of all tiers */
    struct tier tiers[CACHE_TIERS];
    uint32_t n_tiers;
    struct transfers transfers;
    struct slot *slots; /* [n_max] */
    uint32_t *where;    /* [n_expert_layers, n_experts]: slot or NO_SLOT */
    uint64_t *generations; /* [n_expert_layers]: how often the bytes of an expert changed place */
    uint64_t last_use;  /* the fence after the operations that use whole layers; 0: none do */
    bool reads_all;     /* also when it grows */
    struct heat heat;
    struct ghosts ghosts;
    struct plan plan;
    struct use_log log; /* empty where the memory is the host's */
    struct expert_cache_stats stats;
    struct expert_read *reads;           /* [N_READS]: needed, guesses, bulk, in this order */
    uint32_t read_slots[N_READS];        /* the slot of each read; set before submit */
    uint32_t idle_reads[READS_NEEDED];   /* a stack */
    uint32_t n_idle_reads;

    /* Covers what reader threads touch: a slot's state from QUEUED to READY or FAILED, the landed
     * list and the background queues. Everything else belongs to the thread that drives the
     * plans. */
    pthread_mutex_t lock;
    pthread_cond_t has_landed;
    uint32_t first_landed, last_landed;
    struct background background;
};

static inline uint32_t *where_of(struct expert_cache *cache, uint32_t layer, uint32_t expert)
{
    return &cache->where[(size_t)layer * cache->n_experts + expert];
}

static inline uint32_t tier_number(const struct expert_cache *cache, uint32_t slot)
{
    return cache->n_tiers > 1 && slot >= cache->tiers[1].first;
}

static inline struct tier *tier_of(struct expert_cache *cache, uint32_t slot)
{
    return &cache->tiers[tier_number(cache, slot)];
}

static inline void *slot_memory(struct expert_cache *cache, uint32_t slot)
{
    const struct tier *tier = tier_of(cache, slot);
    return tier->pool + (size_t)(slot - tier->first) * cache->model->expert_slot_bytes;
}

/* Returns the tier that the next missing expert is read into. */
static inline struct tier *cache_tier_to_fill(struct expert_cache *cache)
{
    return &cache->tiers[cache->tiers[0].first_empty == NO_SLOT ? cache->n_tiers - 1 : 0];
}

/* Heat that is comparable between layers. */
static inline double slot_heat(const struct expert_cache *cache, uint32_t slot)
{
    const struct slot *s = &cache->slots[slot];
    return heat_key(&cache->heat, s->layer, s->expert) - heat_age(&cache->heat, s->layer);
}

/* ---- expert_cache.c ---- */

/* Starts the read of a slot's expert. Any thread. */
void cache_submit(struct expert_cache *cache, uint32_t read, uint32_t slot,
                  enum read_urgency urgency);
/* Assigns an empty slot of a tier to an expert that has none. There must be an empty slot. Returns
 * the slot; its bytes are not there yet, and the host may write them now. */
uint32_t cache_fill_empty(struct expert_cache *cache, struct tier *tier, uint32_t layer,
                          uint32_t expert, enum slot_state state);
/* Assigns this empty slot. */
void cache_assign(struct expert_cache *cache, uint32_t slot, uint32_t layer, uint32_t expert,
                  enum slot_state state);
/* As cache_fill_empty, for a transfer: the host must not write the bytes, and operations that use
 * whole layers may still read them. */
uint32_t cache_assign_empty(struct expert_cache *cache, struct tier *tier, uint32_t layer,
                            uint32_t expert, enum slot_state state);
void cache_make_empty(struct expert_cache *cache, uint32_t slot);
/* Evicts the expert of a slot that is in the eviction order. */
void cache_drop_victim(struct expert_cache *cache, uint32_t slot);
/* Makes a slot that holds an expert evictable. */
void cache_release(struct expert_cache *cache, uint32_t slot);
/* Takes guesses that have landed into the eviction order. No plan waits for anything. */
void cache_collect_guesses(struct expert_cache *cache);
/* Waits until a slot that the plan does not wait for has landed, and handles it. */
void cache_wait_for_other(struct expert_cache *cache);

/* ---- expert_cache_all.c ---- */

/* Counts tokens that pass a layer. Called first, then cache_count_use for each of its experts while
 * that is not in the eviction order, then victims_refresh. */
void cache_count_tokens(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n);
void cache_count_use(struct expert_cache *cache, uint32_t layer, const struct expert_use *use);

/* ---- expert_cache_size.c ---- */

/* Returns the slots that each layer keeps in a tier of n_slots. */
uint32_t cache_floor(const struct expert_cache *cache, const struct tier *tier, uint32_t n_slots);

/* ---- background.c ---- */

/* Returns the slot to read next with this read. Returns NO_SLOT and makes the read idle when
 * nothing is queued. The caller holds the lock, on a reader thread. */
uint32_t background_next(struct expert_cache *cache, uint32_t read);
/* Cancels a queued read and empties its slot. Returns false when the read has begun. */
bool background_cancel(struct expert_cache *cache, uint32_t slot);
/* Cancels the read that was queued last, so that a needed expert can have its slot. */
bool background_cancel_last(struct expert_cache *cache);
/* Cancels the guesses for a plan that has begun and does not want them, unless their read has
 * begun. */
void background_end_guesses(struct expert_cache *cache);
/* Appends all experts that have no slot to the bulk queue, layer by layer, if the cache can hold
 * all experts. No plan is open. */
void background_read_all(struct expert_cache *cache);
/* Fills the stacks of idle reads. The queues have their memory already. */
void background_init(struct expert_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
