/* Grammars for answers that may be calls: fm_grammar_open_json with more forms. Any thread may open
 * one; the caller owns it. Fails like fm_grammar_open_json, and with FM_ERR_ARG when the form
 * allows no answer at all. */
#ifndef FLASHMOE_SESSION_GRAMMAR_CALLS_H
#define FLASHMOE_SESSION_GRAMMAR_CALLS_H

#include "flashmoe.h"
#include "grammar/grammar_form.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a grammar for a form. Calls use the model's dialect unless the form names one. */
int fm_grammar_open_form(const struct fm_model *model, const struct grammar_form *form,
                         struct fm_grammar **out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
