#include "text/pretok_words.h"

#include <stdbool.h>

#include "text/unicode.h"

/* Returns the bits and the length of the character at `at`; 0 and length 0 at the end. */
static unsigned bits_at(const uint8_t *text, size_t bytes, size_t at, size_t *step)
{
    *step = 0;
    if (at == bytes)
        return 0;
    uint32_t code_point;
    *step = utf8_get(text + at, &code_point);
    return unicode_bits(code_point);
}

/* Returns the end of the run of characters that have one of the bits `any`. */
static size_t run_of(const uint8_t *text, size_t bytes, size_t at, unsigned any)
{
    size_t step;
    while (bits_at(text, bytes, at, &step) & any)
        at += step;
    return at;
}

static bool is_newline(uint8_t byte)
{
    return byte == '\r' || byte == '\n';
}

/* Converts ASCII letters to lower case. */
static int lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
}

/* Matches (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe; returns 0 if it does not match. Case
 * folding turns U+017F, the long s, into an s. */
static size_t match_contraction(const uint8_t *text, size_t bytes)
{
    if (bytes < 2)
        return 0;
    const int a = lower(text[1]);
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (bytes < 3)
        return 0;
    if (text[1] == 0xc5 && text[2] == 0xbf)
        return 3;
    const int b = lower(text[2]);
    const bool matches = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return matches ? 3 : 0;
}

/* Matches the three white space alternatives, at white space. */
static size_t match_space(const uint8_t *text, size_t bytes)
{
    size_t end = 0, last = 0, after_newline = 0, step;
    while (bits_at(text, bytes, end, &step) & UNICODE_SPACE) {
        last = end;
        end += step;
        if (is_newline(text[last]))
            after_newline = end;
    }
    if (after_newline > 0)
        return after_newline; /* \s*[\r\n]+ */
    if (end < bytes && last > 0)
        return last; /* \s+(?!\S) leaves one character to the next piece */
    return end;
}

size_t pretok_next_word(unsigned word, const uint8_t *text, size_t bytes)
{
    const unsigned no_punctuation = word | UNICODE_N | UNICODE_SPACE;
    if (text[0] == '\'') {
        const size_t end = match_contraction(text, bytes);
        if (end > 0)
            return end;
    }
    size_t first, second;
    const unsigned bits = bits_at(text, bytes, 0, &first);
    if (bits & word)
        return run_of(text, bytes, first, word);
    if (bits & UNICODE_N)
        return first;
    const unsigned next_bits = bits_at(text, bytes, first, &second);
    if (!is_newline(text[0]) && (next_bits & word))
        return run_of(text, bytes, first + second, word);

    size_t end = 0;
    if (!(bits & UNICODE_SPACE))
        end = first;
    else if (text[0] == ' ' && second > 0 && !(next_bits & no_punctuation))
        end = first + second;
    if (end == 0)
        return match_space(text, bytes);
    size_t step;
    while (end < bytes && !(bits_at(text, bytes, end, &step) & no_punctuation))
        end += step;
    while (end < bytes && is_newline(text[end]))
        end++;
    return end;
}
