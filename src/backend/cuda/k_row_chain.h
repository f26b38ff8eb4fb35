/* Several operations on a row by one block: what small rows cost is the launch and the way to
 * memory, not the arithmetic. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ROW_CHAIN_H
#define FLASHMOE_BACKEND_CUDA_K_ROW_CHAIN_H

/* A unit is 128 neighbouring columns in a warp: a lane has four of them. */
#define GPU_UNIT 128u
#define GPU_UNIT_VALUES (GPU_UNIT / GPU_WARP)

/* Value j of this lane is that column of the unit. */
GPU_FN uint32_t gpu_unit_column(uint32_t j) { return gpu_lane() * GPU_UNIT_VALUES + j; }

/* Whether the lane's values are there and begin at a multiple of 16 bytes. */
GPU_FN bool gpu_is_whole(const void *at, uint32_t n)
{
    return gpu_unit_column(GPU_UNIT_VALUES) <= n && (uintptr_t)at % sizeof(gpu_quad) == 0;
}

/* The first n columns of a unit, of rows that may not be there. QUADS: n and where they begin are
 * multiples of four columns. */
template <bool QUADS = false>
GPU_FN void gpu_load_unit(const float *x, size_t at, uint32_t n, float to[GPU_UNIT_VALUES])
{
    const uint32_t first = gpu_unit_column(0);
    if (QUADS) {
        struct gpu_quad quad = {};
        if (x != NULL && first < n)
            quad = gpu_load_quad_now(x + at + first);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            to[j] = quad.x[j];
        return;
    }
    if (x != NULL && gpu_is_whole(x + at, n)) {
        const struct gpu_quad quad = gpu_load_quad(x + at + first);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            to[j] = quad.x[j];
        return;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
        to[j] = x != NULL && first + j < n ? x[at + first + j] : 0;
}

/* The same of rows that are there. Nothing decides whether it loads, so loads of several rows are
 * on their way together; what lies behind the first n columns is any value. */
template <bool QUADS>
GPU_FN void gpu_load_there(const float *x, size_t at, uint32_t n, float to[GPU_UNIT_VALUES])
{
    const uint32_t first = gpu_unit_column(0);
    struct gpu_quad quad = {};
    if (QUADS)
        quad = gpu_load_quad_now(x + at + (first < n ? first : 0));
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
        to[j] = QUADS ? quad.x[j] : x[at + (first + j < n ? first + j : 0)];
}

GPU_FN void gpu_store_unit(const float x[GPU_UNIT_VALUES], size_t at, uint32_t n, float *to)
{
    const uint32_t first = gpu_unit_column(0);
    if (gpu_is_whole(to + at, n)) {
        gpu_store_quad(to + at + first, {{x[0], x[1], x[2], x[3]}});
        return;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
        if (first + j < n)
            to[at + first + j] = x[j];
}

/* ---- rounding -------------------------------------------------------------------------------- */

GPU_FN uint32_t gpu_larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The lane's values, rounded, and what its group has in common. */
struct gpu_rounded_unit {
    uint32_t packed;
    float scale;
    int32_t sum;
};

/* x / 127, rounded once, of a number that is zero or at least GPU_MIN_SCALED; infinity and NaN
 * stay. */
GPU_FN float gpu_over_127(float x)
{
    const float inverse = 1.0f / 127.0f, near = x * inverse;
    const float exact = fmaf(fmaf(-127.0f, near, x), inverse, near);
    return x - x == 0 ? exact : x;
}

/* Rounds the first n columns of a unit, whole groups, as gpu_round_group does. A warp calls it.
 * With GROUP, that is the group, and all columns are there. */
template <uint32_t GROUP = 0>
GPU_FN struct gpu_rounded_unit gpu_round_values(const float x[GPU_UNIT_VALUES], uint32_t n,
                                                uint32_t group)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the integer */
    const uint32_t n_lanes = (GROUP > 0 ? GROUP : group) / GPU_UNIT_VALUES;
    const bool is_there = GROUP > 0 || gpu_unit_column(0) < n;
    uint32_t max_bits = 0, q[GPU_UNIT_VALUES];
    GPU_UNROLL
    for (unsigned j = 0; j < GPU_UNIT_VALUES; j++)
        max_bits = gpu_larger(max_bits, fmath_bits_of_float(x[j]) & 0x7fffffffu);
    max_bits = is_there ? max_bits : 0;
    for (unsigned mask = 1; mask < n_lanes; mask *= 2)
        max_bits = gpu_larger(max_bits, gpu_shuffle_xor(max_bits, mask));
    const float max = fmath_float_of_bits(max_bits);
    const bool is_zero = max < GPU_MIN_SCALED;
    const float inverse = is_zero ? 0 : 127.0f / max;
    GPU_UNROLL
    for (unsigned j = 0; j < GPU_UNIT_VALUES; j++)
        q[j] = fmath_bits_of_float(fmaf(x[j], inverse, magic));
    const uint32_t low = gpu_permute(gpu_permute(q[0], q[1], 0x0040),
                                     gpu_permute(q[2], q[3], 0x0040), 0x5410);
    /* The bits of a NaN are the machine's: such a group, or an infinite one, has zeros. */
    const uint32_t packed = max_bits < GPU_INFINITY_BITS ? low : 0;
    int32_t total = is_there ? gpu_dot4((int32_t)packed, 0x01010101, 0) : 0;
    for (unsigned mask = 1; mask < n_lanes; mask *= 2)
        total += gpu_shuffle_xor(total, mask);
    return {packed, is_zero ? 0 : gpu_over_127(max), total};
}

/* The same, and stores it. `first` is the unit's first column, counted over all rows. */
template <uint32_t GROUP = 0>
GPU_FN void gpu_round_unit(const float x[GPU_UNIT_VALUES], uint32_t n, size_t first,
                           const struct gpu_rounding &to)
{
    const struct gpu_rounded_unit rounded = gpu_round_values<GROUP>(x, n, to.group);
    const uint32_t column = gpu_unit_column(0), group = GROUP > 0 ? GROUP : to.group;
    const size_t g = (first + column) / group;
    if (GROUP == 0 && column >= n)
        return;
    gpu_store_word(to.q + first + column, rounded.packed);
    if (column % group != 0)
        return;
    to.scale[g] = rounded.scale;
    to.offset[g] = rounded.scale * (float)rounded.sum;
    to.sum[g] = rounded.sum;
}

/* ---- the stages before the norm -------------------------------------------------------------- */

/* Parts whose values are on their way at the same time. */
#define GPU_PARTS_TOGETHER 10u

/* Adds up the experts' parts of a unit, in their order. */
template <bool QUADS>
GPU_FN void gpu_chain_parts(const struct gpu_row_chain_args &a, uint32_t first, uint32_t n,
                            float x[GPU_UNIT_VALUES])
{
    const float *weights = a.weights + (size_t)gpu_block_x() * a.k;
    const float *parts = a.parts + (size_t)gpu_block_x() * a.k * a.dim + first;
    for (uint32_t from = 0; from < a.k; from += GPU_PARTS_TOGETHER) {
        float part[GPU_PARTS_TOGETHER][GPU_UNIT_VALUES], weight[GPU_PARTS_TOGETHER];
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_PARTS_TOGETHER; e++) {
            const uint32_t i = from + e < a.k ? from + e : a.k - 1;
            weight[e] = gpu_load_float_now(weights + i);
            gpu_load_there<QUADS>(parts, (size_t)i * a.dim, n, part[e]);
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_PARTS_TOGETHER; e++)
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
                x[j] = from + e < a.k ? fmaf(weight[e], part[e][j], x[j]) : x[j];
    }
}

