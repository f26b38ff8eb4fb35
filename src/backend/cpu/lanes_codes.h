/* Part of lanes.h: products with weights that are codes. Sixteen rows are one block: a lane is a
 * row, so the fold over groups needs no order but its own. A few tokens are multiplied with the
 * rows as they lie (a group's dots are summed across lanes, 16 rows at a time); many tokens with
 * a panel, the rows' codes four columns at a time side by side. Both find the same integers. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_CODES_H
#define FLASHMOE_BACKEND_CPU_LANES_CODES_H

#define SPAN 128      /* columns whose dots are found together */
#define CHUNK 256     /* columns unpacked at a time: whole blocks of every format */
#define PANEL_TOKENS 3 /* from this many on, a panel pays */

#ifdef LEVEL_HAS_COLUMNS
/* The rows [first, first + n) among sixteen neighbours from `base` on: n is 16 but at the end. A
 * matrix of fewer rows is taken row by row, each repeated sixteen times. */
struct row_block {
    size_t first, n, base;
    bool is_repeated;
};

static void row_block_at(const struct kernel_matmul *m, size_t first, struct row_block *b)
{
    const size_t n_rows = m->w->n_rows, left = m->end - first;
    b->first = b->base = first;
    b->is_repeated = n_rows < LANES;
    b->n = b->is_repeated ? 1 : left < LANES ? left : LANES;
    if (!b->is_repeated && first + LANES > n_rows)
        b->base = n_rows - LANES;
}
#else
/* Sixteen rows from `first` on; past the end of the caller's rows the last one is repeated. */
struct row_block {
    const uint8_t *codes[LANES]; /* part 0 of each row */
    const uint8_t *scales[LANES], *biases[LANES]; /* affine only */
    size_t first, n, base; /* base: the row of lane 0 */
};

static void row_block_at(const struct kernel_matmul *m, size_t first, struct row_block *b)
{
    b->first = b->base = first;
    b->n = m->end - first < LANES ? m->end - first : LANES;
    for (size_t i = 0; i < LANES; i++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        weight_row(m->w, first + (i < b->n ? i : b->n - 1), parts);
        b->codes[i] = parts[0];
        b->scales[i] = parts[1];
        b->biases[i] = parts[2];
    }
}

/* One value of each row for each group: out[g * 16 + row]. */
static void transpose_halves(const uint8_t *const rows[LANES], size_t n_groups, bool is_f16,
                             float *out)
{
    for (size_t g = 0; g < n_groups; g += LANES) {
        const size_t n = n_groups - g < LANES ? n_groups - g : LANES;
        vi x[LANES];
        for (unsigned r = 0; r < LANES; r++) {
            const uint8_t *p = rows[r] + 2 * g;
            const vf v = is_f16 ? (n == LANES ? vf_load_f16(p) : vf_load_f16_part(p, n))
                                : (n == LANES ? vf_load_bf16(p) : vf_load_bf16_part(p, n));
            x[r] = vi_bits_of(v);
        }
        vi_transpose(x);
        for (unsigned i = 0; i < n; i++)
            vf_store(out + (g + i) * LANES, vf_of_bits(x[i]));
    }
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
    case QUANT_CODES_AFFINE: /* scales and biases: transpose_halves */
        for (unsigned r = 0; r < LANES; r++)
            codes_affine(block->codes[r] + begin * quant->bits / 8, quant->bits, codes + r * CHUNK,
                         end - begin);
        break;
    case QUANT_NO_CODES: break;
    }
}
#endif

/* acc after one more group, sixteen rows of it. */
INLINE vf fold(vf acc, vi dots, const float *scales, const float *biases, bool has_bias,
               float x_scale, float x_offset)
{
    const vf scale = vf_mul(vf_load(scales), vf_set1(x_scale));
    acc = vf_fma(scale, vf_of_vi(dots), acc);
    if (has_bias)
        acc = vf_fma(vf_load(biases), vf_set1(x_offset), acc);
    return acc;
}

/* What a product with one token needs of it, and of the rows' scales. */
struct fold_inputs {
    const float *scales, *biases; /* [n_groups, 16] */
    const float *x_scale, *x_offset;
    const int32_t *x_sum;
    int32_t zero;
};

/* What the level's integers have too much, per unit of the group's sum: the zero, less what it
 * takes off wide codes itself. */
INLINE int32_t surplus(const struct fold_inputs *f, bool has_bias, bool is_wide)
{
    return (has_bias ? 0 : f->zero) - (is_wide ? WIDE_CODES_SHIFT : 0);
}

