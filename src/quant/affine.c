/* Affine groups as MLX stores them: x = scale * code + bias. The codes of a row are one
 * little-endian, least-significant-bit-first stream; scales and biases are bf16 or f16. */
#include <string.h>

#include "quant/quant.h"

#define MAX_GROUP 128

static void affine_unpack(const struct quant *q, const void *codes, uint8_t *dst, size_t n)
{
    const uint8_t *src = codes;
    if (q->bits == 8) {
        memcpy(dst, src, n);
        return;
    }
    if (q->bits == 4) {
        for (size_t i = 0; i < n / 2; i++) {
            dst[2 * i] = src[i] & 15;
            dst[2 * i + 1] = src[i] >> 4;
        }
        return;
    }
    const unsigned bits = q->bits;
    const unsigned mask = (1u << bits) - 1;
    unsigned held = 0; /* bits waiting, the next code lowest */
    unsigned n_held = 0;
    for (size_t i = 0; i < n; i++) {
        if (n_held < bits) {
            held |= (unsigned)*src++ << n_held;
            n_held += 8;
        }
        dst[i] = (uint8_t)(held & mask);
        held >>= bits;
        n_held -= bits;
    }
}

static void affine_pack(unsigned bits, const uint8_t *codes, uint8_t *dst, size_t n)
{
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

static void affine_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    const size_t code_bytes = q->part_block_bytes[0];
    for (size_t g = 0; g < n / q->block; g++) {
        float scale, bias;
        const void *scale_at = (const char *)parts[1] + 2 * g;
        const void *bias_at = (const char *)parts[2] + 2 * g;
        q->scale->decode_row(q->scale, &scale_at, &scale, 1);
        q->scale->decode_row(q->scale, &bias_at, &bias, 1);
        uint8_t codes[MAX_GROUP];
        affine_unpack(q, (const char *)parts[0] + g * code_bytes, codes, q->block);
        for (unsigned i = 0; i < q->block; i++)
            dst[g * q->block + i] = scale * (float)codes[i] + bias;
    }
}

static inline float round_to_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: |x| < 2^22 here */
    return (x + magic) - magic;
}

/* MLX's choice of scale and bias: the end of the range farther from zero is represented exactly,
 * and zero is a code. */
static void choose_scale(const float *x, unsigned n, unsigned max_code, float *scale, float *bias)
{
    float low = x[0], high = x[0];
    for (unsigned i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float least_scale = 1e-7f;
    float s = (high - low) / (float)max_code;
    s = s > least_scale ? s : least_scale;
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
        for (unsigned i = 0; i < q->block; i++) {
            float code = round_to_even((x[i] - bias) / scale);
            code = code > 0 ? code : 0;
            codes[i] = (uint8_t)(code < (float)max_code ? code : (float)max_code);
        }
        affine_pack(q->bits, codes, (uint8_t *)parts[0] + g * code_bytes, q->block);
        void *scale_at = (char *)parts[1] + 2 * g;
        void *bias_at = (char *)parts[2] + 2 * g;
        q->scale->encode_row(q->scale, &scale, &scale_at, 1);
        q->scale->encode_row(q->scale, &bias, &bias_at, 1);
    }
}

#define AFFINE(code_bits, group, suffix, label, scale_format)                                      \
    extern const struct quant quant_affine##code_bits##_g##group##suffix;                          \
    const struct quant quant_affine##code_bits##_g##group##suffix = {                              \
        .name = "affine" #code_bits "-g" #group label,                                             \
        .kind = QUANT_AFFINE,                                                                      \
        .block = group,                                                                            \
        .n_parts = 3,                                                                              \
        .part_block_bytes = {group * code_bits / 8, 2, 2},                                         \
        .bits = code_bits,                                                                         \
        .scale = &scale_format,                                                                    \
        .decode_row = affine_decode,                                                               \
        .encode_row = affine_encode,                                                               \
        .unpack_row = affine_unpack,                                                               \
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
