#include "lab/replay.h"

#include <assert.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "cache/victims.h"

#define NO_SLOT UINT32_MAX
#define NEVER UINT32_MAX

static const char *const names[N_REPLAY_POLICIES] = {
    [REPLAY_LRU] = "lru",
    [REPLAY_LCP] = "lcp",
    [REPLAY_LAYER_LRU] = "layer-lru",
    [REPLAY_LAYER_LFU] = "layer-lfu",
    [REPLAY_STATIC] = "static",
    [REPLAY_LAYER_BELADY] = "layer-belady",
    [REPLAY_BELADY] = "belady",
};

const char *replay_policy_name(enum replay_policy policy)
{
    return names[policy];
}

static uint32_t n_total(const struct replay_routes *r)
{
    return r->n_warm + r->n_tokens;
}

static const uint16_t *ids_at(const struct replay_routes *r, uint32_t token, uint32_t layer)
{
    return r->ids + ((size_t)(token % r->n_positions) * r->n_layers + layer) * r->n_used;
}

static void count(const struct replay_routes *r, uint32_t token, uint32_t n,
                  struct replay_hits *hits)
{
    if (token >= r->n_warm)
        hits->n_all += n;
    if (token >= r->n_warm + r->n_tokens / 2)
        hits->n_late += n;
}

/* ---- the engine's pool ----------------------------------------------------------------------- */

struct pool {
    struct heat heat;
    struct victims victims;
    uint32_t *where; /* [n_layers, n_experts]: slot or NO_SLOT */
    uint32_t n_slots, n_filled;
    uint32_t n_pinned, n_missing, next_missing;     /* of the plan */
    uint32_t pinned[LIMIT_TOP_K];                   /* slots, handed out together */
    uint16_t missing[LIMIT_TOP_K];                  /* experts */
};

static uint32_t *where_of(struct pool *p, uint32_t layer, uint32_t expert)
{
    return &p->where[(size_t)layer * p->heat.n_experts + expert];
}

/* Returns a slot for the layer: an empty one, or that of the coldest expert; NO_SLOT when all are
 * pinned. */
static uint32_t take_slot(struct pool *p, uint32_t layer)
{
    if (p->n_filled < p->n_slots)
        return p->n_filled++;
    const uint32_t slot = victims_coldest(&p->victims, layer);
    if (slot == NO_VICTIM)
        return NO_SLOT;
    const struct victim *victim = &p->victims.slots[slot];
    victims_remove(&p->victims, slot);
    *where_of(p, victim->layer, victim->expert) = NO_SLOT;
    victims_unassign(&p->victims, slot);
    return slot;
}

static void start_reads(struct pool *p, uint32_t layer)
{
    while (p->next_missing < p->n_missing) {
        const uint32_t slot = take_slot(p, layer);
        if (slot == NO_SLOT)
            return;
        const uint16_t expert = p->missing[p->next_missing++];
        *where_of(p, layer, expert) = slot;
        victims_assign(&p->victims, slot, layer, expert);
        p->pinned[p->n_pinned++] = slot;
    }
}

static void release(struct pool *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        victims_add(&p->victims, p->pinned[i]);
    p->n_pinned -= n;
    memmove(p->pinned, p->pinned + n, p->n_pinned * sizeof *p->pinned);
}

/* Does what expert_cache_begin and _next do until all experts are handed out: first the resident
 * ones, then the others, as many at a time as there is room for. */
static uint32_t run_plan(struct pool *p, uint32_t layer, const uint16_t *ids, uint32_t n)
{
    p->n_pinned = p->n_missing = p->next_missing = 0;
    heat_advance(&p->heat, layer, 1);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t slot = *where_of(p, layer, ids[i]);
        if (slot == NO_SLOT) {
            p->missing[p->n_missing++] = ids[i];
        } else {
            victims_remove(&p->victims, slot);
            p->pinned[p->n_pinned++] = slot;
        }
        heat_use(&p->heat, layer, ids[i], 1, 0);
    }
    victims_refresh(&p->victims, layer);
    const uint32_t n_hits = p->n_pinned;
    start_reads(p, layer);
    release(p, n_hits);
    start_reads(p, layer);
    while (p->n_pinned > 0) {
        release(p, p->n_pinned);
        start_reads(p, layer);
    }
    assert(p->next_missing == p->n_missing);
    return n_hits;
}

