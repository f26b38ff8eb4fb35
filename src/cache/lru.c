#include "cache/lru.h"

#include "base/mem.h"

int lru_init(struct lru *lru, uint32_t n_slots, struct fm_error *err)
{
    *lru = (struct lru){.oldest = LRU_NONE, .newest = LRU_NONE};
    lru->older = mem_new(n_slots, sizeof *lru->older, "the cache order", err);
    lru->newer = mem_new(n_slots, sizeof *lru->newer, "the cache order", err);
    return lru->older == NULL || lru->newer == NULL ? FM_ERR_NOMEM : 0;
}

void lru_clear(struct lru *lru)
{
    mem_free(lru->older);
    mem_free(lru->newer);
}

void lru_add_newest(struct lru *lru, uint32_t slot)
{
    lru->older[slot] = lru->newest;
    lru->newer[slot] = LRU_NONE;
    if (lru->newest != LRU_NONE)
        lru->newer[lru->newest] = slot;
    else
        lru->oldest = slot;
    lru->newest = slot;
}

void lru_remove(struct lru *lru, uint32_t slot)
{
    uint32_t older = lru->older[slot], newer = lru->newer[slot];
    if (older != LRU_NONE)
        lru->newer[older] = newer;
    else
        lru->oldest = newer;
    if (newer != LRU_NONE)
        lru->older[newer] = older;
    else
        lru->newest = older;
}

uint32_t lru_take_oldest(struct lru *lru)
{
    uint32_t slot = lru->oldest;
    if (slot != LRU_NONE)
        lru_remove(lru, slot);
    return slot;
}
