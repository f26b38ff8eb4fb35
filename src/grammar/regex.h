/* Regular expressions of JSON schemas: the part of ECMA-262 (flag u) that an automaton can decide.
 *
 * Supported: characters, '.', classes, \d \w \s and their opposites, \t \n \r \f \v \0 \cX \xHH
 * \uHHHH \u{H}, groups (also named ones; captures are not kept), '|', * + ? {n} {n,} {n,m}, lazy or
 * not, ^ and $. Refused with FM_ERR_ARG and a sentence: lookahead and lookbehind, \b,
 * back-references, \p{..}, and text that is not a regular expression. Memory and threads as in
 * dfa.h. */
#ifndef FLASHMOE_GRAMMAR_REGEX_H
#define FLASHMOE_GRAMMAR_REGEX_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

#define REGEX_NODES 20000u /* maximum size of the nondeterministic automaton */
#define REGEX_DEPTH 50     /* maximum nesting of groups */

/* Builds the texts in which the expression matches anywhere, as JSON schema defines 'pattern'.
 * `text` is UTF-8. */
int regex_compile(struct dfa_maker *maker, const char *text, size_t bytes, const struct dfa **out,
                  struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