static int run_pool(const struct replay_routes *r, enum heat_policy policy, uint32_t n_slots,
                    struct replay_hits *hits, struct fm_error *err)
{
    struct pool p = {.n_slots = n_slots};
    const uint64_t n_all = (uint64_t)r->n_layers * r->n_experts;
    const uint32_t share = n_slots / r->n_layers;
    p.where = mem_new(n_all, sizeof *p.where, "a replay", err);
    int rc = p.where != NULL ? heat_init(&p.heat, policy, r->n_layers, r->n_experts, err)
                             : FM_ERR_NOMEM;
    if (rc == 0)
        rc = victims_init(&p.victims, &p.heat, n_slots, r->n_used < share ? r->n_used : share, err);
    if (rc == 0)
        memset(p.where, 0xff, n_all * sizeof *p.where); /* NO_SLOT */
    for (uint32_t token = 0; rc == 0 && token < n_total(r); token++)
        for (uint32_t layer = 0; layer < r->n_layers; layer++)
            count(r, token, run_plan(&p, layer, ids_at(r, token, layer), r->n_used), hits);
    victims_clear(&p.victims);
    heat_clear(&p.heat);
    mem_free(p.where);
    return rc;
}

/* ---- the future ------------------------------------------------------------------------------ */

/* Returns [n_total, n_layers, n_used]: the token that next uses the expert, or NEVER. The caller
 * frees it. */
static uint32_t *find_next_uses(const struct replay_routes *r, struct fm_error *err)
{
    const uint64_t n_all = (uint64_t)r->n_layers * r->n_experts;
    const size_t row = (size_t)r->n_layers * r->n_used;
    uint32_t *uses = mem_new(n_all, sizeof *uses, "a replay", err); /* the next use seen so far */
    uint32_t *next = mem_new((uint64_t)n_total(r) * row, sizeof *next, "a replay", err);
    if (uses != NULL)
        memset(uses, 0xff, n_all * sizeof *uses); /* NEVER */
    for (uint32_t token = n_total(r); uses != NULL && next != NULL && token-- > 0;)
        for (size_t i = 0; i < row; i++) {
            const uint32_t layer = (uint32_t)(i / r->n_used);
            uint32_t *use = uses + (size_t)layer * r->n_experts + ids_at(r, token, 0)[i];
            next[token * row + i] = *use;
            *use = token;
        }
    if (uses == NULL) {
        mem_free(next);
        next = NULL;
    }
    mem_free(uses);
    return next;
}

/* ---- one cache per layer --------------------------------------------------------------------- */

struct expert_state {
    bool is_here;
    uint32_t n_uses, last_token;
    uint64_t key; /* the expert with the smallest key is evicted first */
};

struct layer_cache {
    const struct replay_routes *routes;
    enum replay_policy policy;
    uint32_t capacity, n_here;
    const uint32_t *next_uses; /* REPLAY_LAYER_BELADY */
    struct expert_state *experts; /* [n_experts] */
};

static uint64_t key_for(const struct layer_cache *c, uint32_t token, uint32_t layer, uint32_t i,
                        const struct expert_state *expert)
{
    const struct replay_routes *r = c->routes;
    const uint64_t use = (uint64_t)token * r->n_used + i;
    if (c->policy == REPLAY_LAYER_LRU)
        return use;
    if (c->policy == REPLAY_LAYER_LFU)
        return ((uint64_t)expert->n_uses << 40) + use;
    return NEVER - c->next_uses[((size_t)token * r->n_layers + layer) * r->n_used + i];
}

/* Evicts the coldest expert. Experts of the current token are evicted last, except with Belady,
 * where they may go at once. */
static void drop_coldest(struct layer_cache *c, uint32_t token)
{
    struct expert_state *coldest = NULL;
    bool is_coldest_new = false;
    for (uint32_t e = 0; e < c->routes->n_experts; e++) {
        struct expert_state *expert = &c->experts[e];
        const bool is_new = c->policy != REPLAY_LAYER_BELADY && expert->last_token == token;
        if (!expert->is_here)
            continue;
        if (coldest == NULL || is_new < is_coldest_new ||
            (is_new == is_coldest_new && expert->key < coldest->key)) {
            coldest = expert;
            is_coldest_new = is_new;
        }
    }
    coldest->is_here = false;
    c->n_here--;
}

