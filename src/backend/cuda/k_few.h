/* Products of codes with up to eight inputs. Part of kernels_all.h.
 *
 * A warp multiplies sixteen rows with eight groups at a time (gpu_few_groups): it has read all of
 * them before it needs the first, which is what keeps the memory busy. Several warps share the
 * groups of sixteen rows if there are more. The integer sums meet in shared memory, where one
 * thread for each row and input folds them in the order of the groups. */
#ifndef FLASHMOE_BACKEND_CUDA_K_FEW_H
#define FLASHMOE_BACKEND_CUDA_K_FEW_H

#define GPU_TILE_ROWS 16u

/* ---- readers ----------------------------------------------------------------------------------
 * A reader holds what a lane needs of N groups of sixteen rows from `row` on. Lane l has the rows
 * l / 4 * 2 and the next, and of every 32 columns the eight from l % 4 * 8 on.
 *   read(w, row, end, g)      begins to read groups g, g + 1, ...; rows from `end` on are not there
 *   codes(unit, a)            its codes of 32 columns as gpu_tile_32 wants them
 *   columns(q)                its eight columns of an input in the same order
 *   put_scales(scale, bias)   writes [groups, 16 rows]; the warp calls it */

/* The columns of an affine format are the nibbles of a word in ascending order: the even ones are
 * the low nibbles of its bytes. */
GPU_FN struct gpu_pair gpu_even_odd(struct gpu_pair q)
{
    return {gpu_permute(q.low, q.high, 0x6420), gpu_permute(q.low, q.high, 0x7531)};
}

/* Scales and biases of interleaved rows: a lane has four rows of a group. */
template <uint32_t N> struct gpu_affine_scales {
    struct gpu_pair scale, bias;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / w.format.group, j = gpu_lane() / 4;
        const uint64_t at = (uint64_t)row * n_groups + (g + j) * 16ull + gpu_lane() % 4 * 4;
        if (j >= N || g + j >= n_groups)
            return;
        scale = gpu_stream_pair(w.parts[1] + 2 * at);
        bias = gpu_stream_pair(w.parts[2] + 2 * at);
    }

    GPU_METHOD static float value(unsigned plain, uint32_t half)
    {
        return plain == GPU_PLAIN_F16 ? gpu_f16_to_f32((uint16_t)half)
                                      : gpu_bf16_to_f32((uint16_t)half);
    }

    GPU_METHOD void put(unsigned plain, gpu_shared<float> to, const struct gpu_pair &from) const
    {
        const uint32_t at = gpu_lane() * 4;
        to[at] = value(plain, from.low);
        to[at + 1] = value(plain, from.low >> 16);
        to[at + 2] = value(plain, from.high);
        to[at + 3] = value(plain, from.high >> 16);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &w, gpu_shared<float> scales,
                               gpu_shared<float> biases) const
    {
        if (gpu_lane() / 4 >= N)
            return;
        put(w.format.scale, scales, scale);
        put(w.format.scale, biases, bias);
    }
};

/* Interleaved codes of four bits. */
template <uint32_t GROUP, uint32_t N> struct gpu_affine4 {
    enum : uint32_t { group = GROUP, n = N, has_bias = 1 };
    struct gpu_pair words[N * GROUP / 32]; /* of both rows */
    struct gpu_affine_scales<N> scales;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t, uint32_t g)
    {
        const uint32_t n_units = w.n_cols / 32, first = g * (GROUP / 32);
        const uint8_t *at = w.parts[0] + (uint64_t)row * (w.n_cols / 2) + first * 256ull +
                            gpu_lane() % 4 * 64 + gpu_lane() / 4 * 8;
        GPU_UNROLL
        for (uint32_t u = 0; u < N * GROUP / 32; u++)
            if (first + u < n_units)
                words[u] = gpu_stream_pair(at + u * 256);
        scales.read(w, row, g);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        a[0] = words[unit].low & 0x0f0f0f0fu;
        a[1] = words[unit].high & 0x0f0f0f0fu;
        a[2] = words[unit].low >> 4 & 0x0f0f0f0fu;
        a[3] = words[unit].high >> 4 & 0x0f0f0f0fu;
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q)
    {
        return gpu_even_odd(gpu_load_pair(q + gpu_lane() % 4 * 8));
    }
};

