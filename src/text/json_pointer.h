/* Parses references inside a JSON document, such as "#/$defs/a~1b" in a schema's $ref. Percent
 * escapes are decoded first (RFC 3986), then ~1 and ~0 of each part (RFC 6901): "#/%24defs/x" is
 * "#/$defs/x". An invalid escape stands for itself.
 *
 * Owns no memory and borrows the fragment. One thread. Nothing fails: a reference that is too long
 * matches nothing. */
#ifndef FLASHMOE_TEXT_JSON_POINTER_H
#define FLASHMOE_TEXT_JSON_POINTER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JSON_POINTER_PART_BYTES 1024u /* maximum length of one part; a longer name cannot be
                                       * referenced */

struct json_pointer {
    const char *at, *end;
    bool has_more; /* parts */
    size_t n_part;
    char part[JSON_POINTER_PART_BYTES + 1]; /* NUL-terminated; may contain further NULs */
};

/* Returns false unless the fragment is "#" or begins with "#/", possibly with escapes. */
bool json_pointer_open(struct json_pointer *p, const char *fragment, size_t bytes);
/* Reads the next part. Returns false after the last one. A part that is too long becomes a name
 * that no document has: all of its bytes are 0xff. */
bool json_pointer_next(struct json_pointer *p);

#ifdef __cplusplus
}
#endif
#endif
