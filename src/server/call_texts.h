/* The text that the model wrote for each tool call, by the id of the call. A client sends a call
 * back as JSON; only the original bytes reproduce the history that was computed. If the client
 * changed the call under the same id, the changed call is used.
 *
 * Owns copies and evicts the least recently used beyond its limits. The runner thread adds and the
 * HTTP thread finds, so it has its own lock, held only while a few hundred bytes are copied. */
#ifndef FLASHMOE_SERVER_CALL_TEXTS_H
#define FLASHMOE_SERVER_CALL_TEXTS_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct call_texts;

int call_texts_open(size_t max_bytes, unsigned max_calls, struct call_texts **out,
                    struct fm_error *err);
void call_texts_close(struct call_texts *texts); /* accepts NULL */

/* Adds a call. `arguments` is the JSON that clients receive. Without memory the call is not
 * stored. */
void call_texts_add(struct call_texts *texts, const char *id, const char *name,
                    const struct text_buffer *arguments, const char *text, size_t text_bytes);
/* Returns a copy, freed with mem_free; NULL if it is unknown or its name or arguments differ. */
char *call_texts_find(struct call_texts *texts, const char *id, const char *name,
                      const json_t *arguments, size_t *text_bytes);

#ifdef __cplusplus
}
#endif
#endif
