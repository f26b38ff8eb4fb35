/* Part of lanes.h: attention over one block of positions. Up to four heads that share keys and
 * values use each loaded vector together. If many heads share them, rows become floats once for
 * all of them. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_ATTENTION_H
#define FLASHMOE_BACKEND_CPU_LANES_ATTENTION_H

static void store_kv(const struct kv_format *kv_format, enum kv_side side, const float *x, size_t n,
                     void *to)
{
    size_t i = 0;
    if (kv_format == &kv_f16)
        for (; i + LANES <= n; i += LANES)
            vf_store_f16((char *)to + 2 * i, vf_load(x + i));
    if (i < n)
        kv_store(kv_format, side, x + i, n - i, (char *)to + 2 * i);
}

/* Rows of keys or of values, and the score or share of each: head h of position i at
 * scores[h * KERNEL_ATTENTION_BLOCK + i]. */
struct kv_rows {
    const char *rows;
    size_t row_bytes, n_positions;
    float *scores;
};

/* Computes the scores of at most four positions, from `first` on, and at most four heads. */
INLINE void score_tile(const struct kernel_attention *a, enum float_kind kind,
                       const struct kv_rows *keys, size_t first, unsigned head)
{
    const char *rows[FLOAT_ROWS];
    const float *x[FLOAT_TOKENS];
    float result[LANES];
    for (size_t i = 0; i < FLOAT_ROWS; i++)
        rows[i] = keys->rows + (first + i < keys->n_positions ? first + i : first) *
                               keys->row_bytes;
    for (unsigned h = 0; h < FLOAT_TOKENS; h++)
        x[h] = kernel_query(a, head + h < a->n_heads ? head + h : head);
    float_tile(rows, kind, x, FLOAT_TOKENS, a->head_dim, result);
    for (unsigned h = head; h < a->n_heads && h < head + FLOAT_TOKENS; h++)
        for (size_t i = first; i < keys->n_positions && i < first + FLOAT_ROWS; i++)
            keys->scores[h * KERNEL_ATTENTION_BLOCK + i] =
                result[4 * (i - first) + h - head] * a->scale;
}

#ifndef vf_max_number /* where vf_max gives its second operand if the first is NaN */
#define vf_max_number vf_max
#endif

/* Returns the largest score; a NaN is none. Of several zeros, the first counts. */
static float largest_of(const float *score, size_t n)
{
    float lane[LANES], max = -INFINITY;
    vf most = vf_set1(-INFINITY);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        most = vf_max_number(vf_load(score + i), most);
    vf_store(lane, most);
    for (unsigned j = 0; j < LANES; j++)
        max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++)
        max = score[i] > max ? score[i] : max;
    for (i = 0; max == 0 && i < n; i++)
        if (score[i] == 0)
            return score[i];
    return max;
}

/* Turns scores into shares. Keeps the largest score and the sum of the shares. */
static void shares_of(float *score, size_t n, float *max_out, float *total)
{
    const float max = largest_of(score, n);
    const vf shift = vf_set1(max);
    vf acc = vf_zero();
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vf share = vf_exp(vf_sub(vf_load(score + i), shift));
        vf_store(score + i, share);
        acc = vf_add(acc, share);
    }
    if (i < n) {
        float lane[LANES] = {0};
        for (size_t j = i; j < n; j++)
            lane[j - i] = score[j] = fmath_exp(score[j] - max);
        acc = vf_add(acc, vf_load(lane));
    }
    *max_out = max;
    *total = vf_sum(acc);
}

#ifndef VALUE_PARTS
#define VALUE_PARTS 4
#endif
#define VALUE_HEADS 4
/* Heads whose sums with FLOAT_PART_ROWS rows, or with VALUE_PARTS registers of values, the level
 * keeps in registers if rows are floats already. An even number, at least four. */
#ifndef WIDE_HEADS
#define WIDE_HEADS 4
#endif

/* Computes VALUE_PARTS registers of dimensions for n_heads heads (a constant). The values begin at
 * `rows`; `out` is of the first head. If it goes on, `out` has the sums of earlier positions. */
