#include "chat/toolcall.h"

#include "chat/marker.h"
#include "chat/tool_schema.h"

enum { AT_FORM, IN_JSON, IN_NAME, AT_PARAMETER, IN_KEY, IN_VALUE, AT_CLOSE };
enum { FIELD_OTHER, FIELD_NAME, FIELD_ARGUMENTS };
enum { TO_NOTHING, TO_KEY, TO_NAME, TO_ARGUMENTS };

void toolcall_init(struct toolcall *tc, unsigned forms, const json_t *tools)
{
    *tc = (struct toolcall){.forms = forms, .tools = tools};
}

void toolcall_clear(struct toolcall *tc)
{
    text_buffer_clear(&tc->name);
    text_buffer_clear(&tc->args);
    text_buffer_clear(&tc->keys);
    text_buffer_clear(&tc->value);
}

void toolcall_begin(struct toolcall *tc, bool is_bare)
{
    tc->is_ready = tc->is_complete = false;
    tc->name.n = tc->args.n = tc->keys.n = tc->value.n = 0;
    tc->is_bare = is_bare;
    tc->state = is_bare ? IN_NAME : AT_FORM;
    tc->n_tail = 0;
    tc->field = tc->seen = tc->target = 0;
    tc->is_copying = false;
    json_scan_init(&tc->scan);
    tc->n_keys = 0;
    tc->utf8 = (struct utf8_scan){0};
}

static bool add(struct toolcall *tc, struct text_buffer *buffer, const char *text, size_t bytes)
{
    const bool ok = text_buffer_add(buffer, text, bytes);
    tc->is_out_of_memory = tc->is_out_of_memory || !ok;
    return ok;
}

static bool add_byte(struct toolcall *tc, struct text_buffer *buffer, uint8_t byte)
{
    return add(tc, buffer, (const char *)&byte, 1);
}

static bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
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

/* ---- the JSON form ---------------------------------------------------------------------- */

/* A string at the top of the object begins. */
static bool begin_string(struct toolcall *tc)
{
    tc->target = tc->scan.is_key                     ? TO_KEY
                 : tc->field == FIELD_NAME      ? TO_NAME
                 : tc->field == FIELD_ARGUMENTS ? TO_ARGUMENTS
                                                : TO_NOTHING;
    if (tc->target == TO_KEY)
        tc->keys.n = 0;
    if (tc->target == TO_ARGUMENTS)
        json_scan_init(&tc->inner);
    return true;
}

static bool push_inner(struct toolcall *tc, uint8_t byte)
{
    /* Outside the object there is only white space. */
    return json_scan_push(&tc->inner, byte) && (tc->inner.depth > 0 || is_space(byte) ||
                                                tc->inner.event == JSON_CLOSED) &&
           (tc->inner.depth != 1 || tc->inner.event != JSON_OPENED || byte == '{') &&
           add_byte(tc, &tc->args, byte);
}

static bool add_decoded(struct toolcall *tc)
{
    bool ok = true;
    for (uint8_t i = 0; ok && i < tc->scan.n_decoded; i++) {
        const uint8_t byte = tc->scan.decoded[i];
        if (tc->target == TO_ARGUMENTS)
            ok = push_inner(tc, byte);
        else if (tc->target == TO_NAME)
            ok = byte >= 0x20 && tc->name.n < TOOLCALL_NAME_BYTES && add_byte(tc, &tc->name, byte);
        else if (tc->target == TO_KEY && tc->keys.n < TOOLCALL_NAME_BYTES)
            ok = add_byte(tc, &tc->keys, byte);
    }
    return ok;
}

static bool end_key(struct toolcall *tc)
{
    static const char *const names[] = {[FIELD_NAME] = "name", [FIELD_ARGUMENTS] = "arguments"};
    tc->field = FIELD_OTHER;
    for (uint8_t i = FIELD_NAME; i <= FIELD_ARGUMENTS; i++) {
        const size_t n = strlen(names[i]);
        if (tc->keys.n == n && memcmp(tc->keys.data, names[i], n) == 0)
            tc->field = i;
    }
    const uint8_t bit = (uint8_t)(1u << tc->field);
    if (tc->field != FIELD_OTHER && (tc->seen & bit) != 0)
        return false;
    tc->seen |= bit;
    return true;
}

static bool end_string(struct toolcall *tc)
{
    const uint8_t target = tc->target;
    tc->target = TO_NOTHING;
    if (target == TO_KEY)
        return end_key(tc);
    if (target == TO_ARGUMENTS)
        return json_scan_is_whole(&tc->inner);
    return target != TO_NAME || (tc->name.n > 0 && add_byte(tc, &tc->name, '\0'));
}

/* A value of another kind at the top of the object begins. */
static bool begin_other(struct toolcall *tc, uint8_t byte)
{
    if (tc->field == FIELD_NAME)
        return false;
    if (tc->field == FIELD_ARGUMENTS && byte == '{')
        tc->is_copying = true;
    return tc->field != FIELD_ARGUMENTS || byte == '{' || byte == 'n';
}

