/* OpenAI's chat completions and completions APIs. */
#include <stdio.h>

#include "server/constrain.h"
#include "server/fields.h"
#include "server/infill.h"
#include "server/text_json.h"

/* ---- reading: conversations ----------------------------------------------------------------- */

static int read_calls(const json_t *calls, const char *path, struct turn *turn,
                      struct api_error *error)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *id = json_string_value(json_object_get(call, "id"));
        if (name == NULL)
            rc = api_fail(error, API_BAD, path, "'%stool_calls[%zu].function.name' must be a "
                          "string", path, i);
        else if (turn_add_call(turn, id != NULL ? id : "", name,
                               json_object_get(function, "arguments")) != 0)
            rc = api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
    }
    return rc;
}

static enum content_speaker speaker_of(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL || strcmp(role, "assistant") == 0)
        return SPEAKER_MODEL;
    if (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0)
        return SPEAKER_TOOL;
    return strcmp(role, "user") == 0 ? SPEAKER_USER : SPEAKER_SYSTEM;
}

/* Ollama has images beside the content. */
static int read_images(const struct fields *f, enum content_other other, struct turn *turn)
{
    const json_t *images = fields_find(f, "images");
    if (json_array_size(images) > 0 && other == OTHER_REFUSED)
        return fields_fail(f, "images", "is not supported: this model reads text only");
    for (size_t i = 0; i < json_array_size(images); i++)
        if (!content_name(turn, "image"))
            return api_fail(f->error, API_INTERNAL, NULL, "out of memory for the conversation");
    return 0;
}

/* Functions came before tools. Their calls have no ids, so each gets one that its result, the next
 * message with the role function, shares. */
static int read_function_call(const struct fields *f, const char *id, struct turn *turn)
{
    const json_t *call = fields_object(f, "function_call");
    const char *name = json_string_value(json_object_get(call, "name"));
    if (call == NULL)
        return f->error->fault == API_GOOD ? 0 : -1;
    if (name == NULL)
        return fields_fail(f, "function_call", "must have a name");
    return turn_add_call(turn, id, name, json_object_get(call, "arguments")) == 0
               ? 0 : api_fail(f->error, API_INTERNAL, NULL, "out of memory for the conversation");
}

static bool is_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool",
                                        "function"};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return false;
}

/* The messages of a request, and where in them the last call of a function was. */
struct reading {
    const json_t *messages;
    struct call_texts *texts;
    struct conversation *c;
    char function_id[32];
};

/* Reads who speaks. */
static int read_speaker(struct reading *r, const struct fields *f, size_t i, struct turn *turn)
{
    turn->role = fields_string(f, "role", "");
    if (!is_role(turn->role))
        return fields_fail(f, "role", "must be system, developer, user, assistant or tool");
    turn->call_id = fields_string(f, "tool_call_id", NULL);
    turn->name = fields_string(f, "name", fields_string(f, "tool_name", NULL));
    if (strcmp(turn->role, "function") == 0) {
        turn->role = "tool";
        if (turn->call_id == NULL && r->function_id[0] != '\0')
            turn->call_id = r->function_id;
    }
    if (fields_find(f, "function_call") != NULL)
        (void)snprintf(r->function_id, sizeof r->function_id, "call_%zu", i);
    return 0;
}

static int read_message(struct reading *r, size_t i, struct api_error *error)
{
    static const char *const also[] = {"reasoning", "thinking"}; /* where others put it */
    const json_t *message = json_array_get(r->messages, i);
    const enum content_other other = content_other_at(r->messages, i, speaker_of);
    char path[64], content[80];
    struct turn turn = {0};
    (void)snprintf(path, sizeof path, "messages[%zu].", i);
    (void)snprintf(content, sizeof content, "%scontent", path);
    const struct fields f = {message, error, path};
    if (!json_is_object(message))
        return api_fail(error, API_BAD, path, "'messages[%zu]' must be an object", i);
    if (read_speaker(r, &f, i, &turn) != 0)
        return -1;
    const char *reasoning = fields_string(&f, "reasoning_content", NULL);
    for (size_t k = 0; reasoning == NULL && k < sizeof also / sizeof also[0]; k++)
        reasoning = json_string_value(fields_find(&f, also[k]));
    int rc = content_text(fields_find(&f, "content"), content, other, &turn, error);
    if (rc == 0)
        rc = read_images(&f, other, &turn);
    if (rc == 0 && reasoning != NULL && !text_add_string(&turn.reasoning, reasoning))
        rc = api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
    if (rc == 0)
        rc = read_calls(fields_array(&f, "tool_calls"), path, &turn, error);
    if (rc == 0)
        rc = read_function_call(&f, r->function_id, &turn);
    if (rc == 0 && conversation_add(r->c, &turn, r->texts) != 0)
        rc = api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
    turn_clear(&turn);
    return rc;
}

