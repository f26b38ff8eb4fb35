/* Ghosts: what caches of other sizes would have hit on the tokens decoded so far.
 *
 * The heat of an expert depends on its uses alone and not on what is in memory, so one order of all
 * experts, resident or not, serves caches of every size: at the moment of a use, a cache with room
 * for C experts has the C hottest, and its hit or miss is told by the expert's rank. That is exact
 * for LRU. With LCP a cache also holds for a while what it had to admit without such heat, and
 * layers prefer their own experts by a margin: it is right within some points, which a test holds
 * against the replay of the whole cache. A cache that has room for one token's experts and no more
 * hits what the next token uses again, and nothing else; up to twice that size the curve is a line
 * between the two.
 *
 * An expert's first use misses in every size. Only single tokens are counted; those of a prompt
 * change the order alone.
 *
 * Keys are kept in narrow buckets, counted in a Fenwick tree over a window of the latest keys;
 * older ones share the last bucket. A use takes O(log buckets). Belongs to the thread that drives
 * the plans. Nothing allocates after ghosts_init. */
#ifndef FLASHMOE_CACHE_GHOSTS_H
#define FLASHMOE_CACHE_GHOSTS_H

#include "cache/heat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GHOSTS_BUCKETS 4096
#define GHOSTS_STEPS 256 /* of the curve */

struct ghosts {
    const struct heat *heat;
    uint64_t n_all;         /* n_layers * n_experts */
    uint32_t uses_per_token; /* of all layers */
    double per_key;         /* buckets */
    int64_t *buckets;       /* [n_layers, n_experts]; INT64_MIN: never used */
    int64_t top;            /* the latest bucket of the window */
    uint32_t counts[GHOSTS_BUCKETS];   /* experts; the bucket b is at b modulo their number */
    uint32_t tree[GHOSTS_BUCKETS + 1]; /* Fenwick, over the same places */
    uint64_t n_uses;                   /* counted, with those that no size would have hit */
    uint64_t n_again;                  /* of them, used by the layer's last token too */
    uint64_t ranks[GHOSTS_STEPS];      /* uses, by the expert's rank */
};

/* The heat must outlive it. */
int ghosts_init(struct ghosts *g, const struct heat *heat, uint32_t uses_per_token,
                struct fm_error *err);
void ghosts_clear(struct ghosts *g);
uint64_t ghosts_bytes(uint32_t n_layers, uint32_t n_experts);

/* Takes the place of all experts from the heat: after it was restored. */
void ghosts_restore(struct ghosts *g);

/* A use by a single token: before heat_pass, and before any expert of the plan has its new heat. */
void ghosts_count(struct ghosts *g, uint32_t layer, uint32_t expert);
/* The expert has its new heat. */
void ghosts_move(struct ghosts *g, uint32_t layer, uint32_t expert);

/* The share of the uses counted that a cache of n_slots would have hit; negative without any. */
double ghosts_hit_rate(const struct ghosts *g, uint64_t n_slots);

#ifdef __cplusplus
}
#endif
#endif
