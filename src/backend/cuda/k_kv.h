/* Keys and values as they are stored. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_KV_H
#define FLASHMOE_BACKEND_CUDA_K_KV_H

/* ---- rows of keys and values ----------------------------------------------------------------- */

GPU_FN uint64_t gpu_kv_row_bytes(const struct gpu_kv_format &kv, uint32_t dim)
{
    return kv.plain == GPU_PLAIN_F32   ? dim * 4ull
           : kv.plain == GPU_PLAIN_F16 ? dim * 2ull
                                       : dim * kv.bits / 8 + 2ull;
}

GPU_FN unsigned gpu_kv_code(unsigned bits, const uint8_t *from, unsigned j)
{
    if (bits == 4)
        return from[j % 8] >> 4 * (j / 8) & 15;
    const unsigned low = from[j % 4] >> 2 * (j / 4) & 3;
    return bits == 2 ? low : low | (from[4 + j / 8] >> j % 8 & 1u) << 2;
}

/* Element i of a row, without its scale. */
GPU_FN float gpu_kv_value(const struct gpu_kv_format &kv, const uint8_t *row, uint32_t i)
{
    if (kv.plain == GPU_PLAIN_F32)
        return ((const float *)row)[i];
    if (kv.plain == GPU_PLAIN_F16)
        return gpu_f16_to_f32(((const uint16_t *)row)[i]);
    if (kv.bits == 8)
        return (float)(int8_t)row[i];
    const uint8_t *group = row + (size_t)(i / KV_GROUP) * 2 * kv.bits;
    return (float)kv.levels[gpu_kv_code(kv.bits, group, i % KV_GROUP)];
}

GPU_FN float gpu_kv_scale(const struct gpu_kv_format &kv, const uint8_t *row, uint32_t dim)
{
    if (kv.plain != GPU_PLAIN_NONE)
        return 1;
    const uint8_t *at = row + dim * kv.bits / 8;
    return gpu_f16_to_f32((uint16_t)(at[0] | at[1] << 8)) * (1.0f / KV_SCALE);
}

/* H D x, or its inverse D H x, in shared memory. The block meets before and afterwards. */
GPU_FN void gpu_rotate(gpu_shared<float> x, uint32_t dim, bool is_back)
{
    const uint32_t block = dim & (~dim + 1);
    const float norm = 1.0f / sqrtf((float)block);
    gpu_barrier();
    for (uint32_t i = gpu_thread(); !is_back && i < dim; i += gpu_n_threads())
        x[i] = fmath_float_of_bits(fmath_bits_of_float(x[i]) ^ kv_sign(i));
    for (uint32_t half = 1; half < block; half *= 2) {
        gpu_barrier();
        for (uint32_t p = gpu_thread(); p < dim / 2; p += gpu_n_threads()) {
            const uint32_t i = p / half * 2 * half + p % half;
            const float a = x[i], b = x[i + half];
            x[i] = a + b;
            x[i + half] = a - b;
        }
    }
    gpu_barrier();
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads()) {
        const float scaled = x[i] * norm;
        x[i] = is_back ? fmath_float_of_bits(fmath_bits_of_float(scaled) ^ kv_sign(i)) : scaled;
    }
    gpu_barrier();
}

/* What the threads that store a row share. */
struct gpu_store_shared {
    gpu_shared<float> y;       /* [GPU_MAX_HEAD_DIM] */
    gpu_shared<uint8_t> codes; /* [GPU_MAX_HEAD_DIM] */
    gpu_shared<float> sum;
};

GPU_FN uint16_t gpu_scale_bits(float scale)
{
    return scale == scale ? gpu_f32_to_f16(scale * KV_SCALE) : (uint16_t)0x7e00u;
}

