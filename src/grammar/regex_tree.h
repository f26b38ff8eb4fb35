/* A regular expression as a tree, between regex_parse.c and regex.c. Everything lives in the
 * maker's arena. */
#ifndef FLASHMOE_GRAMMAR_REGEX_TREE_H
#define FLASHMOE_GRAMMAR_REGEX_TREE_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

struct code_range {
    uint32_t lo, hi;
};

enum regex_kind { REGEX_SET, REGEX_BEGIN, REGEX_END, REGEX_CHAIN, REGEX_CHOICE,
                  REGEX_REPEAT };

struct regex_node {
    enum regex_kind kind;
    const struct code_range *ranges; /* of a set: sorted, apart, without surrogates */
    uint32_t n_ranges;
    uint32_t min, max;               /* of a repetition; max DFA_NONE: no end */
    struct regex_node *first, *next; /* what it is made of; its neighbour in that */
};

int regex_parse(struct dfa_maker *maker, const char *text, size_t bytes, struct regex_node **out,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
