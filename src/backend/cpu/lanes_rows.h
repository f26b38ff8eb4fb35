/* Part of lanes.h: unpacks codes from the formats' blocks row by row. A few tokens are multiplied
 * with the rows as they lie in memory, 16 rows at a time, and a group's dot products are summed
 * across lanes. Many tokens are multiplied with a panel, which holds four columns of each row side
 * by side. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_ROWS_H
#define FLASHMOE_BACKEND_CPU_LANES_ROWS_H

/* Sixteen rows from `first` on. After the end of the caller's rows the last one is repeated. */
struct row_block {
    const uint8_t *codes[LANES]; /* part 0 of each row */
    const uint8_t *scales[LANES], *biases[LANES]; /* of formats that have them apart */
    size_t first, n;
    size_t lane; /* of row `first`: always 0 */
};

static void row_block_at(const struct kernel_matmul *m, size_t first, struct row_block *b)
{
    b->first = first;
    b->lane = 0;
    b->n = m->end - first < LANES ? m->end - first : LANES;
    for (size_t i = 0; i < LANES; i++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        weight_row(m->w, first + (i < b->n ? i : b->n - 1), parts);
        b->codes[i] = parts[0];
        b->scales[i] = parts[1];
        b->biases[i] = parts[2];
    }
}

/* True if codes are stored as bytes or nibble pairs. */
static inline bool has_whole_codes(const struct quant *quant)
{
    return quant->codes == QUANT_CODES_AFFINE && (quant->bits == 4 || quant->bits == 8);
}

/* True if a panel's codes, and so its tokens, are in the order of nibbles: those of `w`. */
static inline bool has_nibble_order(const struct weight *w)
{
    return (has_whole_codes(w->quant) && w->quant->bits == 4) ||
           (w->quant->codes == QUANT_CODES_FP4 && w->is_interleaved);
}

/* One value of each row for each group: out[g * 16 + row]. */
static void transpose_halves(const uint8_t *const rows[LANES], size_t n_groups, bool is_f16,
                             float *out);

/* The scales of affine rows from group g on, and their biases where the format has them. */
static void transpose_scales(const struct quant *quant, const struct row_block *block, size_t g,
                             size_t n_groups, float *scales, float *biases)
{
    const uint8_t *rows[LANES];
    for (unsigned r = 0; r < LANES; r++)
        rows[r] = block->scales[r] + 2 * g;
    transpose_halves(rows, n_groups, quant->scale == &quant_f16, scales);
    if (!quant->has_bias)
        return;
    for (unsigned r = 0; r < LANES; r++)
        rows[r] = block->biases[r] + 2 * g;
    transpose_halves(rows, n_groups, quant->scale == &quant_f16, biases);
}

/* Unpacks columns [begin, end) of sixteen rows: codes[row * CHUNK], and scales and biases by
 * group and row as above. */
#define UNPACK_BLOCKS(format, columns, bytes, group)                                               \
    for (size_t b = begin / (columns); b < end / (columns); b++) {                                 \
        const size_t at = b * (columns) - begin;                                                   \
        for (unsigned r = 0; r < LANES; r++)                                                       \
            format##_unpack(block->codes[r] + b * (bytes), codes + r * CHUNK + at,                 \
                            scales + at / (group) * LANES + r, biases + at / (group) * LANES + r,  \
                            LANES);                                                                \
    }                                                                                              \
    break

