/* GGUF's "IQ" formats. iq4_nl and iq4_xs map a nibble to one of 16 levels. The others map an
 * index to a vector of a grid (iq_grids_internal.h), which has eight columns, or four in iq3_*.
 * iq2_* and iq3_* add a sign per column: eight bits, or seven bits and their parity. iq1_* add or
 * subtract delta = 1/8. A scale s applies to 16 columns in iq2_xs, iq2_s and iq1_m, and to 32 in
 * the others. If scales are nibbles, the lower one of a byte is first.
 *   iq4_nl,   32 columns: d, nibbles[16] (byte i: columns i and i + 16)    x = d * level
 *   iq4_xs,  256 columns: d, scale pairs u16, scale nibbles[4], then 16 bytes of nibbles per 32
 *                                                                         x = d * s * level
 *   iq2_xxs, 256 columns: d, per 32 columns: index[4], u32 signs and scale
 *   iq2_xs,  256 columns: d, u16[32] index and signs, scales[8]
 *   iq2_s,   256 columns: d, index[32], signs[32], index high pairs[8], scales[8]
 *                                              x = +-magnitude * (d * (0.5 + s) * 0.25)
 *   iq3_xxs, 256 columns: d, index[64], per 32 columns: u32 signs and scale
 *                                              x = +-magnitude * (d * (0.5 + s) * 0.5)
 *   iq3_s,   256 columns: d, index[64], index high bits[8], signs[32], scales[4]
 *                                              x = +-magnitude * (d * (1 + 2 * s))
 *   iq1_s,   256 columns: d, index[32], per 32 columns: u16 index high, scale, sign of delta
 *   iq1_m,   256 columns: index[32], nibbles[16] of index high and sign of delta, u16[4] scales
 *            and, in their upper nibbles, d    x = d * (1 + 2 * s) * (step +- delta) */
#include <stdbool.h>

#include "quant/block_internal.h"
#include "quant/iq_grids_internal.h"

/* Indexed by the grid's code. The last one of iq2_* and iq1_* occurs in no vector. */
static const uint8_t iq2_magnitudes[4] = {8, 25, 43, 0};
static const uint8_t iq3_xxs_magnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const uint8_t iq3_s_magnitudes[8] = {1, 3, 5, 7, 9, 11, 13, 15};
static const float iq1_steps[4] = {-1.0f, 0.0f, 1.0f, 0.0f};

static inline unsigned nibble(const uint8_t *at, unsigned i)
{
    return (unsigned)at[i / 2] >> i % 2 * 4 & 15;
}

/* Returns eight signs, bit e set if column e is negative, from the seven that are stored. */
static inline unsigned with_parity(unsigned seven)
{
    unsigned parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

/* Avoids a branch, which random signs would mispredict half of the time. */
static inline float with_sign(int size, unsigned signs, unsigned e)
{
    const int negative = (int)(signs >> e & 1);
    return (float)((size ^ -negative) + negative);
}

static inline void decode_iq2(unsigned vector, unsigned signs, float scale, float *restrict dst)
{
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * with_sign(iq2_magnitudes[vector >> 2 * e & 3], signs, e);
}

/* Decodes two vectors; the second is twelve bits above the first. */
static inline void decode_iq3(unsigned vectors, const uint8_t magnitudes[8], unsigned signs,
                              float scale, float *restrict dst)
{
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * with_sign(magnitudes[vectors >> 3 * e & 7], signs, e);
}

static inline void decode_iq1(unsigned index, bool is_below, float scale, float *restrict dst)
{
    const unsigned vector = iq1_grid[index];
    const float delta = is_below ? -0.125f : 0.125f;
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * (iq1_steps[vector >> 2 * e & 3] + delta);
}

static void iq2_xxs_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 8 * g;
        const uint32_t packed = load_u32(index + 4);
        const float scale = d * (0.5f + (float)(packed >> 28)) * 0.25f;
        for (unsigned o = 0; o < 4; o++)
            decode_iq2(iq2_xxs_grid[index[o]], with_parity(packed >> 7 * o & 127), scale,
                       dst + 32 * g + 8 * o);
    }
}

