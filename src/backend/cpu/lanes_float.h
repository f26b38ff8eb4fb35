/* Part of lanes.h: products with weights that are floats, or are decoded to floats. A tile of four
 * rows and four tokens shares its loads. Every result has its own 16 lanes and tree. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_FLOAT_H
#define FLASHMOE_BACKEND_CPU_LANES_FLOAT_H

enum float_kind { FLOAT_F32, FLOAT_F16, FLOAT_BF16 };

static inline vf load_float(const char *row, size_t i, enum float_kind kind, size_t count)
{
    if (kind == FLOAT_F32) {
        const float *p = (const float *)(const void *)row + i;
        return count == LANES ? vf_load(p) : vf_load_part(p, count);
    }
    const char *p = row + 2 * i;
    if (kind == FLOAT_F16)
        return count == LANES ? vf_load_f16(p) : vf_load_f16_part(p, count);
    return count == LANES ? vf_load_bf16(p) : vf_load_bf16_part(p, count);
}

/* Same for the lanes of one register. `count` may be zero. */
static inline vp load_float_part(const char *row, size_t i, enum float_kind kind, size_t count)
{
    if (kind == FLOAT_F32) {
        const float *p = (const float *)(const void *)row + i;
        return count == PART_LANES ? vp_load(p) : vp_load_part(p, count);
    }
    const char *p = row + 2 * i;
    if (kind == FLOAT_F16)
        return count == PART_LANES ? vp_load_f16(p) : vp_load_f16_part(p, count);
    return count == PART_LANES ? vp_load_bf16(p) : vp_load_bf16_part(p, count);
}

#define FLOAT_ROWS 4
#define FLOAT_TOKENS 4
#ifndef FLOAT_PART_ROWS
#define FLOAT_PART_ROWS FLOAT_ROWS /* rows whose sums the level keeps in registers */
#endif
#define FLOAT_AHEAD 1024 /* bytes that a row is prefetched before its use */

/* Multiplies with one token: acc[4 * row]. */
INLINE void float_line(const char *const rows[FLOAT_ROWS], enum float_kind kind, const float *x,
                       size_t n, vf acc[LANES])
{
    EACH_VECTOR(n, {
        const vf in = LOAD(x + i);
        UNROLL for (unsigned r = 0; r < FLOAT_ROWS; r++) {
            const vf w = load_float(rows[r], i, kind, count);
            if (kind != FLOAT_F32 || i % 32 == 0)
                __builtin_prefetch(rows[r] + i * (kind == FLOAT_F32 ? 4 : 2) + FLOAT_AHEAD);
            acc[4 * r] = vf_fma(w, in, acc[4 * r]);
        }
    });
}

/* Multiplies with four tokens, and only one register's lanes of each vector, from lane `part` on.
 * So a tile's sums fit into the registers of any level. */
INLINE void float_part(const char *const rows[FLOAT_PART_ROWS], enum float_kind kind,
                       const float *const x[FLOAT_TOKENS], unsigned part, size_t n,
                       vf acc[FLOAT_PART_ROWS * FLOAT_TOKENS])
{
    vp sums[FLOAT_PART_ROWS * FLOAT_TOKENS];
    UNROLL for (unsigned k = 0; k < FLOAT_PART_ROWS * FLOAT_TOKENS; k++)
        sums[k] = vp_zero();
    EACH_VECTOR(n, {
        const size_t left = count > part ? count - part : 0;
        const size_t lanes = count == LANES || left > PART_LANES ? PART_LANES : left;
        vp in[FLOAT_TOKENS];
        UNROLL for (unsigned t = 0; t < FLOAT_TOKENS; t++)
            in[t] = load_float_part((const char *)x[t], i + part, FLOAT_F32, lanes);
        UNROLL for (unsigned r = 0; r < FLOAT_PART_ROWS; r++) {
            const vp w = load_float_part(rows[r], i + part, kind, lanes);
            if (part == 0 && (kind != FLOAT_F32 || i % 32 == 0))
                __builtin_prefetch(rows[r] + i * (kind == FLOAT_F32 ? 4 : 2) + FLOAT_AHEAD);
            UNROLL for (unsigned t = 0; t < FLOAT_TOKENS; t++)
                sums[4 * r + t] = vp_fma(w, in[t], sums[4 * r + t]);
        }
    });
    UNROLL for (unsigned k = 0; k < FLOAT_PART_ROWS * FLOAT_TOKENS; k++)
        vf_put_part(&acc[k], part, sums[k]);
}