static void unpack_chunk(const struct quant *quant, const struct row_block *block, size_t begin,
                         size_t end, uint8_t *codes, float *scales, float *biases)
{
    switch (quant->codes) {
    case QUANT_CODES_Q8_0: UNPACK_BLOCKS(q8_0, 32, 34, 32);
    case QUANT_CODES_Q4_0: UNPACK_BLOCKS(q4_0, 32, 18, 32);
    case QUANT_CODES_Q4_1: UNPACK_BLOCKS(q4_1, 32, 20, 32);
    case QUANT_CODES_Q5_0: UNPACK_BLOCKS(q5_0, 32, 22, 32);
    case QUANT_CODES_Q5_1: UNPACK_BLOCKS(q5_1, 32, 24, 32);
    case QUANT_CODES_MXFP4: UNPACK_BLOCKS(mxfp4, 32, 17, 32);
    case QUANT_CODES_IQ4_NL: UNPACK_BLOCKS(iq4_nl, 32, 18, 32);
    case QUANT_CODES_IQ4_XS: UNPACK_BLOCKS(iq4_xs, 256, 136, 32);
    case QUANT_CODES_Q2_K: UNPACK_BLOCKS(q2_k, 256, 84, 16);
    case QUANT_CODES_Q3_K: UNPACK_BLOCKS(q3_k, 256, 110, 16);
    case QUANT_CODES_Q4_K: UNPACK_BLOCKS(q4_k, 256, 144, 32);
    case QUANT_CODES_Q5_K: UNPACK_BLOCKS(q5_k, 256, 176, 32);
    case QUANT_CODES_Q6_K: UNPACK_BLOCKS(q6_k, 256, 210, 16);
    case QUANT_CODES_FP4:
        for (unsigned r = 0; r < LANES; r++) {
            codes_fp4(block->codes[r] + begin / 2, codes + r * CHUNK, end - begin);
            for (size_t g = begin / 32; g < end / 32; g++)
                scales[(g - begin / 32) * LANES + r] = codes_mxfp4_scale(block->scales[r][g]);
        }
        break;
    case QUANT_CODES_AFFINE: /* scales and biases: transpose_halves */
        for (unsigned r = 0; r < LANES; r++)
            codes_affine(block->codes[r] + begin * quant->bits / 8, quant->bits, codes + r * CHUNK,
                         end - begin);
        break;
    case QUANT_NO_CODES: break;
    }
}
/* ---- a few tokens: the rows as they lie ------------------------------------------------------ */

/* Puts the even columns of every span first, then the odd ones. */
static void split_nibble_columns(const int8_t *q, size_t n, int8_t *split)
{
    for (size_t at = 0; at < n; at += SPAN, q += SPAN, split += SPAN) {
        const size_t cols = n - at < SPAN ? n - at : SPAN;
        for (size_t i = 0; i < cols / 2; i++) {
            split[i] = q[2 * i];
            split[SPAN / 2 + i] = q[2 * i + 1];
        }
    }
}

/* Multiplies affine codes of four or eight bits straight from memory. `ahead` is the distance to
 * the same place sixteen rows further on, which is prefetched meanwhile. */
INLINE vf direct_row_block(const struct row_block *block, const struct fold_inputs *f,
                           const int8_t *q, size_t n_cols, unsigned bits, unsigned group,
                           bool has_bias, size_t ahead)
{
    vf acc = vf_zero();
    vi dots[SPAN / KERNEL_SMALLEST_GROUP];
    const uint8_t *rows[LANES];
    size_t at = 0;
    for (; at + SPAN <= n_cols; at += SPAN) {
        for (unsigned r = 0; r < LANES; r++) {
            rows[r] = block->codes[r] + at * bits / 8;
            __builtin_prefetch(rows[r] + ahead);
            if (bits == 8)
                __builtin_prefetch(rows[r] + ahead + 64);
        }
        if (bits == 4)
            vi_dots_nibbles(rows, q + at, SPAN, group, dots);
        else
            vi_dots_bytes(rows, q + at, SPAN, group, true, dots);
        acc = fold_span(acc, dots, f, at / group, SPAN / group, has_bias, bits == 8);
    }
    if (at < n_cols) {
        const unsigned rest = (unsigned)(n_cols - at);
        for (unsigned r = 0; r < LANES; r++)
            rows[r] = block->codes[r] + at * bits / 8;
        if (bits == 4)
            vi_dots_nibbles(rows, q + at, rest, group, dots);
        else
            vi_dots_bytes(rows, q + at, rest, group, true, dots);
        acc = fold_span(acc, dots, f, at / group, rest / group, has_bias, bits == 8);
    }
    return acc;
}

