/* The C side of compare_templates.py and check_templates.py.
 *
 * usage: render_templates < RECORDS
 *
 * A record is a 32-bit length and a template, a 32-bit length and a JSON object: "variables",
 * "trusted", "now". For each it writes a 32-bit 0, or 1 after an error, a 32-bit length and the
 * rendering or the error. Integers are in machine order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "jinja/jinja.h"

static void fail(const char *text)
{
    (void)fprintf(stderr, "render_templates: %s\n", text);
    exit(2);
}

static bool get_text(char **text, size_t *capacity, uint32_t *bytes)
{
    if (fread(bytes, sizeof *bytes, 1, stdin) != 1)
        return false;
    if (mem_grow((void **)text, capacity, (size_t)*bytes + 1, 1, "a record", NULL) != 0)
        fail("out of memory");
    if (*bytes > 0 && fread(*text, 1, *bytes, stdin) != *bytes)
        fail("the input ends inside a record");
    return true;
}

static void put(uint32_t status, const char *text, size_t bytes)
{
    const uint32_t head[2] = {status, (uint32_t)bytes};
    if (fwrite(head, sizeof head, 1, stdout) != 1 ||
        (bytes > 0 && fwrite(text, 1, bytes, stdout) != bytes))
        fail("cannot write");
}

static void render(const char *source, size_t bytes, const json_t *input)
{
    struct fm_error err = {0};
    struct jinja *template = NULL;
    struct jinja_rendering rendering = {0};
    const struct jinja_input in = {
        .variables = json_object_get(input, "variables"),
        .trusted = json_object_get(input, "trusted"),
        .now_s = json_integer_value(json_object_get(input, "now")),
    };
    int rc = jinja_compile("template", source, bytes, &template, &err);
    if (rc == 0)
        rc = jinja_render(template, &in, &rendering, &err);
    if (rc == 0)
        put(0, rendering.text, rendering.bytes);
    else
        put(1, err.text, strlen(err.text));
    jinja_rendering_clear(&rendering);
    jinja_free(template);
}

int main(void)
{
    char *source = NULL, *text = NULL;
    size_t source_capacity = 0, text_capacity = 0;
    uint32_t source_bytes, text_bytes;
    while (get_text(&source, &source_capacity, &source_bytes)) {
        if (!get_text(&text, &text_capacity, &text_bytes))
            fail("a template without variables");
        json_t *input = json_loadb(text, text_bytes, 0, NULL);
        if (input == NULL)
            fail("the variables are not JSON");
        render(source, source_bytes, input);
        json_decref(input);
    }
    mem_free(source);
    mem_free(text);
    return 0;
}
