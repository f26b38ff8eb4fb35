/* Python's two kinds of formatting: "%s" % x and "{}".format(x). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jinja/run.h"
#include "text/unicode.h"

#define MAX_WIDTH 10000

/* How one value is formatted. */
struct layout {
    bool is_left, is_signed, is_blank, is_alternate, is_zero, has_comma, has_precision;
    char align; /* 0 for the type's default */
    uint32_t fill;
    int64_t width, precision;
    char type;
};

static void add_padded(struct run *r, struct sbuf *out, const struct layout *l,
                       const struct str *s, size_t n_sign, char usual)
{
    uint8_t utf8[4];
    const size_t fill_bytes = utf8_put(l->fill, utf8);
    const struct str fill = {.text = (char *)utf8, .bytes = fill_bytes, .n_chars = 1};
    const size_t n = l->width > (int64_t)s->n_chars ? (size_t)l->width - s->n_chars : 0;
    const char align = l->align != 0 ? l->align : usual;
    const size_t before = align == '>' || align == '=' ? n : align == '^' ? n / 2 : 0;
    n_sign = align == '=' ? n_sign : 0;
    sbuf_part(r, out, s, 0, n_sign);
    sbuf_fill(r, out, &fill, before);
    sbuf_part(r, out, s, n_sign, s->bytes);
    sbuf_fill(r, out, &fill, n - before);
}

