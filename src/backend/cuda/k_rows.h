/* Kernels over rows: norms, rotary embedding, sums. Part of kernels_all.h. Sums of floats have 16
 * lanes and one tree, as in cpu/kernels.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ROWS_H
#define FLASHMOE_BACKEND_CUDA_K_ROWS_H

#define GPU_LANES 16u
#define GPU_MAX_HEAD_DIM LIMIT_HEAD_DIM

/* Adds up the 16 lanes of a half of a warp, for every thread of the half. The warp meets. */
GPU_FN float gpu_sum_half_warp(float lane)
{
    const unsigned half = gpu_lane() & 16;
    for (unsigned width = GPU_LANES / 2; width > 0; width /= 2)
        lane += gpu_shuffle(lane, half | ((gpu_lane() + width) & 15));
    return gpu_shuffle(lane, half);
}

/* A team of four threads has the 16 lanes of a sum, member u lanes 4 u to 4 u + 3. */
#define GPU_TEAM 4u

GPU_FN unsigned gpu_member() { return gpu_lane() % GPU_TEAM; }

/* Adds up 16 lanes of which a member has four, for all members. The warp meets. */
GPU_FN float gpu_sum_team(struct gpu_quad lanes)
{
    GPU_UNROLL
    for (unsigned e = 0; e < 4; e++)
        lanes.x[e] += gpu_shuffle_xor(lanes.x[e], 2);
    GPU_UNROLL
    for (unsigned e = 0; e < 4; e++)
        lanes.x[e] += gpu_shuffle_xor(lanes.x[e], 1);
    return (lanes.x[0] + lanes.x[2]) + (lanes.x[1] + lanes.x[3]);
}

/* Four quads of shared memory that are on their way together. */
struct gpu_quad_ring {
    struct gpu_quad quads[4];

    GPU_METHOD void load(gpu_shared<float> from, uint32_t stride)
    {
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            quads[e] = gpu_take_quad_now(from, e * stride);
    }
};

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

/* Elements of a lane that are on their way at the same time: a sum must not wait for memory at
 * every step. */
#define GPU_LANE_AHEAD 16u
#define GPU_LANE_STEP (GPU_LANE_AHEAD * GPU_LANES)

/* Adds the squares of lane j, elements j, j + 16, ... of n, to a sum. */
template <class Values>
GPU_FN float gpu_add_squares(const Values &x, uint32_t n, unsigned j, float sum)
{
    float now[GPU_LANE_AHEAD], next[GPU_LANE_AHEAD];
    uint32_t i = j;
    GPU_UNROLL
    for (unsigned e = 0; e < GPU_LANE_AHEAD; e++)
        next[e] = i + e * GPU_LANES < n ? (float)x[i + e * GPU_LANES] : 0;
    for (; i - j + GPU_LANE_STEP <= n; i += GPU_LANE_STEP) {
        GPU_UNROLL
        for (unsigned e = 0; e < GPU_LANE_AHEAD; e++) {
            const uint32_t ahead = i + GPU_LANE_STEP + e * GPU_LANES;
            now[e] = next[e];
            next[e] = ahead < n ? (float)x[ahead] : 0;
        }
        GPU_UNROLL
        for (unsigned e = 0; e < GPU_LANE_AHEAD; e++)
            sum = fmaf(now[e], now[e], sum);
    }
    GPU_UNROLL
    for (unsigned e = 0; e < GPU_LANE_AHEAD; e++)
        if (i + e * GPU_LANES < n)
            sum = fmaf(next[e], next[e], sum);
    return sum;
}

