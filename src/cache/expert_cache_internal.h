/* What the files of the expert cache share: its state, and how slots are filled and emptied. */
#ifndef FLASHMOE_CACHE_EXPERT_CACHE_INTERNAL_H
#define FLASHMOE_CACHE_EXPERT_CACHE_INTERNAL_H

#include <pthread.h>

#include "cache/expert_cache.h"
#include "cache/ghosts.h"
#include "cache/victims.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NO_SLOT UINT32_MAX
/* Experts on their way at a time, by what they are read for. */
#define READS_NEEDED 64
#define READS_GUESSED 2 /* few: one that has begun is read though the layer has chosen others */
#define READS_BACKGROUND 8
#define N_READS (READS_NEEDED + READS_GUESSED + READS_BACKGROUND)

enum slot_state {
    SLOT_EMPTY,
    SLOT_QUEUED,  /* to be read in the background: has an expert and no bytes */
    SLOT_READING, /* its read is under way */
    SLOT_LANDED,  /* its bytes are there, and it is not known yet whether they are the expert's */
    SLOT_READY,   /* holds an expert */
    SLOT_FAILED,  /* its read has failed */
};

struct slot {
    enum slot_state state;
    bool is_ordered; /* among the victims: ready, and no plan has pinned it */
    bool is_wanted;  /* by the plan, which waits for it */
    bool is_current; /* handed out last */
    bool is_unverified; /* handed out, or no longer wanted, before its checksum was known */
    bool is_listed;     /* among the landed slots */
    bool is_guess;   /* read by guess and not used since */
    bool is_ahead;   /* while queued: among the guesses */
    uint32_t layer, expert;
    uint32_t plan_index; /* while wanted or pinned; while queued its place there */
    uint32_t next;       /* in the list of landed slots, or of empty ones */
    uint32_t read;       /* while it is being read */
    uint64_t last_use;   /* the fence behind the operations that use its bytes; 0: none do */
};

/* An expert that was handed out and turned out to be damaged, and the read that tells how. */
struct damage {
    uint32_t plan_index, read;
};

/* The plan in progress. */
struct plan {
    bool is_open;
    uint32_t layer;
    const struct expert_use *uses;
    uint32_t *hit_slots; /* [n_hits]: pinned, not yet handed out */
    uint32_t n_hits, next_hit;
    uint32_t *missing; /* [n_missing]: indices into uses */
    uint32_t n_missing, next_missing;
    uint32_t n_in_flight;
    /* Also when the plan is closed, until it is verified. */
    uint32_t n_unverified;
    struct damage damage[READS_NEEDED];
    uint32_t n_damaged; /* not yet reported */
    uint32_t *current; /* [n_current]: the slots handed out last */
    uint32_t n_current;
};

/* Experts to be read one behind another while nobody waits for them. The slots are taken at once
 * and hold no bytes until their turn comes. */
struct read_queue {
    uint32_t *slots; /* [n], room for n_max; NO_SLOT: not any more */
    uint32_t n, next;
    uint32_t idle_reads[READS_BACKGROUND]; /* a stack */
    uint32_t n_idle_reads;
};

struct background {
    /* What the next layer of a token will probably use, the likeliest first, and before all else;
     * what an earlier run found hot or a prompt comes to, in the order of the disk. */
    struct read_queue guesses, others;
    bool is_sweep; /* the others are a prompt's: what its plan does not want is not read */
    bool is_stopped;
};

struct expert_cache {
    const struct model *model;
    struct expert_store *store;
    uint32_t n_max, n_experts;
    uint32_t n_slots;   /* those from here on are empty, and their memory is given back */
    uint32_t n_wanted;  /* those from here on are not filled any more: n_slots comes down to it */
    const struct memory *memory;
    char *pool;         /* [n_max, slot_bytes] in that memory */
    struct slot *slots; /* [n_max] */
    uint32_t *where;    /* [n_expert_layers, n_experts]: slot or NO_SLOT */
    uint32_t first_empty;
    struct heat heat;
    struct victims victims;
    struct ghosts ghosts;
    struct plan plan;
    struct expert_cache_stats stats;
    struct expert_read *reads;           /* [N_READS]: needed ones, guesses, in the background */
    uint32_t read_slots[N_READS];        /* the slot of each; set before it is submitted */
    uint32_t idle_reads[READS_NEEDED];   /* a stack */
    uint32_t n_idle_reads;

    /* The lock covers what reader threads touch: a slot's way from QUEUED to READING to LANDED to
     * READY or FAILED, the landed list and the background. Everything else belongs to the thread
     * that drives the plans. */
    pthread_mutex_t lock;
    pthread_cond_t has_landed;
    uint32_t first_landed, last_landed;
    struct background background;
};

static inline uint32_t *where_of(struct expert_cache *cache, uint32_t layer, uint32_t expert)
{
    return &cache->where[(size_t)layer * cache->n_experts + expert];
}

static inline void *slot_memory(struct expert_cache *cache, uint32_t slot)
{
    return cache->pool + (size_t)slot * cache->model->expert_slot_bytes;
}

/* ---- expert_cache.c ---- */

/* Reads the expert of a slot; any thread. */
void cache_submit(struct expert_cache *cache, uint32_t read, uint32_t slot,
                  enum read_urgency urgency);
/* An empty slot becomes that of an expert nobody has; its bytes are still to come. */
uint32_t cache_fill_empty(struct expert_cache *cache, uint32_t layer, uint32_t expert,
                          enum slot_state state);
void cache_make_empty(struct expert_cache *cache, uint32_t slot);
/* Drops an expert that may be dropped. */
void cache_drop_victim(struct expert_cache *cache, uint32_t slot);

/* ---- background.c ---- */

/* With the lock held, on a reader thread: the slot to read next with this read, or NO_SLOT, and
 * then the read is idle. */
uint32_t background_next(struct expert_cache *cache, uint32_t read);
/* Gives up to read a slot, unless its read has begun. */
bool background_give_up(struct expert_cache *cache, uint32_t slot);
/* Empties the last slot that waits: what is needed goes before what may be. */
bool background_give_up_last(struct expert_cache *cache);
/* Behind a plan's begin: gives up what was foreseen for it, is not wanted and has not begun. */
void background_end_ahead(struct expert_cache *cache);
/* At open, with the memory of the queues. */
void background_init(struct expert_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
