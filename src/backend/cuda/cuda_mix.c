/* The sequence mixers: softmax attention and the gated delta rule. */
#include <assert.h>

#include "backend/cuda/backend_cuda_internal.h"
#include "backend/cuda/formats.h"

size_t cuda_partial_floats(const struct backend_options *o)
{
    const size_t n_blocks = o->n_context / GPU_ATTENTION_BLOCK + 2ul;
    const size_t row = n_blocks * o->n_heads * (o->head_dim + 2ul);
    const size_t all = row * o->max_rows, usual = 4ul << 20;
    return row > usual ? row : all < usual ? all : usual;
}

/* Returns how many blocks of 256 positions the row that sees most of them sees, at most. */
static uint32_t max_blocks(const struct backend_attention *a)
{
    uint32_t max = 1;
    for (size_t s = 0; s < a->n_segments; s++) {
        const uint32_t end = a->segments[s].position + a->segments[s].n_rows;
        const uint32_t seen = a->window > 0 && a->window < end ? a->window + GPU_ATTENTION_BLOCK
                                                               : end;
        const uint32_t n = cuda_over(seen, GPU_ATTENTION_BLOCK);
        max = n > max ? n : max;
    }
    return max;
}

static uint32_t rows_of(const struct backend_segment *segments, size_t n)
{
    uint32_t rows = 0;
    for (size_t s = 0; s < n; s++) {
        assert(segments[s].first_row == rows);
        rows += segments[s].n_rows;
    }
    return rows;
}

void cuda_attention(struct backend *be, const struct backend_attention *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    const uint32_t n_rows = rows_of(args->segments, args->n_segments), n_blocks = max_blocks(args);
    const size_t heads = (size_t)n_blocks * args->n_heads;
    /* Rows whose blocks have room at the same time. */
    const size_t fit = cuda->partial_floats / (heads * (args->head_dim + 2ul));
    assert(fit > 0);
    cuda_queue_begin(&cuda->queue);
    struct gpu_attention a = {
        .kv = gpu_kv_format_of(args->kv_format), .n_heads = args->n_heads,
        .n_kv_heads = args->n_kv_heads, .head_dim = args->head_dim,
        .block_positions = args->block_positions, .block_bytes = args->block_bytes,
        .segments = cuda_queue_put(&cuda->queue, args->segments,
                                   args->n_segments * sizeof *args->segments),
        .n_segments = (uint32_t)args->n_segments, .q = args->q, .gate = args->gate,
        .q_row_stride = args->q_row_stride, .q_head_stride = args->q_head_stride, .k = args->k,
        .v = args->v, .scale = args->scale, .window = args->window, .sinks = args->sinks,
        .out = args->out, .n_blocks = n_blocks};
    CUDA_LAUNCH(cuda, store_kv, args->n_kv_heads, n_rows, 128, {a});
    for (uint32_t row = 0; row < n_rows; row += (uint32_t)fit) {
        const uint32_t n = n_rows - row < fit ? n_rows - row : (uint32_t)fit;
        a.first_row = row;
        a.block_max = cuda->partial;
        a.block_total = a.block_max + n * heads;
        a.block_out = a.block_total + n * heads;
        CUDA_LAUNCH(cuda, attend, args->n_kv_heads * n_blocks, n, 256, {a});
        CUDA_LAUNCH(cuda, merge, args->n_heads, n, 128, {a});
    }
}

void cuda_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    struct gpu_delta_net d = {.net = *args,
                              .channels = 2 * args->n_key_heads * args->key_dim +
                                          args->n_value_heads * args->value_dim};
    cuda_queue_begin(&cuda->queue);
    d.net.segments = cuda_queue_put(&cuda->queue, args->segments,
                                    args->n_segments * sizeof *args->segments);
    assert(args->key_dim <= GPU_MAX_KEY_DIM && args->value_dim <= GPU_MAX_VALUE_DIM);
    CUDA_LAUNCH(cuda, conv_silu, cuda_over(d.channels, 128), args->n_segments, 128,
                {.d = d, .end = d.channels});
    CUDA_LAUNCH(cuda, delta_head, args->n_value_heads, args->n_segments, 256, {.d = d});
}
