/* Ollama's chat and generate APIs. A stream is one JSON object per line. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/plat.h"
#include "server/constrain.h"
#include "server/fields.h"
#include "server/infill.h"
#include "server/text_json.h"

/* ---- reading -------------------------------------------------------------------------------- */

/* Reads 'think': whether to reason, or how much. */
static void read_think(const struct fields *f, struct conversation *c)
{
    const json_t *think = fields_find(f, "think");
    if (json_is_string(think))
        conversation_set_effort(c, json_string_value(think));
    else if (json_is_boolean(think))
        c->thinks = json_is_true(think) ? THINKS : THINKS_NOT;
    else if (think != NULL)
        (void)fields_fail(f, "think", "must be true, false, \"low\", \"medium\" or \"high\"");
}

/* Refuses what would change the answer and cannot be honoured. */
static void check_unsupported(const struct fields *f)
{
    static const struct {
        const char *name, *why;
    } refused[] = {
        {"images", "is not supported: this model reads text only"},
        {"context", "is not supported: send the conversation to /api/chat"},
        {"template", "is not supported: the model's own template is used; 'raw' uses none"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const json_t *value = fields_find(f, refused[i].name);
        if (json_array_size(value) > 0 || json_string_length(value) > 0)
            (void)fields_fail(f, refused[i].name, refused[i].why);
    }
}

/* Reads a duration such as "5m", "1h30m", "-1s" or "0". Returns whether it is one. */
static bool read_duration(const char *text, bool *is_zero)
{
    static const char *const units[] = {"ns", "us", "\xc2\xb5s", "ms", "s", "m", "h"};
    const char *at = text + (text[0] == '-' || text[0] == '+');
    *is_zero = strpbrk(at, "123456789") == NULL;
    if (strcmp(at, "0") == 0)
        return true;
    do {
        const size_t n_whole = strspn(at, "0123456789");
        const bool has_point = at[n_whole] == '.';
        const size_t n_digits =
            n_whole + (has_point ? strspn(at + n_whole + 1, "0123456789") : 0);
        size_t n_unit = 0;
        at += n_digits + has_point;
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
            if (strncmp(at, units[i], strlen(units[i])) == 0 && strlen(units[i]) > n_unit)
                n_unit = strlen(units[i]);
        if (n_digits == 0 || n_unit == 0)
            return false;
        at += n_unit;
    } while (*at != '\0');
    return true;
}

/* Reads 'keep_alive'. Returns whether it asks to unload the model. */
static bool read_keep_alive(const struct fields *f)
{
    const json_t *keep = fields_find(f, "keep_alive");
    bool is_zero = json_is_number(keep) && json_number_value(keep) == 0;
    if (keep != NULL && !json_is_number(keep) &&
        (!json_is_string(keep) || !read_duration(json_string_value(keep), &is_zero)))
        (void)fields_fail(f, "keep_alive", "must be a number of seconds or a duration such as "
                          "\"5m\"");
    return is_zero;
}

static void read_common(struct api_call *call, const struct fields *f, struct job_spec *spec)
{
    static const char *const limits[] = {"num_predict", NULL};
    const struct fields options = {fields_object(f, "options"), &call->error, "options."};
    api_new_id("ollama-", call->id);
    (void)api_read_limit(&options, limits, 0, spec);
    api_read_sampling(call, &options, spec);
    api_read_stops(call, &options, "stop", spec);
    call->has_logprobs = spec->wants_logprobs = fields_bool(f, "logprobs", false);
    spec->n_top_logprobs = (unsigned)fields_uint(f, "top_logprobs", 0, FM_TOP_LOGPROBS_MAX, 0);
    spec->holds_calls = true;
    (void)read_keep_alive(f); /* the model stays loaded */
    check_unsupported(f);
    if (call->error.fault == API_GOOD)
        (void)constrain_value(call, fields_find(f, "format"), "format");
}

/* Without a prompt a request asks to load the model, or with 'keep_alive' 0 to unload it. It is
 * loaded, and stays so. */
static int read_nothing(struct api_call *call, const struct fields *f)
{
    call->idle_reason = read_keep_alive(f) ? "unload" : "load";
    return call->error.fault == API_GOOD ? 0 : -1;
}

static int read_chat(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    struct conversation c = {0};
    const json_t *messages = fields_array(&f, "messages");
    read_common(call, &f, spec);
    if (json_array_size(messages) == 0)
        return read_nothing(call, &f);
    int rc = call->error.fault == API_GOOD
                 ? openai_conversation(body, call->context->texts, &c, &call->error) : -1;
    c.is_continued = c.is_continued || conversation_is_prefill(messages);
    read_think(&f, &c);
    if (rc == 0 && call->error.fault == API_GOOD)
        rc = conversation_encode(&c, call, spec);
    conversation_clear(&c);
    return rc;
}

/* A prompt and its system message as a conversation. */
static int add_turn(struct conversation *c, const char *role, const json_t *text)
{
    struct turn turn = {.role = role};
    if (!text_buffer_add(&turn.content, json_string_value(text), json_string_length(text))) {
        turn_clear(&turn);
        return -1;
    }
    return conversation_add(c, &turn, NULL);
}

static int read_turn(struct api_call *call, const struct fields *f, const json_t *prompt,
                     struct job_spec *spec)
{
    struct conversation c = {0};
    const json_t *system = fields_find(f, "system");
    int rc = 0;
    if (system != NULL && !json_is_string(system))
        return fields_fail(f, "system", "must be a string");
    if (json_string_length(system) > 0)
        rc = add_turn(&c, "system", system);
    if (rc == 0)
        rc = add_turn(&c, "user", prompt);
    if (rc != 0)
        rc = api_fail(&call->error, API_INTERNAL, NULL, "out of memory for the prompt");
    read_think(f, &c);
    if (rc == 0 && call->error.fault == API_GOOD)
        rc = conversation_encode(&c, call, spec);
    conversation_clear(&c);
    return rc;
}

static int read_generate(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const json_t *prompt = fields_find(&f, "prompt"), *suffix = fields_find(&f, "suffix");
    read_common(call, &f, spec);
    if (prompt != NULL && !json_is_string(prompt))
        (void)fields_fail(&f, "prompt", "must be a string");
    const bool is_raw = fields_bool(&f, "raw", false);
    if (suffix != NULL && !json_is_string(suffix))
        (void)fields_fail(&f, "suffix", "must be a string");
    if (call->error.fault != API_GOOD || json_string_length(prompt) == 0)
        return read_nothing(call, &f);
    if (!is_raw && json_string_length(suffix) == 0)
        return read_turn(call, &f, prompt, spec);
    if (constrain_answer(NULL, call, spec) != 0)
        return -1;
    const struct infill what = {.prefix = prompt, .suffix = suffix, .field = "suffix"};
    if (json_string_length(suffix) > 0)
        return infill_add_prompt(call, spec, &what);
    return api_add_text(call, spec, prompt, "prompt");
}

/* ---- writing -------------------------------------------------------------------------------- */

static json_t *now_json(void)
{
    char text[40], whole[64];
    const int64_t now_ns = plat_wall_ns();
    const time_t now_s = (time_t)(now_ns / 1000000000);
    struct tm utc;
    (void)gmtime_r(&now_s, &utc); /* cannot fail before the year 2147485547 */
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(whole, sizeof whole, "%s.%06dZ", text,
                   (int)(now_ns % 1000000000 / 1000));
    return json_string(whole);
}

static bool is_chat(const struct api_call *call)
{
    return call->api == &api_ollama_chat;
}

static json_t *arguments_json(const struct api_call_made *made)
{
    json_error_t why;
    json_t *read = json_read(text_buffer_text(&made->arguments), made->arguments.n, &why);
    if (json_is_object(read))
        return read;
    json_decref(read);
    return json_object();
}

static json_t *calls_json(const struct api_choice *c, size_t first)
{
    json_t *list = json_array();
    for (size_t i = first; i < c->n_calls; i++)
        if (!c->calls[i].is_broken)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:{s:i, s:s, s:o}}", "id", c->calls[i].id, "function",
                                "index", (int)i, "name", c->calls[i].name, "arguments",
                                arguments_json(&c->calls[i])));
    return list;
}

