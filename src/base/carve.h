/* Several arrays in one block. The same list of carve calls runs twice: without memory to measure
 * the block, and with it to hand out the pieces, each on a cache line of its own. */
#ifndef FLASHMOE_BASE_CARVE_H
#define FLASHMOE_BASE_CARVE_H

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct carver {
    char *at;       /* the block; NULL while measuring */
    uint64_t bytes; /* so far */
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
