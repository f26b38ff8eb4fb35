/* Number formats of weights. A format is a descriptor that is found by name; only the descriptor
 * knows the sizes. A row of n columns has one byte sequence per part (affine: codes, scales,
 * biases; fp8, int4-g32 and mxfp4-g32: codes, scales; all others: one). Each is a sequence of
 * blocks of `block` columns.
 *
 * Descriptors are constants. Any thread may use them, nothing has to be freed, and nothing
 * fails. */
#ifndef FLASHMOE_QUANT_QUANT_H
#define FLASHMOE_QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUANT_MAX_PARTS 3

enum quant_kind {
    QUANT_FLOAT,  /* one value per column */
    QUANT_AFFINE, /* x = scale * code + bias per group of `block` columns */
    QUANT_BLOCK,  /* any other layout */
};

/* How codes, scales and biases lie in a block (codes.h). */
enum quant_codes {
    QUANT_NO_CODES, /* no codes: use decode_row */
    QUANT_CODES_AFFINE, /* with a bias per group, or without (has_bias) */
    QUANT_CODES_Q8_0,
    QUANT_CODES_Q4_0,
    QUANT_CODES_Q4_1,
    QUANT_CODES_Q5_0,
    QUANT_CODES_Q5_1,
    QUANT_CODES_Q2_K,
    QUANT_CODES_Q3_K,
    QUANT_CODES_Q4_K,
    QUANT_CODES_Q5_K,
    QUANT_CODES_Q6_K,
    QUANT_CODES_MXFP4,
    QUANT_CODES_FP4, /* the codes of MXFP4 in one part, its powers of two in another */
    QUANT_CODES_IQ4_NL,
    QUANT_CODES_IQ4_XS,
};

struct quant {
    const char *name; /* "bf16", "affine4-g64", "q4_k", "fp8-b128-f32", ... */
    enum quant_kind kind;
    unsigned block;                             /* columns per block */
    unsigned n_parts;                           /* byte sequences per row */
    unsigned part_block_bytes[QUANT_MAX_PARTS]; /* bytes of one block in each part */
    /* Matrix rows that share one row of the part; 0 means 1. More than one only if a scale belongs
     * to a rectangle of weights (fp8). */
    unsigned part_rows[QUANT_MAX_PARTS];
    /* the same format with unshared rows; NULL if rows are not shared */
    const struct quant *unshared;
    unsigned bits;                              /* per code, or per float */
    const struct quant *scale;                  /* format of scales and biases, if they are parts */

    /* For formats that store codes: x = scale * (code - zero), or scale * code + bias, with one
     * scale and bias per `group` columns. */
    enum quant_codes codes;
    unsigned group, zero;
    bool has_bias;
    bool has_wide_codes; /* codes up to 255; otherwise up to 127 */

    /* Both convert n columns, a multiple of `block`. Pointers need no alignment. encode_row is NULL
     * for a format that can only be read. */
    void (*decode_row)(const struct quant *q, const void *const parts[], float *dst, size_t n);
    void (*encode_row)(const struct quant *q, const float *src, void *const parts[], size_t n);
    /* For formats that store codes: writes one byte per column, and the scale and bias of group g
     * at index g * stride. */
    void (*unpack_row)(const struct quant *q, const void *const parts[], size_t n, uint8_t *codes,
                       float *scales, float *biases, size_t stride);
};

/* Returns NULL when there is no such format. */
const struct quant *quant_find(const char *name);
/* Returns the i-th format, or NULL past the end. */
const struct quant *quant_at(unsigned i);

extern const struct quant quant_f32, quant_f16, quant_bf16;
/* E4M3 without scales: rows of tables alone are read in it. */
extern const struct quant quant_fp8_codes;

/* Returns the bytes of one row of n columns in one part. */
static inline uint64_t quant_part_row_bytes(const struct quant *q, unsigned part, uint64_t n)
{
    return n / q->block * q->part_block_bytes[part];
}

/* Returns the row of the part that matrix row r uses. */
static inline uint64_t quant_part_row(const struct quant *q, unsigned part, uint64_t r)
{
    return q->part_rows[part] > 1 ? r / q->part_rows[part] : r;
}

/* Return the bytes of n_rows rows of n_cols columns in one part, or in all parts. */
static inline uint64_t quant_part_bytes(const struct quant *q, unsigned part, uint64_t n_rows,
                                        uint64_t n_cols)
{
    uint64_t rows = n_rows > 0 ? quant_part_row(q, part, n_rows - 1) + 1 : 0;
    return rows * quant_part_row_bytes(q, part, n_cols);
}

static inline uint64_t quant_matrix_bytes(const struct quant *q, uint64_t n_rows, uint64_t n_cols)
{
    uint64_t bytes = 0;
    for (unsigned p = 0; p < q->n_parts; p++)
        bytes += quant_part_bytes(q, p, n_rows, n_cols);
    return bytes;
}

static inline uint64_t quant_row_bytes(const struct quant *q, uint64_t n_cols)
{
    return quant_matrix_bytes(q, 1, n_cols);
}

/* Scalar conversions, exact or rounded to nearest even. NaN stays NaN. */
float quant_f16_to_f32(uint16_t h);
uint16_t quant_f32_to_f16(float x);
float quant_bf16_to_f32(uint16_t h);
uint16_t quant_f32_to_bf16(float x);

#ifdef __cplusplus
}
#endif
#endif
