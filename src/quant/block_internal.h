/* What the block formats share: unaligned little-endian reads, and the descriptor of a format whose
 * blocks are independent. Private to this folder. Pure functions; nothing fails. */
#ifndef FLASHMOE_QUANT_BLOCK_INTERNAL_H
#define FLASHMOE_QUANT_BLOCK_INTERNAL_H

#include "quant/codes.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t load_u16(const uint8_t *at)
{
    return codes_u16(at);
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return codes_u32(at);
}

static inline float load_f16(const uint8_t *at)
{
    return codes_f16(at);
}

static inline void store_f16(uint8_t *at, float x)
{
    uint16_t half = quant_f32_to_f16(x);
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
}

/* Returns |x|; -0 becomes +0. */
static inline float magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Converts n codes to values. Does not read biases if the format has none. */
static inline void decode_codes(const struct quant *q, const uint8_t *codes, const float *scales,
                                const float *biases, float *dst, size_t n)
{
    const int zero = (int)q->zero;
    for (size_t g = 0; g < n / q->group; g++)
        for (size_t i = g * q->group; i < (g + 1) * q->group; i++) {
            dst[i] = scales[g] * (float)((int)codes[i] - zero);
            if (q->has_bias)
                dst[i] += biases[g];
        }
}

/* Defines the descriptor quant_FORMAT of a format that stores codes, in blocks that codes.h
 * unpacks. */
#define CODE_FORMAT(format, columns, bytes, code_bits, encoder, ...)                               \
    static void format##_unpack_row(const struct quant *q, const void *const parts[], size_t n,    \
                                    uint8_t *codes, float *scales, float *biases, size_t stride)   \
    {                                                                                              \
        const uint8_t *src = (const uint8_t *)parts[0];                                            \
        const size_t n_groups = (columns) / q->group;                                              \
        for (size_t b = 0; b < n / (columns); b++)                                                 \
            format##_unpack(src + b * (bytes), codes + b * (columns),                              \
                            scales + b * n_groups * stride, biases + b * n_groups * stride,        \
                            stride);                                                               \
    }                                                                                              \
    static void format##_decode(const struct quant *q, const void *const parts[], float *dst,      \
                                size_t n)                                                          \
    {                                                                                              \
        const uint8_t *src = (const uint8_t *)parts[0];                                            \
        for (size_t b = 0; b < n / (columns); b++) {                                               \
            uint8_t codes[columns];                                                                \
            float scales[(columns) / 16], biases[(columns) / 16] = {0};                            \
            format##_unpack(src + b * (bytes), codes, scales, biases, 1);                          \
            decode_codes(q, codes, scales, biases, dst + b * (columns), (columns));                \
        }                                                                                          \
    }                                                                                              \
    extern const struct quant quant_##format;                                                      \
    const struct quant quant_##format = {                                                          \
        .name = #format,                                                                           \
        .kind = QUANT_BLOCK,                                                                       \
        .block = (columns),                                                                        \
        .n_parts = 1,                                                                              \
        .part_block_bytes = {(bytes)},                                                             \
        .bits = (code_bits),                                                                       \
        .decode_row = format##_decode,                                                             \
        .encode_row = (encoder),                                                                   \
        .unpack_row = format##_unpack_row,                                                         \
        __VA_ARGS__};

/* Defines the descriptor quant_FORMAT of any other block format. The file defines static void
 * FORMAT_decode_block(const uint8_t *src, float *dst), and passes NULL or an encode_row. */
#define BLOCK_FORMAT(format, columns, bytes, code_bits, encoder)                                   \
    static void format##_decode(const struct quant *q, const void *const parts[], float *dst,      \
                                size_t n)                                                          \
    {                                                                                              \
        (void)q;                                                                                   \
        const uint8_t *src = (const uint8_t *)parts[0];                                            \
        for (size_t b = 0; b < n / (columns); b++)                                                 \
            format##_decode_block(src + b * (bytes), dst + b * (columns));                         \
    }                                                                                              \
    extern const struct quant quant_##format;                                                      \
    const struct quant quant_##format = {                                                          \
        .name = #format,                                                                           \
        .kind = QUANT_BLOCK,                                                                       \
        .block = (columns),                                                                        \
        .n_parts = 1,                                                                              \
        .part_block_bytes = {(bytes)},                                                             \
        .bits = (code_bits),                                                                       \
        .decode_row = format##_decode,                                                             \
        .encode_row = (encoder),                                                                   \
    };

#ifdef __cplusplus
}
#endif
#endif
