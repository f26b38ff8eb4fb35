/* The dialect of Qwen3-Coder and Qwen3.5, with or without the outer tag:
 *
 *   <tool_call> <function=f> <parameter=K> V </parameter> ... </function> </tool_call>
 *
 * becomes {"K": V, ...}. A value ends at "</parameter>", white space and then "<parameter=" or
 * "</function>", so it may contain any other text, even that closing tag. One newline at its start
 * and one at its end are dropped. The schema of the tool decides about its type:
 *   - without a schema, or where only strings are allowed, it is a string;
 *   - where no string is allowed, text that parses as JSON is that JSON;
 *   - where a string and other types are allowed, text that parses as JSON of one of the other
 *     types is that JSON;
 *   - true, false and null may be capitalised, and None means null;
 *   - everything else is a string.
 *
 * A call without the outer tag must have the name of a tool, if the tools are known. */
#include "chat/dialect.h"
#include "chat/tool_schema.h"

enum { AT_FUNCTION, IN_NAME, AT_PARAMETER, IN_KEY, IN_VALUE, AT_CLOSE };

enum { TAG_CALL_END = 1, TAG_FUNCTION = 2, TAG_END_FUNCTION = 4, TAG_PARAMETER = 8 };

#define FUNCTION "<function="

static const struct marker tags[] = {
    {"</tool_call>", TAG_CALL_END},
    {FUNCTION, TAG_FUNCTION},
    {"</function>", TAG_END_FUNCTION},
    {"<parameter=", TAG_PARAMETER},
    {NULL, 0},
};

static const struct dialect_opener openers[] = {
    {.text = "<tool_call>", .first = '<'},
    {.text = FUNCTION, .stray = "</tool_call>"},
    {.text = NULL},
};

static bool is_bare(const struct toolcall *tc)
{
    return tc->opener == &openers[1];
}

static enum toolcall_status more_if(bool ok)
{
    return ok ? TOOLCALL_MORE : TOOLCALL_BROKEN;
}

static enum toolcall_status go(struct toolcall *tc, uint8_t state)
{
    tc->state = state;
    return TOOLCALL_MORE;
}

/* Takes a byte of a function's or parameter's name, which begins at buffer[at]. Sets *is_end at the
 * ">" after it. */