/* Adds functions[i], or the function of tools[i]. `path` is its name in errors. */
static int add_function(const json_t *function, const char *path, const char *field,
                        struct conversation *c, struct api_error *error)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    if (name == NULL)
        return api_fail(error, API_BAD, field, "'%s.name' must be a string", path);
    if (conversation_add_tool(c, name, json_string_value(json_object_get(function, "description")),
                              json_object_get(function, "parameters")) != 0)
        return api_fail(error, API_INTERNAL, NULL, "out of memory for the tools");
    return conversation_note_strict(c, json_object_get(function, "strict"), path, error);
}

static int read_tools(const struct fields *f, struct conversation *c)
{
    const json_t *tools = fields_array(f, "tools");
    char path[48];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type != NULL && strcmp(type, "function") != 0)
            continue; /* a tool of the provider, which this server does not have */
        (void)snprintf(path, sizeof path, "tools[%zu].function", i);
        rc = add_function(json_object_get(tool, "function"), path, "tools", c, f->error);
    }
    return rc;
}

/* Returns whether calls are asked for in the form that came before 'tools'. */
static bool has_functions(const json_t *body)
{
    return json_array_size(json_object_get(body, "functions")) > 0;
}

/* Reads 'function_call', which chooses among 'functions' as 'tool_choice' does among 'tools'. */
static int choose_function(const struct fields *f, struct conversation *c)
{
    const json_t *functions = fields_array(f, "functions");
    const json_t *choice = fields_find(f, "function_call");
    const char *word = json_string_value(choice);
    const char *name = json_string_value(json_object_get(choice, "name"));
    bool is_known = false;
    if (f->error->fault != API_GOOD)
        return -1;
    if (choice != NULL && name == NULL &&
        (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0)))
        return fields_fail(f, "function_call", "must be auto, none, or an object with a name");
    if (name == NULL)
        return 0;
    for (size_t i = 0; !is_known && i < json_array_size(functions); i++) {
        const json_t *own = json_object_get(json_array_get(functions, i), "name");
        is_known = json_is_string(own) && strcmp(json_string_value(own), name) == 0;
    }
    if (!is_known)
        return fields_fail(f, "function_call", "must name one of 'functions'");
    c->forced_name = name;
    c->is_forced = true;
    return 0;
}

static int read_functions(const struct fields *f, struct conversation *c)
{
    const json_t *functions = fields_array(f, "functions");
    const char *word = json_string_value(fields_find(f, "function_call"));
    char path[48];
    int rc = 0;
    c->is_one_call = true;
    if (json_array_size(fields_find(f, "tools")) > 0)
        return fields_fail(f, "functions", "cannot be combined with 'tools', which replace them");
    if (word != NULL && strcmp(word, "none") == 0)
        return 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(functions); i++) {
        (void)snprintf(path, sizeof path, "functions[%zu]", i);
        rc = add_function(json_array_get(functions, i), path, "functions", c, f->error);
    }
    return rc;
}

static const json_t *last_of(const json_t *messages)
{
    return json_array_get(messages, json_array_size(messages) - 1);
}

/* Returns whether the last message says itself, as some providers have it, that it is continued. */
static bool is_prefix(const json_t *messages)
{
    return json_is_true(json_object_get(last_of(messages), "prefix"));
}

