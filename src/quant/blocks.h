/* The block layouts of formats without codes: FORMAT_decode_block converts one block to floats. The
 * comments of iquants.c and ternary.c describe them. A file with another half-precision conversion
 * defines CODES_F16 (codes.h). Pure functions for any thread; nothing fails. */
#ifndef FLASHMOE_QUANT_BLOCKS_H
#define FLASHMOE_QUANT_BLOCKS_H

#include "quant/codes.h"
#include "quant/iq_grids.inc"

#ifdef __cplusplus
extern "C" {
#endif

/* Indexed by the grid's code. The last one of iq2_* and iq1_* occurs in no vector. */
SHARED_TABLE uint8_t iq2_magnitudes[4] = {8, 25, 43, 0};
SHARED_TABLE uint8_t iq3_xxs_magnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
SHARED_TABLE uint8_t iq3_s_magnitudes[8] = {1, 3, 5, 7, 9, 11, 13, 15};
SHARED_TABLE float iq1_steps[4] = {-1.0f, 0.0f, 1.0f, 0.0f};

SHARED_FN unsigned codes_nibble(const uint8_t *at, unsigned i)
{
    return (unsigned)at[i / 2] >> i % 2 * 4 & 15;
}

/* Returns eight signs, bit e set if column e is negative, from the seven that are stored. */
SHARED_FN unsigned codes_with_parity(unsigned seven)
{
    unsigned parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

/* Avoids a branch, which random signs would mispredict half of the time. */
SHARED_FN float codes_with_sign(int size, unsigned signs, unsigned e)
{
    const int negative = (int)(signs >> e & 1);
    return (float)((size ^ -negative) + negative);
}

SHARED_FN void codes_iq2(unsigned vector, unsigned signs, float scale, float *__restrict dst)
{
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * codes_with_sign(iq2_magnitudes[vector >> 2 * e & 3], signs, e);
}

/* Decodes two vectors; the second is twelve bits above the first. */
SHARED_FN void codes_iq3(unsigned vectors, const uint8_t magnitudes[8], unsigned signs,
                         float scale, float *__restrict dst)
{
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * codes_with_sign(magnitudes[vectors >> 3 * e & 7], signs, e);
}

SHARED_FN void codes_iq1(unsigned index, bool is_below, float scale, float *__restrict dst)
{
    const unsigned vector = iq1_grid[index];
    const float delta = is_below ? -0.125f : 0.125f;
    for (unsigned e = 0; e < 8; e++)
        dst[e] = scale * (iq1_steps[vector >> 2 * e & 3] + delta);
}

SHARED_FN void iq2_xxs_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 8 * g;
        const uint32_t packed = codes_u32(index + 4);
        const float scale = d * (0.5f + (float)(packed >> 28)) * 0.25f;
        for (unsigned o = 0; o < 4; o++)
            codes_iq2(iq2_xxs_grid[index[o]], codes_with_parity(packed >> 7 * o & 127), scale,
                       dst + 32 * g + 8 * o);
    }
}

SHARED_FN void iq2_xs_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned packed = codes_u16(src + 2 + 2 * o);
        const float scale = d * (0.5f + (float)codes_nibble(src + 66, o / 2)) * 0.25f;
        codes_iq2(iq2_xs_grid[packed & 511], codes_with_parity(packed >> 9), scale, dst + 8 * o);
    }
}

SHARED_FN void iq2_s_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const uint8_t *index = src + 2, *signs = src + 34, *high = src + 66, *scales = src + 74;
    const float d = codes_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned i = index[o] | ((unsigned)high[o / 4] >> o % 4 * 2 & 3) << 8;
        const float scale = d * (0.5f + (float)codes_nibble(scales, o / 2)) * 0.25f;
        codes_iq2(iq2_s_grid[i], signs[o], scale, dst + 8 * o);
    }
}

