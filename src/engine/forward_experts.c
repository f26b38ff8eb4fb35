/* The routed experts of a layer. */
#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"

/* Gives up the segments whose rows chose an expert that cannot be read. The others do not need it,
 * and no row depends on another. Nobody reads what those rows get from this layer. */
static void fail_expert(const struct forward *f, uint32_t expert,
                        const struct batch_fault *fault)
{
    struct pass *pass = f->pass;
    const struct expert_groups *g = &f->groups;
    uint32_t p = g->start[expert];
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const uint32_t end = pass->segments[s].first_row + pass->segments[s].n_rows;
        const bool has_rows = p < g->start[expert + 1] && g->rows[p] < end;
        if (has_rows)
            pass->batch->hooks.fault(pass->batch->hooks.ctx, pass->in_batch[s], fault);
        while (p < g->start[expert + 1] && g->rows[p] < end)
            p++;
    }
    assert(p == g->start[expert + 1]); /* every row of the expert is in a segment */
}

void forward_verify_experts(struct forward *f)
{
    struct batch_fault fault = {.layer = (int)f->planned_layer};
    uint32_t index;
    while (f->cache != NULL && expert_cache_verify(f->cache, &index, &fault.err) < 0) {
        assert(index < f->groups.n_chosen);
        fault.expert = (int)f->groups.chosen[index].expert;
        fail_expert(f, (uint32_t)fault.expert, &fault);
    }
}

/* ---- the routed experts of one layer -------------------------------------------------------- */

static void group_rows(struct forward *f)
{
    struct expert_groups *g = &f->groups;
    const uint32_t n_experts = f->model->shape.n_experts;
    const uint32_t n_pairs = f->step.n_rows * f->model->shape.n_experts_per_token;
    memset(g->start, 0, (n_experts + 1) * sizeof *g->start);
    for (uint32_t p = 0; p < n_pairs; p++)
        g->start[f->ids[p] + 1]++;
    g->n_chosen = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        if (g->start[e + 1] > 0)
            g->chosen[g->n_chosen++] = (struct expert_use){.expert = e};
        g->start[e + 1] += g->start[e];
    }
    /* Filling moves each start to the next expert's; the shift back follows. */
    for (uint32_t p = 0; p < n_pairs; p++)
        g->pairs[g->start[f->ids[p]]++] = p;
    for (uint32_t p = 0; p < n_pairs; p++)
        g->rows[p] = g->pairs[p] / f->model->shape.n_experts_per_token;
    assert(n_experts == 0 || g->start[n_experts - 1] == n_pairs);
    memmove(g->start + 1, g->start, n_experts * sizeof *g->start);
    g->start[0] = 0;
}

/* Tokens at the end of a prompt whose experts the cache remembers. Earlier ones use nearly all
 * experts and say little about what comes next. */
#define TOKENS_REMEMBERED 32

/* Returns how many tokens of a segment the cache remembers; 0 when the prompt goes on. */
static uint32_t n_remembered(const struct batch_segment *s)
{
    if (s->n_tokens > 1 && !s->wants_last_logits && !s->wants_all_logits)
        return 0;
    return s->n_tokens < TOKENS_REMEMBERED ? s->n_tokens : TOKENS_REMEMBERED;
}

/* Fills in how the chosen experts are used. Returns how many tokens the layer's clock advances. */
static uint32_t count_uses(struct forward *f)
{
    struct pass *pass = f->pass;
    const struct expert_groups *g = &f->groups;
    uint32_t max = 0;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const uint32_t n = n_remembered(pass_segment(pass, s));
        max = n > max ? n : max;
    }
    for (uint32_t i = 0; i < g->n_chosen; i++) {
        struct expert_use *use = &g->chosen[i];
        uint32_t s = 0;
        use->idle = UINT32_MAX;
        for (uint32_t p = g->start[use->expert]; p < g->start[use->expert + 1]; p++) {
            const uint32_t row = g->rows[p];
            while (row >= pass->segments[s].first_row + pass->segments[s].n_rows)
                s++;
            assert(s < pass->n_segments);
            const uint32_t after = pass->segments[s].first_row + pass->segments[s].n_rows - 1 - row;
            if (after >= n_remembered(pass_segment(pass, s)))
                continue;
            use->n_uses++;
            use->idle = after < use->idle ? after : use->idle;
        }
    }
    return max;
}

/* Replaces the experts that the router chose, and keeps its weights in their order. Reads and
 * arithmetic are as many as before. Where both choices agree, nothing changes. */
static void replace_ids(struct forward *f, uint32_t expert_layer)
{
    const uint32_t k = f->model->shape.n_experts_per_token;
    const uint32_t of_all = f->model->first_expert_layer + expert_layer;
    for (uint32_t row = 0; row < f->step.n_rows; row++)
        f->options.replace_ids(f->options.replace_ctx, f->pass->positions[row], of_all,
                               f->ids + (size_t)row * k);
}

static void show_routes(const struct forward *f, uint32_t layer)
{
    struct pass *pass = f->pass;
    const size_t k = f->model->shape.n_experts_per_token;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const struct backend_segment *segment = &pass->segments[s];
        const size_t first = segment->first_row * k;
        if (!pass_segment(pass, s)->wants_routes)
            continue;
        memory_fetch(f->be->memory, f->weights + first, f->step.weights + first,
                     segment->n_rows * k * sizeof(float));
        for (uint32_t i = 0; i < segment->n_rows; i++)
            pass->batch->hooks.route(pass->batch->hooks.ctx, pass->in_batch[s], i, layer,
                                     f->ids + first + i * k, f->weights + first + i * k);
    }
}

