/* The block layouts of formats that store codes. FORMAT_unpack unpacks one block: one byte per
 * column, then the scale and bias of group g at [g * stride]. x = scale * (code - zero), or scale *
 * code + bias. Products such as d * s are exact in f32, so every caller gets the same bits. The
 * functions are inline because the kernels compile them for their own instruction set. A file with
 * a faster half-precision conversion defines CODES_F16 before it includes this header.
 *
 * Pure functions for any thread. They cannot fail and need no alignment. */
#ifndef FLASHMOE_QUANT_CODES_H
#define FLASHMOE_QUANT_CODES_H

#include <string.h>

#include "base/shared_fn.h"
#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef CODES_F16
#define CODES_F16(half) quant_f16_to_f32(half)
#endif

SHARED_FN uint32_t codes_u16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

SHARED_FN uint32_t codes_u32(const uint8_t *at)
{
    return codes_u16(at) | codes_u16(at + 2) << 16;
}

SHARED_FN float codes_f16(const uint8_t *at)
{
    return CODES_F16((uint16_t)codes_u16(at));
}

/* ---- 32 columns: GGUF's first formats, and 4-bit formats with a table of levels -------------- */

/* Byte i holds column i in its low half and column i + 16 in its high half. */
SHARED_FN void codes_nibbles(const uint8_t *__restrict src, uint8_t *__restrict codes)
{
    for (unsigned i = 0; i < 16; i++)
        codes[i] = src[i] & 15;
    for (unsigned i = 0; i < 16; i++)
        codes[16 + i] = src[i] >> 4;
}

/* Bit i of a little-endian word is the fifth bit of column i. */
SHARED_FN void codes_fives(const uint8_t *__restrict fifth, const uint8_t *__restrict src,
                           uint8_t *__restrict codes)
{
    codes_nibbles(src, codes);
    for (unsigned b = 0; b < 4; b++)
        for (unsigned i = 0; i < 8; i++)
            codes[8 * b + i] |= (uint8_t)((fifth[b] >> i & 1) << 4);
}

SHARED_FN void codes_table(const uint8_t *__restrict table, const uint8_t *__restrict src,
                           uint8_t *__restrict codes)
{
    for (unsigned i = 0; i < 16; i++) {
        codes[i] = table[src[i] & 15];
        codes[16 + i] = table[src[i] >> 4];
    }
}

SHARED_FN void q8_0_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases, (void)stride;
    scales[0] = codes_f16(src);
    for (unsigned i = 0; i < 32; i++)
        codes[i] = src[2 + i] ^ 0x80;
}

SHARED_FN void q4_0_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases, (void)stride;
    scales[0] = codes_f16(src);
    codes_nibbles(src + 2, codes);
}

SHARED_FN void q4_1_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)stride;
    scales[0] = codes_f16(src);
    biases[0] = codes_f16(src + 2);
    codes_nibbles(src + 4, codes);
}

SHARED_FN void q5_0_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases, (void)stride;
    scales[0] = codes_f16(src);
    codes_fives(src + 2, src + 6, codes);
}

SHARED_FN void q5_1_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)stride;
    scales[0] = codes_f16(src);
    biases[0] = codes_f16(src + 2);
    codes_fives(src + 4, src + 8, codes);
}

/* MXFP4 as GGUF stores it: a power of two e and 16 bytes of FP4 (E2M1). x = 2^(e-128) * twice the
 * FP4 value. Unlike in the OCP standard, e = 255 is a number, and negative zero is zero. */
#define CODES_MXFP4_ZERO 12
SHARED_TABLE uint8_t codes_fp4_doubled[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                              12, 11, 10, 9,  8,  6,  4,  0};

SHARED_FN float codes_mxfp4_scale(unsigned e)
{
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

SHARED_FN void mxfp4_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                            float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases, (void)stride;
    scales[0] = codes_mxfp4_scale(src[0]);
    codes_table(codes_fp4_doubled, src + 1, codes);
}

