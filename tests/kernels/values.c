/* Random numbers that are the same on every machine, and special values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "base/splitmix.h"
#include "check.h"

/* FNV-1a. */
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

uint64_t hash_text(uint64_t hash, const char *text)
{
    return hash_bytes(hash, text, strlen(text) + 1);
}

uint64_t rng_next(struct rng *rng)
{
    return splitmix_next(&rng->state);
}

size_t rng_below(struct rng *rng, size_t n)
{
    return n > 0 ? (size_t)(rng_next(rng) % n) : 0;
}

size_t rng_between(struct rng *rng, size_t first, size_t last)
{
    return first + rng_below(rng, last - first + 1);
}

bool rng_chance(struct rng *rng, unsigned one_in)
{
    return rng_below(rng, one_in) == 0;
}

void rng_bytes(struct rng *rng, void *to, size_t n)
{
    for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
        const uint64_t word = rng_next(rng);
        memcpy((char *)to + i, &word, n - i < sizeof word ? n - i : sizeof word);
    }
}

enum values rng_values(struct rng *rng)
{
    return rng_chance(rng, 3) ? (enum values)rng_below(rng, N_VALUES) : ORDINARY;
}

static float special(struct rng *rng)
{
    static const uint32_t bits[] = {
        0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffbfffff, /* inf, NaN */
        0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000,             /* zero, tiny */
        0x7f7fffff, 0xff7fffff, 0x7e800000, 0x4b400000, 0xcb400001,             /* large */
    };
    return fmath_float_of_bits(bits[rng_below(rng, sizeof bits / sizeof bits[0])]);
}

/* Returns a float of any sign and mantissa with a biased exponent in [first, last]. */
static float of_exponents(struct rng *rng, unsigned first, unsigned last)
{
    const uint32_t mantissa = (uint32_t)rng_next(rng) & 0x807fffffu;
    return fmath_float_of_bits(mantissa | (uint32_t)rng_between(rng, first, last) << 23);
}

float rng_float(struct rng *rng, enum values values)
{
    const float ordinary = (float)(int32_t)(rng_next(rng) >> 32) * 0x1p-31f;
    switch (values) {
    case WIDE: return of_exponents(rng, 127 - 30, 127 + 30);
    case TINY: return of_exponents(rng, 0, 20);
    case GIANT: return of_exponents(rng, 235, 254);
    case ZEROS: return rng_chance(rng, 8) ? ordinary : rng_chance(rng, 2) ? 0.0f : -0.0f;
    case SPECIAL: return special(rng);
    default: return ordinary;
    }
}

/* Uses few special values, because a NaN hides everything it touches. */
void rng_floats(struct rng *rng, enum values values, float *to, size_t n)
{
    const unsigned one_in = 4u << 3 * rng_below(rng, 4);
    const float scale = rng_chance(rng, 2) ? 1.0f : 8.0f;
    for (size_t i = 0; i < n; i++)
        if (values == SPECIAL)
            to[i] = rng_float(rng, rng_chance(rng, one_in) ? SPECIAL : ORDINARY);
        else
            to[i] = rng_float(rng, values) * (values == ORDINARY ? scale : 1.0f);
}

size_t rng_length(struct rng *rng, size_t max)
{
    size_t n = rng_between(rng, 1, max);
    if (rng_chance(rng, 2) && n > 16)
        n = n / 16 * 16 + rng_below(rng, 3) - 1;
    return n < max ? n : max;
}

/* ---- blocks of a format ---------------------------------------------------------------------- */

static bool is_wanted(const struct quant *format, enum blocks blocks, uint8_t *const parts[])
{
    float decoded[256];
    const void *from[QUANT_MAX_PARTS] = {parts[0], parts[1], parts[2]};
    format->decode_row(format, from, decoded, format->block);
    float max = 0;
    for (unsigned i = 0; i < format->block; i++) {
        if (!(decoded[i] - decoded[i] == 0)) /* infinite, or not a number */
            return blocks == BLOCKS_ANY;
        const float size = decoded[i] < 0 ? -decoded[i] : decoded[i];
        max = size > max ? size : max;
    }
    return blocks != BLOCKS_ORDINARY || (max >= 0x1p-7f && max <= 0x1p7f);
}

/* Makes a float of moderate size, in the format of a part of scales or biases. */
static void make_scale(const struct quant *format, struct rng *rng, void *to)
{
    const float x = of_exponents(rng, 127 - 5, 127 - 1);
    format->encode_row(format, &x, &to, 1);
}

/* Each format keeps its scales at another place of a block. So among the finite blocks, two zero
 * bytes occur at every place once. */
static void make_block(const struct quant *format, enum blocks blocks, size_t i, struct rng *rng,
                       uint8_t *const parts[])
{
    for (unsigned tries = 0; tries < 100000; tries++) {
        for (unsigned p = 0; p < format->n_parts; p++) {
            const size_t bytes = format->part_block_bytes[p];
            const size_t hole = 2 * (i % (bytes > 16 ? bytes / 2 : 8));
            rng_bytes(rng, parts[p], bytes);
            if (blocks == BLOCKS_ORDINARY && p > 0 && format->scale != NULL)
                make_scale(format->scale, rng, parts[p]);
            if (blocks == BLOCKS_FINITE && hole + 2 <= bytes)
                memset(parts[p] + hole, 0, 2);
        }
        if (is_wanted(format, blocks, parts))
            return;
    }
    fprintf(stderr, "checkkernel: no usable random block of %s\n", format->name);
    exit(2);
}

void pool_init(struct pool *pool, const struct quant *format, uint64_t seed)
{
    *pool = (struct pool){.format = format};
    struct rng rng = {hash_text(seed, format->name)};
    for (unsigned b = 0; b < N_BLOCKS; b++) {
        for (unsigned p = 0; p < format->n_parts; p++)
            if ((pool->parts[b][p] = malloc(POOL_BLOCKS * format->part_block_bytes[p])) == NULL)
                exit(2);
        for (size_t i = 0; i < POOL_BLOCKS; i++) {
            uint8_t *at[QUANT_MAX_PARTS] = {NULL};
            for (unsigned p = 0; p < format->n_parts; p++)
                at[p] = pool->parts[b][p] + i * format->part_block_bytes[p];
            make_block(format, (enum blocks)b, i, &rng, at);
        }
    }
}

void pool_clear(struct pool *pool)
{
    for (unsigned b = 0; b < N_BLOCKS; b++)
        for (unsigned p = 0; p < QUANT_MAX_PARTS; p++)
            free(pool->parts[b][p]);
    *pool = (struct pool){0};
}

void pool_fill(const struct pool *pool, enum blocks blocks, unsigned part, struct rng *rng,
               void *to, size_t n)
{
    const size_t bytes = pool->format->part_block_bytes[part];
    for (size_t i = 0; i < n;) {
        const size_t from = rng_below(rng, POOL_BLOCKS);
        size_t run = rng_between(rng, 1, POOL_BLOCKS - from);
        run = run < n - i ? run : n - i;
        memcpy((char *)to + i * bytes, pool->parts[blocks][part] + from * bytes, run * bytes);
        i += run;
    }
}