INLINE vf fold_span(vf acc, const vi *dots, const struct fold_inputs *f, size_t g, unsigned n,
                    bool has_bias, bool is_wide)
{
    const int32_t zero = surplus(f, has_bias, is_wide);
    const bool is_centred = has_bias && (!is_wide || WIDE_CODES_SHIFT == 0);
    for (unsigned i = 0; i < n; i++) {
        const vi centred = is_centred ? dots[i] : vi_sub(dots[i], vi_set1(zero * f->x_sum[g + i]));
        acc = fold(acc, centred, f->scales + (g + i) * LANES, f->biases + (g + i) * LANES,
                   has_bias, f->x_scale[g + i], f->x_offset[g + i]);
    }
    return acc;
}

static void store_block(const struct kernel_matmul *m, const struct row_block *block, size_t t,
                        vf result)
{
    float *to = kernel_out(m, t, block->first);
    if (block->n == LANES) {
        vf_store(to, result);
    } else {
        float lanes[LANES];
        vf_store(lanes, result);
        memcpy(to, lanes + (block->first - block->base), block->n * sizeof *to);
    }
}

static struct fold_inputs fold_inputs_of(const struct kernel_matmul *m, size_t t, size_t n_groups,
                                         const float *scales, const float *biases)
{
    const size_t from = kernel_pick(m, t) * n_groups;
    return (struct fold_inputs){.scales = scales, .biases = biases,
                                .x_scale = m->in.scale + from, .x_offset = m->in.offset + from,
                                .x_sum = m->in.sum + from, .zero = (int32_t)m->w->quant->zero};
}

#ifndef LEVEL_HAS_COLUMNS
/* ---- a few tokens: the rows as they lie -------------------------------------------------------- */

/* Even columns, then odd ones, of every span. */
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

/* Affine codes of four or eight bits, straight from memory. `ahead` is the distance to the same
 * place sixteen rows on, which is fetched meanwhile. */
INLINE vf direct_row_block(const struct row_block *block, const struct fold_inputs *f,
                           const int8_t *q, size_t n_cols, unsigned bits, unsigned group,
                           size_t ahead)
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
        acc = fold_span(acc, dots, f, at / group, SPAN / group, true, bits == 8);
    }
    if (at < n_cols) {
        const unsigned rest = (unsigned)(n_cols - at);
        for (unsigned r = 0; r < LANES; r++)
            rows[r] = block->codes[r] + at * bits / 8;
        if (bits == 4)
            vi_dots_nibbles(rows, q + at, rest, group, dots);
        else
            vi_dots_bytes(rows, q + at, rest, group, true, dots);
        acc = fold_span(acc, dots, f, at / group, rest / group, true, bits == 8);
    }
    return acc;
}

#define DIRECT(bits)                                                                               \
    (quant->group == 32   ? direct_row_block(block, &f, q, n_cols, bits, 32, ahead)                \
     : quant->group == 64 ? direct_row_block(block, &f, q, n_cols, bits, 64, ahead)                \
                          : direct_row_block(block, &f, q, n_cols, bits, 128, ahead))

/* scratch: scales and biases [n_groups, 16] each, then the activations in their order. */
static void direct_block(const struct kernel_matmul *m, const struct row_block *block,
                         const int8_t *ordered)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    const size_t padded = (n_cols + SPAN - 1) / SPAN * SPAN;
    const size_t ahead = quant_part_row_bytes(quant, 0, n_cols) * LANES;
    float *scales = m->scratch, *biases = scales + n_groups * LANES;
    transpose_halves(block->scales, n_groups, quant->scale == &quant_f16, scales);
    transpose_halves(block->biases, n_groups, quant->scale == &quant_f16, biases);
    for (size_t t = 0; t < m->n; t++) {
        const struct fold_inputs f = fold_inputs_of(m, t, n_groups, scales, biases);
        const int8_t *q = ordered != NULL ? ordered + t * padded
                                          : m->in.q + kernel_pick(m, t) * n_cols;
        store_block(m, block, t, quant->bits == 4 ? DIRECT(4) : DIRECT(8));
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
        transpose_halves(block->scales, n_groups, quant->scale == &quant_f16, scales);
        transpose_halves(block->biases, n_groups, quant->scale == &quant_f16, biases);
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
        store_block(m, block, t, acc[t]);
}

static void matmul_unpacked(const struct kernel_matmul *m)
{
    struct row_block block;
    for (size_t r = m->begin; r < m->end; r += LANES) {
        row_block_at(m, r, &block);
        unpacked_block(m, &block);
    }
}
#endif

