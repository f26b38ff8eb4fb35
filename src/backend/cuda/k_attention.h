/* Attention: keys and values are stored, blocks of 256 positions give partial results, and these
 * are merged in order. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ATTENTION_H
#define FLASHMOE_BACKEND_CUDA_K_ATTENTION_H

/* Query heads whose scores lie in shared memory at a time; a warp reduces each. */
#define GPU_ATTEND_HEADS 8u
#define GPU_ATTEND_THREADS (GPU_ATTEND_HEADS * GPU_WARP)

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

GPU_KERNEL void gpu_store_kv(const struct gpu_store_kv_args args)
{
    GPU_SHARED(float, y, GPU_MAX_HEAD_DIM);
    GPU_SHARED(uint8_t, codes, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, sum, 1);
    const struct gpu_store_shared s = {y, codes, sum};
    const struct gpu_attention &a = args.a;
    const uint32_t kv_head = gpu_block_x(), row = a.first_row + gpu_block_y(), dim = a.head_dim;
    const uint32_t group = a.n_heads / a.n_kv_heads;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    const uint64_t at = gpu_kv_at(a, kv_head, r.position);
    const size_t from = ((size_t)row * a.n_kv_heads + kv_head) * dim;
    gpu_store_row(a.kv, KV_KEY, a.k + from, dim, (uint8_t *)r.segment->state[ATTENTION_KEYS] + at,
                  s);
    gpu_store_row(a.kv, KV_VALUE, a.v + from, dim,
                  (uint8_t *)r.segment->state[ATTENTION_VALUES] + at, s);
    for (uint32_t h = kv_head * group; a.kv.plain == GPU_PLAIN_NONE && h < (kv_head + 1) * group;
         h++) {
        float *q = a.q + row * a.q_row_stride + h * a.q_head_stride;
        gpu_barrier();
        for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
            y[i] = q[i];
        gpu_rotate(y, dim, false);
        for (uint32_t i = gpu_thread(); i < dim; i += gpu_n_threads())
            q[i] = y[i];
    }
}

/* ---- one block of positions ------------------------------------------------------------------ */

/* A few query heads against n positions whose keys and values begin there. */
struct gpu_attend_part {
    const float *q; /* head h at h * q_stride */
    uint64_t q_stride;
    const uint8_t *keys, *values;
    uint32_t n, n_heads, dim;
    float scale;
    float *max, *total, *out;
};

/* Scores: a half warp takes a position. */
GPU_FN void gpu_attend_scores(const struct gpu_kv_format &kv, const struct gpu_attend_part &p,
                              gpu_shared<float> scores)
{
    const uint64_t row_bytes = gpu_kv_row_bytes(kv, p.dim);
    const unsigned j = gpu_lane() & 15, n_halves = gpu_n_threads() / GPU_LANES;
    for (uint32_t first = 0; first < p.n; first += n_halves) {
        const uint32_t i = first + gpu_thread() / GPU_LANES;
        const uint8_t *row = p.keys + (i < p.n ? i : 0) * row_bytes;
        const float kept = gpu_kv_scale(kv, row, p.dim);
        for (uint32_t h = 0; h < p.n_heads; h++) {
            float lane = 0;
            for (uint32_t d = j; d < p.dim; d += GPU_LANES)
                lane = fmaf(p.q[h * p.q_stride + d], gpu_kv_value(kv, row, d), lane);
            if (p.dim % GPU_LANES != 0 && j >= p.dim % GPU_LANES)
                lane = fmaf(0.0f, 0.0f, lane);
            const float dot = gpu_sum_half_warp(lane);
            if (j == 0 && i < p.n)
                scores[h * GPU_ATTENTION_BLOCK + i] = dot * kept * p.scale;
        }
    }
}

