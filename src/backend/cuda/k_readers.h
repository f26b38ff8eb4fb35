/* Reading codes for products. Part of kernels_all.h.
 *
 * A reader holds what a lane of a warp needs of n groups of sixteen rows: of the rows l / 4 * 2 and
 * the next in lane l. A unit is 32 columns, or 16 in formats with groups of 16.
 *   read(w, row, end, g)         begins to read the groups g, g + 1, ... of rows from `row` on;
 *                                rows from `end` on are not there
 *   codes(unit, a)               the lane's codes of a unit as gpu_tile_32 or _16 wants them
 *   columns(q, l)                the columns of an input that belong to them in lane l
 *   put_scales(w, scale, bias)   writes [n, 16 rows]; the whole warp calls it */
#ifndef FLASHMOE_BACKEND_CUDA_K_READERS_H
#define FLASHMOE_BACKEND_CUDA_K_READERS_H

#define GPU_TILE_ROWS 16u
#define GPU_NIBBLES 0x0f0f0f0fu

/* Returns eight columns of an input. */
GPU_FN struct gpu_pair gpu_eight_columns(const int8_t *q, uint32_t l)
{
    return gpu_load_pair(q + l % 4 * 8);
}

/* Returns four columns of each half of 32. */
GPU_FN struct gpu_pair gpu_two_fours(const int8_t *q, uint32_t l)
{
    return {gpu_load_word(q + l % 4 * 4), gpu_load_word(q + 16 + l % 4 * 4)};
}

/* Returns the address of row `row` + i of a format with one part; what is not there is the last. */
GPU_FN const uint8_t *gpu_row_at(const struct gpu_weight &w, uint32_t row, uint32_t end)
{
    return gpu_part_row(w, 0, row < end ? row : end - 1);
}

/* Four bits as the lowest bits of four bytes. */
GPU_FN uint32_t gpu_spread_bits(uint32_t bits)
{
    return (bits & 15) * 0x00204081u & 0x01010101u;
}

/* ---- affine formats, sixteen rows side by side ----------------------------------------------- */

/* Scales and biases, if there are any: a lane has four rows of a group. */
template <uint32_t N, bool HAS_BIAS> struct gpu_affine_scales {
    struct gpu_pair scale, bias;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / w.format.group, j = gpu_lane() / 4;
        const uint64_t at = (uint64_t)row * n_groups + (g + j) * 16ull + gpu_lane() % 4 * 4;
        if (j >= N || g + j >= n_groups)
            return;
        scale = gpu_stream_pair(w.parts[1] + 2 * at);
        if (HAS_BIAS)
            bias = gpu_stream_pair(w.parts[2] + 2 * at);
    }

    GPU_METHOD static float value(unsigned plain, uint32_t half)
    {
        return plain == GPU_PLAIN_F16 ? gpu_f16_to_f32((uint16_t)half)
                                      : gpu_bf16_to_f32((uint16_t)half);
    }

    GPU_METHOD static void put(unsigned plain, gpu_shared<float> to, const struct gpu_pair &from)
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
        if (HAS_BIAS)
            put(w.format.scale, biases, bias);
    }
};

/* Codes of four bits. The columns are the nibbles of a word in ascending order: the even ones are
 * the low nibbles of its bytes. */
template <uint32_t GROUP, uint32_t N, bool HAS_BIAS>
struct gpu_affine4 : gpu_affine_scales<N, HAS_BIAS> {
    enum : uint32_t { group = GROUP, n = N, has_bias = HAS_BIAS };
    struct gpu_pair words[N * GROUP / 32]; /* of both rows */

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t, uint32_t g)
    {
        const uint32_t n_units = w.n_cols / 32, first = g * (GROUP / 32);
        const uint8_t *at = w.parts[0] + (uint64_t)row * (w.n_cols / 2) + first * 256ull +
                            gpu_lane() % 4 * 64 + gpu_lane() / 4 * 8;
        GPU_UNROLL
        for (uint32_t u = 0; u < N * GROUP / 32; u++)
            if (first + u < n_units)
                words[u] = gpu_stream_pair(at + u * 256);
        gpu_affine_scales<N, HAS_BIAS>::read(w, row, g);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        a[0] = words[unit].low & GPU_NIBBLES;
        a[1] = words[unit].high & GPU_NIBBLES;
        a[2] = words[unit].low >> 4 & GPU_NIBBLES;
        a[3] = words[unit].high >> 4 & GPU_NIBBLES;
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        const struct gpu_pair eight = gpu_eight_columns(q, l);
        return {gpu_permute(eight.low, eight.high, 0x6420),
                gpu_permute(eight.low, eight.high, 0x7531)};
    }
};

