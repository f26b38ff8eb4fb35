/* Affine groups as MLX stores them: x = scale * code + bias. The codes of a row are one
 * little-endian bit sequence, least significant bit first. Scales and biases are bf16 or f16. */
#include <string.h>

#include "quant/block_internal.h"

#define MAX_GROUP 128

static void affine_pack(unsigned bits, const uint8_t *codes, uint8_t *dst, size_t n)
{
    if (bits == 8) {
        memcpy(dst, codes, n);
        return;
    }
    if (bits == 4) {
        for (size_t i = 0; i < n / 2; i++)
            dst[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
        return;
    }
    unsigned held = 0;
    unsigned n_held = 0;
    for (size_t i = 0; i < n; i++) {
        held |= (unsigned)codes[i] << n_held;
        n_held += bits;
        while (n_held >= 8) {
            *dst++ = (uint8_t)held;
            held >>= 8;
            n_held -= 8;
        }
    }
}

static inline float load_scale(const struct quant *q, const void *part, size_t g)
{
    const uint32_t half = codes_u16((const uint8_t *)part + 2 * g);
    return q->scale == &quant_f16 ? quant_f16_to_f32((uint16_t)half)
                                  : quant_bf16_to_f32((uint16_t)half);
}

static void affine_unpack_row(const struct quant *q, const void *const parts[], size_t n,
                              uint8_t *codes, float *scales, float *biases, size_t stride)
{
    codes_affine((const uint8_t *)parts[0], q->bits, codes, n);
    for (size_t g = 0; g < n / q->block; g++) {
        scales[g * stride] = load_scale(q, parts[1], g);
        biases[g * stride] = load_scale(q, parts[2], g);
    }
}

static void affine_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    const size_t code_bytes = q->part_block_bytes[0];
    for (size_t g = 0; g < n / q->block; g++) {
        const float scale = load_scale(q, parts[1], g), bias = load_scale(q, parts[2], g);
        uint8_t codes[MAX_GROUP];
        codes_affine((const uint8_t *)parts[0] + g * code_bytes, q->bits, codes, q->block);
        decode_codes(q, codes, &scale, &bias, dst + g * q->block, q->block);
    }
}

static inline float round_to_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: |x| < 2^22 here */
    return (x + magic) - magic;
}

/* Chooses scale and bias as MLX does: the end of the range that is farther from zero is represented
 * exactly, and zero is a code. */
static void choose_scale(const float *x, unsigned n, unsigned max_code, float *scale, float *bias)
{
    enum { LANES = 8 }; /* in parallel: the result does not depend on the order */
    float lows[LANES], highs[LANES];
    memcpy(lows, x, sizeof lows);
    memcpy(highs, x, sizeof highs);
    for (unsigned i = LANES; i < n; i += LANES)
        for (unsigned j = 0; j < LANES; j++) {
            lows[j] = x[i + j] < lows[j] ? x[i + j] : lows[j];
            highs[j] = x[i + j] > highs[j] ? x[i + j] : highs[j];
        }
    float low = lows[0], high = highs[0];
    for (unsigned j = 1; j < LANES; j++) {
        low = lows[j] < low ? lows[j] : low;
        high = highs[j] > high ? highs[j] : high;
    }
    const float min_scale = 1e-7f;
    float s = (high - low) / (float)max_code;
    s = s > min_scale ? s : min_scale;
    float low_size = low < 0 ? -low : low;
    float high_size = high < 0 ? -high : high;
    float edge = low;
    if (!(low_size > high_size)) {
        edge = high;
        s = -s;
    }
    float steps = round_to_even(edge / s);
    *scale = steps != 0 ? edge / steps : s;
    *bias = steps != 0 ? edge : 0;
}

static void affine_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    const unsigned max_code = (1u << q->bits) - 1;
    const size_t code_bytes = q->part_block_bytes[0];
    for (size_t g = 0; g < n / q->block; g++) {
        const float *x = src + g * q->block;
        float scale, bias;
        choose_scale(x, q->block, max_code, &scale, &bias);
        uint8_t codes[MAX_GROUP];
        int32_t wide[MAX_GROUP];
        const float max = (float)max_code;
        for (unsigned i = 0; i < q->block; i++) {
            float code = round_to_even((x[i] - bias) / scale);
            code = code > 0 ? code : 0;
            wide[i] = (int32_t)(code < max ? code : max);
        }
        for (unsigned i = 0; i < q->block; i++)
            codes[i] = (uint8_t)wide[i];
        affine_pack(q->bits, codes, (uint8_t *)parts[0] + g * code_bytes, q->block);
        void *scale_at = (char *)parts[1] + 2 * g;
        void *bias_at = (char *)parts[2] + 2 * g;
        q->scale->encode_row(q->scale, &scale, &scale_at, 1);
        q->scale->encode_row(q->scale, &bias, &bias_at, 1);
    }
}

#define AFFINE(code_bits, group_columns, suffix, label, scale_format)                              \
    extern const struct quant quant_affine##code_bits##_g##group_columns##suffix;                  \
    const struct quant quant_affine##code_bits##_g##group_columns##suffix = {                      \
        .name = "affine" #code_bits "-g" #group_columns label,                                     \
        .kind = QUANT_AFFINE,                                                                      \
        .block = group_columns,                                                                    \
        .n_parts = 3,                                                                              \
        .part_block_bytes = {group_columns * code_bits / 8, 2, 2},                                 \
        .bits = code_bits,                                                                         \
        .scale = &scale_format,                                                                    \
        .decode_row = affine_decode,                                                               \
        .encode_row = affine_encode,                                                               \
        .unpack_row = affine_unpack_row,                                                           \
        .codes = QUANT_CODES_AFFINE,                                                               \
        .group = group_columns,                                                                    \
        .has_bias = true,                                                                          \
        .has_wide_codes = code_bits == 8,                                                          \
    };

#define AFFINE_GROUPS(code_bits)                                                                   \
    AFFINE(code_bits, 32, , "", quant_bf16)                                                        \
    AFFINE(code_bits, 64, , "", quant_bf16)                                                        \
    AFFINE(code_bits, 128, , "", quant_bf16)                                                       \
    AFFINE(code_bits, 32, _f16, "-f16", quant_f16)                                                 \
    AFFINE(code_bits, 64, _f16, "-f16", quant_f16)                                                 \
    AFFINE(code_bits, 128, _f16, "-f16", quant_f16)

AFFINE_GROUPS(2)
AFFINE_GROUPS(3)
AFFINE_GROUPS(4)
AFFINE_GROUPS(5)
AFFINE_GROUPS(6)
AFFINE_GROUPS(8)
