/* Products with one input, as a token has them: little work that must begin at once. Part of
 * kernels_all.h.
 *
 * Weights whose address is known are read before the launches ahead have ended. Everything that a
 * block needs of them is on its way before it needs the first. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ONE_H
#define FLASHMOE_BACKEND_CUDA_K_ONE_H

/* ---- codes of four bits, sixteen rows side by side -------------------------------------------
 *
 * A thread has a slice: 64 columns of four rows. Its sums of groups go to shared memory with what
 * they are multiplied with; one thread for each row folds them in the order of the groups. */

#define GPU_ONE_SLICES (GPU_ONE_WARPS * 8) /* of all warps, at a time */

/* The nibbles of an affine weight; of one without biases; or of MXFP4 in two parts, where they name
 * levels and a scale is a byte. */
enum gpu_nibbles { GPU_AFFINE, GPU_INT4, GPU_FP4 };

/* What a thread reads of a weight. */
template <uint32_t GROUP, gpu_nibbles KIND> struct gpu_slice {
    enum : uint32_t {
        n_words = GPU_ONE_SLICE / 8,
        n_groups = GROUP < GPU_ONE_SLICE ? GPU_ONE_SLICE / GROUP : 1,
    };
    struct gpu_four words[n_words]; /* eight columns of each row */
    struct gpu_pair scale[n_groups], bias[n_groups];

    /* Begins to read slice s of rows from `row` on. */
    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t s)
    {
        const uint32_t quarter = gpu_lane() % 4, g = s * GPU_ONE_SLICE / GROUP;
        const uint8_t *at = w.parts[0] + (uint64_t)row * (w.n_cols / 2) + s * 512ull + quarter * 16;
        const uint64_t scale_at = (uint64_t)row * (w.n_cols / GROUP) + g * 16ull + quarter * 4;
        GPU_UNROLL
        for (uint32_t i = 0; i < n_words; i++)
            words[i] = gpu_stream_four(at + i * 64);
        GPU_UNROLL
        for (uint32_t j = 0; j < n_groups; j++) {
            if (KIND == GPU_FP4) {
                scale[j].low = gpu_load_word(w.parts[1] + scale_at + j * 16);
                continue;
            }
            scale[j] = gpu_stream_pair(w.parts[1] + 2 * (scale_at + j * 16));
            if (KIND == GPU_AFFINE)
                bias[j] = gpu_stream_pair(w.parts[2] + 2 * (scale_at + j * 16));
        }
    }
};

/* The even and the odd ones of eight columns. */
GPU_FN struct gpu_pair gpu_even_and_odd(uint32_t first, uint32_t second)
{
    return {gpu_permute(first, second, 0x6420), gpu_permute(first, second, 0x7531)};
}

/* Value r of four halves. */
GPU_FN float gpu_half_of(unsigned plain, const struct gpu_pair &halves, uint32_t r)
{
    const uint32_t half = (r < 2 ? halves.low : halves.high) >> r % 2 * 16;
    return gpu_affine_scales<1, true>::value(plain, half);
}

/* Scale of row r of four. */
template <gpu_nibbles KIND>
GPU_FN float gpu_one_scale(unsigned plain, const struct gpu_pair &scales, uint32_t r)
{
    return KIND == GPU_FP4 ? codes_mxfp4_scale(scales.low >> 8 * r & 0xff)
                           : gpu_half_of(plain, scales, r);
}

/* Where a thread finds its columns of the input, and the scales of their groups. */
struct gpu_one_global {
    const int8_t *q;
    const float *scale, *offset;
    const int32_t *sum;
    GPU_METHOD struct gpu_four columns(uint32_t c) const { return gpu_load_four(q + c); }
    GPU_METHOD float scale_of(uint32_t g) const { return scale[g]; }
    GPU_METHOD float offset_of(uint32_t g) const { return offset[g]; }
    GPU_METHOD int32_t sum_of(uint32_t g) const { return sum[g]; }
};

/* The same in shared memory; four columns are the bits of a float. Weights without biases need
 * sums in place of offsets. */
struct gpu_one_shared {
    gpu_shared<float> q, scale, offset;
    GPU_METHOD struct gpu_four columns(uint32_t c) const
    {
        const struct gpu_quad quad = gpu_take_quad(q, c / 4);
        return {{fmath_bits_of_float(quad.x[0]), fmath_bits_of_float(quad.x[1]),
                 fmath_bits_of_float(quad.x[2]), fmath_bits_of_float(quad.x[3])}};
    }
    GPU_METHOD float scale_of(uint32_t g) const { return scale[g]; }
    GPU_METHOD float offset_of(uint32_t g) const { return offset[g]; }
    GPU_METHOD int32_t sum_of(uint32_t g) const { return (int32_t)offset[g]; }
};

