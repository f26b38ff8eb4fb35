/* Qwen2, Qwen3, Qwen3-Next: words are letters. */
#include "text/pretok.h"
#include "text/pretok_words.h"

static const char *const regexes[] = {
    PRETOK_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" PRETOK_SPACES,
    NULL,
};
static const char *const gguf_names[] = {"qwen2", "deepseek-r1-qwen", NULL};

static size_t next(const uint8_t *text, size_t bytes)
{
    return pretok_next_word(UNICODE_L, 1, text, bytes);
}

extern const struct pretok pretok_qwen2;
const struct pretok pretok_qwen2 = {
    .models = "Qwen2/Qwen3",
    .regexes = regexes,
    .matches_all = true,
    .gguf_names = gguf_names,
    .gguf_has_nfc = true,
    .next = next,
};
