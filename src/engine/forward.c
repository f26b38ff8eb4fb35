#include "engine/forward.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backend/not_finite.h"
#include "backend/peak.h"
#include "base/carve.h"
#include "base/fmath.h"
#include "base/link.h"
#include "base/mem.h"
#include "base/plat.h"
#include "engine/forward_internal.h"

/* ---- memory: two blocks, each carved in two passes by the same list ------------------------- */

/* Checks of the embedding's rows and of each layer's, for every segment; then those of the head,
 * and the peaks of its rows, two words each at a multiple of two. */
static uint64_t head_checks_at(const struct model *model, const struct forward_options *options)
{
    return (1ull + model->end_layer - model->first_layer) * options->max_segments;
}

static uint64_t peaks_at(const struct model *model, const struct forward_options *options)
{
    return (head_checks_at(model, options) + forward_head_rows(options) + 1) / 2 * 2;
}

static uint64_t n_not_finite(const struct model *model, const struct forward_options *options)
{
    return peaks_at(model, options) + 2ull * forward_head_rows(options);
}

/* Lays out what the backend computes with. */
static void carve_rows(struct carver *c, struct forward *f, const struct model *model,
                       const struct forward_options *options)
{
    struct arch_sizes sizes;
    arch_of(model)->sizes(model->arch, &sizes);
    const uint64_t rows = options->max_rows, hidden = model->shape.hidden;
    const uint64_t n_experts = model->shape.n_experts, k = model->shape.n_experts_per_token;
    f->step.x = carve(c, rows * model->shape.row_floats, sizeof(float));
    f->step.normed = carve(c, rows * hidden, sizeof(float));
    f->step.mix = carve(c, arch_mix_floats(&sizes, rows), sizeof(float));
    f->step.router = carve(c, rows * n_experts, sizeof(float));
    f->step.ids = carve(c, rows * k, sizeof(uint32_t));
    f->step.weights = carve(c, rows * k, sizeof(float));
    f->step.shared_gate = carve(c, rows, sizeof(float));
    f->step.shared = carve(c, rows * hidden, sizeof(float));
    f->step.expert_parts = carve(c, rows * k * hidden, sizeof(float));
    f->step.ffn = carve(c, rows * hidden, sizeof(float));
    f->step.looked_up = carve(c, rows * forward_looked_up_floats(model), sizeof(float));
    f->step.scores = carve(c, n_experts, sizeof(float));
    f->step.ahead_normed = carve(c, options->ahead_rows * hidden, sizeof(float));
    f->step.ahead_ids = carve(c, options->ahead_rows * k, sizeof(uint32_t));
    f->step.ahead_weights = carve(c, options->ahead_rows * k, sizeof(float));
    const uint64_t head_rows = model->has_head ? forward_head_rows(options) : 0;
    f->head_in = carve(c, head_rows * (model->shape.row_floats + hidden), sizeof(float));
    f->step.head_scratch = carve(c, head_rows * sizes.head_floats_per_row, sizeof(float));
    f->logits = carve(c, head_rows * model->shape.vocabulary, sizeof(float));
    forward_mtp_carve_rows(c, &f->mtp, model, options);
    const uint64_t n = n_not_finite(model, options);
    f->not_finite = carve(c, n + forward_max_ids(model), sizeof(uint32_t));
    f->routed.ids = f->not_finite != NULL ? f->not_finite + n : NULL;
}

static struct lookahead_sizes lookahead_sizes(const struct model *model,
                                              const struct forward_options *options)
{
    return (struct lookahead_sizes){.n_layers = model->n_expert_layers,
                                    .n_used = model->shape.n_experts_per_token,
                                    .max_rows = options->ahead_rows};
}

