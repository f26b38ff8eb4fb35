/* Part of lanes.h: products and panels for levels that unpack codes from the formats' blocks with
 * one row per lane (lanes_formats.h). */
#ifndef FLASHMOE_BACKEND_CPU_LANES_COLUMNS_H
#define FLASHMOE_BACKEND_CPU_LANES_COLUMNS_H

#include "backend/cpu/lanes_formats.h"

/* ---- products and panels --------------------------------------------------------------------- */

/* How a format is unpacked: constants. A unit is the columns that are unpacked at once. */
struct layout {
    enum quant_codes codes;
    unsigned bits, block, bytes, unit, group;
    bool has_bias, is_wide;
    bool is_interleaved; /* blocks of sixteen rows lie side by side */
};

#define LAYOUT(name, b, columns, n_bytes, at_once, columns_of_group, bias, wide)                   \
    ((struct layout){.codes = QUANT_CODES_##name, .bits = (b), .block = (columns),                 \
                     .bytes = (n_bytes), .unit = (at_once), .group = (columns_of_group),           \
                     .has_bias = (bias), .is_wide = (wide)})

/* DO(name of the functions, layout) for GGUF's formats, then for every format. Affine dot products
 * cover 32 columns at a time. */
#define GGUF_LAYOUTS(DO)                                                                           \
    DO(q8_0, LAYOUT(Q8_0, 8, 32, 34, 32, 32, false, true))                                         \
    DO(q4_0, LAYOUT(Q4_0, 4, 32, 18, 32, 32, false, false))                                        \
    DO(q4_1, LAYOUT(Q4_1, 4, 32, 20, 32, 32, true, false))                                         \
    DO(q5_0, LAYOUT(Q5_0, 5, 32, 22, 32, 32, false, false))                                        \
    DO(q5_1, LAYOUT(Q5_1, 5, 32, 24, 32, 32, true, false))                                         \
    DO(mxfp4, LAYOUT(MXFP4, 4, 32, 17, 32, 32, false, false))                                      \
    DO(iq4_nl, LAYOUT(IQ4_NL, 4, 32, 18, 32, 32, false, true))                                     \
    DO(iq4_xs, LAYOUT(IQ4_XS, 4, 256, 136, 32, 32, false, true))                                   \
    DO(q2_k, LAYOUT(Q2_K, 2, 256, 84, 128, 16, true, false))                                       \
    DO(q3_k, LAYOUT(Q3_K, 3, 256, 110, 128, 16, false, false))                                     \
    DO(q4_k, LAYOUT(Q4_K, 4, 256, 144, 64, 32, true, false))                                       \
    DO(q5_k, LAYOUT(Q5_K, 5, 256, 176, 128, 32, true, false))                                      \
    DO(q6_k, LAYOUT(Q6_K, 6, 256, 210, 128, 16, false, false))
#define ALL_LAYOUTS(DO)                                                                            \
    GGUF_LAYOUTS(DO)                                                                               \
    DO(fp4, LAYOUT(FP4, 4, 32, 16, 32, 32, false, false))                                          \
    DO(affine2, LAYOUT(AFFINE, 2, SPAN, SPAN / 8 * 2, SPAN, 32, true, false))                      \
    DO(affine3, LAYOUT(AFFINE, 3, SPAN, SPAN / 8 * 3, SPAN, 32, true, false))                      \
    DO(affine4, LAYOUT(AFFINE, 4, SPAN, SPAN / 8 * 4, SPAN, 32, true, false))                      \
    DO(int4, LAYOUT(AFFINE, 4, SPAN, SPAN / 8 * 4, SPAN, 32, false, false))                        \
    DO(affine5, LAYOUT(AFFINE, 5, SPAN, SPAN / 8 * 5, SPAN, 32, true, false))                      \
    DO(affine6, LAYOUT(AFFINE, 6, SPAN, SPAN / 8 * 6, SPAN, 32, true, false))                      \
    DO(affine8, LAYOUT(AFFINE, 8, SPAN, SPAN, SPAN, 32, true, true))

/* The same format with interleaved blocks. */
INLINE struct layout side_by_side(struct layout l)
{
    l.is_interleaved = true;
    return l;
}

/* True if blocks of 32 columns begin with their scale. */
INLINE bool has_heads(struct layout l)
{
    return l.block == 32 && l.codes != QUANT_CODES_FP4;
}