/* Codes of eight bits. */
template <uint32_t GROUP, uint32_t N> struct gpu_affine8 : gpu_affine_scales<N, true> {
    enum : uint32_t { group = GROUP, n = N, has_bias = 1 };
    struct gpu_pair first[N * GROUP / 32], second[N * GROUP / 32]; /* words of four columns */

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
        gpu_affine_scales<N, true>::read(w, row, g);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        a[0] = first[unit].low;
        a[1] = first[unit].high;
        a[2] = second[unit].low;
        a[3] = second[unit].high;
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_eight_columns(q, l);
    }
};

/* ---- codes of MXFP4, sixteen rows side by side ----------------------------------------------- */

/* Entries of a table of sixteen bytes that four nibbles name. */
GPU_FN uint32_t gpu_look_up(const uint8_t table[16], uint32_t nibbles)
{
    const uint32_t index = nibbles & 0x7777u, is_upper = (nibbles & 0x8888u) >> 1;
    const uint32_t lower = gpu_permute(codes_u32(table), codes_u32(table + 4), index);
    const uint32_t upper = gpu_permute(codes_u32(table + 8), codes_u32(table + 12), index);
    return gpu_permute(lower, upper, 0x3210u | is_upper);
}

/* The nibbles of a word are in the order of the columns. A lane has four rows of a group's
 * scales. */
template <uint32_t N> struct gpu_fp4 {
    enum : uint32_t { group = 32, n = N, has_bias = 0 };
    struct gpu_pair words[N]; /* of both rows */
    uint32_t scales;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / 32, j = gpu_lane() / 4;
        const uint8_t *at = w.parts[0] + (uint64_t)row * (w.n_cols / 2) + g * 256ull +
                            gpu_lane() % 4 * 64 + gpu_lane() / 4 * 8;
        GPU_UNROLL
        for (uint32_t u = 0; u < N; u++)
            if (g + u < n_groups)
                words[u] = gpu_stream_pair(at + u * 256);
        if (j < N && g + j < n_groups)
            scales = gpu_load_word(w.parts[1] + (uint64_t)row * n_groups + (g + j) * 16ull +
                                   gpu_lane() % 4 * 4);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        a[0] = gpu_look_up(codes_fp4_doubled, words[unit].low);
        a[1] = gpu_look_up(codes_fp4_doubled, words[unit].high);
        a[2] = gpu_look_up(codes_fp4_doubled, words[unit].low >> 16);
        a[3] = gpu_look_up(codes_fp4_doubled, words[unit].high >> 16);
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_eight_columns(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> to,
                               gpu_shared<float>) const
    {
        if (gpu_lane() / 4 >= N)
            return;
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            to[gpu_lane() * 4 + k] = codes_mxfp4_scale(scales >> 8 * k & 0xff);
    }
};

/* ---- formats stored by rows ------------------------------------------------------------------
 * For scales, a lane has row l % 16 and the groups l / 16 * N / 2 and following. */

GPU_FN uint32_t gpu_scale_row() { return gpu_lane() % GPU_TILE_ROWS; }

/* Codes of any number of bits; eight of them are as many bytes as one has bits. Few models have
 * such rows, so they are read where they are needed. */