/* Sums of a group's words with the input's columns from c on. */
template <uint32_t N, gpu_nibbles KIND, class input>
GPU_FN void gpu_one_dot(const struct gpu_four *words, const input &in, uint32_t c, int32_t sum[4])
{
    GPU_UNROLL
    for (uint32_t i = 0; i < N; i += 2) {
        const struct gpu_four columns = in.columns(c + 8 * i);
        GPU_UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t first = columns.words[2 * k], second = columns.words[2 * k + 1];
            const struct gpu_pair x = KIND == GPU_FP4 ? gpu_pair{first, second}
                                                      : gpu_even_and_odd(first, second);
            GPU_UNROLL
            for (uint32_t r = 0; r < 4; r++) {
                const uint32_t codes = words[i + k].words[r];
                if (KIND == GPU_FP4) {
                    sum[r] = gpu_dot4_unsigned(gpu_look_up(codes_fp4_doubled, codes),
                                               (int32_t)x.low, sum[r]);
                    sum[r] = gpu_dot4_unsigned(gpu_look_up(codes_fp4_doubled, codes >> 16),
                                               (int32_t)x.high, sum[r]);
                    continue;
                }
                sum[r] = gpu_dot4_unsigned(codes & GPU_NIBBLES, (int32_t)x.low, sum[r]);
                sum[r] = gpu_dot4_unsigned(codes >> 4 & GPU_NIBBLES, (int32_t)x.high, sum[r]);
            }
        }
    }
}

/* Multiplies slice s of the input's, or none; leaves [groups, 16 rows] of factor, sum, bias,
 * offset in slot s - from. Row r lies at r % 4 * 4 + r / 4. The warp meets. */
template <uint32_t GROUP, gpu_nibbles KIND, class input>
GPU_FN void gpu_one_multiply(unsigned plain, const struct gpu_slice<GROUP, KIND> &slice,
                             const input &in, uint32_t s, uint32_t from, bool is_there,
                             gpu_shared<float> to)
{
    constexpr uint32_t n_groups = gpu_slice<GROUP, KIND>::n_groups;
    constexpr uint32_t per_group = gpu_slice<GROUP, KIND>::n_words / n_groups;
    constexpr bool has_bias = KIND == GPU_AFFINE;
    constexpr int32_t zero = KIND == GPU_FP4 ? CODES_MXFP4_ZERO : CODES_INT4_ZERO;
    const uint32_t c = is_there ? s * GPU_ONE_SLICE : 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < n_groups; j++) {
        const float in_scale = in.scale_of(c / GROUP + j);
        const float offset = has_bias ? in.offset_of(c / GROUP + j) : 0;
        const int32_t start = has_bias ? 0 : -zero * in.sum_of(c / GROUP + j);
        int32_t sum[4] = {start, start, start, start};
        gpu_one_dot<per_group, KIND>(slice.words + j * per_group, in, c + j * GROUP, sum);
        const uint32_t slot = GROUP > GPU_ONE_SLICE ? (s - from) / 2 : (s - from) * n_groups + j;
        GPU_UNROLL
        for (uint32_t r = 0; r < 4; r++) {
            if (GROUP > GPU_ONE_SLICE) /* two slices have a group */
                sum[r] += gpu_shuffle_xor(sum[r], 4);
            if (is_there && (GROUP <= GPU_ONE_SLICE || s % 2 == 0))
                gpu_put_quad(to, (slot * 16 + r * 4 + gpu_lane() % 4) * 4,
                             {{gpu_one_scale<KIND>(plain, slice.scale[j], r) * in_scale,
                               (float)sum[r],
                               has_bias ? gpu_half_of(plain, slice.bias[j], r) : 0, offset}});
        }
    }
}

/* Adds n groups to the sum of a row. */
template <bool HAS_BIAS>
GPU_FN float gpu_one_fold(gpu_shared<float> from, uint32_t n, uint32_t r, float acc)
{
    GPU_UNROLL_BY(8)
    for (uint32_t k = 0; k < n; k++) {
        const struct gpu_quad it = gpu_take_quad(from, (k * 16 + r % 4 * 4 + r / 4) * 4);
        acc = fmaf(it.x[0], it.x[1], acc);
        if (HAS_BIAS)
            acc = fmaf(it.x[2], it.x[3], acc);
    }
    return acc;
}

