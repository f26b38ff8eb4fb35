/* Constrains an answer to a JSON schema token by token: which tokens may come next, and the
 * answer's position after each token.
 *
 * A vocabulary is immutable and serves any number of grammars on any threads. A grammar is one
 * answer in progress and belongs to one thread. When it is reset it keeps the masks it has computed
 * for its schema. After every accepted token, either some token is allowed or the answer may end.
 * Failures: opening fails as described in schema.h and token_trie.h, accepting a token that is not
 * allowed fails, and memory may run out. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_H
#define FLASHMOE_GRAMMAR_GRAMMAR_H

#include "grammar/grammar_form.h"
#include "grammar/token_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

struct grammar_vocabulary;
int grammar_vocabulary_open(const struct tokenizer *tok, uint32_t n_ids,
                            struct grammar_vocabulary **out, struct fm_error *err);
void grammar_vocabulary_close(struct grammar_vocabulary *vocabulary); /* accepts NULL */

/* Returns the tokens as a trie, for other kinds of grammars. */
const struct token_trie *grammar_vocabulary_trie(const struct grammar_vocabulary *vocabulary);

struct grammar;
/* Opens a grammar for a schema; NULL accepts any object. */
int grammar_open(const struct grammar_vocabulary *vocabulary, const char *schema, size_t bytes,
                 struct grammar **out, struct fm_error *err);
/* Opens a grammar that may also accept tool calls; see schema_compile_form. */
int grammar_open_form(const struct grammar_vocabulary *vocabulary,
                      const struct grammar_form *form, struct grammar **out,
                      struct fm_error *err);
void grammar_close(struct grammar *grammar); /* accepts NULL */
/* Starts a new answer. */
void grammar_reset(struct grammar *grammar);

/* Returns the tokens that may come next, one bit per id, valid until the next call. No bit is set
 * when the answer must end. */
const uint32_t *grammar_mask(struct grammar *grammar);
/* Both advance the answer, by a token or by bytes. On FM_ERR_ARG the token does not fit and the
 * answer is unchanged. */
int grammar_accept(struct grammar *grammar, int32_t id, struct fm_error *err);
int grammar_accept_bytes(struct grammar *grammar, const char *bytes, size_t n,
                         struct fm_error *err);

/* Writes up to `max` tokens that probably come next, because the grammar leaves one text only:
 * where every token that is allowed begins the longest of them, that one. Returns how many. The
 * answer is unchanged. */
uint32_t grammar_forced(struct grammar *grammar, int32_t *ids, uint32_t max);

bool grammar_may_end(const struct grammar *grammar);
bool grammar_must_end(const struct grammar *grammar);

/* Counters for measurements. */
struct grammar_counts {
    uint64_t n_masks, n_made; /* masks requested; mask parts that had to be computed */
};
struct grammar_counts grammar_counts(const struct grammar *grammar);

#ifdef __cplusplus
}
#endif
#endif
