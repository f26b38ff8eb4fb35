/* The pre-tokenizers: text is cut into pieces that are merged on their own. Each is one regular
 * expression in tokenizer.json, known here by its exact text and matched by a hand-written
 * scanner in one pass.
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

enum pretok {
    PRETOK_QWEN2,  /* Qwen2, Qwen3, Qwen3-Next: words are letters */
    PRETOK_QWEN35, /* Qwen3.5: words are letters and combining marks */
    N_PRETOKS,
};

/* The regular expression as tokenizer.json spells it. */
const char *pretok_regex(enum pretok kind);

/* Which scanner a regular expression has; false when none. */
bool pretok_find(const char *regex, enum pretok *kind);

/* Bytes of the first piece of `text`, which is valid UTF-8 and not empty. The end of `text` is
 * what the expression sees as the end. */
size_t pretok_next(enum pretok kind, const uint8_t *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
