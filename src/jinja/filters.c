/* Filters for text and numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/run.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

/* Returns markup unchanged and anything else as a string. */
static struct value soft(struct run *r, struct value v)
{
    return v_str(value_str(r, v));
}

/* Applies a filter that is a method of the string. */
static struct value by_method(struct run *r, struct value v, const struct args *args,
                              const char *name)
{
    const struct str key = {.text = name, .bytes = strlen(name), .n_chars = strlen(name)};
    return str_method(&key)->call(r, soft(r, v), args);
}

static struct value x_upper(struct run *r, struct value v, const struct args *args)
{
    return by_method(r, v, args, "upper");
}

static struct value x_lower(struct run *r, struct value v, const struct args *args)
{
    return by_method(r, v, args, "lower");
}

static struct value x_capitalize(struct run *r, struct value v, const struct args *args)
{
    return by_method(r, v, args, "capitalize");
}

static struct value x_center(struct run *r, struct value v, const struct args *args)
{
    struct value width;
    if (!args_bind(r, "center", args, "width?", &width))
        return v_undefined();
    width = width.kind == V_MISSING ? v_int(80) : width;
    return by_method(r, v, &(struct args){.args = &width, .n = 1}, "center");
}

static struct value x_trim(struct run *r, struct value v, const struct args *args)
{
    struct value chars;
    return args_bind(r, "trim", args, "chars?", &chars)
               ? v_str(str_strip(r, value_str(r, v), chars, 3)) : v_undefined();
}

static struct value x_string(struct run *r, struct value v, const struct args *args)
{
    return args_bind(r, "string", args, "/", NULL) ? soft(r, v) : v_undefined();
}

static struct value x_title(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "title", args, "", NULL))
        return v_undefined();
    const struct str *s = value_str(r, v);
    struct sbuf text = {0};
    bool is_start = true;
    for (size_t at = 0; at < s->bytes && r->rc == 0;) {
        uint32_t c, out[3];
        const uint8_t origin = s->origins != NULL ? s->origins[at] : s->origin;
        at += utf8_get((const uint8_t *)s->text + at, &c);
        const size_t n = python_change_case(c, is_start ? PYTHON_UPPER : PYTHON_LOWER, out);
        for (size_t i = 0; i < n; i++)
            sbuf_char(r, &text, out[i], origin);
        is_start = python_is_space(c) || (c < 0x80 && strchr("-({[<", (int)c) != NULL && c != 0);
    }
    return v_str(sbuf_take(r, &text));
}

static struct value x_replace(struct run *r, struct value v, const struct args *args)
{
    struct value given[3];
    if (!args_bind(r, "replace", args, "old new count?", given))
        return v_undefined();
    const int64_t count = given[2].kind == V_NONE ? -1 : arg_int(r, "replace", given[2], -1);
    return v_str(str_replace(r, value_str(r, v), value_str(r, given[0]), value_str(r, given[1]),
                             count));
}

static struct value as_markup(struct run *r, const struct str *s)
{
    struct str *made = run_new(r, 1, sizeof *made);
    if (made == NULL)
        return v_undefined();
    *made = *s;
    made->is_markup = true;
    return v_str(made);
}

static struct value x_safe(struct run *r, struct value v, const struct args *args)
{
    return args_bind(r, "safe", args, "", NULL) ? as_markup(r, value_str(r, v)) : v_undefined();
}

static struct value x_escape(struct run *r, struct value v, const struct args *args)
{
    return args_bind(r, "escape", args, "/", NULL) ? v_str(value_escape(r, v)) : v_undefined();
}

static struct value x_forceescape(struct run *r, struct value v, const struct args *args)
{
    return args_bind(r, "forceescape", args, "", NULL) ? v_str(str_escape(r, value_str(r, v)))
                                                       : v_undefined();
}

static struct value x_format(struct run *r, struct value v, const struct args *args)
{
    if (args->n > 0 && args->keywords != NULL)
        return run_fail(r, "format takes names or positions, not both");
    if (args->keywords != NULL)
        return str_format_percent(r, value_str(r, v), v_dict(args->keywords));
    struct list *tuple = list_new(r, LIST_TUPLE);
    for (size_t i = 0; i < args->n; i++)
        list_push(r, tuple, args->args[i]);
    return str_format_percent(r, value_str(r, v), v_list(tuple));
}