/* The same codes in the order of the columns: byte i holds columns 2 * i and 2 * i + 1. */
SHARED_FN void codes_fp4(const uint8_t *__restrict src, uint8_t *__restrict codes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        codes[2 * i] = codes_fp4_doubled[src[i] & 15];
        codes[2 * i + 1] = codes_fp4_doubled[src[i] >> 4];
    }
}

/* The 16 levels of iq4_nl and iq4_xs, plus 128. */
SHARED_TABLE uint8_t codes_iq4_levels[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                             129, 141, 153, 166, 181, 197, 217, 241};

SHARED_FN void iq4_nl_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                             float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases, (void)stride;
    scales[0] = codes_f16(src);
    codes_table(codes_iq4_levels, src + 2, codes);
}

/* d, upper scale pairs u16, lower scale nibbles[4], then 16 bytes of nibbles per 32 columns. */
SHARED_FN void iq4_xs_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                             float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases;
    const float d = codes_f16(src);
    const uint32_t pairs = codes_u16(src + 2);
    for (unsigned g = 0; g < 8; g++) {
        const unsigned low = (unsigned)src[4 + g / 2] >> g % 2 * 4 & 15;
        scales[g * stride] = d * (float)((int)(low | (pairs >> 2 * g & 3) << 4) - 32);
        codes_table(codes_iq4_levels, src + 8 + 16 * g, codes + 32 * g);
    }
}

/* ---- 256 columns: GGUF's "K" formats ---------------------------------------------------------
 *   q2_k: scale and min nibbles [16], codes[64], d, dmin           x = d * s * q - dmin * m
 *   q3_k: high bits[32], codes[64], scales[12], d                  x = d * s * (q - 4)
 *   q4_k: d, dmin, scales and mins[12], codes[128]                 x = d * s * q - dmin * m
 *   q5_k: d, dmin, scales and mins[12], high bits[32], codes[128]  x = d * s * q - dmin * m
 *   q6_k: low nibbles[128], high pairs[64], int8 scales[16], d     x = d * s * (q - 32)
 * Where a byte holds codes of several columns, these are 32 apart. */

SHARED_FN void q2_k_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    const float d = codes_f16(src + 80), d_min = codes_f16(src + 82);
    for (unsigned t = 0; t < 16; t++) {
        scales[t * stride] = d * (float)(src[t] & 15);
        biases[t * stride] = -(d_min * (float)(src[t] >> 4));
    }
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *from = src + 16 + 32 * (g / 4);
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + l] = from[l] >> g % 4 * 2 & 3;
    }
}

/* Scale t of 16: six bits, the lower four in bytes 0..7, the upper two in bytes 8..11. */
SHARED_FN int codes_q3_k_scale(const uint8_t *packed, unsigned t)
{
    const unsigned low = t < 8 ? packed[t] & 15u : (unsigned)packed[t - 8] >> 4;
    const unsigned high = (unsigned)packed[8 + t % 4] >> t / 4 * 2 & 3;
    return (int)(low | high << 4) - 32;
}

SHARED_FN void q3_k_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases;
    const float d = codes_f16(src + 108);
    for (unsigned t = 0; t < 16; t++)
        scales[t * stride] = d * (float)codes_q3_k_scale(src + 96, t);
    for (unsigned g = 0; g < 8; g++) {
        const uint8_t *from = src + 32 + 32 * (g / 4);
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + l] =
                (uint8_t)((from[l] >> g % 4 * 2 & 3) | (src[l] >> g & 1) << 2);
    }
}

/* Unpacks scale and minimum g of 8, six bits each. The first four of both are the low bits of bytes
 * 0..7. The others are nibbles of bytes 8..11, with their upper two bits in the top of bytes 0..7.
 * Unpacks eight bytes at a time. */
