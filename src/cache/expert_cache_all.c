/* Layers whose experts are all resident, and which experts are where. A backend may use such layers
 * without a plan, so that nobody waits for the router. */
#include <assert.h>
#include <string.h>

#include "cache/expert_cache_internal.h"

bool expert_cache_has_all(struct expert_cache *cache, uint32_t layer, uint64_t *generation)
{
    assert(!cache->plan.is_open);
    cache_collect_guesses(cache);
    *generation = cache->generations[layer];
    /* Without a plan, slots in the eviction order are all that hold a verified expert. */
    if (cache->tiers[0].victims.n_in_heap[layer] < cache->model->expert_layers[layer].n_experts)
        return false;
    expert_cache_join(cache); /* some may be on their way */
    return true;
}

bool expert_cache_reaches(struct expert_cache *cache, uint32_t layer, uint64_t *generation)
{
    const uint32_t n_experts = cache->model->expert_layers[layer].n_experts;
    assert(!cache->plan.is_open && cache->n_tiers == 2);
    cache_collect_guesses(cache);
    *generation = cache->generations[layer];
    return cache->transfers.n_plain == 0 &&
           cache->tiers[0].victims.n_in_heap[layer] + cache->tiers[1].victims.n_in_heap[layer] ==
               n_experts;
}

void expert_cache_look(struct expert_cache *cache)
{
    if (cache->n_tiers > 1)
        tiers_look(cache);
}

const void *expert_cache_origin(struct expert_cache *cache)
{
    return slot_memory(cache, 0);
}

void expert_cache_bases(struct expert_cache *cache, uint32_t layer, uint64_t *bases)
{
    for (uint32_t e = 0; e < cache->model->expert_layers[layer].n_experts; e++) {
        const uint32_t at = *where_of(cache, layer, e);
        assert(at != NO_SLOT && cache->slots[at].is_evictable);
        bases[e] = (uint64_t)(uintptr_t)tiers_bytes(cache, at) -
                   (uint64_t)(uintptr_t)expert_cache_origin(cache);
    }
}

void expert_cache_use_all(struct expert_cache *cache)
{
    cache->last_use = memory_fence(cache->tiers[0].memory);
}

/* ---- counting -------------------------------------------------------------------------------- */

void cache_count_tokens(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n)
{
    for (uint32_t i = 0; n_tokens == 1 && i < n; i++)
        if (uses[i].n_uses > 0)
            ghosts_record_use(&cache->ghosts, layer, uses[i].expert);
    heat_advance(&cache->heat, layer, n_tokens);
}

void cache_count_use(struct expert_cache *cache, uint32_t layer, const struct expert_use *use)
{
    if (use->n_uses == 0)
        return;
    heat_use(&cache->heat, layer, use->expert, use->n_uses, use->idle);
    ghosts_update(&cache->ghosts, layer, use->expert);
}

static void count_layer(struct expert_cache *cache, const struct logged_layer *l,
                        const struct expert_use *uses)
{
    cache_count_tokens(cache, l->layer, l->n_tokens, uses, l->n);
    for (uint32_t i = 0; i < l->n; i++) {
        const uint32_t at = *where_of(cache, l->layer, uses[i].expert);
        const bool is_here = at != NO_SLOT && cache->slots[at].is_evictable; /* still */
        if (is_here) {
            cache->stats.n_guesses_used += cache->slots[at].is_guess;
            cache->slots[at].is_guess = false;
            victims_remove(&tier_of(cache, at)->victims, at);
        }
        cache_count_use(cache, l->layer, &uses[i]);
        if (is_here)
            victims_add(&tier_of(cache, at)->victims, at);
    }
    for (uint32_t i = 0; i < cache->n_tiers; i++)
        victims_refresh(&cache->tiers[i].victims, l->layer);
}

/* Moves experts that were used where they are to the first tier, if that is worth it. */
static void move_up_used(struct expert_cache *cache, const struct logged_layer *l,
                         const struct expert_use *uses)
{
    uint32_t experts[READS_NEEDED], n = 0;
    if (cache->n_tiers < 2 || l->n > READS_NEEDED)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        if (uses[i].n_uses > 0)
            experts[n++] = uses[i].expert;
    tiers_move_up(cache, l->layer, experts, n);
}

void expert_cache_catch_up(struct expert_cache *cache)
{
    struct use_log *log = &cache->log;
    const struct expert_use *uses = log->uses;
    for (uint32_t i = 0; i < log->n_layers; i++) {
        count_layer(cache, &log->layers[i], uses);
        move_up_used(cache, &log->layers[i], uses);
        uses += log->layers[i].n;
    }
    log->n_layers = log->n_uses = 0;
}

void expert_cache_count(struct expert_cache *cache, uint32_t layer, uint32_t n_tokens,
                        const struct expert_use *uses, uint32_t n)
{
    struct use_log *log = &cache->log;
    assert(!cache->plan.is_open && n <= log->max_uses);
    if (log->n_layers == cache->model->n_expert_layers || n > log->max_uses - log->n_uses)
        expert_cache_catch_up(cache);
    cache->stats.n_hits += n;
    for (uint32_t i = 0; cache->n_tiers > 1 && i < n; i++) {
        const uint32_t at = *where_of(cache, layer, uses[i].expert);
        const uint32_t is_below = at != NO_SLOT && tier_number(cache, at) == 1;
        cache->stats.n_hits_below += is_below;
        cache->stats.n_sent += is_below; /* the device fetched it itself */
    }
    log->layers[log->n_layers++] = (struct logged_layer){layer, n_tokens, n};
    memcpy(log->uses + log->n_uses, uses, n * sizeof *uses);
    log->n_uses += n;
}

void expert_cache_accept(struct expert_cache *cache, uint32_t layer, const struct expert_use *uses,
                         uint32_t n)
{
    assert(!cache->plan.is_open);
    expert_cache_catch_up(cache); /* layers are counted in their order */
    count_layer(cache, &(struct logged_layer){layer, 1, n}, uses);
}

/* ---- where experts are --------------------------------------------------------------------- */

void expert_cache_resident(struct expert_cache *cache, uint32_t layer, bool *resident)
{
    assert(!cache->plan.is_open);
    cache_collect_guesses(cache);
    for (uint32_t e = 0; e < cache->model->expert_layers[layer].n_experts; e++) {
        const uint32_t at = *where_of(cache, layer, e);
        resident[e] = at != NO_SLOT && cache->slots[at].is_evictable;
    }
}

void expert_cache_tiers(struct expert_cache *cache, uint32_t layer, uint8_t *tiers)
{
    assert(!cache->plan.is_open);
    cache_collect_guesses(cache);
    for (uint32_t e = 0; e < cache->model->expert_layers[layer].n_experts; e++) {
        const uint32_t at = *where_of(cache, layer, e);
        const bool is_here = at != NO_SLOT && cache->slots[at].is_evictable;
        tiers[e] = is_here ? (uint8_t)tier_number(cache, at) : CACHE_TIERS;
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

void expert_cache_read_all(struct expert_cache *cache)
{
    assert(!cache->plan.is_open && !cache->reads_all);
    cache->reads_all = !cache->tiers[0].memory->is_host;
    if (cache->reads_all)
        background_read_all(cache);
}
