#include "arch/blocks.h"

#include <math.h>

static const struct transformer *transformer_of(const struct step *step)
{
    return step->arch;
}

static uint32_t key_width(const struct transformer *t)
{
    return t->n_key_heads * t->key_dim;
}

static uint32_t value_width(const struct transformer *t)
{
    return t->n_value_heads * t->value_dim;
}

static uint32_t conv_channels(const struct transformer *t)
{
    return 2 * key_width(t) + value_width(t);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Floats per query head in q's output: query, and gate behind it. */
static uint32_t query_stride(const struct transformer *t)
{
    return t->head_dim * (t->has_attention_gate ? 2 : 1);
}

/* The mixer's scratch: the rope table of the batch first, then one layer's intermediates. */
struct mix_buffers {
    float *rope;
    float *q, *k, *v;                 /* attention */
    float *qkv, *z, *b, *a, *convolved; /* delta rule */
    float *heads; /* concatenated head outputs */
    float *out;   /* [n, hidden] */
};

static uint64_t attention_floats(const struct transformer *t)
{
    return (uint64_t)t->n_heads * query_stride(t) + 2ull * t->n_kv_heads * t->head_dim +
           (uint64_t)t->n_heads * t->head_dim;
}

static uint64_t delta_floats(const struct transformer *t)
{
    return 2ull * conv_channels(t) + 2ull * value_width(t) + 2ull * t->n_value_heads;
}

static struct mix_buffers mix_buffers_of(const struct step *step)
{
    const struct transformer *t = transformer_of(step);
    const uint64_t n = step->n_rows;
    struct mix_buffers m = {.rope = step->mix};
    m.out = m.rope + n * t->rotary_dim;
    float *rest = m.out + n * t->hidden;
    m.q = rest;
    m.k = m.q + n * t->n_heads * query_stride(t);
    m.v = m.k + n * t->n_kv_heads * t->head_dim;
    m.qkv = rest;
    m.convolved = m.qkv + n * conv_channels(t);
    m.z = m.convolved + n * conv_channels(t);
    m.b = m.z + n * value_width(t);
    m.a = m.b + n * t->n_value_heads;
    uint64_t used = larger(attention_floats(t) - (uint64_t)t->n_heads * t->head_dim,
                           delta_floats(t) - value_width(t));
    m.heads = rest + n * used;
    return m;
}

void blocks_sizes(const void *arch, struct arch_sizes *sizes)
{
    const struct transformer *t = arch;
    uint64_t cols = larger(t->hidden, (uint64_t)t->n_heads * t->head_dim);
    cols = larger(cols, value_width(t));
    cols = larger(cols, t->key_dim);
    uint64_t wide = larger(t->expert_intermediate, t->shared_intermediate);
    wide = larger(wide, t->has_dense_layers ? t->dense_intermediate : 0);
    sizes->max_cols = (uint32_t)larger(cols, wide);
    sizes->n_heads = t->n_heads;
    sizes->head_dim = t->head_dim;
    sizes->key_dim = t->key_dim;
    sizes->max_intermediate = (uint32_t)wide;
    sizes->mix_floats_per_row = t->rotary_dim + t->hidden +
                                larger(attention_floats(t), delta_floats(t)) +
                                larger((uint64_t)t->n_heads * t->head_dim, value_width(t));
}

static uint64_t conv_floats(const struct transformer *t)
{
    return (uint64_t)(t->conv_kernel - 1) * conv_channels(t);
}

static uint64_t state_floats(const struct transformer *t)
{
    return (uint64_t)t->n_value_heads * t->key_dim * t->value_dim;
}

void blocks_state(const void *arch, uint32_t layer, struct layer_state *state)
{
    const struct transformer *t = arch;
    *state = (struct layer_state){0};
    if (!t->layers[layer].is_recurrent) {
        state->n_kv_heads = t->n_kv_heads;
        state->head_dim = t->head_dim;
        return;
    }
    state->conv_floats = conv_floats(t);
    state->delta_floats = state_floats(t);
}

uint32_t blocks_expert_layer(const void *arch, uint32_t layer)
{
    const struct transformer *t = arch;
    return t->layers[layer].expert_layer;
}

void blocks_embed(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->embed(step->be, &t->embedding, step->tokens, step->n_rows, step->x);
}

void blocks_place(struct step *step)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rope_table(step->be, step->positions, step->n_rows, t->rope_frequencies,
                              t->rotary_dim, (float)t->rope.attention_factor,
                              mix_buffers_of(step).rope);
}

