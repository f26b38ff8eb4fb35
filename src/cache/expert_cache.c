#include "cache/expert_cache.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cache/lru.h"

#define NO_SLOT UINT32_MAX

enum slot_state {
    SLOT_EMPTY,   /* in the order, holds nothing */
    SLOT_READY,   /* holds an expert; in the order unless the plan has pinned it */
    SLOT_READING, /* pinned by the plan, its read under way */
    SLOT_FAILED,  /* pinned by the plan, its read has failed */
};

struct slot {
    enum slot_state state;
    uint32_t layer, expert;
    uint32_t plan_index;  /* while pinned */
    uint32_t next_landed; /* list of landed slots */
    struct expert_read read;
};

/* The plan in progress. */
struct plan {
    bool is_open;
    uint32_t layer;
    const uint32_t *ids;
    uint32_t *hit_slots; /* [n_hits]: pinned, not yet handed out */
    uint32_t n_hits, next_hit;
    uint32_t *missing; /* [n_missing]: indices into ids */
    uint32_t n_missing, next_missing;
    uint32_t n_in_flight;
    uint32_t *current; /* [n_current]: the slots handed out last */
    uint32_t n_current;
};

struct expert_cache {
    const struct model *model;
    struct expert_store *store;
    uint32_t n_slots;
    char *memory;       /* [n_slots, slot_bytes] */
    struct slot *slots; /* [n_slots] */
    uint32_t *where;    /* [n_expert_layers, n_experts]: slot or NO_SLOT */
    uint32_t n_experts;
    struct lru order; /* the slots that may be taken */
    struct plan plan;
    struct expert_cache_stats stats;

    /* The lock covers slot states READING -> READY/FAILED and the landed list: all that reader
     * threads touch. Everything else belongs to the thread that drives the plan. */
    pthread_mutex_t lock;
    pthread_cond_t has_landed;
    uint32_t first_landed, last_landed;
};

static uint32_t *where_of(struct expert_cache *cache, uint32_t layer, uint32_t expert)
{
    return &cache->where[(size_t)layer * cache->n_experts + expert];
}

static void *slot_memory(struct expert_cache *cache, uint32_t slot)
{
    return cache->memory + (size_t)slot * cache->model->expert_slot_bytes;
}

/* Runs on a reader thread. */
static void slot_landed(struct expert_read *read, bool ok)
{
    struct expert_cache *cache = read->ctx;
    uint64_t at = (uint64_t)((const char *)read->dst - cache->memory);
    uint32_t i = (uint32_t)(at / cache->model->expert_slot_bytes);
    struct slot *slot = &cache->slots[i];
    pthread_mutex_lock(&cache->lock);
    slot->state = ok ? SLOT_READY : SLOT_FAILED;
    slot->next_landed = NO_SLOT;
    if (cache->last_landed != NO_SLOT)
        cache->slots[cache->last_landed].next_landed = i;
    else
        cache->first_landed = i;
    cache->last_landed = i;
    pthread_cond_signal(&cache->has_landed);
    pthread_mutex_unlock(&cache->lock);
}

/* Starts reads while there are slots to read into. */
static void start_reads(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    while (plan->next_missing < plan->n_missing) {
        uint32_t i = lru_take_oldest(&cache->order);
        if (i == LRU_NONE)
            return;
        struct slot *slot = &cache->slots[i];
        if (slot->state == SLOT_READY)
            *where_of(cache, slot->layer, slot->expert) = NO_SLOT;
        slot->plan_index = plan->missing[plan->next_missing++];
        slot->layer = plan->layer;
        slot->expert = plan->ids[slot->plan_index];
        slot->state = SLOT_READING;
        *where_of(cache, slot->layer, slot->expert) = i;
        plan->n_in_flight++;
        slot->read.expert_layer = slot->layer;
        slot->read.expert = slot->expert;
        slot->read.dst = slot_memory(cache, i);
        slot->read.urgency = READ_NEEDED;
        slot->read.done = slot_landed;
        slot->read.ctx = cache;
        expert_store_submit(cache->store, &slot->read);
    }
}

