/* Kernels of several streams of the residual, and of tables of n-grams. Part of kernels_all.h. The
 * processor's code is cpu_streams.c: products and sums are apart there, so they are here. */
#ifndef FLASHMOE_BACKEND_CUDA_K_STREAMS_H
#define FLASHMOE_BACKEND_CUDA_K_STREAMS_H

/* ---- streams --------------------------------------------------------------------------------- */

GPU_KERNEL void gpu_stream_norm(const struct gpu_stream_norm_args args)
{
    GPU_SHARED(float, tile, GPU_ROW_TILE);
    GPU_SHARED(float, sum, 1);
    const struct backend_stream_norm &a = args.s;
    const size_t at = (size_t)gpu_block_x() * a.dim;
    gpu_wait();
    gpu_norm_row(a.x + at, a.weight + (size_t)(gpu_block_x() % a.n_streams) * a.dim, a.eps, a.dim,
                 a.y + at, tile, sum);
}

GPU_KERNEL void gpu_stream_mean(const struct gpu_stream_mean_args args)
{
    const struct backend_stream_mean &a = args.s;
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    float sum = 0;
    gpu_wait();
    if (i >= a.dim)
        return;
    for (uint32_t s = 0; s < a.n_streams; s++) {
        const size_t at = ((size_t)gpu_block_x() * a.n_streams + s) * a.dim + i;
        const float term = a.x[at] * fmath_sigmoid(a.gate[at]);
        sum = s == 0 ? term : sum + term;
    }
    a.out[(size_t)gpu_block_x() * a.dim + i] = sum / (float)a.n_streams;
}

GPU_KERNEL void gpu_stream_add(const struct gpu_stream_add_args args)
{
    const struct backend_stream_add &a = args.s;
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    gpu_wait();
    if (i >= a.dim)
        return;
    const float twice = 2.0f * a.y[(size_t)gpu_block_x() * a.dim + i];
    for (uint32_t s = 0; s < a.n_streams; s++) {
        const size_t stream = (size_t)gpu_block_x() * a.n_streams + s;
        float *x = a.x + stream * a.dim + i;
        *x = fmaf(fmath_sigmoid(a.gate[stream] / (float)a.n_streams), twice, *x);
    }
}

GPU_KERNEL void gpu_stream_silu(const struct gpu_stream_silu_args a)
{
    const uint64_t i = (uint64_t)gpu_block_x() * gpu_n_threads() + gpu_thread();
    gpu_wait();
    if (i < a.n)
        a.x[i] = fmath_silu(a.x[i] / a.divisor);
}

/* ---- n-grams --------------------------------------------------------------------------------- */

/* Floats of each of two rows in shared memory at a time; a multiple of 16. */
#define GPU_DOT_TILE 2048u

/* The product of two rows, for every thread: as cpu_dot. The block meets. */
GPU_FN float gpu_dot_rows(const float *x, const float *y, uint32_t n, gpu_shared<float> tile,
                          gpu_shared<float> sum)
{
    float lane = 0;
    for (uint32_t first = 0; first < n; first += GPU_DOT_TILE) {
        const uint32_t left = n - first, count = left < GPU_DOT_TILE ? left : GPU_DOT_TILE;
        gpu_barrier(); /* the tile before has been read */
        for (uint32_t i = gpu_thread(); i < count; i += gpu_n_threads())
            tile[i] = x[first + i] * y[first + i];
        gpu_barrier();
        for (uint32_t i = gpu_thread(); gpu_thread() < GPU_LANES && i < count; i += GPU_LANES)
            lane += tile[i];
    }
    return gpu_sum_block(lane, sum);
}

GPU_KERNEL void gpu_ngram_gate(const struct gpu_ngram_gate_args args)
{
    GPU_SHARED(float, tile, GPU_DOT_TILE);
    GPU_SHARED(float, sum, 1);
    const struct backend_ngram_gate &a = args.g;
    const size_t at = (size_t)gpu_block_x() * a.dim;
    const float *value = a.value + (size_t)(gpu_block_x() / a.n_streams) * a.dim;
    gpu_wait();
    const float product = gpu_dot_rows(a.key + at, a.query + at, a.dim, tile, sum) /
                          sqrtf((float)a.dim);
    const float size = product < 0 ? -product : product;
    const float root = sqrtf(size < 1e-6f ? 1e-6f : size);
    const float gate = product == 0 ? 0 : product < 0 ? -root : root;
    const float share = fmath_sigmoid(gate);
    for (uint32_t i = gpu_thread(); i < a.dim; i += gpu_n_threads())
        a.out[at + i] = share * value[i];
}

/* A channel: row t of a segment, or what is kept of those before its first. */
struct gpu_ngram_channel {
    const float *rows;
    float *kept;
    uint32_t channels, n_kept;
};

GPU_FN float gpu_ngram_at(const struct gpu_ngram_channel &c, int64_t t)
{
    return t < 0 ? c.kept[(size_t)((int64_t)c.n_kept + t) * c.channels]
                 : c.rows[(size_t)t * c.channels];
}

GPU_KERNEL void gpu_ngram_conv(const struct gpu_ngram_conv_args args)
{
    const struct backend_ngram_conv &a = args.c;
    const struct backend_segment *segment = &a.segments[gpu_block_y()];
    const uint32_t own = gpu_block_x() * gpu_n_threads() + gpu_thread();
    const uint32_t n_kept = (a.kernel - 1) * a.distance, n_rows = segment->n_rows;
    const size_t at = (size_t)segment->first_row * a.channels + own;
    gpu_wait();
    if (own >= a.channels)
        return;
    const struct gpu_ngram_channel c = {a.normed + at, (float *)segment->state[NGRAM_CONV] + own,
                                        a.channels, n_kept};
    for (uint32_t t = 0; t < n_rows; t++) {
        const size_t row = at + (size_t)t * a.channels;
        float sum = 0;
        for (uint32_t k = 0; k < a.kernel; k++) {
            const int64_t from = (int64_t)t - (int64_t)(a.kernel - 1 - k) * a.distance;
            const float term = a.weight[(size_t)k * a.channels + own] * gpu_ngram_at(c, from);
            sum = k == 0 ? term : sum + term;
        }
        a.x[row] += a.gated[row] + fmath_silu(sum);
    }
    /* A row that is kept again comes from behind its new place. */
    for (uint32_t i = 0; i < n_kept; i++)
        c.kept[(size_t)i * a.channels] = gpu_ngram_at(c, (int64_t)n_rows - n_kept + i);
}

#endif
