/* Anthropic's messages API. */
#include <stdio.h>

#include "server/constrain.h"
#include "server/fields.h"
#include "server/text_json.h"

#define BILLING "x-anthropic-billing-header:"

/* ---- reading -------------------------------------------------------------------------------- */

static int no_memory(struct api_error *error)
{
    return api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
}

/* Skips a line that changes with every request and would defeat prefix caching. */
static bool is_billing(const json_t *block)
{
    const char *text = json_string_value(json_is_string(block) ? block
                                                               : json_object_get(block, "text"));
    return text != NULL && strncmp(text, BILLING, sizeof BILLING - 1) == 0;
}

static int read_system(const json_t *system, struct call_texts *texts, struct conversation *c,
                       struct api_error *error)
{
    struct turn turn = {.role = "system"};
    int rc = 0;
    if (!json_is_array(system) && !is_billing(system))
        rc = content_text(system, "system", OTHER_REFUSED, &turn, error);
    for (size_t i = 0; rc == 0 && i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i);
        if (is_billing(block))
            continue;
        if (turn.content.n > 0 && !text_add_string(&turn.content, "\n\n"))
            rc = no_memory(error);
        if (rc == 0)
            rc = content_part(block, "system", i, OTHER_REFUSED, &turn, error);
    }
    if (rc == 0 && turn.content.n > 0 && conversation_add(c, &turn, texts) != 0)
        rc = no_memory(error);
    turn_clear(&turn);
    return rc;
}

struct reading {
    struct conversation *c;
    struct call_texts *texts;
    struct api_error *error;
    char path[64];
    enum content_other other; /* what becomes of images in this message */
    struct turn turn;
};

static bool is_result(const json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    return type != NULL && strcmp(type, "tool_result") == 0;
}

/* A message of the user with results of tools is the tools'. */
static enum content_speaker speaker_of(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL || strcmp(role, "user") != 0)
        return role != NULL && strcmp(role, "assistant") == 0 ? SPEAKER_MODEL : SPEAKER_SYSTEM;
    for (size_t i = 0; i < json_array_size(content); i++)
        if (is_result(json_array_get(content, i)))
            return SPEAKER_TOOL;
    return SPEAKER_USER;
}

/* Adds a tool result as its own message, before the user's text. */
static int read_result(struct reading *r, const json_t *block)
{
    struct turn result = {.role = "tool"};
    result.call_id = json_string_value(json_object_get(block, "tool_use_id"));
    int rc = content_text(json_object_get(block, "content"), r->path, OTHER_NAMED, &result,
                          r->error);
    if (rc == 0 && conversation_add(r->c, &result, r->texts) != 0)
        rc = no_memory(r->error);
    turn_clear(&result);
    return rc;
}

static int read_block(struct reading *r, const json_t *block, size_t i)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const char *id = json_string_value(json_object_get(block, "id"));
    const char *name = json_string_value(json_object_get(block, "name"));
    if (type == NULL)
        return api_fail(r->error, API_BAD, r->path, "'%s' has a block without a type", r->path);
    if (is_result(block))
        return read_result(r, block);
    if (strcmp(type, "redacted_thinking") == 0)
        return 0;
    if (strcmp(type, "thinking") == 0) {
        const char *text = json_string_value(json_object_get(block, "thinking"));
        return text == NULL || text_add_string(&r->turn.reasoning, text) ? 0 : no_memory(r->error);
    }
    if (strcmp(type, "tool_use") == 0) {
        if (name == NULL)
            return api_fail(r->error, API_BAD, r->path, "'%s' has a tool_use without a name",
                            r->path);
        return turn_add_call(&r->turn, id != NULL ? id : "", name,
                             json_object_get(block, "input")) == 0 ? 0 : no_memory(r->error);
    }
    return content_part(block, r->path, i, r->other, &r->turn, r->error);
}

