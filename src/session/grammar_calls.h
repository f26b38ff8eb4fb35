/* Grammars of answers that may be calls: fm_grammar_open_json with more to choose from. As there,
 * any thread may open one. Fails as that does, and with FM_ERR_ARG where no answer is left. */
#ifndef FLASHMOE_SESSION_GRAMMAR_CALLS_H
#define FLASHMOE_SESSION_GRAMMAR_CALLS_H

#include "flashmoe.h"
#include "grammar/grammar_form.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Calls are written in the model's dialect where the form does not say. */
int fm_grammar_open_form(const struct fm_model *model, const struct grammar_form *form,
                         struct fm_grammar **out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