#define DIRECT(bits)                                                                               \
    (bits == 4 && !quant->has_bias                                                                 \
         ? direct_row_block(block, &f, q, n_cols, bits, 32, false, ahead)                          \
     : quant->group == 32 ? direct_row_block(block, &f, q, n_cols, bits, 32, true, ahead)          \
     : quant->group == 64 ? direct_row_block(block, &f, q, n_cols, bits, 64, true, ahead)          \
                          : direct_row_block(block, &f, q, n_cols, bits, 128, true, ahead))

/* scratch: scales and biases [n_groups, 16] each, then the activations in their order. */
static void direct_block(const struct kernel_matmul *m, const struct row_block *block,
                         const int8_t *ordered)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    const size_t padded = (n_cols + SPAN - 1) / SPAN * SPAN;
    const size_t ahead = quant_part_row_bytes(quant, 0, n_cols) * LANES;
    float *scales = m->scratch, *biases = scales + n_groups * LANES;
    transpose_scales(quant, block, 0, n_groups, scales, biases);
    for (size_t t = 0; t < m->n; t++) {
        const struct fold_inputs f = fold_inputs_of(m, t, n_groups, scales, biases);
        const int8_t *q = ordered != NULL ? ordered + t * padded
                                          : m->in.q + kernel_pick(m, t) * n_cols;
        store_rows(m, block->first, block->n, 0, t, quant->bits == 4 ? DIRECT(4) : DIRECT(8));
    }
}

static void matmul_direct(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, padded = (n_cols + SPAN - 1) / SPAN * SPAN;
    int8_t *ordered = NULL;
    if (quant->bits == 4) {
        ordered = (int8_t *)(m->scratch + 2 * n_cols / quant->group * LANES);
        for (size_t t = 0; t < m->n; t++)
            split_nibble_columns(m->in.q + kernel_pick(m, t) * n_cols, n_cols,
                                 ordered + t * padded);
    }
    struct row_block block;
    for (size_t r = m->begin; r < m->end; r += LANES) {
        row_block_at(m, r, &block);
        direct_block(m, &block, ordered);
    }
}

INLINE vf unpacked_span(vf acc, const uint8_t *codes, const int8_t *q, unsigned cols,
                        const struct fold_inputs *f, size_t g, unsigned group, bool has_bias,
                        bool is_wide)
{
    const uint8_t *rows[LANES];
    vi dots[SPAN / KERNEL_SMALLEST_GROUP];
    for (unsigned r = 0; r < LANES; r++)
        rows[r] = codes + r * CHUNK;
    vi_dots_bytes(rows, q, cols, group, is_wide, dots);
    return fold_span(acc, dots, f, g, cols / group, has_bias, is_wide);
}

INLINE vf unpacked_chunk(vf acc, const uint8_t *codes, const int8_t *q, size_t cols,
                         const struct fold_inputs *f, unsigned group, bool has_bias, bool is_wide)
{
    size_t at = 0;
    for (; at + SPAN <= cols; at += SPAN)
        acc = unpacked_span(acc, codes + at, q + at, SPAN, f, at / group, group, has_bias, is_wide);
    if (at < cols)
        acc = unpacked_span(acc, codes + at, q + at, (unsigned)(cols - at), f, at / group, group,
                            has_bias, is_wide);
    return acc;
}

#define UNPACKED(group, has_bias, is_wide)                                                         \
    unpacked_chunk(acc, codes, q, cols, f, group, has_bias, is_wide)

static vf unpacked_token(const struct quant *quant, vf acc, const uint8_t *codes, const int8_t *q,
                         size_t cols, const struct fold_inputs *f)
{
    if (quant->group == 16)
        return quant->has_bias ? UNPACKED(16, true, false) : UNPACKED(16, false, false);
    if (quant->group == 32 && !quant->has_bias)
        return quant->has_wide_codes ? UNPACKED(32, false, true) : UNPACKED(32, false, false);
    if (quant->group == 32)
        return UNPACKED(32, true, false);
    return quant->group == 64 ? UNPACKED(64, true, false) : UNPACKED(128, true, false);
}