/* Lays out what the host needs for the order of work. */
static void carve_host(struct carver *c, struct forward *f, const struct model *model,
                       const struct forward_options *options)
{
    const uint64_t rows = options->max_rows;
    const uint64_t n_experts = model->shape.n_experts, k = model->shape.n_experts_per_token;
    f->ids = carve(c, rows * k, sizeof(uint32_t));
    f->weights = carve(c, rows * k, sizeof(float));
    const struct lookahead_sizes ahead = lookahead_sizes(model, options);
    f->ahead_ids = carve(c, options->ahead_rows * k, sizeof(uint32_t));
    f->ahead_weights = carve(c, options->ahead_rows * k, sizeof(float));
    f->resident = carve(c, n_experts, sizeof(bool));
    f->lookahead_memory = carve(c, lookahead_bytes(&ahead), 1);
    f->groups.start = carve(c, n_experts + 1, sizeof(uint32_t));
    f->groups.chosen = carve(c, n_experts, sizeof(struct expert_use));
    f->groups.pairs = carve(c, rows * k, sizeof(uint32_t));
    f->groups.rows = carve(c, rows * k, sizeof(uint32_t));
    const uint64_t n = n_not_finite(model, options);
    f->not_finite_seen = carve(c, n + forward_max_ids(model), sizeof(uint32_t));
    f->routed.ids_seen = f->not_finite_seen != NULL ? f->not_finite_seen + n : NULL;
    forward_mtp_carve_host(c, &f->mtp, model, options);
    f->routed.generations = carve(c, model->n_expert_layers, sizeof(uint64_t));
    f->routed.table = carve(c, model->n_expert_layers * n_experts, sizeof(uint64_t));
    f->routed.given_seen = carve(c, forward_max_ids(model), sizeof(uint32_t));
    f->routed.is_pending = carve(c, model->n_expert_layers, sizeof(bool));
}

uint64_t forward_row_bytes(const struct model *model, const struct forward_options *options)
{
    struct forward scratch = {0};
    struct carver rows = {0};
    carve_rows(&rows, &scratch, model, options);
    return rows.bytes + (options->has_far ? far_row_bytes(model) : 0);
}

uint64_t forward_host_bytes(const struct model *model, const struct forward_options *options)
{
    struct forward scratch = {0};
    struct carver host = {0};
    carve_host(&host, &scratch, model, options);
    return mem_round_up(host.bytes, MEM_PAGE) + sizeof(struct forward) +
           row_store_bytes(model, options->max_rows) +
           (options->has_far ? far_host_bytes(model) : 0);
}

static int make_blocks(struct forward *f, struct fm_error *err)
{
    struct carver rows = {0}, host = {0};
    carve_rows(&rows, f, f->model, &f->options);
    carve_host(&host, f, f->model, &f->options);
    f->block = memory_make(f->be->memory, rows.bytes, "scratch memory", err);
    f->host_block = mem_new_aligned(MEM_PAGE, mem_round_up(host.bytes, MEM_PAGE), "scratch memory",
                                    err);
    if (f->block == NULL || f->host_block == NULL)
        return FM_ERR_NOMEM;
    if (f->be->memory->link != NULL)
        f->is_host_pinned = f->be->memory->link->pin(f->be->memory, f->host_block,
                                                     mem_round_up(host.bytes, MEM_PAGE));
    f->host_bytes = mem_round_up(host.bytes, MEM_PAGE);
    rows = (struct carver){.at = f->block};
    host = (struct carver){.at = f->host_block};
    carve_rows(&rows, f, f->model, &f->options);
    carve_host(&host, f, f->model, &f->options);
    return 0;
}

uint64_t forward_max_ffn_rows(const struct model *model, uint64_t max_rows)
{
    return 2 * max_rows + model->shape.n_experts_per_token;
}

void forward_backend_options(const struct model *model, const struct forward_options *options,
                             struct backend_options *backend)
{
    struct arch_sizes sizes;
    arch_of(model)->sizes(model->arch, &sizes);
    backend->max_cols = sizes.max_cols;
    backend->max_rows = options->max_rows;
    if (backend->max_rows < forward_head_rows(options))
        backend->max_rows = forward_head_rows(options);
    backend->max_ffn_rows = forward_max_ffn_rows(model, options->max_rows);
    backend->max_intermediate = sizes.max_intermediate;
    /* Only experts are computed together, and a dense block has each row once. */
    const uint64_t dense = backend_hidden(backend->max_rows, sizes.max_intermediate);
    const uint64_t routed = backend_hidden(backend->max_ffn_rows, sizes.max_routed_intermediate);
    backend->max_hidden = dense > routed ? dense : routed;
    backend->n_heads = sizes.n_heads;
    backend->head_dim = sizes.head_dim;
    backend->key_dim = sizes.key_dim;
    backend->n_context = options->n_context;
    backend->index_best = sizes.index_best;
}

