/* Regular expressions of JSON schemas, the part of ECMA-262 (flag u) that an automaton can decide.
 *
 * Understood: characters, '.', classes, \d \w \s and their opposites, \t \n \r \f \v \0 \cX \xHH
 * \uHHHH \u{H}, groups (also named ones; what they capture is not kept), '|', * + ? {n} {n,} {n,m},
 * lazy or not, ^ and $. Refused with FM_ERR_ARG and a sentence: looking ahead or behind, \b,
 * references to groups, \p{..}, and what is no expression. */
#ifndef FLASHMOE_GRAMMAR_REGEX_H
#define FLASHMOE_GRAMMAR_REGEX_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REGEX_NODES 20000u /* of the automaton before it is made deterministic */
#define REGEX_DEPTH 50     /* groups in each other */

/* The texts in which the expression is found anywhere, as schemas mean it. `text` is UTF-8. */
int regex_compile(struct dfa_maker *maker, const char *text, size_t bytes, const struct dfa **out,
                  struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
