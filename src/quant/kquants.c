/* GGUF's "K" formats: 256 columns with one or two f16 factors over small integer scales, one per
 * 16 or 32 columns. d * scale is rounded to f32 first, then multiplied by the code. Where a byte
 * holds codes of several columns, these are 32 apart.
 *   q2_k: scale and min nibbles [16], codes[64], d, dmin           x = d * s * q - dmin * m
 *   q3_k: high bits[32], codes[64], scales[12], d                  x = d * s * q
 *   q4_k: d, dmin, scales and mins[12], codes[128]                 x = d * s * q - dmin * m
 *   q5_k: d, dmin, scales and mins[12], high bits[32], codes[128]  x = d * s * q - dmin * m
 *   q6_k: low nibbles[128], high pairs[64], int8 scales[16], d     x = d * s * q */
#include "quant/block_internal.h"

enum { COLUMNS = 256 };

static void q2_k_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *codes = src + 16;
    const float d = load_f16(src + 80), d_min = load_f16(src + 82);
    for (unsigned t = 0; t < 16; t++) { /* 16 columns each */
        const float scale = d * (float)(src[t] & 15);
        const float min = d_min * (float)(src[t] >> 4);
        const uint8_t *from = codes + 32 * (t / 8) + 16 * (t % 2);
        const unsigned shift = t / 2 % 4 * 2;
        for (unsigned l = 0; l < 16; l++)
            dst[16 * t + l] = scale * (float)(from[l] >> shift & 3) - min;
    }
}

/* Scale t of 16: six bits, the lower four in bytes 0..7, the upper two in bytes 8..11. */
static inline int q3_k_scale(const uint8_t *packed, unsigned t)
{
    const unsigned low = t < 8 ? packed[t] & 15u : (unsigned)packed[t - 8] >> 4;
    const unsigned high = (unsigned)packed[8 + t % 4] >> t / 4 * 2 & 3;
    return (int)(low | high << 4) - 32;
}

static void q3_k_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *codes = src + 32;
    const float d = load_f16(src + 108);
    for (unsigned t = 0; t < 16; t++) {
        const float scale = d * (float)q3_k_scale(src + 96, t);
        const uint8_t *from = codes + 32 * (t / 8) + 16 * (t % 2);
        const uint8_t *high = src + 16 * (t % 2);
        const unsigned shift = t / 2 % 4 * 2, bit = t / 2;
        for (unsigned l = 0; l < 16; l++) {
            const int code = (from[l] >> shift & 3) + (high[l] >> bit & 1) * 4 - 4;
            dst[16 * t + l] = scale * (float)code;
        }
    }
}

/* Scale and minimum g of 8, six bits each: the first four of either in the low bits of bytes
 * 0..7; the others as nibbles of bytes 8..11, their upper two bits on top of bytes 0..7. */
static inline void unpack_scale_min(const uint8_t *packed, unsigned g, unsigned *scale,
                                    unsigned *min)
{
    if (g < 4) {
        *scale = packed[g] & 63u;
        *min = packed[g + 4] & 63u;
    } else {
        *scale = (packed[g + 4] & 15u) | (unsigned)packed[g - 4] >> 6 << 4;
        *min = (unsigned)packed[g + 4] >> 4 | (unsigned)packed[g] >> 6 << 4;
    }
}

static void q4_k_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src), d_min = load_f16(src + 2);
    for (unsigned g = 0; g < 8; g++) { /* 32 columns each */
        unsigned s, m;
        unpack_scale_min(src + 4, g, &s, &m);
        const float scale = d * (float)s, min = d_min * (float)m;
        const uint8_t *from = src + 16 + 32 * (g / 2);
        const unsigned shift = g % 2 * 4;
        for (unsigned l = 0; l < 32; l++)
            dst[32 * g + l] = scale * (float)(from[l] >> shift & 15) - min;
    }
}

static void q5_k_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const uint8_t *high = src + 16;
    const float d = load_f16(src), d_min = load_f16(src + 2);
    for (unsigned g = 0; g < 8; g++) {
        unsigned s, m;
        unpack_scale_min(src + 4, g, &s, &m);
        const float scale = d * (float)s, min = d_min * (float)m;
        const uint8_t *from = src + 48 + 32 * (g / 2);
        const unsigned shift = g % 2 * 4;
        for (unsigned l = 0; l < 32; l++) {
            const int code = (from[l] >> shift & 15) | (high[l] >> g & 1) << 4;
            dst[32 * g + l] = scale * (float)code - min;
        }
    }
}

static void q6_k_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src + 208);
    for (unsigned t = 0; t < 16; t++) {
        const float scale = d * (float)(int8_t)src[192 + t];
        const unsigned half = t / 8, j = t / 2 % 4, odd = t % 2;
        const uint8_t *low = src + 64 * half + 32 * (j % 2) + 16 * odd;
        const uint8_t *high = src + 128 + 32 * half + 16 * odd;
        const unsigned low_shift = j / 2 * 4, high_shift = 2 * j;
        for (unsigned l = 0; l < 16; l++) {
            const int code = (low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4;
            dst[16 * t + l] = scale * (float)(code - 32);
        }
    }
}

BLOCK_FORMAT(q2_k, COLUMNS, 84, 2, NULL)
BLOCK_FORMAT(q3_k, COLUMNS, 110, 3, NULL)
BLOCK_FORMAT(q4_k, COLUMNS, 144, 4, NULL)
BLOCK_FORMAT(q5_k, COLUMNS, 176, 5, NULL)
BLOCK_FORMAT(q6_k, COLUMNS, 210, 6, NULL)
