/* Answers held to a grammar: JSON that fits a schema, and tool calls that must come.
 *
 * The grammar is opened here, before the request is accepted, so that a schema which cannot be
 * enforced is refused by name; it belongs to the job's specification. The HTTP thread. */
#ifndef FLASHMOE_SERVER_CONSTRAIN_H
#define FLASHMOE_SERVER_CONSTRAIN_H

#include "server/conversation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* json_object or json_schema of response_format, or of text.format, which has the schema itself.
 * `format` may be NULL. */
int constrain_format(struct api_call *call, const json_t *format, const char *name,
                     struct job_spec *spec);

/* One of the conversation's tools, or the one it names, has to be called: opens the call behind the
 * prompt, whose ids may be moved, and holds the answer to name and arguments. Where a tool's own
 * schema cannot be enforced, its arguments are any object. */
int constrain_call(const struct conversation *c, struct api_call *call, struct job_spec *spec,
                   int32_t **ids, size_t *n_ids);

#ifdef __cplusplus
}
#endif
#endif
