/* Random words by index: word i of a sequence is splitmix_at(key, i), so any thread can generate
 * any part of it and the bytes are always the same. Pure functions, for any thread. */
#ifndef FLASHMOE_LAB_SYNTH_RNG_H
#define FLASHMOE_LAB_SYNTH_RNG_H

#include <stddef.h>
#include <stdint.h>

#include "base/splitmix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the key of the sequence with this name. */
uint64_t synth_rng_key(uint64_t seed, const char *name);

/* Writes words [first, first + n) as little-endian bytes. dst needs no alignment. */
void synth_rng_fill(uint64_t key, uint64_t first, size_t n, void *dst);

#ifdef __cplusplus
}
#endif
#endif
