/* The routed experts of a layer. */
#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"

/* Experts of many rows that a processor computes together while others are read. */
#define READ_TOGETHER 4

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

/* Returns how many tokens of a segment the cache remembers; 0 when the prompt goes on. Drafts count
 * when they are accepted. */
static uint32_t n_remembered(const struct batch_segment *s)
{
    if (s->n_drafts > 0)
        return s->n_tokens - s->n_drafts;
    if (s->n_tokens > 1 && !s->wants_last_logits && !s->wants_all_logits)
        return 0;
    return s->n_tokens < TOKENS_REMEMBERED ? s->n_tokens : TOKENS_REMEMBERED;
}

uint32_t forward_n_tokens(const struct forward *f)
{
    uint32_t max = 0;
    for (uint32_t s = 0; s < f->pass->n_segments; s++) {
        const uint32_t n = n_remembered(pass_segment(f->pass, s));
        max = n > max ? n : max;
    }
    return max;
}

/* Adds a row of segment s to how an expert is used. */
static void add_use(const struct forward *f, uint32_t s, uint32_t row, struct expert_use *use)
{
    const struct backend_segment *segment = &f->pass->segments[s];
    const struct batch_segment *wanted = pass_segment(f->pass, s);
    uint32_t after = segment->first_row + segment->n_rows - 1 - row;
    if (after < wanted->n_drafts || after - wanted->n_drafts >= n_remembered(wanted))
        return;
    after -= wanted->n_drafts;
    use->n_uses++;
    use->idle = after < use->idle ? after : use->idle;
}

/* Fills in how the chosen experts are used. */
static void count_uses(struct forward *f)
{
    const struct pass *pass = f->pass;
    const struct expert_groups *g = &f->groups;
    for (uint32_t i = 0; i < g->n_chosen; i++) {
        struct expert_use *use = &g->chosen[i];
        uint32_t s = 0;
        use->idle = UINT32_MAX;
        for (uint32_t p = g->start[use->expert]; p < g->start[use->expert + 1]; p++) {
            while (g->rows[p] >= pass->segments[s].first_row + pass->segments[s].n_rows)
                s++;
            assert(s < pass->n_segments);
            add_use(f, s, g->rows[p], use);
        }
    }
}

/* Returns the use of an expert, which is inserted if it is not there. A row's experts are
 * ascending, so the search begins at the end. */
static struct expert_use *use_of(struct expert_use *uses, uint32_t *n, uint32_t expert)
{
    uint32_t i = *n;
    while (i > 0 && uses[i - 1].expert > expert)
        i--;
    if (i > 0 && uses[i - 1].expert == expert)
        return &uses[i - 1];
    memmove(uses + i + 1, uses + i, (*n - i) * sizeof *uses);
    uses[i] = (struct expert_use){.expert = expert, .idle = UINT32_MAX};
    (*n)++;
    return &uses[i];
}

uint32_t forward_uses(const struct forward *f, const uint32_t *ids, struct expert_use *uses)
{
    const uint32_t k = f->model->shape.n_experts_per_token;
    uint32_t n = 0;
    for (uint32_t s = 0; s < f->pass->n_segments; s++) {
        const struct backend_segment *segment = &f->pass->segments[s];
        for (uint32_t i = 0; i < segment->n_rows * k; i++) {
            const uint32_t row = segment->first_row + i / k;
            add_use(f, s, row, use_of(uses, &n, ids[segment->first_row * k + i]));
        }
    }
    return n;
}

/* Replaces the experts that the router chose, or that lookahead predicted, and keeps its weights in
 * their order. Reads and arithmetic are as many as before. Where both choices agree, nothing
 * changes. */
static void replace_ids(struct forward *f, replace_ids_fn *replace, uint32_t expert_layer,
                        uint32_t *ids)
{
    const uint32_t k = f->model->shape.n_experts_per_token;
    const uint32_t of_all = f->model->first_expert_layer + expert_layer;
    for (uint32_t row = 0; row < f->step.n_rows; row++)
        replace(f->options.replace_ctx, f->pass->positions[row], of_all, ids + (size_t)row * k);
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

void forward_show_drafts(const struct forward *f, uint32_t expert_layer, const uint32_t *ids)
{
    const struct pass *pass = f->pass;
    const size_t k = f->model->shape.n_experts_per_token;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const uint32_t n = pass_segment(pass, s)->n_drafts;
        const size_t first = pass->segments[s].first_row + pass->segments[s].n_rows - n;
        for (uint32_t i = 0; i < n; i++)
            pass->batch->hooks.draft_experts(pass->batch->hooks.ctx, pass->in_batch[s], i,
                                             f->model->first_expert_layer + expert_layer,
                                             ids + (first + i) * k);
    }
}

