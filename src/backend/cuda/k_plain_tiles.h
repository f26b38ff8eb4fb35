/* Products of floats and halves with many inputs. Part of kernels_all.h.
 *
 * A block has 32 rows and 32 inputs, a team of four threads four of each: sixteen sums of sixteen
 * lanes. Columns lie in shared memory, some at a time, while the next ones are on their way. */
#ifndef FLASHMOE_BACKEND_CUDA_K_PLAIN_TILES_H
#define FLASHMOE_BACKEND_CUDA_K_PLAIN_TILES_H

#define GPU_TILES_COLUMNS 64u                       /* at a time */
#define GPU_TILES_STRIDE (GPU_TILES_COLUMNS + 4)    /* two teams read without conflict */
#define GPU_TILES_FOURS (GPU_TILES_COLUMNS / 4)     /* of columns, in a row */
#define GPU_TILES_OWN (GPU_PLAIN_TILES * GPU_TILES_FOURS / GPU_MATMUL_THREADS) /* of a thread */

/* What a thread has on its way. */
struct gpu_tiles_next {
    struct gpu_pair rows[GPU_TILES_OWN][2]; /* halves need only the first of two */
    struct gpu_quad inputs[GPU_TILES_OWN];
};

/* Begins to read the columns from `from` on. */
GPU_FN void gpu_tiles_read(const struct gpu_product &p, const struct gpu_tile &tile, uint32_t from,
                           struct gpu_tiles_next *to)
{
    const uint32_t n = p.w.n_cols, n_rows = tile.end - tile.first, bytes = p.w.format.bits / 8;
    GPU_UNROLL
    for (uint32_t k = 0; k < GPU_TILES_OWN; k++) {
        const uint32_t i = gpu_thread() + k * GPU_MATMUL_THREADS, r = i / GPU_TILES_FOURS;
        const uint32_t c = from + i % GPU_TILES_FOURS * 4;
        const uint8_t *at = p.w.parts[0] + ((uint64_t)(tile.first + r) * n + c) * bytes;
        if (c < n && r < n_rows)
            to->rows[k][0] = gpu_load_pair(at);
        if (c < n && r < n_rows && bytes == 4)
            to->rows[k][1] = gpu_load_pair(at + 8);
        if (c < n && r < tile.n)
            to->inputs[k] = gpu_load_quad(p.in.x + gpu_input_row(p, tile.t + r) * n + c);
    }
}

GPU_FN struct gpu_quad gpu_four_values(unsigned plain, const struct gpu_pair words[2])
{
    if (plain == GPU_PLAIN_F32)
        return {{fmath_float_of_bits(words[0].low), fmath_float_of_bits(words[0].high),
                 fmath_float_of_bits(words[1].low), fmath_float_of_bits(words[1].high)}};
    struct gpu_quad quad;
    GPU_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        const uint16_t half = (uint16_t)((e < 2 ? words[0].low : words[0].high) >> e % 2 * 16);
        quad.x[e] = plain == GPU_PLAIN_F16 ? gpu_f16_to_f32(half) : gpu_bf16_to_f32(half);
    }
    return quad;
}

/* Writes what has been read; what is not there is zero and belongs to no sum that is kept. */
GPU_FN void gpu_tiles_put(unsigned plain, const struct gpu_tiles_next &from,
                          gpu_shared<float> rows, gpu_shared<float> inputs)
{
    GPU_UNROLL
    for (uint32_t k = 0; k < GPU_TILES_OWN; k++) {
        const uint32_t i = gpu_thread() + k * GPU_MATMUL_THREADS;
        const uint32_t at = i / GPU_TILES_FOURS * GPU_TILES_STRIDE + i % GPU_TILES_FOURS * 4;
        gpu_put_quad(rows, at, gpu_four_values(plain, from.rows[k]));
        gpu_put_quad(inputs, at, from.inputs[k]);
    }
}

/* Adds sixteen columns, one to each lane, to the sums of four rows and four inputs. */
GPU_FN void gpu_tiles_step(gpu_shared<float> rows, gpu_shared<float> inputs,
                           struct gpu_quad sums[4][4])
{
    struct gpu_quad w[4], x[4];
    GPU_UNROLL
    for (uint32_t k = 0; k < 4; k++) {
        w[k] = gpu_take_quad(rows, k * GPU_TILES_STRIDE);
        x[k] = gpu_take_quad(inputs, k * GPU_TILES_STRIDE);
    }
    GPU_UNROLL
    for (uint32_t r = 0; r < 4; r++)
        GPU_UNROLL
        for (uint32_t t = 0; t < 4; t++)
            GPU_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                sums[r][t].x[e] = fmaf(w[r].x[e], x[t].x[e], sums[r][t].x[e]);
}

GPU_KERNEL_FOR(GPU_MATMUL_THREADS, 2)
void gpu_matmul_plain_tiles(const struct gpu_matmul_plain_tiles_args a)
{
    GPU_SHARED(float, rows, GPU_PLAIN_TILES * GPU_TILES_STRIDE);
    GPU_SHARED(float, inputs, GPU_PLAIN_TILES * GPU_TILES_STRIDE);
    const struct gpu_work work = gpu_find_work(a.list, GPU_MATMUL_PLAIN_TILES);
    const struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    /* Teams of a warp have two fours of rows and four of inputs. */
    const uint32_t team = gpu_lane() / GPU_TEAM, u = gpu_member();
    const uint32_t row = (gpu_warp() / 2 * 2 + team / 4) * 4;
    const uint32_t input = (gpu_warp() % 2 * 4 + team % 4) * 4;
    struct gpu_quad sums[4][4] = {};
    struct gpu_tiles_next next = {};
    gpu_tiles_read(p, tile, 0, &next);
    for (uint32_t from = 0; from < p.w.n_cols; from += GPU_TILES_COLUMNS) {
        const uint32_t left = p.w.n_cols - from;
        const uint32_t n = left < GPU_TILES_COLUMNS ? left : GPU_TILES_COLUMNS;
        gpu_barrier(); /* the columns before have been used */
        gpu_tiles_put(p.w.format.plain, next, rows, inputs);
        gpu_barrier();
        gpu_tiles_read(p, tile, from + GPU_TILES_COLUMNS, &next);
        for (uint32_t i = 4 * u; i < n; i += GPU_LANES)
            gpu_tiles_step(rows + row * GPU_TILES_STRIDE + i, inputs + input * GPU_TILES_STRIDE + i,
                           sums);
    }
    GPU_UNROLL
    for (uint32_t r = 0; r < 4; r++)
        GPU_UNROLL
        for (uint32_t t = 0; t < 4; t++) {
            const float sum = gpu_sum_team(sums[r][t]);
            if (u == 0 && input + t < tile.n && tile.first + row + r < tile.end)
                gpu_write(p, tile.t + input + t, tile.first + row + r, sum);
        }
}

#endif
