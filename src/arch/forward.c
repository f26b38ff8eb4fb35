#include "arch/forward.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/plat.h"

/* Rows whose logits are computed together. */
#define HEAD_ROWS 8

/* Which rows each expert works on, found from the router's choice by counting. A pair is
 * row * k + place: the row and which of its experts. */
struct expert_groups {
    uint32_t *start;  /* [n_experts + 1] into pairs */
    uint32_t *pairs;  /* [max_rows * k] grouped by expert, rows ascending */
    uint32_t *rows;   /* [max_rows * k] the row of each pair */
    struct expert_use *chosen; /* experts with at least one row, ascending */
    uint32_t n_chosen;
};

struct forward {
    const struct arch *arch;
    const struct model *model;
    struct backend *be;
    struct expert_cache *cache;
    struct forward_options options;
    struct step step;
    struct expert_groups groups;
    /* For the host: what the layer at hand chose. */
    uint32_t *ids;    /* [max_rows, k] */
    float *weights;   /* [max_rows, k], where somebody wants to see them */
    uint32_t *ahead_ids; /* [k] */
    float *ahead_weights;
    bool *resident; /* [n_experts] */
    struct lookahead lookahead;
    void *lookahead_memory;
    struct backend_segment *segments; /* [max_segments], those that are computed */
    uint32_t *in_batch;               /* [max_segments], which one of the batch each is */
    int32_t *tokens;                  /* [max_rows] */
    uint32_t *positions;              /* [max_rows] */
    float *head_in, *logits;          /* [HEAD_ROWS, hidden], [HEAD_ROWS, vocabulary] */
    void *block, *host_block; /* in the backend's memory and in the host's */
    bool is_timed; /* the pass at hand */
    uint64_t lap_ns;
    struct batch_times times; /* of the layer at hand */
    uint32_t planned_layer;   /* whose experts were computed last */
};

/* ---- memory: two blocks, each carved in two passes by the same list ------------------------- */

struct carver {
    char *at; /* NULL while measuring */
    uint64_t bytes;
};

static void *carve(struct carver *c, uint64_t n, uint64_t element_bytes)
{
    uint64_t bytes = mem_round_up(n * element_bytes, MEM_CACHE_LINE);
    void *p = c->at != NULL ? c->at + c->bytes : NULL;
    c->bytes += bytes;
    return p;
}

/* What the backend computes with. */
static void carve_rows(struct carver *c, struct forward *f, const struct model *model,
                       const struct forward_options *options)
{
    struct arch_sizes sizes;
    arch_of(model)->sizes(model->arch, &sizes);
    const uint64_t rows = options->max_rows, hidden = model->shape.hidden;
    const uint64_t n_experts = model->shape.n_experts, k = model->shape.n_experts_per_token;
    f->step.x = carve(c, rows * hidden, sizeof(float));
    f->step.normed = carve(c, rows * hidden, sizeof(float));
    f->step.mix = carve(c, rows * sizes.mix_floats_per_row, sizeof(float));
    f->step.router = carve(c, rows * n_experts, sizeof(float));
    f->step.ids = carve(c, rows * k, sizeof(uint32_t));
    f->step.weights = carve(c, rows * k, sizeof(float));
    f->step.shared_gate = carve(c, rows, sizeof(float));
    f->step.shared = carve(c, rows * hidden, sizeof(float));
    f->step.expert_parts = carve(c, rows * k * hidden, sizeof(float));
    f->step.ffn = carve(c, rows * hidden, sizeof(float));
    f->step.scores = carve(c, n_experts, sizeof(float));
    f->step.ahead_normed = carve(c, hidden, sizeof(float));
    f->step.ahead_ids = carve(c, k, sizeof(uint32_t));
    f->step.ahead_weights = carve(c, k, sizeof(float));
    f->head_in = carve(c, 2 * HEAD_ROWS * hidden, sizeof(float));
    f->logits = carve(c, (uint64_t)HEAD_ROWS * model->shape.vocabulary, sizeof(float));
}

