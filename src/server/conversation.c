#include "server/conversation.h"

#include <stdio.h>

#include "base/lease.h"
#include "base/plat.h"
#include "chat/reasoning.h"
#include "server/constrain.h"
#include "server/fields.h"
#include "server/text_json.h"

void turn_clear(struct turn *turn)
{
    text_buffer_clear(&turn->content);
    text_buffer_clear(&turn->reasoning);
    json_decref(turn->calls);
    *turn = (struct turn){0};
}

void conversation_clear(struct conversation *c)
{
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->strict);
    json_decref(c->variables);
    text_buffer_clear(&c->system);
    *c = (struct conversation){0};
}

int conversation_set(struct conversation *c, const char *variable, json_t *value)
{
    if (c->variables == NULL)
        c->variables = json_object();
    return json_object_set_new(c->variables, variable, value);
}

int conversation_read_variables(struct conversation *c, const struct fields *f)
{
    const json_t *given = fields_object(f, "chat_template_kwargs");
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)given, key, value)
        rc |= conversation_set(c, key, json_incref(value));
    if (rc != 0)
        return api_fail(f->error, API_INTERNAL, NULL, "out of memory for the variables");
    c->is_continued = c->is_continued || fields_bool(f, "continue_final_message", false) ||
                      json_is_true(json_object_get(c->variables, "continue_final_message"));
    (void)json_object_del(c->variables, "continue_final_message"); /* it may be absent */
    if (c->is_continued && json_is_true(fields_find(f, "add_generation_prompt")))
        return fields_fail(f, "add_generation_prompt", "must be false where the last message is "
                           "continued");
    return f->error->fault == API_GOOD ? 0 : -1;
}

int conversation_add_tool(struct conversation *c, const char *name, const char *description,
                          const json_t *schema)
{
    schema = json_is_null(schema) ? NULL : schema;
    json_t *function = json_pack("{s:s, s:s, s:o}", "name", name, "description",
                                 description != NULL ? description : "", "parameters",
                                 schema != NULL ? json_deep_copy(schema)
                                                : json_pack("{s:s, s:{}}", "type", "object",
                                                            "properties"));
    if (c->tools == NULL)
        c->tools = json_array();
    return json_array_append_new(c->tools, json_pack("{s:s, s:o}", "type", "function", "function",
                                                     function));
}

/* ---- which tools -------------------------------------------------------------------------- */

/* Returns the name in {name} or in {function: {name}}. */
static const char *function_name(const json_t *from)
{
    const json_t *function = json_object_get(from, "function");
    return json_string_value(json_object_get(json_is_object(function) ? function : from, "name"));
}

/* Removes the tools that are not on the list, in time linear in both lengths. Returns -1 when
 * memory runs out or the lease is over. */
static int keep_allowed(struct conversation *c, const json_t *list)
{
    json_t *names = json_object(), *kept = json_array(), *strict = json_array();
    int rc = names != NULL && kept != NULL && strict != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(list); i++) {
        const char *name = function_name(json_array_get(list, i));
        rc = mem_lease_is_over() ? -1 : 0;
        if (rc == 0 && name != NULL)
            rc = json_object_set_new(names, name, json_true());
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(c->tools); i++) {
        json_t *tool = json_array_get(c->tools, i);
        rc = mem_lease_is_over() ? -1 : 0;
        if (rc != 0 || json_object_get(names, function_name(tool)) == NULL)
            continue;
        rc = json_array_append(kept, tool);
        if (rc == 0)
            rc = json_array_append(strict, json_array_get(c->strict, i));
    }
    json_decref(names);
    json_decref(c->tools);
    c->tools = json_array_size(kept) > 0 ? json_incref(kept) : NULL;
    json_decref(kept);
    json_decref(c->strict);
    c->strict = strict;
    return rc;
}

int conversation_note_strict(struct conversation *c, const json_t *strict, const char *path,
                             struct api_error *error)
{
    char field[16];
    (void)snprintf(field, sizeof field, "%.*s", (int)strcspn(path, "["), path);
    if (strict != NULL && !json_is_null(strict) && !json_is_boolean(strict))
        return api_fail(error, API_BAD, field, "'%s.strict' must be true or false", path);
    if (c->strict == NULL)
        c->strict = json_array();
    return json_array_append_new(c->strict, json_boolean(json_is_true(strict))) == 0
               ? 0 : api_fail(error, API_INTERNAL, NULL, "out of memory for the tools");
}

