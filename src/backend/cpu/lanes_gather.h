/* Part of lanes.h: the tokens of a product in the order in which the kernels read them. So the
 * kernels need one address for all tokens and look nothing up while they multiply. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_GATHER_H
#define FLASHMOE_BACKEND_CPU_LANES_GATHER_H

#define GATHERED_COLUMNS KERNEL_SMALLEST_GROUP /* of one token side by side */

/* n tokens that are multiplied together. */
struct gathered {
    int8_t *codes;  /* [n_cols / 16][n][16], columns in the order of the weight's codes */
    float *factors; /* [n_groups][3][n]: scales, offsets, and what the sums begin with */
};

/* Puts columns of a token, whole groups, into the order of the weight's codes. */
static void order_token(const struct weight *w, const int8_t *from, size_t n, int8_t *to);

/* Gathers tokens [t0, t0 + n). */
static void gather(const struct kernel_matmul *m, size_t t0, size_t n, const struct gathered *to)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    for (size_t t = 0; t < n; t++) {
        const struct fold_inputs f = fold_inputs_of(m, t0 + t, n_groups, NULL, NULL);
        const int8_t *from = m->in.q + kernel_pick(m, t0 + t) * n_cols;
        const int32_t excess = surplus(&f, quant->has_bias, quant->has_wide_codes);
        for (size_t at = 0; at < n_cols; at += CHUNK) {
            const size_t n_columns = n_cols - at < CHUNK ? n_cols - at : CHUNK;
            int8_t chunk[CHUNK];
            order_token(m->w, from + at, n_columns, chunk);
            for (size_t i = 0; i < n_columns; i += GATHERED_COLUMNS)
                memcpy(to->codes + (at + i) * n + t * GATHERED_COLUMNS, chunk + i,
                       GATHERED_COLUMNS);
        }
        for (size_t g = 0; g < n_groups; g++) {
            const int32_t start = -excess * f.x_sum[g];
            float *factors = to->factors + 3 * g * n + t;
            factors[0] = f.x_scale[g];
            if (quant->has_bias)
                factors[n] = f.x_offset[g];
            if (!quant->has_bias || quant->has_wide_codes)
                memcpy(factors + 2 * n, &start, sizeof start);
        }
    }
}

/* Returns what the sums of a token's group begin with. Only for formats that have no biases or have
 * wide codes: for others that is zero, and is not kept. */
INLINE vi gathered_start(const float *factors, unsigned n, unsigned t)
{
    int32_t start;
    memcpy(&start, factors + 2 * n + t, sizeof start);
    return vi_set1(start);
}

#endif
