/* Products of weights with rows, and what rows need before them. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_PRODUCTS_H
#define FLASHMOE_BACKEND_CUDA_K_PRODUCTS_H

/* ---- rounding to int8 ------------------------------------------------------------------------ */

#define GPU_MAX_GROUP 128u
#define GPU_GROUP_VALUES (GPU_MAX_GROUP / GPU_WARP) /* of a group, in one thread */

/* Where a rounded group goes. */
struct gpu_rounded {
    int8_t *q;
    float *scale, *offset;
    int32_t *sum;
};

/* Rounds a group; element i lies in x[i / 32] of lane i % 32. The largest magnitude decides, a NaN
 * above all. A warp calls it. */
GPU_FN void gpu_round_group(const float x[GPU_GROUP_VALUES], uint32_t group,
                            const struct gpu_rounded &to)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the integer */
    uint32_t max_bits = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_GROUP_VALUES; j++) {
        const uint32_t bits = fmath_bits_of_float(x[j]) & 0x7fffffffu;
        if (j * GPU_WARP + gpu_lane() < group)
            max_bits = bits > max_bits ? bits : max_bits;
    }
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const uint32_t other = gpu_shuffle_xor(max_bits, mask);
        max_bits = other > max_bits ? other : max_bits;
    }
    const float max = fmath_float_of_bits(max_bits);
    const bool is_zero = max < GPU_MIN_SCALED;
    const float inverse = is_zero ? 0 : 127.0f / max;
    int32_t total = 0;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_GROUP_VALUES; j++) {
        const uint32_t i = j * GPU_WARP + gpu_lane();
        const uint32_t bits = fmath_bits_of_float(fmaf(x[j], inverse, magic));
        const int8_t q = max_bits < GPU_INFINITY_BITS ? (int8_t)(uint8_t)bits : 0;
        if (i < group) {
            to.q[i] = q;
            total += q;
        }
    }
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2)
        total += gpu_shuffle_xor(total, mask);
    if (gpu_lane() == 0) {
        const float scale = is_zero ? 0 : max / 127.0f;
        *to.scale = scale;
        *to.offset = scale * (float)total;
        *to.sum = total;
    }
}

GPU_KERNEL void gpu_quantize(const struct gpu_quantize_args a)
{
    const uint64_t g = (uint64_t)gpu_block_x() * GPU_QUANTIZE_WARPS + gpu_warp();
    float x[GPU_GROUP_VALUES] = {0};
    gpu_wait();
    if (g >= a.n_groups)
        return;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_GROUP_VALUES; j++)
        if (j * GPU_WARP + gpu_lane() < a.group)
            x[j] = a.x[g * a.group + j * GPU_WARP + gpu_lane()];
    gpu_round_group(x, a.group, {a.q + g * a.group, a.scale + g, a.offset + g, a.sum + g});
}

GPU_FN float gpu_activation(const struct activation &a, float gate, float up)
{
    if (a.kind == ACTIVATION_SILU)
        return fmath_silu(gate) * up;
    if (a.kind == ACTIVATION_GELU)
        return fmath_gelu(gate) * up;
    const float g = gate > a.limit ? a.limit : gate;
    const float u = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
    return g / (1.0f + fmath_exp(-(g * a.alpha))) * (u + 1.0f);
}

/* A warp takes a group, or 32 columns where nothing is rounded. */
GPU_KERNEL void gpu_activate(const struct gpu_activate_args a)
{
    const uint32_t unit = a.group > 0 ? a.group : GPU_WARP;
    const uint32_t first = (gpu_block_y() * GPU_QUANTIZE_WARPS + gpu_warp()) * unit;
    const size_t at = (size_t)gpu_block_x() * a.width + first;
    float x[GPU_GROUP_VALUES] = {0};
    gpu_wait();
    if (first >= a.width)
        return;
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_GROUP_VALUES; j++) {
        const uint32_t i = j * GPU_WARP + gpu_lane();
        if (i < unit && first + i < a.width)
            a.gate[at + i] = x[j] = gpu_activation(a.activation, a.gate[at + i], a.up[at + i]);
    }
    if (a.group == 0)
        return;
    const size_t g = at / a.group;
    gpu_round_group(x, a.group, {a.q + at, a.scale + g, a.offset + g, a.sum + g});
}