INLINE void put_unit(struct layout l, struct rows rows, size_t at, size_t unit, struct sink *to)
{
    switch (l.codes) {
    case QUANT_CODES_Q8_0: put_bytes(rows, at + 2, to); break;
    case QUANT_CODES_Q4_0: put_nibbles(rows, at + 2, to); break;
    case QUANT_CODES_Q4_1: put_nibbles(rows, at + 4, to); break;
    case QUANT_CODES_Q5_0: put_fives(rows, at + 2, to); break;
    case QUANT_CODES_Q5_1: put_fives(rows, at + 4, to); break;
    case QUANT_CODES_MXFP4: put_levels(rows, at + 1, codes_fp4_doubled, to); break;
    case QUANT_CODES_FP4: put_fp4(rows, at, to); break;
    case QUANT_CODES_IQ4_NL: put_levels(rows, at + 2, codes_iq4_levels, to); break;
    case QUANT_CODES_IQ4_XS: put_levels(rows, at + 8 + 16 * unit, codes_iq4_levels, to); break;
    case QUANT_CODES_Q2_K: put_q2_k(rows, at, unit, to); break;
    case QUANT_CODES_Q3_K: put_q3_k(rows, at, unit, to); break;
    case QUANT_CODES_Q4_K: put_q4_k(rows, at, unit, to); break;
    case QUANT_CODES_Q5_K: put_q5_k(rows, at, unit, to); break;
    case QUANT_CODES_Q6_K: put_q6_k(rows, at, unit, to); break;
    case QUANT_CODES_AFFINE:
        put_affine(rows, at, l.bits, 0, l.bits == 8 ? SPAN / 2 : SPAN, to);
        if (l.bits == 8)
            put_affine(rows, at + SPAN / 2, 8, SPAN / 2, SPAN / 2, to);
        break;
    case QUANT_NO_CODES: break;
    }
}

/* Copies the last columns of affine rows if they are not a whole unit, and pads them with zeros. */
static struct rows row_ends(struct rows rows, size_t at, size_t n, uint8_t to[LANES * SPAN])
{
    memset(to, 0, LANES * SPAN);
    for (unsigned r = 0; r < LANES; r++)
        memcpy(to + r * SPAN, rows.p + r * rows.stride + at, n);
    return (struct rows){to, SPAN, false};
}

/* A few tokens against a row block. */
struct few {
    struct rows rows, scales, biases;
    const uint8_t *ahead; /* what follows interleaved rows: prefetched in runs of `ahead_step` */
    size_t ahead_step;
    const int8_t *q[COLUMN_TOKENS]; /* in the order of the codes, padded to whole units */
    struct fold_inputs f[COLUMN_TOKENS]; /* scales and biases unused */
    size_t n_cols;
    unsigned group; /* the format's */
    bool is_f16;    /* affine scales */
};

/* Scales and biases of the current groups: of a block, of eight groups whose scales are apart, or
 * the heads of the next blocks of 32 columns. */
struct few_scales {
    float scales[16 * LANES], biases[16 * LANES];
    struct heads heads;
};

/* The rows, with a layout that is known when this is compiled. */
INLINE struct rows few_rows(struct layout l, const struct few *few)
{
    struct rows rows = few->rows;
    rows.is_interleaved = l.is_interleaved;
    return rows;
}

/* Call before the unit at `column`, whose first group is g. */
INLINE void few_scales_at(struct layout l, const struct few *few, size_t column, size_t g,
                          struct few_scales *s)
{
    const size_t n = few->n_cols - column;
    if (has_heads(l) && l.is_interleaved) {
        return;
    } else if (has_heads(l)) {
        if (column == 0)
            for (size_t b = 0; b < HEADS_AHEAD && b < n / l.block; b++)
                heads_fetch(&s->heads, few->rows, b, l.bytes);
        if (n > HEADS_AHEAD * l.block)
            heads_fetch(&s->heads, few->rows, column / l.block + HEADS_AHEAD, l.bytes);
    } else if (l.codes == QUANT_CODES_FP4) {
        if (g % 8 == 0)
            byte_scales(few->scales, g, n / l.group < 8 ? n / l.group : 8, s->scales);
    } else if (l.codes == QUANT_CODES_AFFINE) {
        if (g % 8 == 0) {
            const size_t left = n / few->group;
            half_scales(few->scales, g, left < 8 ? left : 8, few->is_f16, s->scales);
            if (l.has_bias)
                half_scales(few->biases, g, left < 8 ? left : 8, few->is_f16, s->biases);
        }
    } else if (column % l.block == 0) {
        block_scales(l.codes, few_rows(l, few), column / l.block * l.bytes, s->scales, s->biases);
    }
}

/* Groups whose scales are kept. */
INLINE unsigned kept_groups(struct layout l)
{
    return l.codes == QUANT_CODES_AFFINE || l.codes == QUANT_CODES_FP4 ? 8 : l.block / l.group;
}

