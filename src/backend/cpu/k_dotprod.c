/* Advanced SIMD with dot products of bytes (ARMv8.2 FEAT_DotProd). */
#include "backend/cpu/lanes_neon.h"

#define LEVEL_HAS_PANEL_INTERLEAVE
#include "backend/cpu/lanes.h"

/* Four rows of sixteen columns at a time. */
static void panel_interleave(const uint8_t *codes, size_t cols, bool is_wide, uint8_t *to)
{
    const uint8x16_t flip = vdupq_n_u8(is_wide ? WIDE_CODES_SHIFT : 0);
    for (size_t at = 0; at < cols; at += 16, to += 16 * LANES)
        for (unsigned r = 0; r < LANES; r += 4) {
            uint32x4_t x[4];
            for (unsigned k = 0; k < 4; k++)
                x[k] = vreinterpretq_u32_u8(
                    veorq_u8(vld1q_u8(codes + (r + k) * CHUNK + at), flip));
            const uint32x4_t a = vzip1q_u32(x[0], x[2]), b = vzip1q_u32(x[1], x[3]);
            const uint32x4_t c = vzip2q_u32(x[0], x[2]), d = vzip2q_u32(x[1], x[3]);
            vst1q_u8(to + 4 * r, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
            vst1q_u8(to + 4 * r + 64, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
            vst1q_u8(to + 4 * r + 128, vreinterpretq_u8_u32(vzip1q_u32(c, d)));
            vst1q_u8(to + 4 * r + 192, vreinterpretq_u8_u32(vzip2q_u32(c, d)));
        }
}

void k_dotprod_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "dotprod";
}