static int read_message(const json_t *messages, size_t i, struct call_texts *texts,
                        struct conversation *c, struct api_error *error)
{
    struct reading r = {.c = c, .texts = texts, .error = error,
                        .other = content_other_at(messages, i, speaker_of)};
    const json_t *message = json_array_get(messages, i);
    const json_t *content = json_object_get(message, "content");
    const char *role = json_string_value(json_object_get(message, "role"));
    (void)snprintf(r.path, sizeof r.path, "messages[%zu].content", i);
    if (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
                         strcmp(role, "system") != 0))
        return api_fail(error, API_BAD, "messages", "'messages[%zu].role' must be user, assistant "
                        "or system", i);
    r.turn.role = role;
    int rc = 0;
    size_t n_results = 0;
    if (!json_is_array(content))
        rc = content_text(content, r.path, r.other, &r.turn, error);
    for (size_t k = 0; rc == 0 && k < json_array_size(content); k++) {
        const json_t *block = json_array_get(content, k);
        n_results += is_result(block);
        rc = read_block(&r, block, k);
    }
    const bool is_empty = r.turn.content.n == 0 && r.turn.calls == NULL && n_results > 0;
    if (rc == 0 && !is_empty && conversation_add(c, &r.turn, texts) != 0)
        rc = no_memory(error);
    turn_clear(&r.turn);
    return rc;
}

static int read_tools(const struct fields *f, struct conversation *c)
{
    char path[40];
    const json_t *tools = fields_array(f, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *name = json_string_value(json_object_get(tool, "name"));
        const json_t *schema = json_object_get(tool, "input_schema");
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (schema == NULL && type != NULL && strcmp(type, "custom") != 0)
            continue; /* a tool of the provider, which this server does not have */
        if (name == NULL)
            return api_fail(f->error, API_BAD, "tools", "'tools[%zu].name' must be a string", i);
        if (conversation_add_tool(c, name, json_string_value(json_object_get(tool, "description")),
                                  schema) != 0)
            return no_memory(f->error);
        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        if (conversation_note_strict(c, json_object_get(tool, "strict"), path, f->error) != 0)
            return -1;
    }
    return 0;
}

static bool is_choice(const char *type)
{
    return strcmp(type, "auto") == 0 || strcmp(type, "any") == 0 || strcmp(type, "tool") == 0 ||
           strcmp(type, "none") == 0;
}

int anthropic_conversation(const json_t *body, struct call_texts *texts, struct conversation *c,
                           struct api_error *error)
{
    const struct fields f = {body, error, ""};
    const json_t *messages = fields_array(&f, "messages");
    const json_t *choose = fields_object(&f, "tool_choice");
    const struct fields of = {choose, error, "tool_choice."};
    const char *choice = fields_string(&of, "type", choose != NULL ? "" : NULL);
    const char *thinking = json_string_value(json_object_get(fields_object(&f, "thinking"),
                                                             "type"));
    const json_t *config = fields_object(&f, "output_config");
    int rc = error->fault == API_GOOD ? 0 : -1;
    if (rc == 0)
        rc = read_system(fields_find(&f, "system"), texts, c, error);
    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++)
        rc = read_message(messages, i, texts, c, error);
    if (rc == 0 && choice != NULL && !is_choice(choice))
        rc = fields_fail(&of, "type", "must be auto, any, tool or none");
    c->is_one_call = fields_bool(&of, "disable_parallel_tool_use", false);
    c->is_forced = choice != NULL && (strcmp(choice, "any") == 0 || strcmp(choice, "tool") == 0);
    if (c->is_forced && strcmp(choice, "tool") == 0)
        c->forced_name = fields_string(&of, "name", "");
    if (rc == 0 && (choice == NULL || strcmp(choice, "none") != 0))
        rc = read_tools(&f, c);
    c->is_continued = !c->is_forced && conversation_is_prefill(messages);
    if (rc == 0)
        rc = conversation_read_variables(c, &f);
    conversation_set_effort(c, json_string_value(json_object_get(config, "effort")));
    if (thinking != NULL && strcmp(thinking, "adaptive") != 0)
        c->thinks = strcmp(thinking, "disabled") != 0 ? THINKS : THINKS_NOT;
    return error->fault == API_GOOD ? rc : -1;
}