/* ---- reading weights ------------------------------------------------------------------------- */

GPU_FN const uint8_t *gpu_part_row(const struct gpu_weight &w, unsigned part, uint32_t r)
{
    const uint64_t row_bytes =
        (uint64_t)(w.n_cols / w.format.block) * w.format.part_block_bytes[part];
    return w.parts[part] + r / w.format.part_rows[part] * row_bytes;
}

GPU_FN float gpu_plain_value(unsigned plain, const uint8_t *at)
{
    if (plain == GPU_PLAIN_F32)
        return fmath_float_of_bits(codes_u32(at));
    return plain == GPU_PLAIN_F16 ? gpu_f16_to_f32((uint16_t)codes_u16(at))
                                  : gpu_bf16_to_f32((uint16_t)codes_u16(at));
}

/* One group of a row: codes, a byte each, and what they are multiplied with. */
struct gpu_codes {
    uint32_t words[GPU_MAX_GROUP / 4];
    float scale, bias;
};

/* Scale or bias of group g of a row of an affine format. */
GPU_FN float gpu_affine_scale(const struct gpu_weight &w, unsigned part, uint32_t r, uint32_t g)
{
    const uint32_t n_groups = w.n_cols / w.format.group;
    const uint64_t at = w.is_interleaved
                            ? (uint64_t)(r / 16) * 16 * n_groups + g * 16ull + r % 16
                            : (uint64_t)r * n_groups + g;
    return gpu_plain_value(w.format.scale, w.parts[part] + 2 * at);
}

/* Spreads eight codes of four bits over two words, in the order of the columns. */
GPU_FN void gpu_spread_nibbles(uint32_t packed, uint32_t to[2])
{
    const uint32_t low = packed & 0x0f0f0f0fu, high = packed >> 4 & 0x0f0f0f0fu;
    to[0] = (low & 0xffu) | (high & 0xffu) << 8 | (low >> 8 & 0xffu) << 16 |
            (high >> 8 & 0xffu) << 24;
    to[1] = (low >> 16 & 0xffu) | (high >> 16 & 0xffu) << 8 | (low >> 24) << 16 |
            (high >> 24) << 24;
}

GPU_FN void gpu_load_affine(const struct gpu_weight &w, uint32_t r, uint32_t g,
                            struct gpu_codes *to)
{
    const uint32_t bits = w.format.bits, group = w.format.group;
    const uint32_t group_bytes = group * bits / 8;
    const uint64_t row_bytes = (uint64_t)w.n_cols * bits / 8;
    to->scale = gpu_affine_scale(w, 1, r, g);
    to->bias = w.format.has_bias ? gpu_affine_scale(w, 2, r, g) : 0;
    if (!w.is_interleaved) {
        uint8_t codes[GPU_MAX_GROUP];
        codes_affine(w.parts[0] + r * row_bytes + (uint64_t)g * group_bytes, bits, codes, group);
        memcpy(to->words, codes, sizeof codes);
        return;
    }
    const uint8_t *at = w.parts[0] + (uint64_t)(r / 16) * 16 * row_bytes +
                        (uint64_t)g * group_bytes * 16 + r % 16 * 4;
    for (uint32_t i = 0; i < group_bytes / 4; i++)
        if (bits == 8)
            to->words[i] = codes_u32(at + 64ull * i);
        else
            gpu_spread_nibbles(codes_u32(at + 64ull * i), to->words + 2 * i);
}

