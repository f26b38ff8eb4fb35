/* Places several arrays in one block. Run the same list of carve calls twice: first with `at` NULL
 * to measure the block, then with the block to get the pieces. Every piece starts on its own cache
 * line. The caller owns the block. Nothing allocates or fails. */
#ifndef FLASHMOE_BASE_CARVE_H
#define FLASHMOE_BASE_CARVE_H

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct carver {
    char *at;       /* the block; NULL while measuring */
    uint64_t bytes; /* carved so far */
};

static inline void *carve(struct carver *c, uint64_t n, uint64_t element_bytes)
{
    void *piece = c->at != NULL ? c->at + c->bytes : NULL;
    c->bytes += mem_round_up(n * element_bytes, MEM_CACHE_LINE);
    return piece;
}

#ifdef __cplusplus
}
#endif
#endif