/* n_tokens is 1 or FLOAT_TOKENS, a constant where this is inlined. result[4 * row + token]. */
INLINE void float_tile(const char *const rows[FLOAT_ROWS], enum float_kind kind,
                       const float *const x[FLOAT_TOKENS], unsigned n_tokens, size_t n,
                       float result[LANES])
{
    vf acc[LANES];
    if (n_tokens == 1) {
        UNROLL for (unsigned k = 0; k < LANES; k++)
            acc[k] = vf_zero();
        float_line(rows, kind, x[0], n, acc);
    } else {
        for (unsigned r = 0; r < FLOAT_ROWS; r += FLOAT_PART_ROWS)
            for (unsigned part = 0; part < LANES; part += PART_LANES)
                float_part(rows + r, kind, x, part, n, acc + r * FLOAT_TOKENS);
    }
    vf_store(result, vf_sum16(acc));
}

INLINE void float_tokens(const struct kernel_matmul *m, const char *const rows[FLOAT_ROWS],
                         enum float_kind kind, size_t r, size_t n_rows)
{
    const size_t n_cols = m->w->n_cols;
    float result[LANES];
    for (size_t t = 0; t < m->n; t += FLOAT_TOKENS) {
        const size_t n = m->n - t < FLOAT_TOKENS ? m->n - t : FLOAT_TOKENS;
        const float *x[FLOAT_TOKENS];
        for (size_t k = 0; k < FLOAT_TOKENS; k++)
            x[k] = m->in.x + kernel_pick(m, t + (k < n ? k : 0)) * n_cols;
        if (n == 1)
            float_tile(rows, kind, x, 1, n_cols, result);
        else
            float_tile(rows, kind, x, FLOAT_TOKENS, n_cols, result);
        for (size_t k = 0; k < n; k++)
            for (size_t i = 0; i < n_rows; i++)
                *kernel_out(m, t + k, r + i) = result[4 * i + k];
    }
}

INLINE void float_rows(const struct kernel_matmul *m, enum float_kind kind, size_t row_bytes)
{
    for (size_t r = m->begin; r < m->end; r += FLOAT_ROWS) {
        const size_t n = m->end - r < FLOAT_ROWS ? m->end - r : FLOAT_ROWS;
        const char *rows[FLOAT_ROWS];
        for (size_t i = 0; i < FLOAT_ROWS; i++)
            rows[i] = (const char *)m->w->parts[0] + (r + (i < n ? i : 0)) * row_bytes;
        float_tokens(m, rows, kind, r, n);
    }
}

/* For any other format: decodes four rows at a time. */
static void decoded_rows(const struct kernel_matmul *m)
{
    const struct weight *w = m->w;
    for (size_t r = m->begin; r < m->end; r += FLOAT_ROWS) {
        const size_t n = m->end - r < FLOAT_ROWS ? m->end - r : FLOAT_ROWS;
        const char *rows[FLOAT_ROWS];
        for (size_t i = 0; i < FLOAT_ROWS; i++) {
            float *to = m->scratch + (i < n ? i : 0) * w->n_cols;
            rows[i] = (const char *)to;
            if (i >= n)
                continue;
            const void *parts[QUANT_MAX_PARTS] = {NULL};
            weight_row(w, r + i, parts);
            w->quant->decode_row(w->quant, parts, to, w->n_cols);
        }
        float_tokens(m, rows, FLOAT_F32, r, n);
    }
}

static void matmul_float(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    const size_t row_bytes = quant_row_bytes(quant, m->w->n_cols);
    if (quant == &quant_f32)
        float_rows(m, FLOAT_F32, row_bytes);
    else if (quant == &quant_f16)
        float_rows(m, FLOAT_F16, row_bytes);
    else if (quant == &quant_bf16)
        float_rows(m, FLOAT_BF16, row_bytes);
    else
        decoded_rows(m);
}

#endif
