#include "cache/ghosts.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "base/mem.h"

#define GHOST_NEVER INT64_MIN
/* Buckets per token with LRU, and per halving of the heat with LCP. */
#define BUCKETS_PER_STEP 16

uint64_t ghosts_bytes(uint32_t n_layers, uint32_t n_experts)
{
    return sizeof(struct ghosts) + (uint64_t)n_layers * n_experts * sizeof(int64_t);
}

int ghosts_init(struct ghosts *g, const struct heat *heat, uint32_t uses_per_token,
                struct fm_error *err)
{
    *g = (struct ghosts){.heat = heat, .uses_per_token = uses_per_token};
    g->n_all = (uint64_t)heat->n_layers * heat->n_experts;
    g->buckets_per_key = heat->policy == HEAT_LRU && uses_per_token > 0
                     ? (double)BUCKETS_PER_STEP / uses_per_token
                     : BUCKETS_PER_STEP;
    g->buckets = mem_new(g->n_all, sizeof *g->buckets, "the miss curve", err);
    if (g->buckets == NULL)
        return FM_ERR_NOMEM;
    for (uint64_t i = 0; i < g->n_all; i++)
        g->buckets[i] = GHOST_NEVER;
    return 0;
}

void ghosts_clear(struct ghosts *g)
{
    mem_free(g->buckets);
}

/* ---- the window ------------------------------------------------------------------------------ */

static uint32_t index_of(int64_t bucket)
{
    /* a power of two, so negative buckets work too */
    return (uint32_t)((uint64_t)bucket % GHOSTS_BUCKETS);
}

static int64_t lowest(const struct ghosts *g)
{
    return g->top - (GHOSTS_BUCKETS - 1);
}

static int64_t in_window(const struct ghosts *g, int64_t bucket)
{
    assert(bucket <= g->top);
    return bucket > lowest(g) ? bucket : lowest(g);
}

static void add(struct ghosts *g, uint32_t index, uint32_t n)
{
    g->counts[index] += n; /* n may be -1: unsigned numbers wrap */
    for (uint32_t i = index + 1; i <= GHOSTS_BUCKETS; i += i & (0 - i))
        g->tree[i] += n;
}

/* Counts the experts at indexes below this one. */
static uint32_t count_before(const struct ghosts *g, uint32_t index)
{
    uint32_t n = 0;
    for (uint32_t i = index; i > 0; i -= i & (0 - i))
        n += g->tree[i];
    return n;
}

/* Counts the experts in buckets above this one of the window. */
static uint32_t count_above(const struct ghosts *g, int64_t bucket)
{
    const uint32_t at = index_of(bucket) + 1, end = index_of(g->top) + 1;
    if (bucket == g->top)
        return 0;
    if (at <= end)
        return count_before(g, end) - count_before(g, at);
    return g->tree[GHOSTS_BUCKETS] - count_before(g, at) + count_before(g, end);
}

/* Makes this bucket the top of the window. Experts that fall out of the window stay in its lowest
 * bucket. */
static void advance(struct ghosts *g, int64_t bucket)
{
    for (uint32_t i = 0; g->top < bucket && i < GHOSTS_BUCKETS; i++) {
        const uint32_t n = g->counts[index_of(lowest(g))];
        add(g, index_of(lowest(g)), 0 - n);
        g->top++;
        add(g, index_of(lowest(g)), n);
    }
    if (g->top < bucket) { /* more than a window ahead: all experts are in the lowest bucket */
        const uint32_t n = g->counts[index_of(lowest(g))];
        add(g, index_of(lowest(g)), 0 - n);
        g->top = bucket;
        add(g, index_of(lowest(g)), n);
    }
}

/* ---- uses ------------------------------------------------------------------------------------ */

void ghosts_update(struct ghosts *g, uint32_t layer, uint32_t expert)
{
    int64_t *bucket = &g->buckets[(size_t)layer * g->heat->n_experts + expert];
    const double key = heat_key(g->heat, layer, expert);
    if (key == -INFINITY)
        return;
    if (*bucket != GHOST_NEVER)
        add(g, index_of(in_window(g, *bucket)), 0u - 1);
    *bucket = (int64_t)floor(key * g->buckets_per_key);
    if (*bucket > g->top)
        advance(g, *bucket);
    add(g, index_of(in_window(g, *bucket)), 1);
    assert(g->tree[GHOSTS_BUCKETS] <= g->n_all); /* an expert counts in one bucket */
}

void ghosts_restore(struct ghosts *g)
{
    for (uint32_t layer = 0; layer < g->heat->n_layers; layer++)
        for (uint32_t expert = 0; expert < g->heat->n_experts; expert++)
            ghosts_update(g, layer, expert);
}

void ghosts_record_use(struct ghosts *g, uint32_t layer, uint32_t expert)
{
    const size_t index = (size_t)layer * g->heat->n_experts + expert;
    const int64_t bucket = g->buckets[index];
    g->n_uses++;
    if (bucket == GHOST_NEVER)
        return;
    const int64_t at = in_window(g, bucket);
    /* The order within a bucket is unknown: count half of it as hotter. */
    const uint64_t rank = count_above(g, at) + (g->counts[index_of(at)] - 1) / 2;
    assert(rank < g->n_all);
    g->n_reused += g->heat->lasts[index] == g->heat->clocks[layer];
    g->ranks[rank * GHOSTS_STEPS / g->n_all]++;
}

/* Counts the uses of experts that were among the n_slots hottest. */
static double count_hottest(const struct ghosts *g, uint64_t n_slots)
{
    const double steps = (double)n_slots * GHOSTS_STEPS / (double)g->n_all;
    double hits = 0;
    for (uint32_t i = 0; i < GHOSTS_STEPS && i < steps; i++) {
        const double part = steps - i < 1 ? steps - i : 1;
        hits += part * (double)g->ranks[i];
    }
    return hits;
}

double ghosts_hit_rate(const struct ghosts *g, uint64_t n_slots)
{
    if (g->n_uses == 0)
        return -1;
    const double again = (double)g->n_reused, floor_slots = (double)g->uses_per_token;
    const bool is_near_floor = n_slots < 2 * (uint64_t)g->uses_per_token;
    double hits = count_hottest(g, is_near_floor ? 2 * (uint64_t)g->uses_per_token : n_slots);
    hits = hits > again ? hits : again;
    if (is_near_floor && (double)n_slots > floor_slots)
        hits = again + (hits - again) * ((double)n_slots / floor_slots - 1);
    else if (is_near_floor)
        hits = again * (double)n_slots / floor_slots;
    return hits / (double)g->n_uses;
}
