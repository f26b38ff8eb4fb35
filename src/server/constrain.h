/* Constrained answers: JSON that matches a schema, forced tool calls, or either.
 *
 * Reads every request field that changes the form of the answer, and honours it or refuses it by
 * name. The grammar is compiled before the request is accepted, so that a schema that cannot be
 * enforced is refused. The job's specification owns the grammar. Called on the caller's thread. */
#ifndef FLASHMOE_SERVER_CONSTRAIN_H
#define FLASHMOE_SERVER_CONSTRAIN_H

#include "server/conversation.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fields;

/* Reads json_object or json_schema of response_format or a similar field; NULL: not given. `name`
 * is the path of the field, such as "text.format". The call keeps the schema. */
int constrain_format(struct api_call *call, const json_t *format, const char *name);
/* The same for "json", a schema, or an empty string for none. */
int constrain_value(struct api_call *call, const json_t *format, const char *name);
/* Fields that some endpoints read themselves and others refuse. */
enum {
    CONSTRAIN_OWN_TEXT = 1, /* suffix, echo, best_of */
    CONSTRAIN_OWN_TURN = 2, /* continue_final_message and, with it, add_generation_prompt */
    CONSTRAIN_OWN_FUNCTIONS = 4, /* functions, function_call */
};
/* Reads the schema fields of other servers and refuses unsupported ones. `own` is a combination of
 * the above. */
int constrain_fields(struct api_call *call, const struct fields *f, unsigned own);

/* Compiles the schema of the call, if any. With tools (`c` may be NULL), the answer may instead be
 * calls constrained to their schemas. Without a schema nothing is constrained or refused. */
int constrain_answer(const struct conversation *c, struct api_call *call, struct job_spec *spec);
/* Forces a call of any tool, or of the named one: appends the start of the call to the prompt,
 * whose ids may be reallocated, and constrains name and arguments. */
int constrain_call(const struct conversation *c, struct api_call *call, struct job_spec *spec,
                   int32_t **ids, size_t *n_ids);

#ifdef __cplusplus
}
#endif
#endif