SHARED_FN void iq3_xxs_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 8 * g;
        const uint32_t packed = codes_u32(src + 66 + 4 * g);
        const float scale = d * (0.5f + (float)(packed >> 28)) * 0.5f;
        for (unsigned o = 0; o < 4; o++)
            codes_iq3(iq3_xxs_grid[index[2 * o]] | (unsigned)iq3_xxs_grid[index[2 * o + 1]] << 12,
                       iq3_xxs_magnitudes, codes_with_parity(packed >> 7 * o & 127), scale,
                       dst + 32 * g + 8 * o);
    }
}

SHARED_FN void iq3_s_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const uint8_t *index = src + 2, *high = src + 66, *signs = src + 74, *scales = src + 106;
    const float d = codes_f16(src);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned bits = (unsigned)high[o / 4] >> o % 4 * 2;
        const unsigned first = iq3_s_grid[index[2 * o] | (bits & 1) << 8];
        const unsigned second = iq3_s_grid[index[2 * o + 1] | (bits & 2) << 7];
        const float scale = d * (float)(1 + 2 * codes_nibble(scales, o / 4));
        codes_iq3(first | second << 12, iq3_s_magnitudes, signs[o], scale, dst + 8 * o);
    }
}

SHARED_FN void iq1_s_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *index = src + 2 + 4 * g;
        const unsigned packed = codes_u16(src + 34 + 2 * g);
        const float scale = d * (float)(1 + 2 * (packed >> 12 & 7));
        for (unsigned o = 0; o < 4; o++)
            codes_iq1(index[o] | (packed >> 3 * o & 7) << 8, packed >> 15, scale,
                       dst + 32 * g + 8 * o);
    }
}

SHARED_FN void iq1_m_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const uint8_t *index = src, *high = src + 32, *scales = src + 48;
    unsigned half = 0;
    for (unsigned k = 0; k < 4; k++)
        half |= codes_u16(scales + 2 * k) >> 12 << 4 * k;
    const float d = CODES_F16((uint16_t)half);
    for (unsigned o = 0; o < 32; o++) {
        const unsigned s = codes_u16(scales + o / 8 * 2) >> o / 2 % 4 * 3 & 7;
        const unsigned more = codes_nibble(high, o);
        codes_iq1(index[o] | (more & 7) << 8, more >> 3, d * (float)(1 + 2 * s), dst + 8 * o);
    }
}

/* Digit t of byte i goes to column n * t + i. */
SHARED_FN void codes_digits(const uint8_t *__restrict src, unsigned n, unsigned n_digits,
                            float d, float *__restrict dst)
{
    unsigned power = 1; /* moves digit t to the front */
    for (unsigned t = 0; t < n_digits; t++, power *= 3)
        for (unsigned i = 0; i < n; i++) {
            const unsigned fraction = src[i] * power & 255;
            dst[n * t + i] = d * (float)((int)(fraction * 3 >> 8) - 1);
        }
}

SHARED_FN void tq1_0_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src + 52);
    codes_digits(src, 32, 5, d, dst);
    codes_digits(src + 32, 16, 5, d, dst + 160);
    codes_digits(src + 48, 4, 4, d, dst + 240);
}

SHARED_FN void tq2_0_decode_block(const uint8_t *__restrict src, float *__restrict dst)
{
    const float d = codes_f16(src + 64);
    for (unsigned g = 0; g < 8; g++)
        for (unsigned i = 0; i < 32; i++)
            dst[32 * g + i] = d * (float)((src[g / 4 * 32 + i] >> g % 4 * 2 & 3) - 1);
}

/* Sign, 4 bits of exponent (bias 7), 3 bits of mantissa; all ones is NaN. Avoids branches and
 * denormal operands, which cost some processors a hundred cycles each. */
SHARED_FN float codes_e4m3(uint8_t code)
{
    const uint32_t magnitude = code & 0x7fu;
    const float small = (float)(int)magnitude * 0x1p-9f; /* right if the exponent is 0 */
    uint32_t small_bits;
    memcpy(&small_bits, &small, sizeof small_bits);
    uint32_t bits = magnitude < 8 ? small_bits : (magnitude << 20) + (120u << 23);
    bits = magnitude == 0x7f ? 0x7fc00000u : bits;
    bits |= (uint32_t)(code & 0x80u) << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#ifdef __cplusplus
}
#endif
#endif