void expert_cache_begin(struct expert_cache *cache, uint32_t layer, const uint32_t *ids,
                        uint32_t n)
{
    struct plan *plan = &cache->plan;
    assert(!plan->is_open && n <= cache->n_experts);
    uint32_t *hit_slots = plan->hit_slots, *missing = plan->missing;
    *plan = (struct plan){.is_open = true, .layer = layer, .ids = ids, .hit_slots = hit_slots,
                          .missing = missing, .current = plan->current};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = *where_of(cache, layer, ids[i]);
        if (at == NO_SLOT) {
            missing[plan->n_missing++] = i;
            continue;
        }
        lru_remove(&cache->order, at);
        cache->slots[at].plan_index = i;
        hit_slots[plan->n_hits++] = at;
    }
    cache->stats.n_hits += plan->n_hits;
    cache->stats.n_misses += plan->n_missing;
    start_reads(cache);
}

static void release_current(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    for (uint32_t i = 0; i < plan->n_current; i++)
        lru_add_newest(&cache->order, plan->current[i]);
    plan->n_current = 0;
}

/* Empties a slot whose read failed, so that nobody takes its bytes for an expert. */
static void drop_failed(struct expert_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    *where_of(cache, slot->layer, slot->expert) = NO_SLOT;
    slot->state = SLOT_EMPTY;
    lru_add_newest(&cache->order, i);
}

/* A slot whose read is done, the first to land first; NO_SLOT when there is none and `polls`. */
static uint32_t take_landed(struct expert_cache *cache, bool polls)
{
    pthread_mutex_lock(&cache->lock);
    while (!polls && cache->first_landed == NO_SLOT)
        pthread_cond_wait(&cache->has_landed, &cache->lock);
    uint32_t i = cache->first_landed;
    if (i != NO_SLOT)
        cache->first_landed = cache->slots[i].next_landed;
    if (cache->first_landed == NO_SLOT)
        cache->last_landed = NO_SLOT;
    pthread_mutex_unlock(&cache->lock);
    if (i == NO_SLOT)
        return i;
    cache->plan.n_in_flight--;
    if (cache->slots[i].state == SLOT_READY)
        cache->stats.bytes_read += cache->model->expert_layers[cache->slots[i].layer].read_bytes;
    return i;
}

static void hand_out(struct expert_cache *cache, uint32_t slot, struct expert_item *items,
                     uint32_t *n)
{
    cache->plan.current[cache->plan.n_current++] = slot;
    items[(*n)++] = (struct expert_item){cache->slots[slot].plan_index, slot_memory(cache, slot)};
}

int expert_cache_next(struct expert_cache *cache, bool polls, struct expert_item *items,
                      uint32_t most, uint32_t *n, struct fm_error *err)
{
    struct plan *plan = &cache->plan;
    assert(plan->is_open && most > 0);
    *n = 0;
    release_current(cache);
    start_reads(cache);
    while (*n < most && plan->next_hit < plan->n_hits)
        hand_out(cache, plan->hit_slots[plan->next_hit++], items, n);
    while (*n < most && plan->n_in_flight > 0) {
        uint32_t i = take_landed(cache, polls || *n > 0);
        if (i == NO_SLOT)
            break;
        if (cache->slots[i].state == SLOT_FAILED) {
            int rc = expert_store_explain(cache->store, &cache->slots[i].read, err);
            drop_failed(cache, i);
            return rc;
        }
        hand_out(cache, i, items, n);
    }
    assert(*n > 0 || plan->n_in_flight > 0 || plan->next_missing == plan->n_missing);
    return *n > 0 || plan->n_in_flight > 0;
}

