/* The bytes of all tokens of a vocabulary as a trie, to find the tokens that a grammar allows
 * without checking each one. Immutable once open, so any thread may read it. The tokenizer must
 * outlive it.
 *
 * Special and added tokens (<|im_end|>, <think>) are left out, because JSON text contains none.
 * Opening fails with FM_ERR_UNSUPPORTED if a byte that JSON may need has no token of its own,
 * because then an answer could reach a place where no token fits. */
#ifndef FLASHMOE_GRAMMAR_TOKEN_TRIE_H
#define FLASHMOE_GRAMMAR_TOKEN_TRIE_H

#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRIE_TOKEN_BYTES 512u /* longer tokens are left out */

/* Nodes are stored in depth-first order, parents before children. */
struct trie_node {
    uint32_t end;   /* index of the first node that is not below this one */
    int32_t token;  /* token whose bytes end here, or -1 */
    uint16_t depth; /* 1 for the first byte */
    uint8_t byte;
};

struct token_trie {
    const struct tokenizer *tok;
    struct trie_node *nodes;
    uint32_t n_nodes;
    uint32_t n_ids;
    int32_t *same;        /* [n_ids] next token with the same bytes, or -1 */
    uint32_t longest;     /* maximum token length in bytes */
    uint32_t max_opened; /* maximum number of brackets that one token opens */
};

/* Opens a trie of the ids 0 to n_ids - 1. */
int token_trie_open(const struct tokenizer *tok, uint32_t n_ids, struct token_trie **out,
                    struct fm_error *err);
void token_trie_close(struct token_trie *trie); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
