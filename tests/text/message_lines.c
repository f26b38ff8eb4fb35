/* The C side of tests/oracle/toolcalls.py. Reads one JSON object per line: "answer", and optionally
 * "thinking", "hold", "tools" and "dialects", a list of names (default: the Qwen ones). Writes one
 * for each: "reasoning", "content", "calls" (objects with "id", "name", "arguments" as text, "raw")
 * and "broken", the texts of broken calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/dialect.h"
#include "chat/message.h"
#include "text/text_buffer.h"

struct answer {
    struct text_buffer reasoning, content, args;
    json_t *calls, *broken;
};

static void fail(const char *text)
{
    (void)fprintf(stderr, "message_lines: %s\n", text);
    exit(2);
}

static json_t *as_json(const struct text_buffer *b)
{
    return json_stringn(text_buffer_text(b), b->n);
}

static void add(struct text_buffer *b, const struct message_event *e)
{
    if (!text_buffer_add(b, e->text, e->text_bytes))
        fail("out of memory");
}

static void take(void *ctx, const struct message_event *e)
{
    struct answer *a = ctx;
    json_t *raw = json_stringn(e->text + e->lead_bytes, e->text_bytes - e->lead_bytes);
    if (e->kind == MESSAGE_REASONING)
        add(&a->reasoning, e);
    else if (e->kind == MESSAGE_CONTENT)
        add(&a->content, e);
    else if (e->kind == MESSAGE_CALL_BEGIN)
        a->args.n = 0;
    else if (e->kind == MESSAGE_CALL_ARGUMENTS)
        add(&a->args, e);
    else if (e->kind == MESSAGE_CALL_END)
        (void)json_array_append_new(a->calls, json_pack("{s:s, s:s, s:o, s:O}", "id", e->id,
                                                        "name", e->name, "arguments",
                                                        as_json(&a->args), "raw", raw));
    else if (e->kind == MESSAGE_CALL_BROKEN)
        (void)json_array_append(a->broken, raw);
    json_decref(raw);
}

static void run_line(const char *line)
{
    json_t *in = json_loads(line, 0, NULL);
    const json_t *text = json_object_get(in, "answer");
    if (!json_is_string(text))
        fail("a line without an answer");
    struct answer a = {.calls = json_array(), .broken = json_array()};
    const struct dialect *dialects[DIALECTS_MAX + 1] = {dialect_find("qwen-json"),
                                                        dialect_find("qwen-xml")};
    const json_t *names = json_object_get(in, "dialects");
    for (size_t i = 0; i < json_array_size(names) && i < DIALECTS_MAX; i++) {
        dialects[i] = dialect_find(json_string_value(json_array_get(names, i)));
        dialects[i + 1] = NULL;
    }
    if (dialects[0] == NULL)
        fail("an unknown dialect");
    const struct message_options options = {
        .is_thinking = json_is_true(json_object_get(in, "thinking")),
        .hold_calls = json_is_true(json_object_get(in, "hold")),
        .tools = json_object_get(in, "tools"),
        .dialects = dialects,
    };
    struct message *m;
    if (message_open(&options, take, &a, &m, NULL) != 0 ||
        message_push(m, json_string_value(text), json_string_length(text), NULL) != 0 ||
        message_finish(m, NULL) != 0)
        fail("out of memory");
    message_close(m);
    json_t *out = json_pack("{s:o, s:o, s:o, s:o}", "reasoning", as_json(&a.reasoning), "content",
                            as_json(&a.content), "calls", a.calls, "broken", a.broken);
    if (out == NULL || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF)
        fail("cannot write");
    json_decref(out);
    json_decref(in);
    text_buffer_clear(&a.reasoning);
    text_buffer_clear(&a.content);
    text_buffer_clear(&a.args);
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0)
        run_line(line);
    free(line);
    return fflush(stdout) == 0 ? 0 : 2;
}
