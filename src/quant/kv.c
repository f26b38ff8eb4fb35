#include "quant/kv.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/limits.h"

#define LANES 16

/* The codebooks. The unit is the one, of all that keep the levels below 128, whose rounded levels
 * have the smallest error: 1.0006, 1.00003 and 1.0000006 times that of the exact levels. */
const struct kv_format kv_f32 = {.name = "f32", .plain = &quant_f32, .bits = 32};
const struct kv_format kv_f16 = {.name = "f16", .plain = &quant_f16, .bits = 16};
const struct kv_format kv_rot8 = {.name = "rot8", .bits = 8};
const struct kv_format kv_rot4 = {
    .name = "rot4", .bits = 4, .unit = 0.0262244681f,
    .levels = {-104, -79, -62, -48, -36, -25, -15, -5, 5, 15, 25, 36, 48, 62, 79, 104}};
const struct kv_format kv_rot3 = {
    .name = "rot3", .bits = 3, .unit = 0.0244539285f,
    .levels = {-88, -55, -31, -10, 10, 31, 55, 88}};
const struct kv_format kv_rot2 = {
    .name = "rot2", .bits = 2, .unit = 0.0503472536f, .levels = {-30, -9, 9, 30}};

static const struct kv_format *const all_formats[] = {&kv_f16,  &kv_f32,  &kv_rot8,
                                                      &kv_rot4, &kv_rot3, &kv_rot2};

const struct kv_format *kv_at(unsigned i)
{
    return i < sizeof all_formats / sizeof all_formats[0] ? all_formats[i] : NULL;
}

const struct kv_format *kv_find(const char *name)
{
    for (unsigned i = 0; kv_at(i) != NULL; i++)
        if (strcmp(kv_at(i)->name, name) == 0)
            return kv_at(i);
    return NULL;
}

bool kv_fits(const struct kv_format *format, uint32_t dim)
{
    return format->plain != NULL || (dim > 0 && dim % KV_GROUP == 0 && dim <= LIMIT_HEAD_DIM);
}

/* ---- rotation -------------------------------------------------------------------------------- */

static void flip_signs(float *x, size_t dim)
{
    for (size_t i = 0; i < dim; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits ^= kv_sign((uint32_t)i);
        memcpy(x + i, &bits, sizeof bits);
    }
}

/* Transforms each block of n elements; n is a power of two. */
static void hadamard(float *x, size_t n)
{
    for (size_t half = 1; half < n; half *= 2)
        for (size_t at = 0; at < n; at += 2 * half)
            for (size_t i = at; i < at + half; i++) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
    const float norm = 1.0f / sqrtf((float)n);
    for (size_t i = 0; i < n; i++)
        x[i] *= norm;
}

static void mix(float *x, size_t dim)
{
    const size_t block = dim & (~dim + 1);
    for (size_t at = 0; at < dim; at += block)
        hadamard(x + at, block);
}

void kv_rotate(float *x, size_t dim)
{
    flip_signs(x, dim);
    mix(x, dim);
}

void kv_rotate_back(float *x, size_t dim)
{
    mix(x, dim);
    flip_signs(x, dim);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static float sum_lanes(float lane[LANES])
{
    for (unsigned width = LANES / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

static float sum_squares(const float *x, size_t n)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (unsigned j = 0; j < LANES; j++)
            lane[j] += x[i + j] * x[i + j];
    return sum_lanes(lane);
}

static float dot_levels(const float *x, const int8_t *levels, size_t n)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (unsigned j = 0; j < LANES; j++)
            lane[j] += x[i + j] * (float)levels[i + j];
    return sum_lanes(lane);
}

/* NaN has one bit pattern on every machine. */
static uint16_t scale_bits(float scale)
{
    return scale == scale ? quant_f32_to_f16(scale * KV_SCALE) : 0x7e00u;
}

static float scale_of_bits(uint16_t bits)
{
    return quant_f16_to_f32(bits) * (1.0f / KV_SCALE);
}

/* Compares magnitudes as integers, so that NaN is the largest. */
static uint16_t store_bytes(const float *y, size_t dim, int8_t *levels)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    uint32_t max_bits = 0;
    for (size_t i = 0; i < dim; i++) {
        uint32_t bits;
        memcpy(&bits, y + i, sizeof bits);
        bits &= 0x7fffffffu;
        max_bits = bits > max_bits ? bits : max_bits;
    }
    float max;
    memcpy(&max, &max_bits, sizeof max);
    const uint16_t scale = scale_bits(max / 127.0f);
    const float kept = scale_of_bits(scale), inverse = kept > 0 ? 1.0f / kept : 0;
    for (size_t i = 0; i < dim; i++) {
        float z = y[i] * inverse;
        z = z > 127.0f ? 127.0f : z;
        z = z > -127.0f ? z : -127.0f; /* NaN too */
        levels[i] = (int8_t)((z + magic) - magic);
    }
    return scale;
}

