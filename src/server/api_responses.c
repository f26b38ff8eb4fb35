/* OpenAI's responses API, stateless: every request contains its whole conversation. */
#include <stdio.h>

#include "server/constrain.h"
#include "server/fields.h"
#include "server/text_json.h"

/* ---- reading -------------------------------------------------------------------------------- */

static int no_memory(struct api_error *error)
{
    return api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
}

/* An assistant turn arrives as several items: reasoning, message, calls. */
struct reading {
    struct conversation *c;
    struct call_texts *texts;
    struct api_error *error;
    struct turn turn; /* the assistant turn in progress; role NULL: none */
    char path[64];
    enum content_other other; /* what becomes of images in this item */
};

static bool is_output(const char *type)
{
    return strcmp(type, "function_call_output") == 0 ||
           strcmp(type, "custom_tool_call_output") == 0;
}

static enum content_speaker speaker_of(const json_t *item)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    if (type != NULL && is_output(type))
        return SPEAKER_TOOL;
    if (role == NULL || strcmp(role, "assistant") == 0)
        return SPEAKER_MODEL;
    return strcmp(role, "user") == 0 ? SPEAKER_USER : SPEAKER_SYSTEM;
}

static int end_turn(struct reading *r)
{
    if (r->turn.role == NULL)
        return 0;
    return conversation_add(r->c, &r->turn, r->texts) == 0 ? 0 : no_memory(r->error);
}

static int read_message(struct reading *r, const json_t *item)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    const json_t *content = json_object_get(item, "content");
    struct turn turn = {.role = role};
    char path[80];
    (void)snprintf(path, sizeof path, "%s.content", r->path);
    if (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
                         strcmp(role, "system") != 0 && strcmp(role, "developer") != 0))
        return api_fail(r->error, API_BAD, r->path, "'%s.role' must be user, assistant, system or "
                        "developer", r->path);
    if (strcmp(role, "assistant") == 0) {
        if (r->turn.role != NULL && r->turn.calls != NULL && end_turn(r) != 0)
            return -1;
        r->turn.role = "assistant";
        return content_text(content, path, r->other, &r->turn, r->error);
    }
    int rc = end_turn(r);
    if (rc == 0)
        rc = content_text(content, path, r->other, &turn, r->error);
    if (rc == 0 && conversation_add(r->c, &turn, r->texts) != 0)
        rc = no_memory(r->error);
    turn_clear(&turn);
    return rc;
}

static int read_reasoning(struct reading *r, const json_t *item)
{
    const json_t *parts = json_object_get(item, "content"), *part;
    size_t i;
    if (json_array_size(parts) == 0)
        parts = json_object_get(item, "summary");
    if (r->turn.role != NULL && end_turn(r) != 0)
        return -1;
    r->turn.role = "assistant";
    json_array_foreach(parts, i, part) {
        const char *text = json_string_value(json_object_get(part, "text"));
        if (text != NULL && !text_add_string(&r->turn.reasoning, text))
            return no_memory(r->error);
    }
    return 0;
}

static int read_output(struct reading *r, const json_t *item)
{
    struct turn turn = {.role = "tool"};
    int rc = end_turn(r);
    turn.call_id = json_string_value(json_object_get(item, "call_id"));
    if (rc == 0)
        rc = content_text(json_object_get(item, "output"), r->path, OTHER_NAMED, &turn, r->error);
    if (rc == 0 && conversation_add(r->c, &turn, r->texts) != 0)
        rc = no_memory(r->error);
    turn_clear(&turn);
    return rc;
}

static int read_item(struct reading *r, const json_t *input, size_t i)
{
    const json_t *item = json_array_get(input, i);
    const char *type = json_string_value(json_object_get(item, "type"));
    r->other = content_other_at(input, i, speaker_of);
    (void)snprintf(r->path, sizeof r->path, "input[%zu]", i);
    if (!json_is_object(item))
        return api_fail(r->error, API_BAD, r->path, "'%s' must be an object", r->path);
    if (type == NULL || strcmp(type, "message") == 0)
        return read_message(r, item);
    if (strcmp(type, "reasoning") == 0)
        return read_reasoning(r, item);
    if (is_output(type))
        return read_output(r, item);
    if (strcmp(type, "function_call") == 0) {
        const char *id = json_string_value(json_object_get(item, "call_id"));
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name == NULL)
            return api_fail(r->error, API_BAD, r->path, "'%s.name' must be a string", r->path);
        r->turn.role = "assistant";
        return turn_add_call(&r->turn, id != NULL ? id : "", name,
                             json_object_get(item, "arguments")) == 0 ? 0 : no_memory(r->error);
    }
    return 0; /* an item of the provider, which this server does not have */
}

