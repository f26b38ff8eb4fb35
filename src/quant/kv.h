/* Formats of keys and values. A row is the vector of one head at one position. f32 and f16 keep the
 * numbers as they are. The rotated formats keep H D x, where D flips signs that are fixed for every
 * machine and H is the Walsh-Hadamard matrix over the largest power of two that divides the
 * dimension (kv_rotate): its coordinates are nearly normal whatever x was, so that few levels are
 * enough. Rotations keep inner products, so a rotated query meets the keys as they lie, and the sum
 * of values is turned back once.
 *
 * A rotated row is groups of 16 codes, then its scale s as the f16 of KV_SCALE * s. A code stands
 * for a level, a small whole number, and a coordinate is s * level:
 *   rot8   16 bytes, the levels themselves; s = max / 127, rounded to its f16 first
 *   rot4    8 bytes, code j in the low half of byte j, code j + 8 in the high half
 *   rot3    6 bytes: the low two bits as in rot2; then two bytes, bit 2 of code j in bit j
 *   rot2    4 bytes, code j + 4k in bits 2k of byte j
 * The levels of rot4, rot3 and rot2 are the Lloyd-Max codebook of the normal distribution in a unit
 * that makes them whole. With y = H D x and c its levels, a key's scale is <y, y> / <y, c>, so that
 * an inner product with it is neither shrunk nor grown on average; a value's is <y, c> / <c, c>,
 * which has the least error.
 *
 * Everything here defines its bits: sums are over 16 lanes as in the kernels. Constants and pure
 * functions: any thread, nothing to free, nothing fails. */
#ifndef FLASHMOE_QUANT_KV_H
#define FLASHMOE_QUANT_KV_H

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KV_GROUP 16       /* codes; divides every dimension that is rotated */
#define KV_SCALE 64.0f    /* f16 ends at 2^-24, and levels are up to 127 */

enum kv_side { KV_KEY, KV_VALUE };

struct kv_format {
    const char *name;
    const struct quant *plain; /* f32 or f16; NULL: rotated */
    unsigned bits;             /* of one code */
    int8_t levels[16];         /* of codes up to 4 bits, ascending */
    float unit;                /* of a level, where coordinates have variance 1 */
};

extern const struct kv_format kv_f32, kv_f16, kv_rot8, kv_rot4, kv_rot3, kv_rot2;

/* NULL when there is no such format, or past the end. */
const struct kv_format *kv_find(const char *name);
const struct kv_format *kv_at(unsigned i);

/* Whether vectors of that dimension can be kept so. */
bool kv_fits(const struct kv_format *format, uint32_t dim);

static inline uint64_t kv_row_bytes(const struct kv_format *format, uint64_t dim)
{
    return format->plain != NULL ? quant_row_bytes(format->plain, dim)
                                 : dim * format->bits / 8 + sizeof(uint16_t);
}

/* x = H D x, and x = D H x, which undoes it. */
void kv_rotate(float *x, size_t dim);
void kv_rotate_back(float *x, size_t dim);

/* One vector to its row: x as it is, the rotation is part of it. */
void kv_store(const struct kv_format *format, enum kv_side side, const float *x, size_t dim,
              void *row);
/* The levels of a rotated row, still rotated, and its scale. */
void kv_load_levels(const struct kv_format *format, const void *row, size_t dim, int8_t *levels);
float kv_load_scale(const struct kv_format *format, const void *row, size_t dim);

#ifdef __cplusplus
}
#endif
#endif
