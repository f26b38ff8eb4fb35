/* Finds the id of a whole piece of text. Owns its slots; the texts belong to the caller and must
 * stay. Written while a tokenizer is loaded; after that any number of threads may read it. */
#ifndef FLASHMOE_BASE_WORD_MAP_H
#define FLASHMOE_BASE_WORD_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WORD_MAP_NONE UINT32_MAX

struct word_map {
    uint32_t *slots; /* ids; open addressing, linear probing */
    uint32_t n_slots;
    uint64_t seed; /* of the hash: a file cannot choose texts that collide */
    const uint8_t *texts;
    const uint32_t *begin; /* the text of an id is texts[begin[id]] up to begin[id + 1] */
    size_t max_bytes;      /* of a text */
};

/* Allocates room for `n` texts. */
int word_map_init(struct word_map *map, uint32_t n, const uint8_t *texts, const uint32_t *begin,
                  struct fm_error *err);
void word_map_clear(struct word_map *map); /* accepts a zeroed one */
/* Returns false if an id with the same text is already there. At most `n` may be added. */
bool word_map_add(struct word_map *map, uint32_t id);
/* Returns the largest number of slots that finding a text of the map looks at. For tests. */
uint32_t word_map_max_probes(const struct word_map *map);
/* Returns the id of a text, or WORD_MAP_NONE. */
uint32_t word_map_find(const struct word_map *map, const uint8_t *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
