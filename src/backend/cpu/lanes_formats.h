/* Part of lanes.h: unpacks codes and scales from the formats' blocks with one row per lane. The
 * packed bytes of 16 rows are transposed, four bytes of each row to a vector (vi_columns). Then one
 * shift or mask works on all rows at once. A vector with four codes of each row is what vi_dot4
 * takes and what a panel holds. Used by levels that define LEVEL_HAS_COLUMNS and with it
 *   vi_columns(p, stride, out)  lane r of out[k] is the k-th four bytes after p + r * stride
 *   vi_load(p)                  16 int32
 *   vi_and, vi_or, vi_xor       bit by bit
 *   vi_select(mask, a, b)       the bits of a where mask has ones, of b elsewhere
 *   vi_srl(a, n), vi_sll(a, n)  logical shifts of every lane by a constant
 *   vi_sra(a, n)                arithmetic shift to the right by a constant
 *   vi_rol(a, n)                rotation to the left by a constant multiple of 8
 *   vi_lookup(table, a)         byte by byte, table[a]; the bytes of a are below 16
 *   vf_of_halves(a)             the low 16 bits of each lane, an f16
 * The codes of one group may come in any order, as long as the tokens are in the same order: see
 * order_columns. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_FORMATS_H
#define FLASHMOE_BACKEND_CPU_LANES_FORMATS_H

/* The rows [first, first + n) among sixteen neighbours from `base` on. n is 16 except at the end. A
 * matrix with fewer than 16 rows is processed row by row, each repeated sixteen times. */
struct row_block {
    size_t first, n, base;
    size_t lane; /* of row `first` */
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
    b->lane = b->first - b->base;
}
#define COLUMN_TOKENS 2 /* tokens multiplied with codes as they are unpacked */
_Static_assert(COLUMN_TOKENS == PANEL_TOKENS - 1, "more tokens have a panel");

/* Where codes go: into a panel, or into the dot products with a few tokens. All members except the
 * pointers are constants where a sink is used. */
struct sink {
    uint8_t *panel; /* [columns / 4][16][4], when n_tokens is 0 */
    const int8_t *q[COLUMN_TOKENS];
    /* Two sums per group, because a single one would be a dependency chain. Groups of 16 columns
     * have one: there are enough of them. */
    vi dots[COLUMN_TOKENS][SPAN / KERNEL_SMALLEST_GROUP][2];
    unsigned n_tokens, group;
    bool is_wide;
};

/* Sixteen rows: where the first begins, and the distance to the next. Or blocks that are
 * interleaved (interleave.h), whose unit at byte `at` of the rows begins at 16 * at. */
struct rows {
    const uint8_t *p;
    size_t stride;
    /* Constants where the blocks are unpacked. has_ahead: what is read from interleaved rows is
     * also prefetched, at the same place after `ahead`. */
    bool is_interleaved, has_ahead;
    const uint8_t *ahead;
};

static struct rows rows_of(const struct weight *w, const struct row_block *block, unsigned part)
{
    const size_t bytes = quant_part_row_bytes(w->quant, part, w->n_cols);
    return (struct rows){.p = (const uint8_t *)w->parts[part] + block->base * bytes,
                         .stride = block->is_repeated ? 0 : bytes,
                         .is_interleaved = w->is_interleaved};
}

/* Returns the same rows from a column on: the first of a block. */
static struct rows rows_from(struct rows rows, const struct quant *quant, size_t column)
{
    rows.p += quant_part_row_bytes(quant, 0, column) * (rows.is_interleaved ? LANES : 1);
    return rows;
}

INLINE void columns(struct rows rows, size_t at, vi out[4])
{
    if (!rows.is_interleaved) {
        vi_columns(rows.p + at, rows.stride, out);
        return;
    }
    UNROLL for (unsigned k = 0; k < 4; k++) {
        if (rows.has_ahead)
            __builtin_prefetch(rows.ahead + LANES * at + 64 * k);
        out[k] = vi_load((const int32_t *)(const void *)(rows.p + LANES * at + 64 * k));
    }
}

/* Returns the half at byte `at`, the last of a block. */
INLINE vf last_half(struct rows rows, size_t at)
{
    vi x[4];
    if (rows.is_interleaved)
        return vf_load_f16(rows.p + LANES * at);
    columns(rows, at - 14, x);
    return vf_of_halves(vi_srl(x[3], 16));
}