int conversation_choose(struct conversation *c, const struct fields *f,
                        conversation_tools_fn *read)
{
    const json_t *choice = fields_find(f, "tool_choice"), *allowed = NULL;
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *word = json_is_string(choice) ? json_string_value(choice) : type;
    c->is_one_call = !fields_bool(f, "parallel_tool_calls", true);
    if (json_is_object(choice) && (type == NULL || strcmp(type, "function") == 0)) {
        c->forced_name = function_name(choice);
        word = c->forced_name != NULL ? "required" : "";
    } else if (type != NULL && strcmp(type, "allowed_tools") == 0) {
        const json_t *inner = json_object_get(choice, "allowed_tools");
        inner = json_is_object(inner) ? inner : choice;
        allowed = json_object_get(inner, "tools");
        word = json_is_array(allowed) ? json_string_value(json_object_get(inner, "mode")) : "";
        word = word != NULL ? word : "auto";
    }
    c->is_forced = word != NULL && strcmp(word, "required") == 0;
    if (choice != NULL && (word == NULL || (!c->is_forced && strcmp(word, "auto") != 0 &&
                                            strcmp(word, "none") != 0)))
        return fields_fail(f, "tool_choice", "must be auto, none, required, a function, or "
                           "allowed_tools");
    if (word != NULL && strcmp(word, "none") == 0)
        return 0;
    const int rc = read(f, c);
    if (rc == 0 && allowed != NULL && keep_allowed(c, allowed) != 0)
        return api_fail(f->error, API_INTERNAL, NULL, "out of memory for the tools");
    return rc;
}

/* ---- messages ----------------------------------------------------------------------------- */

/* Parses arguments that are text, since templates iterate over the object. Text that is not an
 * object, as of a truncated call, becomes the only member of one. */
static json_t *arguments_of(const json_t *arguments)
{
    if (!json_is_string(arguments))
        return arguments != NULL && !json_is_null(arguments) ? json_incref((json_t *)arguments)
                                                             : json_object();
    json_error_t why;
    json_t *parsed = json_read(json_string_value(arguments), json_string_length(arguments), &why);
    if (json_is_object(parsed))
        return parsed;
    json_decref(parsed);
    return json_string_length(arguments) == 0 ? json_object()
                                              : json_pack("{s:O}", "arguments", arguments);
}

int turn_add_call(struct turn *turn, const char *id, const char *name, const json_t *arguments)
{
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments_of(arguments));
    if (turn->calls == NULL)
        turn->calls = json_array();
    return json_array_append_new(turn->calls, call);
}

/* Replaces the calls by the model's own text if all are known. */
static void restore_calls(struct turn *turn, struct call_texts *texts)
{
    struct text_buffer all = {0};
    const size_t n = json_array_size(turn->calls);
    bool is_known = n > 0 && texts != NULL;
    for (size_t i = 0; is_known && i < n; i++) {
        size_t bytes = 0;
        const json_t *call = json_array_get(turn->calls, i);
        const json_t *function = json_object_get(call, "function");
        const char *id = json_string_value(json_object_get(call, "id"));
        const char *name = json_string_value(json_object_get(function, "name"));
        char *text = id == NULL || name == NULL
                         ? NULL : call_texts_find(texts, id, name,
                                                  json_object_get(function, "arguments"),
                                                  &bytes);
        is_known = text != NULL && text_buffer_add(&all, text, bytes);
        mem_free(text);
    }
    if (is_known && text_buffer_add(&turn->content, text_buffer_text(&all), all.n)) {
        json_decref(turn->calls);
        turn->calls = NULL;
    }
    text_buffer_clear(&all);
}

/* Merges leading system messages. */
static int join_system(struct conversation *c, const struct turn *turn)
{
    const bool is_good = (!c->has_system || text_buffer_add(&c->system, "\n\n", 2)) &&
                         text_buffer_add(&c->system, text_buffer_text(&turn->content),
                                         turn->content.n);
    c->has_system = true;
    return is_good ? 0 : -1;
}

/* Adds the system message, before the first other message or at the end. */
static int close_system(struct conversation *c)
{
    if (!c->has_system)
        return 0;
    const int rc = json_array_append_new(
        c->messages, json_pack("{s:s, s:o}", "role", "system", "content",
                               api_buffer_json(&c->system)));
    text_buffer_clear(&c->system);
    c->has_system = false;
    return rc;
}

