/* A small set of names from a model's files, for messages. Numbers in them become N, so that
 * "layers.3.norm" and "layers.4.norm" are one name. A full set leaves further names out. No
 * allocation; one thread at a time. */
#ifndef FLASHMOE_BASE_NAME_SET_H
#define FLASHMOE_BASE_NAME_SET_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NAME_SET_MAX 48
#define NAME_SET_BYTES 96 /* of a name; longer ones are cut */

struct name_set {
    unsigned n;
    bool is_full; /* names were left out */
    char names[NAME_SET_MAX][NAME_SET_BYTES];
};

void name_set_add(struct name_set *set, const char *name, size_t bytes);
bool name_set_has(const struct name_set *set, const char *name, size_t bytes);
/* Writes the first `max` names and the number of the others: "a, b and 7 more". */
const char *name_set_text(const struct name_set *set, unsigned max, char *text, size_t bytes);

/* Returns how many characters must be inserted, removed or replaced to make `b` of `a`. Of both,
 * the first 64 characters count. */
size_t name_distance(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif
