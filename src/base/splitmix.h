/* SplitMix64: a generator with 64 bits of state, full period and no bad seeds. For ids, samples and
 * synthetic data, never for secrets. Pure functions: any thread. */
#ifndef FLASHMOE_BASE_SPLITMIX_H
#define FLASHMOE_BASE_SPLITMIX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPLITMIX_STEP 0x9e3779b97f4a7c15u

/* The output function: a bijection that spreads every bit of `z`. */
static inline uint64_t splitmix_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Advances the state and returns the next output. */
static inline uint64_t splitmix_next(uint64_t *state)
{
    return splitmix_mix(*state += SPLITMIX_STEP);
}

/* Returns output number i, from 0, of a generator that starts from `seed`. */
static inline uint64_t splitmix_at(uint64_t seed, uint64_t i)
{
    return splitmix_mix(seed + (i + 1) * SPLITMIX_STEP);
}

#ifdef __cplusplus
}
#endif
#endif
