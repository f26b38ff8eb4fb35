/* Grammars in GBNF, the notation of llama.cpp: rules of literals, character classes, references,
 * groups, alternatives and repetitions. docs/SCHEMA.md describes it.
 *
 * A grammar is compiled to rules of sets and references, which it owns; it is immutable. Any
 * thread. Compiling fails with FM_ERR_ARG, and the line, for text that is no grammar, for a rule
 * that is missing or that refers to itself before it has read a character, for a grammar that
 * allows no text, and above the limits. */
#ifndef FLASHMOE_GRAMMAR_GBNF_H
#define FLASHMOE_GRAMMAR_GBNF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GBNF_BYTES (256u << 10)
#define GBNF_RULES 4096u
#define GBNF_ELEMENTS 65536u
#define GBNF_RANGES 65536u
#define GBNF_REPEATS 2000u /* maximum count of a repetition */
#define GBNF_NESTING 50u   /* maximum nesting of groups */

struct gbnf_range {
    uint32_t lo, hi; /* code points */
};

enum gbnf_kind { GBNF_END, GBNF_SET, GBNF_RULE };

/* One step of an alternative, which is a run of elements up to GBNF_END. */
struct gbnf_element {
    enum gbnf_kind kind;
    uint32_t rule;                  /* GBNF_RULE */
    uint32_t first_range, n_ranges; /* GBNF_SET: sorted, disjoint, no surrogates */
};

struct gbnf_rule {
    char name[64]; /* empty: made for a group or a repetition */
    uint32_t *alternatives; /* [n] indices of their first elements */
    size_t n, capacity;
    unsigned line; /* where it is first named */
    bool is_defined;
    bool is_productive; /* some text fits it */
    bool may_be_empty;
};

struct gbnf {
    struct gbnf_rule *rules;
    struct gbnf_element *elements;
    struct gbnf_range *ranges;
    size_t n_rules, rules_capacity, n_elements, elements_capacity, n_ranges, ranges_capacity;
    uint32_t root;
};

int gbnf_compile(const char *text, size_t bytes, struct gbnf **out, struct fm_error *err);
void gbnf_free(struct gbnf *g); /* accepts NULL */

/* Checks the rules after parsing (gbnf_vet.c), and removes alternatives that no text fits. */
int gbnf_vet(struct gbnf *g, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
