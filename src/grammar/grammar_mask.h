/* Masks: which tokens of a vocabulary lead on from where an answer is.
 *
 * What the top frame of a thread alone decides is found once and kept: tokens that end inside the
 * frame, and the places in the vocabulary where the frame is left, behind which what is below it
 * decides. So a mask costs a full walk of the vocabulary only where a kind of frame is new.
 *
 * A maker belongs to one thread and borrows machine and vocabulary; a kept mask is immutable. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_MASK_H
#define FLASHMOE_GRAMMAR_GRAMMAR_MASK_H

#include "grammar/grammar_machine.h"
#include "grammar/token_trie.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MASKS_KEPT 256u /* at most, 19 KB each with a vocabulary of 150,000 */

struct kept_mask {
    struct frame key;
    uint32_t n_tokens; /* listed; 0 with has_bits */
    uint32_t n_exits, n_unsure;
    bool has_bits;
    /* The tokens that end inside (a bit for each, or listed), the nodes of the vocabulary at which
     * the frame is left, and those that must be looked at with all that is known. */
    uint32_t words[];
};

struct grammar_vocabulary {
    struct token_trie *trie;
    struct kept_mask *any_string; /* in a string without limits, between two characters */
    /* For strings with limits: how many characters each token of it begins, and how many there are
     * before each of its exits. */
    uint16_t *token_chars, *exit_chars;
};

struct mask_maker {
    const struct grammar_vocabulary *vocabulary;
    struct machine *machine;
    uint8_t *text;       /* the machine's, which is written behind the answer */
    uint32_t *bits;      /* the mask: [n_ids / 32 + 1] */
    uint32_t *kept_bits; /* the one that is being found */
    uint32_t *exits, *unsure; /* [n_nodes + 1] of it */
    uint32_t n_exits, n_unsure;
    struct threads *levels; /* [longest + 1] threads after so many bytes of a token */
    size_t *level_nodes;    /* [longest + 1] the machine's nodes then */
    size_t base_nodes;      /* and before */
    struct kept_mask **kept; /* [MASKS_KEPT] */
    uint32_t next_kept;
    uint64_t n_made;
};

int mask_maker_init(struct mask_maker *maker, const struct grammar_vocabulary *vocabulary,
                    struct machine *machine, uint8_t *text, struct fm_error *err);
void mask_maker_clear(struct mask_maker *maker); /* accepts a zeroed one */

/* Fills bits for an answer of n_text bytes. */
void mask_make(struct mask_maker *maker, const struct threads *threads, size_t n_text);

/* Fills in what all grammars of a vocabulary share. Freed with mem_free, also after a failure. */
int mask_any_string(struct grammar_vocabulary *vocabulary, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