INLINE void value_tile(const struct kernel_attention *a, enum float_kind kind,
                       const struct kv_rows *values, bool goes_on, const char *rows, float *out,
                       const float *share, size_t n_dims, unsigned n_heads)
{
    vp acc[WIDE_HEADS][VALUE_PARTS];
    const size_t out_stride = a->value_dim;
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++) {
            const size_t at = k * PART_LANES, left = at < n_dims ? n_dims - at : 0;
            const float *from = out + h * out_stride + at;
            acc[h][k] = !goes_on || left == 0 ? vp_zero()
                        : left < PART_LANES ? vp_load_part(from, left) : vp_load(from);
        }
    for (size_t i = 0; i < values->n_positions; i++, rows += values->row_bytes) {
        vp v[VALUE_PARTS];
        UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++) {
            const size_t at = k * PART_LANES;
            const size_t left = at < n_dims ? n_dims - at : 0;
            v[k] = left == 0 ? vp_zero()
                             : load_float_part(rows, at, kind,
                                               left < PART_LANES ? left : PART_LANES);
        }
        UNROLL for (unsigned h = 0; h < n_heads; h++) {
            const vp s = vp_set1(share[h * KERNEL_ATTENTION_BLOCK + i]);
            UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++)
                acc[h][k] = vp_fma(s, v[k], acc[h][k]);
        }
    }
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++) {
            const size_t at = k * PART_LANES;
            float *to = out + h * out_stride + at;
            if (n_dims >= at + PART_LANES)
                vp_store(to, acc[h][k]);
            else if (n_dims > at)
                vp_store_part(to, acc[h][k], n_dims - at);
        }
}

/* Returns how many of the heads that are left a tile takes. As many as possible have all that it
 * can have, and none has one to three while there are more. */
INLINE unsigned heads_of_tile(unsigned n_left, unsigned n_max)
{
    return n_left < 4 ? 1 : n_left % n_max == 0 ? n_max : 4;
}

/* Computes some dimensions of all heads. n_max is a constant. */
INLINE void value_heads(const struct kernel_attention *a, enum float_kind kind,
                        const struct kv_rows *values, bool goes_on, const char *rows, float *out,
                        size_t n_dims, unsigned n_max)
{
    for (unsigned head = 0; head < a->n_heads;) {
        const unsigned n = heads_of_tile(a->n_heads - head, n_max);
        float *to = out + head * (size_t)a->value_dim;
        const float *share = values->scores + head * KERNEL_ATTENTION_BLOCK;
        if (n == n_max)
            value_tile(a, kind, values, goes_on, rows, to, share, n_dims, n_max);
        else if (n == 4)
            value_tile(a, kind, values, goes_on, rows, to, share, n_dims, 4);
        else
            value_tile(a, kind, values, goes_on, rows, to, share, n_dims, 1);
        head += n;
    }
}

/* Computes n_dims dimensions of all heads, from dimension d on. n_max is a constant. */
INLINE void values_of(const struct kernel_attention *a, enum float_kind kind,
                      const struct kv_rows *values, bool goes_on, size_t d, size_t n_dims,
                      unsigned n_max)
{
    const size_t step = VALUE_PARTS * PART_LANES, bytes = kind == FLOAT_F32 ? 4 : 2;
    size_t i = 0;
    for (; i + step <= n_dims; i += step)
        value_heads(a, kind, values, goes_on, values->rows + i * bytes, a->out + d + i, step,
                    n_max);
    if (i < n_dims)
        value_heads(a, kind, values, goes_on, values->rows + i * bytes, a->out + d + i, n_dims - i,
                    n_max);
}

/* ---- many heads ------------------------------------------------------------------------------
 * A panel is some rows, or some columns of more rows, as floats. It stays in the nearest cache
 * while all heads are multiplied with it. */

#define MANY_HEADS 8 /* that share keys and values */
#define SCORE_POSITIONS 8
#define VALUE_POSITIONS 64
#define VALUE_DIMS 64

