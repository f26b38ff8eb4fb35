/* Advanced SIMD with int8 matrix products (FEAT_I8MM). Unsigned codes are multiplied as they are.
 * Many tokens are multiplied in squares of two rows and two tokens. */
#include "backend/cpu/lanes_neon.h"

#define LEVEL_HAS_PANEL_MULTIPLY
#define LEVEL_HAS_INTERLEAVED_CODES
#define SLICE_COLUMNS SIZE_MAX /* panels of whole rows */
#include "backend/cpu/lanes.h"

#define ROW_PAIRS (LANES / 2)
#define TOKEN_PAIRS 2 /* per tile: 16 rows and 4 tokens take 16 accumulators */

/* low_halves returns the first eight bytes of a and b side by side, high_halves the last eight. */
INLINE uint8x16_t low_halves(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

INLINE uint8x16_t high_halves(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

/* ---- panels [n_cols / 8][8 pairs of rows][2][8], tokens [n / 2][n_cols / 8][2][8] ------------ */

/* Columns [begin, end) of bytes. */
static void panel_of_bytes(const uint8_t *const rows[LANES], size_t begin, size_t end, uint8_t *to)
{
    for (unsigned r = 0; r < LANES; r += 2)
        for (size_t at = begin; at < end; at += 16) {
            const uint8x16_t a = vld1q_u8(rows[r] + at), b = vld1q_u8(rows[r + 1] + at);
            uint8_t *pair = to + (at - begin) * LANES + 8 * r;
            vst1q_u8(pair, low_halves(a, b));
            vst1q_u8(pair + 8 * LANES, high_halves(a, b));
        }
}

static void panel_interleave(const uint8_t *codes, size_t cols, bool is_wide, uint8_t *to)
{
    (void)is_wide;
    const uint8_t *rows[LANES];
    for (unsigned r = 0; r < LANES; r++)
        rows[r] = codes + r * CHUNK;
    panel_of_bytes(rows, 0, cols, to);
}

/* Same for nibble pairs. Of 32 columns the even ones, the lower nibbles, come first. */
static void panel_of_nibbles(const uint8_t *const rows[LANES], size_t begin, size_t end,
                             uint8_t *to)
{
    const uint8x16_t low = vdupq_n_u8(15);
    for (unsigned r = 0; r < LANES; r += 2)
        for (size_t at = begin; at < end; at += 32) {
            const uint8x16_t a = vld1q_u8(rows[r] + at / 2), b = vld1q_u8(rows[r + 1] + at / 2);
            const uint8x16_t x = low_halves(a, b), y = high_halves(a, b);
            uint8_t *pair = to + (at - begin) * LANES + 8 * r;
            vst1q_u8(pair, vandq_u8(x, low));
            vst1q_u8(pair + 8 * LANES, vandq_u8(y, low));
            vst1q_u8(pair + 16 * LANES, vshrq_n_u8(x, 4));
            vst1q_u8(pair + 24 * LANES, vshrq_n_u8(y, 4));
        }
}

static bool panel_codes_of(const struct quant *quant, const struct row_block *block, size_t begin,
                           size_t end, uint8_t *to)
{
    if (!has_whole_codes(quant))
        return false;
    for (size_t next, at = begin; at < end; at = next) {
        next = end - at < CHUNK ? end : at + CHUNK;
        uint8_t *chunk = to + (at - begin) * LANES;
        if (quant->bits == 4)
            panel_of_nibbles(block->codes, at, next, chunk);
        else
            panel_of_bytes(block->codes, at, next, chunk);
    }
    return true;
}

/* Makes pairs of rows from words of four codes each: first those of `a`, then those of `b`. */
INLINE void put_row_pairs(vc a, vc b, uint8_t *to)
{
    UNROLL for (unsigned i = 0; i < 4; i++) {
        const uint32x4_t x = vreinterpretq_u32_u8(a.p[i]), y = vreinterpretq_u32_u8(b.p[i]);
        vst1q_u8(to + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(x, y)));
        vst1q_u8(to + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(x, y)));
    }
}

