#include "server/api.h"

#include <math.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/limits.h"
#include "base/plat.h"
#include "base/splitmix.h"
#include "server/fields.h"
#include "server/text_json.h"
#include "chat/message.h"

#define LOGIT_BIAS_MAX 1024

/* ---- ids and keys ------------------------------------------------------------------------- */

/* Returns a number that differs with every call on a thread, and between threads through the
 * address of its counter. */
static uint64_t new_seed(void)
{
    static _Thread_local uint64_t state;
    state += SPLITMIX_STEP + plat_now_ns();
    return splitmix_mix(state ^ (uint64_t)plat_wall_ns() ^
                        splitmix_mix((uint64_t)(uintptr_t)&state));
}

void api_new_id(const char *prefix, char id[40])
{
    char letters[MESSAGE_ID_BYTES];
    message_call_id(new_seed(), 0, letters);
    (void)snprintf(id, 40, "%s%s", prefix, letters + sizeof "call_" - 1);
}

uint64_t api_key_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    return hash != 0 ? hash : 1;
}

/* ---- fields that dialects share ------------------------------------------------------------- */

bool api_read_limit(const struct fields *f, const char *const *names, uint64_t min,
                    struct job_spec *spec)
{
    bool is_given = false;
    for (; *names != NULL; names++) {
        const json_t *value = fields_find(f, *names);
        if (value == NULL)
            continue;
        const bool is_endless = json_is_integer(value) && (json_integer_value(value) == -1 ||
                                                           json_integer_value(value) == -2);
        const uint64_t n = is_endless ? 1 : fields_uint(f, *names, min, UINT32_MAX, 1);
        spec->is_prompt_only = n == 0;
        spec->n_max = is_endless ? 0 : n;
        is_given = true;
    }
    return is_given;
}

/* Forbids the tokens that end an answer, after the n entries that the bias has. */
static void forbid_stops(const struct api_call *call, unsigned vocabulary, size_t n_room,
                         struct job_spec *spec)
{
    for (unsigned id = 0; id < vocabulary && spec->sampling.n_logit_bias < n_room; id++)
        if (fm_token_is_stop(call->context->model, (int32_t)id))
            spec->bias[spec->sampling.n_logit_bias++] =
                (struct fm_logit_bias){(int32_t)id, -INFINITY};
}

static size_t count_stops(const struct api_call *call, unsigned vocabulary)
{
    size_t n = 0;
    for (unsigned id = 0; id < vocabulary; id++)
        n += fm_token_is_stop(call->context->model, (int32_t)id);
    return n;
}

/* Returns a new object {id: bias}. llama-server has a list of [id, bias], where false forbids. */
static json_t *bias_object(const struct fields *f)
{
    const json_t *bias = fields_find(f, "logit_bias");
    char key[24];
    if (!json_is_array(bias))
        return json_incref((json_t *)fields_object(f, "logit_bias"));
    json_t *object = json_object();
    for (size_t i = 0; i < json_array_size(bias); i++) {
        const json_t *pair = json_array_get(bias, i), *value = json_array_get(pair, 1);
        if (!json_is_integer(json_array_get(pair, 0)))
            (void)fields_fail(f, "logit_bias", "must have ids of tokens");
        (void)snprintf(key, sizeof key, "%lld",
                       (long long)json_integer_value(json_array_get(pair, 0)));
        (void)json_object_set_new(object, key, json_is_false(value) ? json_integer(-100)
                                  : value != NULL ? json_incref((json_t *)value) : json_null());
    }
    return object;
}

static void take_bias(struct api_call *call, const struct fields *f, json_t *bias,
                      struct job_spec *spec)
{
    const size_t n = json_object_size(bias);
    struct fm_model_info info = {.size = sizeof info};
    const char *key;
    json_t *value;
    spec->ignores_stops = fields_bool(f, "ignore_eos", false);
    if (n == 0 && !spec->ignores_stops)
        return;
    fm_model_info(call->context->model, &info);
    if (n > LOGIT_BIAS_MAX) {
        (void)fields_fail(f, "logit_bias", "must have at most 1024 tokens");
        return;
    }
    const size_t n_room = n + (spec->ignores_stops ? count_stops(call, info.vocabulary) : 0);
    spec->bias = mem_new(n_room, sizeof *spec->bias, "logit_bias", NULL);
    if (spec->bias == NULL) {
        (void)api_fail(&call->error, API_INTERNAL, NULL, "out of memory for logit_bias");
        return;
    }
    spec->sampling.logit_bias = spec->bias;
    json_object_foreach(bias, key, value) {
        uint64_t id = 0;
        for (const char *c = key; *c != '\0'; c++)
            id = *c >= '0' && *c <= '9' && id < INT32_MAX ? id * 10 + (uint64_t)(*c - '0')
                                                          : UINT32_MAX;
        const double x = json_number_value(value);
        if (key[0] == '\0' || id >= info.vocabulary || !json_is_number(value) || x < -100 ||
            x > 100) {
            (void)fields_fail(f, "logit_bias", "must map ids of the model's tokens to numbers from "
                              "-100 to 100");
            return;
        }
        spec->bias[spec->sampling.n_logit_bias++] =
            (struct fm_logit_bias){(int32_t)id, x > -100 ? (float)x : -INFINITY};
    }
    if (spec->ignores_stops)
        forbid_stops(call, info.vocabulary, n_room, spec);
}