static int read_input(struct reading *r, const struct fields *f)
{
    const json_t *input = fields_find(f, "input");
    const char *instructions = fields_string(f, "instructions", "");
    struct turn turn = {.role = "system"};
    int rc = 0;
    if (instructions[0] != '\0' && (!text_add_string(&turn.content, instructions) ||
                                    conversation_add(r->c, &turn, r->texts) != 0))
        rc = no_memory(r->error);
    turn_clear(&turn);
    if (json_is_string(input)) {
        turn.role = "user";
        if (rc == 0)
            rc = content_text(input, "input", OTHER_REFUSED, &turn, r->error);
        if (rc == 0 && conversation_add(r->c, &turn, r->texts) != 0)
            rc = no_memory(r->error);
        turn_clear(&turn);
        return rc;
    }
    if (rc == 0 && !json_is_array(input))
        rc = fields_fail(f, "input", "must be a string or an array of items");
    for (size_t i = 0; rc == 0 && i < json_array_size(input); i++)
        rc = read_item(r, input, i);
    return rc == 0 ? end_turn(r) : rc;
}

/* Reads functions, including those inside a namespace. */
static int read_tools(const json_t *tools, struct conversation *c, struct api_error *error,
                      unsigned depth)
{
    const json_t *tool;
    char path[40];
    size_t i;
    int rc = 0;
    json_array_foreach(tools, i, tool) {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const char *name = json_string_value(json_object_get(tool, "name"));
        (void)snprintf(path, sizeof path, "tools[%zu]", i);
        if (type != NULL && strcmp(type, "namespace") == 0 && depth < 4)
            rc = read_tools(json_object_get(tool, "tools"), c, error, depth + 1);
        else if (type != NULL && strcmp(type, "function") == 0 && name == NULL)
            rc = api_fail(error, API_BAD, "tools", "'tools[%zu].name' must be a string", i);
        else if (type != NULL && strcmp(type, "function") == 0 &&
                 conversation_add_tool(c, name,
                                       json_string_value(json_object_get(tool, "description")),
                                       json_object_get(tool, "parameters")) != 0)
            rc = no_memory(error);
        else if (type != NULL && strcmp(type, "function") == 0)
            rc = conversation_note_strict(c, json_object_get(tool, "strict"), path, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_functions(const struct fields *f, struct conversation *c)
{
    const json_t *tools = fields_array(f, "tools");
    return f->error->fault == API_GOOD ? read_tools(tools, c, f->error, 0) : -1;
}

static void keep_request(struct api_call *call, const struct fields *f,
                         const struct job_spec *spec)
{
    const json_t *instructions = fields_find(f, "instructions"), *tools = fields_find(f, "tools");
    const json_t *metadata = fields_find(f, "metadata");
    call->request = json_pack(
        "{s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "instructions",
        instructions != NULL ? json_incref((json_t *)instructions) : json_null(), "tools",
        tools != NULL ? json_incref((json_t *)tools) : json_array(), "metadata",
        metadata != NULL ? json_incref((json_t *)metadata) : json_object(), "max_output_tokens",
        spec->n_max > 0 ? json_integer((json_int_t)spec->n_max) : json_null(),
        "parallel_tool_calls", !spec->is_one_call, "temperature",
        json_float(spec->sampling.temperature), "top_p", json_float(spec->sampling.top_p));
}

static int read_responses(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    struct conversation c = {0};
    struct reading r = {.c = &c, .texts = call->context->texts, .error = &call->error};
    api_new_id("resp_", call->id);
    if (fields_find(&f, "previous_response_id") != NULL)
        (void)fields_fail(&f, "previous_response_id", "must be null: this server keeps no "
                          "responses; send the whole conversation as 'input'");
    if (fields_bool(&f, "background", false))
        (void)fields_fail(&f, "background", "is not supported");
    static const char *const limits[] = {"max_output_tokens", NULL};
    (void)api_read_limit(&f, limits, 1, spec);
    const char *key = fields_string(&f, "prompt_cache_key", NULL);
    if (key != NULL)
        spec->key = api_key_of(key);
    api_read_sampling(call, &f, spec);
    if (fields_find(&f, "prompt") != NULL)
        (void)fields_fail(&f, "prompt", "is not supported: this server keeps no prompts; send it "
                          "as 'instructions' and 'input'");
    const struct fields text = {fields_object(&f, "text"), &call->error, "text."};
    const json_t *format = fields_object(&text, "format");
    if (call->error.fault == API_GOOD && constrain_format(call, format, "text.format") == 0)
        (void)constrain_fields(call, &f, 0);
    const char *effort = json_string_value(json_object_get(fields_object(&f, "reasoning"),
                                                           "effort"));
    int rc = call->error.fault == API_GOOD ? read_input(&r, &f) : -1;
    if (rc == 0)
        rc = conversation_choose(&c, &f, read_functions);
    if (rc == 0)
        rc = conversation_read_variables(&c, &f);
    conversation_set_effort(&c, effort);
    if (rc == 0)
        rc = conversation_encode(&c, call, spec);
    if (rc == 0)
        keep_request(call, &f, spec);
    turn_clear(&r.turn);
    conversation_clear(&c);
    return rc;
}

/* ---- the object ----------------------------------------------------------------------------- */

static json_t *usage_json(const struct job_usage *u)
{
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)u->n_prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)u->n_cached,
                     "output_tokens", (json_int_t)u->n_answer, "output_tokens_details",
                     "reasoning_tokens", (json_int_t)u->n_reasoning, "total_tokens",
                     (json_int_t)(u->n_prompt + u->n_answer));
}