template <uint32_t GROUP, uint32_t N, bool HAS_BIAS> struct gpu_affine_rows {
    enum : uint32_t { group = GROUP, n = N, has_bias = HAS_BIAS };
    const uint8_t *at[2];
    uint32_t bits, n_left; /* groups */
    uint64_t scale_at;

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / GROUP, last = end - 1;
        bits = w.format.bits;
        n_left = g < n_groups ? n_groups - g : 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t r = row + gpu_lane() / 4 * 2 + i;
            at[i] = w.parts[0] + (uint64_t)(r < end ? r : last) * (w.n_cols / 8) * bits +
                    ((uint64_t)g * (GROUP / 8) + gpu_lane() % 4) * bits;
        }
        const uint32_t r = row + gpu_scale_row();
        scale_at = (uint64_t)(r < end ? r : last) * n_groups + g;
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        const uint32_t mask = (1u << bits) - 1;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            uint64_t packed = 0;
            a[i] = a[2 + i] = 0;
            for (uint32_t b = 0; unit / (GROUP / 32) < n_left && b < bits; b++)
                packed |= (uint64_t)at[i][(uint64_t)unit * 4 * bits + b] << 8 * b;
            GPU_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                a[i] |= ((uint32_t)(packed >> bits * k) & mask) << 8 * k;
                a[2 + i] |= ((uint32_t)(packed >> bits * (k + 4)) & mask) << 8 * k;
            }
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_eight_columns(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &w, gpu_shared<float> scales,
                               gpu_shared<float> biases) const
    {
        for (uint32_t j = gpu_lane() / 16; j < N && j < n_left; j += 2) {
            const uint64_t from = 2 * (scale_at + j);
            const uint32_t to = j * GPU_TILE_ROWS + gpu_scale_row();
            scales[to] = gpu_plain_value(w.format.scale, w.parts[1] + from);
            if (HAS_BIAS)
                biases[to] = gpu_plain_value(w.format.scale, w.parts[2] + from);
        }
    }
};

/* MXFP4 with its powers of two apart. */
template <uint32_t N> struct gpu_fp4_rows {
    enum : uint32_t { group = 32, n = N, has_bias = 0 };
    const uint8_t *at[2], *scale_at;
    uint32_t n_left; /* groups */

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / 32, last = end - 1, s = row + gpu_scale_row();
        n_left = g < n_groups ? n_groups - g : 0;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t r = row + gpu_lane() / 4 * 2 + i;
            at[i] = w.parts[0] + (uint64_t)(r < end ? r : last) * (w.n_cols / 2) + g * 16ull +
                    gpu_lane() % 4 * 4;
        }
        scale_at = w.parts[1] + (uint64_t)(s < end ? s : last) * n_groups + g;
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t word = unit < n_left ? gpu_load_any(at[i] + unit * 16ull) : 0;
            a[i] = gpu_look_up(codes_fp4_doubled, word);
            a[2 + i] = gpu_look_up(codes_fp4_doubled, word >> 16);
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_eight_columns(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> to,
                               gpu_shared<float>) const
    {
        for (uint32_t j = gpu_lane() / 16; j < N && j < n_left; j += 2)
            to[j * GPU_TILE_ROWS + gpu_scale_row()] = codes_mxfp4_scale(scale_at[j]);
    }
};

/* Blocks of 32 columns, four or five bits each: where a block keeps what, and its table of levels.
 * A byte of nibbles has columns that are 16 apart. */
template <unsigned CODES> struct gpu_block32 {
    enum : uint32_t {
        has_bias = CODES == QUANT_CODES_Q4_1 || CODES == QUANT_CODES_Q5_1,
        has_fifths = CODES == QUANT_CODES_Q5_0 || CODES == QUANT_CODES_Q5_1,
        has_table = CODES == QUANT_CODES_MXFP4 || CODES == QUANT_CODES_IQ4_NL,
        fifths_at = has_bias ? 4 : 2,
        nibbles_at = CODES == QUANT_CODES_MXFP4 ? 1 : fifths_at + 4 * has_fifths,
        bytes = nibbles_at + 16,
    };
};

/* Four bytes of nibbles: the columns of the low and the high ones. */
GPU_FN void gpu_split_nibbles(uint32_t word, uint32_t *low, uint32_t *high)
{
    *low = word & GPU_NIBBLES;
    *high = word >> 4 & GPU_NIBBLES;
}

/* With a table, codes and columns are in the order of the nibbles. */
GPU_FN struct gpu_pair gpu_nibble_order(const int8_t *q, uint32_t l)
{
    const struct gpu_pair fours = gpu_two_fours(q, l);
    return {gpu_permute(fours.low, fours.high, 0x5140), gpu_permute(fours.low, fours.high, 0x7362)};
}