uint64_t forward_piece_bytes(const struct model *model)
{
    const struct model_shape *s = &model->shape;
    const uint64_t looked_up = forward_looked_up_floats(model);
    uint64_t floats = s->vocabulary > s->row_floats ? s->vocabulary : s->row_floats;
    floats = looked_up > floats ? looked_up : floats;
    const uint64_t bases = s->n_experts * sizeof(uint64_t);
    return floats * sizeof(float) > bases ? floats * sizeof(float) : bases;
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
    if (make_blocks(f, err) != 0 || (options->has_far && far_open(f, err) != 0) ||
        forward_open_routed(f, err) != 0 ||
        row_store_open(model, options->max_rows, options->checks, &f->rows, err) != 0 ||
        memory_reserve(be->memory, 1, forward_piece_bytes(model), err) != 0) {
        forward_close(f);
        return FM_ERR_NOMEM;
    }
    const struct lookahead_sizes ahead = lookahead_sizes(model, options);
    memset(f->lookahead_memory, 0, lookahead_bytes(&ahead));
    const bool is_blind = options->replace_ids != NULL && options->predict_ids == NULL;
    lookahead_init(&f->lookahead, is_blind ? LOOKAHEAD_OFF : options->lookahead, cache, &ahead,
                   f->lookahead_memory);
    f->step.arch = model->arch;
    f->step.model = model;
    f->step.be = be;
    f->step.kv_format = options->kv_format;
    struct sequence_blocks blocks;
    sequence_blocks(model, options->kv_format, options->n_context, &blocks);
    f->step.kv_block_positions = blocks.n_positions;
    f->step.kv_block_bytes = blocks.bytes;
    f->step.cache_bias = options->cache_bias;
    *out = f;
    return 0;
}

void forward_close(struct forward *forward)
{
    if (forward == NULL)
        return;
    row_store_close(forward->rows);
    far_close(forward);
    forward_close_routed(forward);
    memory_free(forward->be->memory, forward->block);
    if (forward->is_host_pinned)
        forward->be->memory->link->unpin(forward->be->memory, forward->host_block,
                                         forward->host_bytes);
    mem_free(forward->host_block);
    mem_free(forward);
}

/* ---- where the time goes -------------------------------------------------------------------- */

static void begin_times(struct forward *f)
{
    struct expert_cache_stats cache = {0};
    if (!f->is_timed)
        return;
    if (f->cache != NULL)
        expert_cache_stats(f->cache, &cache);
    /* Counts from here on: end_times adds the later figures. */
    f->times = (struct batch_times){.n_hits = 0 - cache.n_hits, .n_misses = 0 - cache.n_misses,
                                    .bytes_read = 0 - cache.bytes_read};
    (void)forward_lap(f);
}

static void end_times(struct forward *f, uint32_t layer)
{
    struct pass *pass = f->pass;
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
    pass->batch->hooks.times(pass->batch->hooks.ctx, layer, &f->times);
}

/* ---- values that are not finite ------------------------------------------------------------- */

/* Where the values of a row come from when not from a layer. */
#define FROM_EMBEDDING (-1)
#define FROM_HEAD (-2)

/* Gives up a segment because one of its rows has a value that is not finite. */
static void fail_row(const struct forward *f, uint32_t segment, uint32_t row, int layer,
                     bool has_nan)
{
    struct pass *pass = f->pass;
    struct batch_fault fault = {.layer = layer < 0 ? -1 : layer, .expert = -1};
    char where[32];
    (void)snprintf(where, sizeof where, "layer %d", layer);
    (void)err_set(&fault.err, FM_ERR_FORMAT,
                  "%s gives %s that are %s at position %u: its weights are damaged%s",
                  layer == FROM_EMBEDDING ? "the embedding"
                                          : layer == FROM_HEAD ? "the output head" : where,
                  layer == FROM_HEAD ? "logits" : "values",
                  has_nan ? "not numbers (NaN)" : "infinite",
                  pass->batch->segments[segment].sequence->position + row,
                  layer < 0 || f->options.kv_format == &kv_f32
                      ? "" : ", or keys or values exceed the range of f16; try --kv f32");
    pass->batch->hooks.fault(pass->batch->hooks.ctx, segment, &fault);
}

