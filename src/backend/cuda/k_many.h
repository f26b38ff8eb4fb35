/* Products of codes with more than eight inputs. Part of kernels_all.h.
 *
 * A block has 128 rows and up to 64 inputs, a warp sixteen of the rows. The inputs lie in shared
 * memory in the order in which lanes need them, some groups at a time; a warp unpacks its rows once
 * for all inputs and folds each group into the sums before it goes on. */
#ifndef FLASHMOE_BACKEND_CUDA_K_MANY_H
#define FLASHMOE_BACKEND_CUDA_K_MANY_H

#define GPU_MANY_COLUMNS 256u /* of the inputs, at a time */
#define GPU_MANY_UNITS 8u     /* of 32 or 16 columns */
#define GPU_MANY_TILES (GPU_MANY_INPUTS / 8)
#define GPU_MANY_GROUPS 8u

/* 1.5 * 2^23: sums that begin with its bits are floats in whose last place lies the integer. */
#define GPU_MAGIC 12582912.0f

/* Of two inputs in a group: scales, and offsets; or what to subtract from a sum that began with
 * GPU_MAGIC. */
struct alignas(16) gpu_two_inputs {
    float scale[2], rest[2];
};

/* In shared memory, of the groups that the block has at a time. */
struct gpu_many {
    gpu_shared<struct gpu_pair> columns;    /* [units, tiles, lanes] */
    gpu_shared<struct gpu_two_inputs> inputs; /* [groups, inputs / 2] */
    gpu_shared<float> scale, bias;          /* [warps, groups, rows] */
};

/* Inputs of a tile, whole eights. What is not there is zero. */
template <class reader>
GPU_FN void gpu_many_columns(const struct gpu_product &p, const struct gpu_tile &tile, uint32_t g,
                             const struct gpu_many &to)
{
    constexpr uint32_t unit = reader::group == 16 ? 16 : 32;
    constexpr uint32_t width = reader::n * reader::group, n_lanes = width / unit * 4;
    const uint32_t n = (tile.n + 7) / 8 * 8;
    GPU_UNROLL_BY(4)
    for (uint32_t i = gpu_thread(); i < n * n_lanes; i += 32 * GPU_MANY_WARPS) {
        const uint32_t t = i / n_lanes, u = i % n_lanes / 4, lane = t % 8 * 4 + i % 4;
        const uint32_t at = g * reader::group + u * unit;
        struct gpu_pair columns = {0, 0};
        if (t < tile.n && at < p.w.n_cols)
            columns = reader::columns(
                p.in.q + gpu_input_row(p, tile.t + t) * p.w.n_cols + at, lane);
        to.columns[(u * GPU_MANY_TILES + t / 8) * 32 + lane] = columns;
    }
}

template <class reader>
GPU_FN void gpu_many_scales(const struct gpu_product &p, const struct gpu_tile &tile, uint32_t g,
                            const struct gpu_many &to)
{
    const uint32_t n_groups = p.w.n_cols / reader::group;
    for (uint32_t i = gpu_thread(); i < reader::n * (GPU_MANY_INPUTS / 2);
         i += 32 * GPU_MANY_WARPS) {
        const uint32_t j = i / (GPU_MANY_INPUTS / 2), t = i % (GPU_MANY_INPUTS / 2) * 2;
        struct gpu_two_inputs two = {{0, 0}, {0, 0}};
        GPU_UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            if (t + k >= tile.n || g + j >= n_groups)
                continue;
            const size_t at = gpu_input_row(p, tile.t + t + k) * n_groups + g + j;
            two.scale[k] = p.in.scale[at];
            two.rest[k] = reader::has_bias
                              ? p.in.offset[at]
                              : GPU_MAGIC + (float)((int32_t)p.w.format.zero * p.in.sum[at]);
        }
        to.inputs[i] = two;
    }
}

/* The integer sum of a group, exact: it has fewer than 23 bits. */
GPU_FN float gpu_many_sum(int32_t sum, float magic)
{
    return fmath_float_of_bits((uint32_t)sum) - magic;
}

/* What a warp has of a group: its rows' scales, and inputs in a tile. */
struct gpu_many_rows {
    float scale[2], bias[2];
};

template <class reader>
GPU_FN void gpu_many_fold(const struct gpu_many_rows &rows, const struct gpu_two_inputs &two,
                          const int32_t c[4], float acc[4])
{
    GPU_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const float factor = rows.scale[i / 2] * two.scale[i % 2];
        if (reader::has_bias)
            acc[i] = fmaf(rows.bias[i / 2], two.rest[i % 2],
                          fmaf(factor, gpu_many_sum(c[i], GPU_MAGIC), acc[i]));
        else
            acc[i] = fmaf(factor, gpu_many_sum(c[i], two.rest[i % 2]), acc[i]);
    }
}