template <unsigned CODES> struct gpu_fours {
    using block = gpu_block32<CODES>;
    enum : uint32_t { group = 32, n = 8, has_bias = block::has_bias };
    uint32_t words[2][n], fifths[2][1 + 7 * block::has_fifths];
    uint32_t scales[n / 2]; /* as they are stored */

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / 32;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *at = gpu_row_at(w, row + gpu_lane() / 4 * 2 + i, end) +
                                (uint64_t)g * block::bytes;
            GPU_UNROLL
            for (uint32_t j = 0; j < n; j++, at += block::bytes) {
                if (g + j >= n_groups)
                    continue;
                words[i][j] = gpu_load_any(at + block::nibbles_at + gpu_lane() % 4 * 4);
                if (block::has_fifths)
                    fifths[i][j] = gpu_load_any(at + block::fifths_at);
            }
        }
        const uint8_t *at = gpu_row_at(w, row + gpu_scale_row(), end);
        GPU_UNROLL
        for (uint32_t k = 0; k < n / 2; k++) {
            const uint32_t j = g + gpu_lane() / 16 * (n / 2) + k;
            const uint8_t *from = at + (uint64_t)j * block::bytes;
            if (j < n_groups)
                scales[k] = CODES == QUANT_CODES_MXFP4 ? from[0]
                            : block::has_bias          ? gpu_load_any(from)
                                                       : codes_u16(from);
        }
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t word = words[i][unit];
            if (block::has_table) {
                const uint8_t *table = CODES == QUANT_CODES_MXFP4 ? codes_fp4_doubled
                                                                  : codes_iq4_levels;
                a[i] = gpu_look_up(table, word);
                a[2 + i] = gpu_look_up(table, word >> 16);
                continue;
            }
            gpu_split_nibbles(word, &a[i], &a[2 + i]);
            if (block::has_fifths) {
                const uint32_t bits = fifths[i][unit * block::has_fifths] >> gpu_lane() % 4 * 4;
                a[i] |= gpu_spread_bits(bits) << 4;
                a[2 + i] |= gpu_spread_bits(bits >> 16) << 4;
            }
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return block::has_table ? gpu_nibble_order(q, l) : gpu_two_fours(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> to,
                               gpu_shared<float> biases) const
    {
        GPU_UNROLL
        for (uint32_t k = 0; k < n / 2; k++) {
            const uint32_t at = (gpu_lane() / 16 * (n / 2) + k) * GPU_TILE_ROWS + gpu_scale_row();
            to[at] = CODES == QUANT_CODES_MXFP4 ? codes_mxfp4_scale(scales[k] & 0xff)
                                                : gpu_f16_to_f32((uint16_t)scales[k]);
            if (block::has_bias)
                biases[at] = gpu_f16_to_f32((uint16_t)(scales[k] >> 16));
        }
    }
};

/* A half and 32 signed bytes. */
struct gpu_q8_0 {
    enum : uint32_t { group = 32, n = 8, has_bias = 0, bytes = 34 };
    uint32_t words[2][n][2];
    uint32_t scales[n / 2];

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        const uint32_t n_groups = w.n_cols / 32;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *at = gpu_row_at(w, row + gpu_lane() / 4 * 2 + i, end) +
                                (uint64_t)g * bytes + 2 + gpu_lane() % 4 * 4;
            GPU_UNROLL
            for (uint32_t j = 0; j < n; j++, at += bytes)
                if (g + j < n_groups) {
                    words[i][j][0] = gpu_load_any(at);
                    words[i][j][1] = gpu_load_any(at + 16);
                }
        }
        const uint8_t *at = gpu_row_at(w, row + gpu_scale_row(), end);
        GPU_UNROLL
        for (uint32_t k = 0; k < n / 2; k++) {
            const uint32_t j = g + gpu_lane() / 16 * (n / 2) + k;
            if (j < n_groups)
                scales[k] = codes_u16(at + (uint64_t)j * bytes);
        }
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            a[k] = words[k % 2][unit][k / 2] ^ 0x80808080u;
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_two_fours(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> to,
                               gpu_shared<float>) const
    {
        GPU_UNROLL
        for (uint32_t k = 0; k < n / 2; k++)
            to[(gpu_lane() / 16 * (n / 2) + k) * GPU_TILE_ROWS + gpu_scale_row()] =
                gpu_f16_to_f32((uint16_t)scales[k]);
    }
};

/* ---- blocks of 256 columns, a scale for 32 --------------------------------------------------- */