/* Levels of eight bits, straight into the row. Returns the scale to thread 0. */
GPU_FN uint16_t gpu_store_bytes(const gpu_store_shared &s, uint32_t dim, uint8_t *to)
{
    const float magic = 12582912.0f;
    uint32_t max_bits = 0;
    for (uint32_t i = gpu_lane(); i < dim; i += GPU_WARP) {
        const uint32_t bits = fmath_bits_of_float(s.y[i]) & 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const uint32_t other = gpu_shuffle_xor(max_bits, mask);
        max_bits = other > max_bits ? other : max_bits;
    }
    const uint16_t scale = gpu_scale_bits(fmath_float_of_bits(max_bits) / 127.0f);
    const float kept = gpu_f16_to_f32(scale) * (1.0f / KV_SCALE);
    const float inverse = kept > 0 ? 1.0f / kept : 0;
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads()) {
        float z = s.y[i] * inverse;
        z = z > 127.0f ? 127.0f : z;
        z = z > -127.0f ? z : -127.0f;
        to[i] = (uint8_t)(int8_t)((z + magic) - magic);
    }
    return scale;
}

/* A group of 16 codes, packed. */
GPU_FN void gpu_pack_group(unsigned bits, gpu_shared<uint8_t> codes, uint8_t *to)
{
    if (bits == 4) {
        for (unsigned j = 0; j < 8; j++)
            to[j] = (uint8_t)(codes[j] | codes[j + 8] << 4);
        return;
    }
    for (unsigned j = 0; j < 4; j++)
        to[j] = (uint8_t)((codes[j] & 3) | (codes[j + 4] & 3) << 2 | (codes[j + 8] & 3) << 4 |
                          (codes[j + 12] & 3) << 6);
    for (unsigned b = 0; bits == 3 && b < 2; b++) {
        unsigned high = 0;
        for (unsigned j = 0; j < 8; j++)
            high |= (unsigned)(codes[8 * b + j] >> 2) << j;
        to[4 + b] = (uint8_t)high;
    }
}

/* Levels of a codebook. Returns the scale to thread 0. */
GPU_FN uint16_t gpu_store_codes(const struct gpu_kv_format &kv, unsigned side,
                                const gpu_store_shared &s, uint32_t dim, uint8_t *to)
{
    const unsigned n_levels = 1u << kv.bits;
    float lane = 0;
    for (uint32_t i = gpu_thread(); gpu_thread() < GPU_LANES && i < dim; i += GPU_LANES)
        lane += s.y[i] * s.y[i];
    const float squares = gpu_sum_block(lane, s.sum);
    const float deviation = sqrtf(squares / (float)dim) * kv.unit;
    const float inverse = deviation > 0 ? 1.0f / deviation : 0;
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads()) {
        unsigned code = 0;
        for (unsigned k = 1; k < n_levels; k++)
            code += s.y[i] * inverse > 0.5f * (float)(kv.levels[k - 1] + kv.levels[k]);
        s.codes[i] = (uint8_t)code;
    }
    gpu_barrier();
    for (uint32_t g = gpu_thread(); g < dim / KV_GROUP; g += gpu_n_threads())
        gpu_pack_group(kv.bits, s.codes + g * KV_GROUP, to + (size_t)g * 2 * kv.bits);
    lane = 0;
    for (uint32_t i = gpu_thread(); gpu_thread() < GPU_LANES && i < dim; i += GPU_LANES)
        lane += s.y[i] * (float)kv.levels[s.codes[i]];
    const float along = gpu_sum_block(lane, s.sum);
    int32_t all = 0;
    for (uint32_t i = 0; gpu_thread() == 0 && i < dim; i++)
        all += kv.levels[s.codes[i]] * kv.levels[s.codes[i]];
    if (squares == 0 || along == 0)
        return 0;
    return gpu_scale_bits(side == KV_KEY ? squares / along : along / (float)all);
}

/* Stores a vector as a row; the whole block does it. */
GPU_FN void gpu_store_row(const struct gpu_kv_format &kv, unsigned side, const float *x,
                          uint32_t dim, uint8_t *to, const gpu_store_shared &s)
{
    if (kv.plain != GPU_PLAIN_NONE) {
        for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
            if (kv.plain == GPU_PLAIN_F32)
                ((float *)to)[i] = x[i];
            else
                ((uint16_t *)to)[i] = gpu_f32_to_f16(x[i]);
        return;
    }
    gpu_barrier(); /* the row before has been read */
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
        s.y[i] = x[i];
    gpu_rotate(s.y, dim, false);
    const uint16_t scale = kv.bits == 8 ? gpu_store_bytes(s, dim, to)
                                        : gpu_store_codes(kv, side, s, dim, to);
    if (gpu_thread() == 0) {
        to[dim * kv.bits / 8] = (uint8_t)scale;
        to[dim * kv.bits / 8 + 1] = (uint8_t)(scale >> 8);
    }
}

