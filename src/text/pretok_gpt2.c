/* GPT-2, GPT-NeoX, OLMoE: the expression that ByteLevel has built in.
 *
 *   's|'t|'re|'ve|'m|'ll|'d           a contraction in lower case
 *   \x20?\p{L}+|\x20?\p{N}+           letters, numbers
 *   \x20?[^\s\p{L}\p{N}]+             punctuation
 *   \s+(?!\S)|\s+                     white space; its last character goes to the next piece */
#include "text/pretok.h"
#include "text/pretok_words.h"

static const char *const no_regex[] = {NULL};
static const char *const gguf_names[] = {"gpt-2", NULL};
static const char *const olmo_names[] = {"olmo", NULL};

static bool is_lower_case(const uint8_t *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] >= 0x80 || (text[i] >= 'A' && text[i] <= 'Z'))
            return false;
    return true;
}

static size_t next(const uint8_t *text, size_t bytes)
{
    const unsigned no_punctuation = UNICODE_L | UNICODE_N | UNICODE_SPACE;
    const size_t contraction = pretok_contraction(text, bytes);
    if (contraction > 0 && is_lower_case(text, contraction))
        return contraction;
    size_t step, after;
    const size_t begin = text[0] == ' ' && bytes > 1 ? 1 : 0;
    const unsigned bits = pretok_bits(text, bytes, begin, &step);
    if (bits & UNICODE_SPACE)
        return pretok_space(text, bytes, false);
    after = begin + step;
    if (bits & UNICODE_L)
        return pretok_run(text, bytes, after, UNICODE_L, 0);
    if (bits & UNICODE_N)
        return pretok_run(text, bytes, after, UNICODE_N, 0);
    return pretok_run_without(text, bytes, after, no_punctuation);
}

extern const struct pretok pretok_gpt2, pretok_olmo;
const struct pretok pretok_gpt2 = {
    .models = "GPT-2",
    .regexes = no_regex,
    .matches_all = true,
    .gguf_names = gguf_names,
    .next = next,
};
const struct pretok pretok_olmo = {
    .models = "OLMoE",
    .regexes = no_regex,
    .matches_all = true,
    .gguf_names = olmo_names,
    .gguf_has_nfc = true,
    .next = next,
};