/* Looks up all experts of a token before any of them is inserted. */
static uint32_t layer_token(struct layer_cache *c, uint32_t token, uint32_t layer)
{
    const struct replay_routes *r = c->routes;
    const uint16_t *ids = ids_at(r, token, layer);
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        struct expert_state *expert = &c->experts[ids[i]];
        n_hits += expert->is_here;
        c->n_here += !expert->is_here;
        expert->is_here = true;
        expert->n_uses++;
        expert->last_token = token;
        expert->key = key_for(c, token, layer, i, expert);
    }
    while (c->n_here > c->capacity)
        drop_coldest(c, token);
    return n_hits;
}

static int run_layers(const struct replay_routes *r, enum replay_policy policy, uint32_t n_slots,
                      struct replay_hits *hits, struct fm_error *err)
{
    uint32_t *next_uses = policy == REPLAY_LAYER_BELADY ? find_next_uses(r, err) : NULL;
    struct layer_cache c = {.routes = r, .policy = policy, .capacity = n_slots / r->n_layers,
                            .next_uses = next_uses};
    c.experts = mem_new(r->n_experts, sizeof *c.experts, "a replay", err);
    const bool is_ready =
        c.experts != NULL && (policy != REPLAY_LAYER_BELADY || next_uses != NULL);
    for (uint32_t layer = 0; is_ready && layer < r->n_layers; layer++) {
        memset(c.experts, 0, r->n_experts * sizeof *c.experts);
        c.n_here = 0;
        for (uint32_t token = 0; token < n_total(r); token++)
            count(r, token, layer_token(&c, token, layer), hits);
    }
    mem_free(c.experts);
    mem_free(next_uses);
    return is_ready ? 0 : FM_ERR_NOMEM;
}

/* ---- Belady over all layers ------------------------------------------------------------------ */

/* A heap of the cached experts; the one whose next use is latest is first. */
struct future {
    uint64_t *times; /* [n_layers * n_experts] of the next use */
    uint32_t *places; /* [n_layers * n_experts] in the heap, or NO_SLOT */
    uint32_t *heap;   /* [n_slots + n_used] */
    uint32_t n;
};

static void future_put(struct future *f, uint32_t place, uint32_t expert)
{
    f->heap[place] = expert;
    f->places[expert] = place;
}

