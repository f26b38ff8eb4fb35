/* The sequence mixers: softmax attention and the gated delta rule. */
#include <assert.h>

#include "backend/cuda/backend_cuda_internal.h"
#include "backend/cuda/formats.h"

size_t cuda_partial_floats(const struct backend_options *o)
{
    const size_t n_blocks = cuda_power_of_two(o->n_context / GPU_ATTENTION_BLOCK + 2);
    const size_t row = n_blocks * o->n_heads * (o->head_dim + 2ul);
    const size_t all = row * o->max_rows, usual = 4ul << 20;
    return row > usual ? row : all < usual ? all : usual;
}

/* Returns how many blocks of 256 positions the row that sees most of them sees, at most; a power of
 * two. */
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
    return cuda_power_of_two(max);
}

/* Blocks of threads that keep a GPU busy. */
#define BUSY_BLOCKS 128

/* Returns into how many parts the query heads of a key head are divided: with few rows and
 * positions, single heads are spread over the GPU. */
static uint32_t head_parts(const struct backend_attention *a, uint32_t n_rows, uint32_t n_blocks)
{
    const uint32_t group = a->n_heads / a->n_kv_heads;
    const uint64_t n = (uint64_t)n_rows * n_blocks * a->n_kv_heads;
    uint32_t parts = 1;
    while (2 * parts <= group && n * parts < BUSY_BLOCKS)
        parts *= 2;
    return parts;
}

uint32_t cuda_rows_of(const struct backend_segment *segments, size_t n)
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
    const uint32_t n_rows = cuda_rows_of(args->segments, args->n_segments);
    const uint32_t n_blocks = max_blocks(args);
    const size_t heads = (size_t)n_blocks * args->n_heads;
    /* Rows whose blocks have room at the same time. */
    const size_t fit = cuda->partial_floats / (heads * (args->head_dim + 2ul));
    assert(fit > 0);
    cuda_queue_begin(&cuda->queue);
    struct gpu_attention a = {
        .kv = gpu_kv_format_of(args->kv_format), .n_heads = args->n_heads,
        .n_kv_heads = args->n_kv_heads, .head_dim = args->head_dim,
        .value_dim = args->value_dim,
        .block_positions = args->block_positions, .block_bytes = args->block_bytes,
        .segments = cuda_queue_put(&cuda->queue, args->segments,
                                   args->n_segments * sizeof *args->segments),
        .n_segments = (uint32_t)args->n_segments, .q = args->q, .gate = args->gate,
        .q_row_stride = args->q_row_stride, .q_head_stride = args->q_head_stride, .k = args->k,
        .v = args->v, .keys_have_values = args->v == NULL, .scale = args->scale,
        .window = args->window, .sinks = args->sinks,
        .out = args->out, .n_blocks = n_blocks};
    CUDA_LAUNCH(cuda, store_kv, args->n_kv_heads, n_rows, 128, {a});
    for (uint32_t row = 0; row < n_rows; row += (uint32_t)fit) {
        const uint32_t n = n_rows - row < fit ? n_rows - row : (uint32_t)fit;
        a.first_row = row;
        a.block_max = cuda->partial;
        a.block_total = a.block_max + n * heads;
        a.block_out = a.block_total + n * heads;
        const uint32_t n_parts = head_parts(args, n, n_blocks);
        const uint32_t n_items = n_parts * args->n_kv_heads * n_blocks;
        if (args->chosen != NULL) {
            CUDA_LAUNCH(cuda, attend_chosen, n_items, n, GPU_ATTEND_THREADS,
                        {a, n_parts, {args->chosen, args->ratio, args->n_best}});
            CUDA_LAUNCH(cuda, merge_chosen, args->n_heads, n, 128, {.a = a});
        } else {
            CUDA_LAUNCH(cuda, attend, n_items, n, GPU_ATTEND_THREADS, {a, n_parts});
            CUDA_LAUNCH(cuda, merge, args->n_heads, n, 128, {.a = a});
        }
    }
}

/* Whether one kernel does all: see gpu_delta_token_args. */
static bool is_token(const struct backend_delta_net *args)
{
    if (args->key_dim != GPU_TOKEN_DIM || args->value_dim != GPU_TOKEN_DIM ||
        args->kernel > GPU_TOKEN_KERNEL)
        return false;
    for (size_t s = 0; s < args->n_segments; s++)
        if (args->segments[s].n_rows != 1 || args->segments[s].n_slots > 0 ||
            (uintptr_t)args->segments[s].state[DELTA_NET_STATE] % GPU_QUAD_BYTES != 0)
            return false;
    return true;
}

static void run_delta_rows(struct backend_cuda *cuda, const struct gpu_delta_net *d,
                           uint32_t max_rows)
{
    const uint32_t n_heads = d->net.n_value_heads, n_segments = (uint32_t)d->net.n_segments;
    CUDA_LAUNCH(cuda, conv_silu, cuda_over(d->channels, 128) * cuda_over(max_rows, GPU_CONV_ROWS),
                n_segments, 128, {.d = *d, .end = d->channels});
    CUDA_LAUNCH(cuda, delta_head, n_heads * cuda_over(d->net.value_dim, GPU_DELTA_COLUMNS),
                n_segments, 4 * GPU_DELTA_COLUMNS, {.d = *d});
    CUDA_LAUNCH(cuda, delta_close, cuda_over((size_t)max_rows * n_heads, 4), n_segments, 128,
                {.d = *d, .n_heads = n_heads});
}

void cuda_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    struct gpu_delta_net d = {.net = *args,
                              .channels = 2 * args->n_key_heads * args->key_dim +
                                          args->n_value_heads * args->value_dim};
    uint32_t max_rows = 0;
    for (size_t s = 0; s < args->n_segments; s++) {
        const uint32_t n = args->segments[s].n_rows;
        max_rows = n > max_rows ? n : max_rows;
        d.n_rows += n;
        assert(args->segments[s].n_slots == 0 || n < args->segments[s].n_slots);
        assert(args->segments[s].n_slots == 0 || n <= GPU_CONV_ROWS);
    }
    if (d.n_rows == 0)
        return;
    cuda_queue_begin(&cuda->queue);
    d.net.segments = cuda_queue_put(&cuda->queue, args->segments,
                                    args->n_segments * sizeof *args->segments);
    assert(args->key_dim <= GPU_MAX_KEY_DIM);
    if (is_token(args) && args->n_segments * args->n_key_heads <= CUDA_COUNTERS)
        CUDA_LAUNCH(cuda, delta_token, args->n_value_heads, args->n_segments, 4 * GPU_TOKEN_DIM,
                    {.d = d, .n_read = cuda->counters});
    else
        run_delta_rows(cuda, &d, max_rows);
}
