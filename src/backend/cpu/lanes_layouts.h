/* Part of lanes.h: the formats' layouts, as constants that the functions of a format are made
 * from. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_LAYOUTS_H
#define FLASHMOE_BACKEND_CPU_LANES_LAYOUTS_H

#include "backend/cpu/lanes_formats.h"

/* How a format is unpacked: constants. A unit is the columns that are unpacked at once. */
struct layout {
    enum quant_codes codes;
    unsigned bits, block, bytes, unit, group;
    bool has_bias, is_wide;
    bool is_interleaved; /* blocks of sixteen rows lie side by side */
};

#define LAYOUT(name, b, columns, n_bytes, at_once, columns_of_group, bias, wide)                   \
    ((struct layout){.codes = QUANT_CODES_##name, .bits = (b), .block = (columns),                 \
                     .bytes = (n_bytes), .unit = (at_once), .group = (columns_of_group),           \
                     .has_bias = (bias), .is_wide = (wide)})

/* DO(name of the functions, layout) for GGUF's formats, then for every format. Affine dot products
 * cover 32 columns at a time. */
#define GGUF_LAYOUTS(DO)                                                                           \
    DO(q8_0, LAYOUT(Q8_0, 8, 32, 34, 32, 32, false, true))                                         \
    DO(q4_0, LAYOUT(Q4_0, 4, 32, 18, 32, 32, false, false))                                        \
    DO(q4_1, LAYOUT(Q4_1, 4, 32, 20, 32, 32, true, false))                                         \
    DO(q5_0, LAYOUT(Q5_0, 5, 32, 22, 32, 32, false, false))                                        \
    DO(q5_1, LAYOUT(Q5_1, 5, 32, 24, 32, 32, true, false))                                         \
    DO(mxfp4, LAYOUT(MXFP4, 4, 32, 17, 32, 32, false, false))                                      \
    DO(iq4_nl, LAYOUT(IQ4_NL, 4, 32, 18, 32, 32, false, true))                                     \
    DO(iq4_xs, LAYOUT(IQ4_XS, 4, 256, 136, 32, 32, false, true))                                   \
    DO(q2_k, LAYOUT(Q2_K, 2, 256, 84, 128, 16, true, false))                                       \
    DO(q3_k, LAYOUT(Q3_K, 3, 256, 110, 128, 16, false, false))                                     \
    DO(q4_k, LAYOUT(Q4_K, 4, 256, 144, 64, 32, true, false))                                       \
    DO(q5_k, LAYOUT(Q5_K, 5, 256, 176, 128, 32, true, false))                                      \
    DO(q6_k, LAYOUT(Q6_K, 6, 256, 210, 128, 16, false, false))
#define ALL_LAYOUTS(DO)                                                                            \
    GGUF_LAYOUTS(DO)                                                                               \
    DO(fp4, LAYOUT(FP4, 4, 32, 16, 32, 32, false, false))                                          \
    DO(affine2, LAYOUT(AFFINE, 2, SPAN, SPAN / 8 * 2, SPAN, 32, true, false))                      \
    DO(affine3, LAYOUT(AFFINE, 3, SPAN, SPAN / 8 * 3, SPAN, 32, true, false))                      \
    DO(affine4, LAYOUT(AFFINE, 4, SPAN, SPAN / 8 * 4, SPAN, 32, true, false))                      \
    DO(int4, LAYOUT(AFFINE, 4, SPAN, SPAN / 8 * 4, SPAN, 32, false, false))                        \
    DO(affine5, LAYOUT(AFFINE, 5, SPAN, SPAN / 8 * 5, SPAN, 32, true, false))                      \
    DO(affine6, LAYOUT(AFFINE, 6, SPAN, SPAN / 8 * 6, SPAN, 32, true, false))                      \
    DO(affine8, LAYOUT(AFFINE, 8, SPAN, SPAN, SPAN, 32, true, true))

/* The same format with interleaved blocks. */
INLINE struct layout side_by_side(struct layout l)
{
    l.is_interleaved = true;
    return l;
}

/* Returns the sum of the i-th group of a unit. */
INLINE vi group_sum(struct layout l, const vi dots[2], unsigned i)
{
    const vi sum = l.group > KERNEL_SMALLEST_GROUP ? vi_add(dots[0], dots[1]) : dots[0];
    return UPPER_STAY && l.codes == QUANT_CODES_Q4_K && i % 2 == 1 ? vi_sra(sum, 4) : sum;
}

/* True if blocks of 32 columns begin with their scale. */
INLINE bool has_heads(struct layout l)
{
    return l.block == 32 && l.codes != QUANT_CODES_FP4;
}

INLINE void put_unit(struct layout l, struct rows rows, size_t at, size_t unit, struct sink *to)
{
    switch (l.codes) {
    case QUANT_CODES_Q8_0: put_bytes(rows, at + 2, to); break;
    case QUANT_CODES_Q4_0: put_nibbles(rows, at + 2, to); break;
    case QUANT_CODES_Q4_1: put_nibbles(rows, at + 4, to); break;
    case QUANT_CODES_Q5_0: put_fives(rows, at + 2, to); break;
    case QUANT_CODES_Q5_1: put_fives(rows, at + 4, to); break;
    case QUANT_CODES_MXFP4: put_levels(rows, at + 1, codes_fp4_doubled, to); break;
    case QUANT_CODES_FP4: put_fp4(rows, at, to); break;
    case QUANT_CODES_IQ4_NL: put_levels(rows, at + 2, codes_iq4_levels, to); break;
    case QUANT_CODES_IQ4_XS: put_levels(rows, at + 8 + 16 * unit, codes_iq4_levels, to); break;
    case QUANT_CODES_Q2_K: put_q2_k(rows, at, unit, to); break;
    case QUANT_CODES_Q3_K: put_q3_k(rows, at, unit, to); break;
    case QUANT_CODES_Q4_K: put_q4_k(rows, at, unit, to); break;
    case QUANT_CODES_Q5_K: put_q5_k(rows, at, unit, to); break;
    case QUANT_CODES_Q6_K: put_q6_k(rows, at, unit, to); break;
    case QUANT_CODES_AFFINE:
        put_affine(rows, at, l.bits, 0, l.bits == 8 ? SPAN / 2 : SPAN, to);
        if (l.bits == 8)
            put_affine(rows, at + SPAN / 2, 8, SPAN / 2, SPAN / 2, to);
        break;
    case QUANT_NO_CODES: break;
    }
}

#endif