/* Reads the schema of the answer, also from the field of older clients. */
static int read_format(struct api_call *call, const struct fields *f)
{
    const json_t *config = fields_object(f, "output_config");
    const struct fields of = {config, &call->error, "output_config."};
    const json_t *format = fields_object(&of, "format"), *older = fields_object(f, "output_format");
    if (call->error.fault != API_GOOD)
        return -1;
    int rc = constrain_format(call, format, "output_config.format");
    if (rc == 0)
        rc = constrain_format(call, older, "output_format");
    return rc == 0 ? constrain_fields(call, f, CONSTRAIN_OWN_TURN) : rc;
}

static int read_messages(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const char *user = json_string_value(json_object_get(fields_object(&f, "metadata"),
                                                         "user_id"));
    struct conversation c = {0};
    api_new_id("msg_", call->id);
    if (fields_find(&f, "max_tokens") == NULL)
        (void)fields_fail(&f, "max_tokens", "must be given");
    static const char *const limits[] = {"max_tokens", NULL};
    (void)api_read_limit(&f, limits, 1, spec);
    if (user != NULL)
        spec->key = api_key_of(user);
    api_read_sampling(call, &f, spec);
    api_read_stops(call, &f, "stop_sequences", spec);
    if (call->error.fault == API_GOOD)
        (void)read_format(call, &f);
    int rc = call->error.fault == API_GOOD
                 ? anthropic_conversation(body, call->context->texts, &c, &call->error) : -1;
    if (rc == 0)
        rc = conversation_encode(&c, call, spec);
    conversation_clear(&c);
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

static const char *reason_of(enum job_end end)
{
    static const char *const names[] = {[JOB_END_STOP] = "end_turn",
                                        [JOB_END_STRING] = "stop_sequence",
                                        [JOB_END_LENGTH] = "max_tokens",
                                        [JOB_END_CALLS] = "tool_use"};
    return names[end];
}

static json_t *stop_json(const struct api_call *call, enum job_end end, unsigned stop)
{
    return end == JOB_END_STRING ? text_json(call->stops[stop], strlen(call->stops[stop]))
                                 : json_null();
}

static json_t *usage_json(const struct job_usage *u)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "input_tokens",
                     (json_int_t)(u->n_prompt - u->n_cached), "cache_creation_input_tokens",
                     (json_int_t)0, "cache_read_input_tokens", (json_int_t)u->n_cached,
                     "output_tokens", (json_int_t)u->n_answer);
}

/* Takes the references `content` and `stop`. */
static json_t *message_json(const struct api_call *call, json_t *content, const char *reason,
                            json_t *stop)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s?, s:o, s:o}", "id", call->id, "type",
                     "message", "role", "assistant", "model", call->model, "content", content,
                     "stop_reason", reason, "stop_sequence", stop, "usage",
                     usage_json(&call->usage));
}

static bool frame(struct api_call *call, const char *type, json_t *value)
{
    json_t *all = json_pack("{s:s}", "type", type);
    const bool is_good = all != NULL && value != NULL && json_object_update(all, value) == 0;
    json_decref(value);
    return api_frame(call, type, all) && is_good;
}

static bool close_block(struct api_call *call)
{
    if (!call->has_block)
        return true;
    call->has_block = false;
    const int index = (int)call->n_blocks - 1;
    if (call->block == JOB_REASONING &&
        !frame(call, "content_block_delta",
               json_pack("{s:i, s:{s:s, s:s}}", "index", index, "delta", "type", "signature_delta",
                         "signature", call->id)))
        return false;
    return frame(call, "content_block_stop", json_pack("{s:i}", "index", index));
}

/* Takes the reference `block`. */
static bool open_block(struct api_call *call, enum job_event_kind kind, json_t *block)
{
    if (!close_block(call)) {
        json_decref(block);
        return false;
    }
    call->has_block = true;
    call->block = kind;
    return frame(call, "content_block_start", json_pack("{s:i, s:o}", "index",
                                                        (int)call->n_blocks++, "content_block",
                                                        block));
}

static bool write_delta(struct api_call *call, const char *type, const char *field,
                        const struct job_event *event)
{
    return frame(call, "content_block_delta",
                 json_pack("{s:i, s:{s:s, s:o}}", "index", (int)call->n_blocks - 1, "delta", "type",
                           type, field, text_json(event->text, event->text_bytes)));
}

