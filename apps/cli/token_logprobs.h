/* Collects the log probabilities of an answer's tokens. The struct owns its list. One thread. */
#ifndef FLASHMOE_APPS_CLI_TOKEN_LOGPROBS_H
#define FLASHMOE_APPS_CLI_TOKEN_LOGPROBS_H

#include <jansson.h>

#include "flashmoe.h"

struct token_logprobs {
    void *list;     /* struct token_logprob [n_tokens] */
    size_t n_tokens, capacity;
};

/* Adds a token: its own log probability, then those of its n - 1 alternatives. */
int token_logprobs_add(struct token_logprobs *t, const struct fm_logprob *logprobs, unsigned n,
                       struct fm_error *err);
void token_logprobs_clear(struct token_logprobs *t); /* accepts a zeroed one */

/* Returns [{"id", "text", "logprob", "top": [{"id", "text", "logprob"}, ...]}, ...]. A probability
 * of zero is written as -9999, as OpenAI does. */
json_t *token_logprobs_json(const struct token_logprobs *t, const struct fm_model *model);
/* Prints a table on standard error. */
void token_logprobs_print(const struct token_logprobs *t, const struct fm_model *model);

#endif
