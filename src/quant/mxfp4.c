/* MXFP4: 32 columns share a power of two, and have 16 bytes of FP4 (E2M1) codes. GGUF stores both
 * in one block; codes.h has the layout. gpt-oss checkpoints and MLX store the codes in one part, in
 * the order of the columns, and the powers in another: mxfp4-g32. */
#include <string.h>

#include "quant/block_internal.h"

enum { COLUMNS = 32, HALF = 16, BYTES = 17 };

static inline float value_of(unsigned code)
{
    return (float)((int)codes_fp4_doubled[code] - CODES_MXFP4_ZERO);
}

/* Chooses the exponent so that the largest magnitude is in [4, 8) times the scale. The reference
 * uses floor(log2f(max)), which rounds up for a few floats below a power of two, depending on its
 * libm; this is the exact exponent. Below 2^-125 the reference's exponent wraps around; this one
 * stays 0. */
static unsigned choose_exponent(const float *x)
{
    uint32_t max = 0; /* bits without the sign are ordered like magnitudes */
    for (unsigned i = 0; i < COLUMNS; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        max = bits > max ? bits : max;
    }
    const unsigned exponent = max >> 23;
    return exponent > 2 ? exponent - 2 : 0;
}

/* Returns the nearest code, the first of equals; 0 for NaN. */
static unsigned nearest(float x, float d)
{
    unsigned best = 0;
    float min = magnitude(x);
    for (unsigned code = 1; code < 16; code++) {
        const float error = magnitude(d * value_of(code) - x);
        if (error < min) {
            min = error;
            best = code;
        }
    }
    return best;
}

static void mxfp4_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    (void)q;
    uint8_t *dst = parts[0];
    for (size_t b = 0; b < n / COLUMNS; b++, src += COLUMNS, dst += BYTES) {
        const unsigned e = choose_exponent(src);
        const float d = codes_mxfp4_scale(e);
        dst[0] = (uint8_t)e;
        for (unsigned i = 0; i < HALF; i++)
            dst[1 + i] = (uint8_t)(nearest(src[i], d) | nearest(src[HALF + i], d) << 4);
    }
}

static void g32_unpack_row(const struct quant *q, const void *const parts[], size_t n,
                           uint8_t *codes, float *scales, float *biases, size_t stride)
{
    (void)q, (void)biases;
    codes_fp4((const uint8_t *)parts[0], codes, n);
    for (size_t g = 0; g < n / COLUMNS; g++)
        scales[g * stride] = codes_mxfp4_scale(((const uint8_t *)parts[1])[g]);
}

static void g32_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    for (size_t g = 0; g < n / COLUMNS; g++) {
        uint8_t codes[COLUMNS];
        const float scale = codes_mxfp4_scale(((const uint8_t *)parts[1])[g]);
        codes_fp4((const uint8_t *)parts[0] + g * HALF, codes, COLUMNS);
        decode_codes(q, codes, &scale, NULL, dst + g * COLUMNS, COLUMNS);
    }
}

static void g32_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    (void)q;
    uint8_t *codes = parts[0], *exponents = parts[1];
    for (size_t g = 0; g < n / COLUMNS; g++, src += COLUMNS) {
        const unsigned e = choose_exponent(src);
        const float d = codes_mxfp4_scale(e);
        exponents[g] = (uint8_t)e;
        for (unsigned i = 0; i < HALF; i++)
            *codes++ = (uint8_t)(nearest(src[2 * i], d) | nearest(src[2 * i + 1], d) << 4);
    }
}

extern const struct quant quant_mxfp4_g32;
const struct quant quant_mxfp4_g32 = {
    .name = "mxfp4-g32",
    .kind = QUANT_BLOCK,
    .block = COLUMNS,
    .n_parts = 2,
    .part_block_bytes = {HALF, 1},
    .bits = 4,
    .decode_row = g32_decode,
    .encode_row = g32_encode,
    .unpack_row = g32_unpack_row,
    .codes = QUANT_CODES_FP4,
    .group = COLUMNS,
    .zero = CODES_MXFP4_ZERO,
};

CODE_FORMAT(mxfp4, COLUMNS, BYTES, 4, mxfp4_encode, .codes = QUANT_CODES_MXFP4, .group = COLUMNS,
            .zero = CODES_MXFP4_ZERO)
