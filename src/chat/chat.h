/* A conversation as the tokens a chat model was trained on: the checkpoint's own template
 * (jinja/jinja.h), or ChatML, the form of every Qwen model, where it has none.
 *
 * Nobody can leave his turn. The rendering is tokenized as one text, but a special token counts
 * only where the template wrote all of it:
 *   - in what the template wrote, bos_token and its like included, every added token is one;
 *   - in content and reasoning of assistant messages, those that steer ("special": <|im_end|>) are
 *     ordinary characters and the others (<think>, <tool_call>) are tokens, so that an answer in
 *     the history has the ids it was generated with;
 *   - in everything else, whoever wrote it, all of them are ordinary characters.
 * A role is the template's when it is a word everybody uses (system, user, assistant, tool, ...).
 *
 * A chat owns its templates, is immutable after opening and may be used by any thread; the
 * tokenizer must outlive it. A template that cannot be compiled is no fault of opening: the
 * sentence comes with every use. */
#ifndef FLASHMOE_CHAT_CHAT_H
#define FLASHMOE_CHAT_CHAT_H

#include "chat/dialect.h"
#include "jinja/jinja.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct chat;

/* The files beside the weights; each may be NULL. */
struct chat_files {
    const char *template_text; /* chat_template.jinja, which counts most */
    size_t template_bytes;
    const json_t *tokenizer_config;   /* chat_template: a text, or a list of named ones */
    const json_t *template_json;      /* chat_template.json, which counts least */
    const json_t *special_tokens_map;
};

/* `name` stands for the model in messages. */
int chat_open(const char *name, const struct chat_files *files, const struct tokenizer *tok,
              struct chat **out, struct fm_error *err);
void chat_close(struct chat *chat); /* accepts NULL */

/* False: ChatML stands in. */
bool chat_has_template(const struct chat *chat);

/* The dialects that the template shows, or the default ones; NULL-terminated, never empty. */
const struct dialect *const *chat_dialects(const struct chat *chat);

/* `conversation` is an array of messages, or an object with `messages`, `tools`, `documents`,
 * `add_generation_prompt` (otherwise true) and any other variables of the template. Free with
 * jinja_rendering_clear. FM_ERR_UNSUPPORTED when there is no template and the tokenizer has no
 * ChatML tokens; FM_ERR_ARG when it is no conversation. */
int chat_render(const struct chat *chat, const json_t *conversation, int64_t now_s,
                int32_t now_offset_s, struct jinja_rendering *out, struct fm_error *err);

/* Free the ids with mem_free. */
int chat_encode(const struct chat *chat, const struct jinja_rendering *rendering, int32_t **ids,
                size_t *n_ids, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