static void interleaved_codes(const uint8_t *from, size_t n_cols, enum interleaved_kind kind,
                              uint8_t *to)
{
    for (size_t at = 0; at < n_cols; at += 8) {
        const vc x = vc_load(from + at * kind_bits(kind) / 8 * LANES);
        if (kind == KIND_EIGHT)
            put_row_pairs(x, vc_load(from + (at + 4) * LANES), to + at * LANES);
        else
            put_row_pairs(nibbles_of(vc_low_nibbles(x), kind),
                          nibbles_of(vc_high_nibbles(x), kind), to + at * LANES);
    }
}

/* Stores sixteen columns of two tokens. */
INLINE void put_pair(int8x16_t a, int8x16_t b, int8_t *to)
{
    const uint8x16_t x = vreinterpretq_u8_s8(a), y = vreinterpretq_u8_s8(b);
    vst1q_s8(to, vreinterpretq_s8_u8(low_halves(x, y)));
    vst1q_s8(to + 16, vreinterpretq_s8_u8(high_halves(x, y)));
}

/* An odd token at the end is paired with itself. */
static void panel_gather(const struct kernel_matmul *m, float *at, struct panel *p)
{
    const size_t n_cols = m->w->n_cols;
    p->tokens.codes = (int8_t *)at;
    for (size_t t = 0; t < m->n && !m->has_same_inputs; t += 2) {
        const int8_t *a = m->in.q + kernel_pick(m, t) * n_cols;
        const int8_t *b = m->in.q + kernel_pick(m, t + 1 < m->n ? t + 1 : t) * n_cols;
        int8_t *to = p->tokens.codes + t * n_cols;
        for (size_t begin = 0; begin < n_cols; begin += CHUNK) {
            const size_t n = n_cols - begin < CHUNK ? n_cols - begin : CHUNK;
            int8_t x[CHUNK], y[CHUNK];
            order_token(m->w, a + begin, n, x);
            order_token(m->w, b + begin, n, y);
            for (size_t i = 0; i < n; i += 16, to += 32)
                put_pair(vld1q_s8(x + i), vld1q_s8(y + i), to);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

struct squares_tile {
    const int8_t *pairs[TOKEN_PAIRS];
    struct fold_inputs f[2 * TOKEN_PAIRS]; /* scales and biases unused */
};

/* Returns the initial values of the squares of a pair of tokens. */
INLINE int32x4_t pair_start(const struct fold_inputs *f, size_t g, bool has_bias)
{
    const int32_t x = has_bias ? 0 : -f[0].zero * f[0].x_sum[g];
    const int32_t y = has_bias ? 0 : -f[1].zero * f[1].x_sum[g];
    return (int32x4_t){x, y, x, y};
}

/* Computes the dot products of one group: lane j of dots[t] is row j with token t. */
INLINE void squares_of_group(const uint8_t *codes, const struct squares_tile *tile,
                             unsigned n_pairs, size_t g, unsigned group, bool has_bias, vi *dots)
{
    int32x4_t sums[TOKEN_PAIRS][ROW_PAIRS];
    UNROLL for (unsigned t = 0; t < n_pairs; t++)
        UNROLL for (unsigned r = 0; r < ROW_PAIRS; r++)
            sums[t][r] = pair_start(tile->f + 2 * t, g, has_bias);
    for (size_t i = g * group; i < (g + 1) * group; i += 16)
        UNROLL for (unsigned half = 0; half < 2; half++) {
            int8x16_t x[TOKEN_PAIRS];
            UNROLL for (unsigned t = 0; t < n_pairs; t++)
                x[t] = vld1q_s8(tile->pairs[t] + 2 * i + 16 * half);
            UNROLL for (unsigned r = 0; r < ROW_PAIRS; r += 2) {
                const uint8_t *at = codes + (i + 8 * half) * LANES + 16 * r;
                const uint8x16_t a = vld1q_u8(at), b = vld1q_u8(at + 16);
                UNROLL for (unsigned t = 0; t < n_pairs; t++) {
                    sums[t][r] = vusmmlaq_s32(sums[t][r], a, x[t]);
                    sums[t][r + 1] = vusmmlaq_s32(sums[t][r + 1], b, x[t]);
                }
            }
        }
    UNROLL for (unsigned t = 0; t < n_pairs; t++)
        UNROLL for (unsigned k = 0; k < 4; k++) {
            dots[2 * t].p[k] = vuzp1q_s32(sums[t][2 * k], sums[t][2 * k + 1]);
            dots[2 * t + 1].p[k] = vuzp2q_s32(sums[t][2 * k], sums[t][2 * k + 1]);
        }
}

/* Multiplies up to 2 * n_pairs tokens from t0 on. A missing token repeats the last one. */
INLINE void squares_run(const struct kernel_matmul *m, const struct panel *p, size_t t0,
                        unsigned n_pairs, bool has_bias)
{
    const unsigned group = m->w->quant->group;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / group;
    const size_t last = m->n - 1;
    struct squares_tile tile;
    vf acc[2 * TOKEN_PAIRS];
    UNROLL for (unsigned t = 0; t < 2 * n_pairs; t++) {
        const size_t token = t0 + t < last ? t0 + t : last;
        tile.pairs[t / 2] = p->tokens.codes + token / 2 * 2 * n_cols;
        tile.f[t] = fold_inputs_of(m, token, n_groups, NULL, NULL);
        acc[t] = vf_zero();
    }
    for (size_t g = 0; g < n_groups; g++) {
        vi dots[2 * TOKEN_PAIRS];
        squares_of_group(p->codes[0], &tile, n_pairs, g, group, has_bias, dots);
        UNROLL for (unsigned t = 0; t < 2 * n_pairs; t++)
            acc[t] = fold(acc[t], dots[t], p->scales[0] + g * LANES, p->biases[0] + g * LANES,
                          has_bias, tile.f[t].x_scale[g], tile.f[t].x_offset[g]);
    }
    UNROLL for (unsigned t = 0; t < 2 * n_pairs; t++)
        if (t0 + t < m->n)
            store_rows(m, p->blocks[0].first, p->blocks[0].n, p->blocks[0].lane, t0 + t, acc[t]);
}

INLINE void squares(const struct kernel_matmul *m, const struct panel *p, bool has_bias)
{
    size_t t = 0;
    for (; t + 2 < m->n; t += 2 * TOKEN_PAIRS)
        squares_run(m, p, t, TOKEN_PAIRS, has_bias);
    if (t < m->n)
        squares_run(m, p, t, 1, has_bias);
}

static void panel_multiply(const struct kernel_matmul *m, const struct panel *p,
                           struct ahead *ahead)
{
    (void)ahead;
    if (m->w->quant->has_bias)
        squares(m, p, true);
    else
        squares(m, p, false);
}

#define PEAK_SQUARES 16

static uint64_t squares_peak(uint64_t n_rounds)
{
    const uint8x16_t rows = vdupq_n_u8((uint8_t)n_rounds);
    const int8x16_t tokens = vdupq_n_s8((int8_t)n_rounds);
    int32x4_t sums[PEAK_SQUARES];
    UNROLL for (unsigned k = 0; k < PEAK_SQUARES; k++)
        sums[k] = vdupq_n_s32((int32_t)k);
    for (uint64_t i = 0; i < n_rounds; i++)
        UNROLL for (unsigned k = 0; k < PEAK_SQUARES; k++)
            sums[k] = vusmmlaq_s32(sums[k], rows, tokens);
    UNROLL for (unsigned k = 1; k < PEAK_SQUARES; k++)
        sums[0] = vaddq_s32(sums[0], sums[k]);
    volatile int32_t keep = vaddvq_s32(sums[0]);
    (void)keep;
    return n_rounds * PEAK_SQUARES * 2 * 2 * 8 * 2;
}

void k_i8mm_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "i8mm";
    table->int8_peak = squares_peak;
}
