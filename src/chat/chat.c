#include "chat/chat.h"

#include <string.h>

#include "base/jdoc.h"
#include "base/mem.h"

static const char chatml[] =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- elif message.content is iterable %}"
    "{%- for part in message.content %}"
    "{%- if part.text is not string %}"
    "{{- raise_exception('only text can be part of a message') }}{%- endif %}"
    "{{- part.text }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/* So many last bytes of a continued message are looked for at the end of its rendering. */
#define CONTINUED_BYTES 64
#define BLANKS " \t\r\n"

/* A template, or the reason why there is none. */
struct compiled {
    struct jinja *jinja;
    struct fm_error why;
    struct dialect_text text; /* valid while the chat is being opened */
};

struct chat {
    const struct tokenizer *tok;
    char *name;
    bool has_template;
    bool has_tool_use;
    struct compiled usual, tool_use;
    json_t *special_tokens;
    const struct dialect *dialects[DIALECTS_MAX + 1];
};

/* ---- opening -------------------------------------------------------------------------------- */

static int compile(struct compiled *c, const char *name, const char *text, size_t bytes,
                   struct fm_error *err)
{
    c->text = (struct dialect_text){text, bytes};
    const int rc = jinja_compile(name, text, bytes, &c->jinja, &c->why);
    return rc == FM_ERR_NOMEM ? err_set(err, rc, "%s", c->why.text) : 0;
}

static int compile_json(struct compiled *c, const char *name, const json_t *text,
                        struct fm_error *err)
{
    return compile(c, name, json_string_value(text), json_string_length(text), err);
}

/* Compiles a list of {name, template}: "default" or the first one, and "tool_use" for tools. */
static int compile_list(struct chat *chat, const json_t *list, struct fm_error *err)
{
    const json_t *usual = NULL, *tool_use = NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (name == NULL || !json_is_string(text))
            continue;
        if (usual == NULL || strcmp(name, "default") == 0)
            usual = text;
        if (strcmp(name, "tool_use") == 0)
            tool_use = text;
    }
    int rc = 0;
    chat->has_template = usual != NULL;
    chat->has_tool_use = tool_use != NULL;
    if (usual != NULL)
        rc = compile_json(&chat->usual, "chat template", usual, err);
    if (rc == 0 && tool_use != NULL)
        rc = compile_json(&chat->tool_use, "chat template 'tool_use'", tool_use, err);
    return rc;
}

static int compile_all(struct chat *chat, const struct chat_files *files, struct fm_error *err)
{
    const json_t *given = json_object_get(files->tokenizer_config, "chat_template");
    if (!json_is_string(given) && !json_is_array(given))
        given = json_object_get(files->template_json, "chat_template");
    int rc = 0;
    if (files->template_text != NULL) {
        chat->has_template = true;
        rc = compile(&chat->usual, "chat template", files->template_text, files->template_bytes,
                     err);
    } else if (json_is_string(given)) {
        chat->has_template = true;
        rc = compile_json(&chat->usual, "chat template", given, err);
    } else if (json_is_array(given)) {
        rc = compile_list(chat, given, err);
    }
    int32_t id;
    if (rc == 0 && !chat->has_template && tokenizer_find(chat->tok, "<|im_start|>", &id) &&
        tokenizer_find(chat->tok, "<|im_end|>", &id))
        rc = compile(&chat->usual, "ChatML", chatml, sizeof chatml - 1, err);
    return rc;
}

/* Returns the text of a token, which is a string or an object with `content`. */
static const json_t *token_text(const json_t *from, const char *name)
{
    const json_t *token = json_object_get(from, name);
    token = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(token) ? token : NULL;
}

static json_t *find_special_tokens(const struct chat_files *files)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *found = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *token = token_text(files->tokenizer_config, names[i]);
        if (token == NULL && json_object_get(files->tokenizer_config, names[i]) == NULL)
            token = token_text(files->special_tokens_map, names[i]);
        if (token != NULL)
            (void)json_object_set(found, names[i], (json_t *)token);
    }
    return found;
}

int chat_open(const char *name, const struct chat_files *files, const struct tokenizer *tok,
              struct chat **out, struct fm_error *err)
{
    *out = NULL;
    struct chat *chat = mem_new(1, sizeof *chat, "a chat form", err);
    if (chat == NULL)
        return FM_ERR_NOMEM;
    chat->tok = tok;
    chat->name = mem_strdup(name, err);
    chat->special_tokens = find_special_tokens(files);
    int rc = chat->name == NULL ? FM_ERR_NOMEM : 0;
    if (rc == 0 && chat->special_tokens == NULL)
        rc = err_set(err, FM_ERR_NOMEM, "no memory for the special tokens");
    if (rc == 0)
        rc = compile_all(chat, files, err);
    const struct dialect_text templates[] = {chat->usual.text, chat->tool_use.text};
    dialect_choose(templates, 2, chat->dialects);
    chat->usual.text = chat->tool_use.text = (struct dialect_text){NULL, 0};
    if (rc != 0) {
        chat_close(chat);
        return rc;
    }
    *out = chat;
    return 0;
}

void chat_close(struct chat *chat)
{
    if (chat == NULL)
        return;
    jinja_free(chat->usual.jinja);
    jinja_free(chat->tool_use.jinja);
    json_decref(chat->special_tokens);
    mem_free(chat->name);
    mem_free(chat);
}

bool chat_has_template(const struct chat *chat)
{
    return chat->has_template;
}

const struct dialect *const *chat_dialects(const struct chat *chat)
{
    return chat->dialects;
}

/* ---- use ------------------------------------------------------------------------------------ */