/* MXFP4 in two parts. */
GPU_FN void gpu_load_fp4(const struct gpu_weight &w, uint32_t r, uint32_t g, struct gpu_codes *to)
{
    const uint32_t n_groups = w.n_cols / 32;
    const uint64_t in_order = (uint64_t)r * n_groups + g;
    const uint64_t side_by_side = (uint64_t)(r / 16) * 16 * n_groups + g * 16ull + r % 16;
    uint8_t packed[16], codes[32];
    to->scale = codes_mxfp4_scale(w.parts[1][w.is_interleaved ? side_by_side : in_order]);
    to->bias = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *at = w.is_interleaved
                                ? w.parts[0] + (side_by_side - r % 16) * 16 + i * 64 + r % 16 * 4
                                : w.parts[0] + in_order * 16 + i * 4;
        memcpy(packed + 4 * i, at, 4);
    }
    codes_fp4(packed, codes, 32);
    memcpy(to->words, codes, sizeof codes);
}

#define GPU_MAX_BLOCK 256u

/* Unpacks a whole block, of which the group is a part. */
GPU_FN void gpu_load_block(const struct gpu_weight &w, uint32_t r, uint32_t g,
                           struct gpu_codes *to)
{
    const struct gpu_format &f = w.format;
    const uint32_t in_block = f.block / f.group;
    const uint8_t *src = gpu_part_row(w, 0, r) + (uint64_t)(g / in_block) * f.part_block_bytes[0];
    uint8_t codes[GPU_MAX_BLOCK];
    float scales[16], biases[16] = {0};
    switch (f.codes) {
    case QUANT_CODES_Q8_0: q8_0_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q4_0: q4_0_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q4_1: q4_1_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q5_0: q5_0_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q5_1: q5_1_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q2_K: q2_k_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q3_K: q3_k_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q4_K: q4_k_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q5_K: q5_k_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_Q6_K: q6_k_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_MXFP4: mxfp4_unpack(src, codes, scales, biases, 1); break;
    case QUANT_CODES_IQ4_NL: iq4_nl_unpack(src, codes, scales, biases, 1); break;
    default: iq4_xs_unpack(src, codes, scales, biases, 1); break;
    }
    to->scale = scales[g % in_block];
    to->bias = biases[g % in_block];
    memcpy(to->words, codes + g % in_block * f.group, f.group);
}

GPU_FN void gpu_load_group(const struct gpu_weight &w, uint32_t r, uint32_t g,
                           struct gpu_codes *to)
{
    if (w.format.codes == QUANT_CODES_AFFINE)
        gpu_load_affine(w, r, g, to);
    else if (w.format.codes == QUANT_CODES_FP4)
        gpu_load_fp4(w, r, g, to);
    else
        gpu_load_block(w, r, g, to);
}

/* A value of a format that has one for each column. */
GPU_FN float gpu_value(const struct gpu_weight &w, uint32_t r, uint32_t c)
{
    const struct gpu_format &f = w.format;
    if (f.plain != GPU_PLAIN_FP8)
        return gpu_plain_value(f.plain, gpu_part_row(w, 0, r) + (uint64_t)c * (f.bits / 8));
    if (f.part_block_bytes[1] == 0) /* codes alone */
        return codes_e4m3(gpu_part_row(w, 0, r)[c]);
    const uint8_t *scale = gpu_part_row(w, 1, r) + (uint64_t)(c / f.block) * f.part_block_bytes[1];
    return codes_e4m3(gpu_part_row(w, 0, r)[c]) * gpu_plain_value(f.scale, scale);
}

/* Block b of a row in a format without codes whose columns only exist together. */
GPU_FN void gpu_decode_block(const struct gpu_weight &w, uint32_t r, uint32_t b,
                             float to[GPU_MAX_BLOCK])
{
    const uint8_t *src = gpu_part_row(w, 0, r) + (uint64_t)b * w.format.part_block_bytes[0];
    switch (w.format.plain) {
    case GPU_PLAIN_IQ1_M: iq1_m_decode_block(src, to); break;
    case GPU_PLAIN_IQ1_S: iq1_s_decode_block(src, to); break;
    case GPU_PLAIN_IQ2_S: iq2_s_decode_block(src, to); break;
    case GPU_PLAIN_IQ2_XS: iq2_xs_decode_block(src, to); break;
    case GPU_PLAIN_IQ2_XXS: iq2_xxs_decode_block(src, to); break;
    case GPU_PLAIN_IQ3_S: iq3_s_decode_block(src, to); break;
    case GPU_PLAIN_IQ3_XXS: iq3_xxs_decode_block(src, to); break;
    case GPU_PLAIN_TQ1_0: tq1_0_decode_block(src, to); break;
    default: tq2_0_decode_block(src, to); break;
    }
}