/* ---- what a row sees ------------------------------------------------------------------------- */

struct gpu_attention_row {
    const struct backend_segment *segment;
    uint32_t position;        /* of the row */
    uint32_t first, n_blocks; /* the first position that it sees; blocks from there on */
};

GPU_FN struct gpu_attention_row gpu_attention_row_of(const struct gpu_attention &a, uint32_t row)
{
    const struct backend_segment *segment = a.segments;
    while (row >= segment->first_row + segment->n_rows)
        segment++;
    const uint32_t position = segment->position + (row - segment->first_row);
    const uint32_t visible = position + 1;
    const uint32_t first = a.window > 0 && visible > a.window ? visible - a.window : 0;
    return {segment, position, first,
            position / GPU_ATTENTION_BLOCK - first / GPU_ATTENTION_BLOCK + 1};
}

/* Where a head's row of a position lies, in keys and in values. */
GPU_FN uint64_t gpu_kv_at(const struct gpu_attention &a, uint32_t kv_head, uint32_t position)
{
    const uint32_t block = position / a.block_positions, rest = position % a.block_positions;
    return block * a.block_bytes + ((uint64_t)kv_head * a.block_positions + rest) *
                                       gpu_kv_row_bytes(a.kv, a.head_dim);
}

/* Stores the key and the value of a head of a row. The block meets. */
GPU_FN void gpu_store_head(const struct gpu_attention &a, uint32_t row, uint32_t kv_head,
                           const struct gpu_store_shared &s)
{
    const uint32_t dim = a.head_dim;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    const uint64_t at = gpu_kv_at(a, kv_head, r.position);
    const size_t from = ((size_t)row * a.n_kv_heads + kv_head) * dim;
    gpu_store_row(a.kv, KV_KEY, a.k + from, dim, (uint8_t *)r.segment->state[ATTENTION_KEYS] + at,
                  s);
    if (!a.keys_have_values)
        gpu_store_row(a.kv, KV_VALUE, a.v + from, dim,
                      (uint8_t *)r.segment->state[ATTENTION_VALUES] + at, s);
}

/* Rotates the queries of a head of a row. The block meets. */
GPU_FN void gpu_rotate_query(const struct gpu_attention &a, uint32_t row, uint32_t head,
                             gpu_shared<float> y)
{
    const uint32_t dim = a.head_dim;
    float *q = a.q + row * a.q_row_stride + head * a.q_head_stride;
    gpu_barrier();
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
        y[i] = q[i];
    gpu_rotate(y, dim, false);
    for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
        q[i] = y[i];
}

GPU_KERNEL void gpu_store_kv(const struct gpu_store_kv_args args)
{
    GPU_SHARED(float, y, GPU_MAX_HEAD_DIM);
    GPU_SHARED(uint8_t, codes, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, sum, 1);
    const struct gpu_attention &a = args.a;
    const uint32_t kv_head = gpu_block_x(), row = a.first_row + gpu_block_y();
    const uint32_t group = a.n_heads / a.n_kv_heads;
    gpu_wait();
    gpu_store_head(a, row, kv_head, {y, codes, sum});
    for (uint32_t h = kv_head * group; a.kv.plain == GPU_PLAIN_NONE && h < (kv_head + 1) * group;
         h++)
        gpu_rotate_query(a, row, h, y);
}

GPU_KERNEL_FOR(128, 1) void gpu_place_heads(const struct gpu_place_heads_args args)
{
    GPU_SHARED(float, y, GPU_MAX_HEAD_DIM);
    GPU_SHARED(uint8_t, codes, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, sum, 1);
    const struct gpu_attention &a = args.a;
    const uint32_t head = gpu_block_x(), row = gpu_block_y();
    gpu_read_args(args);
    gpu_wait();
    if (head >= a.n_heads) {
        gpu_place_head(args.k, row, head - a.n_heads, y, sum);
        gpu_barrier();
        gpu_store_head(a, row, head - a.n_heads, {y, codes, sum});
        return;
    }
    gpu_place_head(args.q, row, head, y, sum);
    if (a.kv.plain == GPU_PLAIN_NONE)
        gpu_rotate_query(a, row, head, y);
}

#endif
