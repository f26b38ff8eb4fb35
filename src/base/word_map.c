#include "base/word_map.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/plat.h"

int word_map_init(struct word_map *map, uint32_t n, const uint8_t *texts, const uint32_t *begin,
                  struct fm_error *err)
{
    const uint64_t n_slots = (uint64_t)n * 2 + 1;
    *map = (struct word_map){.texts = texts, .begin = begin};
    if (n_slots > UINT32_MAX)
        return err_set(err, FM_ERR_ARG, "%u tokens are too many", n);
    map->slots = mem_new(n_slots, sizeof *map->slots, "the vocabulary", err);
    if (map->slots == NULL)
        return FM_ERR_NOMEM;
    map->n_slots = (uint32_t)n_slots;
    map->seed = plat_now_ns() ^ (uint64_t)(uintptr_t)map->slots;
    memset(map->slots, 0xff, n_slots * sizeof *map->slots);
    return 0;
}

void word_map_clear(struct word_map *map)
{
    mem_free(map->slots);
    *map = (struct word_map){0};
}

static uint32_t first_slot(const struct word_map *map, const uint8_t *text, size_t bytes)
{
    const uint64_t hash = XXH3_64bits_withSeed(text, bytes, map->seed);
    return (uint32_t)((hash >> 32) * map->n_slots >> 32);
}

/* Returns the slot of a text, or the free slot where it belongs. */
static uint32_t *probe(const struct word_map *map, const uint8_t *text, size_t bytes)
{
    uint32_t i = first_slot(map, text, bytes);
    for (;;) {
        uint32_t *slot = &map->slots[i];
        if (*slot == WORD_MAP_NONE)
            return slot;
        const uint32_t begin = map->begin[*slot], end = map->begin[*slot + 1];
        if (end - begin == bytes && memcmp(map->texts + begin, text, bytes) == 0)
            return slot;
        i = i + 1 < map->n_slots ? i + 1 : 0;
    }
}

bool word_map_add(struct word_map *map, uint32_t id)
{
    const size_t bytes = map->begin[id + 1] - map->begin[id];
    uint32_t *slot = probe(map, map->texts + map->begin[id], bytes);
    if (*slot != WORD_MAP_NONE)
        return false;
    *slot = id;
    if (bytes > map->max_bytes)
        map->max_bytes = bytes;
    return true;
}

uint32_t word_map_max_probes(const struct word_map *map)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < map->n_slots; i++) {
        const uint32_t id = map->slots[i];
        if (id == WORD_MAP_NONE)
            continue;
        const uint32_t begin = map->begin[id];
        const uint32_t first = first_slot(map, map->texts + begin, map->begin[id + 1] - begin);
        const uint32_t n = 1 + (i >= first ? i - first : i + map->n_slots - first);
        max = n > max ? n : max;
    }
    return max;
}

uint32_t word_map_find(const struct word_map *map, const uint8_t *text, size_t bytes)
{
    return bytes > map->max_bytes ? WORD_MAP_NONE : *probe(map, text, bytes);
}