SHARED_FN void codes_scales_mins(const uint8_t *packed, uint8_t scales[8], uint8_t mins[8])
{
    const uint32_t a = codes_u32(packed), b = codes_u32(packed + 4), c = codes_u32(packed + 8);
    const uint32_t low_scales = a & 0x3f3f3f3fu, low_mins = b & 0x3f3f3f3fu;
    const uint32_t high_scales = (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4;
    const uint32_t high_mins = (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4;
    for (unsigned g = 0; g < 4; g++) {
        scales[g] = (uint8_t)(low_scales >> 8 * g);
        scales[4 + g] = (uint8_t)(high_scales >> 8 * g);
        mins[g] = (uint8_t)(low_mins >> 8 * g);
        mins[4 + g] = (uint8_t)(high_mins >> 8 * g);
    }
}

SHARED_FN void codes_k_scales(const uint8_t *__restrict src, float *__restrict scales,
                              float *__restrict biases, size_t stride)
{
    const float d = codes_f16(src), d_min = codes_f16(src + 2);
    uint8_t s[8], m[8];
    codes_scales_mins(src + 4, s, m);
    for (unsigned g = 0; g < 8; g++) {
        scales[g * stride] = d * (float)s[g];
        biases[g * stride] = -(d_min * (float)m[g]);
    }
}

SHARED_FN void q4_k_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    codes_k_scales(src, scales, biases, stride);
    for (unsigned g = 0; g < 8; g += 2) {
        const uint8_t *from = src + 16 + 16 * g;
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + l] = from[l] & 15;
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + 32 + l] = from[l] >> 4;
    }
}

SHARED_FN void q5_k_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    codes_k_scales(src, scales, biases, stride);
    const uint8_t *high = src + 16;
    for (unsigned g = 0; g < 8; g += 2) {
        const uint8_t *from = src + 48 + 16 * g;
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + l] = (uint8_t)((from[l] & 15) | (high[l] >> g & 1) << 4);
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + 32 + l] = (uint8_t)(from[l] >> 4 | (high[l] >> (g + 1) & 1) << 4);
    }
}

SHARED_FN void q6_k_unpack(const uint8_t *__restrict src, uint8_t *__restrict codes,
                           float *__restrict scales, float *__restrict biases, size_t stride)
{
    (void)biases;
    const float d = codes_f16(src + 208);
    for (unsigned t = 0; t < 16; t++)
        scales[t * stride] = d * (float)(int8_t)src[192 + t];
    for (unsigned g = 0; g < 8; g++) { /* 32 columns each */
        const unsigned half = g / 4, j = g % 4;
        const uint8_t *low = src + 64 * half + 32 * (j % 2), *high = src + 128 + 32 * half;
        for (unsigned l = 0; l < 32; l++)
            codes[32 * g + l] =
                (uint8_t)((low[l] >> j / 2 * 4 & 15) | (high[l] >> 2 * j & 3) << 4);
    }
}

/* The code that stands for 0 where groups have no bias (int4-g32). */
#define CODES_INT4_ZERO 8

/* ---- affine groups as MLX stores them ---------------------------------------------------------
 * The codes of a row are one little-endian, least-significant-bit-first stream. Eight codes of b
 * bits are b bytes. */

SHARED_FN void codes_affine_eight(const uint8_t *src, unsigned bits, uint8_t *codes)
{
    uint64_t word = 0;
    for (unsigned b = 0; b < bits; b++)
        word |= (uint64_t)src[b] << 8 * b;
    const unsigned mask = (1u << bits) - 1;
    for (unsigned i = 0; i < 8; i++)
        codes[i] = (uint8_t)(word >> bits * i & mask);
}

SHARED_FN void codes_affine(const uint8_t *__restrict src, unsigned bits,
                            uint8_t *__restrict codes, size_t n)
{
    if (bits == 8) {
        memcpy(codes, src, n);
    } else if (bits == 4) {
        for (size_t i = 0; i < n / 2; i++) {
            codes[2 * i] = src[i] & 15;
            codes[2 * i + 1] = src[i] >> 4;
        }
    } else if (bits == 2) {
        for (size_t i = 0; i < n / 4; i++)
            for (unsigned k = 0; k < 4; k++)
                codes[4 * i + k] = src[i] >> 2 * k & 3;
    } else {
        for (size_t i = 0; i < n / 8; i++)
            codes_affine_eight(src + i * bits, bits, codes + 8 * i);
    }
}

#ifdef __cplusplus
}
#endif
#endif