static struct value x_indent(struct run *r, struct value v, const struct args *args)
{
    static const struct str blank = {.text = " ", .bytes = 1, .n_chars = 1};
    struct value given[3];
    if (!args_bind(r, "indent", args, "width? first? blank?", given))
        return v_undefined();
    const struct str *s = arg_str(r, "indent", v);
    struct sbuf by = {0}, text = {0};
    if (is_str(given[0])) {
        sbuf_str(r, &by, given[0].u.str);
    } else {
        const int64_t width = arg_int(r, "indent", given[0], 4);
        sbuf_fill(r, &by, &blank, width > 0 ? (size_t)width : 0);
    }
    const struct str *indent = sbuf_take(r, &by);
    struct sbuf whole = {0};
    sbuf_str(r, &whole, s);
    sbuf_text(r, &whole, "\n");
    const struct list *lines = str_lines(r, sbuf_take(r, &whole), false);
    if (value_is_true(r, given[1]))
        sbuf_str(r, &text, indent);
    for (size_t i = 0; i < lines->n && r->rc == 0; i++) {
        const struct str *line = lines->items[i].u.str;
        if (i > 0)
            sbuf_text(r, &text, "\n");
        if (i > 0 && (line->bytes > 0 || value_is_true(r, given[2])))
            sbuf_str(r, &text, indent);
        sbuf_str(r, &text, line);
    }
    const struct str *made = sbuf_take(r, &text);
    return s->is_markup ? as_markup(r, made) : v_str(made);
}

static struct value x_truncate(struct run *r, struct value v, const struct args *args)
{
    struct value given[4];
    if (!args_bind(r, "truncate", args, "length? killwords? end? leeway?", given))
        return v_undefined();
    int64_t n = 0;
    const int64_t length = arg_int(r, "truncate", given[0], 255);
    const struct str *end = given[2].kind == V_MISSING ? v_text(r, "...").u.str
                                                       : arg_str(r, "truncate", given[2]);
    const int64_t leeway = given[3].kind == V_NONE ? 5 : arg_int(r, "truncate", given[3], 5);
    const int64_t kept = length < 0 ? -1 : length - (int64_t)end->n_chars;
    if (r->rc == 0 && (kept < 0 || leeway < 0))
        return run_fail(r, "truncate: the length must not be shorter than the end");
    if (!value_length(r, v, &n) || n - leeway <= length)
        return v;
    const struct str *s = arg_str(r, "truncate", v);
    if (r->rc != 0)
        return v_undefined();
    size_t bytes = str_offset(s, (size_t)kept);
    if (!value_is_true(r, given[1]))
        for (size_t at = bytes; at-- > 0;)
            if (s->text[at] == ' ') {
                bytes = at;
                break;
            }
    struct sbuf text = {0};
    sbuf_part(r, &text, s, 0, bytes);
    sbuf_str(r, &text, end);
    return v_str(sbuf_take(r, &text));
}

static struct value x_wordcount(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "wordcount", args, "", NULL))
        return v_undefined();
    const struct str *s = value_str(r, v);
    int64_t n = 0;
    bool was_word = false;
    for (size_t at = 0; at < s->bytes;) {
        uint32_t c;
        at += utf8_get((const uint8_t *)s->text + at, &c);
        const bool is_word = c == '_' || (unicode_bits(c) & (UNICODE_L | UNICODE_N)) != 0;
        n += is_word && !was_word;
        was_word = is_word;
    }
    (void)run_work(r, s->bytes);
    return v_int(n);
}

static void add_quoted(struct run *r, struct sbuf *b, const struct str *s, bool is_query)
{
    for (size_t i = 0; i < s->bytes && r->rc == 0; i++) {
        const unsigned char c = (unsigned char)s->text[i];
        const uint8_t origin = s->origins != NULL ? s->origins[i] : s->origin;
        char text[4] = {(char)c, '\0'};
        const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                              (c >= 'a' && c <= 'z') || (c != 0 && strchr("_.-~", c) != NULL) ||
                              (c == '/' && !is_query);
        if (is_query && c == ' ')
            text[0] = '+';
        else if (!is_plain)
            (void)snprintf(text, sizeof text, "%%%02X", c);
        sbuf_add(r, b, text, strlen(text), origin);
    }
}

static struct value x_urlencode(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "urlencode", args, "", NULL))
        return v_undefined();
    struct sbuf text = {0};
    if (is_str(v) || !value_is_iterable(v)) {
        add_quoted(r, &text, value_str(r, v), false);
        return v_str(sbuf_take(r, &text));
    }
    const struct str key = {.text = "items", .bytes = 5, .n_chars = 5};
    if (v.kind == V_DICT)
        v = dict_method(&key)->call(r, v, &(struct args){0});
    const struct list *pairs = value_items(r, v);
    for (size_t i = 0; i < pairs->n && r->rc == 0; i++) {
        const struct list *pair = value_items(r, pairs->items[i]);
        if (r->rc == 0 && pair->n != 2)
            return run_fail(r, "urlencode needs pairs");
        sbuf_text(r, &text, i > 0 ? "&" : "");
        for (size_t k = 0; k < 2 && r->rc == 0; k++) {
            sbuf_text(r, &text, k > 0 ? "=" : "");
            add_quoted(r, &text, value_str(r, pair->items[k]), true);
        }
    }
    return v_str(sbuf_take(r, &text));
}

