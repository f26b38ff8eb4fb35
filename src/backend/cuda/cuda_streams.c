/* Operations on several streams of the residual, tables of n-grams and the index of sparse
 * attention. */
#include <assert.h>

#include "backend/cuda/backend_cuda_internal.h"

/* ---- streams and n-grams --------------------------------------------------------------------- */

static void stream_norm(struct backend *be, const struct backend_stream_norm *args, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), stream_norm, n * args->n_streams, 1, GPU_ROW_THREADS, {*args});
}

static void stream_mean(struct backend *be, const struct backend_stream_mean *args, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), stream_mean, n, cuda_over(args->dim, 256), 256, {*args});
}

static void stream_add(struct backend *be, const struct backend_stream_add *args, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), stream_add, n, cuda_over(args->dim, 256), 256, {*args});
}

static void stream_silu(struct backend *be, float *x, float divisor, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), stream_silu, cuda_over(n, 256), 1, 256,
                {.x = x, .divisor = divisor, .n = n});
}

static void ngram_gate(struct backend *be, const struct backend_ngram_gate *args, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), ngram_gate, n * args->n_streams, 1, GPU_ROW_THREADS, {*args});
}

static const struct backend_segment *put_segments(struct backend_cuda *cuda,
                                                  const struct backend_segment *segments, size_t n)
{
    cuda_queue_begin(&cuda->queue);
    return cuda_queue_put(&cuda->queue, segments, n * sizeof *segments);
}

static void ngram_conv(struct backend *be, const struct backend_ngram_conv *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    struct backend_ngram_conv conv = *args;
    conv.segments = put_segments(cuda, args->segments, args->n_segments);
    CUDA_LAUNCH(cuda, ngram_conv, cuda_over(args->channels, 128), args->n_segments, 128, {conv});
}

/* ---- the index ------------------------------------------------------------------------------- */

/* Returns the blocks of the row that has most, at most; a power of two. */
static uint32_t max_blocks(const struct backend_index *a)
{
    uint32_t max = 1;
    for (size_t s = 0; s < a->n_segments; s++) {
        const uint32_t n = (a->segments[s].position + a->segments[s].n_rows) / a->ratio;
        max = n > max ? n : max;
    }
    return cuda_power_of_two(max);
}

size_t cuda_score_floats(const struct backend_options *o)
{
    if (o->index_best == 0)
        return 0;
    const size_t row = cuda_power_of_two(o->n_context);
    const size_t all = row * o->max_rows, usual = 4ul << 20;
    return row > usual ? row : all < usual ? all : usual;
}

static struct gpu_index index_of(struct backend_cuda *cuda, const struct backend_index *args)
{
    struct gpu_index x = {.i = *args};
    x.i.segments = put_segments(cuda, args->segments, args->n_segments);
    return x;
}

static void index_means(struct backend *be, const struct backend_index *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    const uint32_t n = cuda_rows_of(args->segments, args->n_segments);
    const struct gpu_index x = index_of(cuda, args);
    CUDA_LAUNCH(cuda, index_means, cuda_over(args->dim, 128), n, 128, {x});
}

static void index_choose(struct backend *be, const struct backend_index *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    const uint32_t n_rows = cuda_rows_of(args->segments, args->n_segments);
    const uint32_t blocks = max_blocks(args);
    const size_t fit = cuda->score_floats / blocks; /* rows whose scores have room */
    struct gpu_index x = index_of(cuda, args);
    assert(args->n_best > 0 && args->n_best <= cuda->limits.index_best && fit > 0);
    CUDA_LAUNCH(cuda, index_keep, cuda_over(args->dim, 128), n_rows, 128, {x});
    for (uint32_t row = 0, n; row < n_rows; row += n) {
        n = n_rows - row < fit ? n_rows - row : (uint32_t)fit;
        x.first_row = row;
        if (blocks > args->n_best)
            CUDA_LAUNCH(cuda, index_score, cuda_over(blocks, GPU_SCORE_BLOCKS), n,
                        16 * GPU_SCORE_BLOCKS,
                        {.x = x, .max_blocks = blocks, .scores = cuda->scores});
        CUDA_LAUNCH(cuda, index_choose, n, 1, GPU_CHOOSE_THREADS,
                    {.x = x, .max_blocks = blocks, .scores = cuda->scores});
    }
}

const struct backend_stream_ops cuda_stream_ops = {
    .norm = stream_norm,
    .mean = stream_mean,
    .add = stream_add,
    .silu = stream_silu,
    .ngram_gate = ngram_gate,
    .ngram_conv = ngram_conv,
    .index_means = index_means,
    .index_choose = index_choose,
};
