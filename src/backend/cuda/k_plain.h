/* Products of formats without codes. Part of kernels_all.h.
 *
 * A sum has 16 lanes (k_rows.h), half a warp. The rows of a block lie in shared memory as floats,
 * read by all of its threads; with many inputs, these do as well. */
#ifndef FLASHMOE_BACKEND_CUDA_K_PLAIN_H
#define FLASHMOE_BACKEND_CUDA_K_PLAIN_H

#define GPU_PLAIN_HALVES (GPU_MATMUL_THREADS / GPU_LANES)

/* Rows of floats in shared memory; the space between them lets half warps read two at a time. */
#define GPU_PLAIN_STRIDE(columns) ((columns) + GPU_LANES)

/* Four values of a format with one for each column, at a multiple of eight bytes. */
GPU_FN void gpu_put_four(unsigned plain, const uint8_t *at, gpu_shared<float> to)
{
    const struct gpu_pair first = gpu_load_pair(at);
    if (plain == GPU_PLAIN_F32) {
        const struct gpu_pair second = gpu_load_pair(at + 8);
        to[0] = fmath_float_of_bits(first.low);
        to[1] = fmath_float_of_bits(first.high);
        to[2] = fmath_float_of_bits(second.low);
        to[3] = fmath_float_of_bits(second.high);
        return;
    }
    const uint32_t halves[4] = {first.low, first.low >> 16, first.high, first.high >> 16};
    GPU_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        to[k] = plain == GPU_PLAIN_F16 ? gpu_f16_to_f32((uint16_t)halves[k])
                                       : gpu_bf16_to_f32((uint16_t)halves[k]);
}

GPU_FN bool gpu_has_fours(const struct gpu_weight &w)
{
    return w.format.plain <= GPU_PLAIN_BF16 && w.n_cols % 4 == 0 &&
           (uintptr_t)w.parts[0] % 8 == 0;
}

/* Writes columns [from, from + COLUMNS) of n rows. */
template <uint32_t COLUMNS>
GPU_FN void gpu_put_rows(const struct gpu_weight &w, uint32_t row, uint32_t n, uint32_t from,
                         gpu_shared<float> to)
{
    const uint32_t left = w.n_cols - from, width = left < COLUMNS ? left : COLUMNS;
    if (gpu_has_blocks(w)) {
        for (uint32_t i = gpu_thread(); i < n * (width / GPU_MAX_BLOCK); i += GPU_MATMUL_THREADS) {
            const uint32_t r = i % n, b = i / n;
            float values[GPU_MAX_BLOCK];
            gpu_decode_block(w, row + r, from / GPU_MAX_BLOCK + b, values);
            for (uint32_t k = 0; k < GPU_MAX_BLOCK; k++)
                to[r * GPU_PLAIN_STRIDE(COLUMNS) + b * GPU_MAX_BLOCK + k] = values[k];
        }
    } else if (gpu_has_fours(w)) {
        GPU_UNROLL_BY(8)
        for (uint32_t i = gpu_thread(); i < n * (COLUMNS / 4); i += GPU_MATMUL_THREADS) {
            const uint32_t r = i / (COLUMNS / 4), c = i % (COLUMNS / 4) * 4;
            if (c < width)
                gpu_put_four(w.format.plain,
                             gpu_part_row(w, 0, row + r) +
                                 (uint64_t)(from + c) * (w.format.bits / 8),
                             to + r * GPU_PLAIN_STRIDE(COLUMNS) + c);
        }
    } else {
        for (uint32_t i = gpu_thread(); i < n * COLUMNS; i += GPU_MATMUL_THREADS) {
            const uint32_t r = i / COLUMNS, c = i % COLUMNS;
            if (c < width)
                to[r * GPU_PLAIN_STRIDE(COLUMNS) + c] = gpu_value(w, row + r, from + c);
        }
    }
}

/* Adds up the lanes of a sum and writes it; the warp meets. Its input is the same in all of the
 * warp. */
GPU_FN void gpu_plain_write(const struct gpu_product &p, const struct gpu_tile &tile, uint32_t row,
                            uint32_t input, float lane)
{
    const uint32_t n = p.w.n_cols, j = gpu_thread() % GPU_LANES;
    if (input >= tile.n)
        return;
    if (n % GPU_LANES != 0 && j >= n % GPU_LANES)
        lane = fmaf(0.0f, 0.0f, lane);
    const float sum = gpu_sum_half_warp(lane);
    if (j == 0 && tile.first + row < tile.end)
        gpu_write(p, tile.t + input, tile.first + row, sum);
}