/* Adds commas between groups of three digits of the integer part. */
static void add_commas(const char *digits, char *out, size_t out_bytes)
{
    const size_t n = strspn(digits, "0123456789");
    size_t at = 0;
    for (size_t i = 0; digits[i] != '\0' && at + 2 < out_bytes; i++) {
        if (i > 0 && i < n && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

static const char *sign_of(const struct layout *l, bool is_negative)
{
    return is_negative ? "-" : l->is_signed ? "+" : l->is_blank ? " " : "";
}

static void add_number(struct run *r, struct sbuf *out, const struct layout *l, const char *sign,
                       const char *digits)
{
    char grouped[1024];
    struct sbuf text = {0};
    if (l->has_comma) {
        add_commas(digits, grouped, sizeof grouped);
        digits = grouped;
    }
    sbuf_text(r, &text, sign);
    sbuf_text(r, &text, digits);
    add_padded(r, out, l, sbuf_take(r, &text), strlen(sign), '>');
}

static void digits_in(uint64_t x, unsigned base, bool is_upper, char out[72])
{
    char reversed[72];
    size_t n = 0;
    do
        reversed[n++] = (is_upper ? "0123456789ABCDEF" : "0123456789abcdef")[x % base];
    while ((x /= base) > 0);
    for (size_t i = 0; i < n; i++)
        out[i] = reversed[n - 1 - i];
    out[n] = '\0';
}

static void add_int(struct run *r, struct sbuf *out, const struct layout *l, int64_t x)
{
    char digits[72], sign[8], text[512];
    const uint64_t size = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    const char type = l->type;
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    digits_in(size, base, type == 'X', digits);
    (void)snprintf(sign, sizeof sign, "%s", sign_of(l, x < 0));
    if (l->is_alternate && base != 10)
        (void)snprintf(sign + strlen(sign), sizeof sign - strlen(sign), "0%c", type);
    const int zeros = l->has_precision && l->precision > (int64_t)strlen(digits)
                          ? (int)(l->precision - (int64_t)strlen(digits)) : 0;
    if (zeros > 400) {
        (void)run_fail(r, "a number with %d digits is too long", zeros);
        return;
    }
    (void)snprintf(text, sizeof text, "%0*d%s", zeros, 0, digits);
    add_number(r, out, l, sign, zeros > 0 ? text : digits);
}

static void add_float(struct run *r, struct sbuf *out, const struct layout *l, double x)
{
    char text[800], form[16];
    char type = l->type;
    const bool is_percent = type == '%', is_plain = type == 0;
    const int64_t precision = l->has_precision ? l->precision : 6;
    if (precision > 400) {
        (void)run_fail(r, "a precision of %lld digits is out of range", (long long)precision);
        return;
    }
    if (is_plain && !l->has_precision) {
        float_repr(fabs(x), text);
    } else {
        type = is_percent ? 'f' : is_plain || type == 'n' ? 'g' : type;
        (void)snprintf(form, sizeof form, "%%%s.*%c", l->is_alternate ? "#" : "", type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof text - 2, form, (int)precision,
                       fabs(is_percent ? x * 100 : x));
#pragma GCC diagnostic pop
        if (is_plain && strpbrk(text, ".en") == NULL)
            memcpy(text + strlen(text), ".0", 3);
        if (is_percent)
            memcpy(text + strlen(text), "%", 2);
    }
    add_number(r, out, l, sign_of(l, signbit(x) && !isnan(x)), text);
}

/* ---- % --------------------------------------------------------------------------------------- */

struct percent {
    struct run *r;
    const struct str *format;
    size_t at;
    const struct list *tuple; /* NULL for a single value */
    struct value single;
    size_t n_used;
    bool is_mapped;
    struct sbuf out;
};

static struct value next_value(struct percent *f)
{
    const size_t n = f->tuple != NULL ? f->tuple->n : 1;
    if (f->n_used >= n)
        return run_fail(f->r, "not enough values for the format");
    const size_t i = f->n_used++;
    return f->tuple != NULL ? f->tuple->items[i] : f->single;
}

static char look(const struct percent *f)
{
    return f->at < f->format->bytes ? f->format->text[f->at] : '\0';
}

static int64_t take_number(struct percent *f)
{
    int64_t x = 0;
    if (look(f) == '*') {
        f->at++;
        x = arg_int(f->r, "'*' in a format", next_value(f), 0);
    }
    while (look(f) >= '0' && look(f) <= '9' && x <= MAX_WIDTH)
        x = 10 * x + (f->format->text[f->at++] - '0');
    if (x <= MAX_WIDTH && x >= -MAX_WIDTH)
        return x;
    (void)run_fail(f->r, "a width above %d is not supported", MAX_WIDTH);
    return 0;
}

static void take_flags(struct percent *f, struct layout *l)
{
    for (;; f->at++) {
        switch (look(f)) {
        case '-':
            l->is_left = true;
            break;
        case '+':
            l->is_signed = true;
            break;
        case ' ':
            l->is_blank = true;
            break;
        case '#':
            l->is_alternate = true;
            break;
        case '0':
            l->is_zero = true;
            break;
        default:
            return;
        }
    }
}

static void percent_text(struct percent *f, struct layout *l, struct value v)
{
    struct run *r = f->r;
    struct sbuf text = {0};
    const struct str *s;
    if (l->type == 'c' && is_intlike(v)) {
        if (int_of(v) < 0 || int_of(v) > 0x10ffff || (int_of(v) >= 0xd800 && int_of(v) < 0xe000))
            (void)run_fail(r, "%%c needs a character");
        else
            sbuf_char(r, &text, (uint32_t)int_of(v), JINJA_TEMPLATE);
        s = sbuf_take(r, &text);
    } else if (l->type == 'c') {
        s = arg_str(r, "%c", v);
        if (r->rc == 0 && s->n_chars != 1)
            (void)run_fail(r, "%%c needs one character");
    } else {
        value_print(r, &text, v, l->type != 's');
        s = sbuf_take(r, &text);
    }
    if (f->format->is_markup)
        s = is_str(v) && v.u.str->is_markup ? s : str_escape(r, s);
    if (l->has_precision && l->type != 'c')
        s = str_part(r, s, 0, str_offset(s, (size_t)l->precision));
    l->fill = ' ';
    l->align = l->is_left ? '<' : '>';
    add_padded(r, &f->out, l, s, 0, '>');
}

static void percent_number(struct percent *f, struct layout *l, struct value v)
{
    struct run *r = f->r;
    const bool is_int = strchr("diuoxX", l->type) != NULL;
    const bool is_whole = l->type == 'd' || l->type == 'i' || l->type == 'u';
    l->align = l->is_left ? '<' : l->is_zero ? '=' : '>';
    l->fill = l->is_zero && !l->is_left ? '0' : ' ';
    if (!is_number(v)) {
        (void)run_fail(r, "%%%c needs a number, not %s", l->type, value_type(v));
    } else if (!is_int) {
        add_float(r, &f->out, l, float_of(v));
    } else if (v.kind == V_FLOAT && (!is_whole || isnan(v.u.f) || fabs(v.u.f) >= 9e18)) {
        (void)run_fail(r, "%%%c needs an integer", l->type);
    } else {
        add_int(r, &f->out, l, v.kind == V_FLOAT ? (int64_t)v.u.f : int_of(v));
    }
}

/* %(name) */
static bool take_key(struct percent *f, struct value *v)
{
    const size_t begin = ++f->at;
    int depth = 1;
    for (; depth > 0 && f->at < f->format->bytes; f->at++)
        depth += (look(f) == '(') - (look(f) == ')');
    if (depth > 0 || f->single.kind != V_DICT || f->tuple != NULL) {
        (void)run_fail(f->r, "a format with names needs a mapping");
        return false;
    }
    const struct value key = v_str(str_part(f->r, f->format, begin, f->at - 1));
    const struct value *found = dict_find(f->r, f->single.u.dict, key);
    if (found == NULL) {
        (void)run_fail(f->r, "a name in the format is not in the mapping");
        return false;
    }
    f->is_mapped = true;
    *v = *found;
    return true;
}

static void percent_one(struct percent *f)
{
    struct run *r = f->r;
    struct layout l = {.fill = ' '};
    struct value v = {0};
    if (look(f) == '(' && !take_key(f, &v))
        return;
    take_flags(f, &l);
    l.width = take_number(f);
    if (l.width < 0) {
        l.is_left = true;
        l.width = -l.width;
    }
    if (look(f) == '.') {
        f->at++;
        l.has_precision = true;
        l.precision = take_number(f);
        l.precision = l.precision < 0 ? 0 : l.precision;
    }
    while (look(f) == 'l' || look(f) == 'h' || look(f) == 'L')
        f->at++;
    l.type = look(f);
    f->at++;
    if (l.type == '%') {
        sbuf_text(r, &f->out, "%");
        return;
    }
    if (v.kind == V_MISSING && r->rc == 0)
        v = next_value(f);
    if (r->rc != 0)
        return;
    if (l.type != 0 && strchr("srac", l.type) != NULL)
        percent_text(f, &l, v);
    else if (l.type != 0 && strchr("diuoxXeEfFgG", l.type) != NULL)
        percent_number(f, &l, v);
    else
        (void)run_fail(r, "the format has an unknown conversion");
}

struct value str_format_percent(struct run *r, const struct str *format, struct value v)
{
    struct percent f = {.r = r, .format = format, .single = v};
    if (v.kind == V_LIST && (v.u.list->kind == LIST_TUPLE || v.u.list->kind == LIST_GROUP))
        f.tuple = v.u.list;
    while (f.at < format->bytes && r->rc == 0) {
        const char *found = memchr(format->text + f.at, '%', format->bytes - f.at);
        const size_t end = found != NULL ? (size_t)(found - format->text) : format->bytes;
        sbuf_part(r, &f.out, format, f.at, end);
        f.at = end + 1;
        if (found != NULL)
            percent_one(&f);
    }
    const bool is_mapping = v.kind == V_DICT || v.kind == V_UNDEFINED ||
                            (v.kind == V_LIST && v.u.list->kind <= LIST_RANGE);
    const bool may_ignore = f.is_mapped || (f.tuple == NULL && is_mapping);
    const size_t n = f.tuple != NULL ? f.tuple->n : 1;
    if (r->rc == 0 && f.n_used < n && !may_ignore)
        return run_fail(r, "more values than the format takes");
    struct str *made = (struct str *)sbuf_take(r, &f.out);
    made->is_markup = format->is_markup;
    return v_str(made);
}

/* ---- {} -------------------------------------------------------------------------------------- */

struct braces {
    struct run *r;
    const struct args *args;
    size_t n_auto;
    bool is_auto, is_numbered;
    bool is_markup;
    struct sbuf *out;
};

static void format_into(struct braces *f, const struct str *s, unsigned depth);

/* Returns the value that a field names: "", "0" or "name", each with .attributes and [items]. */
static struct value field_value(struct braces *f, const struct str *field)
{
    struct run *r = f->r;
    size_t end = 0;
    while (end < field->bytes && field->text[end] != '.' && field->text[end] != '[')
        end++;
    const struct str *head = str_part(r, field, 0, end);
    struct value index = head->bytes > 0 ? int_of_str(r, head, 10) : v_int(0);
    struct value v = v_undefined();
    if (head->bytes == 0 || index.kind == V_INT) {
        f->is_auto |= head->bytes == 0;
        f->is_numbered |= head->bytes > 0;
        const size_t i = head->bytes == 0 ? f->n_auto++ : (size_t)index.u.i;
        if ((f->is_auto && f->is_numbered) || i >= f->args->n)
            return run_fail(r, "format: no argument for a field");
        v = f->args->args[i];
    } else {
        const struct value *found = f->args->keywords != NULL
                                        ? dict_find_str(r, f->args->keywords, head) : NULL;
        if (found == NULL)
            return run_fail(r, "format: there is no argument '%.*s'", (int)head->bytes,
                            head->text);
        v = *found;
    }
    while (end < field->bytes && r->rc == 0) {
        const bool is_item = field->text[end] == '[';
        const size_t begin = ++end;
        while (end < field->bytes && (is_item ? field->text[end] != ']'
                                              : field->text[end] != '.' &&
                                                    field->text[end] != '['))
            end++;
        const struct str *name = str_part(r, field, begin, end);
        const struct value number = is_item ? int_of_str(r, name, 10) : (struct value){0};
        v = is_item ? get_item(r, v, number.kind == V_INT ? number : v_str(name))
                    : get_attribute(r, v, name);
        end += is_item;
    }
    return v;
}

static bool is_align(uint32_t c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

static bool parse_layout(struct run *r, const struct str *spec, struct layout *l)
{
    *l = (struct layout){.fill = ' '};
    const uint8_t *text = (const uint8_t *)spec->text;
    size_t at = 0, n = spec->bytes;
    uint32_t first = 0;
    const size_t first_bytes = n > 0 ? utf8_get(text, &first) : 0;
    if (first_bytes > 0 && first_bytes < n && is_align(text[first_bytes])) {
        l->fill = first;
        l->align = (char)text[first_bytes];
        at = first_bytes + 1;
    } else if (n > 0 && is_align(text[0])) {
        l->align = (char)text[at++];
    }
    if (at < n && strchr("+- ", text[at]) != NULL) {
        l->is_signed = text[at] == '+';
        l->is_blank = text[at++] == ' ';
    }
    if (at < n && text[at] == '#') {
        l->is_alternate = true;
        at++;
    }
    if (at < n && text[at] == '0') {
        l->is_zero = true;
        if (l->align == 0) {
            l->fill = '0';
            l->align = '=';
        }
        at++;
    }
    for (; at < n && text[at] >= '0' && text[at] <= '9' && l->width <= MAX_WIDTH; at++)
        l->width = 10 * l->width + (text[at] - '0');
    if (at < n && text[at] == ',') {
        l->has_comma = true;
        at++;
    }
    if (at < n && text[at] == '.') {
        l->has_precision = true;
        for (at++; at < n && text[at] >= '0' && text[at] <= '9' && l->precision <= MAX_WIDTH; at++)
            l->precision = 10 * l->precision + (text[at] - '0');
    }
    l->type = at < n ? (char)text[at++] : '\0';
    if (at < n || l->width > MAX_WIDTH || l->precision > MAX_WIDTH)
        (void)run_fail(r, "format: '%.*s' is not a valid format", (int)n, spec->text);
    return r->rc == 0;
}

static void format_value(struct run *r, struct sbuf *out, struct value v, const struct str *spec)
{
    struct layout l;
    if (spec->bytes == 0) {
        value_print(r, out, v, false);
        return;
    }
    if (!parse_layout(r, spec, &l))
        return;
    const bool is_float_type = l.type != 0 && strchr("eEfFgGn%", l.type) != NULL;
    if (is_str(v) && (l.type == 0 || l.type == 's') && l.align != '=') {
        const struct str *s = v.u.str;
        if (l.has_precision)
            s = str_part(r, s, 0, str_offset(s, (size_t)l.precision));
        add_padded(r, out, &l, s, 0, '<');
    } else if (is_str(v) && l.type == 0 && l.is_zero) {
        l.align = '<';
        add_padded(r, out, &l, v.u.str, 0, '<');
    } else if (v.kind == V_FLOAT && (l.type == 0 || is_float_type)) {
        add_float(r, out, &l, v.u.f);
    } else if (is_intlike(v) && is_float_type) {
        add_float(r, out, &l, float_of(v));
    } else if (is_intlike(v) && l.type == 'c') {
        struct sbuf text = {0};
        if (int_of(v) >= 0 && int_of(v) <= 0x10ffff &&
            !(int_of(v) >= 0xd800 && int_of(v) < 0xe000))
            sbuf_char(r, &text, (uint32_t)int_of(v), JINJA_TEMPLATE);
        add_padded(r, out, &l, sbuf_take(r, &text), 0, '<');
    } else if (is_intlike(v) && !l.has_precision && (l.type == 0 || strchr("dxXob", l.type))) {
        add_int(r, out, &l, int_of(v));
    } else {
        (void)run_fail(r, "format: '%.*s' cannot format %s", (int)spec->bytes, spec->text,
                       value_type(v));
    }
}

static void format_field(struct braces *f, const struct str *field, unsigned depth)
{
    struct run *r = f->r;
    size_t end = 0;
    bool in_brackets = false;
    for (; end < field->bytes; end++) {
        in_brackets = in_brackets ? field->text[end] != ']' : field->text[end] == '[';
        if (!in_brackets && (field->text[end] == '!' || field->text[end] == ':'))
            break;
    }
    struct value v = field_value(f, str_part(r, field, 0, end));
    const char conversion = end + 1 < field->bytes && field->text[end] == '!'
                                ? field->text[end + 1] : '\0';
    if (end < field->bytes && field->text[end] == '!') {
        if (conversion == '\0' || strchr("rsa", conversion) == NULL ||
            (end + 2 < field->bytes && field->text[end + 2] != ':')) {
            (void)run_fail(r, "format: '!' must be followed by r or s");
            return;
        }
        end += 2;
        struct sbuf text = {0};
        value_print(r, &text, v, conversion != 's');
        v = v_str(sbuf_take(r, &text));
    }
    struct sbuf spec = {0}, *const out = f->out;
    f->out = &spec;
    if (end < field->bytes)
        format_into(f, str_part(r, field, end + 1, field->bytes), depth + 1);
    f->out = out;
    struct sbuf text = {0};
    format_value(r, &text, v, sbuf_take(r, &spec));
    const struct str *made = sbuf_take(r, &text);
    const bool is_escaped = f->is_markup && depth == 0 && !(is_str(v) && v.u.str->is_markup);
    sbuf_str(r, out, is_escaped ? str_escape(r, made) : made);
}

static void format_into(struct braces *f, const struct str *s, unsigned depth)
{
    struct run *r = f->r;
    if (depth > 1)
        (void)run_fail(r, "format: fields are nested too deeply");
    for (size_t at = 0; at < s->bytes && r->rc == 0;) {
        const char c = s->text[at];
        const bool is_double = at + 1 < s->bytes && s->text[at + 1] == c && depth == 0;
        if (c != '{' && c != '}') {
            size_t end = at;
            while (end < s->bytes && s->text[end] != '{' && s->text[end] != '}')
                end++;
            sbuf_part(r, f->out, s, at, end);
            at = end;
        } else if (is_double) {
            sbuf_part(r, f->out, s, at, at + 1);
            at += 2;
        } else if (c == '}') {
            (void)run_fail(r, "format: a single '}'");
        } else {
            size_t end = at + 1;
            int open = 1;
            for (; end < s->bytes && open > 0; end++)
                open += (s->text[end] == '{') - (s->text[end] == '}');
            if (open > 0)
                (void)run_fail(r, "format: a single '{'");
            else
                format_field(f, str_part(r, s, at + 1, end - 1), depth);
            at = end;
        }
    }
}

struct value str_format_braces(struct run *r, const struct str *format, const struct args *args)
{
    struct sbuf out = {0};
    struct braces f = {.r = r, .args = args, .out = &out, .is_markup = format->is_markup};
    format_into(&f, format, 0);
    struct str *made = (struct str *)sbuf_take(r, &out);
    made->is_markup = format->is_markup;
    return v_str(made);
}