static void read_bias(struct api_call *call, const struct fields *f, struct job_spec *spec)
{
    json_t *bias = bias_object(f);
    take_bias(call, f, bias, spec);
    json_decref(bias);
}

/* Reads how many last tokens penalties see: -1 is all of them, and 0 switches them off. */
static void read_window(const struct fields *f, struct fm_sampling *s)
{
    const json_t *window = fields_find(f, "repeat_last_n");
    if (window == NULL || (json_is_integer(window) && json_integer_value(window) == -1))
        return;
    s->penalty_window = (unsigned)fields_uint(f, "repeat_last_n", 0, LIMIT_CONTEXT, 0);
    if (s->penalty_window == 0)
        s->repetition_penalty = s->presence_penalty = s->frequency_penalty = 0;
}

void api_read_sampling(struct api_call *call, const struct fields *f, struct job_spec *spec)
{
    struct fm_sampling *s = &spec->sampling;
    s->size = sizeof *s;
    fm_sampling_default(call->context->model, s);
    s->temperature = (float)fields_number(f, "temperature", 0, 10, (double)s->temperature);
    s->top_p = (float)fields_number(f, "top_p", 0, 1, (double)s->top_p);
    s->min_p = (float)fields_number(f, "min_p", 0, 1, (double)s->min_p);
    s->typical_p = (float)fields_number(f, "typical_p", 0, 1, (double)s->typical_p);
    if (json_is_integer(fields_find(f, "top_k")) &&
        json_integer_value(fields_find(f, "top_k")) == -1)
        s->top_k = 0; /* some clients send -1 to switch it off */
    else
        s->top_k = (unsigned)fields_uint(f, "top_k", 0, LIMIT_VOCAB, s->top_k);
    const double repetition = (double)s->repetition_penalty;
    s->repetition_penalty = (float)fields_number(
        f, "repetition_penalty", 0, 100, fields_number(f, "repeat_penalty", 0, 100, repetition));
    s->presence_penalty = (float)fields_number(f, "presence_penalty", -100, 100, 0);
    s->frequency_penalty = (float)fields_number(f, "frequency_penalty", -100, 100, 0);
    read_window(f, s);
    const json_t *seed = fields_find(f, "seed");
    if (seed == NULL)
        s->seed = new_seed() & 0xffffffffu;
    else if (json_is_integer(seed))
        s->seed = (uint64_t)json_integer_value(seed);
    else
        (void)fields_fail(f, "seed", "must be a whole number");
    read_bias(call, f, spec);
}

static void add_stop(struct api_call *call, const struct fields *f, const char *name,
                     const json_t *stop, struct job_spec *spec)
{
    const size_t bytes = json_string_length(stop);
    if (!json_is_string(stop) || bytes > LIMIT_STOP_STRING_BYTES ||
        memchr(json_string_value(stop), '\0', bytes) != NULL) {
        (void)fields_fail(f, name, "must be a string or an array of strings of 4096 bytes at most");
        return;
    }
    if (bytes == 0)
        return;
    if (spec->n_stops == JOB_STOPS_MAX) {
        (void)fields_fail(f, name, "must have at most 16 strings");
        return;
    }
    char *copy = mem_strdup(json_string_value(stop), NULL);
    if (copy == NULL) {
        (void)api_fail(&call->error, API_INTERNAL, NULL, "out of memory for '%s'", name);
        return;
    }
    (void)snprintf(call->stops[spec->n_stops], sizeof call->stops[0], "%s", copy);
    spec->stops[spec->n_stops++] = copy;
}