/* Puts four codes of each row, columns from `column` on. */
INLINE void put(struct sink *to, unsigned column, vi codes)
{
    if (to->n_tokens == 0)
        vc_store(to->panel + column * LANES, codes);
    UNROLL for (unsigned t = 0; t < to->n_tokens; t++) {
        const unsigned which = to->group > KERNEL_SMALLEST_GROUP ? column / 4 % 2 : 0;
        vi *dots = &to->dots[t][column / to->group][which];
        *dots = vi_dot4(*dots, codes, to->q[t] + column, to->is_wide);
    }
}

/* ---- formats of 32 columns ------------------------------------------------------------------- */

INLINE void put_nibbles(struct rows rows, size_t at, struct sink *to)
{
    vi x[4];
    columns(rows, at, x);
    UNROLL for (unsigned k = 0; k < 4; k++) {
        put(to, 4 * k, field(x[k], 0, 15));
        put(to, 16 + 4 * k, field(x[k], 4, 15));
    }
}

INLINE void put_levels(struct rows rows, size_t at, const uint8_t *table,
                       struct sink *to)
{
    vi x[4];
    columns(rows, at, x);
    UNROLL for (unsigned k = 0; k < 4; k++) {
        put(to, 4 * k, vi_lookup(table, field(x[k], 0, 15)));
        put(to, 16 + 4 * k, vi_lookup(table, field(x[k], 4, 15)));
    }
}

/* Nibbles in the order of the columns. Codes come in the order of nibbles: see order_nibbles. */
INLINE void put_fp4(struct rows rows, size_t at, struct sink *to)
{
    vi x[4];
    columns(rows, at, x);
    UNROLL for (unsigned k = 0; k < 4; k++) {
        put(to, 8 * k, vi_lookup(codes_fp4_doubled, field(x[k], 0, 15)));
        put(to, 8 * k + 4, vi_lookup(codes_fp4_doubled, field(x[k], 4, 15)));
    }
}

INLINE void put_bytes(struct rows rows, size_t at, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi x[4];
        columns(rows, at + 16 * i, x);
        UNROLL for (unsigned k = 0; k < 4; k++)
            put(to, 16 * i + 4 * k, vi_xor(x[k], bytes_of(128)));
    }
}

INLINE vi shifted(vi x, int left)
{
    return left > 0 ? vi_sll(x, (unsigned)left) : left < 0 ? vi_srl(x, (unsigned)-left) : x;
}

/* Extracts bits 4 * k to 4 * k + 3 of every lane, the fifth bits of four codes. */
INLINE vi fifths(vi x, unsigned k)
{
    const int down = 4 - 4 * (int)k;
    const vi pairs = vi_select(0x0000ffffu, shifted(x, down), shifted(x, down + 14));
    return vi_select(0x00ff00ffu, pairs, vi_sll(pairs, 7));
}

INLINE void put_fives(struct rows rows, size_t at, struct sink *to)
{
    vi high[4], x[4];
    columns(rows, at, high);
    columns(rows, at + 4, x);
    UNROLL for (unsigned k = 0; k < 4; k++) {
        put(to, 4 * k, vi_or(field(x[k], 0, 15), vi_and(fifths(high[0], k), bytes_of(16))));
        put(to, 16 + 4 * k,
            vi_or(field(x[k], 4, 15), vi_and(fifths(high[0], 4 + k), bytes_of(16))));
    }
}

/* ---- formats of 256 columns ------------------------------------------------------------------ */

/* 64 columns. The second 32 are upper nibbles. Products that cannot saturate take them where they
 * are, sixteen times as large, and their sums are divided: see group_sum. */
#define UPPER_STAY (WIDE_CODES_SHIFT == 0)
INLINE void put_q4_k(struct rows rows, size_t at, size_t unit, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi x[4];
        columns(rows, at + 16 + 32 * unit + 16 * i, x);
        UNROLL for (unsigned k = 0; k < 4; k++) {
            put(to, 16 * i + 4 * k, field(x[k], 0, 15));
            put(to, 32 + 16 * i + 4 * k,
                UPPER_STAY && to->n_tokens > 0 ? vi_and(x[k], bytes_of(0xf0))
                                               : field(x[k], 4, 15));
        }
    }
}