/* Looks at the request: the conversation may have the text of calls in place of calls. */
static int check_continued(const json_t *messages, struct api_error *error)
{
    const json_t *last = last_of(messages);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role != NULL && strcmp(role, "assistant") == 0 &&
        json_array_size(json_object_get(last, "tool_calls")) == 0 &&
        !json_is_object(json_object_get(last, "function_call")))
        return 0;
    return api_fail(error, API_BAD, "messages", "the last of 'messages' is to be continued, so its "
                    "role must be assistant and it must have no tool calls");
}

int openai_conversation(const json_t *body, struct call_texts *texts, struct conversation *c,
                        struct api_error *error)
{
    const struct fields f = {body, error, ""};
    const json_t *messages = fields_array(&f, "messages");
    struct reading r = {.messages = messages, .texts = texts, .c = c};
    int rc = error->fault == API_GOOD ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++)
        rc = read_message(&r, i, error);
    if (rc == 0)
        rc = has_functions(body) ? read_functions(&f, c) : conversation_choose(c, &f, read_tools);
    if (rc == 0)
        rc = choose_function(&f, c);
    c->is_continued = is_prefix(messages);
    if (rc == 0)
        rc = conversation_read_variables(c, &f);
    if (rc == 0 && c->is_continued)
        rc = check_continued(messages, error);
    conversation_set_effort(c, fields_string(&f, "reasoning_effort", NULL));
    return error->fault == API_GOOD ? rc : -1;
}

/* ---- reading: the calls --------------------------------------------------------------------- */

static void read_common(struct api_call *call, const struct fields *f, bool is_completions,
                        struct job_spec *spec)
{
    const json_t *options = fields_object(f, "stream_options");
    const struct fields of = {options, &call->error, "stream_options."};
    call->wants_usage = fields_bool(&of, "include_usage", false);
    call->wants_progress = fields_bool(f, "return_progress", false);
    static const char *const limits[] = {"n_predict", "max_tokens", "max_completion_tokens", NULL};
    if (!api_read_limit(f, limits, is_completions ? 0 : 1, spec) && is_completions)
        spec->n_max = 16; /* the default of this endpoint */
    spec->n_choices = (unsigned)fields_uint(f, "n", 1, JOB_CHOICES_MAX, 1);
    const char *key = fields_string(f, "prompt_cache_key", NULL);
    if (key != NULL)
        spec->key = api_key_of(key);
    api_read_sampling(call, f, spec);
    api_read_stops(call, f, "stop", spec);
    if (call->error.fault == API_GOOD &&
        constrain_format(call, fields_object(f, "response_format"), "response_format") == 0)
        (void)constrain_fields(call, f, is_completions ? CONSTRAIN_OWN_TEXT
                                                       : CONSTRAIN_OWN_TURN |
                                                         CONSTRAIN_OWN_FUNCTIONS);
}

static int read_chat(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    struct conversation c = {0};
    api_new_id("chatcmpl-", call->id);
    read_common(call, &f, false, spec);
    call->has_functions = has_functions(body);
    call->has_logprobs = spec->wants_logprobs = fields_bool(&f, "logprobs", false);
    spec->n_top_logprobs = (unsigned)fields_uint(&f, "top_logprobs", 0, FM_TOP_LOGPROBS_MAX, 0);
    if (spec->n_top_logprobs > 0 && !spec->wants_logprobs)
        (void)fields_fail(&f, "top_logprobs", "needs 'logprobs' to be true");
    int rc = call->error.fault == API_GOOD
                 ? openai_conversation(body, call->context->texts, &c, &call->error) : -1;
    if (rc == 0)
        rc = conversation_encode(&c, call, spec);
    conversation_clear(&c);
    return rc;
}