/* The highest score and the exponentials of one head, by one warp. */
GPU_FN void gpu_attend_exps(const struct gpu_attend_part &p, uint32_t h, gpu_shared<float> scores)
{
    struct gpu_candidate best = {-INFINITY, GPU_NO_CANDIDATE};
    for (uint32_t i = gpu_lane(); i < p.n; i += GPU_WARP) {
        const struct gpu_candidate it = {scores[h * GPU_ATTENTION_BLOCK + i], i};
        best = gpu_is_better(it, best) ? it : best;
    }
    for (unsigned mask = GPU_WARP / 2; mask > 0; mask /= 2) {
        const struct gpu_candidate other = {gpu_shuffle_xor(best.value, mask),
                                            gpu_shuffle_xor(best.index, mask)};
        best = gpu_is_better(other, best) ? other : best;
    }
    for (uint32_t i = gpu_lane(); i < p.n; i += GPU_WARP)
        scores[h * GPU_ATTENTION_BLOCK + i] =
            fmath_exp(scores[h * GPU_ATTENTION_BLOCK + i] - best.value);
    gpu_warp_barrier();
    float lane = 0;
    for (uint32_t i = gpu_lane() & 15; i < p.n; i += GPU_LANES)
        lane += scores[h * GPU_ATTENTION_BLOCK + i];
    const float total = gpu_sum_half_warp(lane);
    if (gpu_lane() == 0) {
        p.max[h] = best.value;
        p.total[h] = total;
    }
}

/* The weighted values: a thread takes a dimension. */
GPU_FN void gpu_attend_values(const struct gpu_kv_format &kv, const struct gpu_attend_part &p,
                              gpu_shared<float> scores, gpu_shared<float> kept)
{
    const uint64_t row_bytes = gpu_kv_row_bytes(kv, p.dim);
    for (uint32_t d = gpu_thread(); d < p.dim; d += gpu_n_threads()) {
        float sum[GPU_ATTEND_HEADS] = {0};
        for (uint32_t i = 0; i < p.n; i++) {
            const float value = gpu_kv_value(kv, p.values + i * row_bytes, d);
            GPU_UNROLL
            for (uint32_t h = 0; h < GPU_ATTEND_HEADS; h++)
                if (h < p.n_heads)
                    sum[h] = fmaf(scores[h * GPU_ATTENTION_BLOCK + i] * kept[i], value, sum[h]);
        }
        GPU_UNROLL
        for (uint32_t h = 0; h < GPU_ATTEND_HEADS; h++)
            if (h < p.n_heads)
                p.out[(size_t)h * p.dim + d] = sum[h];
    }
}

/* ---- the same for keys and values in f16, in heads up to 256 --------------------------------- */

#define GPU_HALVES_DIM 256u
#define GPU_HALVES_STEPS (GPU_HALVES_DIM / GPU_LANES)
/* Positions whose values lie in shared memory at a time, two in a float. */
#define GPU_VALUES_ROWS 64u
#define GPU_VALUES_WORDS (GPU_HALVES_DIM / 2)

/* Sixteen bytes are read at a time. */
GPU_FN bool gpu_has_halves(const struct gpu_kv_format &kv, const struct gpu_attend_part &p)
{
    return kv.plain == GPU_PLAIN_F16 && p.dim <= GPU_HALVES_DIM && p.dim % GPU_LANES == 0 &&
           ((uintptr_t)p.keys | (uintptr_t)p.values) % sizeof(gpu_quad) == 0;
}

GPU_FN float gpu_low_half(float word)
{
    return gpu_f16_to_f32((uint16_t)fmath_bits_of_float(word));
}

GPU_FN float gpu_high_half(float word)
{
    return gpu_f16_to_f32((uint16_t)(fmath_bits_of_float(word) >> 16));
}

/* Lanes 8 u to 8 u + 7 of the product of a head's query with a key, then of all lanes. */
GPU_FN float gpu_dot_halves(gpu_shared<float> q, const gpu_quad key[GPU_HALVES_STEPS],
                            uint32_t dim, unsigned u)
{
    float lane[8] = {0};
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_HALVES_STEPS; m++) {
        if (m * GPU_LANES >= dim)
            break;
        const gpu_quad low = gpu_take_quad(q, m * GPU_LANES + 8 * u);
        const gpu_quad high = gpu_take_quad(q, m * GPU_LANES + 8 * u + 4);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            const gpu_quad &four = e < 2 ? low : high;
            lane[2 * e] = fmaf(four.x[2 * e % 4], gpu_low_half(key[m].x[e]), lane[2 * e]);
            lane[2 * e + 1] =
                fmaf(four.x[2 * e % 4 + 1], gpu_high_half(key[m].x[e]), lane[2 * e + 1]);
        }
    }
    GPU_UNROLL
    for (unsigned e = 0; e < 8; e++)
        lane[e] += gpu_shuffle_xor(lane[e], 1);
    GPU_UNROLL
    for (unsigned width = 4; width > 0; width /= 2)
        GPU_UNROLL
        for (unsigned e = 0; e < width; e++)
            lane[e] += lane[e + width];
    return lane[0];
}