static bool has_name(const struct toolcall *tc)
{
    return tc->name.n > 0 && ((const char *)tc->name.data)[tc->name.n - 1] == '\0';
}

/* The name, and the arguments that began before it or begin now. */
static void see_if_ready(struct toolcall *tc)
{
    tc->is_ready = has_name(tc) && (tc->args.n > 0 || tc->is_complete);
}

static enum toolcall_status push_json(struct toolcall *tc, uint8_t byte)
{
    struct json_scan *s = &tc->scan;
    bool ok = json_scan_push(s, byte);
    if (!ok)
        return TOOLCALL_BROKEN;
    if (s->event == JSON_STRING_BEGAN && s->depth == 1)
        ok = begin_string(tc);
    else if (s->event == JSON_STRING_ENDED && s->depth == 1)
        ok = end_string(tc);
    else if ((s->event == JSON_OPENED && s->depth == 2) ||
             (s->event == JSON_SCALAR_BEGAN && s->depth == 1))
        ok = begin_other(tc, byte);
    else if (s->n_decoded > 0)
        ok = add_decoded(tc);
    if (ok && tc->is_copying)
        ok = add_byte(tc, &tc->args, byte);
    if (s->event == JSON_CLOSED && s->depth == 1)
        tc->is_copying = false;
    if (ok && s->event == JSON_CLOSED && s->depth == 0) {
        tc->is_complete = true;
        tc->state = AT_CLOSE;
        ok = has_name(tc) && (tc->args.n > 0 || tc->is_ready || add(tc, &tc->args, "{}", 2));
    }
    if (ok && !tc->is_ready)
        see_if_ready(tc);
    return more_if(ok);
}

/* ---- the XML form ----------------------------------------------------------------------- */

/* Skips white space, then one of a set of tags: MARKER_NONE while it is not whole. */
static bool push_tag(struct toolcall *tc, uint8_t byte, unsigned set, enum marker *tag)
{
    *tag = MARKER_NONE;
    if (tc->n_tail == 0 && is_space(byte))
        return true;
    tc->tail[tc->n_tail++] = (char)byte;
    const bool ok = marker_begins(set, tc->tail, tc->n_tail, tag);
    if (!ok || *tag != MARKER_NONE)
        tc->n_tail = 0;
    return ok;
}

/* A byte of a function's or a parameter's name, which begins at buffer[at]; *is_end at the ">"
 * behind it. */
static bool push_word(struct toolcall *tc, struct text_buffer *buffer, size_t at, uint8_t byte,
                      bool *is_end)
{
    const size_t n = buffer->n - at;
    *is_end = byte == '>';
    if (*is_end)
        return n > 0 && tc->utf8.n_left == 0 && add_byte(tc, buffer, '\0');
    return byte >= 0x20 && byte != '<' && n < TOOLCALL_NAME_BYTES &&
           utf8_scan_push(&tc->utf8, byte) && add_byte(tc, buffer, byte);
}

static bool add_escaped(struct toolcall *tc, const char *text, size_t bytes)
{
    bool ok = true;
    for (size_t i = 0; ok && i < bytes; i++) {
        char escaped[6];
        ok = add(tc, &tc->args, escaped, json_escape((uint8_t)text[i], escaped));
    }
    return ok;
}

/* What was kept of the value turns out to be a string. */
static bool begin_string_value(struct toolcall *tc)
{
    tc->types = 0;
    return add(tc, &tc->args, "\"", 1) &&
           add_escaped(tc, text_buffer_text(&tc->value), tc->value.n);
}