INLINE vf few_scale(struct layout l, const struct few *few, const struct few_scales *s, size_t g)
{
    if (has_heads(l) && l.is_interleaved)
        return side_scale(few->rows, g, l.bytes, l.codes == QUANT_CODES_MXFP4, l.has_bias);
    if (has_heads(l))
        return head_scale(&s->heads, g, l.codes == QUANT_CODES_MXFP4);
    return vf_load(s->scales + g % kept_groups(l) * LANES);
}

INLINE vf few_bias(struct layout l, const struct few *few, const struct few_scales *s, size_t g)
{
    if (has_heads(l) && l.is_interleaved)
        return side_bias(few->rows, g, l.bytes);
    if (has_heads(l))
        return head_bias(&s->heads, g);
    return vf_load(s->biases + g % kept_groups(l) * LANES);
}

/* Adds up the dot products of the pieces of a group, from piece i on: 1, or 1, 2 or 4 if affine. */
INLINE vi group_dots(struct layout l, vi (*dots)[2], unsigned i, unsigned n_pieces)
{
    vi sum = vi_add(dots[i][0], dots[i][1]);
    if (l.codes == QUANT_CODES_AFFINE && i % 2 == 0 && n_pieces >= 2)
        sum = vi_add(sum, vi_add(dots[i + 1][0], dots[i + 1][1]));
    if (l.codes == QUANT_CODES_AFFINE && i == 0 && n_pieces == 4) {
        sum = vi_add(sum, vi_add(dots[2][0], dots[2][1]));
        sum = vi_add(sum, vi_add(dots[3][0], dots[3][1]));
    }
    return sum;
}

/* Adds the unit's n columns to the sums of the rows. Its first group is g. Returns the group after
 * it. */
INLINE size_t fold_unit(struct layout l, const struct few *few, struct sink *s, size_t g, size_t n,
                        const struct few_scales *scales, vf acc[COLUMN_TOKENS])
{
    const unsigned n_pieces = l.codes == QUANT_CODES_AFFINE ? few->group / l.group : 1;
    UNROLL for (unsigned i = 0; i < l.unit / l.group; i++) {
        if (l.codes == QUANT_CODES_AFFINE && (i * l.group >= n || (i & (n_pieces - 1)) != 0))
            continue;
        const vf scale = few_scale(l, few, scales, g);
        const vf bias = l.has_bias ? few_bias(l, few, scales, g) : vf_zero();
        UNROLL for (unsigned t = 0; t < s->n_tokens; t++) {
            const struct fold_inputs *f = &few->f[t];
            vi dots = group_dots(l, s->dots[t], i, n_pieces);
            if (!l.has_bias || (l.is_wide && WIDE_CODES_SHIFT != 0))
                dots = vi_sub(dots, vi_set1(surplus(f, l.has_bias, l.is_wide) * f->x_sum[g]));
            acc[t] = vf_fma(vf_mul(scale, vf_set1(f->x_scale[g])), vf_of_vi(dots), acc[t]);
            if (l.has_bias)
                acc[t] = vf_fma(bias, vf_set1(f->x_offset[g]), acc[t]);
        }
        g++;
    }
    return g;
}

/* Prefetches as much of what comes next as is reached of these rows, from *fetched bytes on. Four
 * runs of it at a time: a single one does not reach the full memory bandwidth. */
INLINE void fetch_runs(const struct few *few, size_t reached, size_t *fetched)
{
    for (; *fetched < reached; *fetched += 4 * 64) {
        const uint8_t *at = few->ahead + *fetched / 4;
        UNROLL for (unsigned i = 0; i < 4; i++)
            __builtin_prefetch(at + i * few->ahead_step, 0, 2);
    }
}