struct step_expert forward_expert(const struct forward *f, const struct expert_item *item,
                                  const void *slot)
{
    const struct expert_groups *g = &f->groups;
    assert(item->index < g->n_chosen);
    const uint32_t expert = g->chosen[item->index].expert, at = g->start[expert];
    return (struct step_expert){.slot = slot, .expert = expert, .rows = g->rows + at,
                                .places = g->pairs + at, .n = g->start[expert + 1] - at};
}

/* Each output has its own place in expert_parts, so the order in which experts arrive does not
 * matter. */
void forward_compute(struct forward *f, uint32_t layer, const struct step_expert *experts,
                     uint32_t n, bool with_shared)
{
    const uint64_t max = forward_max_ffn_rows(f->model, f->options.max_rows);
    uint64_t n_rows = with_shared ? f->step.n_rows : 0;
    uint32_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_rows + experts[i].n > max) {
            f->arch->experts(&f->step, layer, experts + first, i - first, with_shared);
            with_shared = false;
            first = i;
            n_rows = 0;
        }
        n_rows += experts[i].n;
    }
    f->arch->experts(&f->step, layer, experts + first, n - first, with_shared);
}

/* Computes experts that are where the backend computes. */
static void run_ready(struct forward *f, uint32_t layer, const struct expert_item *items,
                      uint32_t n, bool with_shared)
{
    struct step_expert experts[ARCH_EXPERTS_TOGETHER];
    assert(n <= ARCH_EXPERTS_TOGETHER);
    for (uint32_t i = 0; i < n; i++)
        experts[i] = forward_expert(f, &items[i], items[i].slot);
    forward_compute(f, layer, experts, n, with_shared);
}

/* Computes experts that were handed out together: those where the backend computes and the shared
 * one first, then those in the host's memory beside it, then those that are on their way. */
static void run_items(struct forward *f, uint32_t layer, const struct expert_item *items,
                      uint32_t n, bool with_shared)
{
    enum { HERE, FAR, ARRIVING, N_WHERE };
    struct expert_item sorted[N_WHERE][ARCH_EXPERTS_TOGETHER];
    uint32_t count[N_WHERE] = {0};
    struct far_work work;
    if (!f->options.has_far) {
        run_ready(f, layer, items, n, with_shared);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const unsigned where = items[i].tier == 1 ? FAR : items[i].is_arriving ? ARRIVING : HERE;
        sorted[where][count[where]++] = items[i];
    }
    far_begin(f, layer, &work, sorted[FAR], count[FAR]);
    if (count[HERE] > 0 || with_shared)
        run_ready(f, layer, sorted[HERE], count[HERE], with_shared);
    far_end(f, layer, &work);
    if (count[ARRIVING] > 0) {
        expert_cache_join(f->cache);
        run_ready(f, layer, sorted[ARRIVING], count[ARRIVING], false);
    }
}

/* Returns how many experts of a layer are computed together. Threads meet after each time, so many
 * are better: those of a prompt of 512 tokens have about ten rows each. But what is computed holds
 * its slots, and where experts are read, reads need them. */
static uint32_t experts_together(const struct forward *f, uint32_t expert_layer)
{
    uint64_t generation;
    const bool is_little = f->step.n_rows <= 8 || !f->be->memory->is_host;
    return is_little || expert_cache_has_all(f->cache, expert_layer, &generation)
               ? ARCH_EXPERTS_TOGETHER : READ_TOGETHER;
}

/* Starts to read what the rows will probably use in the next layer, behind the reads that are
 * needed now. */