/* Returns an object with the text, reasoning and calls, each of which may be NULL. Takes the
 * references. */
static json_t *object_json(const struct api_call *call, json_t *text, json_t *thinking,
                           json_t *calls, bool is_done)
{
    json_t *all = json_pack("{s:s, s:o}", "model", call->model, "created_at", now_json());
    json_t *inner = is_chat(call) ? json_pack("{s:s}", "role", "assistant") : all;
    (void)json_object_set_new(inner, is_chat(call) ? "content" : "response",
                              text != NULL ? text : json_string(""));
    if (thinking != NULL)
        (void)json_object_set_new(inner, "thinking", thinking);
    if (json_array_size(calls) > 0)
        (void)json_object_set(inner, "tool_calls", calls);
    json_decref(calls);
    if (is_chat(call))
        (void)json_object_set_new(all, "message", inner);
    (void)json_object_set_new(all, "done", json_boolean(is_done));
    return all;
}

static void add_totals(const struct api_call *call, enum job_end end, json_t *all)
{
    const struct job_usage *u = &call->usage;
    json_t *totals = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "done_reason",
        end == JOB_END_LENGTH ? "length" : "stop", "total_duration",
        (json_int_t)(u->queue_ns + u->prefill_ns + u->decode_ns), "load_duration",
        (json_int_t)u->queue_ns, "prompt_eval_count", (json_int_t)u->n_prompt,
        "prompt_eval_duration", (json_int_t)u->prefill_ns, "eval_count", (json_int_t)u->n_answer,
        "eval_duration", (json_int_t)u->decode_ns);
    (void)json_object_update(all, totals);
    json_decref(totals);
}