/* 128 columns, like the formats below. */
INLINE void put_q5_k(struct rows rows, size_t at, size_t unit, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi high[4];
        columns(rows, at + 16 + 16 * i, high);
        if (unit == 1)
            UNROLL for (unsigned k = 0; k < 4; k++)
                high[k] = vi_srl(high[k], 4);
        UNROLL for (unsigned g = 0; g < 4; g += 2) {
            vi x[4];
            columns(rows, at + 48 + 64 * unit + 16 * g + 16 * i, x);
            UNROLL for (unsigned k = 0; k < 4; k++) {
                const vi low = vi_select(0x0f0f0f0fu, x[k], shifted(high[k], 4 - (int)g));
                const vi next = vi_select(0x0f0f0f0fu, vi_srl(x[k], 4),
                                          shifted(high[k], 3 - (int)g));
                put(to, 32 * g + 16 * i + 4 * k, field(low, 0, 31));
                put(to, 32 * g + 32 + 16 * i + 4 * k, field(next, 0, 31));
            }
        }
    }
}

INLINE void put_q6_k(struct rows rows, size_t at, size_t unit, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi high[4];
        columns(rows, at + 128 + 32 * unit + 16 * i, high);
        UNROLL for (unsigned j = 0; j < 2; j++) {
            vi x[4];
            columns(rows, at + 64 * unit + 32 * j + 16 * i, x);
            UNROLL for (unsigned k = 0; k < 4; k++) {
                const vi low = vi_select(0x0f0f0f0fu, x[k], shifted(high[k], 4 - 2 * (int)j));
                const vi next = vi_select(0x0f0f0f0fu, vi_srl(x[k], 4),
                                          shifted(high[k], -2 * (int)j));
                put(to, 32 * j + 16 * i + 4 * k, field(low, 0, 63));
                put(to, 64 + 32 * j + 16 * i + 4 * k, field(next, 0, 63));
            }
        }
    }
}

INLINE void put_q2_k(struct rows rows, size_t at, size_t unit, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi x[4];
        columns(rows, at + 16 + 32 * unit + 16 * i, x);
        UNROLL for (unsigned k = 0; k < 4; k++)
            UNROLL for (unsigned j = 0; j < 4; j++)
                put(to, 32 * j + 16 * i + 4 * k, field(x[k], 2 * j, 3));
    }
}

INLINE void put_q3_k(struct rows rows, size_t at, size_t unit, struct sink *to)
{
    UNROLL for (unsigned i = 0; i < 2; i++) {
        vi x[4], high[4];
        columns(rows, at + 32 + 32 * unit + 16 * i, x);
        columns(rows, at + 16 * i, high);
        UNROLL for (unsigned k = 0; k < 4; k++) {
            if (unit == 1)
                high[k] = vi_srl(high[k], 4);
            UNROLL for (unsigned j = 0; j < 4; j++)
                put(to, 32 * j + 16 * i + 4 * k,
                    field(vi_select(0x03030303u, shifted(x[k], -2 * (int)j),
                                    shifted(high[k], 2 - (int)j)), 0, 7));
        }
    }
}

/* ---- affine: see lanes_planes.h -------------------------------------------------------------- */

/* Puts all codes of the units in whole planes, `bits` bits each, from `column` on. */
INLINE void put_planes(const vi *planes, unsigned bits, unsigned n_codes, unsigned column,
                       struct sink *to)
{
    UNROLL for (unsigned i = 0; i < n_codes; i++)
        put(to, column + 4 * i, plane_codes(planes, bits, i));
}

/* Prefetches a line of four of the next sixteen rows into the L2 cache: a quarter of the rows for
 * every sixteen bytes of a line. Prefetching all sixteen rows at once fills the miss buffers, and
 * computing waits: 7 % slower (docs/BENCHMARKS.md). */
INLINE void fetch_quarter(struct rows rows, size_t at)
{
    const uint8_t *p = rows.p + at + (LANES + at / 16 % 4 * 4) * rows.stride;
    UNROLL for (unsigned r = 0; r < 4; r++, p += rows.stride) {
        OPAQUE(p);
        __builtin_prefetch(p, 0, 2);
    }
}

/* Puts n_columns columns from `column` on, at bytes `at` of the rows: whole vectors of packed
 * bytes. */
INLINE void put_affine(struct rows rows, size_t at, unsigned bits, unsigned column,
                       unsigned n_columns, struct sink *to)
{
    const unsigned codes = unit_codes(bits), n = codes * bits / 8;
    vi x[SPAN * 6 / 32], planes[5];
    unsigned have = 0;
    UNROLL for (unsigned k = 0; k < n_columns / 4 / codes; k++) {
        UNROLL for (unsigned i = 0; i < 2; i++)
            if (have < (k + 1) * n) {
                if (to->n_tokens > 0)
                    fetch_quarter(rows, at + 4 * have);
                columns(rows, at + 4 * have, x + have);
                have += 4;
            }
        planes_of(x + n * k, bits, planes);
        put_planes(planes, bits, codes, column + 4 * codes * k, to);
    }
}

