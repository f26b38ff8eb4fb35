/* Part of lanes.h: products with weights that are floats, or are decoded to floats. Tiles of four
 * rows and four tokens share their loads; every result is its own 16 lanes and tree. */
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

#define FLOAT_ROWS 4
#define FLOAT_TOKENS 4
#define FLOAT_AHEAD 1024 /* bytes a row is fetched ahead of its use */
#ifndef FLOAT_SIDE
#define FLOAT_SIDE 4
#endif

/* Rows [r0, r0 + n_rows) against tokens [t0, t0 + n_tokens), all constants where this is inlined;
 * acc[4 * row + token]. */
INLINE void float_products(const char *const rows[FLOAT_ROWS], enum float_kind kind,
                           const float *const x[FLOAT_TOKENS], unsigned r0, unsigned n_rows,
                           unsigned t0, unsigned n_tokens, size_t n, vf out[LANES])
{
    vf acc[FLOAT_ROWS][FLOAT_TOKENS];
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned t = 0; t < n_tokens; t++)
            acc[r][t] = vf_zero();
    EACH_VECTOR(n, {
        vf in[FLOAT_TOKENS];
        for (unsigned t = 0; t < n_tokens; t++)
            in[t] = LOAD(x[t0 + t] + i);
        for (unsigned r = 0; r < n_rows; r++) {
            const char *row = rows[r0 + r];
            const vf w = load_float(row, i, kind, count);
            if (t0 == 0 && (kind != FLOAT_F32 || i % 32 == 0))
                __builtin_prefetch(row + i * (kind == FLOAT_F32 ? 4 : 2) + FLOAT_AHEAD);
            for (unsigned t = 0; t < n_tokens; t++)
                acc[r][t] = vf_fma(w, in[t], acc[r][t]);
        }
    });
    for (unsigned r = 0; r < n_rows; r++)
        for (unsigned t = 0; t < n_tokens; t++)
            out[4 * (r0 + r) + t0 + t] = acc[r][t];
}

/* n_tokens is a constant where this is inlined. result[4 * row + token]. */
INLINE void float_tile(const char *const rows[FLOAT_ROWS], enum float_kind kind,
                       const float *const x[FLOAT_TOKENS], unsigned n_tokens, size_t n,
                       float result[LANES])
{
    vf acc[LANES];
    for (unsigned k = 0; k < LANES; k++)
        acc[k] = vf_zero();
    if (n_tokens == 1) {
        float_products(rows, kind, x, 0, FLOAT_ROWS, 0, 1, n, acc);
    } else {
        for (unsigned r = 0; r < FLOAT_ROWS; r += FLOAT_SIDE)
            for (unsigned t = 0; t < n_tokens; t += FLOAT_SIDE)
                float_products(rows, kind, x, r, FLOAT_SIDE, t, FLOAT_SIDE, n, acc);
    }
    vf_store(result, vf_sum16(acc));
}

static void float_tokens(const struct kernel_matmul *m, const char *const rows[FLOAT_ROWS],
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

/* Any other format: four rows decoded at a time. */
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