/* The layout and n_tokens are constants where this is inlined. */
INLINE void few_run(struct layout l, const struct few *few, unsigned n_tokens,
                    vf out[COLUMN_TOKENS])
{
    struct sink s = {.n_tokens = n_tokens, .group = l.group, .is_wide = l.is_wide};
    struct rows rows = few_rows(l, few);
    struct few_scales scales;
    uint8_t ends[LANES * SPAN];
    vf acc[COLUMN_TOKENS];
    size_t fetched = 0, g = 0;
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        acc[t] = vf_zero();
    for (size_t column = 0; column < few->n_cols; column += l.unit) {
        size_t at = column / l.block * l.bytes, n = few->n_cols - column;
        const size_t reached = at + column % l.block * l.bytes / l.block;
        if (l.is_interleaved)
            fetch_runs(few, LANES * reached, &fetched);
        for (; !l.is_interleaved && l.codes != QUANT_CODES_AFFINE && fetched <= reached;
             fetched += 16)
            fetch_quarter(few->rows, fetched);
        few_scales_at(l, few, column, g, &scales);
        if (l.codes == QUANT_CODES_AFFINE && n < l.unit) {
            rows = row_ends(rows, at, n / 8 * l.bits, ends);
            at = 0;
        }
        UNROLL for (unsigned t = 0; t < n_tokens; t++) {
            s.q[t] = few->q[t] + column;
            UNROLL for (unsigned i = 0; i < l.unit / l.group; i++)
                s.dots[t][i][0] = s.dots[t][i][1] = vi_set1(0);
        }
        put_unit(l, rows, at, column % l.block / l.unit, &s);
        g = fold_unit(l, few, &s, g, n, &scales, acc);
    }
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        out[t] = acc[t];
}

#define FEW(name, layout)                                                                          \
    static __attribute__((noinline)) void few_##name(const struct few *few, unsigned n_tokens,     \
                                                     vf *out)                                      \
    {                                                                                              \
        if (n_tokens == 1)                                                                         \
            few_run(layout, few, 1, out);                                                          \
        else if (n_tokens == 2)                                                                    \
            few_run(layout, few, 2, out);                                                          \
        else                                                                                       \
            few_run(layout, few, 4, out);                                                          \
    }
ALL_LAYOUTS(FEW)
#define FEW_SIDE(name, layout) FEW(name##_side, side_by_side(layout))
GGUF_LAYOUTS(FEW_SIDE)

INLINE void fill_run(struct layout l, struct rows rows, size_t n_cols, uint8_t *to)
{
    rows.is_interleaved = l.is_interleaved;
    struct sink s = {.panel = to};
    size_t column = 0;
    for (; column + l.unit <= n_cols; column += l.unit) {
        s.panel = to + column * LANES;
        put_unit(l, rows, column / l.block * l.bytes, column % l.block / l.unit, &s);
    }
    if (l.codes == QUANT_CODES_AFFINE && column < n_cols) {
        uint8_t ends[LANES * SPAN], panel[LANES * SPAN];
        s.panel = panel;
        put_unit(l, row_ends(rows, column / 8 * l.bits, (n_cols - column) / 8 * l.bits, ends), 0,
                 0, &s);
        memcpy(to + column * LANES, panel, (n_cols - column) * LANES);
    }
}

#define FILL(name, layout)                                                                         \
    static __attribute__((noinline)) void fill_##name(struct rows rows, size_t n_cols,             \
                                                      uint8_t *to)                                 \
    {                                                                                              \
        fill_run(layout, rows, n_cols, to);                                                        \
    }
ALL_LAYOUTS(FILL)
#define FILL_SIDE(name, layout) FILL(name##_side, side_by_side(layout))
GGUF_LAYOUTS(FILL_SIDE)

struct column_functions {
    void (*few)(const struct few *few, unsigned n_tokens, vf *out);
    void (*fill)(struct rows rows, size_t n_cols, uint8_t *to);
};

static const struct column_functions *column_functions_of(const struct weight *w)
{
    enum {
#define NUMBER(name, layout) FORMAT_##name,
        ALL_LAYOUTS(NUMBER)
    };
    static const struct column_functions all[] = {
#define FUNCTIONS(name, layout) {few_##name, fill_##name},
        ALL_LAYOUTS(FUNCTIONS)
    };
    static const struct column_functions side[] = {
#define FUNCTIONS_SIDE(name, layout) FUNCTIONS(name##_side, layout)
        GGUF_LAYOUTS(FUNCTIONS_SIDE)
    };
    static const uint8_t of_codes[] = {
        [QUANT_CODES_Q8_0] = FORMAT_q8_0, [QUANT_CODES_Q4_0] = FORMAT_q4_0,
        [QUANT_CODES_Q4_1] = FORMAT_q4_1, [QUANT_CODES_Q5_0] = FORMAT_q5_0,
        [QUANT_CODES_Q5_1] = FORMAT_q5_1, [QUANT_CODES_MXFP4] = FORMAT_mxfp4,
        [QUANT_CODES_FP4] = FORMAT_fp4,
        [QUANT_CODES_IQ4_NL] = FORMAT_iq4_nl, [QUANT_CODES_IQ4_XS] = FORMAT_iq4_xs,
        [QUANT_CODES_Q2_K] = FORMAT_q2_k, [QUANT_CODES_Q3_K] = FORMAT_q3_k,
        [QUANT_CODES_Q4_K] = FORMAT_q4_k, [QUANT_CODES_Q5_K] = FORMAT_q5_k,
        [QUANT_CODES_Q6_K] = FORMAT_q6_k};
    static const uint8_t of_bits[] = {[2] = FORMAT_affine2, [3] = FORMAT_affine3,
                                      [4] = FORMAT_affine4, [5] = FORMAT_affine5,
                                      [6] = FORMAT_affine6, [8] = FORMAT_affine8};
    const struct quant *quant = w->quant;
    if (w->is_interleaved)
        return &side[of_codes[quant->codes]];
    if (quant->codes != QUANT_CODES_AFFINE)
        return &all[of_codes[quant->codes]];
    return &all[quant->has_bias ? of_bits[quant->bits] : FORMAT_int4];
}