/* What the order of work is kept in. */
static void carve_host(struct carver *c, struct forward *f, const struct model *model,
                       const struct forward_options *options)
{
    const uint64_t rows = options->max_rows;
    const uint64_t n_experts = model->shape.n_experts, k = model->shape.n_experts_per_token;
    f->ids = carve(c, rows * k, sizeof(uint32_t));
    f->weights = carve(c, rows * k, sizeof(float));
    f->ahead_ids = carve(c, k, sizeof(uint32_t));
    f->ahead_weights = carve(c, k, sizeof(float));
    f->resident = carve(c, n_experts, sizeof(bool));
    f->lookahead_memory = carve(c, lookahead_bytes(model->n_expert_layers, (uint32_t)k), 1);
    f->groups.start = carve(c, n_experts + 1, sizeof(uint32_t));
    f->groups.chosen = carve(c, n_experts, sizeof(struct expert_use));
    f->groups.pairs = carve(c, rows * k, sizeof(uint32_t));
    f->groups.rows = carve(c, rows * k, sizeof(uint32_t));
    f->tokens = carve(c, rows, sizeof(int32_t));
    f->positions = carve(c, rows, sizeof(uint32_t));
    f->segments = carve(c, options->max_segments, sizeof(struct backend_segment));
    f->in_batch = carve(c, options->max_segments, sizeof(uint32_t));
}

uint64_t forward_bytes(const struct model *model, const struct forward_options *options)
{
    struct forward scratch = {0};
    struct carver rows = {0}, host = {0};
    carve_rows(&rows, &scratch, model, options);
    carve_host(&host, &scratch, model, options);
    return rows.bytes + host.bytes + sizeof(struct forward);
}

static int make_blocks(struct forward *f, struct fm_error *err)
{
    struct carver rows = {0}, host = {0};
    carve_rows(&rows, f, f->model, &f->options);
    carve_host(&host, f, f->model, &f->options);
    f->block = memory_make(f->be->memory, rows.bytes, "scratch memory", err);
    f->host_block = mem_new_aligned(MEM_CACHE_LINE, host.bytes, "scratch memory", err);
    if (f->block == NULL || f->host_block == NULL)
        return FM_ERR_NOMEM;
    rows = (struct carver){.at = f->block};
    host = (struct carver){.at = f->host_block};
    carve_rows(&rows, f, f->model, &f->options);
    carve_host(&host, f, f->model, &f->options);
    return 0;
}

/* The experts of one row; of many rows, what one expert may get and the shared expert beside. */
static uint64_t max_ffn_rows(const struct model *model, uint64_t max_rows)
{
    return 2 * max_rows + model->shape.n_experts_per_token;
}

void forward_backend_options(const struct model *model, const struct forward_options *options,
                             struct backend_options *backend)
{
    struct arch_sizes sizes;
    arch_of(model)->sizes(model->arch, &sizes);
    backend->max_cols = sizes.max_cols;
    backend->max_rows = options->max_rows > HEAD_ROWS ? options->max_rows : HEAD_ROWS;
    backend->max_ffn_rows = max_ffn_rows(model, options->max_rows);
    backend->max_intermediate = sizes.max_intermediate;
    backend->n_heads = sizes.n_heads;
    backend->head_dim = sizes.head_dim;
    backend->key_dim = sizes.key_dim;
    backend->n_context = options->n_context;
}

int forward_open(const struct model *model, struct backend *be, struct expert_cache *cache,
                 const struct forward_options *options, struct forward **out,
                 struct fm_error *err)
{
    *out = NULL;
    struct forward *f = mem_new(1, sizeof *f, "the forward pass", err);
    if (f == NULL)
        return FM_ERR_NOMEM;
    *f = (struct forward){.arch = arch_of(model), .model = model, .be = be, .cache = cache,
                          .options = *options};
    if (make_blocks(f, err) != 0) {
        forward_close(f);
        return FM_ERR_NOMEM;
    }
    const uint32_t k = model->shape.n_experts_per_token;
    memset(f->lookahead_memory, 0, lookahead_bytes(model->n_expert_layers, k));
    lookahead_init(&f->lookahead, options->routes != NULL ? LOOKAHEAD_OFF : options->lookahead,
                   cache, model->n_expert_layers, k, f->lookahead_memory);
    f->step.arch = model->arch;
    f->step.model = model;
    f->step.be = be;
    f->step.kv_format = options->kv_format;
    struct sequence_blocks blocks;
    sequence_blocks(model, options->kv_format, options->n_context, &blocks);
    f->step.kv_block_positions = blocks.n_positions;
    f->step.kv_block_bytes = blocks.bytes;
    f->step.cache_bias = options->cache_bias;
    f->step.tokens = f->tokens;
    f->step.positions = f->positions;
    f->step.segments = f->segments;
    *out = f;
    return 0;
}

