/* GGUF's first formats: 32 columns with one f16 scale d, and one f16 minimum m if zero is not
 * in the middle. Nibbles: byte i holds column i in its low half and column i + 16 in its high half.
 * Fifth bits: bit i of a little-endian word belongs to column i.
 *   q8_0: d, q[32]             x = d * q
 *   q4_0: d, nibbles           x = d * (n - 8)
 *   q4_1: d, m, nibbles        x = d * n + m
 *   q5_0: d, fifth, nibbles    x = d * (n - 16)
 *   q5_1: d, m, fifth, nibbles x = d * n + m
 * The encoders give the bits of the reference quantiser, which multiplies by the rounded
 * reciprocal of the unrounded d. */
#include "quant/block_internal.h"

enum { COLUMNS = 32, HALF = 16 };

/* Returns 0 if d is 0, as the reference does. */
static inline float reciprocal(float d)
{
    return d == 0 ? 0 : 1 / d;
}

/* Rounds towards zero and clamps to 0..max; NaN gives 0. */
static inline unsigned clamped(float x, float max)
{
    x = x > 0 ? x : 0;
    return (unsigned)(x < max ? x : max);
}

/* Returns the value farthest from zero with its sign, the first of equals. */
static float farthest(const float *x)
{
    float best = x[0];
    for (unsigned i = 1; i < COLUMNS; i++)
        best = magnitude(x[i]) > magnitude(best) ? x[i] : best;
    return best;
}

static void find_range(const float *x, float *low, float *high)
{
    *low = *high = x[0];
    for (unsigned i = 1; i < COLUMNS; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

static void q8_0_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    uint8_t *dst = parts[0];
    for (size_t b = 0; b < n / COLUMNS; b++, src += COLUMNS, dst += q->part_block_bytes[0]) {
        const float d = magnitude(farthest(src)) / 127;
        const float inverse = reciprocal(d);
        store_f16(dst, d);
        for (unsigned i = 0; i < COLUMNS; i++) {
            const float v = src[i] * inverse;
            const float size = magnitude(v) < 127 ? magnitude(v) : 127;
            int code = (int)size;
            code += size - (float)code >= 0.5f; /* halves away from zero */
            dst[2 + i] = (uint8_t)(v < 0 ? -code : code);
        }
    }
}

static void store_codes(uint8_t *dst, const uint8_t *codes, unsigned bits)
{
    if (bits == 5) {
        for (unsigned i = 0; i < COLUMNS; i += 8) {
            unsigned fifth = 0;
            for (unsigned k = 0; k < 8; k++)
                fifth |= (unsigned)(codes[i + k] >> 4) << k;
            *dst++ = (uint8_t)fifth;
        }
    }
    for (unsigned i = 0; i < HALF; i++)
        dst[i] = (uint8_t)((codes[i] & 15) | (codes[HALF + i] & 15) << 4);
}

/* q4_0 and q5_0: the value farthest from zero gets code 0. */
static void encode_centred(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    const float zero = (float)(1u << (q->bits - 1));
    const float max = (float)((1u << q->bits) - 1);
    uint8_t *dst = parts[0];
    for (size_t b = 0; b < n / COLUMNS; b++, src += COLUMNS, dst += q->part_block_bytes[0]) {
        const float d = farthest(src) / -zero;
        const float inverse = reciprocal(d);
        uint8_t codes[COLUMNS];
        for (unsigned i = 0; i < COLUMNS; i++)
            codes[i] = (uint8_t)clamped(src[i] * inverse + (zero + 0.5f), max);
        store_f16(dst, d);
        store_codes(dst + 2, codes, q->bits);
    }
}

/* q4_1 and q5_1: the lowest value gets code 0, the highest the last code. */
static void encode_ranged(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    const float max = (float)((1u << q->bits) - 1);
    uint8_t *dst = parts[0];
    for (size_t b = 0; b < n / COLUMNS; b++, src += COLUMNS, dst += q->part_block_bytes[0]) {
        float low, high;
        find_range(src, &low, &high);
        const float d = (high - low) / max;
        const float inverse = reciprocal(d);
        uint8_t codes[COLUMNS];
        for (unsigned i = 0; i < COLUMNS; i++)
            codes[i] = (uint8_t)clamped((src[i] - low) * inverse + 0.5f, max);
        store_f16(dst, d);
        store_f16(dst + 2, low);
        store_codes(dst + 4, codes, q->bits);
    }
}

CODE_FORMAT(q4_0, COLUMNS, 18, 4, encode_centred, .codes = QUANT_CODES_Q4_0, .group = COLUMNS,
            .zero = 8)
CODE_FORMAT(q4_1, COLUMNS, 20, 4, encode_ranged, .codes = QUANT_CODES_Q4_1, .group = COLUMNS,
            .has_bias = true)
CODE_FORMAT(q5_0, COLUMNS, 22, 5, encode_centred, .codes = QUANT_CODES_Q5_0, .group = COLUMNS,
            .zero = 16)
CODE_FORMAT(q5_1, COLUMNS, 24, 5, encode_ranged, .codes = QUANT_CODES_Q5_1, .group = COLUMNS,
            .has_bias = true)
CODE_FORMAT(q8_0, COLUMNS, 34, 8, q8_0_encode, .codes = QUANT_CODES_Q8_0, .group = COLUMNS,
            .zero = 128, .has_wide_codes = true)
