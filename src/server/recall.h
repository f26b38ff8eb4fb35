/* What the model itself wrote for a tool call, by the call's id: a client sends the call back as
 * JSON, and only with the very bytes the history is the one that was computed. A client may send
 * another call with that id, as a person has changed it; then that is what counts.
 *
 * Owns copies, and forgets those longest unused beyond its limits. The engine thread adds and the
 * HTTP thread finds, so it has a lock; it is held while a few hundred bytes are copied. */
#ifndef FLASHMOE_SERVER_RECALL_H
#define FLASHMOE_SERVER_RECALL_H

#include <jansson.h>
#include <stddef.h>

#include "base/err.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct recall;

int recall_open(size_t max_bytes, unsigned max_calls, struct recall **out, struct fm_error *err);
void recall_close(struct recall *recall); /* accepts NULL */

/* The arguments are the JSON that clients get. Want of memory only means that it is not
 * remembered. */
void recall_add(struct recall *recall, const char *id, const char *name,
                const struct text_buffer *arguments, const char *text, size_t text_bytes);
/* A copy, freed with mem_free; NULL: not known, or of another name or with other arguments. */
char *recall_find(struct recall *recall, const char *id, const char *name,
                  const json_t *arguments, size_t *text_bytes);

#ifdef __cplusplus
}
#endif
#endif
