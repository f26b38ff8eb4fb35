/* Inside the project: what an answer (flashmoe.h) offers beyond its public face. */
#ifndef FLASHMOE_SESSION_ANSWER_H
#define FLASHMOE_SESSION_ANSWER_H

#include <jansson.h>

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dialect;

#define ANSWER_CALL_BYTES 96

/* Opens an answer as fm_answer_open does, with the tools already parsed. They are borrowed until
 * the answer is closed; NULL: as `options` says. */
int answer_open_tools(const struct fm_model *model, const struct fm_answer_options *options,
                      const json_t *tools, struct fm_answer **out, struct fm_error *err);

/* Takes one step as fm_answer_step does, from logits that need not be a session's. `is_full`: no
 * further token can be evaluated. */
int answer_take(struct fm_answer *a, const float *logits, bool is_full, int32_t *id,
                struct fm_error *err);

/* The dialects that the model's template shows (chat/dialect.h); NULL-terminated, the model's. */
const struct dialect *const *model_dialects(const struct fm_model *model);

/* The texts around a call that has to come. */
struct forced_call {
    char lead[ANSWER_CALL_BYTES]; /* behind the prompt; ends reasoning that it has begun */
    char tail[ANSWER_CALL_BYTES]; /* behind the answer */
};
/* Finds them for a prompt. Fails with FM_ERR_UNSUPPORTED where calls cannot be forced in the
 * dialects of the model. */
int answer_forced_call(const struct fm_model *model, const int32_t *ids, size_t n_ids,
                       struct forced_call *out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