/* Scores: two threads have the key of a position in registers. */
GPU_FN void gpu_scores_of_halves(const struct gpu_attend_part &p, gpu_shared<float> scores,
                                 gpu_shared<float> q)
{
    const unsigned u = gpu_thread() % 2, n_pairs = gpu_n_threads() / 2;
    for (uint32_t i = gpu_thread(); i < p.n_heads * p.dim; i += gpu_n_threads())
        q[i] = p.q[i / p.dim * p.q_stride + i % p.dim];
    gpu_barrier();
    for (uint32_t first = 0; first < p.n; first += n_pairs) {
        const uint32_t i = first + gpu_thread() / 2;
        const float *row = (const float *)p.keys + (size_t)(i < p.n ? i : 0) * (p.dim / 2);
        gpu_quad key[GPU_HALVES_STEPS];
        GPU_UNROLL
        for (unsigned m = 0; m < GPU_HALVES_STEPS; m++)
            if (m * GPU_LANES < p.dim)
                key[m] = gpu_load_quad(row + m * (GPU_LANES / 2) + 4 * u);
        for (uint32_t h = 0; h < p.n_heads; h++) {
            const float dot = gpu_dot_halves(q + h * p.dim, key, p.dim, u);
            if (u == 0 && i < p.n)
                scores[h * GPU_ATTENTION_BLOCK + i] = dot * p.scale;
        }
    }
}

/* Fetches the values of n positions from `from` on. */
GPU_FN void gpu_fetch_halves(const struct gpu_attend_part &p, uint32_t from, uint32_t n,
                             gpu_shared<float> tile)
{
    const float *values = (const float *)p.values + (size_t)from * (p.dim / 2);
    const uint32_t n_quads = n * (p.dim / 8);
    gpu_quad quads[8];
    for (uint32_t first = gpu_thread(); first < n_quads; first += 8 * gpu_n_threads()) {
        GPU_UNROLL
        for (unsigned e = 0; e < 8; e++)
            if (first + e * gpu_n_threads() < n_quads)
                quads[e] = gpu_load_quad(values + 4 * (size_t)(first + e * gpu_n_threads()));
        GPU_UNROLL
        for (unsigned e = 0; e < 8; e++)
            if (first + e * gpu_n_threads() < n_quads)
                gpu_put_quad(tile, 4 * (size_t)(first + e * gpu_n_threads()), quads[e]);
    }
}

/* The weighted values: a thread takes two dimensions of every n_sets-th head. */
GPU_FN void gpu_values_of_halves(const struct gpu_attend_part &p, gpu_shared<float> scores,
                                 gpu_shared<float> tile)
{
    const uint32_t n_words = p.dim / 2, n_sets = gpu_n_threads() / n_words;
    const uint32_t word = gpu_thread() % n_words, set = gpu_thread() / n_words;
    const unsigned max_heads = GPU_ATTEND_HEADS * GPU_VALUES_WORDS / GPU_ATTEND_THREADS;
    float sum[max_heads][2] = {};
    for (uint32_t from = 0; from < p.n; from += GPU_VALUES_ROWS) {
        const uint32_t n = p.n - from < GPU_VALUES_ROWS ? p.n - from : GPU_VALUES_ROWS;
        gpu_barrier(); /* the tile before has been used */
        gpu_fetch_halves(p, from, n, tile);
        gpu_barrier();
        for (uint32_t i = 0; set < n_sets && i < n; i++) {
            const float two = tile[i * n_words + word];
            GPU_UNROLL
            for (unsigned m = 0; m < max_heads; m++) {
                const uint32_t h = set + m * n_sets;
                if (h >= p.n_heads)
                    break;
                const float share = scores[h * GPU_ATTENTION_BLOCK + from + i];
                sum[m][0] = fmaf(share, gpu_low_half(two), sum[m][0]);
                sum[m][1] = fmaf(share, gpu_high_half(two), sum[m][1]);
            }
        }
    }
    GPU_UNROLL
    for (unsigned m = 0; m < max_heads; m++) {
        const uint32_t h = set + m * n_sets;
        if (set >= n_sets || h >= p.n_heads)
            break;
        p.out[(size_t)h * p.dim + 2 * word] = sum[m][0];
        p.out[(size_t)h * p.dim + 2 * word + 1] = sum[m][1];
    }
}