void forward_close(struct forward *forward)
{
    if (forward == NULL)
        return;
    memory_free(forward->be->memory, forward->block);
    mem_free(forward->host_block);
    mem_free(forward);
}

/* ---- where the time goes -------------------------------------------------------------------- */

/* Since the last lap; 0 when nobody wants to know. */
static uint64_t lap(struct forward *f)
{
    if (!f->is_timed)
        return 0;
    const uint64_t now_ns = plat_now_ns(), ns = now_ns - f->lap_ns;
    f->lap_ns = now_ns;
    return ns;
}

static void begin_times(struct forward *f)
{
    struct expert_cache_stats cache = {0};
    if (!f->is_timed)
        return;
    if (f->cache != NULL)
        expert_cache_stats(f->cache, &cache);
    /* Counted from here on: end_times adds what they are then. */
    f->times = (struct batch_times){.n_hits = 0 - cache.n_hits, .n_misses = 0 - cache.n_misses,
                                    .bytes_read = 0 - cache.bytes_read};
    (void)lap(f);
}

static void end_times(struct forward *f, const struct batch *batch, uint32_t layer)
{
    struct expert_cache_stats cache = {0};
    if (!f->is_timed)
        return;
    if (f->cache != NULL)
        expert_cache_stats(f->cache, &cache);
    f->times.n_hits += cache.n_hits;
    f->times.n_misses += cache.n_misses;
    f->times.bytes_read += cache.bytes_read;
    if (f->times.n_misses == 0)
        f->times.read_ns = 0;
    batch->hooks.times(batch->hooks.ctx, layer, &f->times);
}

/* ---- the segments of the batch that are computed -------------------------------------------- */

static const struct batch_segment *batch_segment(const struct forward *f,
                                                 const struct batch *batch, uint32_t s)
{
    return &batch->segments[f->in_batch[s]];
}

static bool is_given_up(const struct forward *f, const struct batch *batch, uint32_t s)
{
    return batch->hooks.is_given_up(batch->hooks.ctx, f->in_batch[s]);
}

static bool all_given_up(const struct forward *f, const struct batch *batch)
{
    uint32_t s = 0;
    while (s < f->step.n_segments && is_given_up(f, batch, s))
        s++;
    return s == f->step.n_segments;
}

static bool any_given_up(const struct forward *f, const struct batch *batch)
{
    uint32_t s = 0;
    while (s < f->step.n_segments && !is_given_up(f, batch, s))
        s++;
    return s < f->step.n_segments;
}

/* Gives up the segments whose rows chose an expert that cannot be read: the others have no use for
 * it, and no row depends on another. What the expert's rows get from this layer is never read. */
static void fail_expert(const struct forward *f, const struct batch *batch, uint32_t expert,
                        const struct batch_fault *fault)
{
    const struct expert_groups *g = &f->groups;
    uint32_t p = g->start[expert];
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        const uint32_t end = f->segments[s].first_row + f->segments[s].n_rows;
        const bool has_rows = p < g->start[expert + 1] && g->rows[p] < end;
        if (has_rows)
            batch->hooks.fault(batch->hooks.ctx, f->in_batch[s], fault);
        while (p < g->start[expert + 1] && g->rows[p] < end)
            p++;
    }
}

/* The experts of the last plan were computed while their checksums were, too. Those that turn out
 * to be damaged are found here: before rows change their places or choose other experts, and before
 * anybody sees what came of them. */
