#include "chat/toolcall_value.h"

#include "chat/tool_schema.h"

bool toolcall_push_word(struct toolcall *tc, struct text_buffer *buffer, size_t at, uint8_t byte,
                        char end, bool *is_end)
{
    const size_t n = buffer->n - at;
    *is_end = byte == (uint8_t)end;
    if (*is_end)
        return n > 0 && tc->utf8.n_left == 0 && toolcall_add_byte(tc, buffer, '\0');
    return byte >= 0x20 && byte != '<' && n < TOOLCALL_NAME_BYTES &&
           utf8_scan_push(&tc->utf8, byte) && toolcall_add_byte(tc, buffer, byte);
}

static bool add_escaped(struct toolcall *tc, const char *text, size_t bytes)
{
    bool ok = true;
    for (size_t i = 0; ok && i < bytes; i++) {
        char escaped[6];
        ok = toolcall_add(tc, &tc->args, escaped, json_escape((uint8_t)text[i], escaped));
    }
    return ok;
}

/* Starts a string with what was kept of the value. */
static bool begin_string_value(struct toolcall *tc)
{
    tc->types = 0;
    return toolcall_add(tc, &tc->args, "\"", 1) &&
           add_escaped(tc, text_buffer_text(&tc->value), tc->value.n);
}

void toolcall_begin_key(struct toolcall *tc)
{
    tc->key_at = tc->keys.n;
}

unsigned toolcall_key_types(const struct toolcall *tc)
{
    const char *key = (const char *)tc->keys.data + tc->key_at;
    const unsigned types = tool_schema_types(tc->tools, tc->name.data, key);
    return types == TOOL_STRING ? 0 : types;
}

bool toolcall_begin_value(struct toolcall *tc, unsigned types)
{
    const char *keys = tc->keys.data, *key = keys + tc->key_at;
    for (const char *each = keys; each != key; each += strlen(each) + 1)
        if (strcmp(each, key) == 0)
            return false; /* the first value was already passed on */
    if (++tc->n_keys > TOOLCALL_PARAMETERS)
        return false;
    tc->types = types;
    tc->value.n = 0;
    tc->has_begun = false;
    tc->is_ready = true;
    const bool is_first = tc->n_keys == 1;
    return toolcall_add(tc, &tc->args, is_first ? "{\"" : ", \"", is_first ? 2 : 3) &&
           add_escaped(tc, key, strlen(key)) && toolcall_add(tc, &tc->args, "\": ", 3) &&
           (types != 0 || begin_string_value(tc));
}

static bool value_byte(struct toolcall *tc, uint8_t byte, bool drops_newlines)
{
    const bool is_first = !tc->has_begun;
    tc->has_begun = true;
    if (is_first && byte == '\n' && drops_newlines)
        return true;
    if (!utf8_scan_push(&tc->utf8, byte))
        return false;
    if (tc->types == 0)
        return add_escaped(tc, (const char *)&byte, 1);
    /* A string or null: once it is longer than "null", it is a string. */
    if (!toolcall_add_byte(tc, &tc->value, byte))
        return false;
    return tc->types != (TOOL_STRING | TOOL_NULL) || tc->value.n <= 4 || begin_string_value(tc);
}

static bool is_word(const char *text, size_t bytes, const char *lower)
{
    if (bytes != strlen(lower))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((text[i] | 0x20) != lower[i])
            return false;
    return true;
}

static unsigned type_of_kind(uint8_t kind)
{
    return kind == '0'                  ? TOOL_NUMBER
           : kind == 't' || kind == 'f' ? TOOL_BOOLEAN
           : kind == '['                ? TOOL_ARRAY
           : kind == '{'                ? TOOL_OBJECT
           : kind == 'n'                ? TOOL_NULL
                                        : 0;
}