/* q4_k and q5_k: a whole block. Bytes of nibbles belong to two groups. */
template <unsigned CODES> struct gpu_k45 {
    enum : uint32_t {
        group = 32,
        n = 8,
        has_bias = 1,
        is_five = CODES == QUANT_CODES_Q5_K,
        codes_at = is_five ? 48 : 16,
        bytes = codes_at + 128,
    };
    struct gpu_pair words[2][n / 2], fifths[2];
    uint32_t head[4]; /* d and d_min, scales and mins */

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        if (g >= w.n_cols / 32)
            return;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *at = gpu_row_at(w, row + gpu_lane() / 4 * 2 + i, end) +
                                (uint64_t)(g / n) * bytes + gpu_lane() % 4 * 8;
            GPU_UNROLL
            for (uint32_t j = 0; j < n / 2; j++)
                words[i][j] = gpu_stream_pair(at + codes_at + 32 * j);
            if (is_five)
                fifths[i] = gpu_stream_pair(at + 16);
        }
        const uint8_t *at = gpu_row_at(w, row + gpu_scale_row(), end) + (uint64_t)(g / n) * bytes;
        GPU_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            head[i] = gpu_load_word(at + 4 * i);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const struct gpu_pair word = words[i][unit / 2];
            a[i] = word.low >> unit % 2 * 4 & GPU_NIBBLES;
            a[2 + i] = word.high >> unit % 2 * 4 & GPU_NIBBLES;
            if (is_five) {
                a[i] |= (fifths[i].low >> unit & 0x01010101u) << 4;
                a[2 + i] |= (fifths[i].high >> unit & 0x01010101u) << 4;
            }
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_eight_columns(q, l);
    }

    /* As codes_scales_mins; a lane has the first or the last four. */
    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> scales,
                               gpu_shared<float> biases) const
    {
        const bool is_last = gpu_lane() >= 16;
        const float d = gpu_f16_to_f32((uint16_t)head[0]);
        const float d_min = gpu_f16_to_f32((uint16_t)(head[0] >> 16));
        const uint32_t s = is_last ? (head[3] & GPU_NIBBLES) | (head[1] >> 6 & 0x03030303u) << 4
                                   : head[1] & 0x3f3f3f3fu;
        const uint32_t m = is_last
                               ? (head[3] >> 4 & GPU_NIBBLES) | (head[2] >> 6 & 0x03030303u) << 4
                               : head[2] & 0x3f3f3f3fu;
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t at = (is_last * 4 + k) * GPU_TILE_ROWS + gpu_scale_row();
            scales[at] = d * (float)(s >> 8 * k & 0xff);
            biases[at] = -(d_min * (float)(m >> 8 * k & 0xff));
        }
    }
};

struct gpu_iq4_xs {
    enum : uint32_t { group = 32, n = 8, has_bias = 0, bytes = 136 };
    uint32_t words[2][n], head[2];

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        if (g >= w.n_cols / 32)
            return;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *at = gpu_row_at(w, row + gpu_lane() / 4 * 2 + i, end) +
                                (uint64_t)(g / n) * bytes + 8 + gpu_lane() % 4 * 4;
            GPU_UNROLL
            for (uint32_t j = 0; j < n; j++)
                words[i][j] = gpu_load_word(at + 16 * j);
        }
        const uint8_t *at = gpu_row_at(w, row + gpu_scale_row(), end) + (uint64_t)(g / n) * bytes;
        head[0] = gpu_load_word(at);
        head[1] = gpu_load_word(at + 4);
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            a[i] = gpu_look_up(codes_iq4_levels, words[i][unit]);
            a[2 + i] = gpu_look_up(codes_iq4_levels, words[i][unit] >> 16);
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return gpu_nibble_order(q, l);
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> scales,
                               gpu_shared<float>) const
    {
        const float d = gpu_f16_to_f32((uint16_t)head[0]);
        for (uint32_t j = gpu_lane() / 16; j < n; j += 2) {
            const uint32_t code = (head[1] >> 4 * j & 15) | (head[0] >> (16 + 2 * j) & 3) << 4;
            scales[j * GPU_TILE_ROWS + gpu_scale_row()] = d * (float)((int)code - 32);
        }
    }
};