static void verify_experts(struct forward *f, const struct batch *batch)
{
    struct batch_fault fault = {.layer = (int)f->planned_layer};
    uint32_t index;
    while (f->cache != NULL && expert_cache_verify(f->cache, &index, &fault.err) < 0) {
        fault.expert = (int)f->groups.chosen[index].expert;
        fail_expert(f, batch, (uint32_t)fault.expert, &fault);
    }
}

/* Rows do not depend on each other: those that stay move up and go on. */
static void drop_given_up(struct forward *f, const struct batch *batch)
{
    const size_t row_bytes = f->model->shape.hidden * sizeof(float);
    uint32_t n = 0, n_rows = 0;
    if (!any_given_up(f, batch))
        return;
    verify_experts(f, batch);
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        struct backend_segment segment = f->segments[s];
        if (is_given_up(f, batch, s))
            continue;
        if (n < s) {
            memory_copy(f->be->memory, (char *)f->step.x + n_rows * row_bytes,
                        (char *)f->step.x + segment.first_row * row_bytes,
                        segment.n_rows * row_bytes);
            memmove(f->positions + n_rows, f->positions + segment.first_row,
                    segment.n_rows * sizeof *f->positions);
        }
        segment.first_row = n_rows;
        f->segments[n] = segment;
        f->in_batch[n++] = f->in_batch[s];
        n_rows += segment.n_rows;
    }
    const bool has_left = n < f->step.n_segments;
    f->step.n_segments = n;
    f->step.n_rows = n_rows;
    if (has_left && n > 0)
        f->arch->place(&f->step);
}

/* ---- values that are not finite ------------------------------------------------------------- */

/* What gives the values of a row, beside the layers. */
#define FROM_EMBEDDING (-1)
#define FROM_HEAD (-2)

/* Gives up a segment, one of whose rows has a value that is not finite. */
static void fail_row(const struct forward *f, const struct batch *batch, uint32_t segment,
                     uint32_t row, int layer, float *x, size_t n)
{
    struct batch_fault fault = {.layer = layer < 0 ? -1 : layer, .expert = -1};
    char where[32];
    bool has_nan = false;
    const float *values = memory_open(f->be->memory, x, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        has_nan |= values[i] != values[i];
    memory_close(f->be->memory, x, n * sizeof *x);
    (void)snprintf(where, sizeof where, "layer %d", layer);
    (void)err_set(&fault.err, FM_ERR_FORMAT,
                  "%s gives %s that are %s at position %u: its weights are damaged%s",
                  layer == FROM_EMBEDDING ? "the embedding"
                                          : layer == FROM_HEAD ? "the output head" : where,
                  layer == FROM_HEAD ? "logits" : "values",
                  has_nan ? "not numbers (NaN)" : "infinite",
                  batch->segments[segment].sequence->position + row,
                  layer < 0 || f->options.kv_format == &kv_f32
                      ? "" : ", or keys or values exceed the range of f16; try --kv f32");
    batch->hooks.fault(batch->hooks.ctx, segment, &fault);
}

/* The first row of a segment with a value that is not finite ends it here, where the layer is
 * known: later rows and layers only show the consequences. One pass over the rows of a layer costs
 * less than a thousandth of computing them. A damaged expert is blamed before its layer is. */
static void check_rows(struct forward *f, const struct batch *batch, int layer)
{
    const size_t hidden = f->model->shape.hidden;
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        float *x = f->step.x + f->segments[s].first_row * hidden;
        const size_t n = f->segments[s].n_rows;
        const size_t row = f->be->ops->find_not_finite(f->be, x, n, hidden);
        if (row == n)
            continue;
        verify_experts(f, batch);
        if (!is_given_up(f, batch, s))
            fail_row(f, batch, f->in_batch[s], (uint32_t)row, layer, x + row * hidden, hidden);
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
    memmove(g->start + 1, g->start, n_experts * sizeof *g->start);
    g->start[0] = 0;
}

/* Tokens at the end of a prompt whose experts the cache remembers: those before them sweep through
 * nearly all experts and say little about what comes next. */
#define TOKENS_REMEMBERED 32

/* The tokens of a segment that the cache remembers: of a prompt that goes on, none. */
static uint32_t n_remembered(const struct batch_segment *s)
{
    if (s->n_tokens > 1 && !s->wants_last_logits && !s->wants_all_logits)
        return 0;
    return s->n_tokens < TOKENS_REMEMBERED ? s->n_tokens : TOKENS_REMEMBERED;
}

/* Fills in how the chosen experts are used, and returns the tokens that pass. */
static uint32_t count_uses(struct forward *f, const struct batch *batch)
{
    const struct expert_groups *g = &f->groups;
    uint32_t most = 0;
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        const uint32_t n = n_remembered(batch_segment(f, batch, s));
        most = n > most ? n : most;
    }
    for (uint32_t i = 0; i < g->n_chosen; i++) {
        struct expert_use *use = &g->chosen[i];
        uint32_t s = 0;
        use->idle = UINT32_MAX;
        for (uint32_t p = g->start[use->expert]; p < g->start[use->expert + 1]; p++) {
            const uint32_t row = g->rows[p];
            while (row >= f->segments[s].first_row + f->segments[s].n_rows)
                s++;
            const uint32_t after = f->segments[s].first_row + f->segments[s].n_rows - 1 - row;
            if (after >= n_remembered(batch_segment(f, batch, s)))
                continue;
            use->n_uses++;
            use->idle = after < use->idle ? after : use->idle;
        }
    }
    return most;
}