/* Makes floats of n_dims numbers of a row, from d on, which is a multiple of LANES. */
static void decode_row(const struct kv_format *format, const char *row, size_t d, size_t n_dims,
                       float *to)
{
    if (format->plain == NULL) {
        const vl table = vl_load(format->levels);
        const unsigned bits = format->bits;
        for (size_t i = 0; i < n_dims; i += LANES) {
            const char *p = row + (d + i) * bits / 8;
            vf_store(to + i, bits == 8 ? vf_load_levels(p, 8, table)
                             : bits == 4 ? vf_load_levels(p, 4, table)
                             : bits == 3 ? vf_load_levels(p, 3, table)
                                         : vf_load_levels(p, 2, table));
        }
    } else if (format == &kv_f16) {
        EACH_VECTOR(n_dims, STORE(to + i, load_float(row, d + i, FLOAT_F16, count)););
    } else {
        EACH_VECTOR(n_dims, STORE(to + i, load_float(row, d + i, FLOAT_F32, count)););
    }
}

/* Makes a panel of n_dims columns, from d on, of at most n_max positions, from `first` on. */
static struct kv_rows panel_of(const struct kernel_attention *a, const char *rows, size_t first,
                               size_t n_max, size_t d, size_t n_dims)
{
    const size_t row_bytes = kv_row_bytes(a->kv_format, a->head_dim);
    const size_t left = a->n_positions - first, n = left < n_max ? left : n_max;
    /* An odd number of cache lines, or the rows would compete for the same places of a cache. */
    const size_t stride = ((n_dims + LANES - 1) / LANES | 1) * LANES;
    float *to = a->scratch + a->n_heads * (size_t)KERNEL_ATTENTION_BLOCK;
    for (size_t i = 0; i < n; i++)
        decode_row(a->kv_format, rows + (first + i) * row_bytes, d, n_dims, to + i * stride);
    return (struct kv_rows){(const char *)to, stride * sizeof *to, n, a->scratch + first};
}

/* Multiplies some rows with n_heads heads, a constant: only one register's lanes of each vector,
 * from lane `part` on. sums[SCORE_POSITIONS * head + row]. */
INLINE void score_part(const char *const rows[FLOAT_PART_ROWS], const float *const x[WIDE_HEADS],
                       unsigned n_heads, unsigned part, size_t n, vf *sums)
{
    vp acc[WIDE_HEADS][FLOAT_PART_ROWS];
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned r = 0; r < FLOAT_PART_ROWS; r++)
            acc[h][r] = vp_zero();
    EACH_VECTOR(n, {
        const size_t left = count > part ? count - part : 0;
        const size_t lanes = count == LANES || left > PART_LANES ? PART_LANES : left;
        vp key[FLOAT_PART_ROWS];
        UNROLL for (unsigned r = 0; r < FLOAT_PART_ROWS; r++)
            key[r] = load_float_part(rows[r], i + part, FLOAT_F32, lanes);
        UNROLL for (unsigned h = 0; h < n_heads; h++) {
            const vp in = load_float_part((const char *)x[h], i + part, FLOAT_F32, lanes);
            UNROLL for (unsigned r = 0; r < FLOAT_PART_ROWS; r++)
                acc[h][r] = vp_fma(key[r], in, acc[h][r]);
        }
    });
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned r = 0; r < FLOAT_PART_ROWS; r++)
            vf_put_part(&sums[SCORE_POSITIONS * h + r], part, acc[h][r]);
}

/* Computes the scores of a panel's positions and of n_heads heads, a constant, from `head` on.
 * `kept` is the scale of each row, twice. Heads that are not there are computed and dropped, and
 * positions that are not there get scores that nobody reads. */
INLINE void panel_tile(const struct kernel_attention *a, const struct kv_rows *keys, unsigned head,
                       unsigned n_heads, const vf *kept)
{
    vf sums[WIDE_HEADS * SCORE_POSITIONS];
    const char *rows[SCORE_POSITIONS];
    const float *x[WIDE_HEADS];
    for (size_t i = 0; i < SCORE_POSITIONS; i++)
        rows[i] = keys->rows + (i < keys->n_positions ? i : 0) * keys->row_bytes;
    for (unsigned h = 0; h < n_heads; h++)
        x[h] = kernel_query(a, head + h < a->n_heads ? head + h : head);
    for (unsigned r = 0; r < SCORE_POSITIONS; r += FLOAT_PART_ROWS)
        for (unsigned part = 0; part < LANES; part += PART_LANES)
            score_part(rows + r, x, n_heads, part, a->head_dim, sums + r);
    for (unsigned h = 0; h < n_heads && head + h < a->n_heads; h += LANES / SCORE_POSITIONS) {
        float of_two[LANES];
        vf score = vf_sum16(sums + h * SCORE_POSITIONS);
        if (kept != NULL)
            score = vf_mul(score, *kept);
        vf_store(of_two, vf_mul(score, vf_set1(a->scale)));
        float *to = keys->scores + (head + h) * KERNEL_ATTENTION_BLOCK;
        memcpy(to, of_two, SCORE_POSITIONS * sizeof *to);
        if (head + h + 1 < a->n_heads)
            memcpy(to + KERNEL_ATTENTION_BLOCK, of_two + SCORE_POSITIONS,
                   SCORE_POSITIONS * sizeof *to);
    }
}

