/* Formats of keys and values. A row is the vector of one head at one position. f32 and f16 store
 * the numbers unchanged. The rotated formats store H D x. D flips signs by a fixed pattern. H is
 * the Walsh-Hadamard matrix over the largest power of two that divides the dimension (kv_rotate).
 * The coordinates of H D x are nearly normally distributed for any x, so a few levels are enough.
 * Rotations preserve inner products: a rotated query is multiplied with the stored keys, and the
 * sum of values is rotated back once.
 *
 * A rotated row has groups of 16 codes, then its scale s, stored as the f16 of KV_SCALE * s. A code
 * represents a level, a small integer, and a coordinate is s * level:
 *   rot8   16 bytes, the levels themselves; s = max / 127, rounded to its f16 first
 *   rot4    8 bytes, code j in the low half of byte j, code j + 8 in the high half
 *   rot3    6 bytes: the low two bits as in rot2; then two bytes, bit 2 of code j in bit j
 *   rot2    4 bytes, code j + 4k in bits 2k of byte j
 * The levels of rot4, rot3 and rot2 are the Lloyd-Max codebook of the normal distribution, scaled
 * to integers. Let y = H D x and c its levels. The scale of a key is <y, y> / <y, c>,
 * so that inner products with it are unbiased. The scale of a value is <y, c> / <c, c>, which
 * minimises the error.
 *
 * The functions define the bits of their results: sums use 16 lanes like the kernels. They are pure
 * and may be called from any thread; nothing has to be freed, and nothing fails. */
#ifndef FLASHMOE_QUANT_KV_H
#define FLASHMOE_QUANT_KV_H

#include "base/shared_fn.h"
#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KV_GROUP 16       /* codes per group; divides every rotated dimension */
#define KV_SCALE 64.0f    /* f16 ends at 2^-24, and levels are up to 127 */

enum kv_side { KV_KEY, KV_VALUE };

/* Returns the sign bit that D multiplies element i with, from three rounds of multiplying and
 * folding. */
SHARED_FN uint32_t kv_sign(uint32_t i)
{
    uint32_t h = (i + 1) * 0x9e3779b1u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    return (h ^ h >> 15) << 31;
}

struct kv_format {
    const char *name;
    const struct quant *plain; /* f32 or f16; NULL: rotated */
    unsigned bits;             /* per code */
    int8_t levels[16];         /* of codes up to 4 bits, ascending */
    float unit;                /* size of a level if coordinates have variance 1 */
};

extern const struct kv_format kv_f32, kv_f16, kv_rot8, kv_rot4, kv_rot3, kv_rot2;

/* Return NULL when there is no such format, or past the end. */
const struct kv_format *kv_find(const char *name);
const struct kv_format *kv_at(unsigned i);

/* Returns whether vectors of this dimension can be stored in the format. */
bool kv_fits(const struct kv_format *format, uint32_t dim);

static inline uint64_t kv_row_bytes(const struct kv_format *format, uint64_t dim)
{
    return format->plain != NULL ? quant_row_bytes(format->plain, dim)
                                 : dim * format->bits / 8 + sizeof(uint16_t);
}

/* Compute x = H D x, and x = D H x, which is the inverse. */
void kv_rotate(float *x, size_t dim);
void kv_rotate_back(float *x, size_t dim);

/* Stores a vector as a row. Rotates it itself if the format is rotated. */
void kv_store(const struct kv_format *format, enum kv_side side, const float *x, size_t dim,
              void *row);
/* Load the levels of a rotated row, without rotating them back, and its scale. */
void kv_load_levels(const struct kv_format *format, const void *row, size_t dim, int8_t *levels);
float kv_load_scale(const struct kv_format *format, const void *row, size_t dim);

#ifdef __cplusplus
}
#endif
#endif
