/* Kernels over rows: norms, rotary embedding, sums. Part of kernels_all.h. Sums of floats have 16
 * lanes and one tree, as in cpu/kernels.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ROWS_H
#define FLASHMOE_BACKEND_CUDA_K_ROWS_H

#define GPU_LANES 16u

/* Adds up the 16 lanes of a half of a warp, for every thread of the half. The warp meets. */
GPU_FN float gpu_sum_half_warp(float lane)
{
    const unsigned half = gpu_lane() & 16;
    for (unsigned width = GPU_LANES / 2; width > 0; width /= 2)
        lane += gpu_shuffle(lane, half | ((gpu_lane() + width) & 15));
    return gpu_shuffle(lane, half);
}

/* A candidate: a higher value is better, and of equal values the lower index. */
struct gpu_candidate {
    float value;
    uint32_t index;
};

#define GPU_NO_CANDIDATE UINT32_MAX

GPU_FN bool gpu_is_better(struct gpu_candidate a, struct gpu_candidate b)
{
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

/* Lane j of the dot product of a and b: elements j, j + 16, ... What is missing at the end of the
 * last 16 counts as zero. */
GPU_FN float gpu_dot_lane(const float *a, const float *b, uint32_t n, unsigned j)
{
    float sum = 0;
    uint32_t i = j;
    for (; i < n; i += GPU_LANES)
        sum = fmaf(a[i], b[i], sum);
    return n % GPU_LANES != 0 && j >= n % GPU_LANES ? fmaf(0.0f, 0.0f, sum) : sum;
}

/* Adds up what the first 16 threads of the block have, for every thread. The block meets. */
GPU_FN float gpu_sum_block(float lane, gpu_shared<float> sum)
{
    gpu_barrier(); /* the sum of the call before has been read */
    if (gpu_warp() == 0) {
        const float total = gpu_sum_half_warp(lane);
        if (gpu_thread() == 0)
            sum[0] = total;
    }
    gpu_barrier();
    return sum[0];
}

/* The sum of squares of a row, for every thread of the block. */
GPU_FN float gpu_sum_squares(const float *x, uint32_t n, gpu_shared<float> sum)
{
    return gpu_sum_block(gpu_thread() < GPU_LANES ? gpu_dot_lane(x, x, n, gpu_thread()) : 0, sum);
}

GPU_KERNEL void gpu_rms_norm(const struct gpu_rms_norm_args a)
{
    GPU_SHARED(float, sum, 1);
    const float *x = a.x + (size_t)gpu_block_x() * a.dim;
    float *y = a.y + (size_t)gpu_block_x() * a.dim;
    const float squares = gpu_sum_squares(x, a.dim, sum);
    const float scale = 1.0f / sqrtf(squares / (float)a.dim + a.eps);
    for (uint32_t i = gpu_thread(); i < a.dim; i += gpu_n_threads())
        y[i] = x[i] * scale * a.weight[i];
}

GPU_KERNEL void gpu_rope_table(const struct gpu_rope_table_args a)
{
    const uint32_t half = a.rotary_dim / 2;
    float *out = a.out + (size_t)gpu_block_x() * a.rotary_dim;
    for (uint32_t i = gpu_thread(); i < half; i += gpu_n_threads()) {
        float sine, cosine;
        fmath_sincos((float)a.positions[gpu_block_x()] * a.frequencies[i], &sine, &cosine);
        out[i] = cosine * a.scale;
        out[i + half] = sine * a.scale;
    }
}

/* Dimension i turns with dimension i + half. */
GPU_KERNEL void gpu_norm_rope(const struct gpu_norm_rope_args a)
{
    GPU_SHARED(float, sum, 1);
    const uint32_t half = a.rotary_dim / 2;
    const float *cosines = a.rope + (size_t)gpu_block_x() * a.rotary_dim, *sines = cosines + half;
    float *x = a.x + gpu_block_x() * a.row_stride + gpu_block_y() * a.head_stride;
    if (a.norm != NULL) {
        const float squares = gpu_sum_squares(x, a.head_dim, sum);
        const float scale = 1.0f / sqrtf(squares / (float)a.head_dim + a.eps);
        for (uint32_t i = gpu_thread(); i < a.head_dim; i += gpu_n_threads())
            x[i] = x[i] * scale * a.norm[i];
        gpu_barrier();
    }
    for (uint32_t i = gpu_thread(); i < half; i += gpu_n_threads()) {
        const float first = x[i], second = x[i + half];
        x[i] = fmaf(-second, sines[i], first * cosines[i]);
        x[i + half] = fmaf(first, sines[i], second * cosines[i]);
    }
}

GPU_KERNEL void gpu_expert_sum(const struct gpu_expert_sum_args a)
{
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    const float *weights = a.weights + (size_t)gpu_block_x() * a.k;
    const float *parts = a.parts + (size_t)gpu_block_x() * a.k * a.dim;
    float sum = 0;
    if (i >= a.dim)
        return;
    for (uint32_t j = 0; j < a.k; j++)
        sum = fmaf(weights[j], parts[(size_t)j * a.dim + i], sum);
    a.out[(size_t)gpu_block_x() * a.dim + i] = sum;
}

GPU_KERNEL void gpu_add_gated(const struct gpu_add_gated_args a)
{
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    const size_t at = (size_t)gpu_block_x() * a.dim + i;
    if (i < a.dim)
        a.y[at] = fmaf(fmath_sigmoid(a.gate[gpu_block_x()]), a.x[at], a.y[at]);
}

GPU_KERNEL void gpu_add(const struct gpu_add_args a)
{
    const uint64_t i = (uint64_t)gpu_block_x() * gpu_n_threads() + gpu_thread();
    if (i < a.n)
        a.y[i] += a.x[i];
}

GPU_KERNEL void gpu_find_not_finite(const struct gpu_find_not_finite_args a)
{
    const float *x = a.x + (size_t)gpu_block_x() * a.dim;
    unsigned found = 0; /* 1: infinite, 2: NaN */
    for (uint32_t i = gpu_thread(); i < a.dim; i += GPU_WARP)
        found |= x[i] != x[i] ? 2u : x[i] - x[i] != 0 ? 1u : 0u;
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2)
        found |= gpu_shuffle_xor(found, mask);
    if (found != 0 && gpu_thread() == 0)
        gpu_raise(a.found, not_finite_code(gpu_block_x(), found >= 2));
}

#endif
