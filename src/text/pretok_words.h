/* The scanner that Qwen's and GLM's patterns share, and steps for other scanners. They differ in
 * the characters of a word and in the number of digits. In order:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)        a contraction
 *   [^\r\n WORD NUMBER]?[WORD]+         a word, with one character before it that is neither
 *   NUMBER{1,digits}                    digits
 *   \x20?[^\s WORD NUMBER]+[\r\n]*      punctuation, with a blank before and newlines after it
 *   \s*[\r\n]+|\s+(?!\S)|\s+          white space; its last character goes to the next piece
 *
 * Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_TEXT_PRETOK_WORDS_H
#define FLASHMOE_TEXT_PRETOK_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/unicode.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The contractions and white space as regular expressions, for the texts of patterns. */
#define PRETOK_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PRETOK_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Returns the length of the first piece, as pretok.next does. `word` is a combination of UNICODE_*
 * bits. */
size_t pretok_next_word(unsigned word, unsigned digits, const uint8_t *text, size_t bytes);

/* Returns the bits and the length of the character at `at`; 0 and length 0 at the end. */
static inline unsigned pretok_bits(const uint8_t *text, size_t bytes, size_t at, size_t *step)
{
    *step = 0;
    if (at == bytes)
        return 0;
    uint32_t code_point;
    *step = utf8_get(text + at, &code_point);
    return unicode_bits(code_point);
}

static inline bool pretok_is_newline(uint8_t byte)
{
    return byte == '\r' || byte == '\n';
}

/* Returns the end of the run of characters that have one of the bits `any`; at most `max` of them
 * if it is not 0. */
size_t pretok_run(const uint8_t *text, size_t bytes, size_t at, unsigned any, unsigned max);
/* Returns the end of the run of characters that have none of the bits. */
size_t pretok_run_without(const uint8_t *text, size_t bytes, size_t at, unsigned none);
/* Matches PRETOK_CONTRACTIONS at the beginning of `text`; returns 0 if it does not match. */
size_t pretok_contraction(const uint8_t *text, size_t bytes);
/* Matches PRETOK_SPACES at white space; without `newlines`, only its last two alternatives. */
size_t pretok_space(const uint8_t *text, size_t bytes, bool newlines);

#ifdef __cplusplus
}
#endif
#endif
