/* Answers held to a grammar: JSON that fits a schema, tool calls that must come, or either.
 *
 * Everything in a request that changes the form of the answer is read here, and honoured or refused
 * by name. The grammar is opened before the request is accepted, so that a schema which cannot be
 * enforced is refused too; it belongs to the job's specification. The caller's thread. */
#ifndef FLASHMOE_SERVER_CONSTRAIN_H
#define FLASHMOE_SERVER_CONSTRAIN_H

#include "server/conversation.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fields;

/* json_object or json_schema of response_format or its like, which is NULL where it is not given.
 * `name` is where it stands: "text.format". The schema is kept in the call. */
int constrain_format(struct api_call *call, const json_t *format, const char *name);
/* The fields of other servers that ask for a schema, and those that are refused. Completions have
 * some that other endpoints have not. */
int constrain_fields(struct api_call *call, const struct fields *f, bool is_completions);

/* Opens the grammar of the schema that the call keeps, if any. With tools (`c` may be NULL) the
 * answer may be calls of them instead, held to their schemas. Without a schema nothing is held to
 * anything, so nothing is refused. */
int constrain_answer(const struct conversation *c, struct api_call *call, struct job_spec *spec);
/* One of the conversation's tools, or the one it names, has to be called: opens the call behind the
 * prompt, whose ids may be moved, and holds the answer to name and arguments. */
int constrain_call(const struct conversation *c, struct api_call *call, struct job_spec *spec,
                   int32_t **ids, size_t *n_ids);

#ifdef __cplusplus
}
#endif
#endif
