#include "cache/victims.h"

#include <assert.h>

#include "base/mem.h"

int victims_init(struct victims *v, const struct heat *heat, uint32_t n_slots, uint32_t floor,
                 struct fm_error *err)
{
    const uint32_t n_layers = heat->n_layers;
    *v = (struct victims){.heat = heat, .n_layers = n_layers, .n_experts = heat->n_experts,
                          .floor = floor, .n_leaves = 1};
    while (v->n_leaves < n_layers)
        v->n_leaves *= 2;
    const uint64_t n_places = (uint64_t)n_layers * heat->n_experts;
    v->slots = mem_new(n_slots, sizeof *v->slots, "the cache order", err);
    v->heaps = mem_new(n_places, sizeof *v->heaps, "the cache order", err);
    v->n_in_heap = mem_new(n_layers, sizeof *v->n_in_heap, "the cache order", err);
    v->n_held = mem_new(n_layers, sizeof *v->n_held, "the cache order", err);
    v->winners = mem_new(2 * (uint64_t)v->n_leaves, sizeof *v->winners, "the cache order", err);
    if (v->slots == NULL || v->heaps == NULL || v->n_in_heap == NULL || v->n_held == NULL ||
        v->winners == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < n_slots; i++)
        v->slots[i].place = NO_VICTIM;
    for (uint32_t i = 0; i < 2 * v->n_leaves; i++)
        v->winners[i] = NO_VICTIM;
    return 0;
}

void victims_clear(struct victims *v)
{
    mem_free(v->slots);
    mem_free(v->heaps);
    mem_free(v->n_in_heap);
    mem_free(v->n_held);
    mem_free(v->winners);
}

uint64_t victims_bytes(uint32_t n_layers, uint32_t n_experts, uint64_t n_slots)
{
    return n_slots * sizeof(struct victim) +
           (uint64_t)n_layers * (n_experts + 2 + 4) * sizeof(uint32_t);
}

/* ---- the tournament -------------------------------------------------------------------------- */

static double key_of(const struct victims *v, uint32_t slot)
{
    return heat_key(v->heat, v->slots[slot].layer, v->slots[slot].expert);
}

static uint32_t top_of(const struct victims *v, uint32_t layer)
{
    return v->n_in_heap[layer] > 0 ? v->heaps[(size_t)layer * v->n_experts] : NO_VICTIM;
}

/* Returns the heat of the coldest slot of a layer, comparable between layers. */
static double top_key(const struct victims *v, uint32_t layer)
{
    assert(v->n_in_heap[layer] > 0);
    return key_of(v, top_of(v, layer)) - heat_age(v->heat, layer);
}

/* Compares by heat, then by expert. The slot's index does not count, so the order in which reads
 * complete changes no eviction. */
static bool is_colder(const struct victims *v, uint32_t a, uint32_t b)
{
    const double x = key_of(v, a), y = key_of(v, b);
    return x < y || (x == y && v->slots[a].expert < v->slots[b].expert);
}

static uint32_t colder(const struct victims *v, uint32_t a, uint32_t b)
{
    if (a == NO_VICTIM || b == NO_VICTIM)
        return a == NO_VICTIM ? b : a;
    return top_key(v, b) < top_key(v, a) ? b : a;
}

/* A layer takes part in the tournament when it can spare a slot. */
void victims_refresh(struct victims *v, uint32_t layer)
{
    const bool can_spare = v->n_held[layer] > v->floor && v->n_in_heap[layer] > 0;
    uint32_t at = v->n_leaves + layer;
    assert(layer < v->n_layers && v->n_in_heap[layer] <= v->n_held[layer]);
    v->winners[at] = can_spare ? layer : NO_VICTIM;
    for (at /= 2; at > 0; at /= 2)
        v->winners[at] = colder(v, v->winners[2 * at], v->winners[2 * at + 1]);
}

/* ---- the heaps ------------------------------------------------------------------------------- */

static void put(struct victims *v, uint32_t *heap, uint32_t place, uint32_t slot)
{
    heap[place] = slot;
    v->slots[slot].place = place;
}

static void sift_up(struct victims *v, uint32_t *heap, uint32_t place)
{
    const uint32_t slot = heap[place];
    while (place > 0 && is_colder(v, slot, heap[(place - 1) / 2])) {
        put(v, heap, place, heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(v, heap, place, slot);
}

static void sift_down(struct victims *v, uint32_t *heap, uint32_t n, uint32_t place)
{
    const uint32_t slot = heap[place];
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < n && is_colder(v, heap[child + 1], heap[child]))
            child++;
        if (child >= n || !is_colder(v, heap[child], slot))
            break;
        put(v, heap, place, heap[child]);
        place = child;
    }
    put(v, heap, place, slot);
}

void victims_assign(struct victims *v, uint32_t slot, uint32_t layer, uint32_t expert)
{
    assert(v->slots[slot].place == NO_VICTIM);
    v->slots[slot].layer = layer;
    v->slots[slot].expert = expert;
    v->n_held[layer]++;
    victims_refresh(v, layer);
}

void victims_unassign(struct victims *v, uint32_t slot)
{
    const uint32_t layer = v->slots[slot].layer;
    assert(v->slots[slot].place == NO_VICTIM && v->n_held[layer] > 0);
    v->n_held[layer]--;
    victims_refresh(v, layer);
}

void victims_add(struct victims *v, uint32_t slot)
{
    const uint32_t layer = v->slots[slot].layer;
    uint32_t *heap = v->heaps + (size_t)layer * v->n_experts;
    assert(v->slots[slot].place == NO_VICTIM && v->n_in_heap[layer] < v->n_experts);
    const uint32_t place = v->n_in_heap[layer]++;
    put(v, heap, place, slot);
    sift_up(v, heap, place);
    victims_refresh(v, layer);
}

void victims_remove(struct victims *v, uint32_t slot)
{
    const uint32_t layer = v->slots[slot].layer, place = v->slots[slot].place;
    uint32_t *heap = v->heaps + (size_t)layer * v->n_experts;
    assert(place < v->n_in_heap[layer] && heap[place] == slot);
    const uint32_t n = --v->n_in_heap[layer], last = heap[n];
    v->slots[slot].place = NO_VICTIM;
    if (last != slot) {
        put(v, heap, place, last);
        sift_down(v, heap, n, place);
        sift_up(v, heap, v->slots[last].place);
    }
    victims_refresh(v, layer);
}

void victims_set_floor(struct victims *v, uint32_t floor)
{
    v->floor = floor;
    for (uint32_t i = 0; i < v->n_layers; i++)
        victims_refresh(v, i);
}

uint32_t victims_spare(const struct victims *v)
{
    return v->winners[1] == NO_VICTIM ? NO_VICTIM : top_of(v, v->winners[1]);
}

uint32_t victims_coldest(const struct victims *v, uint32_t layer)
{
    const uint32_t other = v->winners[1];
    if (v->n_in_heap[layer] == 0)
        return other == NO_VICTIM ? NO_VICTIM : top_of(v, other);
    if (other != NO_VICTIM && top_key(v, other) + heat_margin(v->heat) < top_key(v, layer))
        return top_of(v, other);
    return top_of(v, layer);
}
