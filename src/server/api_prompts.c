/* The prompts of requests that have texts or tokens instead of messages. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/api.h"
#include "server/fields.h"
#include "server/text_json.h"

int api_add_prompt(struct api_call *call, struct job_spec *spec, int32_t *ids, size_t n_ids,
                   const char *field)
{
    const unsigned max = call->context->n_context;
    int rc = 0;
    if (n_ids == 0)
        rc = api_fail(&call->error, API_BAD, field, "'%s' has no tokens", field);
    else if (n_ids >= max)
        rc = api_fail(&call->error, API_CONTEXT, "messages", "prompt is too long: %zu tokens > %u "
                      "maximum; the context holds %u, of which the answer needs one at least, and "
                      "the server's --context sets it", n_ids, max - 1, max);
    else if (spec->n_prompts == JOB_PROMPTS_MAX)
        rc = api_fail(&call->error, API_BAD, field, "'%s' is one too many: a request can have at "
                      "most %d prompts", field, JOB_PROMPTS_MAX);
    if (rc != 0) {
        fm_free(ids);
        return rc;
    }
    spec->prompts[spec->n_prompts++] = (struct job_prompt){.ids = ids, .n_ids = n_ids};
    return 0;
}

int api_check_bytes(struct api_call *call, size_t bytes, const char *field)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(call->context->model, &info);
    const size_t n_min = info.max_token_bytes > 0 ? bytes / info.max_token_bytes : 0;
    if (n_min < call->context->n_context)
        return 0;
    return api_fail(&call->error, API_CONTEXT, field, "prompt is too long: at least %zu tokens > "
                    "%u maximum (%zu bytes, and no token has more than %u); send less, or raise "
                    "the server's --context", n_min, call->context->n_context - 1, bytes,
                    info.max_token_bytes);
}

int api_add_text(struct api_call *call, struct job_spec *spec, const json_t *text,
                 const char *field)
{
    struct fm_error err = {0};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (api_check_bytes(call, json_string_length(text), field) != 0)
        return -1;
    const int rc = fm_tokenize(call->context->model, json_string_value(text),
                               json_string_length(text), FM_TEXT_WITH_SPECIAL | FM_TEXT_WITH_PREFIX,
                               &ids, &n_ids, &err);
    if (rc != 0)
        return api_fail(&call->error, api_fault_of(rc), field, "%s", err.text);
    return api_add_prompt(call, spec, ids, n_ids, field);
}

static int add_text_prompt(struct api_call *call, struct job_spec *spec, const json_t *text,
                           const char *field)
{
    if (call->echo != NULL)
        (void)json_array_append(call->echo, (json_t *)text); /* without memory the request fails */
    const int rc = api_add_text(call, spec, text, field);
    if (rc == 0)
        spec->prompts[spec->n_prompts - 1].n_chars =
            api_count_chars(json_string_value(text), json_string_length(text));
    return rc;
}

json_t *api_echo_of(const struct api_call *call, unsigned choice)
{
    const size_t n = json_array_size(call->echo);
    return n > 0 ? json_array_get(call->echo, choice / (call->n_choices / n)) : NULL;
}

size_t api_count_chars(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80; /* not in the middle of a character */
    return n;
}

/* Returns the characters of the tokens' text. */
static size_t count_token_chars(const struct api_call *call, const int32_t *ids, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        const char *piece = fm_token_text(call->context->model, ids[i], &bytes);
        chars += piece != NULL ? api_count_chars(piece, bytes) : 0;
    }
    return chars;
}

void api_echo_tokens(struct api_call *call, const int32_t *ids, size_t n)
{
    struct text_buffer text = {0};
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        const char *piece = fm_token_text(call->context->model, ids[i], &bytes);
        if (piece != NULL)
            (void)text_buffer_add(&text, piece, bytes);
    }
    (void)json_array_append_new(call->echo, api_buffer_json(&text));
    text_buffer_clear(&text);
}

static int add_token_prompt(struct api_call *call, struct job_spec *spec, const json_t *list,
                            const char *field)
{
    struct fm_model_info info = {.size = sizeof info};
    const size_t n = json_array_size(list);
    int32_t *ids = mem_new(n, sizeof *ids, "a prompt", NULL);
    fm_model_info(call->context->model, &info);
    if (ids == NULL)
        return api_fail(&call->error, API_INTERNAL, NULL, "out of memory for the prompt");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= info.vocabulary) {
            mem_free(ids);
            return api_fail(&call->error, API_BAD, field, "'%s' has an invalid token at index %zu; "
                            "tokens are 0 to %u", field, i, info.vocabulary - 1);
        }
        ids[i] = (int32_t)value;
    }
    if (call->echo != NULL)
        api_echo_tokens(call, ids, n);
    const size_t n_chars = call->has_logprobs ? count_token_chars(call, ids, n) : 0;
    const int rc = api_add_prompt(call, spec, ids, n, field);
    if (rc == 0)
        spec->prompts[spec->n_prompts - 1].n_chars = n_chars;
    return rc;
}

int api_read_prompts(struct api_call *call, const json_t *prompt, const char *field,
                     struct job_spec *spec)
{
    const json_t *first = json_array_get(prompt, 0);
    if (json_is_string(prompt))
        return add_text_prompt(call, spec, prompt, field);
    if (json_is_integer(first))
        return add_token_prompt(call, spec, prompt, field);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(prompt); i++) {
        const json_t *one = json_array_get(prompt, i);
        char name[64];
        (void)snprintf(name, sizeof name, "%s[%zu]", field, i);
        if (json_is_string(one))
            rc = add_text_prompt(call, spec, one, name);
        else if (json_is_array(one))
            rc = add_token_prompt(call, spec, one, name);
        else
            rc = api_fail(&call->error, API_BAD, name, "'%s' must be a string or an array of "
                          "tokens", name);
    }
    if (rc == 0 && first == NULL)
        rc = api_fail(&call->error, API_BAD, field, "'%s' must be a string, an array of strings, "
                      "or an array of tokens", field);
    return rc;
}