static void item_id(const struct api_call *call, const char *prefix, unsigned i, char id[64])
{
    (void)snprintf(id, 64, "%s_%s_%u", prefix, call->id + sizeof "resp_" - 1, i);
}

/* The following functions take the reference `text`, which is NULL for a just opened item. */
static json_t *part_json(json_t *text)
{
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text",
                     text != NULL ? text : json_string(""), "annotations", "logprobs");
}

static json_t *thought_json(json_t *text)
{
    return json_pack("{s:s, s:o}", "type", "reasoning_text", "text",
                     text != NULL ? text : json_string(""));
}

static json_t *reasoning_json(const char *id, json_t *text)
{
    json_t *content = text != NULL ? json_pack("[o]", thought_json(text)) : json_array();
    return json_pack("{s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "summary", "content",
                     content);
}

static json_t *message_json(const char *id, json_t *text, bool is_cut)
{
    json_t *content = text != NULL ? json_pack("[o]", part_json(text)) : json_array();
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status",
                     text == NULL ? "in_progress" : is_cut ? "incomplete" : "completed", "role",
                     "assistant", "content", content);
}

static json_t *function_json(const char *id, const struct api_call_made *made, bool is_over)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "function_call", "status",
                     !is_over ? "in_progress" : made->is_broken ? "incomplete" : "completed",
                     "call_id", made->id, "name", made->name, "arguments",
                     is_over ? api_buffer_json(&made->arguments) : json_string(""));
}

static json_t *output_json(const struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    json_t *output = json_array();
    unsigned n = 0;
    char id[64];
    if (c->reasoning.n > 0) {
        item_id(call, "rs", n++, id);
        (void)json_array_append_new(output, reasoning_json(id, api_buffer_json(&c->reasoning)));
    }
    if (c->content.n > 0 || c->n_calls == 0) {
        item_id(call, "msg", n++, id);
        (void)json_array_append_new(output,
                                    message_json(id, api_buffer_json(&c->content),
                                                 c->end == JOB_END_LENGTH && c->n_calls == 0));
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        item_id(call, "fc", n++, id);
        (void)json_array_append_new(output, function_json(id, &c->calls[i], true));
    }
    return output;
}

