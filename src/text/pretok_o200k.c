/* gpt-oss, MiniMax-M2 and Kimi: words by case. With UP = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and
 * LOW = [\p{Ll}\p{Lm}\p{Lo}\p{M}], both without \p{Han} for Kimi:
 *
 *   \p{Han}+                                    Kimi only
 *   [^\r\n\p{L}\p{N}]?UP*LOW+(contraction)?     a word that ends in lower case
 *   [^\r\n\p{L}\p{N}]?UP+LOW*(contraction)?     a word of capitals
 *   \p{N}{1,3}                                  digits
 *   \x20?[^\s\p{L}\p{N}]+[\r\n/]*               punctuation; Kimi without the slash
 *   \s*[\r\n]+|\s+(?!\S)|\s+                  white space
 *
 * The expressions backtrack; the scanner looks at every character at most four times. */
#include "text/pretok.h"
#include "text/pretok_words.h"

#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define UP(tail) "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" tail "]"
#define LOW(tail) "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" tail "]"
#define WORDS(tail)                                              \
    LEAD UP(tail) "*" LOW(tail) "+" PRETOK_CONTRACTIONS "?|"     \
    LEAD UP(tail) "+" LOW(tail) "*" PRETOK_CONTRACTIONS "?|\\p{N}{1,3}"

static const char *const regexes[] = {
    WORDS("") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" PRETOK_SPACES,
    NULL,
};
static const char *const kimi_regexes[] = {
    "[\\p{Han}]+|" WORDS("&&[^\\p{Han}]") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" PRETOK_SPACES,
    NULL,
};
static const char *const gguf_names[] = {"gpt-4o", "llama4", NULL};
static const char *const minimax_names[] = {"minimax-m2", NULL};
static const char *const kimi_names[] = {"kimi-k2", NULL};

/* What a character can be in a word. */
enum { ENDS = 0, CAPITAL = 1, SMALL = 2, EITHER = 3 };

static unsigned case_of(unsigned bits, bool is_kimi)
{
    if (is_kimi && (bits & UNICODE_HAN))
        return ENDS;
    if (bits & UNICODE_UPPER)
        return CAPITAL;
    if (bits & UNICODE_LOWER)
        return SMALL;
    return bits & (UNICODE_L | UNICODE_M) ? EITHER : ENDS;
}

static unsigned case_at(const uint8_t *text, size_t bytes, size_t at, bool is_kimi, size_t *step)
{
    return case_of(pretok_bits(text, bytes, at, step), is_kimi);
}

/* A run of UP: its end, and the end of its last character that is LOW too. */
struct capitals {
    size_t end, after_either;
};

static struct capitals find_capitals(const uint8_t *text, size_t bytes, size_t at, bool is_kimi)
{
    struct capitals run = {.end = at};
    size_t step;
    for (;;) {
        const unsigned kind = case_at(text, bytes, run.end, is_kimi, &step);
        if (!(kind & CAPITAL))
            return run;
        run.end += step;
        if (kind == EITHER)
            run.after_either = run.end;
    }
}

/* Matches UP*LOW+ at `at`; returns 0 if it does not match. UP* leaves LOW+ one character. */
static size_t match_small(const uint8_t *text, size_t bytes, size_t at, bool is_kimi,
                          struct capitals *run)
{
    *run = find_capitals(text, bytes, at, is_kimi);
    size_t end = run->end, step;
    while (case_at(text, bytes, end, is_kimi, &step) & SMALL)
        end += step;
    return end > run->end ? end : run->after_either;
}

/* Matches a word; returns 0 if there is none. `lead` is the length of the first character if it may
 * stand before a word, else 0. */
static size_t match_word(const uint8_t *text, size_t bytes, size_t lead, bool is_kimi)
{
    struct capitals run, with_lead = {0};
    size_t end = 0;
    if (lead > 0)
        end = match_small(text, bytes, lead, is_kimi, &with_lead);
    if (end == 0)
        end = match_small(text, bytes, 0, is_kimi, &run);
    if (end == 0 && lead > 0 && with_lead.end > lead)
        end = with_lead.end;
    if (end == 0)
        end = run.end;
    return end > 0 ? end + pretok_contraction(text + end, bytes - end) : 0;
}

static size_t next_cased(const uint8_t *text, size_t bytes, bool is_kimi)
{
    const unsigned no_punctuation = UNICODE_L | UNICODE_N | UNICODE_SPACE;
    size_t first, second;
    const unsigned bits = pretok_bits(text, bytes, 0, &first);
    if (is_kimi && (bits & UNICODE_HAN))
        return pretok_run(text, bytes, first, UNICODE_HAN, 0);
    if (bits & UNICODE_N)
        return pretok_run(text, bytes, 0, UNICODE_N, 3);
    const bool leads = !(bits & UNICODE_L) && !pretok_is_newline(text[0]);
    size_t end = match_word(text, bytes, leads ? first : 0, is_kimi);
    if (end > 0)
        return end;
    if (bits & UNICODE_SPACE) {
        const unsigned next_bits = pretok_bits(text, bytes, first, &second);
        if (text[0] != ' ' || second == 0 || (next_bits & no_punctuation))
            return pretok_space(text, bytes, true);
        first += second;
    }
    end = pretok_run_without(text, bytes, first, no_punctuation);
    while (end < bytes && (pretok_is_newline(text[end]) || (!is_kimi && text[end] == '/')))
        end++;
    return end;
}

static size_t next(const uint8_t *text, size_t bytes)
{
    return next_cased(text, bytes, false);
}

static size_t next_kimi(const uint8_t *text, size_t bytes)
{
    return next_cased(text, bytes, true);
}

extern const struct pretok pretok_o200k, pretok_minimax, pretok_kimi;
const struct pretok pretok_o200k = {
    .models = "gpt-oss",
    .regexes = regexes,
    .matches_all = true,
    .gguf_names = gguf_names,
    .gguf_ignores_merges = true,
    .next = next,
};
const struct pretok pretok_minimax = {
    .models = "MiniMax-M2",
    .regexes = regexes,
    .matches_all = true,
    .gguf_names = minimax_names,
    .next = next,
};
const struct pretok pretok_kimi = {
    .models = "Kimi",
    .regexes = kimi_regexes,
    .matches_all = true,
    .gguf_names = kimi_names,
    .gguf_ignores_merges = true,
    .next = next_kimi,
};
