/* Text and JSON for the wire. Keeps no state; any thread. */
#ifndef FLASHMOE_SERVER_TEXT_JSON_H
#define FLASHMOE_SERVER_TEXT_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a JSON string; invalid UTF-8 becomes U+FFFD. NULL when memory runs out. */
json_t *text_json(const char *text, size_t bytes);
/* Returns a float as it was typed: 0.7, not 0.699999988. */
json_t *json_float(float x);
/* Appends compact JSON. Reals have the fewest digits that give the same double, or 17 digits when
 * nested beyond JSON_SCAN_DEPTH. Returns false when memory runs out or `value` is NULL. */
bool text_add_json(struct text_buffer *buffer, const json_t *value);
bool text_add_string(struct text_buffer *buffer, const char *text);
/* Appends formatted text of at most 511 bytes. */
bool text_add_format(struct text_buffer *buffer, const char *fmt, ...) ERR_PRINTF(2, 3);

/* Maximum nesting of objects and arrays in a request, which bounds all recursion over it. Schemas
 * of real tools have fewer than 20 levels. */
#define JSON_READ_DEPTH 256u
/* Parses an object or array. Integers beyond 64 bits become reals. U+0000, unpaired surrogates and
 * invalid UTF-8 become U+FFFD, so no string contains a NUL. Returns NULL and fills `why`. */
json_t *json_read(const char *text, size_t bytes, json_error_t *why);
/* Finds the byte range of the object that a path of names (each below 32 bytes) leads to. Of two
 * members with the same name the last one counts. Returns false if there is none or it is nested
 * too deep. */
bool json_find_object(const char *text, size_t bytes, const char *const *path, unsigned n_path,
                      size_t *begin, size_t *end);

#ifdef __cplusplus
}
#endif
#endif