void api_read_stops(struct api_call *call, const struct fields *f, const char *name,
                    struct job_spec *spec)
{
    const json_t *stop = fields_find(f, name);
    if (stop != NULL && !json_is_array(stop))
        add_stop(call, f, name, stop, spec);
    for (size_t i = 0; i < json_array_size(stop); i++)
        add_stop(call, f, name, json_array_get(stop, i), spec);
}

/* ---- calls -------------------------------------------------------------------------------- */

static uint64_t json_bytes(const json_t *value)
{
    return value != NULL ? json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
}

/* The offsets of an answer's tokens begin after its prompt. */
static void begin_offsets(struct api_call *call, const struct job_spec *spec)
{
    for (unsigned i = 0; i < call->n_choices && i / spec->n_choices < spec->n_prompts; i++) {
        const struct job_prompt *prompt = &spec->prompts[i / spec->n_choices];
        struct api_choice *c = &call->choices[i];
        c->offsets.prompt_chars = prompt->n_chars;
        c->offsets.n_prompt = spec->wants_prompt_logprobs ? prompt->n_ids : 0;
        c->offsets.chars = spec->wants_prompt_logprobs ? 0 : prompt->n_chars;
    }
}

int api_call_read(struct api_call *call, const struct api *api, const struct api_context *context,
                  const json_t *body, const struct text_buffer *text, struct job_spec *spec)
{
    *call = (struct api_call){.context = context, .api = api, .body = text};
    *spec = (struct job_spec){.n_choices = 1, .limit_ns = context->limit_ns};
    if (!json_is_object(body))
        return api_fail(&call->error, API_BAD, NULL, "the body must be a JSON object");
    const struct fields f = {body, &call->error, ""};
    call->created_s = plat_wall_ns() / 1000000000;
    (void)snprintf(call->model, sizeof call->model, "%s",
                   fields_string(&f, "model", context->model_name));
    call->is_stream = spec->is_stream = fields_bool(&f, "stream", api->streams);
    spec->id_seed = new_seed();
    int rc = call->error.fault == API_GOOD ? api->read(call, body, spec) : -1;
    call->body = NULL;
    text_buffer_clear(&call->schema);
    if (rc == 0 && call->error.fault != API_GOOD)
        rc = -1;
    if (context->n_answer > 0 && (spec->n_max == 0 || spec->n_max > context->n_answer))
        spec->n_max = context->n_answer;
    if (rc == 0) {
        call->n_choices = call->idle_reason != NULL ? 1 : spec->n_prompts * spec->n_choices;
        call->echo_bytes += json_bytes(call->request) + spec->n_choices * json_bytes(call->echo);
        call->choices = mem_new(call->n_choices, sizeof *call->choices, "the answers", NULL);
        if (call->choices == NULL)
            rc = api_fail(&call->error, API_INTERNAL, NULL, "out of memory for the answers");
    }
    if (rc == 0)
        begin_offsets(call, spec);
    if (rc != 0)
        job_spec_clear(spec);
    return rc;
}

void api_call_clear(struct api_call *call)
{
    for (unsigned i = 0; call->choices != NULL && i < call->n_choices; i++) {
        struct api_choice *c = &call->choices[i];
        for (size_t k = 0; k < c->n_calls; k++)
            text_buffer_clear(&c->calls[k].arguments);
        mem_free(c->calls);
        mem_free(c->logprobs.at);
        text_buffer_clear(&c->reasoning);
        text_buffer_clear(&c->content);
    }
    mem_free(call->choices);
    json_decref(call->echo);
    json_decref(call->request);
    json_decref(call->items);
    call->choices = NULL;
    call->echo = call->request = call->items = NULL;
}

static bool add_logprobs(struct api_choice *c, const struct job_logprobs *logprobs)
{
    struct job_logprobs *l = &c->logprobs;
    if (logprobs->n == 0)
        return true;
    if (mem_grow((void **)&l->at, &l->capacity, l->n + logprobs->n, sizeof *l->at,
                 "the log probabilities", NULL) != 0)
        return false;
    memcpy(&l->at[l->n], logprobs->at, logprobs->n * sizeof *l->at);
    l->n += logprobs->n;
    l->n_each = logprobs->n_each;
    return true;
}

void api_choice_end(struct api_choice *c, const struct job_event *event)
{
    c->end = event->end;
    c->stop = event->stop;
    c->n_prompt = event->n_prompt;
    c->n_answer = event->n_done;
}

