/* A parsed regular expression: the output of regex_parse.c and the input of regex.c. Everything
 * lives in the maker's arena. One thread. */
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
    const struct code_range *ranges; /* for a set: sorted, disjoint, without surrogates */
    uint32_t n_ranges;
    uint32_t min, max;               /* for a repetition; max DFA_NONE for no limit */
    struct regex_node *first, *next; /* its first child; its next sibling */
};

int regex_parse(struct dfa_maker *maker, const char *text, size_t bytes, struct regex_node **out,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
