/* Embeddings in OpenAI's and Ollama's form: one vector for each text, the mean of its last hidden
 * states. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api.h"
#include "server/fields.h"
#include "server/text_json.h"

/* JSON of a number of a vector takes so many bytes, as a value and as text. */
#define NUMBER_BYTES 20

/* Reads the texts in `field`, and the size that their vectors must have. */
static int read_texts(struct api_call *call, const struct fields *f, const char *field,
                      struct job_spec *spec)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(call->context->model, &info);
    if (fields_uint(f, "dimensions", 1, UINT32_MAX, info.hidden) != info.hidden) {
        char what[64];
        (void)snprintf(what, sizeof what, "must be %u, the size of this model's vectors",
                       info.hidden);
        (void)fields_fail(f, "dimensions", what);
    }
    if (call->is_stream)
        (void)fields_fail(f, "stream", "is not supported here");
    if (call->error.fault != API_GOOD)
        return -1;
    spec->wants_embedding = spec->is_prompt_only = true;
    const int rc = api_read_prompts(call, fields_find(f, field), field, spec);
    call->echo_bytes = (uint64_t)spec->n_prompts * info.hidden * NUMBER_BYTES;
    return rc;
}

static int read_embeddings(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const char *format = fields_string(&f, "encoding_format", "float");
    call->is_base64 = strcmp(format, "base64") == 0;
    if (!call->is_base64 && strcmp(format, "float") != 0)
        (void)fields_fail(&f, "encoding_format", "must be float or base64");
    return read_texts(call, &f, "input", spec);
}

static int read_ollama_embed(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    return read_texts(call, &f, "input", spec);
}

static int read_ollama_embeddings(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const json_t *prompt = fields_find(&f, "prompt");
    if (prompt != NULL && !json_is_string(prompt))
        (void)fields_fail(&f, "prompt", "must be a string");
    return read_texts(call, &f, "prompt", spec);
}

/* Returns the base64 of numbers in little-endian order, as clients expect them. */
static json_t *base64_json(const struct text_buffer *from)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = (const unsigned char *)text_buffer_text(from);
    struct text_buffer out = {0};
    for (size_t i = 0; i < from->n; i += 3) {
        const size_t left = from->n - i;
        const uint32_t all = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                             (left > 2 ? in[i + 2] : 0);
        const char four[4] = {digits[all >> 18], digits[all >> 12 & 63],
                              left > 1 ? digits[all >> 6 & 63] : '=',
                              left > 2 ? digits[all & 63] : '='};
        (void)text_buffer_add(&out, four, 4); /* without memory the request fails */
    }
    json_t *text = api_buffer_json(&out);
    text_buffer_clear(&out);
    return text;
}

static json_t *numbers_json(const struct text_buffer *from)
{
    const char *in = text_buffer_text(from);
    json_t *list = json_array();
    for (size_t i = 0; i + sizeof(float) <= from->n; i += sizeof(float)) {
        float x;
        char text[32];
        memcpy(&x, in + i, sizeof x);
        (void)snprintf(text, sizeof text, "%.9g", (double)x); /* enough digits for a float */
        (void)json_array_append_new(list, json_real(strtod(text, NULL)));
    }
    return list;
}

static json_t *whole_embeddings(const struct api_call *call)
{
    json_t *data = json_array();
    for (unsigned i = 0; i < call->n_choices; i++) {
        const struct text_buffer *vector = &call->choices[i].content;
        (void)json_array_append_new(
            data, json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", (int)i, "embedding",
                            call->is_base64 ? base64_json(vector) : numbers_json(vector)));
    }
    const json_int_t n = (json_int_t)call->usage.n_prompt;
    return json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model",
                     call->model, "usage", "prompt_tokens", n, "total_tokens", n);
}

static json_t *whole_ollama_embed(const struct api_call *call)
{
    const struct job_usage *u = &call->usage;
    json_t *vectors = json_array();
    for (unsigned i = 0; i < call->n_choices; i++)
        (void)json_array_append_new(vectors, numbers_json(&call->choices[i].content));
    return json_pack("{s:s, s:o, s:I, s:I, s:I}", "model", call->model, "embeddings", vectors,
                     "total_duration", (json_int_t)(u->queue_ns + u->prefill_ns), "load_duration",
                     (json_int_t)u->queue_ns, "prompt_eval_count", (json_int_t)u->n_prompt);
}

static json_t *whole_ollama_embeddings(const struct api_call *call)
{
    return json_pack("{s:o}", "embedding", numbers_json(&call->choices[0].content));
}

static bool write_nothing(struct api_call *call, const struct job_event *event)
{
    (void)call;
    (void)event;
    return true; /* there are no streams */
}

const struct api api_embeddings = {.path = "/v1/embeddings", .dialect = API_OPENAI,
                                   .read = read_embeddings, .write = write_nothing,
                                   .whole = whole_embeddings, .hello = SSE_HELLO,
                                   .ping = ": ping\n\n"};
const struct api api_ollama_embed = {.path = "/api/embed", .dialect = API_OLLAMA,
                                     .read = read_ollama_embed, .write = write_nothing,
                                     .whole = whole_ollama_embed, .hello = " ", .ping = " "};
/* The form of Ollama's first versions, with one text. */
const struct api api_ollama_embeddings = {.path = "/api/embeddings", .dialect = API_OLLAMA,
                                          .read = read_ollama_embeddings, .write = write_nothing,
                                          .whole = whole_ollama_embeddings, .hello = " ",
                                          .ping = " "};