/* The order of 32 of the tokens' columns that matches the order of affine codes. */
#define ORDER_2                                                                                    \
    0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 16, 20, 24, 28, 17, 21, 25, 29, 18, 22,  \
        26, 30, 19, 23, 27, 31
#define ORDER_3                                                                                    \
    0, 24, 16, 8, 1, 25, 17, 9, 2, 26, 18, 10, 3, 27, 19, 11, 4, 28, 20, 12, 5, 29, 21, 13, 6, 30, \
        22, 14, 7, 31, 23, 15
#define ORDER_5                                                                                    \
    0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, \
        22, 30, 7, 15, 23, 31
#define ORDER_6                                                                                    \
    0, 12, 8, 4, 1, 13, 9, 5, 2, 14, 10, 6, 3, 15, 11, 7, 16, 28, 24, 20, 17, 29, 25, 21, 18, 30,  \
        26, 22, 19, 31, 27, 23
#define ORDER(...)                                                                                 \
    for (size_t i = 0; i < n; i += sizeof(order_vector)) {                                         \
        order_vector x;                                                                            \
        memcpy(&x, from + i, sizeof x);                                                            \
        x = __builtin_shufflevector(x, x, __VA_ARGS__);                                            \
        memcpy(to + i, &x, sizeof x);                                                              \
    }                                                                                              \
    break

/* Reorders n columns, a multiple of 32, of a format whose codes come in an order of their own. */
static void order_columns(const struct quant *quant, const int8_t *from, size_t n, int8_t *to)
{
    switch (quant->bits) {
    case 2: ORDER(ORDER_2);
    case 3: ORDER(ORDER_3);
    case 4: order_nibbles(from, n, to); break;
    case 5: ORDER(ORDER_5);
    case 6: ORDER(ORDER_6);
    default: memcpy(to, from, n); break;
    }
}

/* ---- scales ---------------------------------------------------------------------------------- */

INLINE vf negated(vf x)
{
    return vf_sub(vf_set1(-0.0f), x);
}

/* scales[i] = d * (byte i of x - zero), 16 rows each. The bytes are below 128. They are converted
 * where they are and d is divided instead: powers of two change no bit, and no shift is needed. */
INLINE void store_scales(vf d, vi x, int32_t zero, float *scales)
{
    UNROLL for (unsigned i = 0; i < 4; i++) {
        const float unit = (float)(1u << 8 * i);
        const vf value = vf_of_vi(vi_and(x, vi_set1((int32_t)(127u << 8 * i))));
        vf_store(scales + i * LANES,
                 vf_mul(i == 0 ? d : vf_mul(d, vf_set1(1 / unit)),
                        zero == 0 ? value : vf_sub(value, vf_set1((float)zero * unit))));
    }
}

/* The same with signed bytes. */
INLINE void store_signed_scales(vf d, vi x, float *scales)
{
    const vf part = vf_mul(d, vf_set1(0x1p-24f));
    UNROLL for (unsigned i = 0; i < 4; i++) {
        const vi top = vi_and(shifted(x, 24 - 8 * (int)i), vi_set1((int32_t)0xff000000u));
        vf_store(scales + i * LANES, vf_mul(part, vf_of_vi(top)));
    }
}

INLINE void k_scales(struct rows rows, size_t at, float *scales, float *biases)
{
    vi h[4];
    columns(rows, at, h);
    const vf d = vf_of_halves(h[0]), d_min = negated(vf_of_halves(vi_srl(h[0], 16)));
    const vi high_scales = vi_or(field(h[3], 0, 15), field(h[1], 2, 0x30));
    const vi high_mins = vi_or(field(h[3], 4, 15), field(h[2], 2, 0x30));
    store_scales(d, field(h[1], 0, 63), 0, scales);
    store_scales(d, high_scales, 0, scales + 4 * LANES);
    store_scales(d_min, field(h[2], 0, 63), 0, biases);
    store_scales(d_min, high_mins, 0, biases + 4 * LANES);
}