/* How the slices of a tile lie: warp w has sixteen rows from w / split * 16 on. */
struct gpu_one_plan {
    uint32_t split, n_slices;
    uint32_t at_a_time; /* slices of a row */
    uint32_t per_rows;  /* floats of sixteen rows in shared memory */
    uint32_t own, first; /* the warp's first row in the tile, the thread's first slice */
};

template <uint32_t GROUP> GPU_FN struct gpu_one_plan gpu_one_plan_of(uint32_t n_cols)
{
    const uint32_t split = gpu_one_split(n_cols);
    return {split, n_cols / GPU_ONE_SLICE, split * 8, split * 8 * GPU_ONE_SLICE / GROUP * 64,
            gpu_warp() / split * 16, gpu_warp() % split * 8 + gpu_lane() / 4};
}

/* Multiplies and folds. The first slices have been read. With more columns than the warps have at a
 * time there are sixteen rows. */
template <uint32_t GROUP, gpu_nibbles KIND, class input>
GPU_FN void gpu_one_tile(const struct gpu_work &work, const struct gpu_one_plan &plan,
                         struct gpu_slice<GROUP, KIND> &slice, const input &in,
                         gpu_shared<float> groups)
{
    const struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n_rows = tile.end - tile.first, row = gpu_thread();
    float acc = 0;
    for (uint32_t from = 0; from < plan.n_slices; from += plan.at_a_time) {
        const uint32_t left = plan.n_slices - from, next = from + plan.at_a_time + plan.first;
        const uint32_t n = left < plan.at_a_time ? left : plan.at_a_time;
        gpu_one_multiply<GROUP, KIND>(p.w.format.scale, slice, in, from + plan.first, from,
                                        plan.own < n_rows && plan.first < n,
                                        groups + plan.own / 16 * plan.per_rows);
        if (plan.own < n_rows && next < plan.n_slices)
            slice.read(p.w, tile.first + plan.own, next);
        gpu_barrier();
        if (row < n_rows)
            acc = gpu_one_fold<KIND == GPU_AFFINE>(groups + row / 16 * plan.per_rows,
                                        n * GPU_ONE_SLICE / GROUP, row % 16, acc);
        gpu_barrier();
    }
    if (row < n_rows)
        gpu_write(p, tile.t, tile.first + row, acc);
}

/* Computes and rounds the input of a product with `up`. The block meets. */
GPU_FN void gpu_one_activate(const struct gpu_product &p, uint32_t t, const gpu_one_shared &to)
{
    const uint32_t n_cols = p.w.n_cols, group = p.w.format.group;
    const size_t at = gpu_input_row(p, t) * n_cols;
    for (uint32_t first = gpu_warp() * GPU_UNIT; first < n_cols;
         first += GPU_ONE_WARPS * GPU_UNIT) {
        const uint32_t left = n_cols - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        const uint32_t column = first + gpu_unit_column(0);
        float x[GPU_UNIT_VALUES], up[GPU_UNIT_VALUES];
        gpu_load_unit(p.in.x, at + first, n, x);
        gpu_load_unit(p.up, at + first, n, up);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            x[j] = gpu_activation(p.activation, x[j], up[j]);
        const struct gpu_rounded_unit rounded = gpu_round_values(x, n, group);
        if (column < n_cols)
            to.q[column / 4] = fmath_float_of_bits(rounded.packed);
        if (column < n_cols && column % group == 0) {
            to.scale[column / group] = rounded.scale;
            to.offset[column / group] =
                p.w.format.has_bias ? rounded.scale * (float)rounded.sum : (float)rounded.sum;
        }
    }
    gpu_barrier();
}

template <uint32_t GROUP, gpu_nibbles KIND>
GPU_FN void gpu_one_rows(struct gpu_work &work, gpu_shared<float> groups,
                         const gpu_one_shared &hidden)
{
    struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const struct gpu_one_plan plan = gpu_one_plan_of<GROUP>(p.w.n_cols);
    struct gpu_slice<GROUP, KIND> slice = {};
    if (p.bases != NULL) {
        gpu_wait();
        gpu_find_expert(work);
    }
    if (plan.own < tile.end - tile.first && plan.first < plan.n_slices)
        slice.read(p.w, tile.first + plan.own, plan.first);
    if (p.bases == NULL)
        gpu_wait();
    if (p.up != NULL) {
        gpu_one_activate(p, tile.t, hidden);
        gpu_one_tile<GROUP, KIND>(work, plan, slice, hidden, groups);
        return;
    }
    const size_t row = gpu_input_row(p, tile.t), g = row * (p.w.n_cols / GROUP);
    const gpu_one_global in = {p.in.q + row * p.w.n_cols, p.in.scale + g, p.in.offset + g,
                               p.in.sum + g};
    gpu_one_tile<GROUP, KIND>(work, plan, slice, in, groups);
}