/* ---- many tokens: a panel ---------------------------------------------------------------------- */

/* TILE_BLOCKS row blocks: codes [n_cols / 4][16][4] each, scales and biases [n_groups, 16]. */
struct panel {
    uint8_t *codes[TILE_BLOCKS];
    float *scales[TILE_BLOCKS], *biases[TILE_BLOCKS];
    struct row_block blocks[TILE_BLOCKS];
    unsigned n_blocks;
    const int8_t *tokens; /* [n, n_cols], in the order of the codes; NULL where that is their own */
};

#ifdef LEVEL_HAS_COLUMNS
#include "backend/cpu/lanes_columns.h"
#else

/* Sixteen rows of `cols` unpacked codes into the panel, four columns at a time side by side. */
static void panel_interleave(const uint8_t *codes, size_t cols, uint8_t *to)
{
    for (size_t at = 0; at < cols; at += 64, to += 64 * LANES) {
        const size_t n = cols - at < 64 ? cols - at : 64;
        vi x[LANES];
        for (unsigned r = 0; r < LANES; r++)
            x[r] = vi_load_bytes_part(codes + r * CHUNK + at, n);
        vi_transpose(x);
        for (unsigned i = 0; i < n / 4; i++)
            vc_store(to + i * 64, x[i]);
    }
}

static void panel_fill(const struct kernel_matmul *m, struct panel *p, unsigned b, uint8_t *codes)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, group = quant->group, n_groups = n_cols / group;
    const bool is_affine = quant->codes == QUANT_CODES_AFFINE;
    const struct row_block *block = &p->blocks[b];
    if (is_affine) {
        transpose_halves(block->scales, n_groups, quant->scale == &quant_f16, p->scales[b]);
        transpose_halves(block->biases, n_groups, quant->scale == &quant_f16, p->biases[b]);
    }
    for (size_t begin = 0; begin < n_cols; begin += CHUNK) {
        const size_t end = begin + CHUNK < n_cols ? begin + CHUNK : n_cols;
        const size_t at = is_affine ? 0 : begin / group * LANES;
        unpack_chunk(quant, block, begin, end, codes, p->scales[b] + at, p->biases[b] + at);
        panel_interleave(codes, end - begin, p->codes[b] + begin * LANES);
    }
}
#endif

struct tile {
    const int8_t *q[TILE_TOKENS];
    struct fold_inputs f[TILE_TOKENS]; /* scales and biases unused */
};

#ifndef LEVEL_HAS_DOT4_OF
/* Sixteen columns of a token, and vi_dot4 with the k-th four of them. */
typedef const int8_t *vx;
INLINE vx vx_load(const int8_t *p) { return p; }
INLINE vi vi_dot4_of(vi acc, vc codes, vx x, unsigned k, bool is_wide)
{
    return vi_dot4(acc, codes, x + 4 * k, is_wide);
}
#endif

/* One group of a tile: n_blocks and n_tokens are constants where this is inlined. */
INLINE void tile_group(const struct panel *p, const struct tile *tile, unsigned n_blocks,
                       unsigned n_tokens, size_t g, unsigned group, bool has_bias, bool is_wide,
                       vf acc[TILE_BLOCKS][TILE_TOKENS])
{
    vi dots[TILE_BLOCKS][TILE_TOKENS];
    UNROLL for (unsigned t = 0; t < n_tokens; t++) {
        const struct fold_inputs *f = &tile->f[t];
        const vi start = vi_set1(-surplus(f, has_bias, is_wide) * f->x_sum[g]);
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            dots[b][t] = start;
    }
    for (size_t i = g * group; i < (g + 1) * group; i += KERNEL_SMALLEST_GROUP) {
        vx x[TILE_TOKENS];
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            x[t] = vx_load(tile->q[t] + i);
        UNROLL for (unsigned k = 0; k < KERNEL_SMALLEST_GROUP / 4; k++) {
            vc codes[TILE_BLOCKS];
            UNROLL for (unsigned b = 0; b < n_blocks; b++)
                codes[b] = vc_load(p->codes[b] + (i + 4 * k) * LANES);
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                UNROLL for (unsigned b = 0; b < n_blocks; b++)
                    dots[b][t] = vi_dot4_of(dots[b][t], codes[b], x[t], k, is_wide);
        }
    }
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            acc[b][t] = fold(acc[b][t], dots[b][t], p->scales[b] + g * LANES,
                             p->biases[b] + g * LANES, has_bias, tile->f[t].x_scale[g],
                             tile->f[t].x_offset[g]);
}

