#include "lab/synth_rng.h"

#include <string.h>
#include <xxhash.h>

uint64_t synth_rng_key(uint64_t seed, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), seed);
}

/* NEEDS: a byte swap on a big-endian machine; no format of the project is read on one. */
void synth_rng_fill(uint64_t key, uint64_t first, size_t n, void *dst)
{
    uint8_t *out = dst;
    for (size_t i = 0; i < n; i++) {
        const uint64_t word = splitmix_at(key, first + i);
        memcpy(out + 8 * i, &word, sizeof word);
    }
}