/* What the stages before the norm make of a unit. All is loaded before anything is used. */
template <bool QUADS>
GPU_FN void gpu_chain_unit(const struct gpu_row_chain_args &a, uint32_t first, uint32_t n,
                           float x[GPU_UNIT_VALUES])
{
    const size_t at = (size_t)gpu_block_x() * a.dim + first;
    float gated[GPU_UNIT_VALUES], added[GPU_UNIT_VALUES], residual[GPU_UNIT_VALUES];
    gpu_load_unit<QUADS>(a.parts == NULL ? a.rows : NULL, at, n, x);
    gpu_load_unit<QUADS>(a.gated, at, n, gated);
    gpu_load_unit<QUADS>(a.added, at, n, added);
    gpu_load_unit<QUADS>(a.residual, at, n, residual);
    const float gate = a.gated != NULL ? a.gate[gpu_block_x()] : 0;
    if (a.parts != NULL)
        gpu_chain_parts<QUADS>(a, first, n, x);
    const float share = fmath_sigmoid(gate);
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
        if (a.gated != NULL)
            x[j] = fmaf(share, gated[j], x[j]);
        if (a.added != NULL)
            x[j] += added[j];
    }
    if (a.parts != NULL || a.gated != NULL || a.added != NULL)
        gpu_store_unit(x, at, n, a.rows);
    if (a.residual == NULL)
        return;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
        x[j] = residual[j] + x[j];
    gpu_store_unit(x, at, n, a.residual);
}

