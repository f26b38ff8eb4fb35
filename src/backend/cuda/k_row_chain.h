/* Several operations on a row by one block: what small rows cost is the launch and the way to
 * memory, not the arithmetic. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ROW_CHAIN_H
#define FLASHMOE_BACKEND_CUDA_K_ROW_CHAIN_H

/* A unit is 128 neighbouring columns in a warp: column j * 32 + lane is value j of the lane. */
#define GPU_UNIT 128u
#define GPU_UNIT_VALUES (GPU_UNIT / GPU_WARP)

/* ---- rounding -------------------------------------------------------------------------------- */

GPU_FN uint32_t gpu_larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* The largest of each group, for all its lanes. The warp meets. */
GPU_FN void gpu_max_of_groups(uint32_t x[GPU_UNIT_VALUES], uint32_t group)
{
    if (group >= 2 * GPU_WARP) {
        x[0] = x[1] = gpu_larger(x[0], x[1]);
        x[2] = x[3] = gpu_larger(x[2], x[3]);
    }
    if (group == GPU_UNIT)
        x[0] = x[1] = x[2] = x[3] = gpu_larger(x[0], x[2]);
    for (unsigned mask = group < GPU_WARP ? group / 2 : GPU_WARP / 2; mask > 0; mask /= 2)
        GPU_UNROLL
        for (unsigned j = 0; j < GPU_UNIT_VALUES; j++)
            x[j] = gpu_larger(x[j], gpu_shuffle_xor(x[j], mask));
}

/* The sum of each group, for all its lanes. The warp meets. */
GPU_FN void gpu_sum_of_groups(int32_t x[GPU_UNIT_VALUES], uint32_t group)
{
    if (group >= 2 * GPU_WARP) {
        x[0] = x[1] = x[0] + x[1];
        x[2] = x[3] = x[2] + x[3];
    }
    if (group == GPU_UNIT)
        x[0] = x[1] = x[2] = x[3] = x[0] + x[2];
    for (unsigned mask = group < GPU_WARP ? group / 2 : GPU_WARP / 2; mask > 0; mask /= 2)
        GPU_UNROLL
        for (unsigned j = 0; j < GPU_UNIT_VALUES; j++)
            x[j] += gpu_shuffle_xor(x[j], mask);
}

/* Rounds the first n columns of a unit, whole groups, as gpu_round_group does. `first` is the
 * unit's first column, counted over all rows. A warp calls it. */
GPU_FN void gpu_round_unit(const float x[GPU_UNIT_VALUES], uint32_t n, size_t first,
                           const struct gpu_rounding &to)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the integer */
    uint32_t max_bits[GPU_UNIT_VALUES];
    int32_t total[GPU_UNIT_VALUES];
    GPU_UNROLL
    for (unsigned j = 0; j < GPU_UNIT_VALUES; j++)
        max_bits[j] = j * GPU_WARP + gpu_lane() < n ? fmath_bits_of_float(x[j]) & 0x7fffffffu : 0;
    gpu_max_of_groups(max_bits, to.group);
    GPU_UNROLL
    for (unsigned j = 0; j < GPU_UNIT_VALUES; j++) {
        const float max = fmath_float_of_bits(max_bits[j]);
        const float inverse = max < GPU_MIN_SCALED ? 0 : 127.0f / max;
        const int8_t q = (int8_t)(uint8_t)fmath_bits_of_float(fmaf(x[j], inverse, magic));
        const bool is_there = j * GPU_WARP + gpu_lane() < n;
        total[j] = is_there ? q : 0;
        if (is_there)
            to.q[first + j * GPU_WARP + gpu_lane()] = q;
    }
    gpu_sum_of_groups(total, to.group);
    GPU_UNROLL
    for (unsigned j = 0; j < GPU_UNIT_VALUES; j++) {
        const uint32_t i = j * GPU_WARP + gpu_lane();
        if (i >= n || i % to.group != 0)
            continue;
        const float max = fmath_float_of_bits(max_bits[j]);
        const float scale = max < GPU_MIN_SCALED ? 0 : max / 127.0f;
        to.scale[(first + i) / to.group] = scale;
        to.offset[(first + i) / to.group] = scale * (float)total[j];
        to.sum[(first + i) / to.group] = total[j];
    }
}

/* ---- the stages before the norm -------------------------------------------------------------- */

/* Parts whose values are on their way at the same time. */
#define GPU_PARTS_TOGETHER 10u