/* Other experts than the router chose, with the weights of its own choice in their order: as many
 * reads and as much arithmetic. Where both are the same experts nothing changes. */
static void replace_ids(struct forward *f, uint32_t expert_layer)
{
    const struct routes *routes = f->options.routes;
    const uint32_t k = f->model->shape.n_experts_per_token;
    assert(routes->shape.n_used == k && routes->shape.n_experts == f->model->shape.n_experts);
    for (uint32_t row = 0; row < f->step.n_rows; row++) {
        const uint16_t *ids = routes_at(routes, f->positions[row], expert_layer);
        for (uint32_t i = 0; i < k; i++)
            f->ids[(size_t)row * k + i] = ids[i];
    }
}

static void show_routes(const struct forward *f, const struct batch *batch, uint32_t layer)
{
    const size_t k = f->model->shape.n_experts_per_token;
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        const struct backend_segment *segment = &f->segments[s];
        const size_t first = segment->first_row * k;
        if (!batch_segment(f, batch, s)->wants_routes)
            continue;
        memory_fetch(f->be->memory, f->weights + first, f->step.weights + first,
                     segment->n_rows * k * sizeof(float));
        for (uint32_t i = 0; i < segment->n_rows; i++)
            batch->hooks.route(batch->hooks.ctx, f->in_batch[s], i, layer, f->ids + first + i * k,
                               f->weights + first + i * k);
    }
}

/* Experts that are ready, on all their rows. Their outputs go to their own places in expert_parts,
 * so the order in which experts arrive does not matter. */
static void run_ready(struct forward *f, uint32_t layer, const struct expert_item *items,
                      uint32_t n, bool with_shared)
{
    const struct expert_groups *g = &f->groups;
    const uint64_t most = max_ffn_rows(f->model, f->options.max_rows);
    struct step_expert experts[ARCH_EXPERTS_TOGETHER];
    uint32_t n_experts = 0;
    uint64_t n_rows = with_shared ? f->step.n_rows : 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t expert = g->chosen[items[i].index].expert, at = g->start[expert];
        const uint32_t rows = g->start[expert + 1] - at;
        if (n_rows + rows > most) {
            f->arch->experts(&f->step, layer, experts, n_experts, with_shared);
            with_shared = false;
            n_experts = 0;
            n_rows = 0;
        }
        experts[n_experts++] = (struct step_expert){.slot = items[i].slot, .rows = g->rows + at,
                                                    .places = g->pairs + at, .n = rows};
        n_rows += rows;
    }
    f->arch->experts(&f->step, layer, experts, n_experts, with_shared);
}

/* With many rows an expert is work enough by itself, and few pinned slots leave more to read
 * into. */
static uint32_t experts_together(const struct forward *f)
{
    return f->step.n_rows <= 8 ? ARCH_EXPERTS_TOGETHER : 4;
}

