/* Advanced SIMD with dot products of bytes (FEAT_DotProd). */
#include "backend/cpu/lanes_neon.h"

#include "backend/cpu/lanes.h"

/* Takes sixteen bytes of four rows. y[k] gets the k-th four bytes of each row. */
INLINE void interleave_rows(const uint8x16_t x[4], uint8x16_t y[4])
{
    uint32x4_t w[4];
    UNROLL for (unsigned k = 0; k < 4; k++)
        w[k] = vreinterpretq_u32_u8(x[k]);
    const uint32x4_t a = vzip1q_u32(w[0], w[2]), b = vzip1q_u32(w[1], w[3]);
    const uint32x4_t c = vzip2q_u32(w[0], w[2]), d = vzip2q_u32(w[1], w[3]);
    y[0] = vreinterpretq_u8_u32(vzip1q_u32(a, b));
    y[1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    y[2] = vreinterpretq_u8_u32(vzip1q_u32(c, d));
    y[3] = vreinterpretq_u8_u32(vzip2q_u32(c, d));
}

/* Columns [begin, end) of bytes. A panel keeps the order of the columns. */
static void panel_of_bytes(const uint8_t *const rows[LANES], size_t begin, size_t end, bool is_wide,
                           uint8_t *to)
{
    const uint8x16_t flip = vdupq_n_u8(is_wide ? WIDE_CODES_SHIFT : 0);
    for (unsigned r = 0; r < LANES; r += 4)
        for (size_t at = begin; at < end; at += 16) {
            uint8x16_t x[4], y[4];
            UNROLL for (unsigned k = 0; k < 4; k++)
                x[k] = veorq_u8(vld1q_u8(rows[r + k] + at), flip);
            interleave_rows(x, y);
            UNROLL for (unsigned k = 0; k < 4; k++)
                vst1q_u8(to + (at - begin + 4 * k) * LANES + 4 * r, y[k]);
        }
}

static void panel_interleave(const uint8_t *codes, size_t cols, bool is_wide, uint8_t *to)
{
    const uint8_t *rows[LANES];
    for (unsigned r = 0; r < LANES; r++)
        rows[r] = codes + r * CHUNK;
    panel_of_bytes(rows, 0, cols, is_wide, to);
}

/* Same for nibble pairs. Of 32 columns the even ones, the lower nibbles, come first. */
static void panel_of_nibbles(const uint8_t *const rows[LANES], size_t begin, size_t end,
                             uint8_t *to)
{
    const uint8x16_t low = vdupq_n_u8(15);
    for (unsigned r = 0; r < LANES; r += 4)
        for (size_t at = begin; at < end; at += 32) {
            uint8x16_t x[4], y[4];
            UNROLL for (unsigned k = 0; k < 4; k++)
                x[k] = vld1q_u8(rows[r + k] + at / 2);
            interleave_rows(x, y);
            uint8_t *even = to + (at - begin) * LANES + 4 * r, *odd = even + 16 * LANES;
            UNROLL for (unsigned k = 0; k < 4; k++) {
                vst1q_u8(even + 4 * k * LANES, vandq_u8(y[k], low));
                vst1q_u8(odd + 4 * k * LANES, vshrq_n_u8(y[k], 4));
            }
        }
}

static bool panel_codes_of(const struct quant *quant, const struct row_block *block, size_t begin,
                           size_t end, uint8_t *to)
{
    if (!has_whole_codes(quant))
        return false;
    if (quant->bits == 4)
        panel_of_nibbles(block->codes, begin, end, to);
    else
        panel_of_bytes(block->codes, begin, end, true, to);
    return true;
}

void k_dotprod_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "dotprod";
}
