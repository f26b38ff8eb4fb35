/* What the block formats share: reading little-endian fields at any address, and the descriptor of
 * a format whose blocks stand alone. Private to this folder; fails nowhere. */
#ifndef FLASHMOE_QUANT_BLOCK_INTERNAL_H
#define FLASHMOE_QUANT_BLOCK_INTERNAL_H

#include <string.h>

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline uint32_t load_u16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return load_u16(at) | load_u16(at + 2) << 16;
}

static inline float load_f16(const uint8_t *at)
{
    return quant_f16_to_f32((uint16_t)load_u16(at));
}

static inline void store_f16(uint8_t *at, float x)
{
    uint16_t half = quant_f32_to_f16(x);
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
}

/* Of a zero too: -0 becomes +0. */
static inline float magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7fffffffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The descriptor quant_FORMAT. The file defines
 *   static void FORMAT_decode_block(const uint8_t *src, float *dst)
 * and passes NULL or an encode_row. */
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