/* Returns the JSON that the value stands for, or NULL if it is a string. */
static const char *typed_value(const struct toolcall *tc, size_t *bytes)
{
    const char *text = text_buffer_text(&tc->value);
    size_t n = tc->value.n;
    for (; n > 0 && toolcall_is_space((uint8_t)text[n - 1]); n--)
        ;
    for (; n > 0 && toolcall_is_space((uint8_t)text[0]); n--)
        text++;
    const char *word = NULL;
    if ((tc->types & TOOL_BOOLEAN) != 0 && is_word(text, n, "true"))
        word = "true";
    else if ((tc->types & TOOL_BOOLEAN) != 0 && is_word(text, n, "false"))
        word = "false";
    else if ((tc->types & TOOL_NULL) != 0 && (is_word(text, n, "null") || is_word(text, n, "none")))
        word = "null";
    *bytes = word != NULL ? strlen(word) : n;
    if (word != NULL)
        return word;
    const uint8_t kind = json_scan_text(text, n);
    const bool is_typed = (tc->types & TOOL_STRING) == 0 ||
                          (tc->types & type_of_kind(kind)) != 0;
    return kind != 0 && is_typed ? text : NULL;
}

static bool end_value(struct toolcall *tc)
{
    if (tc->utf8.n_left > 0)
        return false;
    size_t bytes;
    const char *typed = tc->types != 0 ? typed_value(tc, &bytes) : NULL;
    if (typed != NULL)
        return toolcall_add(tc, &tc->args, typed, bytes);
    return (tc->types == 0 || begin_string_value(tc)) && toolcall_add(tc, &tc->args, "\"", 1);
}

/* Returns true while the text may become the end of a value. Sets *tag to the tag after it once it
 * is complete. */
static bool value_may_end(const char *text, size_t bytes, const struct value_end *end,
                          unsigned *tag)
{
    *tag = 0;
    size_t at = end->drops_newlines && bytes > 0 && text[0] == '\n' ? 1 : 0;
    for (size_t i = 0; end->close[i] != '\0'; i++, at++) {
        if (at == bytes)
            return true;
        if (text[at] != end->close[i])
            return false;
    }
    while (at < bytes && toolcall_is_space((uint8_t)text[at]))
        at++;
    if (at == bytes)
        return bytes < TOOLCALL_TAIL_BYTES - MARKER_BYTES; /* room for the tag */
    const struct marker *whole;
    const bool may_end = marker_begins(end->tags, end->set, text + at, bytes - at, &whole);
    *tag = whole != NULL ? whole->kind : 0;
    return may_end;
}

bool toolcall_push_value(struct toolcall *tc, uint8_t byte, const struct value_end *end,
                         unsigned *tag)
{
    *tag = 0;
    tc->tail[tc->n_tail++] = (char)byte;
    while (tc->n_tail > 0 && !value_may_end(tc->tail, tc->n_tail, end, tag)) {
        if (!value_byte(tc, (uint8_t)tc->tail[0], end->drops_newlines))
            return false;
        memmove(tc->tail, tc->tail + 1, --tc->n_tail);
    }
    if (*tag == 0)
        return true;
    tc->n_tail = 0;
    return end_value(tc);
}

bool toolcall_end_values(struct toolcall *tc)
{
    const bool is_empty = tc->n_keys == 0;
    tc->is_ready = tc->is_complete = true;
    return toolcall_add(tc, &tc->args, is_empty ? "{}" : "}", is_empty ? 2 : 1);
}

bool toolcall_push_json(struct toolcall *tc, uint8_t byte)
{
    struct json_scan *s = &tc->scan;
    if (!tc->is_ready && toolcall_is_space(byte))
        return true;
    if (!json_scan_push(s, byte) || (!tc->is_ready && byte != '{') ||
        !toolcall_add_byte(tc, &tc->args, byte))
        return false;
    tc->is_ready = true;
    tc->is_complete = s->event == JSON_CLOSED && s->depth == 0;
    return true;
}