/* Gives up the segments whose rows were not finite after one of the checks [first, end), which the
 * host has fetched: 0 is the embedding's, the others are the layers'. Later layers would only show
 * the consequences of the first one. A damaged expert is blamed before its layer is. */
static void blame_layers(struct forward *f, uint32_t first, uint32_t end)
{
    struct pass *pass = f->pass;
    const uint32_t width = f->options.max_segments;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const uint32_t *seen = f->not_finite_seen + pass->in_batch[s];
        uint32_t i = first;
        while (i < end && seen[i * width] == 0)
            i++;
        if (i == end)
            continue;
        const uint32_t code = seen[i * width];
        const int layer = i == 0 ? FROM_EMBEDDING : (int)(f->model->first_layer + i - 1);
        forward_verify_experts(f);
        if (!pass_is_given_up(pass, s))
            fail_row(f, pass->in_batch[s], not_finite_row(code), layer, not_finite_has_nan(code));
    }
}

/* Looks for values that are not finite, in less than a thousandth of the time of computing them.
 * The host sees its own memory at once. With another it looks when the last layer was computed,
 * since it would have to wait for every layer. */
static void check_rows(struct forward *f, int layer)
{
    struct pass *pass = f->pass;
    const size_t width = f->options.max_segments, floats = f->model->shape.row_floats;
    const uint32_t i = layer == FROM_EMBEDDING ? 0 : (uint32_t)layer - f->model->first_layer + 1;
    const size_t at = i * width;
    for (uint32_t s = 0; s < pass->n_segments; s++)
        f->be->ops->find_not_finite(f->be, f->step.x + pass->segments[s].first_row * floats,
                                    pass->segments[s].n_rows, floats,
                                    f->not_finite + at + pass->in_batch[s]);
    if (!f->be->memory->is_host)
        return;
    memory_fetch(f->be->memory, f->not_finite_seen + at, f->not_finite + at,
                 width * sizeof *f->not_finite);
    blame_layers(f, i, i + 1);
}

/* Gives up every segment if the backend is lost: nothing that it gives means anything then. */
static bool blame_backend(struct forward *f)
{
    struct pass *pass = f->pass;
    struct batch_fault fault = {.layer = -1, .expert = -1};
    const char *why = f->be->ops->failure != NULL ? f->be->ops->failure(f->be) : NULL;
    if (why == NULL)
        return false;
    (void)err_set(&fault.err, FM_ERR_IO, "%s; restart to use it again", why);
    for (uint32_t s = 0; s < pass->n_segments; s++)
        if (!pass_is_given_up(pass, s))
            pass->batch->hooks.fault(pass->batch->hooks.ctx, pass->in_batch[s], &fault);
    return true;
}

/* Fetches all checks and, with the same wait, which experts were chosen (forward_routed.c). Before
 * it waits, there is time for what the pass before has left to do. */
static void fetch_seen(struct forward *f)
{
    if (f->cache != NULL)
        expert_cache_catch_up(f->cache);
    f->pass->batch->hooks.idle(f->pass->batch->hooks.ctx);
    const uint64_t n = n_not_finite(f->model, &f->options) + forward_pending_ids(f);
    memory_fetch(f->be->memory, f->not_finite_seen, f->not_finite, n * sizeof *f->not_finite);
    f->routed.is_seen = true;
}