static int read_completions(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const json_t *prompt = fields_find(&f, "prompt");
    api_new_id("cmpl-", call->id);
    read_common(call, &f, true, spec);
    call->has_logprobs = spec->wants_logprobs = fields_find(&f, "logprobs") != NULL;
    spec->n_top_logprobs = (unsigned)fields_uint(&f, "logprobs", 0, FM_TOP_LOGPROBS_MAX, 0);
    if (fields_uint(&f, "best_of", 1, JOB_CHOICES_MAX, 1) > spec->n_choices)
        (void)fields_fail(&f, "best_of", "must not be more than 'n'");
    const char *suffix = fields_string(&f, "suffix", "");
    if (suffix[0] != '\0' && !json_is_string(prompt))
        (void)fields_fail(&f, "suffix", "needs 'prompt' to be one text");
    if (fields_bool(&f, "echo", false)) {
        call->echo = json_array();
        spec->wants_prompt_logprobs = spec->wants_logprobs;
        if (spec->wants_logprobs && spec->n_choices > 1)
            (void)fields_fail(&f, "echo", "with 'logprobs' needs 'n' to be 1");
        if (suffix[0] != '\0')
            (void)fields_fail(&f, "echo", "cannot be combined with 'suffix'");
    }
    if (call->error.fault != API_GOOD || constrain_answer(NULL, call, spec) != 0)
        return -1;
    if (suffix[0] == '\0')
        return api_read_prompts(call, prompt, "prompt", spec);
    const struct infill what = {.prefix = prompt, .suffix = fields_find(&f, "suffix"),
                                .field = "suffix"};
    const int rc = infill_add_prompt(call, spec, &what);
    if (rc == 0)
        spec->prompts[0].n_chars = api_count_chars(json_string_value(prompt),
                                                   json_string_length(prompt));
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

static const char *finish_of(const struct api_call *call, enum job_end end)
{
    if (end == JOB_END_CALLS)
        return call->has_functions ? "function_call" : "tool_calls";
    return end == JOB_END_LENGTH ? "length" : "stop";
}

static json_t *usage_json(const struct job_usage *u)
{
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}",
                     "prompt_tokens", (json_int_t)u->n_prompt,
                     "completion_tokens", (json_int_t)u->n_answer,
                     "total_tokens", (json_int_t)(u->n_prompt + u->n_answer),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)u->n_cached,
                     "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)u->n_reasoning);
}

/* Adds what a whole answer took. */
static void add_usage(json_t *object, const struct job_usage *u)
{
    (void)json_object_set_new(object, "usage", usage_json(u));
    (void)json_object_set_new(object, "timings", api_timings_json(u));
}

/* Returns the common fields of every object; takes the reference `choices`. */
static json_t *object_json(const struct api_call *call, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", call->id, "object", object, "created",
                     (json_int_t)call->created_s, "model", call->model, "choices", choices);
}

static json_t *chat_logprobs(unsigned choice, const struct job_logprobs *logprobs)
{
    return logprobs != NULL && logprobs->n > 0
               ? json_pack("{s:o, s:n}", "content", api_logprobs_mark(choice, API_LIST_ENTRIES),
                           "refusal")
               : json_null();
}

/* Takes the reference `delta`. */
static bool chat_chunk(struct api_call *call, unsigned choice, json_t *delta,
                       const struct job_logprobs *logprobs, const char *finish)
{
    json_t *one = json_pack("{s:i, s:o, s:s?}", "index", (int)choice, "delta", delta,
                            "finish_reason", finish);
    if (call->has_logprobs)
        (void)json_object_set_new(one, "logprobs", chat_logprobs(choice, logprobs));
    json_t *chunk = object_json(call, "chat.completion.chunk", json_pack("[o]", one));
    if (call->wants_usage)
        (void)json_object_set_new(chunk, "usage", json_null());
    return call->has_logprobs ? api_frame_logprobs(call, chunk, logprobs)
                              : api_frame(call, NULL, chunk);
}

static json_t *text_delta(const char *name, const struct job_event *event)
{
    return json_pack("{s:o}", name, text_json(event->text, event->text_bytes));
}

static bool write_progress(struct api_call *call, const struct job_event *event)
{
    if (!text_add_format(call->out, ": prompt %llu/%llu\n\n", (unsigned long long)event->n_done,
                         (unsigned long long)event->n_prompt))
        return false;
    if (!call->wants_progress)
        return true;
    json_t *chunk = object_json(call, "chat.completion.chunk", json_array());
    (void)json_object_set_new(chunk, "prompt_progress",
                              json_pack("{s:I, s:I, s:I}", "total", (json_int_t)event->n_prompt,
                                        "cache", (json_int_t)event->n_cached, "processed",
                                        (json_int_t)event->n_done));
    return api_frame(call, NULL, chunk);
}