void expert_cache_end(struct expert_cache *cache)
{
    struct plan *plan = &cache->plan;
    assert(plan->is_open);
    release_current(cache);
    while (plan->next_hit < plan->n_hits)
        lru_add_newest(&cache->order, plan->hit_slots[plan->next_hit++]);
    while (plan->n_in_flight > 0) {
        uint32_t i = take_landed(cache, false);
        if (cache->slots[i].state == SLOT_FAILED)
            drop_failed(cache, i);
        else
            lru_add_newest(&cache->order, i);
    }
    plan->is_open = false;
}

/* ---- open and close ------------------------------------------------------------------------- */

static uint32_t most_experts(const struct model *model)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        most = model->expert_layers[i].n_experts > most ? model->expert_layers[i].n_experts : most;
    return most;
}

uint64_t expert_cache_bytes(const struct model *model, uint64_t n_slots)
{
    uint64_t per_slot = model->expert_slot_bytes + sizeof(struct slot) + 2 * sizeof(uint32_t);
    uint64_t n_experts = most_experts(model);
    return n_slots * per_slot + (model->n_expert_layers + 3) * n_experts * sizeof(uint32_t);
}

static int allocate(struct expert_cache *cache, struct fm_error *err)
{
    const struct model *model = cache->model;
    const uint64_t n_where = (uint64_t)model->n_expert_layers * cache->n_experts;
    uint64_t bytes;
    if (!mem_mul(cache->n_slots, model->expert_slot_bytes, &bytes))
        return err_set(err, FM_ERR_NOMEM, "size overflow: the expert cache");
    cache->memory = mem_new_bulk(bytes, "the expert cache", err);
    cache->slots = mem_new(cache->n_slots, sizeof *cache->slots, "the expert cache", err);
    cache->where = mem_new(n_where, sizeof *cache->where, "the expert cache", err);
    cache->plan.hit_slots = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    cache->plan.missing = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    cache->plan.current = mem_new(cache->n_experts, sizeof(uint32_t), "a plan", err);
    int rc = lru_init(&cache->order, cache->n_slots, err);
    if (rc != 0 || cache->memory == NULL || cache->slots == NULL || cache->where == NULL ||
        cache->plan.hit_slots == NULL || cache->plan.missing == NULL ||
        cache->plan.current == NULL)
        return FM_ERR_NOMEM;
    memset(cache->where, 0xff, n_where * sizeof *cache->where); /* NO_SLOT */
    for (uint32_t i = 0; i < cache->n_slots; i++)
        lru_add_newest(&cache->order, i);
    return 0;
}

int expert_cache_open(const struct model *model, struct expert_store *store, uint32_t n_slots,
                      struct expert_cache **out, struct fm_error *err)
{
    *out = NULL;
    struct expert_cache *cache = mem_new(1, sizeof *cache, "the expert cache", err);
    if (cache == NULL)
        return FM_ERR_NOMEM;
    cache->model = model;
    cache->store = store;
    cache->n_slots = n_slots;
    cache->n_experts = most_experts(model);
    cache->first_landed = cache->last_landed = NO_SLOT;
    cache->stats.n_slots = n_slots;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->has_landed, NULL);
    int rc = allocate(cache, err);
    if (rc != 0) {
        expert_cache_close(cache);
        return rc;
    }
    *out = cache;
    return 0;
}

void expert_cache_close(struct expert_cache *cache)
{
    if (cache == NULL)
        return;
    pthread_cond_destroy(&cache->has_landed);
    pthread_mutex_destroy(&cache->lock);
    lru_clear(&cache->order);
    mem_free(cache->plan.hit_slots);
    mem_free(cache->plan.missing);
    mem_free(cache->plan.current);
    mem_free(cache->where);
    mem_free(cache->slots);
    mem_free(cache->memory);
    mem_free(cache);
}

void expert_cache_stats(const struct expert_cache *cache, struct expert_cache_stats *stats)
{
    *stats = cache->stats;
}