GPU_FN void gpu_chain_check(const struct gpu_row_chain_args &a, uint32_t n,
                            const float x[GPU_UNIT_VALUES])
{
    bool is_finite = true, has_nan = false;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
        const bool is_there = gpu_unit_column(j) < n;
        is_finite = is_finite && (!is_there || x[j] - x[j] == 0);
        has_nan = has_nan || (is_there && x[j] != x[j]);
    }
    if (a.not_finite != NULL && !is_finite)
        gpu_raise(a.not_finite, not_finite_code(gpu_block_x(), has_nan));
}

/* ---- a row in shared memory --------------------------------------------------------------------
 *
 * The 16 lanes of its sum of squares lie one after the other, so that a thread takes four elements
 * of its lane at a time. Behind the row are zeros up to a multiple of 64: they change no sum. */

#define GPU_TURNED_STEP 64u
#define GPU_TURNED_FLOATS(dim)                                                                     \
    (((dim) + GPU_TURNED_STEP - 1) / GPU_TURNED_STEP * GPU_TURNED_STEP + GPU_LANES * 4)

struct gpu_turned_row {
    gpu_shared<float> at;
    uint32_t dim, pitch; /* of a lane: no two of a warp's stores meet in more than one bank */

    GPU_METHOD uint32_t place(uint32_t column) const
    {
        return column % GPU_LANES * pitch + column / GPU_LANES;
    }

    /* Keeps the lane's columns of a unit. */
    GPU_METHOD void put(uint32_t first, const float x[GPU_UNIT_VALUES]) const
    {
        const uint32_t column = first + gpu_unit_column(0), to = place(column);
        if (column >= (pitch - 4) * GPU_LANES)
            return;
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            at[to + j * pitch] = column + j < dim ? x[j] : 0;
    }

    GPU_METHOD void take(uint32_t first, float x[GPU_UNIT_VALUES]) const
    {
        const uint32_t column = first + gpu_unit_column(0), from = place(column);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            x[j] = column + j < dim ? (float)at[from + j * pitch] : 0;
    }

    /* The squares of lane j. */
    GPU_METHOD float squares(unsigned j) const
    {
        const uint32_t n = pitch - 4;
        const gpu_shared<float> lane = at + j * pitch;
        struct gpu_quad_ring ring;
        uint32_t m = 0;
        float sum = 0;
        if (n >= 16)
            ring.load(lane, 4);
        for (; m + 16 <= n; m += 16) {
            const struct gpu_quad_ring now = ring;
            if (m + 32 <= n)
                ring.load(lane + m + 16, 4);
            GPU_UNROLL
            for (unsigned e = 0; e < 16; e++)
                sum = fmaf(now.quads[e / 4].x[e % 4], now.quads[e / 4].x[e % 4], sum);
        }
        for (; m < n; m += 4) {
            const struct gpu_quad now = gpu_take_quad(lane, m);
            GPU_UNROLL
            for (unsigned e = 0; e < 4; e++)
                sum = fmaf(now.x[e], now.x[e], sum);
        }
        return sum;
    }
};

