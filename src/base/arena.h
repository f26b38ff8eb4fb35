/* Memory that is taken piece by piece and freed all at once, up to a limit. Whoever has the arena
 * owns it; one thread. What fails is want of memory, or (FM_ERR_FORMAT) the limit: the text that is
 * being read asks for too much. */
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
    bool is_full; /* the limit has refused something */
};

/* Zeroed; NULL with err set. */
void *arena_new(struct arena *arena, size_t bytes, struct fm_error *err);
/* Lengthens the newest allocation in its place; false when it is not the newest or has no room. */
bool arena_extend(struct arena *arena, void *newest, size_t old_bytes, size_t new_bytes);
void arena_clear(struct arena *arena);

#ifdef __cplusplus
}
#endif
#endif