int conversation_add(struct conversation *c, struct turn *turn, struct call_texts *texts)
{
    if (c->messages == NULL)
        c->messages = json_array();
    const char *role = strcmp(turn->role, "developer") == 0 ? "system" : turn->role;
    const bool is_system = strcmp(role, "system") == 0;
    if (is_system && json_array_size(c->messages) == 0) {
        const int rc = join_system(c, turn);
        turn_clear(turn);
        return rc;
    }
    if (close_system(c) != 0) {
        turn_clear(turn);
        return -1;
    }
    if (is_system)
        role = "user";
    restore_calls(turn, texts);
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content",
                                api_buffer_json(&turn->content));
    if (turn->reasoning.n > 0)
        (void)json_object_set_new(message, "reasoning_content",
                                  api_buffer_json(&turn->reasoning));
    if (turn->calls != NULL)
        (void)json_object_set(message, "tool_calls", turn->calls);
    if (turn->call_id != NULL)
        (void)json_object_set_new(message, "tool_call_id", json_string(turn->call_id));
    if (turn->name != NULL)
        (void)json_object_set_new(message, "name", json_string(turn->name));
    const int rc = json_array_append_new(c->messages, message);
    turn_clear(turn);
    return rc;
}

static bool is_blank(const json_t *text)
{
    const char *s = json_string_value(text);
    return s == NULL || s[strspn(s, " \t\r\n")] == '\0';
}

bool conversation_is_prefill(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role"));
    bool has_text = json_is_string(content) && !is_blank(content);
    if (role == NULL || strcmp(role, "assistant") != 0 ||
        json_array_size(json_object_get(last, "tool_calls")) > 0)
        return false;
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(block, "type"));
        if (type != NULL && strcmp(type, "tool_use") == 0)
            return false;
        has_text = has_text || !is_blank(json_object_get(block, "text"));
    }
    return has_text;
}

/* ---- the prompt --------------------------------------------------------------------------- */

static struct fm_chat_options clock_now(void)
{
    return (struct fm_chat_options){.size = sizeof(struct fm_chat_options),
                                    .now_s = plat_wall_ns() / 1000000000};
}

/* Returns the object for the template. */
static bool write_conversation(const struct conversation *c, struct text_buffer *out)
{
    json_t *all = json_object();
    if (json_array_size(c->messages) > 0)
        (void)json_object_set(all, "messages", c->messages);
    if (c->tools != NULL)
        (void)json_object_set(all, "tools", c->tools);
    if (c->is_continued)
        (void)json_object_set_new(all, "continue_final_message", json_true());
    bool is_good = all != NULL && (c->variables == NULL ||
                                   json_object_update_missing(all, c->variables) == 0);
    is_good = is_good && text_add_json(out, all);
    json_decref(all);
    return is_good;
}

static int check(struct conversation *c, const struct fm_model *model, struct api_error *error)
{
    if (close_system(c) != 0 || conversation_fit(c, model) != 0)
        return api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
    return json_array_size(c->messages) > 0
               ? 0 : api_fail(error, API_BAD, "messages", "'messages' must be an array with at "
                              "least one message");
}

/* The template compiled when the model was opened, so a failure is due to the request. */
static int template_fault(int rc, const struct fm_error *err, struct api_error *error)
{
    if (rc != FM_ERR_FORMAT)
        return api_fail(error, api_fault_of(rc), "messages", "%s", err->text);
    return api_fail(error, API_BAD, "messages", "the model's chat template cannot render this "
                    "conversation: %s; send fewer or simpler messages", err->text);
}

/* Counts the content that every template includes. */
static size_t content_bytes(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    const char *text = json_string_value(content);
    size_t begin = 0, end = json_string_length(content);
    if (role == NULL || strcmp(role, "assistant") == 0)
        return 0; /* templates may leave out reasoning in it */
    while (begin < end && strchr(" \t\r\n", text[begin]) != NULL)
        begin++; /* templates may trim it */
    while (end > begin && strchr(" \t\r\n", text[end - 1]) != NULL)
        end--;
    return end - begin;
}

/* Refuses a conversation that certainly has more than max_tokens tokens before rendering it. Every
 * message has a token for its role, and content has one per so many bytes. */