/* Adds up the experts' parts of a unit, in their order. */
GPU_FN void gpu_chain_parts(const struct gpu_row_chain_args &a, uint32_t first, uint32_t n,
                            float x[GPU_UNIT_VALUES])
{
    const float *weights = a.weights + (size_t)gpu_block_x() * a.k;
    const float *parts = a.parts + (size_t)gpu_block_x() * a.k * a.dim + first;
    for (uint32_t from = 0; from < a.k; from += GPU_PARTS_TOGETHER) {
        float part[GPU_PARTS_TOGETHER][GPU_UNIT_VALUES], weight[GPU_PARTS_TOGETHER];
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_PARTS_TOGETHER; e++) {
            weight[e] = from + e < a.k ? weights[from + e] : 0;
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
                const uint32_t i = j * GPU_WARP + gpu_lane();
                part[e][j] = from + e < a.k && i < n ? parts[(size_t)(from + e) * a.dim + i] : 0;
            }
        }
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_PARTS_TOGETHER; e++)
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
                x[j] = from + e < a.k ? fmaf(weight[e], part[e][j], x[j]) : x[j];
    }
}

/* The columns of a unit, of rows that may not be there. */
GPU_FN void gpu_load_unit(const float *x, size_t at, uint32_t n, float to[GPU_UNIT_VALUES])
{
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
        const uint32_t i = j * GPU_WARP + gpu_lane();
        to[j] = x != NULL && i < n ? x[at + i] : 0;
    }
}

GPU_FN void gpu_store_unit(const float x[GPU_UNIT_VALUES], size_t at, uint32_t n, float *to)
{
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
        if (j * GPU_WARP + gpu_lane() < n)
            to[at + j * GPU_WARP + gpu_lane()] = x[j];
}

/* What the stages before the norm make of a unit. All is loaded before anything is used. */
GPU_FN void gpu_chain_unit(const struct gpu_row_chain_args &a, uint32_t first, uint32_t n,
                           float x[GPU_UNIT_VALUES])
{
    const size_t at = (size_t)gpu_block_x() * a.dim + first;
    float gated[GPU_UNIT_VALUES], added[GPU_UNIT_VALUES], residual[GPU_UNIT_VALUES];
    gpu_load_unit(a.parts == NULL ? a.rows : NULL, at, n, x);
    gpu_load_unit(a.gated, at, n, gated);
    gpu_load_unit(a.added, at, n, added);
    gpu_load_unit(a.residual, at, n, residual);
    const float gate = a.gated != NULL ? a.gate[gpu_block_x()] : 0;
    if (a.parts != NULL)
        gpu_chain_parts(a, first, n, x);
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
        const bool is_there = j * GPU_WARP + gpu_lane() < n;
        is_finite = is_finite && (!is_there || x[j] - x[j] == 0);
        has_nan = has_nan || (is_there && x[j] != x[j]);
    }
    if (a.not_finite != NULL && !is_finite)
        gpu_raise(a.not_finite, not_finite_code(gpu_block_x(), has_nan));
}

/* ---- the chain ------------------------------------------------------------------------------- */

GPU_KERNEL void gpu_row_chain(const struct gpu_row_chain_args a)
{
    GPU_SHARED(float, row, GPU_ROW_CHAIN_DIM);
    GPU_SHARED(float, sum, 1);
    const size_t begin = (size_t)gpu_block_x() * a.dim;
    const uint32_t own = gpu_warp() * GPU_UNIT, step = gpu_n_threads() / GPU_WARP * GPU_UNIT;
    /* The weights of this warp's first unit: on their way while the row is made. */
    float own_norm[GPU_UNIT_VALUES];
    gpu_load_unit(a.norm, own, own < a.dim ? a.dim - own : 0, own_norm);
    for (uint32_t first = own; first < a.dim; first += step) {
        float x[GPU_UNIT_VALUES];
        const uint32_t left = a.dim - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        gpu_chain_unit(a, first, n, x);
        gpu_chain_check(a, n, x);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
            if (j * GPU_WARP + gpu_lane() < n)
                row[first + j * GPU_WARP + gpu_lane()] = x[j];
    }
    if (a.norm == NULL && a.rounding.group == 0)
        return;
    float scale = 1;
    if (a.norm != NULL)
        scale = gpu_norm_scale(gpu_sum_squares(row, a.dim, sum), a.dim, a.eps);
    for (uint32_t first = own; first < a.dim; first += step) {
        float x[GPU_UNIT_VALUES], norm[GPU_UNIT_VALUES];
        const uint32_t left = a.dim - first, n = left < GPU_UNIT ? left : GPU_UNIT;
        if (first != own)
            gpu_load_unit(a.norm, first, n, norm);
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
            const uint32_t i = first + j * GPU_WARP + gpu_lane();
            x[j] = i < a.dim ? (float)row[i] : 0;
            if (a.norm != NULL)
                x[j] = x[j] * scale * (first == own ? own_norm[j] : norm[j]);
        }
        if (a.norm != NULL)
            gpu_store_unit(x, begin + first, n, a.normed);
        if (a.rounding.group > 0)
            gpu_round_unit(x, n, begin + first, a.rounding);
    }
}

#endif
