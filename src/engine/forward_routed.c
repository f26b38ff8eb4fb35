/* Layers whose experts are all resident in the backend's own memory. The backend looks up the
 * experts that its router chose, and the host queues the next layer at once: a token of such layers
 * waits only for its logits. Which experts were used is fetched with them and counted then. */
#include <assert.h>
#include <string.h>

#include "base/limits.h"
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
    if (f->cache == NULL || f->be->ops->ffn_routed == NULL || f->be->memory->is_host ||
        f->options.replace_ids != NULL)
        return 0;
    f->routed.bases = memory_make(f->be->memory, n_layers * bases_bytes(f), "a table of experts",
                                  err);
    return f->routed.bases != NULL ? 0 : FM_ERR_NOMEM;
}

void forward_close_routed(struct forward *f)
{
    if (f->routed.bases != NULL)
        memory_free(f->be->memory, f->routed.bases);
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
}

/* Whether the next layer has experts that may have to be read: then this one looks ahead. */
static bool must_look_ahead(struct forward *f, uint32_t layer)
{
    uint64_t generation;
    if (!f->lookahead.is_on || layer + 1 == f->model->end_layer)
        return false;
    const uint32_t next = f->arch->expert_layer(f->model->arch, layer + 1);
    return next != ARCH_NO_EXPERTS && !expert_cache_has_all(f->cache, next, &generation);
}

/* Writes down where the experts of a layer are. Waits first, because queued operations may use what
 * is written over. */
static void update_bases(struct forward *f, uint32_t expert_layer, uint64_t generation)
{
    if (f->routed.generations[expert_layer] == generation)
        return;
    uint64_t *at = bases_of(f, expert_layer);
    memory_finish(f->be->memory);
    expert_cache_bases(f->cache, expert_layer,
                       memory_open(f->be->memory, at, bases_bytes(f), MEMORY_FILL));
    memory_close(f->be->memory, at, bases_bytes(f));
    f->routed.generations[expert_layer] = generation;
}

/* Returns where the ids of a layer begin, in words. */
static size_t ids_at(const struct forward *f, uint32_t expert_layer)
{
    return (size_t)expert_layer * f->routed.n_rows * f->model->shape.n_experts_per_token;
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
    if (!r->is_on || !expert_cache_has_all(f->cache, expert_layer, &generation) ||
        must_look_ahead(f, layer))
        return false;
    update_bases(f, expert_layer, generation);
    uint32_t *ids = step->ids;
    step->ids = r->ids + ids_at(f, expert_layer);
    f->arch->route(step, layer);
    f->arch->routed(step, layer, &(struct step_routed){.slot = expert_cache_origin(f->cache),
                                                       .bases = bases_of(f, expert_layer)});
    step->ids = ids;
    expert_cache_use_all(f->cache);
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
    if (r->n_pending > 0 && !r->is_seen)
        memory_fetch(f->be->memory, r->ids_seen, r->ids, forward_pending_ids(f) * sizeof *r->ids);
    for (uint32_t l = 0; r->n_pending > 0; l++) {
        assert(l < f->model->n_expert_layers);
        if (!r->is_pending[l])
            continue;
        forward_show_drafts(f, l, r->ids_seen + ids_at(f, l));
        const uint32_t n = forward_uses(f, r->ids_seen + ids_at(f, l), uses);
        expert_cache_count(f->cache, l, n_tokens, uses, n);
        r->is_pending[l] = false;
        r->n_pending--;
    }
}