GPU_FN bool gpu_has_blocks(const struct gpu_weight &w)
{
    return w.format.codes == QUANT_NO_CODES && w.format.plain >= GPU_PLAIN_IQ1_M;
}

/* Whether eight columns of an affine row are whole words. */
GPU_FN bool gpu_has_words(const struct gpu_weight &w)
{
    return w.format.codes == QUANT_CODES_AFFINE && (w.format.bits == 4 || w.format.bits == 8) &&
           w.n_cols % 8 == 0 && w.format.group % 8 == 0 && (uintptr_t)w.parts[0] % 4 == 0;
}

/* Eight columns of row r, from c on, of such a row. */
GPU_FN void gpu_embed_words(const struct gpu_weight &w, uint32_t r, uint32_t c, float *x)
{
    const uint32_t bits = w.format.bits, g = c / w.format.group, n_words = bits / 4;
    const uint64_t row_bytes = (uint64_t)w.n_cols * bits / 8;
    const uint8_t *at = w.is_interleaved ? w.parts[0] + r / 16 * 16 * row_bytes +
                                               (uint64_t)c * bits / 32 * 64 + r % 16 * 4
                                         : w.parts[0] + r * row_bytes + c * bits / 8;
    const uint32_t first = gpu_load_word(at);
    const uint32_t second = n_words == 2 ? gpu_load_word(at + (w.is_interleaved ? 64 : 4)) : 0;
    const float scale = gpu_affine_scale(w, 1, r, g);
    const float bias = w.format.has_bias ? gpu_affine_scale(w, 2, r, g) : 0;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t code = n_words == 1 ? first >> 4 * i & 0xfu
                                           : (i < 4 ? first : second) >> i % 4 * 8 & 0xffu;
        const float value = scale * (float)((int)code - (int)w.format.zero);
        x[c + i] = w.format.has_bias ? value + bias : value;
    }
}

