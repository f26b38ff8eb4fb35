/* Converts a conversation to the tokens that a chat model was trained on, with the checkpoint's own
 * template (jinja/jinja.h) or, if it has none, with ChatML, the format of all Qwen models.
 *
 * No author can leave their turn. The rendering is tokenized as one text, but a special token
 * counts only where the template wrote all of it:
 *   - In text of the template, including bos_token and the like, every added token is a token.
 *   - In content and reasoning of assistant messages, control tokens ("special": <|im_end|>) are
 *     ordinary characters and the others (<think>, <tool_call>) are tokens. So an answer in the
 *     history has the ids that it was generated with.
 *   - In all other text, whoever wrote it, they are ordinary characters.
 * A role counts as the template's if it is a common one (system, user, assistant, tool, ...).
 *
 * A chat owns its templates and is immutable after opening, so any thread may use it. The tokenizer
 * must outlive it. Opening succeeds even if a template cannot be compiled; the error is reported at
 * every use. */
#ifndef FLASHMOE_CHAT_CHAT_H
#define FLASHMOE_CHAT_CHAT_H

#include "chat/dialect.h"
#include "jinja/jinja.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct chat;

/* The small files of the checkpoint; each may be NULL. */
struct chat_files {
    const char *template_text; /* chat_template.jinja, which takes precedence */
    size_t template_bytes;
    const json_t *tokenizer_config;   /* chat_template: a text, or a list of named texts */
    const json_t *template_json;      /* chat_template.json, used if the others have none */
    const json_t *special_tokens_map;
};

/* Opens a chat. `name` stands for the model in messages. */
int chat_open(const char *name, const struct chat_files *files, const struct tokenizer *tok,
              struct chat **out, struct fm_error *err);
void chat_close(struct chat *chat); /* accepts NULL */

/* Returns false if ChatML is used instead. */
bool chat_has_template(const struct chat *chat);

/* Returns the dialects that the template shows, or the default ones; NULL-terminated, never
 * empty. */
const struct dialect *const *chat_dialects(const struct chat *chat);

/* Renders a conversation: an array of messages, or an object with `messages`, `tools`, `documents`,
 * `add_generation_prompt` (default true) and any other variables of the template. With
 * `continue_final_message` the rendering ends with the text of the last message, which must be the
 * assistant's, so that the answer continues it. Free with jinja_rendering_clear. Fails with
 * FM_ERR_UNSUPPORTED if there is no template and the tokenizer has no ChatML tokens, and with
 * FM_ERR_ARG if it is not a conversation or cannot be continued. */
int chat_render(const struct chat *chat, const json_t *conversation, int64_t now_s,
                int32_t now_offset_s, struct jinja_rendering *out, struct fm_error *err);

/* Tokenizes a rendering. Free the ids with mem_free. */
int chat_encode(const struct chat *chat, const struct jinja_rendering *rendering, int32_t **ids,
                size_t *n_ids, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
