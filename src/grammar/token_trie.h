/* The bytes of all tokens of a vocabulary as a tree, to find those that a grammar allows without
 * looking at each. Immutable once open: any thread may read it; the tokenizer must outlive it.
 *
 * Special and added tokens (<|im_end|>, <think>) are not in it: an answer that must be JSON has
 * none. FM_ERR_UNSUPPORTED when a byte that JSON may need has no token of its own: then an answer
 * could come to where no token fits. */
#ifndef FLASHMOE_GRAMMAR_TOKEN_TRIE_H
#define FLASHMOE_GRAMMAR_TOKEN_TRIE_H

#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRIE_TOKEN_BYTES 512u /* longer tokens are left out */

/* In the order of a walk that visits parents before children. */
struct trie_node {
    uint32_t end;   /* the first node that is not below this one */
    int32_t token;  /* whose bytes end here, or -1 */
    uint16_t depth; /* 1 for the first byte */
    uint8_t byte;
};

struct token_trie {
    const struct tokenizer *tok;
    struct trie_node *nodes;
    uint32_t n_nodes;
    uint32_t n_ids;
    int32_t *same;        /* [n_ids] the next token of the same bytes, or -1 */
    uint32_t longest;     /* bytes */
    uint32_t max_opened; /* brackets that one token opens */
};

/* Ids from 0 to n_ids - 1. */
int token_trie_open(const struct tokenizer *tok, uint32_t n_ids, struct token_trie **out,
                    struct fm_error *err);
void token_trie_close(struct token_trie *trie); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
