/* JSON input and output: the variables of a template, and tojson as transformers defines it, which
 * is Python's json.dumps. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jinja/run.h"
#include "text/unicode.h"

/* ---- out ------------------------------------------------------------------------------------- */

struct dump {
    struct run *r;
    struct sbuf *out;
    bool is_ascii, is_sorted;
    const struct str *indent; /* NULL to write everything in one line */
    const struct str *comma, *colon;
    unsigned level;
};

static void dump_escape(struct dump *d, uint32_t c, uint8_t origin)
{
    char text[16];
    if (c >= 0x10000) {
        const uint32_t rest = c - 0x10000;
        (void)snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + (rest >> 10),
                       0xdc00 + (rest & 0x3ff));
    } else {
        (void)snprintf(text, sizeof text, "\\u%04x", c);
    }
    sbuf_add(d->r, d->out, text, strlen(text), origin);
}

static void dump_str(struct dump *d, const struct str *s)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    size_t begin = 0; /* start of the part that is copied unchanged */
    sbuf_text(d->r, d->out, "\"");
    for (size_t at = 0; at < s->bytes && d->r->rc == 0;) {
        uint32_t c;
        const size_t used = utf8_get((const uint8_t *)s->text + at, &c);
        const uint8_t origin = s->origins != NULL ? s->origins[at] : s->origin;
        const char *mark = c != 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (mark == NULL && c >= 0x20 && !(d->is_ascii && c > 0x7e)) {
            at += used;
            continue;
        }
        sbuf_part(d->r, d->out, s, begin, at);
        if (mark != NULL) {
            const char escaped[2] = {'\\', to[mark - from]};
            sbuf_add(d->r, d->out, escaped, 2, origin);
        } else {
            dump_escape(d, c, origin);
        }
        at += used;
        begin = at;
    }
    sbuf_part(d->r, d->out, s, begin, s->bytes);
    sbuf_text(d->r, d->out, "\"");
}

static void dump_line(struct dump *d)
{
    if (d->indent == NULL)
        return;
    sbuf_text(d->r, d->out, "\n");
    sbuf_fill(d->r, d->out, d->indent, d->level);
}

static void dump_value(struct dump *d, struct value v);

static void dump_list(struct dump *d, const struct list *l)
{
    if (l->kind != LIST_LIST && l->kind != LIST_TUPLE && l->kind != LIST_GROUP) {
        (void)run_fail(d->r, "tojson: a %s cannot be written as JSON",
                       value_type(v_list((struct list *)l)));
        return;
    }
    sbuf_text(d->r, d->out, "[");
    d->level++;
    for (size_t i = 0; i < l->n && d->r->rc == 0; i++) {
        if (i > 0)
            sbuf_str(d->r, d->out, d->comma);
        dump_line(d);
        dump_value(d, l->items[i]);
    }
    d->level--;
    if (l->n > 0)
        dump_line(d);
    sbuf_text(d->r, d->out, "]");
}

static void dump_key(struct dump *d, struct value key)
{
    if (is_str(key)) {
        dump_str(d, key.u.str);
    } else if (is_number(key) || key.kind == V_NONE) {
        sbuf_text(d->r, d->out, "\"");
        dump_value(d, key);
        sbuf_text(d->r, d->out, "\"");
    } else {
        (void)run_fail(d->r, "tojson: a JSON key cannot be a %s", value_type(key));
    }
}

static struct dict *sorted(struct dump *d, struct dict *from)
{
    struct run *r = d->r;
    struct list *order = list_new(r, LIST_LIST);
    struct value *keys = run_new(r, from->n + 1, sizeof *keys);
    for (size_t i = 0; keys != NULL && i < from->n && r->rc == 0; i++) {
        list_push(r, order, from->entries[i].key);
        keys[i] = from->entries[i].key;
    }
    list_sort(r, order, keys, false);
    struct dict *made = dict_new(r);
    for (size_t i = 0; i < order->n && r->rc == 0; i++) {
        const struct value *v = dict_find(r, from, order->items[i]);
        if (v != NULL)
            dict_set(r, made, order->items[i], *v);
    }
    return made;
}

static void dump_dict(struct dump *d, struct dict *from)
{
    if (d->is_sorted)
        from = sorted(d, from);
    sbuf_text(d->r, d->out, "{");
    d->level++;
    for (size_t i = 0; i < from->n && d->r->rc == 0; i++) {
        if (i > 0)
            sbuf_str(d->r, d->out, d->comma);
        dump_line(d);
        dump_key(d, from->entries[i].key);
        sbuf_str(d->r, d->out, d->colon);
        dump_value(d, from->entries[i].value);
    }
    d->level--;
    if (from->n > 0)
        dump_line(d);
    sbuf_text(d->r, d->out, "}");
}

static void dump_value(struct dump *d, struct value v)
{
    struct run *r = d->r;
    if (!run_enter(r)) {
        run_leave(r);
        return;
    }
    switch (v.kind) {
    case V_NONE:
        sbuf_text(r, d->out, "null");
        break;
    case V_BOOL:
        sbuf_text(r, d->out, v.u.flag ? "true" : "false");
        break;
    case V_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            sbuf_text(r, d->out, isnan(v.u.f) ? "NaN" : v.u.f > 0 ? "Infinity" : "-Infinity");
        else
            value_print(r, d->out, v, true);
        break;
    case V_INT:
        value_print(r, d->out, v, true);
        break;
    case V_STR:
        dump_str(d, v.u.str);
        break;
    case V_LIST:
        dump_list(d, v.u.list);
        break;
    case V_DICT:
        dump_dict(d, v.u.dict);
        break;
    default:
        (void)run_fail(r, "tojson: %s cannot be written as JSON", value_type(v));
        break;
    }
    run_leave(r);
}