static void attention(struct step *step, const struct attention_weights *w,
                      const struct mix_buffers *m)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows, dim = t->head_dim;
    const struct backend_product products[] = {{&w->q, m->q}, {&w->k, m->k}, {&w->v, m->v}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, 3);
    struct backend_heads heads = {
        .x = m->q, .row_stride = (size_t)t->n_heads * query_stride(t),
        .head_stride = query_stride(t), .n_heads = t->n_heads, .head_dim = t->head_dim,
        .rotary_dim = t->rotary_dim, .norm = w->q_norm, .eps = t->eps, .rope = m->rope,
    };
    be->ops->norm_rope(be, &heads, n);
    heads.x = m->k;
    heads.row_stride = t->n_kv_heads * dim;
    heads.head_stride = dim;
    heads.n_heads = t->n_kv_heads;
    heads.norm = w->k_norm;
    be->ops->norm_rope(be, &heads, n);
    be->ops->attention(be, &(struct backend_attention){
        .segments = step->segments, .n_segments = step->n_segments,
        .kv_format = step->kv_format, .n_heads = t->n_heads, .n_kv_heads = t->n_kv_heads,
        .head_dim = t->head_dim, .block_positions = step->kv_block_positions,
        .block_bytes = step->kv_block_bytes, .q = m->q,
        .gate = t->has_attention_gate ? m->q + dim : NULL,
        .q_row_stride = (size_t)t->n_heads * query_stride(t), .q_head_stride = query_stride(t),
        .k = m->k, .v = m->v, .scale = 1.0f / sqrtf((float)t->head_dim), .out = m->heads,
    });
    be->ops->input(be, m->heads, n, w->o.n_cols);
    be->ops->matmul(be, &(struct backend_product){&w->o, m->out}, 1);
}

/* The rows of a segment with a mark: those before it, its state, those behind it. */
static void run_marked(struct backend *be, struct backend_delta_net args,
                       const struct backend_segment *segment, uint64_t conv_floats,
                       uint64_t delta_floats)
{
    struct backend_segment part = *segment;
    args.segments = &part;
    args.n_segments = 1;
    part.n_rows = segment->mark_rows;
    be->ops->delta_net(be, &args);
    memory_copy(be->memory, segment->mark_conv, segment->conv, conv_floats * sizeof(float));
    memory_copy(be->memory, segment->mark_delta, segment->delta, delta_floats * sizeof(float));
    part.first_row += part.n_rows;
    part.position += part.n_rows;
    part.n_rows = segment->n_rows - part.n_rows;
    be->ops->delta_net(be, &args);
}

/* Tokens follow each other here, so cutting the rows changes nothing. */
static void run_segments(struct step *step, struct backend_delta_net args)
{
    const struct transformer *t = transformer_of(step);
    const struct backend_segment *segments = args.segments;
    const size_t n = args.n_segments;
    bool has_mark = false;
    for (size_t i = 0; i < n; i++)
        has_mark |= segments[i].mark_rows > 0;
    if (!has_mark) {
        step->be->ops->delta_net(step->be, &args);
        return;
    }
    args.n_segments = 1;
    for (size_t i = 0; i < n; i++) {
        args.segments = &segments[i];
        if (segments[i].mark_rows > 0)
            run_marked(step->be, args, &segments[i], conv_floats(t), state_floats(t));
        else
            step->be->ops->delta_net(step->be, &args);
    }
}

static void delta_net(struct step *step, const struct delta_net_weights *w,
                      const struct mix_buffers *m)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows;
    const struct backend_product products[] = {
        {&w->qkv, m->qkv}, {&w->z, m->z}, {&w->b, m->b}, {&w->a, m->a}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, 4);
    run_segments(step, (struct backend_delta_net){
        .segments = step->segments, .n_segments = step->n_segments,
        .n_key_heads = t->n_key_heads, .n_value_heads = t->n_value_heads,
        .has_tiled_value_heads = t->has_tiled_value_heads, .key_dim = t->key_dim,
        .value_dim = t->value_dim, .kernel = t->conv_kernel,
        .qkv = m->qkv, .z = m->z, .b = m->b, .a = m->a, .conv_weight = w->conv,
        .decay = w->decay, .dt_bias = w->dt_bias, .norm = w->norm, .eps = t->eps,
        .mixed = m->convolved, .out = m->heads,
    });
    be->ops->input(be, m->heads, n, w->out.n_cols);
    be->ops->matmul(be, &(struct backend_product){&w->out, m->out}, 1);
}

void blocks_mix(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    const struct mix_buffers m = mix_buffers_of(step);
    struct backend *be = step->be;
    be->ops->rms_norm(be, step->x, l->mix_norm, t->eps, step->n_rows, t->hidden, step->normed);
    if (l->is_recurrent)
        delta_net(step, &l->delta_net, &m);
    else
        attention(step, &l->attention, &m);
    be->ops->add(be, step->x, m.out, (size_t)step->n_rows * t->hidden);
}

