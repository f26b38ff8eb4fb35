/* MXFP4 as GGUF stores it: 32 columns, one power of two e and 16 bytes of FP4 (E2M1) codes, byte i
 * with column i low and column i + 16 high. x = 2^(e-128) * twice the FP4 value; unlike in the OCP
 * standard e = 255 is a number, and the negative zero is a zero. */
#include <string.h>

#include "quant/block_internal.h"

enum { COLUMNS = 32, HALF = 16, BYTES = 17 };

static const int8_t fp4_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline float half_scale(unsigned e)
{
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void mxfp4_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = half_scale(src[0]);
    for (unsigned i = 0; i < HALF; i++) {
        dst[i] = d * (float)fp4_doubled[src[1 + i] & 15];
        dst[HALF + i] = d * (float)fp4_doubled[src[1 + i] >> 4];
    }
}

/* The largest magnitude lies in [4, 8) times the scale. The reference takes floor(log2f(most)),
 * which rounds up for the last few floats before a power of two, how many depends on its libm;
 * this is the exact exponent. Below 2^-125 the reference's exponent wraps; this one stays 0. */
static unsigned choose_exponent(const float *x)
{
    uint32_t most = 0; /* bits without sign order like magnitudes */
    for (unsigned i = 0; i < COLUMNS; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    const unsigned exponent = most >> 23;
    return exponent > 2 ? exponent - 2 : 0;
}

/* The nearest code, the first of equals; 0 for NaN. */
static unsigned nearest(float x, float d)
{
    unsigned best = 0;
    float least = magnitude(x);
    for (unsigned code = 1; code < 16; code++) {
        const float error = magnitude(d * (float)fp4_doubled[code] - x);
        if (error < least) {
            least = error;
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
        const float d = half_scale(e);
        dst[0] = (uint8_t)e;
        for (unsigned i = 0; i < HALF; i++)
            dst[1 + i] = (uint8_t)(nearest(src[i], d) | nearest(src[HALF + i], d) << 4);
    }
}

BLOCK_FORMAT(mxfp4, COLUMNS, BYTES, 4, mxfp4_encode)
