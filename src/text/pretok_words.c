#include "text/pretok_words.h"

size_t pretok_run(const uint8_t *text, size_t bytes, size_t at, unsigned any, unsigned max)
{
    size_t step;
    for (unsigned n = 0; pretok_bits(text, bytes, at, &step) & any; at += step)
        if (max > 0 && n++ == max)
            break;
    return at;
}

size_t pretok_run_without(const uint8_t *text, size_t bytes, size_t at, unsigned none)
{
    size_t step;
    while (at < bytes && !(pretok_bits(text, bytes, at, &step) & none))
        at += step;
    return at;
}

/* Converts ASCII letters to lower case. */
static int lower(uint8_t byte)
{
    return byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
}

/* Case folding turns U+017F, the long s, into an s. */
size_t pretok_contraction(const uint8_t *text, size_t bytes)
{
    if (bytes < 2 || text[0] != '\'')
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

size_t pretok_space(const uint8_t *text, size_t bytes, bool newlines)
{
    size_t end = 0, last = 0, after_newline = 0, step;
    while (pretok_bits(text, bytes, end, &step) & UNICODE_SPACE) {
        last = end;
        end += step;
        if (pretok_is_newline(text[last]))
            after_newline = end;
    }
    if (newlines && after_newline > 0)
        return after_newline; /* \s*[\r\n]+ */
    if (end < bytes && last > 0)
        return last; /* \s+(?!\S) leaves one character to the next piece */
    return end;
}

size_t pretok_next_word(unsigned word, unsigned digits, const uint8_t *text, size_t bytes)
{
    const unsigned no_punctuation = word | UNICODE_N | UNICODE_SPACE;
    if (text[0] == '\'') {
        const size_t end = pretok_contraction(text, bytes);
        if (end > 0)
            return end;
    }
    size_t first, second;
    const unsigned bits = pretok_bits(text, bytes, 0, &first);
    if (bits & word)
        return pretok_run(text, bytes, first, word, 0);
    if (bits & UNICODE_N)
        return digits == 1 ? first : pretok_run(text, bytes, 0, UNICODE_N, digits);
    const unsigned next_bits = pretok_bits(text, bytes, first, &second);
    if (!pretok_is_newline(text[0]) && (next_bits & word))
        return pretok_run(text, bytes, first + second, word, 0);

    size_t end = 0;
    if (!(bits & UNICODE_SPACE))
        end = first;
    else if (text[0] == ' ' && second > 0 && !(next_bits & no_punctuation))
        end = first + second;
    if (end == 0)
        return pretok_space(text, bytes, true);
    end = pretok_run_without(text, bytes, end, no_punctuation);
    while (end < bytes && pretok_is_newline(text[end]))
        end++;
    return end;
}