/* Computes experts that are ready on all their rows. Each output has its own place in expert_parts,
 * so the order in which experts arrive does not matter. */
static void run_ready(struct forward *f, uint32_t layer, const struct expert_item *items,
                      uint32_t n, bool with_shared)
{
    const struct expert_groups *g = &f->groups;
    const uint64_t max = forward_max_ffn_rows(f->model, f->options.max_rows);
    struct step_expert experts[ARCH_EXPERTS_TOGETHER];
    uint32_t n_experts = 0;
    uint64_t n_rows = with_shared ? f->step.n_rows : 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t expert = g->chosen[items[i].index].expert, at = g->start[expert];
        const uint32_t rows = g->start[expert + 1] - at;
        if (n_rows + rows > max) {
            f->arch->experts(&f->step, layer, experts, n_experts, with_shared);
            with_shared = false;
            n_experts = 0;
            n_rows = 0;
        }
        assert(n_experts < ARCH_EXPERTS_TOGETHER && items[i].index < g->n_chosen);
        experts[n_experts++] = (struct step_expert){.slot = items[i].slot, .expert = expert,
                                                    .rows = g->rows + at,
                                                    .places = g->pairs + at, .n = rows};
        n_rows += rows;
    }
    f->arch->experts(&f->step, layer, experts, n_experts, with_shared);
}

/* Returns how many experts are computed together. With many rows one expert is enough work by
 * itself, and fewer pinned slots leave more slots to read into. */
static uint32_t experts_together(const struct forward *f)
{
    return f->step.n_rows <= 8 ? ARCH_EXPERTS_TOGETHER : 4;
}

/* Starts to read what the next layer will probably use, behind the reads that are needed now. */
static void look_ahead(struct forward *f, uint32_t layer, uint32_t expert_layer)
{
    lookahead_check(&f->lookahead, expert_layer, f->groups.chosen, f->groups.n_chosen);
    if (layer + 1 == f->model->end_layer)
        return;
    const uint32_t next = f->arch->expert_layer(f->model->arch, layer + 1);
    if (next == ARCH_NO_EXPERTS)
        return;
    const uint64_t k = f->model->shape.n_experts_per_token;
    f->arch->predict(&f->step, layer + 1);
    memory_fetch(f->be->memory, f->ahead_ids, f->step.ahead_ids, k * sizeof(uint32_t));
    memory_fetch(f->be->memory, f->ahead_weights, f->step.ahead_weights, k * sizeof(float));
    lookahead_guess(&f->lookahead, next, f->ahead_ids, f->ahead_weights);
}

/* Starts to read the next layer's experts while its rows are mixed, when this layer has used most
 * of its own: such rows will use most of the next layer's too. */
static void sweep_ahead(struct forward *f, uint32_t layer)
{
    const bool is_sweep = f->step.n_rows > 1 &&
                          4ull * f->groups.n_chosen >= 3ull * f->model->shape.n_experts;
    if (!is_sweep || f->options.lookahead == LOOKAHEAD_OFF || layer == f->model->end_layer)
        return;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (expert_layer != ARCH_NO_EXPERTS)
        expert_cache_sweep(f->cache, expert_layer);
}

/* Computes the experts of the plan. Resident ones and the shared one come first, while the others
 * are read; then each as it lands. Ends early when every segment is given up. */
static void run_plan(struct forward *f, uint32_t layer)
{
    struct expert_item items[ARCH_EXPERTS_TOGETHER];
    struct batch_fault fault = {.layer = (int)layer};
    const uint32_t max = experts_together(f);
    const uint64_t asked_ns = f->lap_ns;
    bool is_first = true;
    int rc;
    do {
        uint32_t n;
        rc = expert_cache_next(f->cache, is_first, items, max, &n, &fault.err);
        f->times.wait_ns += forward_lap(f);
        if (n > 0 || is_first) {
            f->times.read_ns = f->lap_ns - asked_ns; /* the last ones were missing, if any were */
            run_ready(f, layer, items, n, is_first);
            f->times.compute_ns += forward_lap(f);
        }
        if (rc < 0) {
            fault.expert = (int)f->groups.chosen[items[n].index].expert;
            fail_expert(f, (uint32_t)fault.expert, &fault);
        }
        is_first = false;
    } while (rc != 0 && !pass_all_given_up(f->pass));
}

void forward_run_experts(struct forward *f, uint32_t layer)
{
    struct step *step = &f->step;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (step->resident != NULL)
        expert_cache_resident(f->cache, expert_layer, f->resident);
    f->arch->route(step, layer);
    memory_fetch(f->be->memory, f->ids, step->ids,
                 (uint64_t)step->n_rows * f->model->shape.n_experts_per_token * sizeof(uint32_t));
    if (f->options.replace_ids != NULL)
        replace_ids(f, expert_layer);
    show_routes(f, layer);
    group_rows(f);
    const uint32_t n_tokens = count_uses(f);
    f->planned_layer = layer;
    expert_cache_begin(f->cache, expert_layer, n_tokens, f->groups.chosen, f->groups.n_chosen);
    if (f->lookahead.is_on)
        look_ahead(f, layer, expert_layer);
    f->times.route_ns = forward_lap(f);
    run_plan(f, layer);
    const bool is_over = pass_all_given_up(f->pass); /* then nobody wants the rest */
    expert_cache_end(f->cache);
    if (is_over)
        return;
    sweep_ahead(f, layer + 1);
    f->arch->close(step, layer);
    f->times.compute_ns += forward_lap(f);
}

