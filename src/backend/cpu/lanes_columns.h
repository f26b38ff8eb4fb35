/* Part of lanes.h: products and panels for levels that unpack codes from the formats' blocks with
 * one row per lane (lanes_formats.h). */
#ifndef FLASHMOE_BACKEND_CPU_LANES_COLUMNS_H
#define FLASHMOE_BACKEND_CPU_LANES_COLUMNS_H

#include "backend/cpu/lanes_side.h"

/* Copies the last columns of affine rows if they are not a whole unit, and pads them with zeros. */
static struct rows row_ends(struct rows rows, size_t at, size_t n, uint8_t to[LANES * SPAN])
{
    memset(to, 0, LANES * SPAN);
    for (unsigned r = 0; r < LANES; r++)
        memcpy(to + r * SPAN, rows.p + r * rows.stride + at, n);
    return (struct rows){.p = to, .stride = SPAN};
}

/* A few tokens against a row block that lies by rows. */
struct few {
    struct rows rows, scales, biases;
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

/* Call before the unit at `column`, whose first group is g. */
INLINE void few_scales_at(struct layout l, const struct few *few, size_t column, size_t g,
                          struct few_scales *s)
{
    const size_t n = few->n_cols - column;
    if (has_heads(l)) {
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
        block_scales(l.codes, few->rows, column / l.block * l.bytes, s->scales, s->biases);
    }
}

/* Groups whose scales are kept. */
INLINE unsigned kept_groups(struct layout l)
{
    return l.codes == QUANT_CODES_AFFINE || l.codes == QUANT_CODES_FP4 ? 8 : l.block / l.group;
}

INLINE vf few_scale(struct layout l, const struct few_scales *s, size_t g)
{
    if (has_heads(l))
        return head_scale(&s->heads, g, l.codes == QUANT_CODES_MXFP4);
    return vf_load(s->scales + g % kept_groups(l) * LANES);
}

INLINE vf few_bias(struct layout l, const struct few_scales *s, size_t g)
{
    if (has_heads(l))
        return head_bias(&s->heads, g);
    return vf_load(s->biases + g % kept_groups(l) * LANES);
}

/* Adds up the dot products of the pieces of a group, from piece i on: 1, or 1, 2 or 4 if affine. */
INLINE vi group_dots(struct layout l, vi (*dots)[2], unsigned i, unsigned n_pieces)
{
    vi sum = group_sum(l, dots[i], i);
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
        const vf scale = few_scale(l, scales, g);
        const vf bias = l.has_bias ? few_bias(l, scales, g) : vf_zero();
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

/* The layout and n_tokens are constants where this is inlined. */
INLINE void few_run(struct layout l, const struct few *few, unsigned n_tokens,
                    vf out[COLUMN_TOKENS])
{
    struct sink s = {.n_tokens = n_tokens, .group = l.group, .is_wide = l.is_wide};
    struct rows rows = few->rows;
    struct few_scales scales;
    uint8_t ends[LANES * SPAN];
    vf acc[COLUMN_TOKENS];
    size_t fetched = 0, g = 0;
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        acc[t] = vf_zero();
    for (size_t column = 0; column < few->n_cols; column += l.unit) {
        size_t at = column / l.block * l.bytes, n = few->n_cols - column;
        const size_t reached = at + column % l.block * l.bytes / l.block;
        for (; l.codes != QUANT_CODES_AFFINE && fetched <= reached; fetched += 16)
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
        else                                                                                       \
            few_run(layout, few, 2, out);                                                          \
    }
ALL_LAYOUTS(FEW)

INLINE void fill_run(struct layout l, struct rows rows, size_t n_cols, uint8_t *to)
{
    rows.is_interleaved = l.is_interleaved;
    rows.has_ahead = false;
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

/* A weight has `few` or, if its blocks are interleaved, `side`. */
struct column_functions {
    void (*few)(const struct few *few, unsigned n_tokens, vf *out);
    void (*side)(const struct side *side, unsigned n_tokens, vf out[SIDE_BLOCKS][COLUMN_TOKENS]);
    void (*fill)(struct rows rows, size_t n_cols, uint8_t *to);
};

static const struct column_functions *column_functions_of(const struct weight *w)
{
    enum {
#define NUMBER(name, layout) FORMAT_##name,
        ALL_LAYOUTS(NUMBER)
    };
    static const struct column_functions all[] = {
#define FUNCTIONS(name, layout) {.few = few_##name, .fill = fill_##name},
        ALL_LAYOUTS(FUNCTIONS)
    };
    static const struct column_functions side[] = {
#define FUNCTIONS_SIDE(name, layout) {.side = side_##name, .fill = fill_##name##_side},
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

/* Finds what to prefetch beside the row blocks from r on. It may belong to another matrix. Where
 * nothing comes next it is what is multiplied now: what lies behind is for other threads. */
static void side_find_next(const struct kernel_matmul *m, size_t r, struct side *side)
{
    const struct weight *w = m->w;
    const bool has_runs = side_max_blocks(w->quant) == 1;
    const size_t run = has_runs ? (r - m->begin) / LANES % SIDE_RUNS : 0;
    size_t row = r + (has_runs ? SIDE_RUNS - run : side->n_blocks) * LANES;
    if (row >= m->end && m->next == NULL) {
        side->next = side->p;
        side->next_step = 0;
        return;
    }
    if (row >= m->end) {
        w = m->next;
        row = m->next_row;
    }
    const size_t row_bytes = quant_part_row_bytes(w->quant, 0, w->n_cols);
    side->next_step = LANES * row_bytes;
    side->next = (const uint8_t *)w->parts[0] + row * row_bytes + side->next_step / SIDE_RUNS * run;
}

/* scratch: what the sums of each token's groups begin with. */
static void matmul_side(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    const size_t row_bytes = quant_part_row_bytes(quant, 0, n_cols);
    const struct column_functions *functions = column_functions_of(m->w);
    const unsigned max_blocks = side_max_blocks(quant);
    int32_t *starts = (int32_t *)(void *)m->scratch;
    struct side side = {.n_cols = n_cols, .step = LANES * row_bytes};
    for (size_t t = 0; t < m->n; t++, starts += n_groups) {
        const struct fold_inputs f = fold_inputs_of(m, t, n_groups, NULL, NULL);
        const int32_t excess = surplus(&f, quant->has_bias, quant->has_wide_codes);
        for (size_t g = 0; g < n_groups; g++)
            starts[g] = -excess * f.x_sum[g];
        side.f[t] = f;
        side.start[t] = starts;
        side.q[t] = m->in.q + kernel_pick(m, t) * n_cols;
    }
    for (size_t r = m->begin; r < m->end; r += side.n_blocks * LANES) {
        const size_t left = (m->end - r) / LANES;
        vf out[SIDE_BLOCKS][COLUMN_TOKENS];
        side.n_blocks = left < max_blocks ? (unsigned)left : max_blocks;
        side.p = (const uint8_t *)m->w->parts[0] + r * row_bytes;
        side_find_next(m, r, &side);
        functions->side(&side, (unsigned)m->n, out);
        for (unsigned b = 0; b < side.n_blocks; b++)
            for (size_t t = 0; t < m->n; t++)
                vf_store(kernel_out(m, t, r + b * LANES), out[b][t]);
    }
}

/* scratch: the tokens of formats with an order of their own, padded with zeros. */
static void matmul_few(const struct kernel_matmul *m)
{
    if (m->w->is_interleaved) {
        matmul_side(m);
        return;
    }
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
    for (size_t t = 0; t < m->n; t++) {
        few.f[t] = fold_inputs_of(m, t, n_groups, NULL, NULL);
        few.q[t] = is_ordered ? tokens + t * padded : m->in.q + kernel_pick(m, t) * n_cols;
    }
    for (size_t r = m->begin; r < m->end; r += block.n) {
        row_block_at(m, r, &block);
        few.rows = rows_of(m->w, &block, 0);
        if (is_ordered)
            few.scales = rows_of(m->w, &block, 1);
        if (is_affine && quant->has_bias)
            few.biases = rows_of(m->w, &block, 2);
        vf out[COLUMN_TOKENS];
        functions->few(&few, (unsigned)m->n, out);
        for (size_t t = 0; t < m->n; t++)
            store_rows(m, block.first, block.n, block.lane, t, out[t]);
    }
}

static void order_token(const struct weight *w, const int8_t *from, size_t n, int8_t *to)
{
    if (has_order(w->quant))
        order_columns(w->quant, from, n, to);
    else
        memcpy(to, from, n);
}

static void panel_fill(const struct kernel_matmul *m, const struct row_block *block, size_t begin,
                       size_t end, uint8_t *chunk, uint8_t *to, float *scales, float *biases)
{
    (void)chunk;
    if (is_interleaved_apart(m->w)) {
        interleaved_fill(m->w, block->first, begin, end, to, scales, biases);
        return;
    }
    scales_of(m->w, block, begin, end, scales, biases);
    column_functions_of(m->w)->fill(rows_from(rows_of(m->w, block, 0), m->w->quant, begin),
                                    end - begin, to);
}

#endif