static int check_size(const struct conversation *c, const struct fm_model *model,
                      size_t max_tokens, struct api_error *error)
{
    struct fm_model_info info = {.size = sizeof info};
    const size_t n_messages = json_array_size(c->messages);
    size_t bytes = 0;
    fm_model_info(model, &info);
    if (max_tokens == 0 || info.max_token_bytes == 0)
        return 0;
    for (size_t i = 0; i < n_messages; i++)
        bytes += content_bytes(json_array_get(c->messages, i));
    const size_t n_min = bytes / info.max_token_bytes;
    if (n_messages > max_tokens)
        return api_fail(error, API_CONTEXT, "messages", "prompt is too long: %zu messages > %zu "
                        "tokens maximum, and each needs at least one; send fewer, or raise the "
                        "server's --context", n_messages, max_tokens);
    if (n_min > max_tokens)
        return api_fail(error, API_CONTEXT, "messages", "prompt is too long: at least %zu tokens > "
                        "%zu maximum (%zu bytes, and no token has more than %u); send less, or "
                        "raise the server's --context", n_min, max_tokens, bytes,
                        info.max_token_bytes);
    return 0;
}

int conversation_ids(struct conversation *c, const struct fm_model *model, size_t max_tokens,
                     int32_t **ids, size_t *n_ids, struct api_error *error)
{
    struct fm_error err = {0};
    struct text_buffer text = {0};
    struct fm_chat_options now = clock_now();
    now.max_tokens = max_tokens;
    *ids = NULL;
    *n_ids = 0;
    if (check(c, model, error) != 0 || check_size(c, model, max_tokens, error) != 0)
        return -1;
    int rc = write_conversation(c, &text)
                 ? fm_chat_tokenize(model, text_buffer_text(&text), text.n, &now, ids, n_ids,
                                        &err)
                 : err_set(&err, FM_ERR_NOMEM, "out of memory for the conversation");
    text_buffer_clear(&text);
    if (rc == FM_ERR_FORMAT && conversation_spell_arguments(c))
        return conversation_ids(c, model, max_tokens, ids, n_ids, error);
    if (rc == FM_ERR_ARG && *n_ids > 0)
        return api_fail(error, API_CONTEXT, "messages", "prompt is too long: %s", err.text);
    return rc == 0 ? 0 : template_fault(rc, &err, error);
}

int conversation_render(struct conversation *c, const struct fm_model *model, char **out,
                        size_t *bytes, struct api_error *error)
{
    struct fm_error err = {0};
    struct text_buffer text = {0};
    const struct fm_chat_options now = clock_now();
    *out = NULL;
    if (check(c, model, error) != 0)
        return -1;
    int rc = write_conversation(c, &text)
                 ? fm_chat_render(model, text_buffer_text(&text), text.n, &now, out, bytes, &err)
                 : err_set(&err, FM_ERR_NOMEM, "out of memory for the conversation");
    text_buffer_clear(&text);
    if (rc == FM_ERR_FORMAT && conversation_spell_arguments(c))
        return conversation_render(c, model, out, bytes, error);
    return rc == 0 ? 0 : template_fault(rc, &err, error);
}

/* Returns whether a text of the assistant has begun its reasoning and not ended it. */
static bool is_in_reasoning(const char *text)
{
    text += strspn(text, " \t\r\n");
    for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++)
        if (strncmp(text, r->begin, strlen(r->begin)) == 0)
            return strstr(text, r->end) == NULL;
    return false;
}

static bool prompt_is_in_reasoning(const struct conversation *c, const struct fm_model *model,
                                   const int32_t *ids, size_t n_ids)
{
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *text = json_string_value(json_object_get(last, "content"));
    if (c->is_continued)
        return text != NULL && is_in_reasoning(text);
    return fm_prompt_opens_reasoning(model, ids, n_ids);
}

int conversation_encode(struct conversation *c, struct api_call *call, struct job_spec *spec)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (conversation_ids(c, call->context->model, call->context->n_context - 1, &ids, &n_ids,
                         &call->error) != 0)
        return -1;
    spec->is_chat = true;
    spec->is_thinking = prompt_is_in_reasoning(c, call->context->model, ids, n_ids);
    spec->is_continued = c->is_continued;
    spec->tools = json_incref(c->tools);
    spec->is_one_call = c->is_one_call;
    if ((c->is_forced ? constrain_call(c, call, spec, &ids, &n_ids)
                      : constrain_answer(c, call, spec)) != 0) {
        fm_free(ids);
        return -1;
    }
    return api_add_prompt(call, spec, ids, n_ids, "messages");
}
