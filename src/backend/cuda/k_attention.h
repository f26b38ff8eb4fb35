/* Attention: blocks of 256 positions give partial results, and these are merged in order. Part of
 * kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_ATTENTION_H
#define FLASHMOE_BACKEND_CUDA_K_ATTENTION_H

/* Query heads whose scores lie in shared memory at a time; a warp reduces each. */
#define GPU_ATTEND_HEADS 8u

/* ---- one block of positions ------------------------------------------------------------------ */

/* A few query heads against n positions whose keys and values begin there. */
struct gpu_attend_part {
    const float *q; /* head h at h * q_stride */
    uint64_t q_stride;
    const uint8_t *keys, *values;
    uint32_t n, n_heads, dim, value_dim;
    float scale;
    float *max, *total, *out;
};

/* Which row of the keys and values is the i-th that is seen. */
struct gpu_rows_in_order {
    GPU_METHOD uint32_t operator()(uint32_t i) const { return i; }
};

/* Scores: a half warp takes a position. */
template <class Rows>
GPU_FN void gpu_attend_scores(const struct gpu_kv_format &kv, const struct gpu_attend_part &p,
                              const Rows &rows, gpu_shared<float> scores)
{
    const uint64_t row_bytes = gpu_kv_row_bytes(kv, p.dim);
    const unsigned j = gpu_lane() & 15, n_halves = gpu_n_threads() / GPU_LANES;
    for (uint32_t first = 0; first < p.n; first += n_halves) {
        const uint32_t i = first + gpu_thread() / GPU_LANES;
        const uint8_t *row = p.keys + rows(i < p.n ? i : 0) * row_bytes;
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
template <class Rows>
GPU_FN void gpu_attend_values(const struct gpu_kv_format &kv, const struct gpu_attend_part &p,
                              const Rows &rows, gpu_shared<float> scores, gpu_shared<float> kept)
{
    const uint64_t row_bytes = gpu_kv_row_bytes(kv, p.dim);
    for (uint32_t d = gpu_thread(); d < p.value_dim; d += gpu_n_threads()) {
        float sum[GPU_ATTEND_HEADS] = {0};
        for (uint32_t i = 0; i < p.n; i++) {
            const float value = gpu_kv_value(kv, p.values + rows(i) * row_bytes, d);
            GPU_UNROLL
            for (uint32_t h = 0; h < GPU_ATTEND_HEADS; h++)
                if (h < p.n_heads)
                    sum[h] = fmaf(scores[h * GPU_ATTENTION_BLOCK + i] * kept[i], value, sum[h]);
        }
        GPU_UNROLL
        for (uint32_t h = 0; h < GPU_ATTEND_HEADS; h++)
            if (h < p.n_heads)
                p.out[(size_t)h * p.value_dim + d] = sum[h];
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
           p.value_dim == p.dim &&
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

/* What a thread has read: half of the key of position thread / 2, and a share of the next tile of
 * values. */
#define GPU_VALUES_QUADS (GPU_VALUES_ROWS * GPU_VALUES_WORDS / 4 / GPU_ATTEND_THREADS)
struct gpu_halves {
    gpu_quad key[GPU_HALVES_STEPS], values[GPU_VALUES_QUADS];
};

/* Begins to read the thread's key if its position is in [begin, end). */
GPU_FN void gpu_read_key(const struct gpu_attend_part &p, uint32_t begin, uint32_t end,
                         struct gpu_halves *to)
{
    const uint32_t i = gpu_thread() / 2;
    const float *row = (const float *)p.keys + (size_t)i * (p.dim / 2) + gpu_thread() % 2 * 4;
    if (i < begin || i >= end)
        return;
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_HALVES_STEPS; m++)
        if (m * GPU_LANES < p.dim)
            to->key[m] = gpu_load_quad(row + m * (GPU_LANES / 2));
}

/* The same for the values of the tile that begins at position `from`. */
GPU_FN void gpu_read_values(const struct gpu_attend_part &p, uint32_t from, uint32_t begin,
                            uint32_t end, struct gpu_halves *to)
{
    const float *values = (const float *)p.values + (size_t)from * (p.dim / 2);
    const uint32_t in_row = p.dim / 8;
    GPU_UNROLL
    for (unsigned e = 0; e < GPU_VALUES_QUADS; e++) {
        const uint32_t at = gpu_thread() + e * GPU_ATTEND_THREADS, i = from + at / in_row;
        if (at < GPU_VALUES_ROWS * in_row && i >= begin && i < end)
            to->values[e] = gpu_load_quad(values + 4 * (size_t)at);
    }
}

GPU_FN void gpu_put_values(const struct gpu_attend_part &p, uint32_t from,
                           const struct gpu_halves &halves, gpu_shared<float> tile)
{
    const uint32_t left = p.n - from, n = left < GPU_VALUES_ROWS ? left : GPU_VALUES_ROWS;
    GPU_UNROLL
    for (unsigned e = 0; e < GPU_VALUES_QUADS; e++) {
        const uint32_t at = gpu_thread() + e * GPU_ATTEND_THREADS;
        if (at < n * (p.dim / 8))
            gpu_put_quad(tile, 4 * (size_t)at, halves.values[e]);
    }
}

/* Scores: two threads have the key of a position. */
GPU_FN void gpu_scores_of_halves(const struct gpu_attend_part &p, const struct gpu_halves &halves,
                                 gpu_shared<float> scores, gpu_shared<float> q)
{
    const uint32_t u = gpu_thread() % 2, i = gpu_thread() / 2;
    for (uint32_t k = gpu_thread(); k < p.n_heads * p.dim; k += GPU_ATTEND_THREADS)
        q[k] = p.q[k / p.dim * p.q_stride + k % p.dim];
    gpu_barrier();
    for (uint32_t h = 0; h < p.n_heads; h++) {
        const float dot = gpu_dot_halves(q + h * p.dim, halves.key, p.dim, u);
        if (u == 0 && i < p.n)
            scores[h * GPU_ATTENTION_BLOCK + i] = dot * p.scale;
    }
}

/* Two dimensions of a head's values, of n positions in the tile, in their order. */
GPU_FN void gpu_add_halves(gpu_shared<float> shares, gpu_shared<float> tile, uint32_t n_words,
                           uint32_t n, float sum[2])
{
    uint32_t i = 0;
    GPU_UNROLL_BY(4)
    for (; i + 4 <= n; i += 4) {
        const struct gpu_quad four = gpu_take_quad(shares, i);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            const float two = tile[(i + e) * n_words];
            sum[0] = fmaf(four.x[e], gpu_low_half(two), sum[0]);
            sum[1] = fmaf(four.x[e], gpu_high_half(two), sum[1]);
        }
    }
    for (; i < n; i++) {
        const float two = tile[i * n_words], share = shares[i];
        sum[0] = fmaf(share, gpu_low_half(two), sum[0]);
        sum[1] = fmaf(share, gpu_high_half(two), sum[1]);
    }
}

/* The weighted values: a thread takes two dimensions of every n_sets-th head. The first tile has
 * been read. */
GPU_FN void gpu_values_of_halves(const struct gpu_attend_part &p, struct gpu_halves *halves,
                                 gpu_shared<float> scores, gpu_shared<float> tile)
{
    const uint32_t n_words = p.dim / 2, n_sets = GPU_ATTEND_THREADS / n_words;
    const uint32_t word = gpu_thread() % n_words, set = gpu_thread() / n_words;
    constexpr unsigned max_heads = GPU_ATTEND_HEADS * GPU_VALUES_WORDS / GPU_ATTEND_THREADS;
    float sum[max_heads][2] = {};
    for (uint32_t from = 0; from < p.n; from += GPU_VALUES_ROWS) {
        const uint32_t next = from + GPU_VALUES_ROWS, n = p.n - from;
        gpu_barrier(); /* what lay in the tile before has been used */
        gpu_put_values(p, from, *halves, tile);
        gpu_barrier();
        if (next < p.n)
            gpu_read_values(p, next, 0, p.n, halves);
        GPU_UNROLL
        for (unsigned m = 0; m < max_heads; m++) {
            const uint32_t h = set + m * n_sets;
            if (set < n_sets && h < p.n_heads)
                gpu_add_halves(scores + h * GPU_ATTENTION_BLOCK + from, tile + word, n_words,
                               n < GPU_VALUES_ROWS ? n : GPU_VALUES_ROWS, sum[m]);
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

/* ---- a block of the grid --------------------------------------------------------------------- */

struct gpu_attend_shared {
    gpu_shared<float> scores; /* [GPU_ATTEND_HEADS, GPU_ATTENTION_BLOCK] */
    gpu_shared<float> kept;   /* [GPU_ATTENTION_BLOCK] */
    gpu_shared<float> tile;   /* [GPU_VALUES_ROWS, GPU_VALUES_WORDS]; queries before */
};

/* Query heads of a key head, in parts: which of them, and where their results go. */
struct gpu_attend_heads {
    uint32_t row, kv_head, b; /* b: the block of positions, of those that the row sees */
    uint32_t first, end;      /* of the key head's query heads */
};

/* The next few heads, from h on. */
GPU_FN void gpu_attend_take(const struct gpu_attention &a, const struct gpu_attend_heads &heads,
                            uint32_t h, struct gpu_attend_part *p)
{
    const uint32_t head = heads.kv_head * (a.n_heads / a.n_kv_heads) + h;
    const size_t result = ((size_t)gpu_block_y() * a.n_blocks + heads.b) * a.n_heads + head;
    p->n_heads = heads.end - h < GPU_ATTEND_HEADS ? heads.end - h : GPU_ATTEND_HEADS;
    p->q = a.q + heads.row * a.q_row_stride + head * a.q_head_stride;
    p->max = a.block_max + result;
    p->total = a.block_total + result;
    p->out = a.block_out + result * a.value_dim;
}

/* The first n_old positions were there before the launch ahead, which stores new ones. */
GPU_FN void gpu_attend_halves(const struct gpu_attention &a, const struct gpu_attend_heads &heads,
                              struct gpu_attend_part &p, uint32_t n_old,
                              const struct gpu_attend_shared &s)
{
    struct gpu_halves halves = {};
    gpu_read_key(p, 0, n_old, &halves);
    gpu_read_values(p, 0, 0, n_old, &halves);
    gpu_wait();
    gpu_read_key(p, n_old, p.n, &halves);
    gpu_read_values(p, 0, n_old, p.n, &halves);
    for (uint32_t h = heads.first; h < heads.end; h += GPU_ATTEND_HEADS) {
        if (h > heads.first) { /* the registers were needed for the values */
            gpu_read_key(p, 0, p.n, &halves);
            gpu_read_values(p, 0, 0, p.n, &halves);
        }
        gpu_attend_take(a, heads, h, &p);
        gpu_scores_of_halves(p, halves, s.scores, s.tile);
        gpu_barrier();
        if (gpu_warp() < p.n_heads)
            gpu_attend_exps(p, gpu_warp(), s.scores);
        gpu_values_of_halves(p, &halves, s.scores, s.tile);
        gpu_barrier();
    }
}

/* Heads against rows in any format, wherever they lie. The launch ahead has ended. */
template <class Rows>
GPU_FN void gpu_attend_rows(const struct gpu_attention &a, const struct gpu_attend_heads &heads,
                            struct gpu_attend_part &p, gpu_shared<float> scores,
                            gpu_shared<float> kept, const Rows &rows)
{
    const uint64_t row_bytes = gpu_kv_row_bytes(a.kv, p.dim);
    for (uint32_t i = gpu_thread(); i < p.n; i += gpu_n_threads())
        kept[i] = gpu_kv_scale(a.kv, p.values + rows(i) * row_bytes, p.dim);
    for (uint32_t h = heads.first; h < heads.end; h += GPU_ATTEND_HEADS) {
        gpu_attend_take(a, heads, h, &p);
        gpu_attend_scores(a.kv, p, rows, scores);
        gpu_barrier();
        if (gpu_warp() < p.n_heads)
            gpu_attend_exps(p, gpu_warp(), scores);
        gpu_barrier();
        gpu_attend_values(a.kv, p, rows, scores, kept);
        gpu_barrier();
    }
}

/* The heads of this block of threads. */
GPU_FN struct gpu_attend_heads gpu_attend_heads_of(const struct gpu_attention &a, uint32_t n_parts)
{
    const uint32_t part = gpu_block_x() % n_parts, x = gpu_block_x() / n_parts;
    const uint32_t group = a.n_heads / a.n_kv_heads, share = (group + n_parts - 1) / n_parts;
    const uint32_t end = (part + 1) * share;
    return {a.first_row + gpu_block_y(), x % a.n_kv_heads, x / a.n_kv_heads, part * share,
            group < end ? group : end};
}

GPU_KERNEL_FOR(GPU_ATTEND_THREADS, 1) void gpu_attend(const struct gpu_attend_args args)
{
    GPU_SHARED(float, scores, GPU_ATTEND_HEADS * GPU_ATTENTION_BLOCK);
    GPU_SHARED(float, kept, GPU_ATTENTION_BLOCK);
    GPU_SHARED(float, tile, GPU_VALUES_ROWS * GPU_VALUES_WORDS);
    const struct gpu_attend_shared s = {scores, kept, tile};
    gpu_read_args(args);
    const struct gpu_attention &a = args.a;
    const struct gpu_attend_heads heads = gpu_attend_heads_of(a, args.n_parts);
    const struct gpu_attention_row r = gpu_attention_row_of(a, heads.row);
    if (heads.b >= r.n_blocks) {
        gpu_wait();
        return;
    }
    const uint32_t begin = (r.first / GPU_ATTENTION_BLOCK + heads.b) * GPU_ATTENTION_BLOCK;
    const uint32_t end = begin + GPU_ATTENTION_BLOCK, first = r.first > begin ? r.first : begin;
    const uint64_t at = gpu_kv_at(a, heads.kv_head, first);
    const uint32_t old = r.segment->position > first ? r.segment->position - first : 0;
    struct gpu_attend_part p = {};
    p.q_stride = a.q_head_stride;
    p.keys = (const uint8_t *)r.segment->state[ATTENTION_KEYS] + at;
    p.values = a.keys_have_values
                   ? p.keys : (const uint8_t *)r.segment->state[ATTENTION_VALUES] + at;
    p.n = (r.position + 1 < end ? r.position + 1 : end) - first;
    p.dim = a.head_dim;
    p.value_dim = a.value_dim;
    p.scale = a.scale;
    if (gpu_has_halves(a.kv, p)) {
        gpu_attend_halves(a, heads, p, old < p.n ? old : p.n, s);
    } else {
        gpu_wait();
        gpu_attend_rows(a, heads, p, scores, kept, gpu_rows_in_order{});
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
    const uint32_t dim = a.value_dim;
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
        const uint32_t i = gpu_unit_column(j);
        x[j] = i < n ? gpu_close_value(x[j], total, gate, i) : 0;
    }
    gpu_store_unit(x, at, n, args.a.out);
    if (args.rounding.group > 0)
        gpu_round_unit(x, n, at, args.rounding);
}

GPU_KERNEL_FOR(GPU_MERGE_THREADS, 1) void gpu_merge(const struct gpu_merge_args args)
{
    GPU_SHARED(float, rotated, GPU_MAX_HEAD_DIM);
    GPU_SHARED(float, max, GPU_MERGE_BLOCKS);
    GPU_SHARED(float, keep, GPU_MERGE_BLOCKS);
    GPU_SHARED(float, share, GPU_MERGE_BLOCKS);
    gpu_read_args(args);
    const struct gpu_attention &a = args.a;
    const uint32_t head = gpu_block_x(), row = a.first_row + gpu_block_y(), dim = a.value_dim;
    const bool is_rotated = a.kv.plain == GPU_PLAIN_NONE;
    const struct gpu_attention_row r = gpu_attention_row_of(a, row);
    const size_t first = (size_t)gpu_block_y() * a.n_blocks * a.n_heads + head;
    const size_t at = ((size_t)row * a.n_heads + head) * dim;
    const float *gate = a.gate != NULL ? a.gate + row * a.q_row_stride + head * a.q_head_stride
                                       : NULL;
    struct gpu_running running = {};
    gpu_wait();
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
            const uint32_t i = gpu_unit_column(j);
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
            const uint32_t i = gpu_unit_column(j);
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
    gpu_wait();
    gpu_store_row(a.kv, a.side, a.x, a.n, a.to, {y, codes, sum});
}

GPU_KERNEL void gpu_piece_merge(const struct gpu_piece_merge_args a)
{
    gpu_wait();
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
    gpu_wait();
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
    gpu_wait();
    for (uint32_t d = gpu_thread(); d < a.head_dim; d += gpu_n_threads())
        a.out[d] = gpu_close_value(a.out[d], a.total, a.gate, d);
}
#endif

#endif
