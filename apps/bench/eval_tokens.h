/* The tokens of a file to evaluate with: its documents (corpus.h), one after the other. The caller
 * owns them. One thread. */
#ifndef FLASHMOE_APPS_BENCH_EVAL_TOKENS_H
#define FLASHMOE_APPS_BENCH_EVAL_TOKENS_H

#include "flashmoe.h"
#include "apps/cli/options.h"

struct eval_tokens {
    void *ids; /* int32_t [n_ids] */
    size_t n_ids, capacity;
};

extern const char operand_corpus_help[];

/* Documents are read until there are enough tokens; fewer than 2 are an error. */
int eval_tokens_read(struct eval_tokens *tokens, const struct args *args,
                     const struct fm_model *model, const char *path, size_t enough,
                     struct fm_error *err);
void eval_tokens_clear(struct eval_tokens *tokens); /* accepts a zeroed one */

/* The tokens from `at` on. */
const int32_t *eval_tokens_at(const struct eval_tokens *tokens, size_t at);

/* Adds the tokens of a text. */
int eval_tokens_add(struct eval_tokens *tokens, const struct fm_model *model, const char *text,
                    size_t text_bytes, struct fm_error *err);

#endif