/* Looks at all checks, before anybody gets logits, or rows for the next stage. */
static void blame_late(struct forward *f)
{
    if (f->be->memory->is_host)
        return;
    fetch_seen(f);
    if (!blame_backend(f))
        blame_layers(f, 0, f->model->end_layer - f->model->first_layer + 1);
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* Tells the family which rows are still computed. */
static void follow_pass(struct forward *f)
{
    assert(f->pass->n_segments <= f->pass->n_rows &&
           f->pass->n_rows <= f->options.max_rows - f->n_held);
    f->step.n_rows = f->pass->n_rows;
    f->step.n_segments = f->pass->n_segments;
}

static void drop_given_up(struct forward *f)
{
    if (!pass_any_given_up(f->pass))
        return;
    forward_verify_experts(f); /* rows are about to change their places */
    forward_count_routed(f);
    const bool has_left = pass_drop_given_up(f->pass, f->be->memory, f->step.x,
                                             f->model->shape.row_floats * sizeof(float));
    follow_pass(f);
    forward_follow_routed(f);
    if (has_left && f->pass->n_segments > 0)
        f->arch->place(&f->step);
}

/* Returns where a recurrent part of the state is copied, or where blocks of one by position lie;
 * NULL: nowhere, or in their places. */
static void *mark_of(const struct sequence *sequence, const struct sequence_part *part,
                     const struct sequence_layer *l, uint32_t i)
{
    if (!l->is_recurrent[i])
        return part->n_shared > 0 ? part->block_shift : NULL;
    return sequence->next_position > 0 ? sequence_next_state(sequence, part, l->state[i]) : NULL;
}

static void point_at_layer(struct forward *f, uint32_t layer)
{
    struct pass *pass = f->pass;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const struct sequence *sequence = pass_segment(pass, s)->sequence;
        const struct sequence_part *part = &sequence->parts[f->options.stage];
        assert(f->options.stage < sequence->n_parts && layer >= part->first_layer);
        const struct sequence_layer *l = &part->layers[layer - part->first_layer];
        struct backend_segment *segment = &pass->segments[s];
        if (sequence->next_position > 0) {
            segment->mark_rows = sequence->next_position - sequence->position;
            assert(segment->mark_rows < segment->n_rows &&
                   sequence->next_mark < sequence->n_marks);
        }
        const bool has_trail = sequence->trail.is_there && part->recurrent_bytes > 0;
        segment->slot = sequence->slot;
        segment->n_slots = has_trail ? sequence->n_slots : 0;
        segment->slot_bytes = part->recurrent_bytes;
        for (uint32_t i = 0; i < BACKEND_STATE_PARTS; i++) {
            segment->state[i] = l->is_recurrent[i]
                                    ? (char *)l->state[i] + sequence->slot * part->recurrent_bytes
                                    : l->state[i];
            segment->mark[i] = mark_of(sequence, part, l, i);
        }
    }
}

static bool wants_hidden(const struct forward *f)
{
    struct pass *pass = f->pass;
    uint32_t s = 0;
    while (s < pass->n_segments && !pass_segment(pass, s)->wants_hidden)
        s++;
    return s < pass->n_segments;
}

static void show_hidden(const struct forward *f, uint32_t layer)
{
    struct pass *pass = f->pass;
    const size_t floats = f->model->shape.row_floats;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const struct backend_segment *segment = &pass->segments[s];
        float *x = f->step.x + segment->first_row * floats;
        for (uint32_t i = 0; pass_segment(pass, s)->wants_hidden && i < segment->n_rows; i++) {
            float *row = x + i * floats;
            pass->batch->hooks.hidden(
                pass->batch->hooks.ctx, pass->in_batch[s], i, layer,
                memory_open(f->be->memory, row, floats * sizeof *row, MEMORY_LOOK));
            memory_close(f->be->memory, row, floats * sizeof *row);
        }
    }
}

/* A row whose logits are wanted. They are computed a few rows at a time. */
struct head_row {
    uint32_t segment, row;
};

/* Has a device look for what is not finite in row i of the logits, and for its peak. */
static void look_at_logits(struct forward *f, uint32_t i)
{
    const struct backend_ops *ops = f->be->ops;
    const size_t vocabulary = f->model->shape.vocabulary;
    const float *logits = f->logits + i * vocabulary;
    uint32_t *check = f->not_finite + head_checks_at(f->model, &f->options) + i;
    if (ops->find_peak == NULL)
        ops->find_not_finite(f->be, logits, 1, vocabulary, check);
    else
        ops->find_peak(f->be, logits, vocabulary, check,
                       (uint64_t *)(void *)(f->not_finite + peaks_at(f->model, &f->options)) + i);
}