INLINE void q2_k_scales(struct rows rows, size_t at, float *scales, float *biases)
{
    vi s[4], h[4];
    columns(rows, at, s);
    columns(rows, at + 68, h);
    const vf d = vf_of_halves(h[3]), d_min = negated(vf_of_halves(vi_srl(h[3], 16)));
    for (unsigned q = 0; q < 4; q++) {
        store_scales(d, field(s[q], 0, 15), 0, scales + 4 * q * LANES);
        store_scales(d_min, field(s[q], 4, 15), 0, biases + 4 * q * LANES);
    }
}

INLINE void q3_k_scales(struct rows rows, size_t at, float *scales)
{
    vi s[4];
    columns(rows, at + 92, s);
    const vf d = last_half(rows, at + 108);
    UNROLL for (unsigned q = 0; q < 4; q++) {
        const vi low = field(s[1 + q % 2], q / 2 * 4, 15), high = field(s[3], 2 * q, 3);
        store_scales(d, vi_or(low, vi_sll(high, 4)), 32, scales + 4 * q * LANES);
    }
}

INLINE void q6_k_scales(struct rows rows, size_t at, float *scales)
{
    vi s[4];
    columns(rows, at + 192, s);
    const vf d = last_half(rows, at + 208);
    for (unsigned q = 0; q < 4; q++)
        store_signed_scales(d, s[q], scales + 4 * q * LANES);
}

INLINE void iq4_xs_scales(struct rows rows, size_t at, float *scales)
{
    vi h[4];
    columns(rows, at, h);
    const vf d = vf_of_halves(h[0]);
    UNROLL for (unsigned g = 0; g < 8; g++) {
        const vi low = vi_and(shifted(h[1], -4 * (int)g), vi_set1(15));
        const vi high = vi_and(vi_srl(h[0], 16 + 2 * g), vi_set1(3));
        const vi s = vi_sub(vi_or(low, vi_sll(high, 4)), vi_set1(32));
        vf_store(scales + g * LANES, vf_mul(d, vf_of_vi(s)));
    }
}

/* The heads of blocks of 32 columns are loaded with scalar loads well before they are read as
 * vectors. A vector load cannot be forwarded from several narrower stores; it waits until they are
 * done. */
#define HEADS_AHEAD 8
struct heads {
    uint32_t of[2 * HEADS_AHEAD][LANES];
};

INLINE void heads_fetch(struct heads *heads, struct rows rows, size_t block, unsigned bytes)
{
    const uint8_t *p = rows.p + block * bytes;
    volatile uint32_t *to = heads->of[block % (2 * HEADS_AHEAD)]; /* or it gets vectorised */
    UNROLL for (unsigned r = 0; r < LANES; r++, p += rows.stride) {
        uint32_t head;
        OPAQUE(p);
        memcpy(&head, p, sizeof head);
        to[r] = head;
    }
}

INLINE vf head_scale(const struct heads *heads, size_t block, bool is_mxfp4)
{
    const vi x = vi_load((const int32_t *)heads->of[block % (2 * HEADS_AHEAD)]);
    return is_mxfp4 ? mxfp4_scale(vi_and(x, vi_set1(255))) : vf_of_halves(x);
}

INLINE vf head_bias(const struct heads *heads, size_t block)
{
    return vf_of_halves(vi_srl(vi_load((const int32_t *)heads->of[block % (2 * HEADS_AHEAD)]), 16));
}

/* The same of interleaved blocks, which begin with the heads of sixteen rows. The head of a format
 * with a bias is a word, of another one the scale alone. */
INLINE vf side_scale(struct rows rows, size_t block, unsigned bytes, bool is_mxfp4, bool has_bias)
{
    const uint8_t *at = rows.p + LANES * block * bytes;
    if (is_mxfp4)
        return mxfp4_scale(vi_load_bytes(at));
    return has_bias ? vf_of_halves(vi_load((const int32_t *)(const void *)at)) : vf_load_f16(at);
}

INLINE vf side_bias(struct rows rows, size_t block, unsigned bytes)
{
    const uint8_t *at = rows.p + LANES * block * bytes;
    return vf_of_halves(vi_srl(vi_load((const int32_t *)(const void *)at), 16));
}

static void side_scales(const struct quant *quant, struct rows rows, size_t n_blocks,
                        float *scales, float *biases)
{
    const unsigned bytes = quant->part_block_bytes[0];
    for (size_t b = 0; b < n_blocks; b++) {
        vf_store(scales + b * LANES, side_scale(rows, b, bytes, quant->codes == QUANT_CODES_MXFP4,
                                                quant->has_bias));
        if (quant->has_bias)
            vf_store(biases + b * LANES, side_bias(rows, b, bytes));
    }
}