static bool collect(struct api_call *call, const struct job_event *event)
{
    if (event->choice >= call->n_choices)
        return true; /* events that end a job */
    struct api_choice *c = &call->choices[event->choice];
    switch (event->kind) {
    case JOB_PROMPT:
        return add_logprobs(c, &event->logprobs);
    case JOB_EMBEDDING:
        return text_buffer_add(&c->content, event->text, event->text_bytes);
    case JOB_REASONING:
        return add_logprobs(c, &event->logprobs) &&
               text_buffer_add(&c->reasoning, event->text, event->text_bytes);
    case JOB_CONTENT:
        return add_logprobs(c, &event->logprobs) &&
               text_buffer_add(&c->content, event->text, event->text_bytes);
    case JOB_CALL_BEGIN:
        if (mem_grow((void **)&c->calls, &c->cap_calls, c->n_calls + 1, sizeof *c->calls,
                     "the tool calls", NULL) != 0)
            return false;
        c->calls[c->n_calls] = (struct api_call_made){0};
        (void)snprintf(c->calls[c->n_calls].id, sizeof c->calls->id, "%s", event->id);
        (void)snprintf(c->calls[c->n_calls].name, sizeof c->calls->name, "%s", event->name);
        c->n_calls++;
        return true;
    case JOB_CALL_ARGUMENTS:
        return c->n_calls == 0 || text_buffer_add(&c->calls[c->n_calls - 1].arguments, event->text,
                                                  event->text_bytes);
    case JOB_CALL_END:
        if (c->n_calls > 0)
            c->calls[c->n_calls - 1].is_broken = event->is_broken;
        return true;
    case JOB_CHOICE_END:
        api_choice_end(c, event);
        return add_logprobs(c, &event->logprobs);
    default:
        return true;
    }
}

/* Memory factor of a text: a JSON value, its JSON in a doubling buffer, and the answer. Repeated
 * parts of the request are values already, or become values. */
#define WHOLE_FACTOR 6
/* Memory of a token with its alternatives as JSON values, their text, and the bytes to send. */
#define LOGPROBS_BYTES (96u << 10)

uint64_t api_whole_bytes(const struct api_call *call)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < call->n_choices; i++) {
        const struct api_choice *c = &call->choices[i];
        n += c->reasoning.n + c->content.n;
        for (size_t k = 0; k < c->n_calls; k++)
            n += c->calls[k].arguments.n;
    }
    return WHOLE_FACTOR * (n + call->echo_bytes) + (call->has_logprobs ? LOGPROBS_BYTES : 0);
}

bool api_call_take(struct api_call *call, const struct job_event *event)
{
    bool is_good = true;
    if (event->kind == JOB_STARTED) {
        call->usage.n_prompt = event->n_prompt;
        call->usage.n_cached = event->n_cached;
    }
    const bool is_call = event->kind >= JOB_CALL_BEGIN && event->kind <= JOB_CALL_END;
    if (!call->is_stream || call->api->collects == API_COLLECTS_ALL ||
        (is_call && call->api->collects == API_COLLECTS_CALLS))
        is_good = collect(call, event);
    /* Refuses early an answer that could not be written at its end. */
    if (is_good && !call->is_stream)
        is_good = mem_lease_reserve(api_whole_bytes(call));
    return is_good && (!call->is_stream || call->api->write(call, event));
}

/* ---- frames ------------------------------------------------------------------------------- */

static bool open_frame(struct api_call *call)
{
    return call->api->is_lines || text_add_string(call->out, "data: ");
}

static bool close_frame(struct api_call *call)
{
    return text_add_string(call->out, call->api->is_lines ? "\n" : "\n\n");
}

bool api_frame(struct api_call *call, const char *event, json_t *value)
{
    const bool is_good = (event == NULL || text_add_format(call->out, "event: %s\n", event)) &&
                         open_frame(call) && text_add_json(call->out, value) && close_frame(call);
    json_decref(value);
    return is_good;
}

bool api_frame_logprobs(struct api_call *call, json_t *value, const struct job_logprobs *logprobs)
{
    struct api_pieces pieces;
    bool is_good = api_pieces_begin(&pieces, value) && open_frame(call);
    while (is_good && !api_pieces_is_over(&pieces))
        is_good = api_pieces_add(&pieces, call, logprobs, call->out);
    api_pieces_clear(&pieces);
    json_decref(value);
    return is_good && close_frame(call);
}

json_t *api_buffer_json(const struct text_buffer *buffer)
{
    return text_json(text_buffer_text(buffer), buffer->n);
}
