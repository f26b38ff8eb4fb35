/* GLM-4.5 and newer, Llama 3: words are letters, numbers have up to three digits. */
#include "text/pretok.h"
#include "text/pretok_words.h"

static const char *const regexes[] = {
    PRETOK_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" PRETOK_SPACES,
    NULL,
};
static const char *const gguf_names[] = {"glm4", "glm5", "llama-bpe", NULL};

static size_t next(const uint8_t *text, size_t bytes)
{
    return pretok_next_word(UNICODE_L, 3, text, bytes);
}

extern const struct pretok pretok_glm4;
const struct pretok pretok_glm4 = {
    .models = "GLM-4.5/Llama 3",
    .regexes = regexes,
    .matches_all = true,
    .gguf_names = gguf_names,
    .gguf_ignores_merges = true,
    .next = next,
};
