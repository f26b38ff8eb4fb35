/* Prompts that ask for the text between a prefix and a suffix, for models with the tokens for it.
 * Keeps no state; any thread. */
#ifndef FLASHMOE_SERVER_INFILL_H
#define FLASHMOE_SERVER_INFILL_H

#include "server/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct infill {
    const json_t *prefix, *suffix; /* strings; NULL is an empty one */
    const json_t *more;            /* a string that follows the prefix, or NULL */
    const json_t *extra;           /* [{filename, text}] other files; NULL: none */
    const char *field;             /* names the request's field in errors */
};

/* Returns whether the model has the tokens. */
bool infill_is_known(const struct fm_model *model);
/* Adds the prompt, and the tokens that end such an answer. Refuses a model without the tokens. */
int infill_add_prompt(struct api_call *call, struct job_spec *spec, const struct infill *what);

#ifdef __cplusplus
}
#endif
#endif
