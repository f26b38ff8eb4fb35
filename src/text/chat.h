/* Rendering a conversation as the text a chat model was trained on: ChatML, the form of every
 * Qwen model. The special tokens are spelled out; the result is tokenized with them recognised.
 * Any thread. */
#ifndef FLASHMOE_TEXT_CHAT_H
#define FLASHMOE_TEXT_CHAT_H

#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* False when the tokenizer lacks <|im_start|> or <|im_end|>. */
bool chat_is_available(const struct tokenizer *tok);

/* An optional system turn, one user turn, and the opening of the assistant's. Free with mem_free;
 * NUL-terminated. */
int chat_render(const char *system, const char *user, char **text, size_t *text_bytes,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
