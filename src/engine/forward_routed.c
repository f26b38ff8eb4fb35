/* Layers whose experts are all where the backend can read them: in its own memory, or on locked
 * pages of the host's. The backend looks up the experts that its router chose, and the host queues
 * the next layer at once: a token of such layers waits only for its logits. Which experts were used
 * is fetched with them and counted then. */
#include <assert.h>
#include <string.h>

#include "base/limits.h"
#include "base/link.h"
#include "engine/forward_internal.h"

uint64_t forward_max_ids(const struct model *model)
{
    return (uint64_t)model->n_expert_layers * BACKEND_ROUTED_ROWS *
           model->shape.n_experts_per_token;
}

static uint64_t *bases_of(const struct forward *f, uint32_t expert_layer)
{
    return f->routed.bases + (size_t)expert_layer * f->model->shape.n_experts;
}

static uint64_t bases_bytes(const struct forward *f)
{
    return f->model->shape.n_experts * sizeof(uint64_t);
}

int forward_open_routed(struct forward *f, struct fm_error *err)
{
    const uint32_t n_layers = f->model->n_expert_layers;
    memset(f->routed.generations, 0, n_layers * sizeof *f->routed.generations);
    memset(f->routed.is_pending, 0, n_layers * sizeof *f->routed.is_pending);
    const struct memory *m = f->be->memory;
    if (f->cache == NULL || f->be->ops->ffn_routed == NULL || m->is_host)
        return 0;
    f->routed.bases = memory_make(m, n_layers * bases_bytes(f), "a table of experts", err);
    if (f->routed.bases == NULL)
        return FM_ERR_NOMEM;
    f->routed.reach.is_possible = f->options.has_far && f->far.is_pinned &&
                                  m->link->sees(m, f->far.gate, sizeof *f->far.gate);
    if (f->options.replace_ids == NULL)
        return 0;
    f->routed.given = memory_make(m, forward_max_ids(f->model) * sizeof(uint32_t),
                                  "a table of routes", err);
    return f->routed.given != NULL ? 0 : FM_ERR_NOMEM;
}

void forward_close_routed(struct forward *f)
{
    if (f->routed.bases != NULL)
        memory_free(f->be->memory, f->routed.bases);
    if (f->routed.given != NULL)
        memory_free(f->be->memory, f->routed.given);
}

/* Returns whether the backend finds all experts of a layer, and what says that they have moved. */
static bool finds_all(struct forward *f, uint32_t expert_layer, uint64_t *generation)
{
    return f->routed.is_reaching ? expert_cache_reaches(f->cache, expert_layer, generation)
                                 : expert_cache_has_all(f->cache, expert_layer, generation);
}

/* Writes down where the experts of the layers [first, end) are. Returns whether all of them are
 * found. */
static bool update_bases(struct forward *f, uint32_t first, uint32_t end)
{
    struct forward_routed *r = &f->routed;
    const struct memory *m = f->be->memory;
    const size_t n = f->model->shape.n_experts;
    uint32_t first_new = end, end_new = first;
    bool has_all = true;
    for (uint32_t l = first; l < end; l++) {
        uint64_t generation;
        const bool is_whole = finds_all(f, l, &generation);
        has_all &= is_whole;
        if (!is_whole || r->generations[l] == generation)
            continue;
        expert_cache_bases(f->cache, l, r->table + l * n);
        r->generations[l] = generation;
        first_new = l < first_new ? l : first_new;
        end_new = l + 1;
    }
    if (first_new < end_new)
        m->link->upload(m, bases_of(f, first_new), r->table + first_new * n,
                        (end_new - first_new) * bases_bytes(f));
    return has_all;
}

/* Returns where the ids of a layer begin, in words. */
static size_t ids_at(const struct forward *f, uint32_t expert_layer)
{
    return (size_t)expert_layer * f->routed.n_rows * f->model->shape.n_experts_per_token;
}

/* Has the backend know the experts that replace those that the routers will choose. */
static void give_ids(struct forward *f)
{
    struct forward_routed *r = &f->routed;
    const struct memory *m = f->be->memory;
    const uint32_t k = f->model->shape.n_experts_per_token;
    const uint32_t n_layers = model_n_own_expert_layers(f->model);
    for (uint32_t l = 0; l < n_layers; l++)
        for (uint32_t row = 0; row < f->pass->n_rows; row++)
            f->options.replace_ids(f->options.replace_ctx, f->pass->positions[row],
                                   f->model->first_expert_layer + l,
                                   r->given_seen + ids_at(f, l) + (size_t)row * k);
    m->link->upload(m, r->given, r->given_seen, ids_at(f, n_layers) * sizeof *r->given);
}

