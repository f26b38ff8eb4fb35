/* DeepSeek-V3: three expressions, each of which splits the pieces of the one before it:
 *
 *   \p{N}{1,3}
 *   [一-龥぀-ゟ゠-ヿ]+                             Chinese and Japanese
 *   [ASCII punctuation][A-Za-z]+                 a symbol with letters
 *   [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+         a word, with one other character before it
 *   \x20?[\p{P}\p{S}]+[\r\n]*                    punctuation
 *   \s*[\r\n]+|\s+(?!\S)|\s+                   white space
 *
 * The third expression sees the end of the text where a match of the first two begins or ends.
 * Characters that it does not match, such as controls, are pieces up to its next match. */
#include "text/pretok.h"
#include "text/pretok_words.h"

static const char *const regexes[] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    NULL,
};
static const char *const gguf_names[] = {"deepseek-v3", NULL};

#define WORD (UNICODE_L | UNICODE_M)

static bool is_east_asian(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
}

/* Text that the first two expressions have cut out: its end is where its kind ends. */
struct span {
    const uint8_t *text;
    size_t bytes;
    bool is_east_asian;
};

/* As pretok_bits. */
static unsigned bits_at(const struct span *span, size_t at, size_t *step)
{
    *step = 0;
    if (at == span->bytes)
        return 0;
    uint32_t c;
    const size_t length = utf8_get(span->text + at, &c);
    const unsigned bits = unicode_bits(c);
    if ((bits & UNICODE_N) || is_east_asian(c) != span->is_east_asian)
        return 0;
    *step = length;
    return bits;
}

static size_t run_of(const struct span *span, size_t at, unsigned any)
{
    size_t step;
    while (bits_at(span, at, &step) & any)
        at += step;
    return at;
}

static bool is_letter(uint8_t byte)
{
    return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
}

/* Matches the white space alternatives, at white space. */
static size_t match_space(const struct span *span)
{
    const size_t end = run_of(span, 0, UNICODE_SPACE);
    size_t step; /* of the next character, if it belongs to the span */
    (void)bits_at(span, end, &step);
    return pretok_space(span->text, end + step, true);
}

/* Returns the end of the characters before the next match. The first one does not begin a match,
 * but each of them begins one if a word follows it. */
static size_t skip_unmatched(const struct span *span, size_t at)
{
    for (;;) {
        size_t step, after;
        const unsigned bits = bits_at(span, at, &step);
        if (step == 0 || (bits & (WORD | UNICODE_PS | UNICODE_SPACE)) ||
            (bits_at(span, at + step, &after) & WORD))
            return at;
        at += step;
    }
}

/* Matches the third expression. */
static size_t match_rest(const struct span *span)
{
    const uint8_t *text = span->text;
    size_t first, second;
    const unsigned bits = bits_at(span, 0, &first);
    if (bits & WORD)
        return run_of(span, first, WORD);
    const unsigned next_bits = bits_at(span, first, &second);
    size_t end = first;
    if (bits & UNICODE_PS) {
        while (first == 1 && end < span->bytes && is_letter(text[end]))
            end++;
        if (end > first)
            return end;
    } else {
        if (!pretok_is_newline(text[0]) && (next_bits & WORD))
            return run_of(span, first + second, WORD);
        if (!(bits & UNICODE_SPACE))
            return skip_unmatched(span, first);
        if (text[0] != ' ' || !(next_bits & UNICODE_PS))
            return match_space(span);
    }
    end = run_of(span, end, UNICODE_PS);
    while (end < span->bytes && !span->is_east_asian && pretok_is_newline(text[end]))
        end++;
    return end;
}

static size_t next(const uint8_t *text, size_t bytes)
{
    uint32_t c;
    (void)utf8_get(text, &c);
    if (unicode_bits(c) & UNICODE_N)
        return pretok_run(text, bytes, 0, UNICODE_N, 3);
    const struct span span = {text, bytes, is_east_asian(c)};
    return match_rest(&span);
}

extern const struct pretok pretok_deepseek3;
const struct pretok pretok_deepseek3 = {
    .models = "DeepSeek-V3",
    .regexes = regexes,
    .gguf_names = gguf_names,
    .next = next,
};
