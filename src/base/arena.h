/* A bump allocator with a limit: allocates piece by piece and frees everything at once. The caller
 * owns the arena and all memory in it. One thread at a time. Fails with FM_ERR_NOMEM, or with
 * FM_ERR_FORMAT at the limit, because then the input being parsed demands too much. */
#ifndef FLASHMOE_BASE_ARENA_H
#define FLASHMOE_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
    size_t used, capacity; /* of the newest chunk */
    uint64_t total, limit;
    bool is_full; /* an allocation was refused because of the limit */
};

/* Returns zeroed memory that lives until arena_clear, or NULL with `err` set. */
void *arena_new(struct arena *arena, size_t bytes, struct fm_error *err);
/* Extends the newest allocation in place. Returns false if it is not the newest or has no room. */
bool arena_extend(struct arena *arena, void *newest, size_t old_bytes, size_t new_bytes);
void arena_clear(struct arena *arena);

#ifdef __cplusplus
}
#endif
#endif