GPU_FN struct gpu_turned_row gpu_turn_row(gpu_shared<float> at, uint32_t dim)
{
    const uint32_t padded = (dim + GPU_TURNED_STEP - 1) / GPU_TURNED_STEP * GPU_TURNED_STEP;
    return {at, dim, padded / GPU_LANES + 4};
}

/* The sum of squares, for every thread. The block meets before the row is read. */
GPU_FN float gpu_sum_turned(const struct gpu_turned_row &row, gpu_shared<float> sum)
{
    float lane = 0;
    gpu_barrier();
    if (gpu_thread() < GPU_LANES)
        lane = row.squares(gpu_thread());
    return gpu_sum_block(lane, sum);
}

/* ---- the chain ------------------------------------------------------------------------------- */

/* Whether all rows of a chain begin at multiples of 16 bytes. */
GPU_FN bool gpu_chain_has_quads(const struct gpu_row_chain_args &a)
{
    const uintptr_t all = (uintptr_t)a.rows | (uintptr_t)a.parts | (uintptr_t)a.gated |
                          (uintptr_t)a.added | (uintptr_t)a.residual | (uintptr_t)a.norm;
    return a.dim % 4 == 0 && all % sizeof(gpu_quad) == 0;
}

/* QUADS as gpu_load_unit has it; GROUP as gpu_round_values. */
template <bool QUADS, uint32_t GROUP>
GPU_FN void gpu_chain_row(const struct gpu_row_chain_args &a, const struct gpu_turned_row &row,
                          gpu_shared<float> sum)
{
    const size_t begin = (size_t)gpu_block_x() * a.dim;
    const uint32_t own = gpu_warp() * GPU_UNIT, step = gpu_n_threads() / GPU_WARP * GPU_UNIT;
    /* The weights of this warp's first unit: on their way while the row is made. */
    float own_norm[GPU_UNIT_VALUES], own_x[GPU_UNIT_VALUES];
    gpu_load_unit<QUADS>(a.norm, own, own < a.dim ? a.dim - own : 0, own_norm);
    gpu_wait();
    for (uint32_t first = own; first < a.dim; first += step) {
        float x[GPU_UNIT_VALUES];
        const uint32_t left = a.dim - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        gpu_chain_unit<QUADS>(a, first, n, x);
        gpu_chain_check(a, n, x);
        row.put(first, x);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            own_x[j] = first == own ? x[j] : own_x[j];
    }
    if (a.norm == NULL && a.rounding.group == 0)
        return;
    float scale = 1;
    if (a.norm != NULL)
        scale = gpu_norm_scale(gpu_sum_turned(row, sum), a.dim, a.eps);
    for (uint32_t first = own; first < a.dim; first += step) {
        float x[GPU_UNIT_VALUES], norm[GPU_UNIT_VALUES];
        const uint32_t left = a.dim - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        if (first != own) {
            gpu_load_unit<QUADS>(a.norm, first, n, norm);
            row.take(first, x);
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
            x[j] = first == own ? own_x[j] : x[j];
            if (a.norm != NULL)
                x[j] = x[j] * scale * (first == own ? own_norm[j] : norm[j]);
        }
        if (a.norm != NULL)
            gpu_store_unit(x, begin + first, n, a.normed);
        if (a.rounding.group > 0)
            gpu_round_unit<GROUP>(x, n, begin + first, a.rounding);
    }
}

GPU_KERNEL_FOR(GPU_ROW_CHAIN_THREADS, 1) void gpu_row_chain(const struct gpu_row_chain_args a)
{
    GPU_SHARED(float, at, GPU_TURNED_FLOATS(GPU_ROW_CHAIN_DIM));
    GPU_SHARED(float, sum, 1);
    const struct gpu_turned_row row = gpu_turn_row(at, a.dim);
    gpu_read_args(a);
    if (!gpu_chain_has_quads(a))
        gpu_chain_row<false, 0>(a, row, sum);
    else if (a.rounding.group == 64 && a.dim % GPU_UNIT == 0)
        gpu_chain_row<true, 64>(a, row, sum);
    else
        gpu_chain_row<true, 0>(a, row, sum);
}

#endif
