/* Kernels over rows: norms, rotary embedding, sums. Part of kernels_all.h. Sums of floats have 16
 * lanes and one tree, as in cpu/kernels.h. */

#define GPU_LANES 16u

/* Adds up 16 lanes that lie in shared memory; the block has met since they were written, and all of
 * its first warp calls it. Returns the sum to every thread of the warp. */
GPU_FN float gpu_sum_lanes(gpu_shared<float> lanes)
{
    float x = lanes[gpu_lane() % GPU_LANES];
    for (unsigned width = GPU_LANES / 2; width > 0; width /= 2)
        x += gpu_shuffle(x, (gpu_lane() + width) % GPU_WARP);
    return gpu_shuffle(x, 0);
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

/* The sum of squares of a row, for every thread of the block. */
GPU_FN float gpu_sum_squares(const float *x, uint32_t n, gpu_shared<float> lanes,
                             gpu_shared<float> sum)
{
    if (gpu_thread() < GPU_LANES)
        lanes[gpu_thread()] = gpu_dot_lane(x, x, n, gpu_thread());
    gpu_barrier();
    if (gpu_warp() == 0) {
        const float total = gpu_sum_lanes(lanes);
        if (gpu_thread() == 0)
            sum[0] = total;
    }
    gpu_barrier();
    return sum[0];
}

GPU_KERNEL void gpu_rms_norm(const struct gpu_rms_norm_args a)
{
    GPU_SHARED(float, lanes, GPU_LANES);
    GPU_SHARED(float, sum, 1);
    const float *x = a.x + (size_t)gpu_block_x() * a.dim;
    float *y = a.y + (size_t)gpu_block_x() * a.dim;
    const float squares = gpu_sum_squares(x, a.dim, lanes, sum);
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
    GPU_SHARED(float, lanes, GPU_LANES);
    GPU_SHARED(float, sum, 1);
    const uint32_t half = a.rotary_dim / 2;
    const float *cosines = a.rope + (size_t)gpu_block_x() * a.rotary_dim, *sines = cosines + half;
    float *x = a.x + gpu_block_x() * a.row_stride + gpu_block_y() * a.head_stride;
    if (a.norm != NULL) {
        const float squares = gpu_sum_squares(x, a.head_dim, lanes, sum);
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
    bool is_finite = true;
    for (uint32_t i = gpu_thread(); i < a.dim; i += gpu_n_threads())
        is_finite = is_finite && x[i] - x[i] == 0;
    if (!is_finite)
        gpu_lower(a.first, gpu_block_x());
}