GPU_KERNEL_FOR(GPU_ATTEND_THREADS, 1) void gpu_attend(const struct gpu_attend_args args)
{
    GPU_SHARED(float, scores, GPU_ATTEND_HEADS * GPU_ATTENTION_BLOCK);
    GPU_SHARED(float, kept, GPU_ATTENTION_BLOCK);
    GPU_SHARED(float, tile, GPU_VALUES_ROWS * GPU_VALUES_WORDS);
    const struct gpu_attention &a = args.a;
    const uint32_t part = gpu_block_x() % args.n_parts, x = gpu_block_x() / args.n_parts;
    const uint32_t kv_head = x % a.n_kv_heads, b = x / a.n_kv_heads;
    const uint32_t row = a.first_row + gpu_block_y(), group = a.n_heads / a.n_kv_heads;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    if (b >= r.n_blocks)
        return;
    const uint32_t block = r.first / GPU_ATTENTION_BLOCK + b;
    const uint32_t begin = block * GPU_ATTENTION_BLOCK, end = begin + GPU_ATTENTION_BLOCK;
    const uint32_t first = r.first > begin ? r.first : begin;
    const uint64_t at = gpu_kv_at(a, kv_head, first);
    struct gpu_attend_part p = {};
    p.q_stride = a.q_head_stride;
    p.keys = (const uint8_t *)r.segment->state[ATTENTION_KEYS] + at;
    p.values = (const uint8_t *)r.segment->state[ATTENTION_VALUES] + at;
    p.n = (r.position + 1 < end ? r.position + 1 : end) - first;
    p.dim = a.head_dim;
    p.scale = a.scale;
    for (uint32_t i = gpu_thread(); i < p.n; i += gpu_n_threads())
        kept[i] = gpu_kv_scale(a.kv, p.values + i * gpu_kv_row_bytes(a.kv, p.dim), p.dim);
    const uint32_t share = (group + args.n_parts - 1) / args.n_parts;
    const uint32_t end_head = group < (part + 1) * share ? group : (part + 1) * share;
    const bool has_halves = gpu_has_halves(a.kv, p);
    for (uint32_t h = part * share; h < end_head; h += GPU_ATTEND_HEADS) {
        const uint32_t head = kv_head * group + h;
        const size_t result = ((size_t)gpu_block_y() * a.n_blocks + b) * a.n_heads + head;
        p.n_heads = end_head - h < GPU_ATTEND_HEADS ? end_head - h : GPU_ATTEND_HEADS;
        p.q = a.q + row * a.q_row_stride + head * a.q_head_stride;
        p.max = a.block_max + result;
        p.total = a.block_total + result;
        p.out = a.block_out + result * a.head_dim;
        if (has_halves)
            gpu_scores_of_halves(p, scores, tile);
        else
            gpu_attend_scores(a.kv, p, scores);
        gpu_barrier();
        if (gpu_warp() < p.n_heads)
            gpu_attend_exps(p, gpu_warp(), scores);
        gpu_barrier();
        if (has_halves)
            gpu_values_of_halves(p, scores, tile);
        else
            gpu_attend_values(a.kv, p, scores, kept);
        gpu_barrier();
    }
}

/* ---- merging --------------------------------------------------------------------------------- */

/* What is known of a head so far. */
struct gpu_running {
    float max, total;
};

/* Adds a later block's max and total. Returns the factors of the values so far and of its own. */
GPU_FN void gpu_merge_block(struct gpu_running *r, float max, float total, float *keep,
                            float *add_share)
{
    const float larger = max > r->max ? max : r->max;
    *keep = fmath_exp(r->max - larger);
    *add_share = fmath_exp(max - larger);
    r->max = larger;
    r->total = fmaf(r->total, *keep, total * *add_share);
}