/* Takes the reference `output`. */
static json_t *response_json(const struct api_call *call, const char *status, json_t *output)
{
    const bool is_over = strcmp(status, "in_progress") != 0;
    const bool is_cut = strcmp(status, "incomplete") == 0;
    json_t *all = json_pack(
        "{s:s, s:s, s:I, s:s, s:s, s:o, s:n, s:o, s:n, s:s, s:s, s:b, s:o}", "id", call->id,
        "object", "response", "created_at", (json_int_t)call->created_s, "status", status, "model",
        call->model, "output", output, "error", "incomplete_details",
        is_cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(),
        "previous_response_id", "tool_choice", "auto", "truncation", "disabled", "store", 0,
        "usage", is_over ? usage_json(&call->usage) : json_null());
    (void)json_object_update_missing(all, call->request);
    return all;
}

static const char *status_of(const struct api_call *call)
{
    return call->choices[0].end == JOB_END_LENGTH ? "incomplete" : "completed";
}

static json_t *whole_responses(const struct api_call *call)
{
    json_t *items = call->items != NULL ? json_incref(call->items) : output_json(call);
    return response_json(call, status_of(call), items);
}

/* ---- the stream ----------------------------------------------------------------------------- */

static bool frame(struct api_call *call, const char *type, json_t *value)
{
    json_t *all = json_pack("{s:s, s:I}", "type", type, "sequence_number",
                            (json_int_t)call->n_events++);
    const bool is_good = all != NULL && value != NULL && json_object_update(all, value) == 0;
    json_decref(value);
    return api_frame(call, type, all) && is_good;
}

static const char *prefix_of(enum job_event_kind kind)
{
    return kind == JOB_REASONING ? "rs" : kind == JOB_CONTENT ? "msg" : "fc";
}

static json_t *place(const struct api_call *call, const char *id)
{
    json_t *value = json_pack("{s:s, s:i}", "item_id", id, "output_index",
                              (int)call->n_blocks - 1);
    if (call->block != JOB_CALL_BEGIN)
        (void)json_object_set_new(value, "content_index", json_integer(0));
    return value;
}

static json_t *with(json_t *value, const char *name, json_t *more)
{
    (void)json_object_set_new(value, name, more);
    return value;
}

/* Returns the text of the open item. */
static json_t *item_text(const struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    const struct text_buffer *all = call->block == JOB_REASONING ? &c->reasoning : &c->content;
    return text_json(text_buffer_text(all) + call->text_at, all->n - call->text_at);
}

/* Returns the open item, completed. */
static bool close_item(struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    char id[64];
    bool is_good;
    json_t *item;
    if (!call->has_block)
        return true;
    call->has_block = false;
    item_id(call, prefix_of(call->block), call->n_blocks - 1, id);
    if (call->block == JOB_REASONING) {
        is_good = frame(call, "response.reasoning_text.done",
                        with(place(call, id), "text", item_text(call))) &&
                  frame(call, "response.content_part.done",
                        with(place(call, id), "part", thought_json(item_text(call))));
        item = reasoning_json(id, item_text(call));
    } else if (call->block == JOB_CONTENT) {
        is_good = frame(call, "response.output_text.done",
                        with(with(place(call, id), "text", item_text(call)), "logprobs",
                             json_array())) &&
                  frame(call, "response.content_part.done",
                        with(place(call, id), "part", part_json(item_text(call))));
        item = message_json(id, item_text(call), c->end == JOB_END_LENGTH);
    } else {
        const struct api_call_made *made = &c->calls[c->n_calls - 1];
        is_good = made->is_broken ||
                  frame(call, "response.function_call_arguments.done",
                        with(with(place(call, id), "arguments",
                                  api_buffer_json(&made->arguments)),
                             "name", json_string(made->name)));
        item = function_json(id, made, true);
    }
    if (call->items == NULL)
        call->items = json_array();
    is_good = is_good && json_array_append(call->items, item) == 0;
    return frame(call, "response.output_item.done",
                 json_pack("{s:i, s:o}", "output_index", (int)call->n_blocks - 1, "item", item)) &&
           is_good;
}

