/* Fuzzes requests of the server. The first byte of the input chooses the endpoint, the rest is the
 * body. A request is either refused with a message, or becomes a job whose events can be written as
 * a stream and as one JSON object. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static const struct api_context *context(void)
{
    static struct api_context c;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model = NULL;
    struct fm_error err = {0};
    if (c.model != NULL)
        return &c;
    options.metadata_only = true;
    require(fm_model_open(FLASHMOE_TEST_DIR "/golden/qwen3_moe", &options, &model, &err) == 0,
            err.text);
    require(call_texts_open(1 << 20, 64, &c.texts, &err) == 0, err.text);
    struct text_buffer arguments = {0};
    require(text_buffer_add(&arguments, "{\"a\": 1}", 8), "memory");
    call_texts_add(c.texts, "call_1", "f", &arguments, "\n<tool_call>\n{}\n</tool_call>", 27);
    text_buffer_clear(&arguments);
    (void)snprintf(c.model_name, sizeof c.model_name, "fuzz");
    c.n_context = 2048;
    c.model = model;
    return &c;
}

static void take(struct api_call *call, enum job_event_kind kind, const char *text)
{
    struct job_event *event = calloc(1, sizeof *event + strlen(text) + 1);
    require(event != NULL, "there is memory");
    event->kind = kind;
    event->text_bytes = strlen(text);
    memcpy(event->text, text, event->text_bytes);
    (void)snprintf(event->id, sizeof event->id, "call_2");
    (void)snprintf(event->name, sizeof event->name, "f");
    event->end = kind == JOB_CHOICE_END && call->stops[0][0] != '\0' ? JOB_END_STRING
                                                                     : JOB_END_CALLS;
    require(api_call_take(call, event), "events are written");
    free(event);
}

static void check_stream(const struct text_buffer *out, bool is_lines)
{
    const char *at = text_buffer_text(out), *end = at + out->n;
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        require(line_end != NULL, "lines end");
        const size_t skip = is_lines ? 0 : 6;
        if (is_lines || (strncmp(at, "data: ", 6) == 0 && strncmp(at + 6, "[DONE]", 6) != 0)) {
            json_t *value = json_loadb(at + skip, (size_t)(line_end - at) - skip, 0, NULL);
            require(json_is_object(value), "data is a JSON object");
            json_decref(value);
        }
        at = line_end + 1;
    }
}

/* Writes a job's events as they come. */
static void answer(struct api_call *call)
{
    struct text_buffer out = {0};
    call->out = &out;
    take(call, JOB_STARTED, "");
    take(call, JOB_PROGRESS, "");
    take(call, JOB_REASONING, "why");
    take(call, JOB_CONTENT, "text \"quoted\"");
    take(call, JOB_CALL_BEGIN, "");
    take(call, JOB_CALL_ARGUMENTS, "{\"a\": 1}");
    take(call, JOB_CALL_END, "");
    take(call, JOB_CHOICE_END, "");
    call->usage = (struct job_usage){.n_prompt = 5, .n_answer = 3};
    take(call, JOB_DONE, "");
    if (call->is_stream)
        check_stream(&out, call->api->is_lines);
    json_t *whole = call->api->whole(call);
    require(json_is_object(whole) || (call->n_choices > 1 && json_is_array(whole)),
            "the whole is a JSON object, or a list of them");
    json_decref(whole);
    text_buffer_clear(&out);
}

static void look(unsigned which, const json_t *body)
{
    struct api_error error = {0};
    struct text_buffer found = {0};
    const int rc = which == 0   ? api_tokenize(context(), body, &found, &error)
                   : which == 1 ? api_detokenize(context(), body, &found, &error)
                   : which == 2 ? api_apply_template(context(), body, &found, &error)
                   : which == 3 ? api_count_tokens(context(), body, &found, &error)
                                : api_ollama_show(context(), body, &found, &error);
    json_t *answer = json_loadb(text_buffer_text(&found), found.n, JSON_ALLOW_NUL, NULL);
    require((rc == 0) == json_is_object(answer), "an answer or an error");
    require((rc == 0) == (error.fault == API_GOOD), "an error has a fault");
    require(rc == 0 || error.text[0] != '\0', "an error has a sentence");
    json_decref(answer);
    text_buffer_clear(&found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct api *const apis[] = {&api_chat, &api_completions, &api_messages,
                                             &api_responses};
    static const struct api *const more[] = {&api_ollama_chat, &api_ollama_generate,
                                             &api_llama_completion, &api_llama_infill,
                                             &api_embeddings, NULL /* show */,
                                             &api_ollama_embed, &api_ollama_embeddings};
    static const size_t n_more = sizeof more / sizeof more[0];
    if (size < 1)
        return 0;
    json_t *body = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    if (body == NULL)
        return 0;
    /* Endpoints that came later have other numbers, so that the corpus keeps its meaning. */
    const bool is_more = data[0] >= 128;
    const unsigned which = is_more ? (data[0] - 128u) % (unsigned)n_more : data[0] % 8;
    if (is_more ? more[which] == NULL : which >= 4) {
        look(is_more ? 4 : which - 4, body);
    } else {
        const struct api *api = is_more ? more[which] : apis[which];
        struct api_call call;
        struct job_spec spec;
        const struct text_buffer text = {(uint8_t *)data + 1, size - 1, size - 1};
        const int rc = api_call_read(&call, api, context(), body, &text, &spec);
        require((rc == 0) == (call.error.fault == API_GOOD), "an error has a fault");
        require(rc == 0 || call.error.text[0] != '\0', "an error has a sentence");
        if (rc == 0) {
            require(call.idle_reason != NULL || (spec.n_prompts >= 1 && spec.n_choices >= 1),
                    "there is something to do");
            answer(&call);
        }
        json_t *error = api_error_json(&call.error, api->dialect);
        require(json_is_object(error), "an error is a JSON object");
        json_decref(error);
        job_spec_clear(&spec);
        api_call_clear(&call);
    }
    json_decref(body);
    return 0;
}