/* True for formats whose codes come in an order of their own. */
static bool has_order(const struct quant *quant)
{
    return quant->codes == QUANT_CODES_FP4 ||
           (quant->codes == QUANT_CODES_AFFINE && quant->bits != 8);
}

/* Finds the rows that come after those before `next`. They may belong to another matrix. */
static void find_ahead(const struct kernel_matmul *m, size_t next, struct few *few)
{
    const struct weight *w = m->w;
    const size_t row_bytes = quant_part_row_bytes(w->quant, 0, w->n_cols);
    few->ahead = (const uint8_t *)w->parts[0] + next * row_bytes;
    few->ahead_step = LANES * row_bytes / 4;
    if (next >= m->end && m->next != NULL)
        few->ahead = (const uint8_t *)m->next->parts[0] +
                     m->next_row * quant_part_row_bytes(m->next->quant, 0, m->next->n_cols);
}

/* scratch: the tokens of formats with an order of their own, padded with zeros. */
static void matmul_few(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    const struct column_functions *functions = column_functions_of(m->w);
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    const size_t padded = (n_cols + SPAN - 1) / SPAN * SPAN;
    const bool is_affine = quant->codes == QUANT_CODES_AFFINE;
    const bool is_ordered = is_affine || quant->codes == QUANT_CODES_FP4;
    int8_t *tokens = (int8_t *)m->scratch;
    struct few few = {.n_cols = n_cols, .group = quant->group,
                      .is_f16 = quant->scale == &quant_f16};
    struct row_block block;
    for (size_t t = 0; is_ordered && t < m->n; t++) {
        order_columns(quant, m->in.q + kernel_pick(m, t) * n_cols, n_cols, tokens + t * padded);
        memset(tokens + t * padded + n_cols, 0, padded - n_cols);
    }
    for (size_t r = m->begin; r < m->end; r += block.n) {
        row_block_at(m, r, &block);
        few.rows = rows_of(m->w, &block, 0);
        find_ahead(m, r + block.n, &few);
        if (is_ordered)
            few.scales = rows_of(m->w, &block, 1);
        if (is_affine && quant->has_bias)
            few.biases = rows_of(m->w, &block, 2);
        for (size_t t = 0, n; t < m->n; t += n) {
            vf out[COLUMN_TOKENS];
            n = m->n - t >= 4 ? 4 : m->n - t >= 2 ? 2 : 1;
            for (unsigned i = 0; i < n; i++) {
                few.f[i] = fold_inputs_of(m, t + i, n_groups, NULL, NULL);
                few.q[i] = is_ordered ? tokens + (t + i) * padded
                                      : m->in.q + kernel_pick(m, t + i) * n_cols;
            }
            functions->few(&few, (unsigned)n, out);
            for (unsigned i = 0; i < n; i++)
                store_rows(m, block.first, block.n, block.lane, t + i, out[i]);
        }
    }
}

static const int8_t *panel_tokens_of(const struct kernel_matmul *m, int8_t *to)
{
    const size_t n_cols = m->w->n_cols;
    if (!has_order(m->w->quant))
        return NULL;
    for (size_t t = 0; t < m->n; t++)
        order_columns(m->w->quant, m->in.q + kernel_pick(m, t) * n_cols, n_cols, to + t * n_cols);
    return to;
}

static void panel_fill(const struct kernel_matmul *m, const struct row_block *block,
                       uint8_t *chunk, uint8_t *to, float *scales, float *biases)
{
    (void)chunk;
    if (is_interleaved_apart(m->w)) {
        interleaved_fill(m->w, block->first, to, scales, biases);
        return;
    }
    scales_of(m->w, block, scales, biases);
    column_functions_of(m->w)->fill(rows_of(m->w, block, 0), m->w->n_cols, to);
}

#endif
