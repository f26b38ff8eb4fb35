/* Advanced SIMD with int8 matrix products (FEAT_I8MM): unsigned codes are multiplied as they are,
 * and many tokens in squares of two rows and two tokens. */
#include "backend/cpu/lanes_neon.h"

#define LEVEL_HAS_PANEL_INTERLEAVE
#define LEVEL_HAS_PANEL_MULTIPLY
#include "backend/cpu/lanes.h"

#define ROW_PAIRS (LANES / 2)
#define TOKEN_PAIRS 2 /* of a tile: 16 rows and 4 tokens take 16 accumulators */

NEON_INLINE uint8x16_t low_halves(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

NEON_INLINE uint8x16_t high_halves(uint8x16_t a, uint8x16_t b)
{
    return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

/* The panel of this level: [n_cols / 8][8 pairs of rows][2][8]. */
static void panel_interleave(const uint8_t *codes, size_t cols, bool is_wide, uint8_t *to)
{
    (void)is_wide;
    for (size_t at = 0; at < cols; at += 16, to += 16 * LANES)
        for (unsigned r = 0; r < LANES; r += 2) {
            const uint8x16_t a = vld1q_u8(codes + r * CHUNK + at);
            const uint8x16_t b = vld1q_u8(codes + (r + 1) * CHUNK + at);
            vst1q_u8(to + r * 8, low_halves(a, b));
            vst1q_u8(to + r * 8 + 8 * LANES, high_halves(a, b));
        }
}

/* Sixteen columns of two tokens, as two squares' worth. */
struct token_pair {
    int8x16_t halves[2];
};

NEON_INLINE struct token_pair token_pair_load(const int8_t *a, const int8_t *b)
{
    const uint8x16_t x = vreinterpretq_u8_s8(vld1q_s8(a)), y = vreinterpretq_u8_s8(vld1q_s8(b));
    return (struct token_pair){{vreinterpretq_s8_u8(low_halves(x, y)),
                                vreinterpretq_s8_u8(high_halves(x, y))}};
}

/* What the squares of a pair of tokens begin with. */
NEON_INLINE int32x4_t pair_start(const struct fold_inputs *a, const struct fold_inputs *b, size_t g,
                                 bool has_bias)
{
    const int32_t x = has_bias ? 0 : -a->zero * a->x_sum[g];
    const int32_t y = has_bias ? 0 : -b->zero * b->x_sum[g];
    return (int32x4_t){x, y, x, y};
}

/* The dots of one group: lane j of dots[t] is row j with token t. */
INLINE void squares_of_group(const uint8_t *codes, const struct tile *tile, unsigned n_pairs,
                             size_t g, unsigned group, bool has_bias, vi *dots)
{
    int32x4_t sums[TOKEN_PAIRS][ROW_PAIRS];
    for (unsigned t = 0; t < n_pairs; t++)
        for (unsigned r = 0; r < ROW_PAIRS; r++)
            sums[t][r] = pair_start(&tile->f[2 * t], &tile->f[2 * t + 1], g, has_bias);
    for (size_t i = g * group; i < (g + 1) * group; i += 16) {
        struct token_pair x[TOKEN_PAIRS];
        for (unsigned t = 0; t < n_pairs; t++)
            x[t] = token_pair_load(tile->q[2 * t] + i, tile->q[2 * t + 1] + i);
        for (unsigned half = 0; half < 2; half++)
            for (unsigned r = 0; r < ROW_PAIRS; r++) {
                const uint8x16_t pair = vld1q_u8(codes + (i + 8 * half) * LANES + 16 * r);
                for (unsigned t = 0; t < n_pairs; t++)
                    sums[t][r] = vusmmlaq_s32(sums[t][r], pair, x[t].halves[half]);
            }
    }
    for (unsigned t = 0; t < n_pairs; t++)
        for (unsigned k = 0; k < 4; k++) {
            dots[2 * t].p[k] = vuzp1q_s32(sums[t][2 * k], sums[t][2 * k + 1]);
            dots[2 * t + 1].p[k] = vuzp2q_s32(sums[t][2 * k], sums[t][2 * k + 1]);
        }
}

/* Tokens from t0 on, at most 2 * n_pairs of them; a missing one's place is taken by the first. */
INLINE void squares_run(const struct kernel_matmul *m, const struct panel *p, size_t t0,
                        unsigned n_pairs, bool has_bias)
{
    const unsigned group = m->w->quant->group;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / group;
    const size_t left = m->n - t0, n = left < 2 * n_pairs ? left : 2 * n_pairs;
    struct tile tile;
    vf acc[2 * TOKEN_PAIRS];
    for (unsigned t = 0; t < 2 * n_pairs; t++) {
        const size_t from = t0 + (t < n ? t : 0);
        tile.q[t] = m->in.q + kernel_pick(m, from) * n_cols;
        tile.f[t] = fold_inputs_of(m, from, n_groups, NULL, NULL);
        acc[t] = vf_zero();
    }
    for (size_t g = 0; g < n_groups; g++) {
        vi dots[2 * TOKEN_PAIRS];
        squares_of_group(p->codes[0], &tile, n_pairs, g, group, has_bias, dots);
        for (unsigned t = 0; t < 2 * n_pairs; t++)
            acc[t] = fold(acc[t], dots[t], p->scales[0] + g * LANES, p->biases[0] + g * LANES,
                          has_bias, tile.f[t].x_scale[g], tile.f[t].x_offset[g]);
    }
    for (unsigned t = 0; t < n; t++)
        store_block(m, &p->blocks[0], t0 + t, acc[t]);
}

INLINE void squares(const struct kernel_matmul *m, const struct panel *p, bool has_bias)
{
    size_t t = 0;
    for (; t + 2 < m->n; t += 2 * TOKEN_PAIRS)
        squares_run(m, p, t, TOKEN_PAIRS, has_bias);
    if (t < m->n)
        squares_run(m, p, t, 1, has_bias);
}

static void panel_multiply(const struct kernel_matmul *m, const struct panel *p)
{
    if (m->w->quant->has_bias)
        squares(m, p, true);
    else
        squares(m, p, false);
}

void k_i8mm_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "i8mm";
}