static bool push_word(struct toolcall *tc, struct text_buffer *buffer, size_t at, uint8_t byte,
                      bool *is_end)
{
    const size_t n = buffer->n - at;
    *is_end = byte == '>';
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

static enum toolcall_status end_key_tag(struct toolcall *tc)
{
    const char *keys = tc->keys.data, *key = keys + tc->key_at;
    for (const char *each = keys; each != key; each += strlen(each) + 1)
        if (strcmp(each, key) == 0)
            return TOOLCALL_BROKEN; /* the first value was already passed on */
    if (++tc->n_keys > TOOLCALL_PARAMETERS)
        return TOOLCALL_BROKEN;
    tc->types = tool_schema_types(tc->tools, tc->name.data, key);
    tc->types = tc->types == TOOL_STRING ? 0 : tc->types;
    tc->value.n = 0;
    tc->has_begun = false;
    tc->is_ready = true;
    const bool is_first = tc->n_keys == 1;
    bool ok = toolcall_add(tc, &tc->args, is_first ? "{\"" : ", \"", is_first ? 2 : 3) &&
              add_escaped(tc, key, strlen(key)) && toolcall_add(tc, &tc->args, "\": ", 3);
    if (ok && tc->types == 0)
        ok = begin_string_value(tc);
    tc->state = IN_VALUE;
    return more_if(ok);
}

static bool value_byte(struct toolcall *tc, uint8_t byte)
{
    const bool is_first = !tc->has_begun;
    tc->has_begun = true;
    if (is_first && byte == '\n')
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
static bool value_may_end(const char *text, size_t bytes, unsigned *tag)
{
    static const char close[] = "</parameter>";
    *tag = 0;
    size_t at = bytes > 0 && text[0] == '\n' ? 1 : 0;
    for (size_t i = 0; close[i] != '\0'; i++, at++) {
        if (at == bytes)
            return true;
        if (text[at] != close[i])
            return false;
    }
    while (at < bytes && toolcall_is_space((uint8_t)text[at]))
        at++;
    if (at == bytes)
        return bytes < TOOLCALL_TAIL_BYTES - 16; /* room for the tag */
    const struct marker *whole;
    const bool may_end = marker_begins(tags, TAG_PARAMETER | TAG_END_FUNCTION, text + at,
                                       bytes - at, &whole);
    *tag = whole != NULL ? whole->kind : 0;
    return may_end;
}

static enum toolcall_status end_function(struct toolcall *tc)
{
    bool ok = toolcall_add(tc, &tc->args, tc->n_keys == 0 ? "{}" : "}", tc->n_keys == 0 ? 2 : 1);
    tc->is_ready = tc->is_complete = true;
    tc->state = AT_CLOSE;
    return !ok ? TOOLCALL_BROKEN : is_bare(tc) ? TOOLCALL_WHOLE : TOOLCALL_MORE;
}

static enum toolcall_status begin_key(struct toolcall *tc)
{
    tc->key_at = tc->keys.n;
    return go(tc, IN_KEY);
}

static enum toolcall_status push_value(struct toolcall *tc, uint8_t byte)
{
    unsigned tag = 0;
    tc->tail[tc->n_tail++] = (char)byte;
    while (tc->n_tail > 0 && !value_may_end(tc->tail, tc->n_tail, &tag)) {
        if (!value_byte(tc, (uint8_t)tc->tail[0]))
            return TOOLCALL_BROKEN;
        memmove(tc->tail, tc->tail + 1, --tc->n_tail);
    }
    if (tag == 0)
        return TOOLCALL_MORE;
    tc->n_tail = 0;
    if (!end_value(tc))
        return TOOLCALL_BROKEN;
    return tag == TAG_PARAMETER ? begin_key(tc) : end_function(tc);
}

static enum toolcall_status push_parameter(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_PARAMETER | TAG_END_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_PARAMETER      ? begin_key(tc)
           : tag == TAG_END_FUNCTION ? end_function(tc)
                                        : TOOLCALL_MORE;
}

static enum toolcall_status push_function(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_FUNCTION ? go(tc, IN_NAME) : TOOLCALL_MORE;
}

static enum toolcall_status push_close(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_CALL_END | TAG_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    tc->next = FUNCTION;
    return tag == TAG_CALL_END   ? TOOLCALL_WHOLE
           : tag == TAG_FUNCTION ? TOOLCALL_NEXT
                                 : TOOLCALL_MORE;
}

static enum toolcall_status push(struct toolcall *tc, uint8_t byte)
{
    bool is_end = false;
    if (tc->state == AT_FUNCTION && is_bare(tc))
        tc->state = IN_NAME;
    switch (tc->state) {
    case AT_FUNCTION:
        return push_function(tc, byte);
    case IN_NAME:
        if (!push_word(tc, &tc->name, 0, byte, &is_end))
            return TOOLCALL_BROKEN;
        if (is_end && is_bare(tc) && tc->tools != NULL &&
            !tool_schema_has(tc->tools, tc->name.data))
            return TOOLCALL_BROKEN; /* text about functions, not a call */
        return is_end ? go(tc, AT_PARAMETER) : TOOLCALL_MORE;
    case AT_PARAMETER:
        return push_parameter(tc, byte);
    case IN_KEY:
        if (!push_word(tc, &tc->keys, tc->key_at, byte, &is_end))
            return TOOLCALL_BROKEN;
        return is_end ? end_key_tag(tc) : TOOLCALL_MORE;
    case IN_VALUE:
        return push_value(tc, byte);
    default:
        return push_close(tc, byte);
    }
}

static const char *const tokens[] = {"<tool_call>", "</tool_call>", NULL};

extern const struct dialect dialect_qwen_xml;
const struct dialect dialect_qwen_xml = {
    .name = "qwen-xml",
    .in_template = "<tool_call>",
    .is_default = true,
    .tokens = tokens,
    .openers = openers,
    .push = push,
};