/* Tells where the peak of row i is, if a device has found it. */
static void give_peak(const struct forward *f, const struct head_row *row, uint32_t i)
{
    const struct batch_hooks *hooks = &f->pass->batch->hooks;
    uint64_t code = 0;
    if (!f->be->memory->is_host)
        memcpy(&code, f->not_finite_seen + peaks_at(f->model, &f->options) + 2 * i, sizeof code);
    if (code != 0 && hooks->peak != NULL)
        hooks->peak(hooks->ctx, row->segment, row->row, peak_index(code));
}

/* Has a device look at the logits and send them where they are wanted, before anybody waits for
 * it. places[i] is NULL where row i is not wanted anywhere. */
static void send_logits(struct forward *f, const struct head_row *rows, uint32_t n,
                        float *places[FORWARD_MAX_HEAD_ROWS])
{
    const struct batch_hooks *hooks = &f->pass->batch->hooks;
    const struct memory *memory = f->be->memory;
    const size_t vocabulary = f->model->shape.vocabulary;
    const uint64_t first = head_checks_at(f->model, &f->options);
    if (f->has_head_checks) /* of other rows of this pass */
        memory_clear(memory, f->not_finite + first,
                     (n_not_finite(f->model, &f->options) - first) * sizeof *f->not_finite);
    f->has_head_checks = true;
    for (uint32_t i = 0; i < n; i++) {
        float *at = f->logits + i * vocabulary;
        places[i] = NULL;
        if (memory->is_host)
            continue;
        look_at_logits(f, i);
        places[i] = hooks->logits_place(hooks->ctx, rows[i].segment, rows[i].row);
        if (memory->link == NULL)
            places[i] = NULL;
        if (places[i] != NULL)
            memory->link->download(memory, places[i], at, vocabulary * sizeof(float));
    }
}

/* What is wrong with the logits of row i, as not_finite_code, or 0. */
static uint32_t check_logits(const struct forward *f, uint32_t i, const float *logits)
{
    const size_t n = f->model->shape.vocabulary;
    bool has_nan = false;
    if (!f->be->memory->is_host)
        return f->not_finite_seen[head_checks_at(f->model, &f->options) + i];
    if (fmath_all_finite(logits, n))
        return 0;
    for (size_t j = 0; j < n; j++)
        has_nan |= logits[j] != logits[j];
    return not_finite_code(0, has_nan);
}

/* Gives out row i of the head; the host sees `place`, or opens it. */
static void give_logits(struct forward *f, const struct head_row *row, uint32_t i,
                        const float *place)
{
    const struct batch_hooks *hooks = &f->pass->batch->hooks;
    const uint64_t bytes = f->model->shape.vocabulary * sizeof(float);
    float *at = f->logits + (size_t)i * f->model->shape.vocabulary;
    const float *logits =
        place != NULL ? place : memory_open(f->be->memory, at, bytes, MEMORY_LOOK);
    const uint32_t wrong = check_logits(f, i, logits);
    if (wrong == 0)
        give_peak(f, row, i);
    if (wrong == 0)
        hooks->logits(hooks->ctx, row->segment, row->row, logits);
    if (place == NULL)
        memory_close(f->be->memory, at, bytes);
    if (wrong != 0)
        fail_row(f, row->segment, row->row, FROM_HEAD, not_finite_has_nan(wrong));
}

static void flush_head(struct forward *f, const struct head_row *rows, uint32_t n)
{
    const struct batch *batch = f->pass->batch;
    const struct memory *memory = f->be->memory;
    const size_t hidden = f->model->shape.hidden, n_max = forward_head_rows(&f->options);
    float *normed = f->head_in + n_max * f->model->shape.row_floats;
    float *places[FORWARD_MAX_HEAD_ROWS];
    assert(n > 0 && n <= n_max);
    f->arch->final_norm(&f->step, f->head_in, n, normed);
    f->arch->head(&f->step, normed, n, f->logits);
    send_logits(f, rows, n, places);
    blame_late(f);
    for (uint32_t i = 0; i < n; i++) {
        if (batch->hooks.is_given_up(batch->hooks.ctx, rows[i].segment))
            continue;
        if (batch->segments[rows[i].segment].wants_hidden) {
            const float *x =
                memory_open(memory, normed + i * hidden, hidden * sizeof(float), MEMORY_LOOK);
            batch->hooks.hidden(batch->hooks.ctx, rows[i].segment, rows[i].row,
                                f->model->shape.n_layers, x);
            memory_close(memory, normed + i * hidden, hidden * sizeof(float));
        }
        give_logits(f, &rows[i], i, places[i]);
    }
}

