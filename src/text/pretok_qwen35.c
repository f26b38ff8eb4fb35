/* Qwen3.5: words are letters and combining marks. */
#include "text/pretok.h"
#include "text/pretok_words.h"

static const char *const regexes[] = {
    PRETOK_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                        "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" PRETOK_SPACES,
    NULL,
};
static const char *const gguf_names[] = {"qwen35", NULL};

static size_t next(const uint8_t *text, size_t bytes)
{
    return pretok_next_word(UNICODE_L | UNICODE_M, 1, text, bytes);
}

extern const struct pretok pretok_qwen35;
const struct pretok pretok_qwen35 = {
    .models = "Qwen3.5",
    .regexes = regexes,
    .matches_all = true,
    .gguf_names = gguf_names,
    .gguf_has_nfc = true,
    .next = next,
};