/* Behind the reads that are needed: what the next layer will want. */
static void look_ahead(struct forward *f, uint32_t layer, uint32_t expert_layer)
{
    lookahead_check(&f->lookahead, expert_layer, f->groups.chosen, f->groups.n_chosen);
    if (layer + 1 == f->model->shape.n_layers)
        return;
    const uint32_t next = f->arch->expert_layer(f->model->arch, layer + 1);
    if (next == ARCH_NO_EXPERTS)
        return;
    const uint64_t k = f->model->shape.n_experts_per_token;
    f->arch->foresee(&f->step, layer + 1);
    memory_fetch(f->be->memory, f->ahead_ids, f->step.ahead_ids, k * sizeof(uint32_t));
    memory_fetch(f->be->memory, f->ahead_weights, f->step.ahead_weights, k * sizeof(float));
    lookahead_guess(&f->lookahead, next, f->ahead_ids, f->ahead_weights);
}

/* Rows that use most of a layer's experts use most of the next one's: they are read while the rows
 * are mixed. */
static void sweep_ahead(struct forward *f, uint32_t layer)
{
    const bool is_sweep = f->step.n_rows > 1 &&
                          4ull * f->groups.n_chosen >= 3ull * f->model->shape.n_experts;
    if (!is_sweep || f->options.lookahead == LOOKAHEAD_OFF || layer == f->model->shape.n_layers)
        return;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (expert_layer != ARCH_NO_EXPERTS)
        expert_cache_sweep(f->cache, expert_layer);
}

/* Computes the experts of the plan: those that are there, and the shared one, while bytes travel;
 * then each as it lands. Ends early when every segment is given up. */
static void run_plan(struct forward *f, const struct batch *batch, uint32_t layer)
{
    struct expert_item items[ARCH_EXPERTS_TOGETHER];
    struct batch_fault fault = {.layer = (int)layer};
    const uint32_t most = experts_together(f);
    const uint64_t asked_ns = f->lap_ns;
    bool is_first = true;
    int rc;
    do {
        uint32_t n;
        rc = expert_cache_next(f->cache, is_first, items, most, &n, &fault.err);
        f->times.wait_ns += lap(f);
        if (n > 0 || is_first) {
            f->times.read_ns = f->lap_ns - asked_ns; /* the last ones were missing, if any were */
            run_ready(f, layer, items, n, is_first);
            f->times.compute_ns += lap(f);
        }
        if (rc < 0) {
            fault.expert = (int)f->groups.chosen[items[n].index].expert;
            fail_expert(f, batch, (uint32_t)fault.expert, &fault);
        }
        is_first = false;
    } while (rc != 0 && !all_given_up(f, batch));
}

static void run_experts(struct forward *f, const struct batch *batch, uint32_t layer)
{
    struct step *step = &f->step;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    if (step->resident != NULL)
        expert_cache_resident(f->cache, expert_layer, f->resident);
    f->arch->route(step, layer);
    memory_fetch(f->be->memory, f->ids, step->ids,
                 (uint64_t)step->n_rows * f->model->shape.n_experts_per_token * sizeof(uint32_t));
    if (f->options.routes != NULL)
        replace_ids(f, expert_layer);
    show_routes(f, batch, layer);
    group_rows(f);
    const uint32_t n_tokens = count_uses(f, batch);
    f->planned_layer = layer;
    expert_cache_begin(f->cache, expert_layer, n_tokens, f->groups.chosen, f->groups.n_chosen);
    if (f->lookahead.is_on)
        look_ahead(f, layer, expert_layer);
    f->times.route_ns = lap(f);
    run_plan(f, batch, layer);
    const bool is_over = all_given_up(f, batch); /* then nobody wants the rest */
    expert_cache_end(f->cache);
    if (is_over)
        return;
    sweep_ahead(f, layer + 1);
    f->arch->close(step, layer);
    f->times.compute_ns += lap(f);
}

/* ---- the pass -------------------------------------------------------------------------------- */