/* Multiplies group j of those that the warp has with all inputs, and folds it into the sums. */
template <class reader>
GPU_FN void gpu_many_group(const reader &r, uint32_t j, uint32_t n_tiles,
                           const struct gpu_many &from, float acc[GPU_MANY_TILES][4])
{
    constexpr uint32_t unit = reader::group == 16 ? 16 : 32;
    constexpr uint32_t n_units = reader::group / unit;
    const uint32_t row = (gpu_warp() * reader::n + j) * GPU_TILE_ROWS + gpu_lane() / 4 * 2;
    struct gpu_many_rows rows = {{from.scale[row], from.scale[row + 1]}, {0, 0}};
    if (reader::has_bias) {
        rows.bias[0] = from.bias[row];
        rows.bias[1] = from.bias[row + 1];
    }
    GPU_UNROLL
    for (uint32_t tile = 0; tile < GPU_MANY_TILES; tile++) {
        const int32_t magic = (int32_t)fmath_bits_of_float(GPU_MAGIC);
        int32_t c[4] = {magic, magic, magic, magic};
        if (tile >= n_tiles)
            continue; /* the whole block does */
        GPU_UNROLL
        for (uint32_t u = j * n_units; u < (j + 1) * n_units; u++)
            gpu_add_unit(r, u, from.columns[(u * GPU_MANY_TILES + tile) * 32 + gpu_lane()], c);
        gpu_many_fold<reader>(rows,
                              from.inputs[j * (GPU_MANY_INPUTS / 2) + tile * 4 + gpu_lane() % 4],
                              c, acc[tile]);
    }
}

template <class reader>
GPU_FN void gpu_many_tile(const struct gpu_product &p, const struct gpu_tile &tile,
                          const struct gpu_many &many)
{
    const uint32_t n_groups = p.w.n_cols / reader::group, n_tiles = (tile.n + 7) / 8;
    const uint32_t row = tile.first + gpu_warp() * GPU_TILE_ROWS;
    const uint32_t own = gpu_warp() * reader::n * GPU_TILE_ROWS;
    const bool is_there = row < tile.end;
    float acc[GPU_MANY_TILES][4] = {};
    reader r = {};
    for (uint32_t g = 0; g < n_groups; g += reader::n) {
        if (is_there)
            r.read(p.w, row, tile.end, g);
        gpu_many_columns<reader>(p, tile, g, many);
        gpu_many_scales<reader>(p, tile, g, many);
        if (is_there)
            r.put_scales(p.w, many.scale + own, many.bias + own);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t j = 0; j < reader::n; j++)
            if (is_there && g + j < n_groups)
                gpu_many_group(r, j, n_tiles, many, acc);
        gpu_barrier();
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_MANY_TILES * 4; i++) {
        const uint32_t t = i / 4 * 8 + gpu_lane() % 4 * 2 + i % 2;
        const uint32_t at = row + gpu_lane() / 4 * 2 + i % 4 / 2;
        if (t < tile.n && at < tile.end)
            gpu_write(p, tile.t + t, at, acc[i / 4][i % 4]);
    }
}

/* The work lies in shared memory, since the sums need the registers. */
struct gpu_many_work {
    gpu_shared<struct gpu_work> shared;
    const struct gpu_many &many;
    template <class reader> GPU_METHOD void run() const
    {
        const struct gpu_work &work = shared[0];
        gpu_many_tile<reader>(work.p, work.tile, many);
    }
};

GPU_KERNEL_FOR(256, 2) void gpu_matmul_many(const struct gpu_matmul_many_args a)
{
    GPU_SHARED(struct gpu_pair, columns, GPU_MANY_UNITS * GPU_MANY_TILES * 32);
    GPU_SHARED(struct gpu_two_inputs, inputs, GPU_MANY_GROUPS * GPU_MANY_INPUTS / 2);
    GPU_SHARED(float, scale, GPU_MANY_WARPS * GPU_MANY_GROUPS * GPU_TILE_ROWS);
    GPU_SHARED(float, bias, GPU_MANY_WARPS * GPU_MANY_GROUPS * GPU_TILE_ROWS);
    GPU_SHARED(struct gpu_work, shared, 1);
    const struct gpu_many many = {columns, inputs, scale, bias};
    gpu_wait();
    if (gpu_warp() == 0) {
        const struct gpu_work found = gpu_find_work(a.list, GPU_MATMUL_MANY);
        if (gpu_lane() == 0)
            shared[0] = found;
    }
    gpu_barrier();
    const struct gpu_work &work = shared[0];
    gpu_with_reader<GPU_MANY_COLUMNS>(work.p.w, gpu_many_work{shared, many});
}

#endif