/* ---- blocks of 256 columns, a scale for 16 ---------------------------------------------------
 * Half a block at a time: four times 32 columns, which are bits of the same 32 bytes. Unit u has
 * columns 32 * (u / 2) + 16 * (u % 2) and following. */

template <unsigned CODES> struct gpu_k236 {
    enum : uint32_t {
        group = 16,
        n = 8,
        has_bias = CODES == QUANT_CODES_Q2_K,
        is_three = CODES == QUANT_CODES_Q3_K,
        is_six = CODES == QUANT_CODES_Q6_K,
        bytes = has_bias ? 84 : is_three ? 110 : 210,
        n_low = is_six ? 4 : 2, /* words of the lower bits */
    };
    uint32_t low[2][n_low], high[2][2];
    uint32_t half;           /* of the block */
    uint32_t scales, factor; /* of four groups; halves */

    GPU_METHOD void read(const struct gpu_weight &w, uint32_t row, uint32_t end, uint32_t g)
    {
        const uint32_t low_at = has_bias ? 16 : is_three ? 32 : 0;
        if (g >= w.n_cols / 16)
            return;
        half = g / n % 2;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            const uint8_t *at = gpu_row_at(w, row + gpu_lane() / 4 * 2 + i, end) +
                                (uint64_t)(g / 16) * bytes + gpu_lane() % 4 * 4;
            const uint8_t *above = at + (is_six ? 128 + 32 * half : 0);
            GPU_UNROLL
            for (uint32_t k = 0; k < n_low; k++)
                low[i][k] = gpu_load_any(at + low_at + n_low * 16 * half + 16 * k);
            GPU_UNROLL
            for (uint32_t k = 0; k < 2 && !has_bias; k++)
                high[i][k] = gpu_load_any(above + 16 * k);
        }
        const uint8_t *block =
            gpu_row_at(w, row + gpu_scale_row(), end) + (uint64_t)(g / 16) * bytes;
        const uint32_t first = 8 * half + gpu_lane() / 16 * 4;
        factor = has_bias ? gpu_load_any(block + 80) : codes_u16(block + bytes - 2);
        scales = is_three ? three_scales(block + 96, first)
                          : gpu_load_any(block + (is_six ? 192 : 0) + first);
    }

    /* Four scales of q3_k, a byte each. */
    GPU_METHOD static uint32_t three_scales(const uint8_t *packed, uint32_t first)
    {
        uint32_t four = 0;
        for (uint32_t k = 0; k < 4; k++)
            four |= (uint32_t)(uint8_t)codes_q3_k_scale(packed, first + k) << 8 * k;
        return four;
    }

    GPU_METHOD void codes(uint32_t unit, uint32_t a[4]) const
    {
        const uint32_t j = unit / 2, part = unit % 2;
        GPU_UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            if (is_six)
                a[i] = (low[i][(j % 2 * 2 + part) % n_low] >> j / 2 * 4 & GPU_NIBBLES) |
                       (high[i][part] >> 2 * j & 0x03030303u) << 4;
            else
                a[i] = low[i][part] >> 2 * j & 0x03030303u;
            if (is_three)
                a[i] |= (high[i][part] >> (4 * half + j) & 0x01010101u) << 2;
        }
    }

    GPU_METHOD static struct gpu_pair columns(const int8_t *q, uint32_t l)
    {
        return {gpu_load_word(q + l % 4 * 4), 0};
    }

    GPU_METHOD void put_scales(const struct gpu_weight &, gpu_shared<float> to_scales,
                               gpu_shared<float> biases) const
    {
        const float d = gpu_f16_to_f32((uint16_t)factor);
        GPU_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t to = (gpu_lane() / 16 * 4 + k) * GPU_TILE_ROWS + gpu_scale_row();
            const uint32_t code = scales >> 8 * k & 0xff;
            if (has_bias) {
                to_scales[to] = d * (float)(code & 15);
                biases[to] = -(gpu_f16_to_f32((uint16_t)(factor >> 16)) * (float)(code >> 4));
            } else {
                to_scales[to] = d * (float)(int8_t)code;
            }
        }
    }
};

/* ---- choosing -------------------------------------------------------------------------------- */

#define GPU_READER_GROUPS(columns, group) ((columns) / (group) < 8 ? (columns) / (group) : 8)