static void look_ahead(struct forward *f, uint32_t layer, uint32_t expert_layer)
{
    lookahead_check(&f->lookahead, expert_layer, f->groups.chosen, f->groups.n_chosen);
    if (layer + 1 == f->model->end_layer)
        return;
    const uint32_t next = f->arch->expert_layer(f->model->arch, layer + 1);
    if (next == ARCH_NO_EXPERTS)
        return;
    const uint64_t n = (uint64_t)f->step.n_rows * f->model->shape.n_experts_per_token;
    f->arch->predict(&f->step, layer + 1);
    memory_fetch(f->be->memory, f->ahead_ids, f->step.ahead_ids, n * sizeof(uint32_t));
    memory_fetch(f->be->memory, f->ahead_weights, f->step.ahead_weights, n * sizeof(float));
    if (f->options.predict_ids != NULL)
        replace_ids(f, f->options.predict_ids, next, f->ahead_ids);
    lookahead_guess(&f->lookahead, next, f->ahead_ids, f->ahead_weights, f->step.n_rows);
}

/* Starts to read the next layer's experts while its rows are mixed, when this layer has used most
 * of its own: such rows will use most of the next layer's too. */
static void sweep_ahead(struct forward *f, uint32_t layer)
{
    const bool is_sweep = f->step.n_rows > 1 &&
                          4ull * f->groups.n_chosen >= 3ull * f->model->shape.n_experts;
    if (!is_sweep || f->options.lookahead == LOOKAHEAD_OFF || layer >= f->model->end_layer)
        return;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (expert_layer == ARCH_NO_EXPERTS)
        return;
    expert_cache_sweep(f->cache, expert_layer);
    if (f->options.has_far && f->step.n_rows > FAR_ROWS)
        far_send_ahead(f, expert_layer);
}

/* Computes the experts of the plan, up to `max` together. Resident ones and the shared one come
 * first, while the others are read; then each as it lands. Ends early when every segment is given
 * up. */
static void run_plan(struct forward *f, uint32_t layer, uint32_t max)
{
    struct expert_item items[ARCH_EXPERTS_TOGETHER];
    struct batch_fault fault = {.layer = (int)layer};
    const uint64_t asked_ns = f->lap_ns;
    bool is_first = true;
    int rc;
    do {
        uint32_t n;
        far_wait(f); /* what was handed out goes back */
        rc = expert_cache_next(f->cache, is_first, items, max, &n, &fault.err);
        f->times.wait_ns += forward_lap(f);
        if (n > 0 || is_first) {
            f->times.read_ns = f->lap_ns - asked_ns; /* the last ones were missing, if any were */
            run_items(f, layer, items, n, is_first);
            f->times.compute_ns += forward_lap(f);
        }
        if (rc < 0) {
            fault.expert = (int)f->groups.chosen[items[n].index].expert;
            fail_expert(f, (uint32_t)fault.expert, &fault);
        }
        is_first = false;
    } while (rc != 0 && !expert_cache_is_over(f->cache) && !pass_all_given_up(f->pass));
}

void forward_run_experts(struct forward *f, uint32_t layer)
{
    struct step *step = &f->step;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (forward_run_routed(f, layer))
        return;
    if (step->resident != NULL) {
        far_settle(f);
        expert_cache_resident(f->cache, expert_layer, f->resident);
    }
    f->arch->route(step, layer);
    far_ask_for_rows(f);
    far_settle(f);
    memory_fetch(f->be->memory, f->ids, step->ids,
                 (uint64_t)step->n_rows * f->model->shape.n_experts_per_token * sizeof(uint32_t));
    far_note_waited(f);
    forward_count_routed(f); /* layers are counted in their order */
    if (f->options.replace_ids != NULL && layer < f->model->end_layer)
        replace_ids(f, f->options.replace_ids, expert_layer, f->ids);
    show_routes(f, layer);
    forward_show_drafts(f, expert_layer, f->ids);
    group_rows(f);
    count_uses(f);
    f->planned_layer = layer;
    const uint32_t max = experts_together(f, expert_layer);
    expert_cache_begin(f->cache, expert_layer, forward_n_tokens(f), f->groups.chosen,
                       f->groups.n_chosen);
    if (f->lookahead.is_on)
        look_ahead(f, layer, expert_layer);
    f->times.route_ns = forward_lap(f);
    run_plan(f, layer, max);
    const bool is_over = pass_all_given_up(f->pass); /* then nobody wants the rest */
    far_end_plan(f);
    if (is_over)
        return;
    sweep_ahead(f, layer + 1);
    f->arch->close(step, layer);
    f->times.compute_ns += forward_lap(f);
}

