/* Part of lanes.h: attention over one block of positions. Up to four heads that share keys and
 * values use each loaded vector together. */
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

/* Computes the scores of four positions and at most four heads. */
static void score_tile(const struct kernel_attention *a, enum float_kind kind, size_t row_bytes,
                       size_t first, size_t n_positions, unsigned head, unsigned n_heads)
{
    const char *rows[FLOAT_ROWS];
    const float *x[FLOAT_TOKENS];
    float result[LANES];
    for (size_t i = 0; i < FLOAT_ROWS; i++)
        rows[i] = a->keys + (first + (i < n_positions ? i : 0)) * row_bytes;
    for (unsigned h = 0; h < FLOAT_TOKENS; h++)
        x[h] = a->q + (head + (h < n_heads ? h : 0)) * a->q_stride;
    if (kind == FLOAT_F16)
        float_tile(rows, FLOAT_F16, x, FLOAT_TOKENS, a->head_dim, result);
    else
        float_tile(rows, FLOAT_F32, x, FLOAT_TOKENS, a->head_dim, result);
    for (unsigned h = 0; h < n_heads; h++)
        for (size_t i = 0; i < n_positions; i++)
            a->scratch[(head + h) * KERNEL_ATTENTION_BLOCK + first + i] =
                result[4 * i + h] * a->scale;
}

/* Turns scores into shares. Keeps the largest score and the sum of the shares. */
static void shares_of(float *score, size_t n, float *max_out, float *total)
{
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++)
        max = score[i] > max ? score[i] : max;
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

/* Computes VALUE_PARTS registers of dimensions from d on, for n_heads heads (a constant). */
INLINE void value_tile(const struct kernel_attention *a, enum float_kind kind, size_t row_bytes,
                       size_t d, size_t n_dims, unsigned head, unsigned n_heads)
{
    vp acc[VALUE_HEADS][VALUE_PARTS];
    const float *share = a->scratch + head * KERNEL_ATTENTION_BLOCK;
    UNROLL for (unsigned h = 0; h < n_heads; h++)
        UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++)
            acc[h][k] = vp_zero();
    for (size_t i = 0; i < a->n_positions; i++) {
        const char *row = a->values + i * row_bytes;
        vp v[VALUE_PARTS];
        UNROLL for (unsigned k = 0; k < VALUE_PARTS; k++) {
            const size_t at = k * PART_LANES;
            const size_t left = at < n_dims ? n_dims - at : 0;
            v[k] = left == 0 ? vp_zero()
                             : load_float_part(row, d + at, kind,
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
            float *to = a->out + (head + h) * (size_t)a->value_dim + d + at;
            if (n_dims >= at + PART_LANES)
                vp_store(to, acc[h][k]);
            else if (n_dims > at)
                vp_store_part(to, acc[h][k], n_dims - at);
        }
}

INLINE void values_of(const struct kernel_attention *a, enum float_kind kind, size_t row_bytes)
{
    const size_t step = VALUE_PARTS * PART_LANES;
    for (unsigned head = 0; head < a->n_heads;) {
        const unsigned n = a->n_heads - head >= VALUE_HEADS ? VALUE_HEADS : 1;
        for (size_t d = 0; d < a->value_dim; d += step) {
            const size_t dims = a->value_dim - d;
            if (dims >= step && n == 1)
                value_tile(a, kind, row_bytes, d, step, head, 1);
            else if (dims >= step)
                value_tile(a, kind, row_bytes, d, step, head, VALUE_HEADS);
            else if (n == 1)
                value_tile(a, kind, row_bytes, d, dims, head, 1);
            else
                value_tile(a, kind, row_bytes, d, dims, head, VALUE_HEADS);
        }
        head += n;
    }
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
            x[h] = a->q + (head + (h < n ? h : 0)) * a->q_stride;
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

static void attend(const struct kernel_attention *a)
{
    if (a->kv_format->plain == NULL) {
        attend_rotated(a);
        return;
    }
    const enum float_kind kind = a->kv_format == &kv_f16 ? FLOAT_F16 : FLOAT_F32;
    const size_t row_bytes = (kind == FLOAT_F16 ? 2 : 4) * (size_t)a->head_dim;
    for (size_t i = 0; i < a->n_positions; i += FLOAT_ROWS) {
        const size_t n = a->n_positions - i < FLOAT_ROWS ? a->n_positions - i : FLOAT_ROWS;
        for (unsigned h = 0; h < a->n_heads; h += FLOAT_TOKENS)
            score_tile(a, kind, row_bytes, i, n, h,
                       a->n_heads - h < FLOAT_TOKENS ? a->n_heads - h : FLOAT_TOKENS);
    }
    for (unsigned h = 0; h < a->n_heads; h++)
        shares_of(a->scratch + h * KERNEL_ATTENTION_BLOCK, a->n_positions, &a->max[h],
                  &a->total[h]);
    if (kind == FLOAT_F16)
        values_of(a, FLOAT_F16, row_bytes);
    else
        values_of(a, FLOAT_F32, row_bytes);
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
