/* Random words by position: word i of a stream is a pure function of the stream's key and i, so any
 * thread can make any piece and the bytes are the same each time. Pure functions: any thread. */
#ifndef FLASHMOE_LAB_SYNTH_RNG_H
#define FLASHMOE_LAB_SYNTH_RNG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The i-th output of the generator splitmix64 that starts from `key`. */
static inline uint64_t synth_rng_word(uint64_t key, uint64_t i)
{
    uint64_t z = key + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The key of a stream with a name. */
uint64_t synth_rng_key(uint64_t seed, const char *name);

/* Words [first, first + n) as little-endian bytes; dst needs no alignment. */
void synth_rng_fill(uint64_t key, uint64_t first, size_t n, void *dst);

#ifdef __cplusplus
}
#endif
#endif