static bool wants_logits(const struct batch_segment *s, uint32_t row)
{
    return s->wants_all_logits ||
           (s->wants_last_logits && row + 1 + s->n_drafts >= s->n_tokens);
}

static void run_head(struct forward *f)
{
    struct pass *pass = f->pass;
    const size_t floats = f->model->shape.row_floats;
    struct head_row rows[FORWARD_MAX_HEAD_ROWS];
    uint32_t n = 0, n_rows = 0;
    for (uint32_t s = 0; s < pass->n_segments; s++)
        for (uint32_t i = 0; i < pass->segments[s].n_rows; i++) {
            if (!wants_logits(pass_segment(pass, s), i))
                continue;
            memory_copy(f->be->memory, f->head_in + n * floats,
                        f->step.x + (pass->segments[s].first_row + i) * floats,
                        floats * sizeof(float));
            rows[n++] = (struct head_row){pass->in_batch[s], i};
            n_rows++;
            if (n == forward_head_rows(&f->options)) {
                flush_head(f, rows, n);
                n = 0;
            }
        }
    if (n > 0)
        flush_head(f, rows, n);
    if (n_rows == 0) /* a prompt that goes on */
        blame_late(f);
}

static void run_layer(struct forward *f, uint32_t layer)
{
    show_hidden(f, layer);
    point_at_layer(f, layer);
    begin_times(f);
    if (!forward_take_table(f, layer)) {
        drop_given_up(f);
        return;
    }
    f->arch->mix(&f->step, layer);
    f->times.mix_ns = forward_lap(f);
    forward_verify_experts(f); /* those of the layer before */
    f->times.wait_ns = forward_lap(f);
    drop_given_up(f);
    if (f->pass->n_segments == 0)
        return;
    if (f->arch->expert_layer(f->model->arch, layer) == ARCH_NO_EXPERTS) {
        f->arch->dense(&f->step, layer);
        f->times.compute_ns = forward_lap(f);
    } else {
        forward_run_experts(f, layer);
    }
    if (layer + 1 == f->model->end_layer) {
        forward_verify_experts(f); /* before the rows leave the stage */
        f->times.wait_ns += forward_lap(f);
    }
    check_rows(f, (int)layer);
    end_times(f, layer);
}

bool forward_can_pause(const struct forward *f)
{
    return f->be->memory->is_host && !f->options.has_far && f->rows == NULL;
}

uint32_t forward_held_rows(const struct forward *f)
{
    return f->n_held;
}

/* Lets another pass run if somebody wants that. It has the rows behind those of this one. The rest
 * of the scratch is free between two layers. The table of positions in it is made again. */
static void let_others_pass(struct forward *f)
{
    struct pass *pass = f->pass;
    const struct batch_hooks *hooks = &pass->batch->hooks;
    const struct step step = f->step;
    const bool is_timed = f->is_timed;
    if (hooks->wants_pause == NULL || f->n_held > 0 || pass->n_rows >= f->options.max_rows ||
        !forward_can_pause(f) || !hooks->wants_pause(hooks->ctx))
        return;
    forward_verify_experts(f); /* the other pass plans its own */
    f->n_held = pass->n_rows;
    f->step.x += (size_t)pass->n_rows * f->model->shape.row_floats;
    if (f->cache != NULL)
        expert_cache_keep_sweep(f->cache, true);
    hooks->pause(hooks->ctx);
    if (f->cache != NULL)
        expert_cache_keep_sweep(f->cache, false);
    f->n_held = 0;
    f->pass = pass;
    f->step = step;
    f->is_timed = is_timed;
    f->arch->place(&f->step);
}

static void run_layers(struct forward *f)
{
    struct pass *pass = f->pass;
    for (uint32_t layer = f->model->first_layer; layer < f->model->end_layer; layer++) {
        pass->batch->hooks.before_layer(pass->batch->hooks.ctx, layer);
        let_others_pass(f);
        if (wants_hidden(f))
            forward_verify_experts(f);
        drop_given_up(f);
        if (pass->n_segments == 0)
            return;
        run_layer(f, layer);
    }
}

