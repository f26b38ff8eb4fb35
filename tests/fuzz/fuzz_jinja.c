/* Fuzzes chat templates. The input is a template, a NUL, and variables as JSON. Without a NUL the
 * variables are fixed. A template that compiles must render within its limits or fail with a
 * message. The output is UTF-8, every byte has an origin, and rendering again gives the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/jinja.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char fixed[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\":"
    " [{\"type\": \"text\", \"text\": \"h\\u00e9 <|im_end|>\"}]}, {\"role\": \"assistant\","
    " \"content\": \"<think>a</think>b\", \"tool_calls\": [{\"function\": {\"name\": \"f\","
    " \"arguments\": {\"a\": 1.5}}}]}], \"tools\": [{\"function\": {\"name\": \"f\"}}],"
    " \"n\": 7, \"s\": \"Text x\", \"l\": [3, \"a\", null, true], \"d\": {\"k\": {\"v\": 1}},"
    " \"add_generation_prompt\": true}";

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_error(int rc, const struct fm_error *err)
{
    require(rc < 0 && err->code == rc && err->text[0] != '\0', "an error has code and text");
}

static void check_rendering(const struct jinja *jinja, const struct jinja_input *input)
{
    struct jinja_rendering one, two;
    struct fm_error err = {0};
    const int rc = jinja_render(jinja, input, &one, &err);
    if (rc != 0) {
        check_error(rc, &err);
        require(one.text == NULL && one.origins == NULL, "nothing is left after an error");
        return;
    }
    require(utf8_count_bad((const uint8_t *)one.text, one.bytes) == 0, "a rendering is UTF-8");
    require(one.bytes <= input->limits.output_bytes, "a rendering is no longer than allowed");
    for (size_t i = 0; i < one.bytes; i++)
        require(one.origins[i] <= JINJA_ANSWER, "every byte has an origin");
    require(jinja_render(jinja, input, &two, &err) == 0 && two.bytes == one.bytes &&
                memcmp(one.text, two.text, one.bytes) == 0 &&
                memcmp(one.origins, two.origins, one.bytes) == 0,
            "rendering again gives the same");
    jinja_rendering_clear(&one);
    jinja_rendering_clear(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t bytes = nul != NULL ? (size_t)(nul - data) : size;
    struct jinja *jinja;
    struct fm_error err = {0};
    const int rc = jinja_compile("fuzz", (const char *)data, bytes, &jinja, &err);
    if (rc != 0) {
        check_error(rc, &err);
        require(jinja == NULL, "nothing is left after an error");
        return 0;
    }
    json_t *variables = nul != NULL ? json_loadb((const char *)nul + 1, size - bytes - 1, 0, NULL)
                                    : json_loads(fixed, 0, NULL);
    if (json_is_object(variables)) {
        const struct jinja_input input = {
            .variables = variables, .now_s = 1790000123,
            .limits = {.n_steps = 20000, .memory_bytes = 4 << 20, .output_bytes = 64 << 10}};
        check_rendering(jinja, &input);
    }
    json_decref(variables);
    jinja_free(jinja);
    return 0;
}
