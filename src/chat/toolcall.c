#include "chat/toolcall.h"

#include "chat/dialect.h"
#include "text/unicode.h"

enum { FIELD_OTHER, FIELD_NAME, FIELD_ARGUMENTS };
enum { TO_NOTHING, TO_KEY, TO_NAME, TO_ARGUMENTS };

void toolcall_init(struct toolcall *tc, const struct dialect *const *dialects, const json_t *tools)
{
    *tc = (struct toolcall){.dialects = dialects, .tools = tools};
}

void toolcall_clear(struct toolcall *tc)
{
    text_buffer_clear(&tc->name);
    text_buffer_clear(&tc->id);
    text_buffer_clear(&tc->args);
    text_buffer_clear(&tc->keys);
    text_buffer_clear(&tc->value);
}

/* ---- which dialect ---------------------------------------------------------------------- */

/* Selects the first dialect with that opener whose calls begin with `first`. Returns false if there
 * is none. */
static bool choose(struct toolcall *tc, char first)
{
    for (const struct dialect *const *d = tc->dialects; *d != NULL; d++)
        for (const struct dialect_opener *o = (*d)->openers; o->text != NULL; o++)
            if (o->first == first && strcmp(o->text, tc->opening) == 0) {
                tc->dialect = *d;
                tc->opener = o;
                return true;
            }
    return false;
}

/* Returns true if the first byte decides between dialects. */
static bool has_first_byte(const struct toolcall *tc)
{
    for (const struct dialect *const *d = tc->dialects; *d != NULL; d++)
        for (const struct dialect_opener *o = (*d)->openers; o->text != NULL; o++)
            if (o->first != '\0' && strcmp(o->text, tc->opening) == 0)
                return true;
    return false;
}

void toolcall_begin(struct toolcall *tc, const char *opening, bool is_early)
{
    tc->is_ready = tc->is_complete = false;
    tc->name.n = tc->id.n = tc->args.n = tc->keys.n = tc->value.n = 0;
    tc->opening = opening;
    tc->is_early = is_early;
    tc->dialect = NULL;
    tc->opener = NULL;
    tc->next = NULL;
    tc->state = 0;
    tc->n_tail = 0;
    tc->field = tc->seen = tc->target = 0;
    tc->is_copying = false;
    json_scan_init(&tc->scan);
    tc->n_keys = 0;
    tc->utf8 = (struct utf8_scan){0};
    if (!has_first_byte(tc))
        (void)choose(tc, '\0');
}

bool toolcall_set_name(struct toolcall *tc, const char *name, size_t bytes)
{
    bool ok = bytes > 0 && bytes <= TOOLCALL_NAME_BYTES &&
              utf8_count_bad((const uint8_t *)name, bytes) == 0;
    for (size_t i = 0; ok && i < bytes; i++)
        ok = (uint8_t)name[i] >= 0x20;
    tc->name.n = 0;
    return ok && toolcall_add(tc, &tc->name, name, bytes) && toolcall_add_byte(tc, &tc->name, '\0');
}

enum toolcall_status toolcall_push(struct toolcall *tc, uint8_t byte)
{
    if (tc->dialect == NULL && toolcall_is_space(byte))
        return TOOLCALL_MORE;
    if (tc->dialect == NULL && (byte == '\0' || !choose(tc, (char)byte)) && !choose(tc, '\0'))
        return TOOLCALL_BROKEN;
    if (tc->is_early && !tc->opener->ends_reasoning)
        return TOOLCALL_BROKEN;
    return tc->dialect->push(tc, byte);
}

/* ---- pieces of dialects ----------------------------------------------------------------- */

bool toolcall_add(struct toolcall *tc, struct text_buffer *buffer, const char *text, size_t bytes)
{
    const bool ok = text_buffer_add(buffer, text, bytes);
    tc->is_out_of_memory = tc->is_out_of_memory || !ok;
    return ok;
}

bool toolcall_add_byte(struct toolcall *tc, struct text_buffer *buffer, uint8_t byte)
{
    return toolcall_add(tc, buffer, (const char *)&byte, 1);
}

bool toolcall_push_tag(struct toolcall *tc, uint8_t byte, const struct marker *tags, unsigned set,
                       unsigned *tag)
{
    *tag = 0;
    if (tc->n_tail == 0 && toolcall_is_space(byte))
        return true;
    tc->tail[tc->n_tail++] = (char)byte;
    const struct marker *whole;
    const bool ok = marker_begins(tags, set, tc->tail, tc->n_tail, &whole);
    if (whole != NULL)
        *tag = whole->kind;
    if (!ok || whole != NULL)
        tc->n_tail = 0;
    return ok;
}

/* ---- an object with name and arguments --------------------------------------------------- */

/* Starts a string at the top level of the object. */
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
    /* After the object only white space is allowed. */
    return json_scan_push(&tc->inner, byte) && (tc->inner.depth > 0 || toolcall_is_space(byte) ||
                                                tc->inner.event == JSON_CLOSED) &&
           (tc->inner.depth != 1 || tc->inner.event != JSON_OPENED || byte == '{') &&
           toolcall_add_byte(tc, &tc->args, byte);
}

static bool add_decoded(struct toolcall *tc)
{
    bool ok = true;
    for (uint8_t i = 0; ok && i < tc->scan.n_decoded; i++) {
        const uint8_t byte = tc->scan.decoded[i];
        if (tc->target == TO_ARGUMENTS)
            ok = push_inner(tc, byte);
        else if (tc->target == TO_NAME)
            ok = byte >= 0x20 && tc->name.n < TOOLCALL_NAME_BYTES &&
                 toolcall_add_byte(tc, &tc->name, byte);
        else if (tc->target == TO_KEY && tc->keys.n < TOOLCALL_NAME_BYTES)
            ok = toolcall_add_byte(tc, &tc->keys, byte);
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
    return target != TO_NAME || (tc->name.n > 0 && toolcall_add_byte(tc, &tc->name, '\0'));
}

/* Starts a value of another type at the top level of the object. */
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

/* Sets is_ready if the name is known and the arguments have begun, before it or now. */
static void see_if_ready(struct toolcall *tc)
{
    tc->is_ready = has_name(tc) && (tc->args.n > 0 || tc->is_complete);
}

enum toolcall_status toolcall_push_object(struct toolcall *tc, uint8_t byte)
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
        ok = toolcall_add_byte(tc, &tc->args, byte);
    if (s->event == JSON_CLOSED && s->depth == 1)
        tc->is_copying = false;
    if (ok && s->event == JSON_CLOSED && s->depth == 0) {
        tc->is_complete = true;
        ok = has_name(tc) &&
             (tc->args.n > 0 || tc->is_ready || toolcall_add(tc, &tc->args, "{}", 2));
    }
    if (ok && !tc->is_ready)
        see_if_ready(tc);
    return ok ? TOOLCALL_MORE : TOOLCALL_BROKEN;
}
