/* Inside the project: what an answer (flashmoe.h) offers beyond its public face. */
#ifndef FLASHMOE_SESSION_ANSWER_H
#define FLASHMOE_SESSION_ANSWER_H

#include <jansson.h>

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens an answer as fm_answer_open does, with the tools already parsed. They are borrowed until
 * the answer is closed; NULL: as `options` says. */
int answer_open_tools(const struct fm_model *model, const struct fm_answer_options *options,
                      const json_t *tools, struct fm_answer **out, struct fm_error *err);

/* Takes one step as fm_answer_step does, from logits that need not be a session's. `is_full`: no
 * further token can be evaluated. */
int answer_take(struct fm_answer *a, const float *logits, bool is_full, int32_t *id,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