void blocks_route(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    struct backend *be = step->be;
    be->ops->rms_norm(be, step->x, l->ffn_norm, t->eps, step->n_rows, t->hidden, step->normed);
    const struct backend_product products[] = {{&l->router, step->router},
                                               {&l->shared_gate, step->shared_gate}};
    be->ops->input(be, step->normed, step->n_rows, t->hidden);
    be->ops->matmul(be, products, t->shared_intermediate > 0 ? 2 : 1);
    be->ops->route(be, step->router, step->n_rows, t->n_experts, t->n_experts_per_token,
                   t->renormalises, step->ids, step->weights);
    if (step->resident != NULL)
        be->ops->prefer(be, &(struct backend_preference){
            .logits = step->router, .n = step->n_rows, .n_experts = t->n_experts,
            .k = t->n_experts_per_token, .renormalises = t->renormalises,
            .resident = step->resident, .bias = step->cache_bias, .scores = step->scores,
            .ids = step->ids, .weights = step->weights});
}

void blocks_foresee(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    struct backend *be = step->be;
    be->ops->rms_norm(be, step->x, l->ffn_norm, t->eps, 1, t->hidden, step->ahead_normed);
    be->ops->input(be, step->ahead_normed, 1, t->hidden);
    be->ops->matmul(be, &(struct backend_product){&l->router, step->router}, 1);
    be->ops->route(be, step->router, 1, t->n_experts, t->n_experts_per_token, t->renormalises,
                   step->ahead_ids, step->ahead_weights);
    be->ops->input(be, step->normed, 1, t->hidden);
}

void blocks_dense(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    struct backend *be = step->be;
    be->ops->rms_norm(be, step->x, l->ffn_norm, t->eps, step->n_rows, t->hidden, step->normed);
    be->ops->input(be, step->normed, step->n_rows, t->hidden);
    be->ops->ffn(be, &(struct backend_ffn){.gate = l->dense.gate, .up = l->dense.up,
                                           .down = l->dense.down, .n = step->n_rows,
                                           .out = step->ffn}, 1);
    be->ops->add(be, step->x, step->ffn, (size_t)step->n_rows * t->hidden);
}

/* `normed` is the input since the router. */
void blocks_experts(struct step *step, uint32_t layer, const struct step_expert *experts,
                    uint32_t n, bool with_shared)
{
    const struct transformer *t = transformer_of(step);
    const struct transformer_layer *l = &t->layers[layer];
    const struct expert_layer *e = &step->model->expert_layers[l->expert_layer];
    struct backend_ffn blocks[ARCH_EXPERTS_TOGETHER + 1];
    uint32_t n_blocks = 0;
    if (with_shared && t->shared_intermediate > 0)
        blocks[n_blocks++] = (struct backend_ffn){
            .gate = l->shared.gate, .up = l->shared.up, .down = l->shared.down,
            .n = step->n_rows, .out = step->shared};
    for (uint32_t i = 0; i < n; i++)
        blocks[n_blocks++] = (struct backend_ffn){
            .gate = expert_layer_weight(e, EXPERT_GATE, experts[i].slot),
            .up = expert_layer_weight(e, EXPERT_UP, experts[i].slot),
            .down = expert_layer_weight(e, EXPERT_DOWN, experts[i].slot),
            .rows = experts[i].rows, .places = experts[i].places, .n = experts[i].n,
            .out = step->expert_parts};
    if (n_blocks > 0)
        step->be->ops->ffn(step->be, blocks, n_blocks);
}

void blocks_close(struct step *step, uint32_t layer)
{
    const struct transformer *t = transformer_of(step);
    (void)layer;
    struct backend *be = step->be;
    const size_t n = step->n_rows;
    be->ops->expert_sum(be, step->expert_parts, step->weights, n, t->n_experts_per_token,
                        t->hidden, step->ffn);
    if (t->shared_intermediate > 0) {
        be->ops->add_gated(be, step->ffn, step->shared, step->shared_gate, n, t->hidden);
    }
    be->ops->add(be, step->x, step->ffn, n * t->hidden);
}

void blocks_final_norm(struct step *step, const float *x, uint32_t n, float *normed)
{
    const struct transformer *t = transformer_of(step);
    step->be->ops->rms_norm(step->be, x, t->final_norm, t->eps, n, t->hidden, normed);
}

void blocks_head(struct step *step, const float *normed, uint32_t n, float *logits)
{
    const struct transformer *t = transformer_of(step);
    const struct weight *head = t->has_tied_head ? &t->embedding : &t->head;
    step->be->ops->input(step->be, normed, n, t->hidden);
    step->be->ops->matmul(step->be, &(struct backend_product){head, logits}, 1);
}
