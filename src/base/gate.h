/* A word that one thread writes and others watch, a device perhaps: whoever sees the new value also
 * sees all that the thread wrote before. */
#ifndef FLASHMOE_BASE_GATE_H
#define FLASHMOE_BASE_GATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline void gate_set(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint32_t gate_see(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

#ifdef __cplusplus
}
#endif
#endif