static enum toolcall_status end_key_tag(struct toolcall *tc)
{
    const char *keys = tc->keys.data, *key = keys + tc->key_at;
    for (const char *each = keys; each != key; each += strlen(each) + 1)
        if (strcmp(each, key) == 0)
            return TOOLCALL_BROKEN; /* the first value is given on already */
    if (++tc->n_keys > TOOLCALL_PARAMETERS)
        return TOOLCALL_BROKEN;
    tc->types = tool_schema_types(tc->tools, tc->name.data, key);
    tc->types = tc->types == TOOL_STRING ? 0 : tc->types;
    tc->value.n = 0;
    tc->has_begun = false;
    tc->is_ready = true;
    bool ok = add(tc, &tc->args, tc->n_keys == 1 ? "{\"" : ", \"", tc->n_keys == 1 ? 2 : 3) &&
              add_escaped(tc, key, strlen(key)) && add(tc, &tc->args, "\": ", 3);
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
    /* A string or null: longer than "null", and it is known. */
    if (!add_byte(tc, &tc->value, byte))
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

/* The JSON that the value stands for; NULL: it is a string. */
static const char *typed_value(const struct toolcall *tc, size_t *bytes)
{
    const char *text = text_buffer_text(&tc->value);
    size_t n = tc->value.n;
    for (; n > 0 && is_space((uint8_t)text[n - 1]); n--)
        ;
    for (; n > 0 && is_space((uint8_t)text[0]); n--)
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
        return add(tc, &tc->args, typed, bytes);
    return (tc->types == 0 || begin_string_value(tc)) && add(tc, &tc->args, "\"", 1);
}

/* True while the text may become the end of a value; *tag is what stands behind it once it is. */
static bool value_may_end(const char *text, size_t bytes, enum marker *tag)
{
    static const char close[] = "</parameter>";
    *tag = MARKER_NONE;
    size_t at = bytes > 0 && text[0] == '\n' ? 1 : 0;
    for (size_t i = 0; close[i] != '\0'; i++, at++) {
        if (at == bytes)
            return true;
        if (text[at] != close[i])
            return false;
    }
    while (at < bytes && is_space((uint8_t)text[at]))
        at++;
    if (at == bytes)
        return bytes < TOOLCALL_TAIL_BYTES - 16; /* room for the tag */
    return marker_begins(MARKER_PARAMETER | MARKER_END_FUNCTION, text + at, bytes - at, tag);
}

static enum toolcall_status end_function(struct toolcall *tc)
{
    bool ok = add(tc, &tc->args, tc->n_keys == 0 ? "{}" : "}", tc->n_keys == 0 ? 2 : 1);
    tc->is_ready = tc->is_complete = true;
    tc->state = AT_CLOSE;
    return !ok ? TOOLCALL_BROKEN : tc->is_bare ? TOOLCALL_WHOLE : TOOLCALL_MORE;
}

static enum toolcall_status begin_key(struct toolcall *tc)
{
    tc->key_at = tc->keys.n;
    return go(tc, IN_KEY);
}

static enum toolcall_status push_value(struct toolcall *tc, uint8_t byte)
{
    enum marker tag = MARKER_NONE;
    tc->tail[tc->n_tail++] = (char)byte;
    while (tc->n_tail > 0 && !value_may_end(tc->tail, tc->n_tail, &tag)) {
        if (!value_byte(tc, (uint8_t)tc->tail[0]))
            return TOOLCALL_BROKEN;
        memmove(tc->tail, tc->tail + 1, --tc->n_tail);
    }
    if (tag == MARKER_NONE)
        return TOOLCALL_MORE;
    tc->n_tail = 0;
    if (!end_value(tc))
        return TOOLCALL_BROKEN;
    return tag == MARKER_PARAMETER ? begin_key(tc) : end_function(tc);
}

static enum toolcall_status push_parameter(struct toolcall *tc, uint8_t byte)
{
    enum marker tag;
    if (!push_tag(tc, byte, MARKER_PARAMETER | MARKER_END_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    return tag == MARKER_PARAMETER      ? begin_key(tc)
           : tag == MARKER_END_FUNCTION ? end_function(tc)
                                        : TOOLCALL_MORE;
}

/* ---- both ------------------------------------------------------------------------------- */

static enum toolcall_status push_form(struct toolcall *tc, uint8_t byte)
{
    if (byte == '{' && tc->n_tail == 0 && (tc->forms & TOOLCALL_JSON) != 0) {
        tc->state = IN_JSON;
        return push_json(tc, byte);
    }
    enum marker tag;
    const unsigned set = (tc->forms & TOOLCALL_XML) != 0 ? MARKER_FUNCTION : 0;
    if (!push_tag(tc, byte, set, &tag))
        return TOOLCALL_BROKEN;
    return tag == MARKER_FUNCTION ? go(tc, IN_NAME) : TOOLCALL_MORE;
}

static enum toolcall_status push_close(struct toolcall *tc, uint8_t byte)
{
    enum marker tag;
    const bool is_xml = tc->scan.kind == 0; /* nothing was scanned */
    if (!push_tag(tc, byte, MARKER_END_CALL | (is_xml ? MARKER_FUNCTION : 0), &tag))
        return TOOLCALL_BROKEN;
    return tag == MARKER_END_CALL   ? TOOLCALL_WHOLE
           : tag == MARKER_FUNCTION ? TOOLCALL_NEXT
                                    : TOOLCALL_MORE;
}

enum toolcall_status toolcall_push(struct toolcall *tc, uint8_t byte)
{
    bool is_end = false;
    switch (tc->state) {
    case AT_FORM:
        return push_form(tc, byte);
    case IN_JSON:
        return push_json(tc, byte);
    case IN_NAME:
        if (!push_word(tc, &tc->name, 0, byte, &is_end))
            return TOOLCALL_BROKEN;
        if (is_end && tc->is_bare && tc->tools != NULL &&
            !tool_schema_has(tc->tools, tc->name.data))
            return TOOLCALL_BROKEN; /* text about functions rather than a call */
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