static const struct str *blanks(struct run *r, int64_t n)
{
    static const struct str blank = {.text = " ", .bytes = 1, .n_chars = 1};
    struct sbuf b = {0};
    sbuf_fill(r, &b, &blank, n > 0 ? (size_t)n : 0);
    return sbuf_take(r, &b);
}

struct value value_json(struct run *r, struct value v, const struct args *args)
{
    struct value given[4];
    if (!args_bind(r, "tojson", args, "ensure_ascii? indent? separators? sort_keys?", given))
        return v_undefined();
    struct sbuf out = {0};
    struct dump d = {.r = r, .out = &out, .is_ascii = value_is_true(r, given[0]),
                     .is_sorted = value_is_true(r, given[3])};
    if (is_str(given[1]))
        d.indent = given[1].u.str;
    else if (given[1].kind != V_MISSING && given[1].kind != V_NONE)
        d.indent = blanks(r, arg_int(r, "tojson(indent)", given[1], 0));
    d.comma = v_text(r, d.indent != NULL ? "," : ", ").u.str;
    d.colon = v_text(r, ": ").u.str;
    if (given[2].kind != V_MISSING && given[2].kind != V_NONE) {
        const struct list *two = value_items(r, given[2]);
        if (two->n != 2)
            return run_fail(r, "tojson: 'separators' must be two strings");
        d.comma = arg_str(r, "tojson(separators)", two->items[0]);
        d.colon = arg_str(r, "tojson(separators)", two->items[1]);
    }
    if (r->rc == 0)
        dump_value(&d, v);
    return v_str(sbuf_take(r, &out));
}

/* ---- in -------------------------------------------------------------------------------------- */

static const struct str *str_from_json(struct run *r, const char *text, size_t bytes,
                                       enum jinja_origin origin)
{
    struct str *s = run_new(r, 1, sizeof *s); /* the JSON document keeps the text */
    if (s == NULL || !run_work(r, bytes))
        return &r->sink_str;
    *s = (struct str){.text = text, .bytes = bytes, .origin = (uint8_t)origin,
                      .n_chars = utf8_characters(text, bytes)};
    return s;
}

static struct value dict_from_json(struct run *r, const json_t *json, enum jinja_origin origin)
{
    struct dict *d = dict_new(r);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)json, key, item)
    {
        if (r->rc != 0)
            break;
        dict_set(r, d, v_str(str_from_json(r, key, strlen(key), origin)),
                 value_from_json(r, item, origin));
    }
    return v_dict(d);
}

struct value value_from_json(struct run *r, const json_t *json, enum jinja_origin origin)
{
    struct value v = v_none();
    if (json_is_string(json))
        return v_str(str_from_json(r, json_string_value(json), json_string_length(json), origin));
    if (json_is_boolean(json))
        return v_bool(json_is_true(json));
    if (json_is_integer(json))
        return v_int(json_integer_value(json));
    if (json_is_real(json))
        return v_float(json_real_value(json));
    if (run_enter(r) && json_is_object(json)) {
        v = dict_from_json(r, json, origin);
    } else if (r->rc == 0 && json_is_array(json)) {
        struct list *l = list_new(r, LIST_LIST);
        for (size_t i = 0; i < json_array_size(json) && r->rc == 0; i++)
            list_push(r, l, value_from_json(r, json_array_get(json, i), origin));
        v = v_list(l);
    }
    run_leave(r);
    return v;
}

/* Known roles count as the template's text: a template that writes '<|' + role + '|>' means a
 * token. */
static bool is_known_role(const char *role)
{
    static const char *const known[] = {"system", "user", "assistant", "tool", "developer",
                                        "function", "model", "ipython", "tool_response"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(role, known[i]) == 0)
            return true;
    return false;
}

static bool is_answer_field(const char *field)
{
    return strcmp(field, "content") == 0 || strcmp(field, "reasoning_content") == 0 ||
           strcmp(field, "reasoning") == 0 || strcmp(field, "thinking") == 0;
}

static struct value message_from_json(struct run *r, const json_t *json)
{
    const char *role = json_string_value(json_object_get(json, "role"));
    const bool is_answer = role != NULL && strcmp(role, "assistant") == 0;
    struct dict *d = dict_new(r);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)json, key, item)
    {
        enum jinja_origin origin = JINJA_DATA;
        if (is_answer && is_answer_field(key))
            origin = JINJA_ANSWER;
        if (strcmp(key, "role") == 0 && role != NULL && is_known_role(role))
            origin = JINJA_TEMPLATE;
        if (r->rc != 0)
            break;
        dict_set(r, d, v_str(str_from_json(r, key, strlen(key), JINJA_DATA)),
                 value_from_json(r, item, origin));
    }
    return v_dict(d);
}

struct value value_from_messages(struct run *r, const json_t *messages)
{
    if (!json_is_array(messages))
        return value_from_json(r, messages, JINJA_DATA);
    struct list *l = list_new(r, LIST_LIST);
    for (size_t i = 0; i < json_array_size(messages) && r->rc == 0; i++) {
        const json_t *item = json_array_get(messages, i);
        list_push(r, l, json_is_object(item) ? message_from_json(r, item)
                                             : value_from_json(r, item, JINJA_DATA));
    }
    return v_list(l);
}