/* Calls work.run<reader> with the reader of an affine format. */
template <uint32_t COLUMNS, uint32_t GROUP, class work_type>
GPU_FN void gpu_with_affine(const struct gpu_weight &w, const work_type &work)
{
    constexpr uint32_t n = GPU_READER_GROUPS(COLUMNS, GROUP);
    constexpr uint32_t n_wide = GPU_READER_GROUPS(COLUMNS / 2, GROUP);
    if (!w.is_interleaved)
        work.template run<gpu_affine_rows<GROUP, n, true>>();
    else if (w.format.bits == 4)
        work.template run<gpu_affine4<GROUP, n, true>>();
    else
        work.template run<gpu_affine8<GROUP, n_wide>>();
}

/* The same for codes of four bits without biases. */
template <uint32_t COLUMNS, class work_type>
GPU_FN void gpu_with_int4(const struct gpu_weight &w, const work_type &work)
{
    constexpr uint32_t n = GPU_READER_GROUPS(COLUMNS, 32);
    if (w.is_interleaved)
        work.template run<gpu_affine4<32, n, false>>();
    else
        work.template run<gpu_affine_rows<32, n, false>>();
}

/* The same for MXFP4 in two parts. */
template <uint32_t COLUMNS, class work_type>
GPU_FN void gpu_with_fp4(const struct gpu_weight &w, const work_type &work)
{
    constexpr uint32_t n = GPU_READER_GROUPS(COLUMNS, 32);
    if (w.is_interleaved)
        work.template run<gpu_fp4<n>>();
    else
        work.template run<gpu_fp4_rows<n>>();
}

/* The same for any format of codes. Affine readers have at most COLUMNS columns, half as many with
 * codes of eight bits side by side. */
template <uint32_t COLUMNS, class work_type>
GPU_FN void gpu_with_reader(const struct gpu_weight &w, const work_type &work)
{
    switch (w.format.codes) {
    case QUANT_CODES_Q8_0: work.template run<gpu_q8_0>(); break;
    case QUANT_CODES_Q4_0: work.template run<gpu_fours<QUANT_CODES_Q4_0>>(); break;
    case QUANT_CODES_Q4_1: work.template run<gpu_fours<QUANT_CODES_Q4_1>>(); break;
    case QUANT_CODES_Q5_0: work.template run<gpu_fours<QUANT_CODES_Q5_0>>(); break;
    case QUANT_CODES_Q5_1: work.template run<gpu_fours<QUANT_CODES_Q5_1>>(); break;
    case QUANT_CODES_MXFP4: work.template run<gpu_fours<QUANT_CODES_MXFP4>>(); break;
    case QUANT_CODES_FP4: gpu_with_fp4<COLUMNS>(w, work); break;
    case QUANT_CODES_IQ4_NL: work.template run<gpu_fours<QUANT_CODES_IQ4_NL>>(); break;
    case QUANT_CODES_Q2_K: work.template run<gpu_k236<QUANT_CODES_Q2_K>>(); break;
    case QUANT_CODES_Q3_K: work.template run<gpu_k236<QUANT_CODES_Q3_K>>(); break;
    case QUANT_CODES_Q6_K: work.template run<gpu_k236<QUANT_CODES_Q6_K>>(); break;
    case QUANT_CODES_Q4_K: work.template run<gpu_k45<QUANT_CODES_Q4_K>>(); break;
    case QUANT_CODES_Q5_K: work.template run<gpu_k45<QUANT_CODES_Q5_K>>(); break;
    case QUANT_CODES_IQ4_XS: work.template run<gpu_iq4_xs>(); break;
    default:
        if (!w.format.has_bias)
            gpu_with_int4<COLUMNS>(w, work);
        else if (w.format.group == 32)
            gpu_with_affine<COLUMNS, 32>(w, work);
        else if (w.format.group == 64)
            gpu_with_affine<COLUMNS, 64>(w, work);
        else
            gpu_with_affine<COLUMNS, 128>(w, work);
    }
}

/* Adds a unit of a reader to a tile. */
template <class reader>
GPU_FN void gpu_add_unit(const reader &r, uint32_t unit, struct gpu_pair columns, int32_t c[4])
{
    uint32_t a[4];
    r.codes(unit, a);
    if (reader::group == 16)
        gpu_tile_16(c, a, columns.low);
    else
        gpu_tile_32(c, a, columns);
}

#endif
