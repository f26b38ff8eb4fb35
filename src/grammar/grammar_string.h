/* Reads the inside of a JSON string byte by byte: UTF-8 and escapes. Accepts only bytes that can
 * still become a character that the automaton accepts. The only state is one word, which the caller
 * owns. Any thread; nothing allocates. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_STRING_H
#define FLASHMOE_GRAMMAR_GRAMMAR_STRING_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

enum string_step { STRING_NO, STRING_MORE, STRING_CHAR };

/* Reads one byte. *part is 0 between characters. `dfa` NULL accepts any character. After
 * STRING_CHAR the character is in *c and *part is 0. The caller handles the closing quote. */
enum string_step grammar_string_step(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                     uint8_t byte, uint32_t *c);

/* Reads one character of valid text, escaped or not. Returns the number of bytes used. */
uint32_t grammar_read_char(const uint8_t *text, uint32_t *c);

#ifdef __cplusplus
}
#endif
#endif
