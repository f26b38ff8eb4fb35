/* The log probabilities of an answer's tokens, kept as they come, shown at the end. One thread. */
#ifndef FLASHMOE_APPS_CLI_TOKEN_LOGPROBS_H
#define FLASHMOE_APPS_CLI_TOKEN_LOGPROBS_H

#include <jansson.h>

#include "flashmoe.h"

#define LOGPROBS_MAX 20 /* alternatives to each token */

struct token_logprobs {
    unsigned n_top; /* alternatives wanted */
    void *list;     /* struct token_logprob [n_tokens] */
    size_t n_tokens, capacity;
};

/* A token that was chosen by the logits. */
int token_logprobs_add(struct token_logprobs *t, const struct fm_model *model, const float *logits,
                       int32_t id, struct fm_error *err);
void token_logprobs_clear(struct token_logprobs *t); /* accepts a zeroed one */

/* [{"id", "text", "logprob", "top": [{"id", "text", "logprob"}, ...]}, ...]. What has no
 * probability at all has -9999, as OpenAI writes it. */
json_t *token_logprobs_json(const struct token_logprobs *t, const struct fm_model *model);
/* A table on standard error. */
void token_logprobs_print(const struct token_logprobs *t, const struct fm_model *model);

#endif