static bool write_done(struct api_call *call, const char *object)
{
    bool is_good = true;
    if (call->wants_usage) {
        json_t *chunk = object_json(call, object, json_array());
        add_usage(chunk, &call->usage);
        is_good = api_frame(call, NULL, chunk);
    }
    return is_good && text_add_string(call->out, "data: [DONE]\n\n");
}

static bool write_failed(struct api_call *call)
{
    return api_frame(call, NULL, api_error_json(&call->error, API_OPENAI)) &&
           text_add_string(call->out, "data: [DONE]\n\n");
}

/* Returns the beginning of a call, or with `text` a piece of its arguments. */
static json_t *call_delta(const struct api_call *call, const struct job_event *event, json_t *text)
{
    json_t *function = text != NULL
                           ? json_pack("{s:o}", "arguments", text)
                           : json_pack("{s:s, s:s}", "name", event->name, "arguments", "");
    if (call->has_functions)
        return json_pack("{s:o}", "function_call", function);
    if (text != NULL)
        return json_pack("{s:[{s:i, s:o}]}", "tool_calls", "index", (int)event->call, "function",
                         function);
    return json_pack("{s:[{s:i, s:s, s:s, s:o}]}", "tool_calls", "index", (int)event->call, "id",
                     event->id, "type", "function", "function", function);
}

static bool write_chat(struct api_call *call, const struct job_event *event)
{
    const unsigned choice = event->choice;
    switch (event->kind) {
    case JOB_STARTED:
        return chat_chunk(call, choice, json_pack("{s:s, s:s}", "role", "assistant", "content", ""),
                          NULL, NULL);
    case JOB_PROGRESS:
        return write_progress(call, event);
    case JOB_REASONING:
        return chat_chunk(call, choice, text_delta("reasoning_content", event), &event->logprobs,
                          NULL);
    case JOB_CONTENT:
        return chat_chunk(call, choice,
                          event->text_bytes > 0 ? text_delta("content", event) : json_object(),
                          &event->logprobs, NULL);
    case JOB_CALL_BEGIN:
        return chat_chunk(call, choice, call_delta(call, event, NULL), NULL, NULL);
    case JOB_CALL_ARGUMENTS:
        return chat_chunk(call, choice,
                          call_delta(call, event, text_json(event->text, event->text_bytes)), NULL,
                          NULL);
    case JOB_PROMPT:
    case JOB_EMBEDDING:
    case JOB_CALL_END:
        return true;
    case JOB_CHOICE_END:
        return chat_chunk(call, choice, json_object(), &event->logprobs,
                          finish_of(call, event->end));
    case JOB_DONE:
        return write_done(call, "chat.completion.chunk");
    case JOB_FAILED:
        return write_failed(call);
    }
    return true;
}

static json_t *function_json(const struct api_call_made *made)
{
    return json_pack("{s:s, s:o}", "name", made->name, "arguments",
                     api_buffer_json(&made->arguments));
}

static json_t *calls_json(const struct api_choice *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_calls; i++)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:o}", "id", c->calls[i].id, "type", "function",
                            "function", function_json(&c->calls[i])));
    return list;
}

static json_t *whole_chat(const struct api_call *call)
{
    json_t *choices = json_array();
    for (unsigned i = 0; i < call->n_choices; i++) {
        const struct api_choice *c = &call->choices[i];
        const bool is_silent = c->content.n == 0 && c->n_calls > 0;
        json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                                    is_silent ? json_null() : api_buffer_json(&c->content),
                                    "refusal");
        if (c->reasoning.n > 0)
            (void)json_object_set_new(message, "reasoning_content",
                                      api_buffer_json(&c->reasoning));
        if (c->n_calls > 0 && call->has_functions)
            (void)json_object_set_new(message, "function_call", function_json(&c->calls[0]));
        else if (c->n_calls > 0)
            (void)json_object_set_new(message, "tool_calls", calls_json(c));
        json_t *one = json_pack("{s:i, s:o, s:o, s:s}", "index", (int)i, "message", message,
                                "logprobs", call->has_logprobs ? chat_logprobs(i, &c->logprobs)
                                                               : json_null(),
                                "finish_reason", finish_of(call, c->end));
        (void)json_array_append_new(choices, one);
    }
    json_t *all = object_json(call, "chat.completion", choices);
    add_usage(all, &call->usage);
    return all;
}