static void lay_out_rows(struct forward *f, const struct batch *batch)
{
    uint32_t row = 0;
    for (uint32_t s = 0; s < batch->n_segments; s++) {
        const struct batch_segment *from = &batch->segments[s];
        assert(sequence_holds(from->sequence, from->sequence->position + from->n_tokens));
        sequence_expect(from->sequence, from->n_tokens);
        f->segments[s] = (struct backend_segment){.first_row = row, .n_rows = from->n_tokens,
                                                  .position = from->sequence->position};
        f->in_batch[s] = s;
        for (uint32_t i = 0; i < from->n_tokens; i++) {
            f->tokens[row] = from->tokens[i];
            f->positions[row] = from->sequence->position + i;
            row++;
        }
    }
    assert(row <= f->options.max_rows && batch->n_segments <= f->options.max_segments);
    f->step.n_rows = row;
    f->step.n_segments = batch->n_segments;
    /* A prompt reads nearly every expert whatever its tokens prefer. */
    const bool is_decode = row == batch->n_segments;
    f->step.resident = is_decode && f->options.cache_bias > 0 ? f->resident : NULL;
}

static void point_at_mark(struct backend_segment *segment, const struct sequence *sequence)
{
    if (sequence->next_position == 0)
        return;
    segment->mark_rows = sequence->next_position - sequence->position;
    segment->mark_conv = sequence_marked(sequence, segment->conv);
    segment->mark_delta = sequence_marked(sequence, segment->delta);
}

static void point_at_layer(struct forward *f, const struct batch *batch, uint32_t layer)
{
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        const struct sequence *sequence = batch_segment(f, batch, s)->sequence;
        const struct sequence_layer *l = &sequence->layers[layer];
        f->segments[s].keys = l->keys;
        f->segments[s].values = l->values;
        f->segments[s].conv = l->conv;
        f->segments[s].delta = l->delta;
        point_at_mark(&f->segments[s], sequence);
    }
}

static bool wants_hidden(const struct forward *f, const struct batch *batch)
{
    uint32_t s = 0;
    while (s < f->step.n_segments && !batch_segment(f, batch, s)->wants_hidden)
        s++;
    return s < f->step.n_segments;
}

static void show_hidden(const struct forward *f, const struct batch *batch, uint32_t layer)
{
    const size_t hidden = f->model->shape.hidden;
    for (uint32_t s = 0; s < f->step.n_segments; s++) {
        const struct backend_segment *segment = &f->segments[s];
        float *x = f->step.x + segment->first_row * hidden;
        const uint64_t bytes = segment->n_rows * hidden * sizeof *x;
        if (!batch_segment(f, batch, s)->wants_hidden)
            continue;
        const float *rows = memory_open(f->be->memory, x, bytes);
        for (uint32_t i = 0; i < segment->n_rows; i++)
            batch->hooks.hidden(batch->hooks.ctx, f->in_batch[s], i, layer, rows + i * hidden);
        memory_close(f->be->memory, x, bytes);
    }
}

/* Computes the head for the rows that want it, a few at a time. */
struct head_row {
    uint32_t segment, row;
};

static void flush_head(struct forward *f, const struct batch *batch, const struct head_row *rows,
                       uint32_t n)
{
    const struct memory *memory = f->be->memory;
    const size_t hidden = f->model->shape.hidden, vocabulary = f->model->shape.vocabulary;
    float *normed = f->head_in + HEAD_ROWS * hidden;
    f->arch->final_norm(&f->step, f->head_in, n, normed);
    f->arch->head(&f->step, normed, n, f->logits);
    for (uint32_t i = 0; i < n; i++) {
        const struct batch_segment *s = &batch->segments[rows[i].segment];
        if (s->wants_hidden) {
            batch->hooks.hidden(batch->hooks.ctx, rows[i].segment, rows[i].row,
                                f->model->shape.n_layers,
                                memory_open(memory, normed + i * hidden, hidden * sizeof(float)));
            memory_close(memory, normed + i * hidden, hidden * sizeof(float));
        }
        float *at = f->logits + i * vocabulary;
        const float *logits = memory_open(memory, at, vocabulary * sizeof(float));
        const bool is_finite = fmath_all_finite(logits, vocabulary);
        if (is_finite)
            batch->hooks.logits(batch->hooks.ctx, rows[i].segment, rows[i].row, logits);
        memory_close(memory, at, vocabulary * sizeof(float));
        if (!is_finite)
            fail_row(f, batch, rows[i].segment, rows[i].row, FROM_HEAD, at, vocabulary);
    }
}

