/* The empty slots of each tier, as a list. An expert that moved to the first tier leaves its bytes
 * in a slot of the second. That slot is empty, and the last to be taken: if the expert comes back
 * while its bytes are there, nothing has to travel. */
#include <assert.h>

#include "cache/empty_slots.h"
#include "cache/expert_cache_internal.h"

void empty_slots_add(struct expert_cache *cache, uint32_t i, bool is_last)
{
    struct tier *tier = tier_of(cache, i);
    struct slot *slot = &cache->slots[i];
    assert(slot->state == SLOT_EMPTY);
    if (i - tier->first >= tier->n_target)
        return;
    slot->before = is_last ? tier->last_empty : NO_SLOT;
    slot->next = is_last ? NO_SLOT : tier->first_empty;
    *(slot->before != NO_SLOT ? &cache->slots[slot->before].next : &tier->first_empty) = i;
    *(slot->next != NO_SLOT ? &cache->slots[slot->next].before : &tier->last_empty) = i;
}

void empty_slots_remove(struct expert_cache *cache, uint32_t i)
{
    struct tier *tier = tier_of(cache, i);
    const struct slot *slot = &cache->slots[i];
    *(slot->before != NO_SLOT ? &cache->slots[slot->before].next : &tier->first_empty) =
        slot->next;
    *(slot->next != NO_SLOT ? &cache->slots[slot->next].before : &tier->last_empty) =
        slot->before;
}

void empty_slots_list(struct expert_cache *cache, struct tier *tier)
{
    tier->first_empty = tier->last_empty = NO_SLOT;
    for (uint32_t i = tier->first; i < tier->first + tier->n_max; i++) {
        if (cache->slots[i].state != SLOT_EMPTY)
            continue;
        empty_slots_part(cache, i); /* some give their memory back */
        empty_slots_add(cache, i, true);
    }
}

void empty_slots_pair(struct expert_cache *cache, uint32_t above, uint32_t below)
{
    assert(tier_number(cache, above) == 0 && tier_number(cache, below) == 1);
    assert(cache->slots[below].state == SLOT_EMPTY && cache->slots[above].state == SLOT_READY);
    cache->slots[above].twin = below + 1;
    cache->slots[below].twin = above + 1;
}

void empty_slots_part(struct expert_cache *cache, uint32_t i)
{
    const uint32_t twin = cache->slots[i].twin;
    if (twin == 0)
        return;
    assert(cache->slots[twin - 1].twin == i + 1);
    cache->slots[twin - 1].twin = cache->slots[i].twin = 0;
    /* Whoever reads the bytes below, because they are not above yet, must look again. */
    cache->generations[cache->slots[tier_number(cache, i) == 0 ? i : twin - 1].layer]++;
}
