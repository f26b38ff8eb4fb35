/* Functions of an answer (flashmoe.h) that are not public: for the server and for tests. One thread
 * at a time uses an answer. */
#ifndef FLASHMOE_SESSION_ANSWER_H
#define FLASHMOE_SESSION_ANSWER_H

#include <jansson.h>

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dialect;

#define ANSWER_CALL_BYTES 128

/* Opens an answer like fm_answer_open, with tools that are already parsed and borrowed until the
 * answer is closed. With NULL, takes the tools of `options`. Fails like fm_answer_open. */
int answer_open_tools(const struct fm_model *model, const struct fm_answer_options *options,
                      const json_t *tools, struct fm_answer **out, struct fm_error *err);

/* Takes one step like fm_answer_step, from logits that need not come from a session. `is_full`: the
 * context has no room for a further token. */
int answer_take(struct fm_answer *a, const float *logits, bool is_full, int32_t *id,
                struct fm_error *err);

/* Returns the dialects that the model's template uses (chat/dialect.h), NULL-terminated. The model
 * owns the list. */
const struct dialect *const *model_dialects(const struct fm_model *model);

/* Returns whether the text of a past call may stand in the content of its message
 * (chat/dialect.h). */
bool model_may_restore(const struct fm_model *model);

/* The text around a call that the model is forced to make. */
struct forced_call {
    char lead[ANSWER_CALL_BYTES]; /* after the prompt; ends reasoning that the prompt has begun */
    char tail[ANSWER_CALL_BYTES]; /* after the answer */
};
/* Fills in the text for a prompt. Fails with FM_ERR_UNSUPPORTED when the model's dialects have no
 * forced calls. */
int answer_forced_call(const struct fm_model *model, const int32_t *ids, size_t n_ids,
                       struct forced_call *out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
