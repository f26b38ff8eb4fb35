/* The inside of a JSON string, byte by byte: UTF-8 and escapes, of which only those may begin that
 * can become a character the automaton takes. No state but a word; any thread. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_STRING_H
#define FLASHMOE_GRAMMAR_GRAMMAR_STRING_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

enum string_step { STRING_NO, STRING_MORE, STRING_CHAR };

/* *part is 0 between characters. `dfa` NULL: any character will do. After STRING_CHAR the character
 * is in *c and *part is 0. The closing quote is the caller's. */
enum string_step grammar_string_step(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                     uint8_t byte, uint32_t *c);

/* Reads one character, escaped or not, of valid text; returns the bytes used. */
uint32_t grammar_read_char(const uint8_t *text, uint32_t *c);

#ifdef __cplusplus
}
#endif
#endif
