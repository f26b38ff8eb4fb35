/* The budget of an open engine. It follows the machine's free memory or what the program asks for,
 * and gives keys and values what they need. Only the number of cached experts changes, so no bit of
 * any result does. */
#include <assert.h>

#include "backend/gpu.h"
#include "engine/engine.h"

/* Between two looks. A look reads about twenty small files. */
#define LOOK_NS 250000000ull
/* Bytes of experts that are moved before a layer, which takes about a millisecond. */
#define MOVE_BYTES (8ull << 20)

bool elastic_is_on(const struct fm_model_options *options)
{
    struct plat_pressure seen;
    return options->elastic != FM_OFF && plat_memory_pressure(&seen);
}

/* Left free of the GPU's memory while others may take it: less than what is left at the start. */
#define DEVICE_RESERVE_BYTES (192ull << 20)

static void start_device(struct engine *e)
{
    const struct budget *b = &e->stages[0].device;
    e->elastic.device = (struct pressure){.min = b->min, .max = b->total, .budget = b->total,
                                          .reserve = DEVICE_RESERVE_BYTES,
                                          .ignores_stalls = true};
}

void elastic_start(struct engine *e)
{
    struct budget b;
    if (e->stages[0].has_gpu)
        start_device(e);
    engine_budget(e, &b);
    e->elastic.pressure = (struct pressure){.min = b.min, .max = b.max, .budget = b.total,
                                            .reserve = b.reserve};
    for (uint32_t i = 0; i < e->n_stages; i++)
        e->elastic.pressure.ignores_stalls |=
            e->stages[i].store != NULL && !expert_store_is_direct(e->stages[i].store);
}

static uint64_t sum_of_totals(const struct engine *e)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < e->n_stages; i++)
        sum += e->stages[i].budget.total;
    return sum;
}

static bool has_cache(const struct engine *e)
{
    uint32_t i = 0;
    while (i < e->n_stages && e->stages[i].cache == NULL)
        i++;
    return i < e->n_stages;
}

/* Bytes of a stage above its minimum: those that it can use, and others up to its maximum. */
struct room {
    uint64_t usable, idle;
};

static struct room room_of(const struct stage *stage)
{
    const struct budget *b = &stage->budget;
    const uint64_t usable = budget_usable(b, stage->model);
    return (struct room){usable - b->min, b->max > usable ? b->max - usable : 0};
}

/* Takes a stage's share of *spare bytes in proportion to its own part of *room. The last stage with
 * room takes the rest. */
static uint64_t take_share(uint64_t own, uint64_t *spare, uint64_t *room)
{
    uint64_t share = *spare;
    assert(own <= *room);
    if (own < *room) {
        const double exact = (double)*spare * ((double)own / (double)*room);
        share = exact < (double)own ? (uint64_t)exact : own;
    }
    assert(share <= *spare);
    *spare -= share;
    *room -= own;
    return share;
}

static void apply_to(struct engine *e, struct stage *stage, uint64_t total)
{
    const uint32_t n_before = stage->budget.n_slots;
    const uint32_t tier = stage_host_tier(stage);
    budget_change(&stage->budget, stage->model, total);
    const uint32_t n = stage->budget.n_slots;
    if (stage->cache == NULL || n == n_before || tier == CACHE_TIERS)
        return;
    (void)expert_cache_resize(stage->cache, tier, n);
    e->elastic.n_shrinks += n < n_before;
    e->elastic.n_grows += n > n_before;
}

/* Divides the total among the stages. Memory that a stage cannot use is given out last, so that it
 * takes nothing from the caches and the keys and values of others. */
static void apply(struct engine *e, uint64_t total)
{
    struct budget b;
    struct room room = {0};
    engine_budget(e, &b);
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct room own = room_of(&e->stages[i]);
        room.usable += own.usable;
        room.idle += own.idle;
    }
    const uint64_t spare = total > b.min ? total - b.min : 0;
    struct room left = {.usable = spare < room.usable ? spare : room.usable};
    left.idle = spare - left.usable;
    for (uint32_t i = 0; i < e->n_stages; i++) {
        const struct room own = room_of(&e->stages[i]);
        const uint64_t share = take_share(own.usable, &left.usable, &room.usable) +
                               take_share(own.idle, &left.idle, &room.idle);
        apply_to(e, &e->stages[i], e->stages[i].budget.min + share);
    }
    assert(left.usable == 0 && left.idle == 0);
}

uint64_t elastic_kv_max(const struct engine *e)
{
    const struct elastic *el = &e->elastic;
    struct plat_pressure seen;
    if (e->stages[0].has_gpu)
        return e->stages[0].device.total;
    return el->is_on && plat_memory_pressure(&seen) ? pressure_raised(&el->pressure, &seen)
                                                    : el->pressure.max;
}

/* Has the cache follow the budget of the GPU's memory. A larger one may find that others have the
 * memory meanwhile; then the budget does not grow. */
static void resize_device(struct engine *e, struct stage *stage, uint32_t n_before)
{
    struct budget *b = &stage->device;
    if (stage->cache == NULL || b->n_slots == n_before)
        return;
    const uint32_t n = expert_cache_resize(stage->cache, 0, b->n_slots);
    const uint64_t missing = (b->n_slots - n) * stage->model->expert_slot_bytes;
    if (n < b->n_slots)
        budget_change(b, stage->model, b->total - missing > b->min ? b->total - missing : b->min);
    b->n_slots = n;
    e->elastic.device.budget = b->total;
}