GPU_KERNEL void gpu_embed(const struct gpu_embed_args a)
{
    gpu_read_args(a);
    gpu_wait();
    const uint32_t r = (uint32_t)a.tokens[gpu_block_x()], n = a.w.n_cols;
    float *x = a.x + (size_t)gpu_block_x() * n;
    if (gpu_has_words(a.w)) {
        for (uint32_t c = gpu_thread() * 8; c < n; c += gpu_n_threads() * 8)
            gpu_embed_words(a.w, r, c, x);
    } else if (a.w.format.codes != QUANT_NO_CODES) {
        /* A thread has sixteen columns of a group. */
        const uint32_t group = a.w.format.group;
        for (uint32_t c = gpu_thread() * 16; c < n; c += gpu_n_threads() * 16) {
            struct gpu_codes codes;
            gpu_load_group(a.w, r, c / group, &codes);
            for (uint32_t i = c % group; i < c % group + 16; i++) {
                const int code = (int)(codes.words[i / 4] >> i % 4 * 8 & 0xffu);
                const float value = codes.scale * (float)(code - (int)a.w.format.zero);
                x[c / group * group + i] = a.w.format.has_bias ? value + codes.bias : value;
            }
        }
    } else if (gpu_has_blocks(a.w)) {
        for (uint32_t b = gpu_thread(); b < n / GPU_MAX_BLOCK; b += gpu_n_threads())
            gpu_decode_block(a.w, r, b, x + (size_t)b * GPU_MAX_BLOCK);
    } else {
        for (uint32_t i = gpu_thread(); i < n; i += gpu_n_threads())
            x[i] = gpu_value(a.w, r, i);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* What one block computes: rows [first, end) of a weight against inputs [t, t + n). */
struct gpu_tile {
    uint32_t first, end, t, n;
};

GPU_FN size_t gpu_input_row(const struct gpu_product &p, uint32_t t)
{
    return p.pick != NULL ? p.pick[t] : t;
}

/* Returns what it wrote. */
GPU_FN float gpu_write(const struct gpu_product &p, uint32_t t, uint32_t r, float value)
{
    const size_t place = p.place != NULL ? p.place[t] : t;
    const float whole = p.bias != NULL ? value + p.bias[r] : value;
    p.y[place * p.y_stride + (r - p.y_first)] = whole;
    return whole;
}

/* The product that this block belongs to, and which part of it. */
struct gpu_work {
    struct gpu_product p;
    struct gpu_tile tile;
};

/* The last product whose blocks begin at this one or before; a warp looks at 32 at a time. */
GPU_FN uint32_t gpu_find_product(const struct gpu_products &list, enum gpu_matmul_kind kind)
{
    uint32_t first = 0, step = 1;
    if (list.n == 1)
        return 0;
    while (step * GPU_WARP < list.n)
        step *= GPU_WARP;
    for (; step > 0; step /= GPU_WARP) {
        const uint32_t i = first + gpu_lane() * step;
        const bool is_before = i < list.n &&
                               list.products[i].first_block[kind] <= gpu_block_x();
        first += (gpu_count(is_before) - 1) * step;
    }
    return first;
}

/* block / n_across, without a division where that is exact. */
GPU_FN uint32_t gpu_over_across(const struct gpu_product &p, uint32_t block)
{
    if (p.n_across == 1)
        return block;
    return block < 0x10000 && p.n_across < 0x10000
               ? (uint32_t)((uint64_t)block * p.over_across >> 32) : block / p.n_across;
}

/* The part of a product that is this block's. Before the launches ahead have ended: the addresses
 * are not those of a chosen expert yet. */
GPU_FN struct gpu_work gpu_take_tile(const struct gpu_product &p, enum gpu_matmul_kind kind)
{
    const uint32_t block = gpu_block_x() - p.first_block[kind];
    const uint32_t down = p.n > p.tile.inputs ? gpu_over_across(p, block) : 0;
    const uint32_t first = p.begin + (block - down * p.n_across) * p.tile.rows;
    const uint32_t end = first + p.tile.rows < p.end ? first + p.tile.rows : p.end;
    const uint32_t t = down * p.tile.inputs;
    return {p, {first, end, t, p.n - t < p.tile.inputs ? p.n - t : p.tile.inputs}};
}

GPU_FN struct gpu_work gpu_find_tile(const struct gpu_products &list, enum gpu_matmul_kind kind)
{
    return gpu_take_tile(list.products[gpu_find_product(list, kind)], kind);
}

/* The weight is that of this expert, which begins there. */
GPU_FN void gpu_use_expert(struct gpu_product &p, uint32_t id, uint64_t base)
{
    for (unsigned i = 0; i < QUANT_MAX_PARTS; i++)
        p.w.parts[i] += base;
    if (p.bias != NULL)
        p.bias += (size_t)id * p.w.n_rows;
}

/* Finds the expert that the router chose, if it did; the launches ahead have ended. */
GPU_FN void gpu_find_expert(struct gpu_work &work)
{
    if (work.p.bases == NULL)
        return;
    const uint32_t id = work.p.id[work.tile.t];
    gpu_use_expert(work.p, id, work.p.bases[id]);
}

GPU_FN struct gpu_work gpu_find_work(const struct gpu_products &list, enum gpu_matmul_kind kind)
{
    struct gpu_work work = gpu_find_tile(list, kind);
    gpu_wait();
    gpu_find_expert(work);
    return work;
}

#endif
