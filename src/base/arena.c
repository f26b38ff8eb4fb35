#include "base/arena.h"

#include "base/mem.h"

#define CHUNK_BYTES ((size_t)16 * 1024)

struct arena_chunk {
    struct arena_chunk *older;
    _Alignas(16) uint8_t bytes[];
};

void *arena_new(struct arena *arena, size_t bytes, struct fm_error *err)
{
    const size_t need = (size_t)mem_round_up(bytes > 0 ? bytes : 1, 16);
    if (arena->total + need > arena->limit || need < bytes) {
        arena->is_full = true;
        (void)err_set(err, FM_ERR_FORMAT, "it takes more than %llu bytes of memory",
                      (unsigned long long)arena->limit);
        return NULL;
    }
    if (arena->chunks == NULL || arena->capacity - arena->used < need) {
        const size_t grown = arena->total < 64 * CHUNK_BYTES ? CHUNK_BYTES : 16 * CHUNK_BYTES;
        const size_t capacity = need > grown / 4 ? need + grown : grown;
        struct arena_chunk *chunk = mem_new(1, sizeof *chunk + capacity, "a parsed text", err);
        if (chunk == NULL)
            return NULL;
        chunk->older = arena->chunks;
        arena->chunks = chunk;
        arena->used = 0;
        arena->capacity = capacity;
    }
    void *found = arena->chunks->bytes + arena->used;
    arena->used += need;
    arena->total += need;
    return found;
}

bool arena_extend(struct arena *arena, void *newest, size_t old_bytes, size_t new_bytes)
{
    const size_t before = (size_t)mem_round_up(old_bytes > 0 ? old_bytes : 1, 16);
    const size_t after = (size_t)mem_round_up(new_bytes, 16);
    if (newest == NULL || (uint8_t *)newest + before != arena->chunks->bytes + arena->used ||
        arena->capacity - arena->used < after - before ||
        arena->total + (after - before) > arena->limit)
        return false;
    arena->used += after - before;
    arena->total += after - before;
    return true;
}

void arena_clear(struct arena *arena)
{
    while (arena->chunks != NULL) {
        struct arena_chunk *older = arena->chunks->older;
        mem_free(arena->chunks);
        arena->chunks = older;
    }
}
