/* Background reads, which no plan waits for: experts that the next layer will probably use, experts
 * that were hot in an earlier process, and experts of the layer that a prompt reaches next. */
#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cache/expert_cache_internal.h"

/* ---- the queues ------------------------------------------------------------------------------ */

void background_init(struct expert_cache *cache)
{
    struct background *b = &cache->background;
    for (uint32_t i = 0; i < READS_GUESSED; i++)
        b->guesses.idle_reads[b->guesses.n_idle_reads++] = READS_NEEDED + i;
    for (uint32_t i = 0; i < READS_BACKGROUND; i++)
        b->bulk.idle_reads[b->bulk.n_idle_reads++] = READS_NEEDED + READS_GUESSED + i;
}

/* Removes the next slot from a queue and marks it as being read. The caller holds the lock. */
static uint32_t take_queued(struct expert_cache *cache, struct read_queue *q)
{
    while (q->next < q->n) {
        const uint32_t i = q->slots[q->next++];
        if (i != NO_SLOT) {
            assert(cache->slots[i].state == SLOT_QUEUED);
            cache->slots[i].state = SLOT_READING;
            return i;
        }
    }
    return NO_SLOT;
}

uint32_t background_next(struct expert_cache *cache, uint32_t read)
{
    struct background *b = &cache->background;
    struct read_queue *q = read < READS_NEEDED + READS_GUESSED ? &b->guesses : &b->bulk;
    const uint32_t i = take_queued(cache, q);
    assert(q->next <= q->n && q->n_idle_reads < READS_BACKGROUND);
    if (i == NO_SLOT)
        q->idle_reads[q->n_idle_reads++] = read;
    return i;
}

static void start(struct expert_cache *cache, struct read_queue *q)
{
    for (;;) {
        pthread_mutex_lock(&cache->lock);
        const uint32_t i = q->n_idle_reads > 0 ? take_queued(cache, q) : NO_SLOT;
        const uint32_t read = i != NO_SLOT ? q->idle_reads[--q->n_idle_reads] : 0;
        pthread_mutex_unlock(&cache->lock);
        if (i == NO_SLOT)
            return;
        cache_submit(cache, read, i, READ_GUESSED);
    }
}

/* Appends an expert to a queue and gives it an empty slot of a tier. */
static uint32_t queue(struct expert_cache *cache, struct read_queue *q, struct tier *tier,
                      uint32_t layer, uint32_t expert)
{
    const uint32_t i = cache_fill_empty(cache, tier, layer, expert, SLOT_QUEUED);
    cache->slots[i].plan_index = q->n; /* only this thread changes q->n */
    cache->slots[i].is_in_guesses = q == &cache->background.guesses;
    pthread_mutex_lock(&cache->lock);
    assert(q->n < cache->n_max);
    q->slots[q->n++] = i;
    pthread_mutex_unlock(&cache->lock);
    return i;
}

bool background_cancel(struct expert_cache *cache, uint32_t i)
{
    struct background *b = &cache->background;
    const struct slot *slot = &cache->slots[i];
    struct read_queue *q = slot->is_in_guesses ? &b->guesses : &b->bulk;
    pthread_mutex_lock(&cache->lock);
    const bool is_queued = slot->state == SLOT_QUEUED;
    assert(!is_queued || q->slots[slot->plan_index] == i);
    if (is_queued)
        q->slots[slot->plan_index] = NO_SLOT;
    pthread_mutex_unlock(&cache->lock);
    if (is_queued)
        cache_make_empty(cache, i);
    return is_queued;
}

static bool cancel_last(struct expert_cache *cache, struct read_queue *q)
{
    uint32_t i = NO_SLOT;
    pthread_mutex_lock(&cache->lock);
    while (i == NO_SLOT && q->next < q->n)
        i = q->slots[--q->n];
    pthread_mutex_unlock(&cache->lock);
    if (i != NO_SLOT)
        cache_make_empty(cache, i);
    return i != NO_SLOT;
}

bool background_cancel_last(struct expert_cache *cache)
{
    return cancel_last(cache, &cache->background.bulk) ||
           cancel_last(cache, &cache->background.guesses);
}

