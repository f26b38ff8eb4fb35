/* The head: a product of one input with so many rows that a launch of small blocks would go over
 * the GPU several times, and each block would wait for its first bytes. Part of kernels_all.h.
 *
 * A block goes on with its next tile: that is on its way while the sums of this one are added up,
 * by another warp each time. */
#ifndef FLASHMOE_BACKEND_CUDA_K_HEAD_H
#define FLASHMOE_BACKEND_CUDA_K_HEAD_H

#define GPU_HEAD_FLOATS (GPU_ONE_SLICES * 16 * 4) /* groups of a tile, times four */

/* What a thread has seen of the values that it wrote. */
struct gpu_head_look {
    unsigned found; /* 1: infinite, 2: NaN */
    struct gpu_candidate best;

    GPU_METHOD void at(float value, uint32_t index)
    {
        found |= value != value ? 2u : value - value != 0 ? 1u : 0u;
        best = value > best.value ? gpu_candidate{value, index} : best;
    }
};

/* Notes what all threads have seen. The block meets. */
GPU_FN void gpu_note_look(const struct gpu_matmul_head_args &a, const struct gpu_head_look &look,
                          gpu_shared<uint64_t> codes, gpu_shared<uint32_t> found)
{
    uint64_t code = look.best.value > -INFINITY ? peak_code(look.best.value, look.best.index) : 0;
    uint32_t wrong = look.found;
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const uint64_t other = gpu_shuffle_xor(code, mask);
        code = other > code ? other : code;
        wrong |= gpu_shuffle_xor(wrong, mask);
    }
    if (gpu_lane() == 0) {
        codes[gpu_warp()] = code;
        found[gpu_warp()] = wrong;
    }
    gpu_barrier();
    if (gpu_thread() != 0)
        return;
    for (unsigned i = 1; i < GPU_ONE_WARPS; i++) {
        code = codes[i] > code ? (uint64_t)codes[i] : code;
        wrong |= found[i];
    }
    if (wrong != 0)
        gpu_raise(a.found, not_finite_code(0, wrong >= 2));
    if (a.peak != NULL)
        gpu_raise(a.peak, code);
}

/* Adds up a tile that all warps have multiplied. Warp n has its first rows. */
template <gpu_one_kind KIND>
GPU_FN void gpu_head_fold(const struct gpu_matmul_head_args &a, const struct gpu_one_plan &plan,
                          uint32_t first, uint32_t n, gpu_shared<float> groups,
                          struct gpu_head_look &look)
{
    const struct gpu_product &p = a.p;
    const uint32_t left = p.end - first, n_rows = left < p.tile.rows ? left : p.tile.rows;
    const uint32_t row = (gpu_thread() - n * GPU_WARP) % GPU_MATMUL_THREADS;
    if (row >= n_rows)
        return;
    const float sum = gpu_one_fold_slices<64, KIND>(plan, plan.n_slices, row, groups, 0);
    const float value = gpu_write(p, 0, first + row, sum);
    const uint32_t column = first + row - p.y_first;
    if (a.copy != NULL)
        a.copy[column] = value;
    look.at(value, column);
}

template <gpu_one_kind KIND>
GPU_FN void gpu_head_tiles(const struct gpu_matmul_head_args &a, gpu_shared<float> groups,
                           struct gpu_head_look &look)
{
    const struct gpu_product &p = a.p;
    const struct gpu_one_plan plan = gpu_one_plan_of<64, KIND>(p);
    const uint32_t tile = gpu_block_x() * a.n_tiles, left = p.n_across - tile;
    const uint32_t n = left < a.n_tiles ? left : a.n_tiles;
    const uint32_t first = p.begin + tile * p.tile.rows;
    const bool has_slice = plan.first < plan.n_slices;
    const uint32_t own_slice = has_slice ? plan.first : 0;
    const gpu_one_global in = {p.in.q, p.in.scale, p.in.offset, p.in.sum};
    struct gpu_slice<64, KIND> slice;
    struct gpu_one_columns<64, KIND> x;
    /* The last tile may have fewer rows: who has none reads its first ones. */
    slice.read(p.w, first + plan.own < p.end ? first + plan.own : first, own_slice);
    gpu_wait();
    in.template take<64, KIND>(own_slice * gpu_slice<64, KIND>::n_cols, x);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = first + i * p.tile.rows, next = row + p.tile.rows;
        const gpu_shared<float> buffer = groups + i % 2 * GPU_HEAD_FLOATS;
        gpu_one_multiply_columns<64, KIND>(p.w.format.scale, slice, x, plan.first, 0,
                                           has_slice && row + plan.own < p.end,
                                           buffer + plan.own / 16 * plan.per_rows);
        if (i + 1 < n)
            slice.read(p.w, next + plan.own < p.end ? next + plan.own : next, own_slice);
        gpu_barrier(); /* one is enough: the other buffer was added up before it */
        gpu_head_fold<KIND>(a, plan, row, i, buffer, look);
    }
}

/* With three blocks on a multiprocessor the registers do not suffice: 53 to 56 us for 151,936 rows
 * of 2,048 on an H200, with two 44. */
GPU_KERNEL_FOR(GPU_MATMUL_THREADS, 2) void gpu_matmul_head(const struct gpu_matmul_head_args a)
{
    GPU_SHARED(float, groups, 2 * GPU_HEAD_FLOATS);
    GPU_SHARED(uint64_t, codes, GPU_ONE_WARPS);
    GPU_SHARED(uint32_t, found, GPU_ONE_WARPS);
    struct gpu_head_look look = {0, {-INFINITY, 0}};
    gpu_read_args(a);
    if (a.p.w.format.bits == 8)
        gpu_head_tiles<GPU_BYTES>(a, groups, look);
    else
        gpu_head_tiles<GPU_AFFINE>(a, groups, look);
    if (a.found != NULL)
        gpu_note_look(a, look, codes, found);
}

#endif
