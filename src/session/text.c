/* Text in and out of a model: the public API of src/text and src/chat. */
#include <string.h>

#include "base/mem.h"
#include "base/sized.h"
#include "session/session_internal.h"
#include "chat/chat.h"
#include "text/unicode.h"

static int needs_tokenizer(const struct fm_model *m, struct fm_error *err)
{
    if (m->tokenizer != NULL)
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED, "'%s' has no tokenizer.json: text cannot be tokenized; "
                   "if it has tokenizer.model, transformers' AutoTokenizer writes one: "
                   "from_pretrained(DIR).save_pretrained(DIR)", m->engine.model->source->path);
}

/* Puts the tokenizer's prefix before the ids, unless it is there. */
static int add_prefix(const struct tokenizer *tok, int32_t **ids, size_t *n_ids,
                      struct fm_error *err)
{
    size_t n;
    const int32_t *prefix = tokenizer_prefix(tok, &n);
    if (n == 0 || (*n_ids >= n && memcmp(*ids, prefix, n * sizeof *prefix) == 0))
        return 0;
    int32_t *both = mem_new(n + *n_ids, sizeof *both, "token ids", err);
    if (both != NULL) {
        memcpy(both, prefix, n * sizeof *both);
        if (*n_ids > 0)
            memcpy(both + n, *ids, *n_ids * sizeof *both);
    }
    mem_free(*ids);
    *ids = both;
    *n_ids = both != NULL ? n + *n_ids : 0;
    return both != NULL ? 0 : FM_ERR_NOMEM;
}

int fm_tokenize(const struct fm_model *m, const char *text, size_t text_bytes, int flags,
                int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    *ids = NULL;
    *n_ids = 0;
    if (flags & ~(FM_TEXT_WITH_SPECIAL | FM_TEXT_WITH_PREFIX))
        return err_set(err, FM_ERR_ARG, "the flags of fm_tokenize are %d: expected FM_TEXT_PLAIN "
                       "(%d) or a sum of FM_TEXT_WITH_SPECIAL (%d) and FM_TEXT_WITH_PREFIX (%d)",
                       flags, FM_TEXT_PLAIN, FM_TEXT_WITH_SPECIAL, FM_TEXT_WITH_PREFIX);
    int rc = needs_tokenizer(m, err);
    if (rc == 0)
        rc = tokenizer_encode(m->tokenizer, text, text_bytes, (flags & FM_TEXT_WITH_SPECIAL) != 0,
                              ids, n_ids, err);
    if (rc == 0 && (flags & FM_TEXT_WITH_PREFIX))
        rc = add_prefix(m->tokenizer, ids, n_ids, err);
    return rc;
}

/* ---- conversations -------------------------------------------------------------------------- */

/* Finds the tokens that end an answer in the chat's dialects. */
static void find_stops(struct fm_model *m)
{
    for (const struct dialect *const *d = chat_dialects(m->chat); *d != NULL; d++)
        for (const char *const *text = (*d)->stops; text != NULL && *text != NULL; text++) {
            int32_t id;
            if (m->n_chat_stops < CHAT_STOPS_MAX && tokenizer_find(m->tokenizer, *text, &id) &&
                (uint32_t)id < m->engine.model->shape.vocabulary && !fm_token_is_stop(m, id))
                m->chat_stops[m->n_chat_stops++] = id;
        }
}

int chat_form_open(struct fm_model *m, struct fm_error *err)
{
    const struct source *source = m->engine.model->source;
    struct jdoc config = {0}, json = {0}, map = {0};
    struct chat_files files = {0};
    char label[LIMIT_PATH_BYTES], *text = NULL;
    int rc = source_read_text(source, "chat_template.jinja", LIMIT_CONFIG_JSON_BYTES, &text,
                              &files.template_bytes, label, err);
    if (rc == 0)
        rc = source_read_json(source, "tokenizer_config.json", LIMIT_CONFIG_JSON_BYTES, &config,
                              err);
    if (rc == 0)
        rc = source_read_json(source, "chat_template.json", LIMIT_CONFIG_JSON_BYTES, &json, err);
    if (rc == 0)
        rc = source_read_json(source, "special_tokens_map.json", LIMIT_CONFIG_JSON_BYTES, &map,
                              err);
    if (rc == 0) {
        files.template_text = text;
        files.tokenizer_config = config.root;
        files.template_json = json.root;
        files.special_tokens_map = map.root;
        rc = chat_open(source->path, &files, m->tokenizer, &m->chat, err);
    }
    if (rc == 0)
        find_stops(m);
    jdoc_clear(&config);
    jdoc_clear(&json);
    jdoc_clear(&map);
    mem_free(text);
    return rc;
}