static void panel_scores(const struct kernel_attention *a, const struct kv_rows *keys,
                         const vf *kept)
{
    for (unsigned head = 0; head < a->n_heads;) {
        const unsigned n = heads_of_tile(a->n_heads - head, WIDE_HEADS);
        if (n == WIDE_HEADS)
            panel_tile(a, keys, head, WIDE_HEADS, kept);
        else
            panel_tile(a, keys, head, 4, kept);
        head += n < 4 ? 4 : n;
    }
}

/* Computes all scores. */
static void scores_of_many(const struct kernel_attention *a)
{
    const size_t dim = a->head_dim, row_bytes = kv_row_bytes(a->kv_format, dim);
    for (size_t first = 0; first < a->n_positions; first += SCORE_POSITIONS) {
        const struct kv_rows keys = panel_of(a, a->keys, first, SCORE_POSITIONS, 0, dim);
        const char *next = a->keys + (first + SCORE_POSITIONS) * row_bytes;
        for (size_t at = 0; first + SCORE_POSITIONS < a->n_positions &&
                            at < SCORE_POSITIONS * row_bytes; at += MEM_CACHE_LINE)
            __builtin_prefetch(next + at);
        if (a->kv_format->plain != NULL) {
            panel_scores(a, &keys, NULL);
            continue;
        }
        float kept[LANES] = {0};
        for (size_t i = 0; i < keys.n_positions; i++)
            kept[i] = kept[i + SCORE_POSITIONS] =
                kv_load_scale(a->kv_format, a->keys + (first + i) * row_bytes, dim);
        const vf factors = vf_load(kept);
        panel_scores(a, &keys, &factors);
    }
}

static void values_of_many(const struct kernel_attention *a)
{
    for (size_t first = 0; first < a->n_positions; first += VALUE_POSITIONS)
        for (size_t d = 0; d < a->value_dim; d += VALUE_DIMS) {
            const size_t left = a->value_dim - d, n = left < VALUE_DIMS ? left : VALUE_DIMS;
            const struct kv_rows values = panel_of(a, a->values, first, VALUE_POSITIONS, d, n);
            values_of(a, FLOAT_F32, &values, first > 0, d, n, WIDE_HEADS);
        }
}

#include "backend/cpu/lanes_scores.h"

static void attend_many(const struct kernel_attention *a)
{
    const size_t row_bytes = kv_row_bytes(a->kv_format, a->head_dim);
    const bool is_rotated = a->kv_format->plain == NULL;
    float kept[KERNEL_ATTENTION_BLOCK];
    if (can_turn(a))
        turned_scores(a);
    else
        scores_of_many(a);
    for (size_t i = 0; is_rotated && i < a->n_positions; i++)
        kept[i] = kv_load_scale(a->kv_format, a->values + i * row_bytes, a->head_dim);
    for (unsigned h = 0; h < a->n_heads; h++) {
        float *share = a->scratch + h * KERNEL_ATTENTION_BLOCK;
        shares_of(share, a->n_positions, &a->max[h], &a->total[h]);
        for (size_t i = 0; is_rotated && i < a->n_positions; i++)
            share[i] *= kept[i];
    }
    values_of_many(a);
}

/* ---- rotated formats ------------------------------------------------------------------------- */

