/* Endpoints that process text without generating any. */
#include "server/conversation.h"
#include "server/fields.h"
#include "server/text_json.h"

static int no_memory(struct api_error *error)
{
    return api_fail(error, API_INTERNAL, NULL, "out of memory for the answer");
}

static int fail_fm(struct api_error *error, int rc, const char *param, const struct fm_error *err)
{
    return api_fail(error, api_fault_of(rc), param, "%s", err->text);
}

static int need_object(const json_t *body, struct api_error *error)
{
    return json_is_object(body) ? 0 : api_fail(error, API_BAD, NULL, "the body must be a JSON "
                                               "object");
}

/* Takes the reference. */
static int answer_with(struct text_buffer *answer, json_t *value, struct api_error *error)
{
    const bool is_good = text_add_json(answer, value);
    json_decref(value);
    return is_good ? 0 : no_memory(error);
}

static bool add_piece(const struct fm_model *model, int32_t id, struct text_buffer *out)
{
    size_t bytes = 0;
    const char *text = fm_token_text(model, id, &bytes);
    json_t *piece = text_json(text, bytes);
    const bool is_good = text_add_format(out, "{\"id\":%d,\"piece\":", (int)id) &&
                         text_add_json(out, piece) && text_add_string(out, "}");
    json_decref(piece);
    return is_good;
}

/* Writes text directly: a megabyte has some hundred thousand tokens, which as JSON values take
 * hundreds of bytes each. */
static bool add_tokens(const struct fm_model *model, const int32_t *ids, size_t n, bool with_pieces,
                       struct text_buffer *out)
{
    bool is_good = text_add_string(out, "{\"tokens\":[");
    for (size_t i = 0; is_good && i < n; i++)
        is_good = (i == 0 || text_add_string(out, ",")) &&
                  (with_pieces ? add_piece(model, ids[i], out)
                               : text_add_format(out, "%d", (int)ids[i]));
    return is_good && text_add_string(out, "]}");
}

int api_tokenize(const struct api_context *context, const json_t *body,
                 struct text_buffer *answer, struct api_error *error)
{
    const struct fields f = {body, error, ""};
    struct fm_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (need_object(body, error) != 0)
        return -1;
    const json_t *content = fields_find(&f, "content");
    const bool with_special = fields_bool(&f, "parse_special", true);
    const bool with_pieces = fields_bool(&f, "with_pieces", false);
    if (!json_is_string(content))
        (void)fields_fail(&f, "content", "must be a string");
    if (error->fault != API_GOOD)
        return -1;
    const int rc = fm_tokenize(context->model, json_string_value(content),
                               json_string_length(content),
                               with_special ? FM_TEXT_WITH_SPECIAL : FM_TEXT_PLAIN, &ids, &n_ids,
                               &err);
    if (rc != 0)
        return fail_fm(error, rc, "content", &err);
    const bool is_good = add_tokens(context->model, ids, n_ids, with_pieces, answer);
    fm_free(ids);
    return is_good ? 0 : no_memory(error);
}

int api_detokenize(const struct api_context *context, const json_t *body,
                   struct text_buffer *answer, struct api_error *error)
{
    const struct fields f = {body, error, ""};
    struct text_buffer text = {0};
    size_t i;
    const json_t *id;
    if (need_object(body, error) != 0)
        return -1;
    const json_t *tokens = fields_array(&f, "tokens");
    if (error->fault == API_GOOD && tokens == NULL)
        (void)fields_fail(&f, "tokens", "must be an array of tokens");
    json_array_foreach(tokens, i, id) {
        size_t bytes = 0;
        const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        const char *piece = value >= 0 && value <= INT32_MAX
                                ? fm_token_text(context->model, (int32_t)value, &bytes) : NULL;
        if (piece == NULL)
            (void)api_fail(error, API_BAD, "tokens", "'tokens[%zu]' is not a token of this model",
                           i);
        else if (!text_buffer_add(&text, piece, bytes))
            (void)no_memory(error);
    }
    if (error->fault == API_GOOD)
        (void)answer_with(answer, json_pack("{s:o}", "content", api_buffer_json(&text)), error);
    text_buffer_clear(&text);
    return error->fault == API_GOOD ? 0 : -1;
}

int api_apply_template(const struct api_context *context, const json_t *body,
                       struct text_buffer *answer, struct api_error *error)
{
    struct conversation c = {0};
    char *text = NULL;
    size_t bytes = 0;
    int rc = need_object(body, error);
    if (rc == 0)
        rc = openai_conversation(body, context->texts, &c, error);
    if (rc == 0)
        rc = conversation_render(&c, context->model, &text, &bytes, error);
    if (rc == 0)
        rc = answer_with(answer, json_pack("{s:o}", "prompt", text_json(text, bytes)), error);
    fm_free(text);
    conversation_clear(&c);
    return rc;
}

int api_count_tokens(const struct api_context *context, const json_t *body,
                     struct text_buffer *answer, struct api_error *error)
{
    struct conversation c = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = need_object(body, error);
    if (rc == 0)
        rc = anthropic_conversation(body, context->texts, &c, error);
    if (rc == 0)
        rc = conversation_ids(&c, context->model, 0, &ids, &n_ids, error);
    if (rc == 0)
        rc = answer_with(answer, json_pack("{s:I}", "input_tokens", (json_int_t)n_ids), error);
    fm_free(ids);
    conversation_clear(&c);
    return rc;
}
