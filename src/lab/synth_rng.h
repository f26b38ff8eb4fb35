/* Random words by position: word i of a stream is splitmix_at(key, i), so any thread can make any
 * piece and the bytes are the same each time. Pure functions: any thread. */
#ifndef FLASHMOE_LAB_SYNTH_RNG_H
#define FLASHMOE_LAB_SYNTH_RNG_H

#include <stddef.h>
#include <stdint.h>

#include "base/splitmix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The key of a stream with a name. */
uint64_t synth_rng_key(uint64_t seed, const char *name);

/* Words [first, first + n) as little-endian bytes; dst needs no alignment. */
void synth_rng_fill(uint64_t key, uint64_t first, size_t n, void *dst);

#ifdef __cplusplus
}
#endif
#endif