static bool wants_logits(const struct batch_segment *s, uint32_t row)
{
    return s->wants_all_logits || (s->wants_last_logits && row + 1 == s->n_tokens);
}

static void run_head(struct forward *f, const struct batch *batch)
{
    const size_t hidden = f->model->shape.hidden;
    struct head_row rows[HEAD_ROWS];
    uint32_t n = 0;
    for (uint32_t s = 0; s < f->step.n_segments; s++)
        for (uint32_t i = 0; i < f->segments[s].n_rows; i++) {
            if (!wants_logits(batch_segment(f, batch, s), i))
                continue;
            memory_copy(f->be->memory, f->head_in + n * hidden,
                        f->step.x + (f->segments[s].first_row + i) * hidden,
                        hidden * sizeof(float));
            rows[n++] = (struct head_row){f->in_batch[s], i};
            if (n == HEAD_ROWS) {
                flush_head(f, batch, rows, n);
                n = 0;
            }
        }
    if (n > 0)
        flush_head(f, batch, rows, n);
}

static void run_layers(struct forward *f, const struct batch *batch)
{
    check_rows(f, batch, FROM_EMBEDDING);
    for (uint32_t layer = 0; layer < f->model->shape.n_layers; layer++) {
        batch->hooks.before_layer(batch->hooks.ctx, layer);
        if (wants_hidden(f, batch))
            verify_experts(f, batch);
        drop_given_up(f, batch);
        if (f->step.n_segments == 0)
            return;
        show_hidden(f, batch, layer);
        point_at_layer(f, batch, layer);
        begin_times(f);
        f->arch->mix(&f->step, layer);
        f->times.mix_ns = lap(f);
        verify_experts(f, batch); /* those of the layer before */
        f->times.wait_ns = lap(f);
        drop_given_up(f, batch);
        if (f->step.n_segments == 0)
            return;
        if (f->arch->expert_layer(f->model->arch, layer) == ARCH_NO_EXPERTS) {
            f->arch->dense(&f->step, layer);
            f->times.compute_ns = lap(f);
        } else {
            run_experts(f, batch, layer);
        }
        if (layer + 1 == f->model->shape.n_layers) {
            verify_experts(f, batch);
            f->times.wait_ns += lap(f);
        }
        check_rows(f, batch, (int)layer);
        end_times(f, batch, layer);
    }
}

/* All layers for one token that is decoded alone, which looks ahead or not. */
static void run_token(struct forward *f, const struct batch *batch)
{
    struct expert_cache_stats before, after;
    expert_cache_stats(f->cache, &before);
    const uint64_t begin_ns = plat_now_ns();
    lookahead_begin_token(&f->lookahead);
    run_layers(f, batch);
    expert_cache_stats(f->cache, &after);
    lookahead_end_token(&f->lookahead, plat_now_ns() - begin_ns, after.n_misses - before.n_misses);
    f->lookahead.is_on = false;
}

void forward_run(struct forward *f, const struct batch *batch)
{
    lay_out_rows(f, batch);
    f->is_timed = batch->hooks.times != NULL;
    f->arch->embed(&f->step);
    f->arch->place(&f->step);
    if (f->step.n_rows == 1 && f->cache != NULL)
        run_token(f, batch);
    else
        run_layers(f, batch);
    drop_given_up(f, batch);
    if (f->step.n_segments == 0)
        return;
    begin_times(f);
    run_head(f, batch);
    f->times.compute_ns = lap(f);
    end_times(f, batch, f->model->shape.n_layers);
    for (uint32_t s = 0; s < f->step.n_segments; s++)
        sequence_advance(batch_segment(f, batch, s)->sequence, f->segments[s].n_rows);
}

bool forward_recall(const struct forward *f, uint32_t expert_layer, struct lookahead_layer *layer)
{
    if (expert_layer >= f->lookahead.n_layers)
        return false;
    *layer = f->lookahead.layers[expert_layer];
    return true;
}