static bool write_text(struct api_call *call, const struct job_event *event)
{
    const bool is_open = call->has_block && call->block == event->kind;
    if (event->kind == JOB_REASONING)
        return (is_open || open_block(call, JOB_REASONING,
                                      json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking",
                                                "", "signature", ""))) &&
               write_delta(call, "thinking_delta", "thinking", event);
    return (is_open || open_block(call, JOB_CONTENT,
                                  json_pack("{s:s, s:s}", "type", "text", "text", ""))) &&
           write_delta(call, "text_delta", "text", event);
}

static bool write_end(struct api_call *call, const struct job_event *event)
{
    if (call->n_blocks == 0 &&
        !open_block(call, JOB_CONTENT, json_pack("{s:s, s:s}", "type", "text", "text", "")))
        return false;
    if (!close_block(call))
        return false;
    /* The counts are complete when the job is done, so the reason is sent with them. */
    call->choices[0].end = event->end;
    call->choices[0].stop = event->stop;
    return true;
}

static bool write_done(struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    json_t *delta = json_pack("{s:{s:s, s:o}, s:o}", "delta", "stop_reason", reason_of(c->end),
                              "stop_sequence", stop_json(call, c->end, c->stop), "usage",
                              usage_json(&call->usage));
    return frame(call, "message_delta", delta) && frame(call, "message_stop", json_object());
}

static bool write_started(struct api_call *call)
{
    if (call->has_begun)
        return true;
    call->has_begun = true;
    return frame(call, "message_start",
                 json_pack("{s:o}", "message",
                           message_json(call, json_array(), NULL, json_null()))) &&
           frame(call, "ping", json_object());
}

static bool write_messages(struct api_call *call, const struct job_event *event)
{
    switch (event->kind) {
    case JOB_STARTED:
        return write_started(call);
    case JOB_PROGRESS:
        return text_add_format(call->out, ": prompt %llu/%llu\n\n",
                               (unsigned long long)event->n_done,
                               (unsigned long long)event->n_prompt);
    case JOB_REASONING:
    case JOB_CONTENT:
        return write_text(call, event);
    case JOB_CALL_BEGIN:
        return open_block(call, JOB_CALL_BEGIN,
                          json_pack("{s:s, s:s, s:s, s:{}}", "type", "tool_use", "id", event->id,
                                    "name", event->name, "input"));
    case JOB_CALL_ARGUMENTS:
        return write_delta(call, "input_json_delta", "partial_json", event);
    case JOB_CALL_END:
        return close_block(call);
    case JOB_PROMPT:
    case JOB_EMBEDDING:
        return true;
    case JOB_CHOICE_END:
        return write_end(call, event);
    case JOB_DONE:
        return write_done(call);
    case JOB_FAILED:
        return api_frame(call, "error", api_error_json(&call->error, API_ANTHROPIC));
    }
    return true;
}

static json_t *input_of(const struct api_call_made *made)
{
    json_error_t why;
    json_t *input = json_read(text_buffer_text(&made->arguments), made->arguments.n, &why);
    if (json_is_object(input))
        return input;
    json_decref(input);
    return json_object();
}

static json_t *whole_messages(const struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    json_t *content = json_array();
    if (c->reasoning.n > 0)
        (void)json_array_append_new(content, json_pack("{s:s, s:o, s:s}", "type", "thinking",
                                                       "thinking", api_buffer_json(&c->reasoning),
                                                       "signature", call->id));
    if (c->content.n > 0 || c->n_calls == 0)
        (void)json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                       api_buffer_json(&c->content)));
    for (size_t i = 0; i < c->n_calls; i++)
        (void)json_array_append_new(content,
                                    json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id",
                                              c->calls[i].id, "name", c->calls[i].name, "input",
                                              input_of(&c->calls[i])));
    return message_json(call, content, reason_of(c->end), stop_json(call, c->end, c->stop));
}

const struct api api_messages = {.path = "/v1/messages", .dialect = API_ANTHROPIC,
                                 .read = read_messages, .write = write_messages,
                                 .whole = whole_messages, .hello = SSE_HELLO,
                                 .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
