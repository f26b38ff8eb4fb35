/* f32, f16, bf16: one value per column. */
#include <string.h>

#include "quant/quant.h"

static inline float float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline uint16_t load_u16(const void *src, size_t i)
{
    uint16_t h;
    memcpy(&h, (const char *)src + 2 * i, sizeof h);
    return h;
}

float quant_bf16_to_f32(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

uint16_t quant_f32_to_bf16(float x)
{
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* a quiet NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Has no branches, so that the row loop vectorises. One multiplication adjusts the exponent and
 * also turns half denormals into normal floats. */
static inline float f16_value(uint16_t h)
{
    const float two_to_112 = 0x1p112f;
    uint32_t magnitude = h & 0x7fffu;
    uint32_t finite = bits_of_float(float_of_bits(magnitude << 13) * two_to_112);
    uint32_t special = magnitude << 13 | 0x7f800000u;
    uint32_t bits = magnitude >= 0x7c00u ? special : finite;
    return float_of_bits(bits | (uint32_t)(h & 0x8000u) << 16);
}

float quant_f16_to_f32(uint16_t h)
{
    return f16_value(h);
}

uint16_t quant_f32_to_f16(float x)
{
    uint32_t bits = bits_of_float(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        /* A half denormal is a multiple of 2^-24: adding 0.5 rounds to such a multiple. */
        float shifted = float_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (uint16_t)(bits_of_float(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23);
    return (uint16_t)(sign | (uint16_t)(rounded >> 13));
}

static void f32_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    (void)q;
    memcpy(dst, parts[0], n * sizeof *dst);
}

static void f32_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    (void)q;
    memcpy(parts[0], src, n * sizeof *src);
}

static void f16_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++)
        dst[i] = f16_value(load_u16(parts[0], i));
}

static void f16_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = quant_f32_to_f16(src[i]);
        memcpy((char *)parts[0] + 2 * i, &h, sizeof h);
    }
}

static void bf16_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of_bits((uint32_t)load_u16(parts[0], i) << 16);
}

static void bf16_encode(const struct quant *q, const float *src, void *const parts[], size_t n)
{
    (void)q;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = quant_f32_to_bf16(src[i]);
        memcpy((char *)parts[0] + 2 * i, &h, sizeof h);
    }
}

const struct quant quant_f32 = {
    .name = "f32", .kind = QUANT_FLOAT, .block = 1, .n_parts = 1, .part_block_bytes = {4},
    .bits = 32, .decode_row = f32_decode, .encode_row = f32_encode,
};

const struct quant quant_f16 = {
    .name = "f16", .kind = QUANT_FLOAT, .block = 1, .n_parts = 1, .part_block_bytes = {2},
    .bits = 16, .decode_row = f16_decode, .encode_row = f16_encode,
};

const struct quant quant_bf16 = {
    .name = "bf16", .kind = QUANT_FLOAT, .block = 1, .n_parts = 1, .part_block_bytes = {2},
    .bits = 16, .decode_row = bf16_decode, .encode_row = bf16_encode,
};