/* Interleaved codes of eight bits. */
template <uint32_t GROUP, uint32_t N> struct gpu_affine8 {
    enum : uint32_t { group = GROUP, n = N, has_bias = 1 };
    struct gpu_pair first[N * GROUP / 32], second[N * GROUP / 32]; /* words of four columns */
    struct gpu_affine_scales<N> scales;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t, uint32_t g)
    {
        const uint32_t n_units = w.n_cols / 32, from = g * (GROUP / 32);
        const uint8_t *at = w.parts[0] + (uint64_t)row * w.n_cols + from * 512ull +
                            gpu_lane() % 4 * 128 + gpu_lane() / 4 * 8;
        GPU_UNROLL
        for (uint32_t u = 0; u < N * GROUP / 32; u++)
            if (from + u < n_units) {
                first[u] = gpu_stream_pair(at + u * 512);
                second[u] = gpu_stream_pair(at + u * 512 + 64);
            }
        scales.read(w, row, g);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        a[0] = first[unit].low;
        a[1] = first[unit].high;
        a[2] = second[unit].low;
        a[3] = second[unit].high;
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q)
    {
        return gpu_load_pair(q + gpu_lane() % 4 * 8);
    }
};

/* ---- the kernel ------------------------------------------------------------------------------ */

#define GPU_FEW_SLOTS (GPU_FEW_WARPS * GPU_FEW_GROUPS) /* groups in all warps */

/* In shared memory, of the groups that the block has at a time. */
struct gpu_few {
    gpu_shared<int32_t> dot;          /* [slots, inputs, rows] */
    gpu_shared<float> scale, bias;    /* [slots, rows]: of the weight */
    gpu_shared<float> in_scale, rest; /* [inputs, slots]: of the input; its offset, or zero * sum */
};

/* How the groups of a tile lie: warp w has sixteen rows from w / split * 16 on, and in each pass
 * the groups of slots [w % split * n, ...). */
struct gpu_few_plan {
    uint32_t split, n_groups;
    uint32_t at_a_time; /* groups of a row */
    uint32_t row;       /* the warp's first */
    bool is_there;      /* the warp has rows */
};

/* Multiplies the groups that the warp has read, with all inputs. */
template <class reader>
GPU_FN void gpu_few_multiply(const struct gpu_product &p, const struct gpu_tile &tile,
                             const reader &r, uint32_t g, const struct gpu_few &to)
{
    const uint32_t column = gpu_lane() / 4, n_groups = p.w.n_cols / reader::group;
    const uint32_t row = gpu_lane() / 4 * 2, input = gpu_lane() % 4 * 2;
    const bool has_input = column < tile.n;
    const int8_t *q = p.in.q + (has_input ? gpu_input_row(p, tile.t + column) * p.w.n_cols : 0) +
                      (uint64_t)g * reader::group;
    const gpu_shared<int32_t> dot = to.dot + gpu_warp() * reader::n * 128;
    GPU_UNROLL
    for (uint32_t j = 0; j < reader::n; j++) {
        int32_t c[4] = {0, 0, 0, 0};
        GPU_UNROLL
        for (uint32_t u = 0; u < reader::group / 32; u++) {
            const uint32_t at = j * reader::group + u * 32;
            struct gpu_pair b = {0, 0};
            uint32_t a[4];
            if (has_input && g + j < n_groups)
                b = reader::columns(q + at);
            r.codes(at / 32, a);
            gpu_tile_32(c, a, b);
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            if (input + i % 2 < tile.n)
                dot[j * 128 + (input + i % 2) * 16 + row + i / 2] = c[i];
    }
}

/* Writes the inputs' scales of the groups [g, g + at_a_time). */
template <class reader>
GPU_FN void gpu_few_inputs(const struct gpu_product &p, const struct gpu_tile &tile,
                           const struct gpu_few_plan &plan, uint32_t g, const struct gpu_few &to)
{
    for (uint32_t i = gpu_thread(); i < tile.n * plan.at_a_time; i += gpu_n_threads()) {
        const uint32_t t = i / plan.at_a_time, k = i % plan.at_a_time;
        if (g + k >= plan.n_groups)
            continue;
        const size_t at = gpu_input_row(p, tile.t + t) * plan.n_groups + g + k;
        to.in_scale[t * GPU_FEW_SLOTS + k] = p.in.scale[at];
        to.rest[t * GPU_FEW_SLOTS + k] = reader::has_bias
                                             ? p.in.offset[at]
                                             : (float)((int32_t)p.w.format.zero * p.in.sum[at]);
    }
}

/* Adds the groups from g on to the sum of a row and an input. */
template <class reader>
GPU_FN float gpu_few_fold(const struct gpu_few_plan &plan, uint32_t g, uint32_t row, uint32_t input,
                          const struct gpu_few &from, float acc)
{
    const uint32_t slot = row / GPU_TILE_ROWS * plan.at_a_time, r = row % GPU_TILE_ROWS;
    const uint32_t left = plan.n_groups - g;
    const uint32_t n = left < plan.at_a_time ? left : plan.at_a_time;
    GPU_UNROLL_BY(8)
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t at = (slot + k) * GPU_TILE_ROWS + r;
        const float dot = (float)(int32_t)from.dot[(slot + k) * 128 + input * 16 + r];
        const float factor = from.scale[at] * from.in_scale[input * GPU_FEW_SLOTS + k];
        const float rest = from.rest[input * GPU_FEW_SLOTS + k];
        if (reader::has_bias)
            acc = fmaf(from.bias[at], rest, fmaf(factor, dot, acc));
        else
            acc = fmaf(factor, dot - rest, acc);
    }
    return acc;
}