static void iq2_xs_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned packed = load_u16(src + 2 + 2 * o);
        const float scale = d * (0.5f + (float)nibble(src + 66, o / 2)) * 0.25f;
        decode_iq2(iq2_xs_grid[packed & 511], with_parity(packed >> 9), scale, dst + 8 * o);
    }
}

static void iq2_s_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *index = src + 2, *signs = src + 34, *high = src + 66, *scales = src + 74;
    const float d = load_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned i = index[o] | ((unsigned)high[o / 4] >> o % 4 * 2 & 3) << 8;
        const float scale = d * (0.5f + (float)nibble(scales, o / 2)) * 0.25f;
        decode_iq2(iq2_s_grid[i], signs[o], scale, dst + 8 * o);
    }
}

static void iq3_xxs_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 8 * g;
        const uint32_t packed = load_u32(src + 66 + 4 * g);
        const float scale = d * (0.5f + (float)(packed >> 28)) * 0.5f;
        for (unsigned o = 0; o < 4; o++)
            decode_iq3(iq3_xxs_grid[index[2 * o]] | (unsigned)iq3_xxs_grid[index[2 * o + 1]] << 12,
                       iq3_xxs_magnitudes, with_parity(packed >> 7 * o & 127), scale,
                       dst + 32 * g + 8 * o);
    }
}

static void iq3_s_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *index = src + 2, *high = src + 66, *signs = src + 74, *scales = src + 106;
    const float d = load_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned bits = (unsigned)high[o / 4] >> o % 4 * 2;
        const unsigned first = iq3_s_grid[index[2 * o] | (bits & 1) << 8];
        const unsigned second = iq3_s_grid[index[2 * o + 1] | (bits & 2) << 7];
        const float scale = d * (float)(1 + 2 * nibble(scales, o / 4));
        decode_iq3(first | second << 12, iq3_s_magnitudes, signs[o], scale, dst + 8 * o);
    }
}

static void iq1_s_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 4 * g;
        const unsigned packed = load_u16(src + 34 + 2 * g);
        const float scale = d * (float)(1 + 2 * (packed >> 12 & 7));
        for (unsigned o = 0; o < 4; o++)
            decode_iq1(index[o] | (packed >> 3 * o & 7) << 8, packed >> 15, scale,
                       dst + 32 * g + 8 * o);
    }
}

static void iq1_m_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *index = src, *high = src + 32, *scales = src + 48;
    unsigned half = 0;
    for (unsigned k = 0; k < 4; k++)
        half |= load_u16(scales + 2 * k) >> 12 << 4 * k;
    const float d = quant_f16_to_f32((uint16_t)half);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned s = load_u16(scales + o / 8 * 2) >> o / 2 % 4 * 3 & 7;
        const unsigned more = nibble(high, o);
        decode_iq1(index[o] | (more & 7) << 8, more >> 3, d * (float)(1 + 2 * s), dst + 8 * o);
    }
}

BLOCK_FORMAT(iq1_m, 256, 56, 1, NULL)
BLOCK_FORMAT(iq1_s, 256, 50, 1, NULL)
BLOCK_FORMAT(iq2_s, 256, 82, 2, NULL)
BLOCK_FORMAT(iq2_xs, 256, 74, 2, NULL)
BLOCK_FORMAT(iq2_xxs, 256, 66, 2, NULL)
BLOCK_FORMAT(iq3_s, 256, 110, 3, NULL)
BLOCK_FORMAT(iq3_xxs, 256, 98, 3, NULL)
CODE_FORMAT(iq4_nl, 32, 18, 4, NULL, .codes = QUANT_CODES_IQ4_NL, .group = 32, .zero = 128,
            .has_wide_codes = true)
CODE_FORMAT(iq4_xs, 256, 136, 4, NULL, .codes = QUANT_CODES_IQ4_XS, .group = 32, .zero = 128,
            .has_wide_codes = true)