/* Keys and values of a GPU take the place of experts in its memory. */
static bool change_device_kv(struct engine *e, struct stage *stage, uint64_t kv)
{
    struct budget *b = &stage->device;
    const uint32_t n_before = b->n_slots;
    if (!budget_change_kv(b, stage->model, kv, b->total))
        return false;
    e->elastic.device.min = b->min;
    resize_device(e, stage, n_before);
    if (stage->cache != NULL)
        expert_cache_settle(stage->cache);
    return true;
}

/* The same for the GPU's memory as for the host's: others may need some of it. Returns whether
 * hardly any is left. */
static bool follow_device(struct engine *e, uint64_t now_ns)
{
    struct stage *stage = &e->stages[0];
    struct budget *b = &stage->device;
    struct elastic *el = &e->elastic;
    const uint32_t n_before = b->n_slots;
    const struct plat_pressure seen = {
        .available = backend_gpu_free_bytes(stage->be),
        .own = b->dense + b->sessions + b->kv + b->scratch + b->cache};
    bool is_urgent;
    const uint64_t budget = pressure_follow(&el->device, now_ns, &seen, &is_urgent);
    if (budget == b->total)
        return false;
    budget_change(b, stage->model, budget);
    resize_device(e, stage, n_before);
    el->n_shrinks += b->n_slots < n_before;
    el->n_grows += b->n_slots > n_before;
    return is_urgent;
}

/* Has the other stages free `bytes`, each in proportion to what it has above its minimum. Returns
 * false, and changes nothing, when they cannot. */
static bool take_from_others(struct engine *e, const struct stage *stage, uint64_t bytes)
{
    uint64_t room = 0;
    for (uint32_t i = 0; i < e->n_stages; i++)
        if (&e->stages[i] != stage)
            room += e->stages[i].budget.total - e->stages[i].budget.min;
    if (room < bytes)
        return false;
    for (uint32_t i = 0; i < e->n_stages && bytes > 0; i++) {
        struct stage *other = &e->stages[i];
        const uint64_t total = other->budget.total;
        if (other == stage)
            continue;
        apply_to(e, other, total - take_share(total - other->budget.min, &bytes, &room));
        if (other->cache != NULL)
            expert_cache_settle(other->cache);
    }
    return true;
}

bool elastic_change_kv(struct engine *e, struct stage *stage, uint64_t kv)
{
    if (stage->has_gpu)
        return change_device_kv(e, stage, kv);
    struct pressure *p = &e->elastic.pressure;
    struct budget *b = &stage->budget;
    const uint32_t n_before = b->n_slots;
    const uint64_t max = kv > b->kv ? elastic_kv_max(e) : p->max;
    const uint64_t all = sum_of_totals(e) - b->total + budget_min_with_kv(b, stage->model, kv);
    if (kv > b->kv && all > max && !take_from_others(e, stage, all - max))
        return false;
    (void)budget_change_kv(b, stage->model, kv, UINT64_MAX); /* there is room now */
    struct budget sum;
    engine_budget(e, &sum);
    p->min = sum.min;
    p->budget = sum.total;
    if (stage->cache != NULL && b->n_slots != n_before) {
        (void)expert_cache_resize(stage->cache, 0, b->n_slots);
        expert_cache_settle(stage->cache);
    }
    return true;
}

void elastic_step(struct engine *e)
{
    struct elastic *el = &e->elastic;
    struct plat_pressure seen;
    bool is_urgent = false;
    if (!has_cache(e))
        return;
    const uint64_t now_ns = el->is_on ? plat_now_ns() : 0;
    if (el->is_on && now_ns >= el->next_ns && plat_memory_pressure(&seen)) {
        const uint64_t budget = pressure_follow(&el->pressure, now_ns, &seen, &is_urgent);
        if (budget != sum_of_totals(e))
            apply(e, budget);
        if (e->stages[0].has_gpu)
            is_urgent |= follow_device(e, now_ns);
        el->next_ns = now_ns + LOOK_NS;
    }
    for (uint32_t i = 0; i < e->n_stages; i++)
        if (e->stages[i].cache != NULL)
            (void)expert_cache_shrink(e->stages[i].cache, is_urgent ? UINT64_MAX : MOVE_BYTES);
}

static int too_small(const struct engine *e, uint64_t bytes, struct fm_error *err)
{
    struct budget sum = {0};
    for (uint32_t i = 0; i < e->n_stages; i++) {
        struct budget b = e->stages[i].budget;
        budget_shrink(&b, e->stages[i].model);
        budget_add(&sum, &b);
    }
    sum.total = bytes;
    return budget_does_not_fit(&sum, e->model, sum.min, err);
}

int elastic_set(struct engine *e, uint64_t bytes, struct fm_error *err)
{
    struct pressure *p = &e->elastic.pressure;
    struct budget b;
    engine_budget(e, &b);
    if (bytes < b.min)
        return too_small(e, bytes, err);
    p->max = bytes < b.max ? bytes : b.max;
    p->budget = p->max;
    apply(e, p->max);
    for (uint32_t i = 0; i < e->n_stages; i++)
        if (e->stages[i].cache != NULL)
            expert_cache_settle(e->stages[i].cache);
    return 0;
}

int elastic_set_device(struct engine *e, uint64_t bytes, struct fm_error *err)
{
    struct stage *stage = &e->stages[0];
    struct budget *b = &stage->device;
    struct budget least = *b;
    assert(stage->has_gpu);
    budget_shrink(&least, stage->model);
    least.total = bytes;
    if (bytes < b->min)
        return budget_does_not_fit(&least, stage->model, b->min, err);
    const uint32_t n_before = b->n_slots;
    budget_change(b, stage->model, bytes < b->max ? bytes : b->max);
    e->elastic.device.max = e->elastic.device.budget = b->total;
    resize_device(e, stage, n_before);
    if (stage->cache != NULL)
        expert_cache_settle(stage->cache);
    return 0;
}
