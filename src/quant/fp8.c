/* FP8 (E4M3, finite) as Hugging Face checkpoints store it: one part with codes, one byte per
 * weight, and one part with scales, one per 128 x 128 weights. x = code * scale. */
#include <string.h>

#include "quant/blocks.h"

enum { COLUMNS = 128 };

static inline void decode_block(const uint8_t *restrict src, float scale, float *restrict dst)
{
    for (unsigned i = 0; i < COLUMNS; i++)
        dst[i] = codes_e4m3(src[i]) * scale;
}

static void fp8_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    const uint8_t *codes = parts[0];
    for (size_t b = 0; b < n / COLUMNS; b++) {
        float scale;
        const void *scale_at = (const char *)parts[1] + b * q->part_block_bytes[1];
        q->scale->decode_row(q->scale, &scale_at, &scale, 1);
        decode_block(codes + b * COLUMNS, scale, dst + b * COLUMNS);
    }
}

/* b128 has a scale per 128 x 128 weights, as in the files. g128 has one per 128 weights of a row,
 * for rows taken out of such a matrix. */
#define FP8_OF(format, scale_bytes, shape, rows, unshared_form)                                    \
    extern const struct quant quant_fp8_##shape##_##format;                                        \
    const struct quant quant_fp8_##shape##_##format = {                                            \
        .name = "fp8-" #shape "-" #format,                                                         \
        .kind = QUANT_BLOCK,                                                                       \
        .block = COLUMNS,                                                                          \
        .n_parts = 2,                                                                              \
        .part_block_bytes = {COLUMNS, scale_bytes},                                                \
        .part_rows = {1, rows},                                                                    \
        .unshared = unshared_form,                                                                 \
        .bits = 8,                                                                                 \
        .scale = &quant_##format,                                                                  \
        .decode_row = fp8_decode,                                                                  \
    };

#define FP8(format, scale_bytes)                                                                   \
    FP8_OF(format, scale_bytes, g128, 1, NULL)                                                     \
    FP8_OF(format, scale_bytes, b128, 128, &quant_fp8_g128_##format)

FP8(bf16, 2)
FP8(f16, 2)
FP8(f32, 4)

/* Codes alone, of a table with one scale for all rows, which whoever reads rows multiplies with. */
static void codes_decode(const struct quant *q, const void *const parts[], float *dst, size_t n)
{
    const uint8_t *codes = parts[0];
    (void)q;
    for (size_t i = 0; i < n; i++)
        dst[i] = codes_e4m3(codes[i]);
}

const struct quant quant_fp8_codes = {
    .name = "fp8-codes", .kind = QUANT_BLOCK, .block = 1, .n_parts = 1, .part_block_bytes = {1},
    .bits = 8, .decode_row = codes_decode,
};
