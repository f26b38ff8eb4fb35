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
/* Appends compact JSON; false for want of memory, or when `value` is NULL. */
bool text_add_json(struct text_buffer *buffer, const json_t *value);
bool text_add_string(struct text_buffer *buffer, const char *text);
/* At most 511 bytes. */
bool text_add_format(struct text_buffer *buffer, const char *fmt, ...) ERR_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