static int take_options(struct fm_chat_options *own, const struct fm_chat_options *given,
                        struct fm_error *err)
{
    return sized_take(own, sizeof *own, given, "fm_chat_options", err);
}

/* Refuses a message that no template could help to tokenize, so that none is blamed for it. */
static int check_messages(const json_t *conversation, struct fm_error *err)
{
    const bool is_list = json_is_array(conversation);
    const json_t *messages = is_list ? conversation : json_object_get(conversation, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const size_t bytes = json_string_length(json_object_get(message, "content"));
        if (bytes > TOKENIZER_TEXT_BYTES)
            return err_set(err, FM_ERR_ARG, "message %zu has %zu bytes, and a text may have at "
                           "most %u; shorten it", i + 1, bytes, TOKENIZER_TEXT_BYTES);
    }
    return 0;
}

static int render(const struct fm_model *m, const json_t *conversation,
                  const struct fm_chat_options *options, struct jinja_rendering *out,
                  struct fm_error *err)
{
    int rc = needs_tokenizer(m, err);
    if (rc == 0)
        rc = check_messages(conversation, err);
    return rc != 0 ? rc : chat_render(m->chat, conversation, options->now_s,
                                      options->now_offset_s, out, err);
}

/* Encodes a rendered conversation, unless its length alone shows that it has too many tokens. */
static int encode(const struct fm_model *m, const struct jinja_rendering *rendering,
                  const struct fm_chat_options *options, int32_t **ids, size_t *n_ids,
                  struct fm_error *err)
{
    const size_t n_min = rendering->bytes / tokenizer_max_token_bytes(m->tokenizer);
    if (options->max_tokens == 0 || n_min <= options->max_tokens)
        return chat_encode(m->chat, rendering, ids, n_ids, err);
    *n_ids = n_min;
    return err_set(err, FM_ERR_ARG, "the conversation has at least %zu tokens, the maximum is "
                   "%zu", n_min, options->max_tokens);
}

/* Renders a conversation given as JSON text. */
static int render_text(const struct fm_model *m, const char *conversation, size_t bytes,
                       const struct fm_chat_options *options, struct jinja_rendering *out,
                       struct fm_error *err)
{
    json_error_t why;
    *out = (struct jinja_rendering){0};
    json_t *json = json_loadb(conversation, bytes, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL)
        return err_set(err, FM_ERR_ARG, "the conversation is not JSON: line %d: %s", why.line,
                       why.text);
    const int rc = render(m, json, options, out, err);
    json_decref(json);
    return rc;
}

int fm_chat_render(const struct fm_model *m, const char *conversation, size_t bytes,
                   const struct fm_chat_options *options, char **text, size_t *text_bytes,
                   struct fm_error *err)
{
    struct fm_chat_options own;
    struct jinja_rendering rendering;
    *text = NULL;
    *text_bytes = 0;
    int rc = take_options(&own, options, err);
    if (rc == 0)
        rc = render_text(m, conversation, bytes, &own, &rendering, err);
    if (rc != 0)
        return rc;
    *text = rendering.text;
    *text_bytes = rendering.bytes;
    rendering.text = NULL;
    jinja_rendering_clear(&rendering);
    return 0;
}

