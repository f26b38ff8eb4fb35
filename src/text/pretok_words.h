/* The scanner that Qwen's patterns share. They differ only in the characters of a word. In order:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)        a contraction
 *   [^\r\n WORD NUMBER]?[WORD]+         a word, with one character before it that is neither
 *   NUMBER                              one digit
 *   \x20?[^\s WORD NUMBER]+[\r\n]*      punctuation, with a blank before and newlines after it
 *   \s*[\r\n]+|\s+(?!\S)|\s+          white space; its last character goes to the next piece
 *
 * Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_TEXT_PRETOK_WORDS_H
#define FLASHMOE_TEXT_PRETOK_WORDS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The contractions and white space as regular expressions, for the texts of patterns. */
#define PRETOK_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define PRETOK_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Returns the length of the first piece, as pretok.next does. `word` is a combination of UNICODE_*
 * bits. */
size_t pretok_next_word(unsigned word, const uint8_t *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