static void future_rise(struct future *f, uint32_t place, uint32_t expert)
{
    while (place > 0 && f->times[f->heap[(place - 1) / 2]] < f->times[expert]) {
        future_put(f, place, f->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    future_put(f, place, expert);
}

static void future_drop_last(struct future *f)
{
    f->places[f->heap[0]] = NO_SLOT;
    const uint32_t expert = f->heap[--f->n];
    uint32_t place = 0;
    while (2 * place + 1 < f->n) {
        uint32_t child = 2 * place + 1;
        if (child + 1 < f->n && f->times[f->heap[child]] < f->times[f->heap[child + 1]])
            child++;
        if (f->times[f->heap[child]] <= f->times[expert])
            break;
        future_put(f, place, f->heap[child]);
        place = child;
    }
    if (f->n > 0)
        future_put(f, place, expert);
}

static uint32_t future_token(const struct replay_routes *r, struct future *f, uint32_t n_slots,
                             uint32_t token, uint32_t layer, const uint32_t *next_uses)
{
    const uint16_t *ids = ids_at(r, token, layer);
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < r->n_used; i++) {
        const uint32_t expert = layer * r->n_experts + ids[i];
        const bool is_here = f->places[expert] != NO_SLOT;
        f->times[expert] = (uint64_t)next_uses[i] * r->n_layers + layer; /* NEVER sorts last */
        n_hits += is_here;
        future_rise(f, is_here ? f->places[expert] : f->n++, expert);
    }
    while (f->n > n_slots)
        future_drop_last(f);
    return n_hits;
}

static int run_belady(const struct replay_routes *r, uint32_t n_slots, struct replay_hits *hits,
                      struct fm_error *err)
{
    const uint64_t n_all = (uint64_t)r->n_layers * r->n_experts;
    uint32_t *next_uses = find_next_uses(r, err);
    struct future f = {0};
    f.times = mem_new(n_all, sizeof *f.times, "a replay", err);
    f.places = mem_new(n_all, sizeof *f.places, "a replay", err);
    f.heap = mem_new((uint64_t)n_slots + r->n_used, sizeof *f.heap, "a replay", err);
    const bool is_ready =
        next_uses != NULL && f.times != NULL && f.places != NULL && f.heap != NULL;
    if (is_ready)
        memset(f.places, 0xff, n_all * sizeof *f.places); /* NO_SLOT */
    for (uint32_t token = 0; is_ready && token < n_total(r); token++)
        for (uint32_t layer = 0; layer < r->n_layers; layer++) {
            const size_t row = ((size_t)token * r->n_layers + layer) * r->n_used;
            count(r, token, future_token(r, &f, n_slots, token, layer, next_uses + row), hits);
        }
    mem_free(f.heap);
    mem_free(f.places);
    mem_free(f.times);
    mem_free(next_uses);
    return is_ready ? 0 : FM_ERR_NOMEM;
}

/* ---- pinned ---------------------------------------------------------------------------------- */

/* Returns the number of uses of the n_slots-th most used expert, and how many experts with exactly
 * that number still fit. */
static uint32_t find_threshold(const uint32_t *uses, uint64_t n_all, uint32_t max,
                               uint32_t n_slots, uint32_t *n_equal, struct fm_error *err)
{
    /* with[i]: experts with i uses */
    uint32_t *with = mem_new((uint64_t)max + 1, sizeof *with, "a replay", err);
    if (with == NULL)
        return UINT32_MAX;
    for (uint64_t i = 0; i < n_all; i++)
        with[uses[i]]++;
    uint32_t threshold = max, n_left = n_slots;
    while (threshold > 0 && with[threshold] <= n_left)
        n_left -= with[threshold--];
    mem_free(with);
    *n_equal = n_left;
    return threshold;
}

static int run_static(const struct replay_routes *r, uint32_t n_slots, struct replay_hits *hits,
                      struct fm_error *err)
{
    const uint64_t n_all = (uint64_t)r->n_layers * r->n_experts;
    const uint32_t n_first = r->n_warm + r->n_tokens / 2;
    uint32_t *uses = mem_new(n_all, sizeof *uses, "a replay", err);
    if (uses == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t token = 0; token < n_first; token++)
        for (uint32_t i = 0; i < r->n_layers * r->n_used; i++)
            uses[(size_t)(i / r->n_used) * r->n_experts + ids_at(r, token, 0)[i]]++;
    uint32_t n_equal = 0;
    const uint32_t threshold = find_threshold(uses, n_all, n_first, n_slots, &n_equal, err);
    for (uint64_t i = 0; i < n_all; i++) { /* from here on: 1 for a pinned expert */
        const bool fits = uses[i] == threshold && n_equal > 0;
        n_equal -= fits;
        uses[i] = uses[i] > threshold || fits;
    }
    for (uint32_t token = n_first; token < n_total(r); token++)
        for (uint32_t i = 0; i < r->n_layers * r->n_used; i++)
            hits->n_late +=
                uses[(size_t)(i / r->n_used) * r->n_experts + ids_at(r, token, 0)[i]];
    mem_free(uses);
    return threshold != UINT32_MAX ? 0 : FM_ERR_NOMEM;
}

int replay_run(const struct replay_routes *routes, enum replay_policy policy, uint32_t n_slots,
               struct replay_hits *hits, struct fm_error *err)
{
    assert(n_slots >= routes->n_layers && routes->n_used <= LIMIT_TOP_K);
    *hits = (struct replay_hits){0};
    switch (policy) {
    case REPLAY_LRU:
        return run_pool(routes, HEAT_LRU, n_slots, hits, err);
    case REPLAY_LCP:
        return run_pool(routes, HEAT_LCP, n_slots, hits, err);
    case REPLAY_STATIC:
        return run_static(routes, n_slots, hits, err);
    case REPLAY_BELADY:
        return run_belady(routes, n_slots, hits, err);
    default:
        return run_layers(routes, policy, n_slots, hits, err);
    }
}