/* Runs all layers for a few rows that are decoded: a token, or one and its drafts. Only these
 * predict experts. */
static void run_looking_ahead(struct forward *f)
{
    struct expert_cache_stats before, after;
    expert_cache_stats(f->cache, &before);
    const uint64_t begin_ns = plat_now_ns();
    lookahead_begin(&f->lookahead, f->step.n_rows);
    run_layers(f);
    expert_cache_stats(f->cache, &after);
    lookahead_end(&f->lookahead, plat_now_ns() - begin_ns, after.n_misses - before.n_misses);
}

/* Lets the step begin with the rows that are in the pass. */
static void begin_step(struct forward *f)
{
    struct pass *pass = f->pass;
    f->step.tokens = pass->tokens;
    f->step.positions = pass->positions;
    f->step.segments = pass->segments;
    /* Only in decode: a prompt reads nearly every expert anyway. */
    f->step.resident = pass->is_decode && f->options.cache_bias > 0 ? f->resident : NULL;
    follow_pass(f);
    memory_clear(f->be->memory, f->not_finite,
                 n_not_finite(f->model, &f->options) * sizeof *f->not_finite);
    f->has_head_checks = false;
}

/* Copies the rows that the stage before has computed. */
static void copy_rows(struct forward *f)
{
    const uint64_t bytes = f->pass->n_rows * (uint64_t)f->model->shape.row_floats * sizeof(float);
    memory_finish(f->be->memory); /* the rows of the batch before may still be computed */
    memcpy(memory_open(f->be->memory, f->step.x, bytes, MEMORY_FILL), f->pass->rows, bytes);
    memory_close(f->be->memory, f->step.x, bytes);
    f->arch->place(&f->step);
}

/* Takes the rows into this stage: embeds them, or copies what the stage before has computed. */
static void take_rows(struct forward *f)
{
    begin_step(f);
    if (f->model->first_layer > 0) {
        copy_rows(f);
        return;
    }
    f->arch->embed(&f->step);
    f->arch->place(&f->step);
    check_rows(f, FROM_EMBEDDING);
}

/* The rows go into the head. */
static void use_rows(struct forward *f)
{
    begin_times(f);
    run_head(f);
    forward_mtp_follow(f);
    f->times.compute_ns = forward_lap(f);
    end_times(f, f->model->shape.n_layers);
}

/* Passes the rows on: into the head, or to the next stage. */
static void give_rows(struct forward *f)
{
    const uint64_t bytes = f->pass->n_rows * (uint64_t)f->model->shape.row_floats * sizeof(float);
    if (model_ends_in_head(f->model)) {
        use_rows(f);
        return;
    }
    memory_fetch(f->be->memory, f->pass->rows, f->step.x, bytes);
    blame_late(f);
}

void forward_run(struct forward *f, struct pass *pass)
{
    f->pass = pass;
    f->is_timed = pass->batch->hooks.times != NULL;
    forward_ask_tables(f);
    take_rows(f);
    forward_begin_routed(f);
    if (f->cache != NULL && pass->is_decode && f->step.n_rows <= f->options.ahead_rows)
        run_looking_ahead(f);
    else
        run_layers(f);
    drop_given_up(f);
    if (pass->n_segments > 0)
        give_rows(f);
    far_settle(f);
    forward_count_routed(f);
    forward_end_routed(f);
}

void forward_run_head(struct forward *f, struct pass *pass)
{
    assert(f->model->has_head && !model_ends_in_head(f->model));
    f->pass = pass;
    f->is_timed = pass->batch->hooks.times != NULL;
    f->routed.is_on = false;
    begin_step(f);
    copy_rows(f);
    drop_given_up(f);
    if (pass->n_segments > 0)
        use_rows(f);
}

bool forward_recall(const struct forward *f, uint32_t expert_layer, struct lookahead_layer *layer)
{
    if (expert_layer >= f->lookahead.n_layers)
        return false;
    *layer = f->lookahead.layers[expert_layer];
    return true;
}