/* Adds a score whose value is zero. Returns the factor of the values so far. */
GPU_FN float gpu_merge_sink(float max, float *total, float sink)
{
    const float larger = sink > max ? sink : max;
    const float keep = fmath_exp(max - larger);
    *total = fmaf(*total, keep, fmath_exp(sink - larger));
    return keep;
}

GPU_FN float gpu_close_value(float x, float total, const float *gate, uint32_t d)
{
    x /= total;
    return gate != NULL ? x * fmath_sigmoid(gate[d]) : x;
}

/* Blocks whose factors lie in shared memory at a time. */
#define GPU_MERGE_BLOCKS 128u

struct gpu_merge_shared {
    gpu_shared<float> max, keep, share; /* [GPU_MERGE_BLOCKS] */
};

/* The factors of n blocks of a head, from `at` on, by a thread each; `max` is that of the blocks
 * before them. Returns the highest of all. */
GPU_FN float gpu_merge_factors(const struct gpu_attention &a, size_t at, uint32_t n, float max,
                               const gpu_merge_shared &s)
{
    const uint32_t own = gpu_thread();
    gpu_barrier(); /* the factors before have been used */
    if (own < n)
        s.max[own] = a.block_max[at + (size_t)own * a.n_heads];
    gpu_barrier();
    for (uint32_t b = 0; b < n; b++) {
        const float before = max;
        max = s.max[b] > max ? (float)s.max[b] : max;
        if (b == own) {
            s.keep[b] = fmath_exp(before - max);
            s.share[b] = fmath_exp(s.max[b] - max);
        }
    }
    gpu_barrier();
    return max;
}

/* Columns that a block has at a time: a unit in each warp. */
#define GPU_MERGE_THREADS 128u
#define GPU_MERGE_STEP (GPU_MERGE_THREADS / GPU_WARP * GPU_UNIT)

/* Merges a unit of a head's columns from the block at `first` on. */
GPU_FN struct gpu_running gpu_merge_unit(const struct gpu_attention &a, size_t first,
                                         uint32_t n_blocks, uint32_t column, uint32_t n,
                                         float x[GPU_UNIT_VALUES], const gpu_merge_shared &s)
{
    const uint32_t dim = a.head_dim;
    struct gpu_running r = {a.block_max[first], a.block_total[first]};
    gpu_load_unit(a.block_out, first * dim + column, n, x);
    for (uint32_t from = 1; from < n_blocks; from += GPU_MERGE_BLOCKS) {
        const uint32_t left = n_blocks - from;
        const uint32_t count = left < GPU_MERGE_BLOCKS ? left : GPU_MERGE_BLOCKS;
        const size_t at = first + (size_t)from * a.n_heads;
        r.max = gpu_merge_factors(a, at, count, r.max, s);
        for (uint32_t b = 0; b < count; b++) {
            const size_t block = at + (size_t)b * a.n_heads;
            float values[GPU_UNIT_VALUES];
            gpu_load_unit(a.block_out, block * dim + column, n, values);
            r.total = fmaf(r.total, s.keep[b], a.block_total[block] * s.share[b]);
            GPU_UNROLL
            for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++)
                x[j] = fmaf(x[j], s.keep[b], values[j] * s.share[b]);
        }
    }
    return r;
}

/* Divides, applies the gate, stores and rounds a unit. `at` is its first column in `out`. */
GPU_FN void gpu_merge_close(const struct gpu_merge_args &args, float x[GPU_UNIT_VALUES],
                            uint32_t n, float total, const float *gate, size_t at)
{
    GPU_UNROLL
    for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
        const uint32_t i = j * GPU_WARP + gpu_lane();
        x[j] = i < n ? gpu_close_value(x[j], total, gate, i) : 0;
    }
    gpu_store_unit(x, at, n, args.a.out);
    if (args.rounding.group > 0)
        gpu_round_unit(x, n, at, args.rounding);
}