int fm_chat_tokenize(const struct fm_model *m, const char *conversation, size_t bytes,
                     const struct fm_chat_options *options, int32_t **ids, size_t *n_ids,
                     struct fm_error *err)
{
    struct fm_chat_options own;
    struct jinja_rendering rendering = {0};
    *ids = NULL;
    *n_ids = 0;
    int rc = take_options(&own, options, err);
    if (rc == 0)
        rc = render_text(m, conversation, bytes, &own, &rendering, err);
    if (rc == 0)
        rc = encode(m, &rendering, &own, ids, n_ids, err);
    jinja_rendering_clear(&rendering);
    return rc;
}

/* Appends a message. Replaces invalid UTF-8 by U+FFFD. */
static int add_message(json_t *messages, const char *role, const char *text, size_t bytes,
                       struct fm_error *err)
{
    const size_t n_bad = utf8_count_bad((const uint8_t *)text, bytes);
    uint8_t *valid = mem_new(bytes + 2 * n_bad + 1, 1, "a message", err);
    if (valid == NULL)
        return FM_ERR_NOMEM;
    const size_t n = utf8_repair((const uint8_t *)text, bytes, valid, NULL);
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", (char *)valid, n);
    const int rc = json_array_append_new(messages, message) == 0
                       ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory: cannot create a message");
    mem_free(valid);
    return rc;
}

int fm_chat_tokenize_turn(const struct fm_model *m, const char *system, const char *user,
                          size_t user_bytes, const struct fm_chat_options *options, int32_t **ids,
                          size_t *n_ids, struct fm_error *err)
{
    struct fm_chat_options own;
    struct jinja_rendering rendering = {0};
    *ids = NULL;
    *n_ids = 0;
    int rc = take_options(&own, options, err);
    json_t *messages = json_array();
    if (rc == 0 && messages == NULL)
        rc = err_set(err, FM_ERR_NOMEM, "out of memory: cannot create a message");
    if (rc == 0 && system != NULL)
        rc = add_message(messages, "system", system, strlen(system), err);
    if (rc == 0)
        rc = add_message(messages, "user", user, user_bytes, err);
    if (rc == 0)
        rc = render(m, messages, &own, &rendering, err);
    if (rc == 0)
        rc = encode(m, &rendering, &own, ids, n_ids, err);
    jinja_rendering_clear(&rendering);
    json_decref(messages);
    return rc;
}

bool fm_token_is_special(const struct fm_model *m, int32_t id)
{
    return m->tokenizer != NULL && tokenizer_is_special(m->tokenizer, id);
}

const char *fm_token_text(const struct fm_model *m, int32_t id, size_t *text_bytes)
{
    *text_bytes = 0;
    return m->tokenizer != NULL ? tokenizer_piece(m->tokenizer, id, text_bytes) : NULL;
}

bool fm_token_is_stop(const struct fm_model *m, int32_t id)
{
    for (unsigned i = 0; i < m->n_chat_stops; i++)
        if (m->chat_stops[i] == id)
            return true;
    return model_is_stop_token(m->engine.model, id);
}

struct fm_decoder {
    struct token_decoder inner;
};

int fm_decoder_open(const struct fm_model *m, struct fm_decoder **out, struct fm_error *err)
{
    *out = NULL;
    int rc = needs_tokenizer(m, err);
    if (rc != 0)
        return rc;
    struct fm_decoder *decoder = mem_new(1, sizeof *decoder, "the decoder", err);
    if (decoder == NULL)
        return FM_ERR_NOMEM;
    rc = token_decoder_init(&decoder->inner, m->tokenizer, err);
    if (rc != 0) {
        mem_free(decoder);
        return rc;
    }
    *out = decoder;
    return 0;
}

void decoder_continue(struct fm_decoder *decoder)
{
    token_decoder_continue(&decoder->inner);
}

void fm_decoder_close(struct fm_decoder *decoder)
{
    if (decoder == NULL)
        return;
    token_decoder_clear(&decoder->inner);
    mem_free(decoder);
}

int fm_decoder_push(struct fm_decoder *decoder, int32_t id, const char **text, size_t *text_bytes,
                    struct fm_error *err)
{
    return token_decoder_push(&decoder->inner, id, text, text_bytes, err);
}

void fm_decoder_finish(struct fm_decoder *decoder, const char **text, size_t *text_bytes)
{
    token_decoder_finish(&decoder->inner, text, text_bytes);
}
