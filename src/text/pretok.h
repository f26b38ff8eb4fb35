/* Pre-tokenizers: split text into pieces that are merged separately. Each pattern is one or more
 * regular expressions in tokenizer.json, identified by their exact text and matched by a
 * hand-written scanner in one pass. One line of pretok_list.h per pattern.
 *
 * Owns nothing. Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_TEXT_PRETOK_H
#define FLASHMOE_TEXT_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pretok {
    const char *models; /* for messages: "Qwen3.5" */
    /* The expressions as tokenizer.json writes them, NULL-terminated. Each splits what the one
     * before it left. None: the expression of a ByteLevel pre-tokenizer with use_regex. */
    const char *const *regexes;
    /* Every character belongs to a match, so removing the rest changes nothing. */
    bool matches_all;
    /* Values of tokenizer.ggml.pre in GGUF files with this pattern, NULL-terminated, and what such
     * a file does not say about the tokenizer. */
    const char *const *gguf_names;
    bool gguf_has_nfc, gguf_ignores_merges;
    /* Returns the length of the first piece of `text`, which must be valid UTF-8 and not empty. The
     * expression sees the end of `text` as the end. Splitting a whole text is linear in it. */
    size_t (*next)(const uint8_t *text, size_t bytes);
};

/* Returns pattern number i; NULL after the last one. */
const struct pretok *pretok_at(unsigned i);
/* Returns the pattern of `n` regular expressions, or NULL. */
const struct pretok *pretok_find(const char *const *regexes, size_t n);
/* Returns the pattern of a GGUF name, which is not NUL-terminated, or NULL. */
const struct pretok *pretok_find_gguf(const char *name, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