static uint64_t n_misses(const struct forward *f)
{
    struct expert_cache_stats stats;
    expert_cache_stats(f->cache, &stats);
    return stats.n_misses;
}

/* More rows are better off with the experts' rows together, so that each is read once. A pass that
 * is watched asks in every layer: its experts, or the time that each layer takes. */
void forward_begin_routed(struct forward *f)
{
    const struct pass *pass = f->pass;
    const uint64_t n_rows = pass->n_rows, k = f->model->shape.n_experts_per_token;
    struct forward_routed *r = &f->routed;
    assert(r->n_pending == 0);
    r->n_rows = pass->n_rows;
    r->is_on = r->bases != NULL && !f->is_timed && f->step.resident == NULL &&
               n_rows <= BACKEND_ROUTED_ROWS &&
               n_rows * (k + 1) <= forward_max_ffn_rows(f->model, f->options.max_rows);
    for (uint32_t s = 0; s < pass->n_segments; s++)
        r->is_on &= !pass_segment(pass, s)->wants_routes;
    r->is_reaching = r->is_on && r->reach.is_possible &&
                     reach_begin(&r->reach, r->n_rows, n_misses(f));
    r->has_reached = false;
    if (!r->is_on)
        return;
    expert_cache_look(f->cache);
    (void)update_bases(f, 0, f->model->n_expert_layers);
    forward_follow_routed(f);
}

void forward_follow_routed(struct forward *f)
{
    if (f->routed.is_on && f->routed.given != NULL)
        give_ids(f);
}

void forward_end_routed(struct forward *f)
{
    struct forward_routed *r = &f->routed;
    const bool is_whole = f->pass->n_rows == r->n_rows; /* no row was given up */
    if (r->is_on && r->reach.is_possible && is_whole && r->has_reached == r->is_reaching)
        reach_end(&r->reach, r->n_rows, r->is_reaching, n_misses(f));
}

/* Whether the next layer has experts that may have to be read: then this one looks ahead. */
static bool must_look_ahead(struct forward *f, uint32_t layer)
{
    uint64_t generation;
    if (!f->lookahead.is_on || layer + 1 == f->model->end_layer)
        return false;
    const uint32_t next = f->arch->expert_layer(f->model->arch, layer + 1);
    return next != ARCH_NO_EXPERTS && !finds_all(f, next, &generation);
}

uint64_t forward_pending_ids(const struct forward *f)
{
    return f->routed.n_pending > 0 ? ids_at(f, f->model->n_expert_layers) : 0;
}

bool forward_run_routed(struct forward *f, uint32_t layer)
{
    struct forward_routed *r = &f->routed;
    struct step *step = &f->step;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    uint64_t generation;
    if (!r->is_on || !finds_all(f, expert_layer, &generation) || must_look_ahead(f, layer))
        return false;
    far_settle(f); /* which may move experts of this layer, too */
    if (!update_bases(f, expert_layer, expert_layer + 1))
        return false;
    uint32_t *ids = step->ids;
    step->ids = r->ids + ids_at(f, expert_layer);
    f->arch->route(step, layer);
    if (r->given != NULL && layer < f->model->end_layer)
        step->ids = r->given + ids_at(f, expert_layer);
    f->arch->routed(step, layer, &(struct step_routed){.slot = expert_cache_origin(f->cache),
                                                       .bases = bases_of(f, expert_layer)});
    step->ids = ids;
    expert_cache_use_all(f->cache);
    r->has_reached |= r->is_reaching;
    r->is_pending[expert_layer] = true;
    r->n_pending++;
    r->is_seen = false;
    f->arch->close(step, layer);
    return true;
}

void forward_count_routed(struct forward *f)
{
    struct forward_routed *r = &f->routed;
    struct expert_use uses[BACKEND_ROUTED_ROWS * LIMIT_TOP_K];
    const uint32_t n_tokens = forward_n_tokens(f);
    const uint32_t *chosen = r->given != NULL ? r->given_seen : r->ids_seen;
    if (r->n_pending > 0 && !r->is_seen)
        memory_fetch(f->be->memory, r->ids_seen, r->ids, forward_pending_ids(f) * sizeof *r->ids);
    for (uint32_t l = 0; r->n_pending > 0; l++) {
        assert(l < f->model->n_expert_layers);
        if (!r->is_pending[l])
            continue;
        forward_show_drafts(f, l, chosen + ids_at(f, l));
        const uint32_t n = forward_uses(f, chosen + ids_at(f, l), uses);
        expert_cache_count(f->cache, l, n_tokens, uses, n);
        r->is_pending[l] = false;
        r->n_pending--;
    }
}