static void head_scales(const struct quant *quant, struct rows rows, size_t n_blocks,
                        float *scales, float *biases)
{
    struct heads heads;
    for (size_t b = 0; b < n_blocks + HEADS_AHEAD; b++) {
        if (b < n_blocks)
            heads_fetch(&heads, rows, b, quant->part_block_bytes[0]);
        if (b < HEADS_AHEAD)
            continue;
        const size_t done = b - HEADS_AHEAD;
        vf_store(scales + done * LANES,
                 head_scale(&heads, done, quant->codes == QUANT_CODES_MXFP4));
        if (quant->has_bias)
            vf_store(biases + done * LANES, head_bias(&heads, done));
    }
}

/* Converts n bf16 or f16 values of the rows, from the g-th on, to [n, 16]. */
static void half_scales(struct rows rows, size_t g, size_t n, bool is_f16, float *out)
{
    const size_t end = g + n;
    for (; g + 8 <= end; g += 8, out += 8 * LANES) {
        vi x[4];
        columns(rows, 2 * g, x);
        UNROLL for (unsigned k = 0; k < 4; k++) {
            const vi first = vi_sll(x[k], 16), next = vi_select(0xffff0000u, x[k], vi_set1(0));
            vf_store(out + 2 * k * LANES, is_f16 ? vf_of_halves(x[k]) : vf_of_bits(first));
            vf_store(out + (2 * k + 1) * LANES,
                     is_f16 ? vf_of_halves(vi_srl(x[k], 16)) : vf_of_bits(next));
        }
    }
    for (; g < end; g++, out += LANES) {
        uint32_t halves[LANES];
        for (unsigned r = 0; r < LANES; r++) {
            uint16_t half;
            memcpy(&half, rows.p + r * rows.stride + 2 * g, sizeof half);
            halves[r] = half;
        }
        const vi x = vi_load((const int32_t *)halves);
        vf_store(out, is_f16 ? vf_of_halves(x) : vf_of_bits(vi_sll(x, 16)));
    }
}

/* Converts n powers of two of the rows, one byte each, from the g-th on. */
static void byte_scales(struct rows rows, size_t g, size_t n, float *out)
{
    for (const size_t end = g + n; g < end; g++, out += LANES) {
        uint8_t bytes[LANES];
        for (unsigned r = 0; r < LANES; r++)
            bytes[r] = rows.p[r * rows.stride + g];
        vf_store(out, mxfp4_scale(vi_load_bytes(bytes)));
    }
}

/* Scales of one block of 256 columns. */
INLINE void block_scales(enum quant_codes codes, struct rows rows, size_t at, float *scales,
                                float *biases)
{
    switch (codes) {
    case QUANT_CODES_Q2_K: q2_k_scales(rows, at, scales, biases); break;
    case QUANT_CODES_Q3_K: q3_k_scales(rows, at, scales); break;
    case QUANT_CODES_Q6_K: q6_k_scales(rows, at, scales); break;
    case QUANT_CODES_IQ4_XS: iq4_xs_scales(rows, at, scales); break;
    default: k_scales(rows, at, scales, biases); break;
    }
}

/* The scales and biases of columns [begin, end), [groups, 16] each. */
static void scales_of(const struct weight *w, const struct row_block *block, size_t begin,
                      size_t end, float *scales, float *biases)
{
    const struct quant *quant = w->quant;
    const struct rows rows = rows_from(rows_of(w, block, 0), quant, begin);
    const size_t g = begin / quant->group, n = (end - begin) / quant->group;
    if (quant->codes == QUANT_CODES_AFFINE) {
        const bool is_f16 = quant->scale == &quant_f16;
        half_scales(rows_of(w, block, 1), g, n, is_f16, scales);
        if (quant->has_bias)
            half_scales(rows_of(w, block, 2), g, n, is_f16, biases);
    } else if (quant->codes == QUANT_CODES_FP4) {
        byte_scales(rows_of(w, block, 1), g, n, scales);
    } else if (quant->block == 32 && rows.is_interleaved) {
        side_scales(quant, rows, n, scales, biases);
    } else if (quant->block == 32) {
        head_scales(quant, rows, n, scales, biases);
    } else {
        const size_t step = quant->block / quant->group * LANES;
        for (size_t b = 0; b < (end - begin) / quant->block; b++, scales += step, biases += step)
            block_scales(quant->codes, rows, b * quant->part_block_bytes[0], scales, biases);
    }
}

#endif