void background_end_guesses(struct expert_cache *cache)
{
    struct background *b = &cache->background;
    while (cancel_last(cache, &b->guesses))
        ;
    pthread_mutex_lock(&cache->lock);
    b->guesses.n = b->guesses.next = 0;
    pthread_mutex_unlock(&cache->lock);
    if (b->keeps_sweep)
        return;
    while (b->is_sweep && cancel_last(cache, &b->bulk))
        ;
    b->is_sweep = false;
}

/* ---- the next layer of a token --------------------------------------------------------------- */

/* Makes sure that there is an empty slot. Evicts only an expert that is colder than one used with
 * this probability. */
static bool make_room_for_guess(struct expert_cache *cache, const struct tier *tier,
                                uint32_t layer, double probability)
{
    if (tier->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest = victims_coldest(&tier->victims, layer);
    if (coldest == NO_VICTIM ||
        slot_heat(cache, coldest) >= heat_at_probability(&cache->heat, probability))
        return false;
    cache_drop_victim(cache, coldest);
    /* the evicted slot may be one that the cache gives back */
    return tier->first_empty != NO_SLOT;
}

bool expert_cache_guess(struct expert_cache *cache, uint32_t layer, uint32_t expert,
                        double probability)
{
    struct read_queue *q = &cache->background.guesses;
    struct tier *tier = cache_tier_to_fill(cache);
    assert(probability > 0);
    if (*where_of(cache, layer, expert) != NO_SLOT || q->n == cache->n_max ||
        !make_room_for_guess(cache, tier, layer, probability))
        return false;
    cache->slots[queue(cache, q, tier, layer, expert)].is_guess = true;
    start(cache, q);
    return true;
}

/* ---- experts that were hot before ------------------------------------------------------------ */

struct hot_expert {
    double heat;
    uint32_t layer, expert;
    uint32_t tier;
};

static int by_heat(const void *a, const void *b)
{
    const double x = ((const struct hot_expert *)a)->heat, y = ((const struct hot_expert *)b)->heat;
    return (x < y) - (x > y);
}

static int by_place(const void *a, const void *b)
{
    const struct hot_expert *x = a, *y = b;
    const uint64_t i = (uint64_t)x->layer << 32 | x->expert;
    const uint64_t j = (uint64_t)y->layer << 32 | y->expert;
    return (i > j) - (i < j);
}

static uint32_t n_empty(const struct expert_cache *cache, const struct tier *tier)
{
    uint32_t n = 0;
    for (uint32_t i = tier->first_empty; i != NO_SLOT; i = cache->slots[i].next)
        n++;
    return n;
}

/* Lists the hottest experts, as many as there are empty slots, in disk order; the hottest of them
 * for the first tier. */
static uint32_t find_hottest(struct expert_cache *cache, struct hot_expert *hot)
{
    uint32_t n = 0, n_placed = 0;
    for (uint32_t l = 0; l < cache->heat.n_layers; l++)
        for (uint32_t e = 0; e < cache->model->expert_layers[l].n_experts; e++)
            if (cache->heat.counts[(size_t)l * cache->n_experts + e] > 0)
                hot[n++] = (struct hot_expert){heat_key(&cache->heat, l, e), l, e, 0};
    qsort(hot, n, sizeof *hot, by_heat);
    for (uint32_t t = 0; t < cache->n_tiers; t++)
        for (uint32_t left = n_empty(cache, &cache->tiers[t]); left > 0 && n_placed < n; left--)
            hot[n_placed++].tier = t;
    qsort(hot, n_placed, sizeof *hot, by_place);
    return n_placed;
}

void expert_cache_warm(struct expert_cache *cache)
{
    assert(!cache->plan.is_open && cache->background.bulk.n == 0);
    ghosts_restore(&cache->ghosts);
    const uint64_t n_all = (uint64_t)cache->heat.n_layers * cache->n_experts;
    struct hot_expert *hot = mem_new(n_all, sizeof *hot, "the list of hot experts", NULL);
    const uint32_t n = hot != NULL ? find_hottest(cache, hot) : 0;
    for (uint32_t i = 0; i < n; i++)
        (void)queue(cache, &cache->background.bulk, &cache->tiers[hot[i].tier], hot[i].layer,
                    hot[i].expert);
    mem_free(hot);
    start(cache, &cache->background.bulk);
}

/* ---- everything ------------------------------------------------------------------------------ */

/* Moves what is left in a queue to its beginning, so that it has room for every slot. */
static void compact(struct expert_cache *cache, struct read_queue *q)
{
    uint32_t n = 0;
    pthread_mutex_lock(&cache->lock);
    for (; q->next < q->n; q->next++) {
        const uint32_t i = q->slots[q->next];
        if (i == NO_SLOT)
            continue;
        cache->slots[i].plan_index = n;
        q->slots[n++] = i;
    }
    q->next = 0;
    q->n = n;
    pthread_mutex_unlock(&cache->lock);
}

void background_read_all(struct expert_cache *cache)
{
    struct read_queue *q = &cache->background.bulk;
    uint64_t n_all = 0, n_slots = 0;
    for (uint32_t l = 0; l < cache->heat.n_layers; l++)
        n_all += cache->model->expert_layers[l].n_experts;
    for (uint32_t i = 0; i < cache->n_tiers; i++)
        n_slots += cache->tiers[i].n_target;
    if (n_all > n_slots || cache->background.is_stopped)
        return;
    compact(cache, q);
    cache->background.is_sweep = false; /* what is left of one stays in the queue */
    tiers_fill_above(cache);
    for (uint32_t l = 0; l < cache->heat.n_layers; l++)
        for (uint32_t e = 0; e < cache->model->expert_layers[l].n_experts; e++)
            if (*where_of(cache, l, e) == NO_SLOT &&
                cache_tier_to_fill(cache)->first_empty != NO_SLOT)
                (void)queue(cache, q, cache_tier_to_fill(cache), l, e);
    start(cache, q);
}

void expert_cache_stop_warming(struct expert_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    cache->background.is_stopped = true;
    pthread_mutex_unlock(&cache->lock);
    while (background_cancel_last(cache))
        ;
}

/* ---- the next layer of a prompt -------------------------------------------------------------- */

/* A sweep may take 1 / SWEEP_SHARE of the slots. That is about as much as can be read while a layer
 * is mixed, and it evicts little of what the next tokens use. */
#define SWEEP_SHARE 8

/* Empties the bulk queue for a new sweep. Returns false when its last reads have not all begun. */
static bool begin_sweep(struct expert_cache *cache)
{
    struct background *b = &cache->background;
    pthread_mutex_lock(&cache->lock);
    const bool is_idle = b->bulk.next == b->bulk.n && !b->is_stopped;
    if (is_idle)
        b->bulk.n = b->bulk.next = 0;
    pthread_mutex_unlock(&cache->lock);
    b->is_sweep |= is_idle;
    return is_idle;
}

void expert_cache_keep_sweep(struct expert_cache *cache, bool keeps)
{
    cache->background.keeps_sweep = keeps;
}

/* Makes sure that there is an empty slot. Evicts only experts of other layers. */
static bool make_room(struct expert_cache *cache, const struct tier *tier, uint32_t layer)
{
    if (tier->first_empty != NO_SLOT)
        return true;
    const uint32_t coldest = victims_coldest(&tier->victims, layer);
    if (coldest == NO_VICTIM || cache->slots[coldest].layer == layer)
        return false;
    cache_drop_victim(cache, coldest);
    return tier->first_empty != NO_SLOT;
}

void expert_cache_sweep(struct expert_cache *cache, uint32_t layer)
{
    const uint32_t n_experts = cache->model->expert_layers[layer].n_experts;
    uint32_t n_left = cache->tiers[cache->n_tiers - 1].n_target / SWEEP_SHARE;
    assert(!cache->plan.is_open);
    if (!begin_sweep(cache))
        return;
    for (uint32_t e = 0; e < n_experts && n_left > 0; e++) {
        if (*where_of(cache, layer, e) != NO_SLOT)
            continue;
        struct tier *tier = cache_tier_to_fill(cache);
        if (!make_room(cache, tier, layer))
            break;
        cache->slots[queue(cache, &cache->background.bulk, tier, layer, e)].is_guess = true;
        n_left--;
    }
    start(cache, &cache->background.bulk);
}