/* A half warp has a row and two inputs. */
GPU_KERNEL void gpu_matmul_plain(const struct gpu_matmul_plain_args a)
{
    GPU_SHARED(float, rows, GPU_PLAIN_ROWS * GPU_PLAIN_STRIDE(GPU_PLAIN_COLUMNS));
    const struct gpu_work work = gpu_find_work(a.list, GPU_MATMUL_PLAIN);
    const struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n = p.w.n_cols, n_rows = tile.end - tile.first;
    const uint32_t half = gpu_thread() / GPU_LANES, j = gpu_thread() % GPU_LANES;
    const uint32_t row = half % GPU_PLAIN_ROWS, input = half / GPU_PLAIN_ROWS;
    const gpu_shared<float> mine = rows + row * GPU_PLAIN_STRIDE(GPU_PLAIN_COLUMNS);
    float lane[2] = {0, 0};
    for (uint32_t from = 0; from < n; from += GPU_PLAIN_COLUMNS) {
        const uint32_t left = n - from;
        const uint32_t width = left < GPU_PLAIN_COLUMNS ? left : GPU_PLAIN_COLUMNS;
        gpu_put_rows<GPU_PLAIN_COLUMNS>(p.w, tile.first, n_rows, from, rows);
        gpu_barrier();
        GPU_UNROLL
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = input + k * (GPU_PLAIN_HALVES / GPU_PLAIN_ROWS);
            if (t >= tile.n || row >= n_rows)
                continue;
            const float *x = p.in.x + gpu_input_row(p, tile.t + t) * n + from;
            GPU_UNROLL_BY(16)
            for (uint32_t i = j; i < width; i += GPU_LANES)
                lane[k] = fmaf(mine[i], x[i], lane[k]);
        }
        gpu_barrier();
    }
    gpu_plain_write(p, tile, row, input, lane[0]);
    gpu_plain_write(p, tile, row, input + GPU_PLAIN_HALVES / GPU_PLAIN_ROWS, lane[1]);
}

/* A half warp has four rows and four inputs. */
GPU_KERNEL void gpu_matmul_plain_many(const struct gpu_matmul_plain_many_args a)
{
    constexpr uint32_t stride = GPU_PLAIN_STRIDE(GPU_MAX_BLOCK);
    GPU_SHARED(float, rows, GPU_PLAIN_MANY * stride);
    GPU_SHARED(float, inputs, GPU_PLAIN_MANY * stride);
    const struct gpu_work work = gpu_find_work(a.list, GPU_MATMUL_PLAIN_MANY);
    const struct gpu_product &p = work.p;
    const struct gpu_tile &tile = work.tile;
    const uint32_t n = p.w.n_cols, n_rows = tile.end - tile.first;
    const uint32_t half = gpu_thread() / GPU_LANES, j = gpu_thread() % GPU_LANES;
    const uint32_t row = half % 4 * 4, input = half / 4 * 4;
    float lane[16] = {};
    for (uint32_t from = 0; from < n; from += GPU_MAX_BLOCK) {
        const uint32_t width = n - from < GPU_MAX_BLOCK ? n - from : GPU_MAX_BLOCK;
        gpu_put_rows<GPU_MAX_BLOCK>(p.w, tile.first, n_rows, from, rows);
        for (uint32_t i = gpu_thread(); i < tile.n * GPU_MAX_BLOCK; i += GPU_MATMUL_THREADS) {
            const uint32_t t = i / GPU_MAX_BLOCK, c = i % GPU_MAX_BLOCK;
            if (c < width)
                inputs[t * stride + c] = p.in.x[gpu_input_row(p, tile.t + t) * n + from + c];
        }
        gpu_barrier();
        for (uint32_t i = j; i < width; i += GPU_LANES) {
            float w[4], x[4];
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                w[k] = row + k < n_rows ? (float)rows[(row + k) * stride + i] : 0;
                x[k] = input + k < tile.n ? (float)inputs[(input + k) * stride + i] : 0;
            }
            GPU_UNROLL
            for (uint32_t k = 0; k < 16; k++)
                lane[k] = fmaf(w[k / 4], x[k % 4], lane[k]);
        }
        gpu_barrier();
    }
    GPU_UNROLL
    for (uint32_t k = 0; k < 16; k++)
        gpu_plain_write(p, tile, row + k / 4, input + k % 4, lane[k]);
}

#endif