/* Only sixteen rows have several passes, so that a thread has at most one sum to keep. */
template <class reader>
GPU_FN void gpu_few_rows(const struct gpu_product &p, const struct gpu_tile &tile,
                         const struct gpu_few &few)
{
    const uint32_t split = gpu_few_split(&p.w), first = gpu_warp() / split * GPU_TILE_ROWS;
    const uint32_t n_rows = tile.end - tile.first, own = gpu_warp() % split * reader::n;
    const struct gpu_few_plan plan = {split, p.w.n_cols / reader::group, split * reader::n,
                                      tile.first + first, first < n_rows};
    reader r;
    float acc = 0;
    if (plan.is_there)
        r.read(p.w, plan.row, tile.end, own);
    for (uint32_t g = 0; g < plan.n_groups; g += plan.at_a_time) {
        gpu_few_inputs<reader>(p, tile, plan, g, few);
        if (plan.is_there) {
            const uint32_t at = gpu_warp() * reader::n * GPU_TILE_ROWS;
            r.scales.put_scales(p.w, few.scale + at, few.bias + at);
            gpu_few_multiply(p, tile, r, g + own, few);
            r.read(p.w, plan.row, tile.end, g + plan.at_a_time + own);
        }
        gpu_barrier();
        for (uint32_t i = gpu_thread(); i < n_rows * tile.n; i += gpu_n_threads()) {
            const uint32_t row = i % n_rows, input = i / n_rows;
            acc = gpu_few_fold<reader>(plan, g, row, input, few, g == 0 ? 0 : acc);
            if (g + plan.at_a_time >= plan.n_groups)
                gpu_write(p, tile.t + input, tile.first + row, acc);
        }
        gpu_barrier();
    }
}

GPU_KERNEL_FOR(256, 2) void gpu_matmul_few(const struct gpu_matmul_few_args a)
{
    GPU_SHARED(int32_t, dot, GPU_FEW_SLOTS * GPU_FEW_INPUTS * GPU_TILE_ROWS);
    GPU_SHARED(float, scale, GPU_FEW_SLOTS * GPU_TILE_ROWS);
    GPU_SHARED(float, bias, GPU_FEW_SLOTS * GPU_TILE_ROWS);
    GPU_SHARED(float, in_scale, GPU_FEW_SLOTS * GPU_FEW_INPUTS);
    GPU_SHARED(float, rest, GPU_FEW_SLOTS * GPU_FEW_INPUTS);
    const struct gpu_work work = gpu_find_work(a.list, GPU_MATMUL_FEW);
    const struct gpu_product &p = work.p;
    const struct gpu_few few = {dot, scale, bias, in_scale, rest};
    switch (p.w.format.bits * 256u + p.w.format.group) {
    case 4 * 256 + 32: gpu_few_rows<gpu_affine4<32, 8>>(p, work.tile, few); break;
    case 4 * 256 + 64: gpu_few_rows<gpu_affine4<64, 8>>(p, work.tile, few); break;
    case 4 * 256 + 128: gpu_few_rows<gpu_affine4<128, 4>>(p, work.tile, few); break;
    case 8 * 256 + 32: gpu_few_rows<gpu_affine8<32, 8>>(p, work.tile, few); break;
    case 8 * 256 + 64: gpu_few_rows<gpu_affine8<64, 4>>(p, work.tile, few); break;
    default: gpu_few_rows<gpu_affine8<128, 2>>(p, work.tile, few); break;
    }
}

#endif