static int check_messages(const json_t *messages, struct fm_error *err)
{
    if (!json_is_array(messages))
        return err_set(err, FM_ERR_ARG, "a conversation is an array of messages, or an object "
                                        "with 'messages'");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_object(json_array_get(messages, i)))
            return err_set(err, FM_ERR_ARG, "message %zu of the conversation is not an object", i);
    return 0;
}

/* Builds the variables that transformers passes. */
static json_t *variables_of(const json_t *conversation, bool is_continued)
{
    json_t *variables = json_pack("{s:n, s:n, s:b}", "tools", "documents",
                                  "add_generation_prompt", 1);
    if (variables == NULL)
        return NULL;
    int rc = json_is_object(conversation)
                 ? json_object_update(variables, (json_t *)conversation)
                 : json_object_set(variables, "messages", (json_t *)conversation);
    if (rc == 0 && is_continued)
        rc = json_object_set_new(variables, "add_generation_prompt", json_false());
    if (rc == 0)
        return variables;
    json_decref(variables);
    return NULL;
}

static size_t trimmed_bytes(const char *text, size_t bytes)
{
    while (bytes > 0 && strchr(BLANKS, text[bytes - 1]) != NULL)
        bytes--;
    return bytes;
}

/* Returns the text of the message that an answer continues, or NULL with an error. */
static const json_t *continued_text(const json_t *messages, struct fm_error *err)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *text = json_object_get(last, "content");
    const bool is_good = role != NULL && strcmp(role, "assistant") == 0 && json_is_string(text) &&
                         json_array_size(json_object_get(last, "tool_calls")) == 0 &&
                         trimmed_bytes(json_string_value(text), json_string_length(text)) > 0;
    if (is_good)
        return text;
    (void)err_set(err, FM_ERR_ARG, "only a last message of the assistant with text and without "
                  "tool calls can be continued");
    return NULL;
}

/* Ends a rendering with the last byte that the assistant wrote: what follows would end its turn. A
 * template may trim that text. */
static int cut_at_answer(struct jinja_rendering *r, const json_t *text, struct fm_error *err)
{
    size_t n_kept = r->bytes;
    while (n_kept > 0 && r->origins[n_kept - 1] != JINJA_ANSWER)
        n_kept--;
    const size_t n_shown = trimmed_bytes(r->text, n_kept);
    const char *begin = json_string_value(text) + strspn(json_string_value(text), BLANKS);
    const size_t n_text = trimmed_bytes(begin, strlen(begin));
    const size_t n_same = n_text < n_shown ? n_text : n_shown;
    const size_t n = n_same < CONTINUED_BYTES ? n_same : CONTINUED_BYTES;
    if (n == 0 || memcmp(r->text + n_shown - n, begin + n_text - n, n) != 0)
        return err_set(err, FM_ERR_ARG, "the last message cannot be continued: the chat template "
                       "does not write it at the end as it is");
    r->text[n_kept] = '\0';
    r->bytes = n_kept;
    return 0;
}

int chat_render(const struct chat *chat, const json_t *conversation, int64_t now_s,
                int32_t now_offset_s, struct jinja_rendering *out, struct fm_error *err)
{
    *out = (struct jinja_rendering){0};
    const json_t *messages = json_is_object(conversation)
                                 ? json_object_get(conversation, "messages") : conversation;
    const json_t *tools = json_object_get(conversation, "tools");
    const bool has_tools = json_array_size(tools) > 0;
    const struct compiled *c = has_tools && chat->has_tool_use ? &chat->tool_use : &chat->usual;
    const bool is_continued =
        json_is_true(json_object_get(conversation, "continue_final_message"));
    int rc = check_messages(messages, err);
    const json_t *text = rc == 0 && is_continued ? continued_text(messages, err) : NULL;
    if (rc != 0 || (is_continued && text == NULL))
        return rc != 0 ? rc : FM_ERR_ARG;
    if (c->jinja == NULL && c->why.code == 0)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' has no chat template and no <|im_start|> and <|im_end|> tokens: not "
                       "a chat model", chat->name);
    if (c->jinja == NULL)
        return err_set(err, c->why.code, "%s: %s", chat->name, c->why.text);
    json_t *variables = variables_of(conversation, is_continued);
    if (variables == NULL)
        return err_set(err, FM_ERR_NOMEM, "no memory for a conversation");
    const struct jinja_input input = {.variables = variables, .trusted = chat->special_tokens,
                                      .now_s = now_s, .now_offset_s = now_offset_s};
    rc = jinja_render(c->jinja, &input, out, err);
    if (rc == 0 && is_continued) {
        rc = cut_at_answer(out, text, err);
        if (rc != 0)
            jinja_rendering_clear(out);
    }
    json_decref(variables);
    return rc;
}

int chat_encode(const struct chat *chat, const struct jinja_rendering *rendering, int32_t **ids,
                size_t *n_ids, struct fm_error *err)
{
    static const uint8_t marks_of[] = {[JINJA_TEMPLATE] = TOKENIZER_ALL,
                                       [JINJA_DATA] = TOKENIZER_NONE,
                                       [JINJA_ANSWER] = TOKENIZER_ORDINARY};
    *ids = NULL;
    *n_ids = 0;
    uint8_t *marks = mem_new(rendering->bytes, 1, "a rendered conversation", err);
    if (marks == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < rendering->bytes; i++)
        marks[i] = marks_of[rendering->origins[i]];
    const int rc = tokenizer_encode_marked(chat->tok, rendering->text, rendering->bytes, marks,
                                           ids, n_ids, err);
    mem_free(marks);
    return rc;
}