/* Computes the scores of all heads with at most four positions, whose levels become floats once. */
INLINE void rotated_scores(const struct kernel_attention *a, unsigned bits, size_t first,
                           size_t n_positions)
{
    const size_t dim = a->head_dim, row_bytes = kv_row_bytes(a->kv_format, dim);
    const vl table = vl_load(a->kv_format->levels);
    float *levels = a->scratch + a->n_heads * (size_t)KERNEL_ATTENTION_BLOCK;
    float kept[FLOAT_ROWS], result[LANES];
    const char *rows[FLOAT_ROWS];
    for (size_t i = 0; i < FLOAT_ROWS; i++) {
        const size_t k = i < n_positions ? i : 0;
        const char *row = a->keys + (first + k) * row_bytes;
        rows[i] = (const char *)(levels + k * dim);
        kept[i] = kv_load_scale(a->kv_format, row, dim);
        for (size_t d = 0; i == k && d < dim; d += LANES)
            vf_store(levels + k * dim + d, vf_load_levels(row + d * bits / 8, bits, table));
    }
    for (unsigned head = 0; head < a->n_heads; head += FLOAT_TOKENS) {
        const unsigned n = a->n_heads - head < FLOAT_TOKENS ? a->n_heads - head : FLOAT_TOKENS;
        const float *x[FLOAT_TOKENS];
        for (unsigned h = 0; h < FLOAT_TOKENS; h++)
            x[h] = kernel_query(a, head + (h < n ? h : 0));
        if (n == 1)
            float_tile(rows, FLOAT_F32, x, 1, dim, result);
        else
            float_tile(rows, FLOAT_F32, x, FLOAT_TOKENS, dim, result);
        for (unsigned h = 0; h < n; h++)
            for (size_t i = 0; i < n_positions; i++)
                a->scratch[(head + h) * KERNEL_ATTENTION_BLOCK + first + i] =
                    result[4 * i + h] * kept[i] * a->scale;
    }
}

/* Uses as many registers as a value_tile. */
#define ROTATED_VECTORS (VALUE_PARTS * PART_LANES / LANES)

/* Computes n_vectors times sixteen dimensions of n_heads heads (constants). */
INLINE void rotated_value_tile(const struct kernel_attention *a, unsigned bits, size_t row_bytes,
                               size_t d, unsigned n_vectors, unsigned head, unsigned n_heads)
{
    const vl table = vl_load(a->kv_format->levels);
    const float *share = a->scratch + head * KERNEL_ATTENTION_BLOCK;
    const char *row = a->values + d * bits / 8;
    vf acc[VALUE_HEADS][ROTATED_VECTORS];
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned k = 0; k < n_vectors; k++)
            acc[h][k] = vf_zero();
    for (size_t i = 0; i < a->n_positions; i++, row += row_bytes) {
        vf v[ROTATED_VECTORS];
        UNROLL for (unsigned k = 0; k < n_vectors; k++)
            v[k] = vf_load_levels(row + k * LANES * bits / 8, bits, table);
        UNROLL for (unsigned h = 0; h < n_heads; h++) {
            const vf s = vf_set1(share[h * KERNEL_ATTENTION_BLOCK + i]);
            UNROLL for (unsigned k = 0; k < n_vectors; k++)
                acc[h][k] = vf_fma(s, v[k], acc[h][k]);
        }
    }
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned k = 0; k < n_vectors; k++)
            vf_store(a->out + (head + h) * (size_t)a->head_dim + d + k * LANES, acc[h][k]);
}

INLINE void rotated_values(const struct kernel_attention *a, unsigned bits, size_t row_bytes,
                           unsigned head, unsigned n_heads)
{
    const size_t step = ROTATED_VECTORS * LANES;
    size_t d = 0;
    for (; d + step <= a->head_dim; d += step)
        rotated_value_tile(a, bits, row_bytes, d, ROTATED_VECTORS, head, n_heads);
    for (; d < a->head_dim; d += LANES)
        rotated_value_tile(a, bits, row_bytes, d, 1, head, n_heads);
}

