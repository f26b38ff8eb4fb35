/* The pre-tokenizers: text is cut into pieces that are merged on their own. Each pattern is one
 * regular expression in tokenizer.json, known here by its exact text and matched by a hand-written
 * scanner in one pass. One file and one line of pretok_list.h per pattern.
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
    const char *regex;  /* as tokenizer.json spells it */
    /* tokenizer.ggml.pre of GGUF files with this pattern, NULL-terminated, and what such a file
     * does not say about the tokenizer. */
    const char *const *gguf_names;
    bool gguf_has_nfc;
    /* Returns the bytes of the first piece of `text`, which is valid UTF-8 and not empty. The end
     * of `text` is what the expression sees as the end. */
    size_t (*next)(const uint8_t *text, size_t bytes);
};

/* The i-th pattern; NULL behind the last one. */
const struct pretok *pretok_at(unsigned i);
/* The pattern of a regular expression; NULL when there is none. */
const struct pretok *pretok_find(const char *regex);
/* The pattern of a name in GGUF, which is not NUL-terminated; NULL when there is none. */
const struct pretok *pretok_find_gguf(const char *name, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