/* Finds the index of the nearest level of each coordinate. A tie goes to the lower level. */
static void find_codes(const struct kv_format *format, const float *y, size_t dim, float scale,
                       uint8_t *codes)
{
    const unsigned n_levels = 1u << format->bits;
    memset(codes, 0, dim);
    for (unsigned k = 1; k < n_levels; k++) {
        const float middle = 0.5f * (float)(format->levels[k - 1] + format->levels[k]);
        for (size_t i = 0; i < dim; i++)
            codes[i] = (uint8_t)(codes[i] + (y[i] * scale > middle));
    }
}

/* Returns the scale of a vector; 0 for a vector of zeros or of tiny values. */
static uint16_t find_scale(enum kv_side side, const float *y, const int8_t *levels, size_t dim,
                           float squares)
{
    const float along = dot_levels(y, levels, dim);
    int32_t all = 0;
    for (size_t i = 0; i < dim; i++)
        all += levels[i] * levels[i];
    if (squares == 0 || along == 0)
        return 0;
    return scale_bits(side == KV_KEY ? squares / along : along / (float)all);
}

static void pack_low_bits(const uint8_t *codes, uint8_t *to)
{
    for (unsigned j = 0; j < 4; j++)
        to[j] = (uint8_t)((codes[j] & 3) | (codes[j + 4] & 3) << 2 | (codes[j + 8] & 3) << 4 |
                          (codes[j + 12] & 3) << 6);
}

static void pack_group(unsigned bits, const uint8_t *codes, uint8_t *to)
{
    if (bits == 4) {
        for (unsigned j = 0; j < 8; j++)
            to[j] = (uint8_t)(codes[j] | codes[j + 8] << 4);
        return;
    }
    pack_low_bits(codes, to);
    for (unsigned b = 0; bits == 3 && b < 2; b++) {
        unsigned high = 0;
        for (unsigned j = 0; j < 8; j++)
            high |= (unsigned)(codes[8 * b + j] >> 2) << j;
        to[4 + b] = (uint8_t)high;
    }
}

static unsigned code_at(unsigned bits, const uint8_t *from, unsigned j)
{
    if (bits == 4)
        return from[j % 8] >> 4 * (j / 8) & 15;
    const unsigned low = from[j % 4] >> 2 * (j / 4) & 3;
    return bits == 2 ? low : low | (from[4 + j / 8] >> j % 8 & 1u) << 2;
}

static uint16_t store_codes(const struct kv_format *format, enum kv_side side, const float *y,
                            size_t dim, uint8_t *to)
{
    uint8_t codes[LIMIT_HEAD_DIM];
    int8_t levels[LIMIT_HEAD_DIM];
    const float squares = sum_squares(y, dim);
    const float deviation = sqrtf(squares / (float)dim) * format->unit;
    find_codes(format, y, dim, deviation > 0 ? 1.0f / deviation : 0, codes);
    for (size_t i = 0; i < dim; i++)
        levels[i] = format->levels[codes[i]];
    for (size_t i = 0; i < dim; i += KV_GROUP)
        pack_group(format->bits, codes + i, to + i * format->bits / 8);
    return find_scale(side, y, levels, dim, squares);
}

void kv_store(const struct kv_format *format, enum kv_side side, const float *x, size_t dim,
              void *row)
{
    if (format->plain != NULL) {
        format->plain->encode_row(format->plain, x, &row, dim);
        return;
    }
    assert(kv_fits(format, (uint32_t)dim));
    float y[LIMIT_HEAD_DIM];
    memcpy(y, x, dim * sizeof *y);
    kv_rotate(y, dim);
    const uint16_t scale = format->bits == 8 ? store_bytes(y, dim, row)
                                             : store_codes(format, side, y, dim, row);
    memcpy((char *)row + dim * format->bits / 8, &scale, sizeof scale);
}

void kv_load_levels(const struct kv_format *format, const void *row, size_t dim, int8_t *levels)
{
    const uint8_t *from = row;
    if (format->bits == 8) {
        memcpy(levels, row, dim);
        return;
    }
    for (size_t i = 0; i < dim; i += KV_GROUP, from += 2 * format->bits)
        for (unsigned j = 0; j < KV_GROUP; j++)
            levels[i + j] = format->levels[code_at(format->bits, from, j)];
}

float kv_load_scale(const struct kv_format *format, const void *row, size_t dim)
{
    uint16_t bits;
    memcpy(&bits, (const char *)row + dim * format->bits / 8, sizeof bits);
    return scale_of_bits(bits);
}
