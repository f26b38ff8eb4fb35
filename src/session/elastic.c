/* The budget of an open model: follows the machine's memory, or the host's wish, and gives keys and
 * values what they need of it. What it changes is how many experts the cache holds, and therefore
 * no bit of any result. */
#include <string.h>

#include "session/engine_internal.h"

/* Between two looks, which cost some twenty small files. */
#define LOOK_NS 250000000ull
/* Experts that are moved before a layer: about a millisecond. */
#define MOVE_BYTES (8ull << 20)

int elastic_choose(struct elastic *e, const struct fm_model_options *options, struct fm_error *err)
{
    const char *word = options->elastic != NULL ? options->elastic : "on";
    struct plat_pressure seen;
    if (strcmp(word, "on") != 0 && strcmp(word, "off") != 0)
        return err_set(err, FM_ERR_ARG, "the budget can be elastic on or off, not '%s'", word);
    e->is_on = strcmp(word, "on") == 0 && plat_memory_pressure(&seen);
    return 0;
}

void elastic_start(struct fm_model *m)
{
    const struct budget *b = &m->budget;
    m->elastic.pressure = (struct pressure){.least = b->least, .most = b->most,
                                            .reserve = b->reserve, .budget = b->total};
    m->elastic.pressure.ignores_stalls = m->store != NULL && !expert_store_is_direct(m->store);
}

static void apply(struct fm_model *m, uint64_t total)
{
    const uint32_t n_before = m->budget.n_slots;
    budget_change(&m->budget, m->model, total);
    const uint32_t n = m->budget.n_slots;
    if (n == n_before)
        return;
    expert_cache_resize(m->cache, n);
    m->elastic.n_shrinks += n < n_before;
    m->elastic.n_grows += n > n_before;
}

uint64_t elastic_kv_most(const struct fm_model *m)
{
    const struct elastic *e = &m->elastic;
    struct plat_pressure seen;
    return e->is_on && plat_memory_pressure(&seen) ? pressure_raised(&e->pressure, &seen)
                                                   : e->pressure.most;
}

bool elastic_change_kv(struct fm_model *m, uint64_t kv)
{
    struct pressure *p = &m->elastic.pressure;
    const uint32_t n_before = m->budget.n_slots;
    const uint64_t most = kv > m->budget.kv ? elastic_kv_most(m) : p->most;
    if (!budget_change_kv(&m->budget, m->model, kv, most))
        return false;
    p->least = m->budget.least;
    p->budget = m->budget.total;
    if (m->cache != NULL && m->budget.n_slots != n_before) {
        expert_cache_resize(m->cache, m->budget.n_slots);
        expert_cache_settle(m->cache);
    }
    return true;
}

void elastic_step(struct fm_model *m)
{
    struct elastic *e = &m->elastic;
    struct plat_pressure seen;
    bool is_urgent = false;
    if (m->cache == NULL)
        return;
    const uint64_t now_ns = e->is_on ? plat_now_ns() : 0;
    if (e->is_on && now_ns >= e->next_ns && plat_memory_pressure(&seen)) {
        const uint64_t budget = pressure_follow(&e->pressure, now_ns, &seen, &is_urgent);
        if (budget != m->budget.total)
            apply(m, budget);
        e->next_ns = now_ns + LOOK_NS;
    }
    (void)expert_cache_shrink(m->cache, is_urgent ? UINT64_MAX : MOVE_BYTES);
}

int fm_model_set_memory(struct fm_model *m, uint64_t bytes, struct fm_error *err)
{
    struct budget *b = &m->budget;
    if (m->is_metadata_only)
        return err_set(err, FM_ERR_ARG, "the model was opened for its metadata only");
    if (bytes < b->least)
        return budget_too_small(b, m->model, bytes, err);
    m->elastic.pressure.most = bytes < b->most ? bytes : b->most;
    m->elastic.pressure.budget = m->elastic.pressure.most;
    if (m->cache == NULL) {
        b->total = m->elastic.pressure.most;
        return 0;
    }
    apply(m, m->elastic.pressure.most);
    expert_cache_settle(m->cache);
    return 0;
}