GPU_KERNEL void gpu_merge(const struct gpu_merge_args args)
{
    GPU_SHARED(float, rotated, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, max, GPU_MERGE_BLOCKS);
    GPU_SHARED(float, keep, GPU_MERGE_BLOCKS);
    GPU_SHARED(float, share, GPU_MERGE_BLOCKS);
    const struct gpu_attention &a = args.a;
    const uint32_t head = gpu_block_x(), row = a.first_row + gpu_block_y(), dim = a.head_dim;
    const bool is_rotated = a.kv.plain == GPU_PLAIN_NONE;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    const size_t first = (size_t)gpu_block_y() * a.n_blocks * a.n_heads + head;
    const size_t at = ((size_t)row * a.n_heads + head) * dim;
    const float *gate = a.gate != NULL ? a.gate + row * a.q_row_stride + head * a.q_head_stride
                                       : NULL;
    struct gpu_running running = {};
    for (uint32_t from = 0; from < dim; from += GPU_MERGE_STEP) {
        const uint32_t column = from + gpu_warp() * GPU_UNIT;
        const uint32_t left = column < dim ? dim - column : 0;
        const uint32_t n = left < GPU_UNIT ? left : GPU_UNIT;
        float x[GPU_UNIT_VALUES];
        running = gpu_merge_unit(a, first, r.n_blocks, column, n, x, {max, keep, share});
        const float sink = a.sinks != NULL
                               ? gpu_merge_sink(running.max, &running.total, a.sinks[head]) : 1;
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
            const uint32_t i = j * GPU_WARP + gpu_lane();
            x[j] = a.sinks != NULL ? x[j] * sink : x[j];
            if (is_rotated && i < n)
                rotated[column + i] = x[j];
        }
        if (!is_rotated)
            gpu_merge_close(args, x, n, running.total, gate != NULL ? gate + column : NULL,
                            at + column);
    }
    if (!is_rotated)
        return;
    gpu_rotate(rotated, dim, true);
    for (uint32_t column = gpu_warp() * GPU_UNIT; column < dim; column += GPU_MERGE_STEP) {
        const uint32_t left = dim - column, n = left < GPU_UNIT ? left : GPU_UNIT;
        float x[GPU_UNIT_VALUES];
        GPU_UNROLL
        for (uint32_t j = 0; j < GPU_UNIT_VALUES; j++) {
            const uint32_t i = j * GPU_WARP + gpu_lane();
            x[j] = i < n ? (float)rotated[column + i] : 0;
        }
        gpu_merge_close(args, x, n, running.total, gate != NULL ? gate + column : NULL,
                        at + column);
    }
}

/* ---- parts of kernels that tests call alone -------------------------------------------------- */

#ifdef FLASHMOE_GPU_PIECES
GPU_KERNEL void gpu_piece_store_kv(const struct gpu_piece_store_kv_args a)
{
    GPU_SHARED(float, y, GPU_MAX_HEAD_DIM);
    GPU_SHARED(uint8_t, codes, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, sum, 1);
    gpu_store_row(a.kv, a.side, a.x, a.n, a.to, {y, codes, sum});
}

GPU_KERNEL void gpu_piece_merge(const struct gpu_piece_merge_args a)
{
    struct gpu_running running = {*a.max, *a.total};
    float keep, add_share;
    gpu_merge_block(&running, a.max_block, a.block_total, &keep, &add_share);
    for (uint32_t d = gpu_thread(); d < a.head_dim; d += gpu_n_threads())
        a.out[d] = fmaf(a.out[d], keep, a.block_out[d] * add_share);
    gpu_barrier();
    if (gpu_thread() == 0) {
        *a.max = running.max;
        *a.total = running.total;
    }
}

GPU_KERNEL void gpu_piece_sink(const struct gpu_piece_sink_args a)
{
    float total = *a.total;
    const float keep = gpu_merge_sink(a.max, &total, a.sink);
    for (uint32_t d = gpu_thread(); d < a.head_dim; d += gpu_n_threads())
        a.out[d] *= keep;
    gpu_barrier();
    if (gpu_thread() == 0)
        *a.total = total;
}

GPU_KERNEL void gpu_piece_close(const struct gpu_piece_close_args a)
{
    for (uint32_t d = gpu_thread(); d < a.head_dim; d += gpu_n_threads())
        a.out[d] = gpu_close_value(a.out[d], a.total, a.gate, d);
}
#endif

#endif
