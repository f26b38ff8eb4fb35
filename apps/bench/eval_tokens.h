/* The tokens of an evaluation file: its documents (corpus.h), concatenated. The struct owns them.
 * One thread. */
#ifndef FLASHMOE_APPS_BENCH_EVAL_TOKENS_H
#define FLASHMOE_APPS_BENCH_EVAL_TOKENS_H

#include "flashmoe.h"
#include "apps/cli/options.h"

struct eval_tokens {
    void *ids; /* int32_t [n_ids] */
    size_t n_ids, capacity;
};

extern const char operand_corpus_help[];

/* Reads documents until there are enough tokens. Fails with fewer than 2. */
int eval_tokens_read(struct eval_tokens *tokens, const struct args *args,
                     const struct fm_model *model, const char *path, size_t enough,
                     struct fm_error *err);
void eval_tokens_clear(struct eval_tokens *tokens); /* accepts a zeroed one */

/* Returns the tokens from index `at` on. */
const int32_t *eval_tokens_at(const struct eval_tokens *tokens, size_t at);

/* Appends the tokens of a text. */
int eval_tokens_add(struct eval_tokens *tokens, const struct fm_model *model, const char *text,
                    size_t text_bytes, struct fm_error *err);

#endif