/* scratch: affine scales and biases, then a chunk's codes, then its scales and biases. */
static void unpacked_block(const struct kernel_matmul *m, const struct row_block *block)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, group = quant->group, n_groups = n_cols / group;
    const bool is_affine = quant->codes == QUANT_CODES_AFFINE;
    uint8_t *codes = (uint8_t *)m->scratch;
    float *scales = m->scratch + LANES * CHUNK / sizeof(float);
    float *biases = scales + (is_affine ? n_groups : CHUNK / group) * LANES;
    vf acc[PANEL_TOKENS];
    if (is_affine) {
        transpose_scales(quant, block, 0, n_groups, scales, biases);
    }
    for (size_t begin = 0; begin < n_cols; begin += CHUNK) {
        const size_t end = begin + CHUNK < n_cols ? begin + CHUNK : n_cols, g = begin / group;
        unpack_chunk(quant, block, begin, end, codes, scales, biases);
        for (size_t t = 0; t < m->n; t++) {
            struct fold_inputs f = fold_inputs_of(m, t, n_groups, scales, biases);
            f.x_scale += g, f.x_offset += g, f.x_sum += g;
            if (is_affine)
                f.scales += g * LANES, f.biases += g * LANES;
            acc[t] = unpacked_token(quant, begin == 0 ? vf_zero() : acc[t], codes,
                                    m->in.q + kernel_pick(m, t) * n_cols + begin, end - begin, &f);
        }
    }
    for (size_t t = 0; t < m->n; t++)
        store_rows(m, block->first, block->n, 0, t, acc[t]);
}

static void matmul_unpacked(const struct kernel_matmul *m)
{
    struct row_block block;
    for (size_t r = m->begin; r < m->end; r += LANES) {
        row_block_at(m, r, &block);
        unpacked_block(m, &block);
    }
}

static void matmul_few(const struct kernel_matmul *m)
{
    if (has_whole_codes(m->w->quant))
        matmul_direct(m);
    else
        matmul_unpacked(m);
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* A level may keep the columns of a panel in another order than the weight's, if it keeps groups
 * whole and the tokens in the same order. panel_codes_of fills in the codes of columns [begin, end)
 * in one go, or returns false if it cannot. */
static bool panel_codes_of(const struct quant *quant, const struct row_block *block, size_t begin,
                           size_t end, uint8_t *to);

/* Puts sixteen rows of `cols` unpacked codes into the panel. */
static void panel_interleave(const uint8_t *codes, size_t cols, bool is_wide, uint8_t *to);

/* The even columns of 32 first, then the odd ones. */
static void order_even_first(const int8_t *from, size_t n, int8_t *to);

static void order_token(const struct weight *w, const int8_t *from, size_t n, int8_t *to)
{
    if (!has_nibble_order(w))
        memcpy(to, from, n);
    else if (w->is_interleaved)
        order_nibbles(from, n, to);
    else
        order_even_first(from, n, to);
}

static void panel_fill(const struct kernel_matmul *m, const struct row_block *block, size_t begin,
                       size_t end, uint8_t *chunk, uint8_t *to, float *scales, float *biases)
{
    const struct quant *quant = m->w->quant;
    const size_t group = quant->group, n_groups = (end - begin) / group;
    const bool is_affine = quant->codes == QUANT_CODES_AFFINE;
    if (m->w->is_interleaved) {
        interleaved_fill(m->w, block->first, begin, end, to, scales, biases);
        return;
    }
    if (is_affine)
        transpose_scales(quant, block, begin / group, n_groups, scales, biases);
    if (panel_codes_of(quant, block, begin, end, to))
        return;
    for (size_t at = begin, next; at < end; at = next) {
        next = end - at < CHUNK ? end : at + CHUNK;
        const size_t first = is_affine ? 0 : (at - begin) / group * LANES;
        unpack_chunk(quant, block, at, next, chunk, scales + first, biases + first);
        panel_interleave(chunk, next - at, quant->has_wide_codes, to + (at - begin) * LANES);
    }
}

#endif
