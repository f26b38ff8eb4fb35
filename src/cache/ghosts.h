/* Ghosts estimate the hit rate that caches of other sizes would have had on the tokens decoded so
 * far.
 *
 * Heat depends only on uses, not on what is resident. So one order of all experts serves every
 * cache size: at the time of a use, a cache of C slots holds the C hottest experts, and the
 * expert's rank tells whether it hits. This is exact for LRU. With LCP a real cache also keeps for
 * a while what it had to admit without such heat, and layers prefer their own experts by a margin,
 * so the estimate is off by a few points; a test compares it with a replay of the whole cache. A
 * cache with room for one token's experts hits only what the next token reuses. Up to twice that
 * size the curve is interpolated.
 *
 * An expert's first use is a miss in every size. Only tokens decoded one at a time are counted;
 * those of a prompt only change the order.
 *
 * Keys are grouped into narrow buckets. A Fenwick tree counts them over a window of the latest
 * keys; older keys share the last bucket. A use takes O(log buckets). The struct owns its array;
 * nothing allocates after ghosts_init. It belongs to the thread that drives the plans. */
#ifndef FLASHMOE_CACHE_GHOSTS_H
#define FLASHMOE_CACHE_GHOSTS_H

#include "cache/heat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GHOSTS_BUCKETS 4096
#define GHOSTS_STEPS 256 /* resolution of the curve */

struct ghosts {
    const struct heat *heat;
    uint64_t n_all;         /* n_layers * n_experts */
    uint32_t uses_per_token; /* in all layers together */
    double buckets_per_key;         /* bucket width is 1 / this */
    int64_t *buckets;       /* [n_layers, n_experts]; INT64_MIN: never used */
    int64_t top;            /* the highest bucket of the window */
    /* experts per bucket; bucket b is at index b modulo GHOSTS_BUCKETS */
    uint32_t counts[GHOSTS_BUCKETS];
    uint32_t tree[GHOSTS_BUCKETS + 1]; /* Fenwick tree over the same indexes */
    uint64_t n_uses;                   /* uses recorded, including first uses */
    uint64_t n_reused;                  /* of them, also used by the layer's previous token */
    uint64_t ranks[GHOSTS_STEPS];      /* uses by rank of the expert */
};

/* Allocates the array. The heat must outlive the ghosts. Fails with FM_ERR_NOMEM. */
int ghosts_init(struct ghosts *g, const struct heat *heat, uint32_t uses_per_token,
                struct fm_error *err);
void ghosts_clear(struct ghosts *g);
uint64_t ghosts_bytes(uint32_t n_layers, uint32_t n_experts);

/* Takes the order of all experts from the heat. Called after the heat was restored. */
void ghosts_restore(struct ghosts *g);

/* Records a use by a single token. Called before heat_advance and before the heat of any expert of
 * the plan changes. */
void ghosts_record_use(struct ghosts *g, uint32_t layer, uint32_t expert);
/* Updates the order after the heat of an expert has changed. */
void ghosts_update(struct ghosts *g, uint32_t layer, uint32_t expert);

/* Returns the share of recorded uses that a cache of n_slots would have hit; negative when there
 * are none. */
double ghosts_hit_rate(const struct ghosts *g, uint64_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