static struct value x_xmlattr(struct run *r, struct value v, const struct args *args)
{
    struct value autospace;
    if (!args_bind(r, "xmlattr", args, "autospace?", &autospace))
        return v_undefined();
    if (v.kind != V_DICT)
        return run_fail(r, "xmlattr needs a dict, not %s", value_type(v));
    struct sbuf text = {0};
    for (size_t i = 0; i < v.u.dict->n && r->rc == 0; i++) {
        const struct dict_entry *entry = &v.u.dict->entries[i];
        if (entry->value.kind == V_NONE || entry->value.kind == V_UNDEFINED)
            continue;
        const struct str *key = arg_str(r, "xmlattr", entry->key);
        for (size_t k = 0; k < key->bytes; k++)
            if (key->text[k] != '\0' && strchr(" \t\n\r\f\v/>=", key->text[k]) != NULL)
                return run_fail(r, "xmlattr: a name is not valid");
        if (text.n > 0 || autospace.kind == V_MISSING || value_is_true(r, autospace))
            sbuf_text(r, &text, " ");
        sbuf_str(r, &text, value_escape(r, entry->key));
        sbuf_text(r, &text, "=\"");
        sbuf_str(r, &text, value_escape(r, entry->value));
        sbuf_text(r, &text, "\"");
    }
    return v_str(sbuf_take(r, &text));
}

static struct value x_tojson(struct run *r, struct value v, const struct args *args)
{
    return value_json(r, v, args);
}

static struct value x_refused(struct run *r, struct value v, const struct args *args)
{
    (void)v;
    (void)args;
    return run_fail(r, "this filter is not supported in a chat template");
}

const struct filter filters_text[] = {
    {"upper", x_upper}, {"lower", x_lower}, {"capitalize", x_capitalize}, {"title", x_title},
    {"center", x_center}, {"trim", x_trim}, {"string", x_string}, {"replace", x_replace},
    {"safe", x_safe}, {"e", x_escape}, {"escape", x_escape}, {"forceescape", x_forceescape},
    {"format", x_format}, {"indent", x_indent}, {"truncate", x_truncate},
    {"wordcount", x_wordcount}, {"urlencode", x_urlencode}, {"xmlattr", x_xmlattr},
    {"tojson", x_tojson}, {"random", x_refused}, {"urlize", x_refused}, {"pprint", x_refused},
    {"wordwrap", x_refused}, {"striptags", x_refused}, {NULL, NULL},
};

/* ---- numbers --------------------------------------------------------------------------------- */

static struct value x_abs(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "abs", args, "/", NULL))
        return v_undefined();
    if (v.kind == V_FLOAT)
        return v_float(fabs(v.u.f));
    if (!is_intlike(v) || int_of(v) == INT64_MIN)
        return run_fail(r, "abs needs a number, not %s", value_type(v));
    return v_int(int_of(v) < 0 ? -int_of(v) : int_of(v));
}

/* Truncates a float like Python's int(); missing where Python raises. */
static struct value int_of_float(struct run *r, double x, bool is_quiet)
{
    if (isnan(x) || isinf(x))
        return is_quiet ? (struct value){0}
                        : run_fail(r, "infinity cannot be converted to an integer");
    if (fabs(x) >= 9223372036854775807.0)
        return run_fail(r, "an integer does not fit into 64 bits");
    return v_int((int64_t)x);
}

static struct value x_int(struct run *r, struct value v, const struct args *args)
{
    struct value given[2], found = {0};
    if (!args_bind(r, "int", args, "default? base?", given))
        return v_undefined();
    const struct value fallback = given[0].kind == V_MISSING ? v_int(0) : given[0];
    const int64_t base = arg_int(r, "int", given[1], 10);
    if (v.kind == V_UNDEFINED)
        return run_fail(r, "int: the value is undefined");
    if (is_intlike(v))
        return v_int(int_of(v));
    if (v.kind == V_FLOAT) {
        if (isinf(v.u.f))
            return run_fail(r, "infinity cannot be converted to an integer");
        found = int_of_float(r, v.u.f, true);
    } else if (is_str(v)) {
        found = int_of_str(r, v.u.str, base);
        const struct value real = found.kind == V_MISSING ? float_of_str(r, v.u.str) : found;
        if (found.kind == V_MISSING && real.kind == V_FLOAT)
            found = int_of_float(r, real.u.f, true);
    }
    return found.kind == V_MISSING ? fallback : found;
}

