/* A conversation as the tokens a chat model was trained on: ChatML, the form of every Qwen model.
 * Only the frame has special tokens; "<|im_end|>" in what somebody wrote stays ordinary text, so
 * nobody can leave his turn. Any thread. */
#ifndef FLASHMOE_TEXT_CHAT_H
#define FLASHMOE_TEXT_CHAT_H

#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* False when the tokenizer lacks <|im_start|> or <|im_end|>. */
bool chat_is_available(const struct tokenizer *tok);

/* An optional system turn, one user turn, and the opening of the assistant's. The tokenizer has
 * the chat tokens. Free the ids with mem_free. */
int chat_encode(const struct tokenizer *tok, const char *system, const char *user,
                size_t user_bytes, int32_t **ids, size_t *n_ids, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
