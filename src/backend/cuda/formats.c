#include "backend/cuda/formats.h"

#include <assert.h>
#include <string.h>

static const struct {
    const char *prefix; /* of the names of formats */
    enum gpu_plain plain;
} plains[] = {
    {"f32", GPU_PLAIN_F32},         {"f16", GPU_PLAIN_F16},         {"bf16", GPU_PLAIN_BF16},
    {"fp8-", GPU_PLAIN_FP8},        {"iq1_m", GPU_PLAIN_IQ1_M},     {"iq1_s", GPU_PLAIN_IQ1_S},
    {"iq2_s", GPU_PLAIN_IQ2_S},     {"iq2_xs", GPU_PLAIN_IQ2_XS},   {"iq2_xxs", GPU_PLAIN_IQ2_XXS},
    {"iq3_s", GPU_PLAIN_IQ3_S},     {"iq3_xxs", GPU_PLAIN_IQ3_XXS}, {"tq1_0", GPU_PLAIN_TQ1_0},
    {"tq2_0", GPU_PLAIN_TQ2_0},
};

static enum gpu_plain plain_of(const struct quant *quant)
{
    if (quant == NULL || quant->codes != QUANT_NO_CODES)
        return GPU_PLAIN_NONE;
    for (size_t i = 0; i < sizeof plains / sizeof plains[0]; i++)
        if (strncmp(quant->name, plains[i].prefix, strlen(plains[i].prefix)) == 0)
            return plains[i].plain;
    return GPU_PLAIN_NONE;
}

struct gpu_format gpu_format_of(const struct quant *quant)
{
    struct gpu_format f = {.codes = (uint8_t)quant->codes, .plain = (uint8_t)plain_of(quant),
                           .scale = (uint8_t)plain_of(quant->scale), .bits = (uint8_t)quant->bits,
                           .has_bias = quant->has_bias, .has_wide_codes = quant->has_wide_codes,
                           .block = (uint16_t)quant->block, .group = (uint16_t)quant->group,
                           .zero = (uint16_t)quant->zero};
    for (unsigned p = 0; p < quant->n_parts; p++) {
        f.part_block_bytes[p] = (uint16_t)quant->part_block_bytes[p];
        f.part_rows[p] = (uint16_t)(quant->part_rows[p] > 1 ? quant->part_rows[p] : 1);
    }
    assert(f.codes != QUANT_NO_CODES || f.plain != GPU_PLAIN_NONE);
    return f;
}

struct gpu_weight gpu_weight_of(const struct weight *w)
{
    struct gpu_weight g = {.format = gpu_format_of(w->quant), .n_rows = w->n_rows,
                           .n_cols = w->n_cols, .is_interleaved = w->is_interleaved};
    for (unsigned p = 0; p < w->quant->n_parts; p++)
        g.parts[p] = w->parts[p];
    return g;
}

struct gpu_kv_format gpu_kv_format_of(const struct kv_format *format)
{
    struct gpu_kv_format g = {.plain = plain_of(format->plain), .bits = format->bits,
                              .unit = format->unit};
    memcpy(g.levels, format->levels, sizeof g.levels);
    return g;
}
