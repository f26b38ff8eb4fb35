/* The size of a cache: slots that are given back, and slots that are taken again. */
#include <assert.h>

#include "base/mem.h"
#include "cache/empty_slots.h"
#include "cache/expert_cache_internal.h"

static bool is_empty(struct expert_cache *cache, uint32_t i)
{
    pthread_mutex_lock(&cache->lock);
    const bool is = cache->slots[i].state == SLOT_EMPTY;
    pthread_mutex_unlock(&cache->lock);
    return is;
}

/* Moves the expert of a slot that is given back into an empty slot. */
static void move_expert(struct expert_cache *cache, uint32_t from)
{
    const struct slot old = cache->slots[from];
    struct tier *tier = tier_of(cache, from);
    cache_drop_victim(cache, from);
    const uint32_t to = cache_assign_empty(cache, tier, old.layer, old.expert, SLOT_READY);
    assert(to - tier->first < tier->n_target);
    memory_wait(cache->tiers[0].memory, cache->last_use);
    tiers_pin(cache, to);
    expert_cache_join(cache); /* transfers may still read the slot or write the expert */
    memory_copy(tier->memory, slot_memory(cache, to), slot_memory(cache, from),
                cache->model->expert_layers[old.layer].record.bytes);
    cache->slots[from].last_use = cache->slots[to].last_use = memory_fence(tier->memory);
    cache->slots[to].is_guess = old.is_guess;
    cache_release(cache, to);
}

/* Evicts an expert: from the first of two tiers to the second, or altogether. */
static void evict(struct expert_cache *cache, uint32_t i, uint64_t *moves_left)
{
    if (cache->n_tiers < 2 || tier_number(cache, i) == 1)
        cache_drop_victim(cache, i);
    else if (tiers_move_down(cache, i) && *moves_left > 0)
        (*moves_left)--;
}

/* Empties a slot that is given back. Evicts the coldest experts of the whole tier until this one
 * is among them or can move. Returns false when the slot cannot be emptied now: it is being read,
 * or no move is left. */
static bool vacate(struct expert_cache *cache, uint32_t i, uint64_t *moves_left)
{
    const struct tier *tier = tier_of(cache, i);
    const bool moves_down = cache->n_tiers > 1 && tier == &cache->tiers[0];
    if (!cache->slots[i].is_evictable)
        return background_cancel(cache, i) || is_empty(cache, i);
    for (;;) { /* each turn evicts one spare expert */
        const uint32_t spare = victims_spare(&tier->victims);
        if (tier->first_empty != NO_SLOT && *moves_left > 0) {
            move_expert(cache, i);
            (*moves_left)--;
            return true;
        }
        const bool is_last = spare == i || spare == NO_VICTIM;
        if (*moves_left == 0 && (moves_down || !is_last))
            return false;
        evict(cache, is_last ? i : spare, moves_left);
        if (is_last)
            return true;
    }
}

/* Returns the bytes of a pool that n slots occupy, rounded up to whole pages. */
static uint64_t pool_end(const struct expert_cache *cache, const struct tier *tier, uint32_t n)
{
    const uint64_t slot_bytes = cache->model->expert_slot_bytes;
    const uint64_t all = tier->n_max * slot_bytes / MEM_PAGE * MEM_PAGE;
    const uint64_t end = mem_round_up(n * slot_bytes, mem_bulk_page(tier->n_max * slot_bytes));
    return end < all ? end : all;
}

static bool shrink_tier(struct expert_cache *cache, struct tier *tier, uint64_t move_bytes)
{
    assert(tier->n_target <= tier->n_slots && tier->n_slots <= tier->n_max);
    if (tier->n_slots == tier->n_target)
        return true;
    expert_cache_catch_up(cache);
    cache_collect_guesses(cache);
    uint64_t moves_left = 1 + move_bytes / cache->model->expert_slot_bytes;
    const uint64_t end = pool_end(cache, tier, tier->n_slots);
    tiers_settle(cache);
    memory_wait(cache->tiers[0].memory, cache->last_use);
    while (tier->n_slots > tier->n_target &&
           vacate(cache, tier->first + tier->n_slots - 1, &moves_left))
        tier->n_slots--;
    const uint64_t now = pool_end(cache, tier, tier->n_slots);
    tiers_settle(cache);
    tiers_unpin(cache, tier, now, end);
    tier->memory->ops->give_back(tier->memory, tier->pool + now, end - now);
    return tier->n_slots == tier->n_target;
}

bool expert_cache_shrink(struct expert_cache *cache, uint64_t move_bytes)
{
    bool is_done = true;
    assert(!cache->plan.is_open);
    for (uint32_t i = 0; i < cache->n_tiers; i++)
        is_done &= shrink_tier(cache, &cache->tiers[i], move_bytes);
    return is_done;
}

void expert_cache_settle(struct expert_cache *cache)
{
    while (!expert_cache_shrink(cache, UINT64_MAX))
        cache_wait_for_other(cache);
}

/* Only the last tier has a floor: an expert that leaves another one is not lost. */
uint32_t cache_floor(const struct expert_cache *cache, const struct tier *tier, uint32_t n_slots)
{
    const struct model *model = cache->model;
    if (tier != &cache->tiers[cache->n_tiers - 1])
        return 0;

    const uint32_t share = n_slots / (model->n_expert_layers > 0 ? model->n_expert_layers : 1);
    const uint32_t k = model->shape.n_experts_per_token;
    return k < share ? k : share;
}

/* Takes memory for more slots. Returns how many the tier can have. */
static uint32_t grow_tier(struct expert_cache *cache, struct tier *tier, uint32_t n_slots)
{
    const uint64_t end = pool_end(cache, tier, tier->n_slots);
    const uint64_t wanted = n_slots * cache->model->expert_slot_bytes;
    if (n_slots <= tier->n_slots || wanted <= end)
        return n_slots;
    return tier->memory->ops->take_back(tier->memory, tier->pool + end, wanted - end)
               ? n_slots : tier->n_slots;
}

uint32_t expert_cache_resize(struct expert_cache *cache, uint32_t tier_number, uint32_t n_slots)
{
    struct tier *tier = &cache->tiers[tier_number];
    assert(!cache->plan.is_open && n_slots >= 1 && tier_number < cache->n_tiers);
    n_slots = grow_tier(cache, tier, n_slots < tier->n_max ? n_slots : tier->n_max);
    cache->stats.n_slots = cache->stats.n_slots - tier->n_target + n_slots;
    tier->n_target = n_slots;
    if (tier->n_slots < tier->n_target)
        tier->n_slots = tier->n_target;
    victims_set_floor(&tier->victims, cache_floor(cache, tier, tier->n_target));
    pthread_mutex_lock(&cache->lock);
    empty_slots_list(cache, tier);
    pthread_mutex_unlock(&cache->lock);
    if (cache->reads_all)
        background_read_all(cache);
    return n_slots;
}