INLINE void tile_run(const struct kernel_matmul *m, const struct panel *p, size_t t0,
                     unsigned n_blocks, unsigned n_tokens, bool has_bias, bool is_wide)
{
    const unsigned group = m->w->quant->group;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / group;
    struct tile tile;
    vf acc[TILE_BLOCKS][TILE_TOKENS];
    for (unsigned t = 0; t < n_tokens; t++) {
        tile.q[t] = p->tokens != NULL ? p->tokens + (t0 + t) * n_cols
                                      : m->in.q + kernel_pick(m, t0 + t) * n_cols;
        tile.f[t] = fold_inputs_of(m, t0 + t, n_groups, NULL, NULL);
        for (unsigned b = 0; b < n_blocks; b++)
            acc[b][t] = vf_zero();
    }
    for (size_t g = 0; g < n_groups; g++)
        tile_group(p, &tile, n_blocks, n_tokens, g, group, has_bias, is_wide, acc);
    for (unsigned t = 0; t < n_tokens; t++)
        for (unsigned b = 0; b < n_blocks; b++)
            store_block(m, &p->blocks[b], t0 + t, acc[b][t]);
}

INLINE void panel_tokens(const struct kernel_matmul *m, const struct panel *p, unsigned n_blocks,
                         bool has_bias, bool is_wide)
{
    size_t t = 0;
    for (; t + TILE_TOKENS <= m->n; t += TILE_TOKENS)
        tile_run(m, p, t, n_blocks, TILE_TOKENS, has_bias, is_wide);
    for (; t + 2 <= m->n; t += 2)
        tile_run(m, p, t, n_blocks, 2, has_bias, is_wide);
    if (t < m->n)
        tile_run(m, p, t, n_blocks, 1, has_bias, is_wide);
}

#define PANEL(has_bias, is_wide)                                                                   \
    (TILE_BLOCKS > 1 && p->n_blocks == 1 ? panel_tokens(m, p, 1, has_bias, is_wide)                \
                                         : panel_tokens(m, p, TILE_BLOCKS, has_bias, is_wide))

#ifndef LEVEL_HAS_PANEL_MULTIPLY
static void panel_multiply(const struct kernel_matmul *m, const struct panel *p)
{
    const struct quant *quant = m->w->quant;
    if (quant->has_bias)
        quant->has_wide_codes ? PANEL(true, true) : PANEL(true, false);
    else
        quant->has_wide_codes ? PANEL(false, true) : PANEL(false, false);
}
#endif

/* scratch, all at multiples of 64 bytes: one chunk of codes, then per block the panel's codes,
 * scales and biases: at most 4 * n_cols + 2 * n_cols floats a block; then tokens in order. */
static void matmul_panel(const struct kernel_matmul *m)
{
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / m->w->quant->group;
    uint8_t *chunk = (uint8_t *)m->scratch;
    float *at = m->scratch + LANES * CHUNK / sizeof(float);
    struct panel p = {.tokens = NULL};
    for (unsigned b = 0; b < TILE_BLOCKS; b++) {
        p.codes[b] = (uint8_t *)at;
        p.scales[b] = at + n_cols * LANES / sizeof(float);
        p.biases[b] = p.scales[b] + n_groups * LANES;
        at = p.biases[b] + n_groups * LANES;
    }
#ifdef LEVEL_HAS_COLUMNS
    if (has_order(m->w->quant)) {
        for (size_t t = 0; t < m->n; t++)
            order_columns(m->w->quant, m->in.q + kernel_pick(m, t) * n_cols, n_cols,
                          (int8_t *)at + t * n_cols);
        p.tokens = (const int8_t *)at;
    }
#endif
    for (size_t r = m->begin; r < m->end;) {
        for (p.n_blocks = 0; p.n_blocks < TILE_BLOCKS && r < m->end; p.n_blocks++) {
            row_block_at(m, r, &p.blocks[p.n_blocks]);
            panel_fill(m, &p, p.n_blocks, chunk);
            r += p.blocks[p.n_blocks].n;
        }
        panel_multiply(m, &p);
    }
}

static void matmul(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    if (quant->codes == QUANT_NO_CODES)
        matmul_float(m);
    else if (m->n >= PANEL_TOKENS)
        matmul_panel(m);
#ifdef LEVEL_HAS_COLUMNS
    else
        matmul_few(m);
#else
    else if (quant->codes == QUANT_CODES_AFFINE && (quant->bits == 4 || quant->bits == 8))
        matmul_direct(m);
    else
        matmul_unpacked(m);
#endif
}

#endif
