/* Computes masks: which tokens of a vocabulary may follow in an answer.
 *
 * Results that depend only on a thread's top frame are computed once and kept: the tokens that end
 * inside the frame, and the trie nodes where the frame is left and the frames below decide. So a
 * mask needs a full walk of the vocabulary only when a kind of frame is new.
 *
 * A maker belongs to one thread and borrows the machine and the vocabulary. A kept mask is
 * immutable. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_MASK_H
#define FLASHMOE_GRAMMAR_GRAMMAR_MASK_H

#include "grammar/grammar_machine.h"
#include "grammar/token_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MASKS_KEPT 256u /* maximum; each takes 19 KB with a vocabulary of 150,000 */

struct kept_mask {
    struct frame key;
    uint32_t n_tokens; /* number of listed tokens; 0 with has_bits */
    uint32_t n_exits, n_unsure;
    bool has_bits;
    /* The tokens that end inside the frame (as bits or as a list), the trie nodes at which the
     * frame is left, and the nodes that must be checked against the whole answer. */
    uint32_t words[];
};

struct grammar_vocabulary {
    struct token_trie *trie;
    struct kept_mask *any_string; /* the mask inside a string without limits, between two
                                   * characters */
    /* For strings with limits: how many characters each listed token starts, and how many precede
     * each exit. */
    uint16_t *token_chars, *exit_chars;
};

struct mask_maker {
    const struct grammar_vocabulary *vocabulary;
    struct machine *machine;
    uint8_t *text;       /* the machine's text; candidate bytes are written after the answer */
    uint32_t *bits;      /* the result: [n_ids / 32 + 1] */
    uint32_t *kept_bits; /* the kept mask that is being computed */
    uint32_t *exits, *unsure; /* [n_nodes + 1] for the mask that is being computed */
    uint32_t n_exits, n_unsure;
    struct threads *levels; /* [longest + 1] threads after each byte of a token */
    size_t *level_nodes;    /* [longest + 1] number of machine nodes after each byte */
    size_t base_nodes;      /* number of machine nodes before the token */
    struct kept_mask **kept; /* [MASKS_KEPT] */
    uint32_t next_kept;
    uint64_t n_made;
};

int mask_maker_init(struct mask_maker *maker, const struct grammar_vocabulary *vocabulary,
                    struct machine *machine, uint8_t *text, struct fm_error *err);
void mask_maker_clear(struct mask_maker *maker); /* accepts a zeroed one */

/* Computes `bits` for an answer of n_text bytes. */
void mask_make(struct mask_maker *maker, const struct threads *threads, size_t n_text);

/* Computes the mask that all grammars of a vocabulary share. Free with mem_free, also after a
 * failure. */
int mask_any_string(struct grammar_vocabulary *vocabulary, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