INLINE void rotated_attend(const struct kernel_attention *a, unsigned bits)
{
    const size_t dim = a->head_dim, row_bytes = kv_row_bytes(a->kv_format, dim);
    float kept[KERNEL_ATTENTION_BLOCK];
    for (size_t i = 0; i < a->n_positions; i += FLOAT_ROWS)
        rotated_scores(a, bits, i,
                       a->n_positions - i < FLOAT_ROWS ? a->n_positions - i : FLOAT_ROWS);
    for (size_t i = 0; i < a->n_positions; i++)
        kept[i] = kv_load_scale(a->kv_format, a->values + i * row_bytes, dim);
    for (unsigned h = 0; h < a->n_heads; h++) {
        float *share = a->scratch + h * KERNEL_ATTENTION_BLOCK;
        shares_of(share, a->n_positions, &a->max[h], &a->total[h]);
        for (size_t i = 0; i < a->n_positions; i++)
            share[i] *= kept[i];
    }
    for (unsigned head = 0; head < a->n_heads;) {
        const unsigned n = a->n_heads - head >= VALUE_HEADS ? VALUE_HEADS : 1;
        if (n == 1)
            rotated_values(a, bits, row_bytes, head, 1);
        else
            rotated_values(a, bits, row_bytes, head, VALUE_HEADS);
        head += n;
    }
}

static void attend_rot8(const struct kernel_attention *a) { rotated_attend(a, 8); }
static void attend_rot4(const struct kernel_attention *a) { rotated_attend(a, 4); }
static void attend_rot3(const struct kernel_attention *a) { rotated_attend(a, 3); }
static void attend_rot2(const struct kernel_attention *a) { rotated_attend(a, 2); }

static void attend_rotated(const struct kernel_attention *a)
{
    switch (a->kv_format->bits) {
    case 8: attend_rot8(a); return;
    case 4: attend_rot4(a); return;
    case 3: attend_rot3(a); return;
    default: attend_rot2(a); return;
    }
}

INLINE void plain_attend(const struct kernel_attention *a, enum float_kind kind)
{
    const size_t row_bytes = (kind == FLOAT_F16 ? 2 : 4) * (size_t)a->head_dim;
    const struct kv_rows keys = {a->keys, row_bytes, a->n_positions, a->scratch};
    const struct kv_rows values = {a->values, row_bytes, a->n_positions, a->scratch};
    for (size_t i = 0; i < a->n_positions; i += FLOAT_ROWS)
        for (unsigned h = 0; h < a->n_heads; h += FLOAT_TOKENS)
            score_tile(a, kind, &keys, i, h);
    for (unsigned h = 0; h < a->n_heads; h++)
        shares_of(a->scratch + h * KERNEL_ATTENTION_BLOCK, a->n_positions, &a->max[h],
                  &a->total[h]);
    values_of(a, kind, &values, false, 0, a->value_dim, VALUE_HEADS);
}

static void attend_f16(const struct kernel_attention *a) { plain_attend(a, FLOAT_F16); }
static void attend_f32(const struct kernel_attention *a) { plain_attend(a, FLOAT_F32); }

static void attend(const struct kernel_attention *a)
{
    if (a->n_heads >= MANY_HEADS)
        attend_many(a);
    else if (a->kv_format->plain == NULL)
        attend_rotated(a);
    else if (a->kv_format == &kv_f16)
        attend_f16(a);
    else
        attend_f32(a);
}

static void attend_merge(float *max, float *total, float *out, float max_block,
                         float block_total, const float *block_out, size_t head_dim)
{
    const float larger = max_block > *max ? max_block : *max;
    const float keep = fmath_exp(*max - larger), share = fmath_exp(max_block - larger);
    *max = larger;
    *total = fmaf(*total, keep, block_total * share);
    const vf keeps = vf_set1(keep), shares = vf_set1(share);
    EACH_VECTOR(head_dim, STORE(out + i, vf_fma(LOAD(out + i), keeps,
                                                vf_mul(LOAD(block_out + i), shares))););
}

static void attend_sink(float max, float *total, float *out, float sink, size_t head_dim)
{
    const float larger = sink > max ? sink : max;
    const float keep = fmath_exp(max - larger);
    *total = fmaf(*total, keep, fmath_exp(sink - larger));
    const vf keeps = vf_set1(keep);
    EACH_VECTOR(head_dim, STORE(out + i, vf_mul(LOAD(out + i), keeps)););
}

static void attend_close(float *out, float total, const float *gate, size_t head_dim)
{
    const vf divisor = vf_set1(total);
    EACH_VECTOR(head_dim, {
        vf x = vf_div(LOAD(out + i), divisor);
        if (gate != NULL)
            x = vf_mul(x, vf_sigmoid(LOAD(gate + i)));
        STORE(out + i, x);
    });
}

#endif