GPU_KERNEL_FOR(GPU_MATMUL_THREADS, 3) void gpu_matmul_one(const struct gpu_matmul_one_args a)
{
    GPU_SHARED(float, groups, GPU_ONE_SLICES * 2 * 16 * 4);
    GPU_SHARED(float, q, GPU_ONE_HIDDEN / 4);
    GPU_SHARED(float, scale, GPU_ONE_HIDDEN / 32);
    GPU_SHARED(float, offset, GPU_ONE_HIDDEN / 32);
    struct gpu_work work = gpu_find_tile(a.list, GPU_MATMUL_ONE);
    const gpu_one_shared hidden = {q, scale, offset};
    if (work.p.w.format.codes == QUANT_CODES_FP4)
        gpu_one_rows<32, GPU_FP4>(work, groups, hidden);
    else if (!work.p.w.format.has_bias)
        gpu_one_rows<32, GPU_INT4>(work, groups, hidden);
    else if (work.p.w.format.group == 64)
        gpu_one_rows<64, GPU_AFFINE>(work, groups, hidden);
    else if (work.p.w.format.group == 32)
        gpu_one_rows<32, GPU_AFFINE>(work, groups, hidden);
    else
        gpu_one_rows<128, GPU_AFFINE>(work, groups, hidden);
}

/* ---- floats and halves ----------------------------------------------------------------------- */

/* Fetches columns [from, from + width) of n rows. */
GPU_FN void gpu_fetch_rows(const struct gpu_weight &w, uint32_t row, uint32_t n, uint32_t from,
                           uint32_t width, gpu_shared<float> to)
{
    GPU_UNROLL_BY(8)
    for (uint32_t i = gpu_thread(); i < n * (GPU_PLAIN_COLUMNS / 4); i += GPU_MATMUL_THREADS) {
        const uint32_t r = i / (GPU_PLAIN_COLUMNS / 4), c = i % (GPU_PLAIN_COLUMNS / 4) * 4;
        if (c < width)
            gpu_put_four(w.format.plain,
                         w.parts[0] + ((uint64_t)(row + r) * w.n_cols + from + c) *
                                          (w.format.bits / 8),
                         to + r * GPU_PLAIN_STRIDE(GPU_PLAIN_COLUMNS) + c);
    }
}

/* A half warp has a row. */
GPU_KERNEL void gpu_matmul_plain_one(const struct gpu_matmul_plain_one_args a)
{
    GPU_SHARED(float, rows, GPU_PLAIN_ROWS * GPU_PLAIN_STRIDE(GPU_PLAIN_COLUMNS));
    GPU_SHARED(float, x, GPU_PLAIN_COLUMNS);
    struct gpu_work work = gpu_find_tile(a.list, GPU_MATMUL_PLAIN_ONE);
    struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n = p.w.n_cols, n_rows = tile.end - tile.first;
    const uint32_t row = gpu_thread() / GPU_LANES, j = gpu_thread() % GPU_LANES;
    const bool is_known = p.bases == NULL, is_there = row < n_rows;
    float lane = 0;
    if (is_known)
        gpu_fetch_rows(p.w, tile.first, n_rows, 0, n, rows);
    gpu_wait();
    gpu_find_expert(work);
    const float *in = p.in.x + gpu_input_row(p, tile.t) * n;
    for (uint32_t from = 0; from < n; from += GPU_PLAIN_COLUMNS) {
        const uint32_t left = n - from;
        const uint32_t width = left < GPU_PLAIN_COLUMNS ? left : GPU_PLAIN_COLUMNS;
        GPU_UNROLL_BY(8)
        for (uint32_t i = gpu_thread(); i < GPU_PLAIN_COLUMNS; i += GPU_MATMUL_THREADS)
            if (i < width)
                x[i] = in[from + i];
        if (from > 0 || !is_known)
            gpu_fetch_rows(p.w, tile.first, n_rows, from, width, rows);
        gpu_barrier();
        const gpu_shared<float> mine =
            rows + (is_there ? row : 0) * GPU_PLAIN_STRIDE(GPU_PLAIN_COLUMNS);
        GPU_UNROLL_BY(16)
        for (uint32_t i = j; is_there && i < width; i += GPU_LANES)
            lane = fmaf(mine[i], x[i], lane);
        gpu_barrier();
    }
    if (gpu_warp() * GPU_WARP >= GPU_PLAIN_ROWS * GPU_LANES)
        return;
    const float sum = gpu_sum_half_warp(lane);
    if (j == 0 && is_there)
        gpu_write(p, tile.t, tile.first + row, sum);
}

#endif
