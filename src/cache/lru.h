/* Least recently used: an order over slot numbers. Slots outside the list are pinned or busy and
 * cannot be victims. All operations are O(1). Belongs to the thread that drives the plans. */
#ifndef FLASHMOE_CACHE_LRU_H
#define FLASHMOE_CACHE_LRU_H

#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LRU_NONE UINT32_MAX

struct lru {
    uint32_t *older, *newer; /* [n_slots] */
    uint32_t oldest, newest;
};

int lru_init(struct lru *lru, uint32_t n_slots, struct fm_error *err);
void lru_clear(struct lru *lru);

void lru_add_newest(struct lru *lru, uint32_t slot); /* must not be in the list */
void lru_remove(struct lru *lru, uint32_t slot);     /* must be in the list */
/* Takes the oldest one out; LRU_NONE when the list is empty. */
uint32_t lru_take_oldest(struct lru *lru);

#ifdef __cplusplus
}
#endif
#endif
