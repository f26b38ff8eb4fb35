/* Text and JSON for the wire. Nothing is owned; any thread. */
#ifndef FLASHMOE_SERVER_TEXT_JSON_H
#define FLASHMOE_SERVER_TEXT_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A JSON string; bytes that are no UTF-8 become U+FFFD. NULL for want of memory. */
json_t *text_json(const char *text, size_t bytes);
/* A float as it was typed: 0.7, not 0.699999988. */
json_t *json_float(float x);
/* Appends compact JSON, every real in the fewest digits that are the same double, or in 17 where it
 * is nested beyond JSON_SCAN_DEPTH. False for want of memory, or when `value` is NULL. */
bool text_add_json(struct text_buffer *buffer, const json_t *value);
bool text_add_string(struct text_buffer *buffer, const char *text);
/* At most 511 bytes. */
bool text_add_format(struct text_buffer *buffer, const char *fmt, ...) ERR_PRINTF(2, 3);

/* Objects and arrays within each other in what a client sends. What walks through a request
 * recurses no deeper; the schemas of real tools have fewer than 20. */
#define JSON_READ_DEPTH 256u
/* An object or array. Integers beyond 64 bits are taken as reals. U+0000, halves of surrogate pairs
 * and bytes that are no UTF-8 become U+FFFD, so no string in it has a NUL. NULL: `why` says it. */
json_t *json_read(const char *text, size_t bytes, json_error_t *why);
/* Where in the text of a document the object stands that these names lead to, each below 32 bytes,
 * from object to object; of two members with one name the last counts. False: there is none, or it
 * is nested too deep. */
bool json_find_object(const char *text, size_t bytes, const char *const *path, unsigned n_path,
                      size_t *begin, size_t *end);

#ifdef __cplusplus
}
#endif
#endif