/* `event` is the first of the item and is already collected. */
static bool open_item(struct api_call *call, enum job_event_kind kind,
                      const struct job_event *event)
{
    const struct api_choice *c = &call->choices[0];
    char id[64];
    if (call->has_block && call->block == kind && kind != JOB_CALL_BEGIN)
        return true;
    if (!close_item(call))
        return false;
    call->has_block = true;
    call->block = kind;
    call->text_at = (kind == JOB_REASONING ? c->reasoning.n : c->content.n) - event->text_bytes;
    item_id(call, prefix_of(kind), call->n_blocks++, id);
    json_t *item = kind == JOB_REASONING ? reasoning_json(id, NULL)
                   : kind == JOB_CONTENT ? message_json(id, NULL, false)
                                         : function_json(id, &c->calls[c->n_calls - 1], false);
    if (!frame(call, "response.output_item.added",
               json_pack("{s:i, s:o}", "output_index", (int)call->n_blocks - 1, "item", item)))
        return false;
    if (kind == JOB_CALL_BEGIN)
        return true;
    return frame(call, "response.content_part.added",
                 with(place(call, id), "part",
                      kind == JOB_CONTENT ? part_json(NULL) : thought_json(NULL)));
}

static bool write_delta(struct api_call *call, const char *type, const struct job_event *event)
{
    char id[64];
    item_id(call, prefix_of(call->block), call->n_blocks - 1, id);
    json_t *value = with(place(call, id), "delta", text_json(event->text, event->text_bytes));
    if (call->block == JOB_CONTENT)
        (void)json_object_set_new(value, "logprobs", json_array());
    return frame(call, type, value);
}

static bool write_begin(struct api_call *call)
{
    if (call->has_begun)
        return true;
    call->has_begun = true;
    const char *status = "in_progress";
    return frame(call, "response.created",
                 json_pack("{s:o}", "response", response_json(call, status, json_array()))) &&
           frame(call, "response.in_progress",
                 json_pack("{s:o}", "response", response_json(call, status, json_array())));
}

static bool write_failed(struct api_call *call)
{
    json_t *error = api_error_json(&call->error, API_OPENAI);
    json_t *inner = json_object_get(error, "error");
    json_t *response = response_json(call, "failed", output_json(call));
    (void)json_object_set_new(response, "error",
                              json_pack("{s:s, s:O}", "code", "server_error", "message",
                                        json_object_get(inner, "message")));
    json_decref(error);
    return frame(call, "response.failed", json_pack("{s:o}", "response", response));
}

static bool write_responses(struct api_call *call, const struct job_event *event)
{
    switch (event->kind) {
    case JOB_STARTED:
        return write_begin(call);
    case JOB_PROGRESS:
        return text_add_format(call->out, ": prompt %llu/%llu\n\n",
                               (unsigned long long)event->n_done,
                               (unsigned long long)event->n_prompt);
    case JOB_PROMPT:
    case JOB_EMBEDDING:
        return true;
    case JOB_REASONING:
        return open_item(call, JOB_REASONING, event) &&
               write_delta(call, "response.reasoning_text.delta", event);
    case JOB_CONTENT:
        return open_item(call, JOB_CONTENT, event) &&
               write_delta(call, "response.output_text.delta", event);
    case JOB_CALL_BEGIN:
        return open_item(call, JOB_CALL_BEGIN, event);
    case JOB_CALL_ARGUMENTS:
        return write_delta(call, "response.function_call_arguments.delta", event);
    case JOB_CALL_END:
        return close_item(call);
    case JOB_CHOICE_END:
        return (call->n_blocks > 0 || open_item(call, JOB_CONTENT, event)) && close_item(call);
    case JOB_DONE:
        return frame(call, strcmp(status_of(call), "completed") == 0 ? "response.completed"
                                                                     : "response.incomplete",
                     json_pack("{s:o}", "response", whole_responses(call)));
    case JOB_FAILED:
        return write_begin(call) && write_failed(call);
    }
    return true;
}

const struct api api_responses = {.path = "/v1/responses", .dialect = API_OPENAI,
                                  .collects = API_COLLECTS_ALL, .read = read_responses,
                                  .write = write_responses, .whole = whole_responses,
                                  .hello = SSE_HELLO, .ping = ": ping\n\n"};