static bool write_line(struct api_call *call, json_t *line, const struct job_logprobs *logprobs)
{
    if (logprobs == NULL || logprobs->n == 0)
        return api_frame(call, NULL, line);
    (void)json_object_set_new(line, "logprobs", api_logprobs_mark(0, API_LIST_ENTRIES));
    return api_frame_logprobs(call, line, logprobs);
}

static bool write_text(struct api_call *call, const struct job_event *event)
{
    json_t *text = text_json(event->text, event->text_bytes);
    const bool thinks = event->kind == JOB_REASONING;
    return write_line(call, object_json(call, thinks ? NULL : text, thinks ? text : NULL, NULL,
                                        false), &event->logprobs);
}

static bool write_ollama(struct api_call *call, const struct job_event *event)
{
    struct api_choice *c = &call->choices[0];
    switch (event->kind) {
    case JOB_REASONING:
    case JOB_CONTENT:
        return write_text(call, event);
    case JOB_CALL_END:
        return event->is_broken ||
               write_line(call, object_json(call, NULL, NULL, calls_json(c, c->n_calls - 1), false),
                          NULL);
    case JOB_CHOICE_END:
        c->end = event->end;
        return event->logprobs.n == 0 ||
               write_line(call, object_json(call, NULL, NULL, NULL, false), &event->logprobs);
    case JOB_DONE: {
        json_t *last = object_json(call, NULL, NULL, NULL, true);
        add_totals(call, c->end, last);
        return write_line(call, last, NULL);
    }
    case JOB_FAILED:
        return api_frame(call, NULL, api_error_json(&call->error, API_OLLAMA));
    default:
        return true;
    }
}

static json_t *whole_ollama(const struct api_call *call)
{
    const struct api_choice *c = &call->choices[0];
    json_t *all = object_json(call, api_buffer_json(&c->content),
                              c->reasoning.n > 0 ? api_buffer_json(&c->reasoning) : NULL,
                              calls_json(c, 0), true);
    if (call->idle_reason != NULL) {
        (void)json_object_set_new(all, "done_reason", json_string(call->idle_reason));
        return all;
    }
    if (call->has_logprobs && c->logprobs.n > 0)
        (void)json_object_set_new(all, "logprobs", api_logprobs_mark(0, API_LIST_ENTRIES));
    add_totals(call, c->end, all);
    return all;
}

const struct api api_ollama_chat = {
    .path = "/api/chat", .dialect = API_OLLAMA, .collects = API_COLLECTS_CALLS, .is_lines = true,
    .streams = true, .read = read_chat, .write = write_ollama, .whole = whole_ollama,
    .hello = " ", .ping = " "};
const struct api api_ollama_generate = {
    .path = "/api/generate", .dialect = API_OLLAMA, .collects = API_COLLECTS_CALLS,
    .is_lines = true, .streams = true, .read = read_generate, .write = write_ollama,
    .whole = whole_ollama, .hello = " ", .ping = " "};
