/* Symmetric groups as compressed-tensors packs them (pack-quantized, four bits): x = scale * (code
 * - 8). 32 columns share a scale. The codes of a row are nibbles in the order of the columns, the
 * low half of a byte first; scales are bf16 or f16 in a part of their own. These are affine groups
 * without biases. */
#include "quant/block_internal.h"

enum { COLUMNS = 32, BYTES = 16 };

static inline float load_scale(const struct quant *q, const void *part, size_t g)
{
    const uint16_t half = (uint16_t)codes_u16((const uint8_t *)part + 2 * g);
    return q->scale == &quant_f16 ? quant_f16_to_f32(half) : quant_bf16_to_f32(half);
}

static void int4_unpack_row(const struct quant *q, const void *const parts[], size_t n,
                            uint8_t *codes, float *scales, float *biases, size_t stride)
{
    (void)biases;
    codes_affine((const uint8_t *)parts[0], 4, codes, n);
    for (size_t g = 0; g < n / COLUMNS; g++)
        scales[g * stride] = load_scale(q, parts[1], g);
}

static void int4_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    for (size_t g = 0; g < n / COLUMNS; g++) {
        uint8_t codes[COLUMNS];
        const float scale = load_scale(q, parts[1], g);
        codes_affine((const uint8_t *)parts[0] + g * BYTES, 4, codes, COLUMNS);
        decode_codes(q, codes, &scale, NULL, dst + g * COLUMNS, COLUMNS);
    }
}

#define INT4(suffix, label, scale_format)                                                          \
    extern const struct quant quant_int4_g32##suffix;                                              \
    const struct quant quant_int4_g32##suffix = {                                                  \
        .name = "int4-g32" label,                                                                  \
        .kind = QUANT_BLOCK,                                                                       \
        .block = COLUMNS,                                                                          \
        .n_parts = 2,                                                                              \
        .part_block_bytes = {BYTES, 2},                                                            \
        .bits = 4,                                                                                 \
        .scale = &scale_format,                                                                    \
        .decode_row = int4_decode,                                                                 \
        .unpack_row = int4_unpack_row,                                                             \
        .codes = QUANT_CODES_AFFINE,                                                               \
        .group = COLUMNS,                                                                          \
        .zero = CODES_INT4_ZERO,                                                                   \
    };

INT4(, "", quant_bf16)
INT4(_f16, "-f16", quant_f16)