static struct value x_float(struct run *r, struct value v, const struct args *args)
{
    struct value given, found = {0};
    if (!args_bind(r, "float", args, "default?", &given))
        return v_undefined();
    if (v.kind == V_UNDEFINED)
        return run_fail(r, "float: the value is undefined");
    if (is_number(v))
        return v_float(float_of(v));
    if (is_str(v))
        found = float_of_str(r, v.u.str);
    if (found.kind == V_MISSING)
        found = given.kind == V_MISSING ? v_float(0) : given;
    return found;
}

static double power_of_ten(int64_t n)
{
    double x = 1;
    for (; n > 0; n--)
        x *= 10;
    return x;
}

static struct value round_common(struct run *r, struct value v, int64_t digits)
{
    if (is_intlike(v) && digits >= 0)
        return v_int(int_of(v));
    if (is_intlike(v)) {
        const double unit = power_of_ten(-digits);
        if (digits < -18)
            return v_int(0);
        const int64_t by = (int64_t)unit, x = int_of(v);
        int64_t down = x / by * by, rest = x % by;
        if (rest < 0) {
            rest += by;
            if (__builtin_sub_overflow(down, by, &down))
                return run_fail(r, "an integer does not fit into 64 bits");
        }
        const bool is_up = rest > by - rest || (rest == by - rest && (down / by) % 2 != 0);
        if (is_up && __builtin_add_overflow(down, by, &down))
            return run_fail(r, "an integer does not fit into 64 bits");
        return v_int(down);
    }
    if (isnan(v.u.f) || isinf(v.u.f) || digits > 300)
        return v;
    if (digits < 0) {
        const double unit = power_of_ten(-digits > 308 ? 308 : -digits), x = v.u.f / unit;
        return v_float(nearbyint(x) * unit);
    }
    char text[800]; /* correctly rounded, as in Python */
    (void)snprintf(text, sizeof text, "%.*f", (int)digits, v.u.f);
    (void)r;
    return v_float(strtod(text, NULL));
}

static struct value x_round(struct run *r, struct value v, const struct args *args)
{
    struct value given[2];
    if (!args_bind(r, "round", args, "precision? method?", given))
        return v_undefined();
    const int64_t digits = arg_int(r, "round", given[0], 0);
    const struct str *method = given[1].kind == V_MISSING ? v_text(r, "common").u.str
                                                          : arg_str(r, "round", given[1]);
    if (r->rc == 0 && !is_number(v))
        return run_fail(r, "round needs a number, not %s", value_type(v));
    if (digits > 300 || digits < -300)
        return run_fail(r, "round: %lld digits are out of range", (long long)digits);
    if (str_is(method, "common"))
        return r->rc == 0 ? round_common(r, v, digits) : v_undefined();
    const bool is_ceil = str_is(method, "ceil");
    if (r->rc != 0 || (!is_ceil && !str_is(method, "floor")))
        return run_fail(r, "round: the method must be common, ceil or floor");
    const double unit = power_of_ten(digits < 0 ? -digits : digits);
    const double x = digits < 0 ? float_of(v) / unit : float_of(v) * unit;
    const double whole = is_ceil ? ceil(x) : floor(x);
    return v_float(digits < 0 ? whole * unit : whole / unit);
}

static struct value x_filesizeformat(struct run *r, struct value v, const struct args *args)
{
    static const char *const units[2][8] = {
        {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
        {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"},
    };
    struct value binary;
    char text[64];
    if (!args_bind(r, "filesizeformat", args, "binary?", &binary))
        return v_undefined();
    if (is_str(v))
        v = float_of_str(r, v.u.str);
    if (!is_number(v))
        return run_fail(r, "filesizeformat needs a number");
    const bool is_binary = value_is_true(r, binary);
    const double bytes = float_of(v), base = is_binary ? 1024 : 1000;
    if (isnan(bytes))
        return run_fail(r, "filesizeformat needs a number");
    double unit = base * base;
    int i = 0;
    while (i < 7 && bytes >= unit) {
        unit *= base;
        i++;
    }
    if (bytes == 1)
        (void)snprintf(text, sizeof text, "1 Byte");
    else if (bytes < base)
        (void)snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes));
    else
        (void)snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, units[is_binary][i]);
    return v_text(r, text);
}

const struct filter filters_numbers[] = {
    {"abs", x_abs}, {"int", x_int}, {"float", x_float}, {"round", x_round},
    {"filesizeformat", x_filesizeformat}, {NULL, NULL},
};