/* Ends the sum of lane j: what is missing at the end of the last 16 counts as zero. */
GPU_FN float gpu_end_lane(float sum, uint32_t n, unsigned j)
{
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

/* The sum of squares of a row in shared memory, for every thread. The block meets before it is
 * read. */
GPU_FN float gpu_sum_squares(gpu_shared<float> row, uint32_t n, gpu_shared<float> sum)
{
    float lane = 0;
    gpu_barrier();
    if (gpu_thread() < GPU_LANES)
        lane = gpu_end_lane(gpu_add_squares(row, n, gpu_thread(), 0), n, gpu_thread());
    return gpu_sum_block(lane, sum);
}

GPU_FN float gpu_norm_scale(float squares, uint32_t n, float eps)
{
    return 1.0f / sqrtf(squares / (float)n + eps);
}

/* Floats of a row in shared memory at a time; a multiple of 16. */
#define GPU_ROW_TILE 4096u

/* The norm of a row. The 16 threads that add up read a tile that all threads have fetched. The
 * block meets. */
GPU_FN void gpu_norm_row(const float *x, const float *weight, float eps, uint32_t dim, float *y,
                         gpu_shared<float> tile, gpu_shared<float> sum)
{
    float lane = 0;
    for (uint32_t first = 0; first < dim; first += GPU_ROW_TILE) {
        const uint32_t n = dim - first < GPU_ROW_TILE ? dim - first : GPU_ROW_TILE;
        gpu_barrier(); /* the tile before has been read */
        for (uint32_t i = gpu_thread(); i < n; i += gpu_n_threads())
            tile[i] = x[first + i];
        gpu_barrier();
        if (gpu_thread() < GPU_LANES)
            lane = gpu_add_squares(tile, n, gpu_thread(), lane);
    }
    const float squares = gpu_sum_block(gpu_end_lane(lane, dim, gpu_thread()), sum);
    const float scale = gpu_norm_scale(squares, dim, eps);
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
        y[i] = x[i] * scale * weight[i];
}

GPU_KERNEL void gpu_rms_norm(const struct gpu_rms_norm_args a)
{
    GPU_SHARED(float, tile, GPU_ROW_TILE);
    GPU_SHARED(float, sum, 1);
    const size_t at = (size_t)gpu_block_x() * a.dim;
    gpu_wait();
    gpu_norm_row(a.x + at, a.weight, a.eps, a.dim, a.y + at, tile, sum);
}

GPU_KERNEL void gpu_rope_table(const struct gpu_rope_table_args a)
{
    const uint32_t half = a.rotary_dim / 2;
    float *out = a.out + (size_t)gpu_block_x() * a.rotary_dim;
    gpu_wait();
    for (uint32_t i = gpu_thread(); i < half; i += gpu_n_threads()) {
        float sine, cosine;
        fmath_sincos((float)a.positions[gpu_block_x()] * a.frequencies[i], &sine, &cosine);
        out[i] = cosine * a.scale;
        out[i + half] = sine * a.scale;
    }
}

/* Norm and rotation of a head. Leaves it in shared memory too, where the block meets before it is
 * read. */
GPU_FN void gpu_place_head(const struct gpu_norm_rope_args &a, uint32_t row, uint32_t head,
                           gpu_shared<float> x, gpu_shared<float> sum)
{
    const uint32_t half = a.rotary_dim / 2;
    const float *cosines = a.rope + (size_t)row * a.rotary_dim, *sines = cosines + half;
    float *at = a.x + row * a.row_stride + head * a.head_stride;
    gpu_barrier(); /* the head before has been read */
    for (uint32_t i = gpu_thread(); i < a.head_dim; i += gpu_n_threads())
        x[i] = at[i];
    if (a.norm != NULL) {
        const float scale = gpu_norm_scale(gpu_sum_squares(x, a.head_dim, sum), a.head_dim, a.eps);
        for (uint32_t i = gpu_thread(); i < a.head_dim; i += gpu_n_threads())
            x[i] = x[i] * scale * a.norm[i];
    }
    gpu_barrier();
    for (uint32_t i = gpu_thread(); i < half; i += gpu_n_threads()) {
        const uint32_t one = a.turns_neighbours ? 2 * i : i;
        const uint32_t other = a.turns_neighbours ? one + 1 : i + half;
        const float first = x[one], second = x[other];
        at[one] = x[one] = fmaf(-second, sines[i], first * cosines[i]);
        at[other] = x[other] = fmaf(first, sines[i], second * cosines[i]);
    }
    for (uint32_t i = 2 * half + gpu_thread(); i < a.head_dim; i += gpu_n_threads())
        at[i] = x[i];
}

GPU_KERNEL void gpu_norm_rope(const struct gpu_norm_rope_args a)
{
    GPU_SHARED(float, x, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, sum, 1);
    gpu_wait();
    gpu_place_head(a, gpu_block_x(), gpu_block_y(), x, sum);
}

GPU_KERNEL void gpu_expert_sum(const struct gpu_expert_sum_args a)
{
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    const float *weights = a.weights + (size_t)gpu_block_x() * a.k;
    const float *parts = a.parts + (size_t)gpu_block_x() * a.k * a.dim;
    float sum = 0;
    gpu_wait();
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
    gpu_wait();
    if (i < a.dim)
        a.y[at] = fmaf(fmath_sigmoid(a.gate[gpu_block_x()]), a.x[at], a.y[at]);
}

GPU_KERNEL void gpu_add(const struct gpu_add_args a)
{
    const uint64_t i = (uint64_t)gpu_block_x() * gpu_n_threads() + gpu_thread();
    gpu_wait();
    if (i < a.n)
        a.y[i] += a.x[i];
}

GPU_KERNEL void gpu_find_not_finite(const struct gpu_find_not_finite_args a)
{
    const float *x = a.x + (size_t)gpu_block_x() * a.dim;
    const uint32_t begin = gpu_block_y() * GPU_CHECK_COLUMNS, left = a.dim - begin;
    const uint32_t end = begin + (left < GPU_CHECK_COLUMNS ? left : GPU_CHECK_COLUMNS);
    unsigned found = 0; /* 1: infinite, 2: NaN */
    struct gpu_candidate best = {-INFINITY, 0};
    gpu_read_args(a);
    gpu_wait();
    GPU_UNROLL_BY(8)
    for (uint32_t i = begin + gpu_thread(); i < end; i += GPU_WARP) {
        const float it = x[i];
        found |= it != it ? 2u : it - it != 0 ? 1u : 0u;
        best = it > best.value ? gpu_candidate{it, i} : best;
    }
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2)
        found |= gpu_shuffle_xor(found, mask);
    if (found != 0 && gpu_thread() == 0)
        gpu_raise(a.found, not_finite_code(gpu_block_x(), found >= 2));
    if (a.peak == NULL)
        return;
    uint64_t code = best.value > -INFINITY ? peak_code(best.value, best.index) : 0;
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const uint64_t other = gpu_shuffle_xor(code, mask);
        code = other > code ? other : code;
    }
    if (gpu_thread() == 0)
        gpu_raise(a.peak, code);
}

#endif
