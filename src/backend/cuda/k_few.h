/* Products of codes with up to eight inputs. Part of kernels_all.h.
 *
 * A warp multiplies sixteen rows with eight groups at a time (gpu_few_groups): it has read all of
 * them before it needs the first, which is what keeps the memory busy. Several warps share the
 * groups of sixteen rows if there are more. The integer sums meet in shared memory, where one
 * thread for each row and input folds them in the order of the groups. */
#ifndef FLASHMOE_BACKEND_CUDA_K_FEW_H
#define FLASHMOE_BACKEND_CUDA_K_FEW_H

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
    constexpr uint32_t unit = reader::group == 16 ? 16 : 32;
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
        for (uint32_t at = j * reader::group; at < (j + 1) * reader::group; at += unit) {
            struct gpu_pair columns = {0, 0};
            if (has_input && g + j < n_groups)
                columns = reader::columns(q + at, gpu_lane());
            gpu_add_unit(r, at / unit, columns, c);
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
    reader r = {};
    float acc = 0;
    if (plan.is_there)
        r.read(p.w, plan.row, tile.end, own);
    for (uint32_t g = 0; g < plan.n_groups; g += plan.at_a_time) {
        gpu_few_inputs<reader>(p, tile, plan, g, few);
        if (plan.is_there) {
            const uint32_t at = gpu_warp() * reader::n * GPU_TILE_ROWS;
            r.put_scales(p.w, few.scale + at, few.bias + at);
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

struct gpu_few_work {
    const struct gpu_work &work;
    const struct gpu_few &few;
    template <class reader> GPU_METHOD void run() const
    {
        gpu_few_rows<reader>(work.p, work.tile, few);
    }
};

GPU_KERNEL_FOR(256, 2) void gpu_matmul_few(const struct gpu_matmul_few_args a)
{
    GPU_SHARED(int32_t, dot, GPU_FEW_SLOTS * GPU_FEW_INPUTS * GPU_TILE_ROWS);
    GPU_SHARED(float, scale, GPU_FEW_SLOTS * GPU_TILE_ROWS);
    GPU_SHARED(float, bias, GPU_FEW_SLOTS * GPU_TILE_ROWS);
    GPU_SHARED(float, in_scale, GPU_FEW_SLOTS * GPU_FEW_INPUTS);
    GPU_SHARED(float, rest, GPU_FEW_SLOTS * GPU_FEW_INPUTS);
    const struct gpu_work work = gpu_find_work(a.list, GPU_MATMUL_FEW);
    const struct gpu_few few = {dot, scale, bias, in_scale, rest};
    gpu_with_reader<GPU_FEW_COLUMNS>(work.p.w, gpu_few_work{work, few});
}

#endif
