/* Answers that fit a JSON schema, token by token: which tokens may come next, and what the answer
 * is once one has come.
 *
 * A vocabulary serves any number of grammars in any threads; it is immutable. A grammar is one
 * answer in progress and belongs to one thread; it keeps what it has found out about its schema
 * when it starts again. After every token that was allowed some token is allowed, or the answer may
 * end. Fails: opening, as schema.h and token_trie.h say; a token that was not allowed; memory. */
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

struct grammar;
/* `schema` NULL: any object. */
int grammar_open(const struct grammar_vocabulary *vocabulary, const char *schema, size_t bytes,
                 struct grammar **out, struct fm_error *err);
/* Also calls, as schema_compile_form has them. */
int grammar_open_form(const struct grammar_vocabulary *vocabulary,
                      const struct grammar_form *form, struct grammar **out,
                      struct fm_error *err);
void grammar_close(struct grammar *grammar); /* accepts NULL */
/* A new answer. */
void grammar_reset(struct grammar *grammar);

/* The tokens that may come, a bit for each id, valid until the next call; none when the answer must
 * end. */
const uint32_t *grammar_mask(struct grammar *grammar);
/* Takes a token, or bytes. FM_ERR_ARG: it does not fit; the answer is as it was. */
int grammar_accept(struct grammar *grammar, int32_t id, struct fm_error *err);
int grammar_accept_bytes(struct grammar *grammar, const char *bytes, size_t n,
                         struct fm_error *err);

bool grammar_may_end(const struct grammar *grammar);
bool grammar_must_end(const struct grammar *grammar);

/* For measurements. */
struct grammar_counts {
    uint64_t n_masks, n_made; /* masks asked for; parts of them that were not there */
};
struct grammar_counts grammar_counts(const struct grammar *grammar);

#ifdef __cplusplus
}
#endif
#endif