/* Writes the older form: parallel lists. */
static json_t *text_logprobs(const struct api_call *call, unsigned choice,
                             const struct job_logprobs *logprobs)
{
    if (!call->has_logprobs)
        return json_null();
    if (logprobs == NULL || logprobs->n == 0)
        return json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs",
                         "text_offset");
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", api_logprobs_mark(choice, API_LIST_TOKENS),
                     "token_logprobs", api_logprobs_mark(choice, API_LIST_VALUES), "top_logprobs",
                     api_logprobs_mark(choice, API_LIST_TOPS), "text_offset",
                     api_logprobs_mark(choice, API_LIST_OFFSETS));
}

/* Takes the reference `text`. */
static bool text_chunk(struct api_call *call, unsigned choice, json_t *text,
                       const struct job_logprobs *logprobs, const char *finish)
{
    json_t *one = json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)choice, "text", text, "logprobs",
                            text_logprobs(call, choice, logprobs), "finish_reason", finish);
    json_t *chunk = object_json(call, "text_completion", json_pack("[o]", one));
    return call->has_logprobs ? api_frame_logprobs(call, chunk, logprobs)
                              : api_frame(call, NULL, chunk);
}

static bool write_completions(struct api_call *call, const struct job_event *event)
{
    json_t *echo = api_echo_of(call, event->choice);
    switch (event->kind) {
    case JOB_STARTED:
        return echo == NULL || text_chunk(call, event->choice, json_incref(echo), NULL, NULL);
    case JOB_PROMPT:
        return text_chunk(call, event->choice, json_string(""), &event->logprobs, NULL);
    case JOB_PROGRESS:
        return write_progress(call, event);
    case JOB_CONTENT:
        return text_chunk(call, event->choice, text_json(event->text, event->text_bytes),
                          &event->logprobs, NULL);
    case JOB_CHOICE_END:
        return text_chunk(call, event->choice, json_string(""), &event->logprobs,
                          finish_of(call, event->end));
    case JOB_DONE:
        return write_done(call, "text_completion");
    case JOB_FAILED:
        return write_failed(call);
    default:
        return true;
    }
}

static json_t *whole_completions(const struct api_call *call)
{
    json_t *choices = json_array();
    for (unsigned i = 0; i < call->n_choices; i++) {
        const struct api_choice *c = &call->choices[i];
        struct text_buffer text = {0};
        const json_t *echo = api_echo_of(call, i);
        if (echo != NULL)
            (void)text_buffer_add(&text, json_string_value(echo), json_string_length(echo));
        (void)text_buffer_add(&text, text_buffer_text(&c->content), c->content.n);
        json_t *one = json_pack("{s:i, s:o, s:o, s:s}", "index", (int)i, "text",
                                api_buffer_json(&text), "logprobs",
                                text_logprobs(call, i, &c->logprobs), "finish_reason",
                                finish_of(call, c->end));
        (void)json_array_append_new(choices, one);
        text_buffer_clear(&text);
    }
    json_t *all = object_json(call, "text_completion", choices);
    add_usage(all, &call->usage);
    return all;
}

const struct api api_chat = {.path = "/v1/chat/completions", .dialect = API_OPENAI,
                             .read = read_chat, .write = write_chat, .whole = whole_chat,
                             .hello = SSE_HELLO, .ping = ": ping\n\n"};
const struct api api_completions = {.path = "/v1/completions", .dialect = API_OPENAI,
                                    .read = read_completions, .write = write_completions,
                                    .whole = whole_completions, .hello = SSE_HELLO,
                                    .ping = ": ping\n\n"};
