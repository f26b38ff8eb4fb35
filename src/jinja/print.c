/* Values as text: Python's str() and repr(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/run.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

/* Writes the shortest digits that read back as the same number, in Python's layout. */
void float_repr(double x, char out[FLOAT_BYTES])
{
    if (isnan(x) || isinf(x)) {
        (void)snprintf(out, FLOAT_BYTES, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    char digits[32];
    int precision = 0;
    do
        (void)snprintf(digits, sizeof digits, "%.*e", precision, x);
    while (++precision < 17 && strtod(digits, NULL) != x);
    if (strtod(digits, NULL) != x)
        (void)snprintf(digits, sizeof digits, "%.16e", x);
    char *mark = strchr(digits, 'e');
    const int exponent = (int)strtol(mark + 1, NULL, 10);
    *mark = '\0';
    const char *sign = digits[0] == '-' ? "-" : "";
    const char *all = digits + strlen(sign);
    char plain[32]; /* the digits without the point */
    const size_t n = strlen(all) > 1 ? strlen(all) - 1 : 1;
    plain[0] = all[0];
    if (n > 1)
        memcpy(plain + 1, all + 2, n - 1);
    plain[n] = '\0';
    if (exponent < -4 || exponent >= 16)
        (void)snprintf(out, FLOAT_BYTES, "%s%c%s%se%c%02d", sign, plain[0], n > 1 ? "." : "",
                       plain + 1, exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        (void)snprintf(out, FLOAT_BYTES, "%s0.%.*s%s", sign, -exponent - 1, "0000", plain);
    else if (n <= (size_t)exponent + 1)
        (void)snprintf(out, FLOAT_BYTES, "%s%s%.*s.0", sign, plain, exponent + 1 - (int)n,
                       "0000000000000000");
    else
        (void)snprintf(out, FLOAT_BYTES, "%s%.*s.%s", sign, exponent + 1, plain,
                       plain + exponent + 1);
}

static void repr_char(struct run *r, struct sbuf *b, uint32_t c, uint32_t quote, uint8_t origin)
{
    char text[16];
    if (c == quote || c == '\\') {
        (void)snprintf(text, sizeof text, "\\%c", (char)c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        (void)snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if (!python_is_printable(c)) {
        const char *form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
        (void)snprintf(text, sizeof text, form, c);
    } else {
        sbuf_char(r, b, c, origin);
        return;
    }
    sbuf_add(r, b, text, strlen(text), origin);
}

static void repr_str(struct run *r, struct sbuf *b, const struct str *s)
{
    const bool has_single = s->bytes > 0 && memchr(s->text, '\'', s->bytes) != NULL;
    const bool has_double = s->bytes > 0 && memchr(s->text, '"', s->bytes) != NULL;
    const char quote[2] = {has_single && !has_double ? '"' : '\'', '\0'};
    if (s->is_markup)
        sbuf_text(r, b, "Markup(");
    sbuf_text(r, b, quote);
    for (size_t at = 0; at < s->bytes && r->rc == 0;) {
        uint32_t c;
        const uint8_t origin = s->origins != NULL ? s->origins[at] : s->origin;
        at += utf8_get((const uint8_t *)s->text + at, &c);
        repr_char(r, b, c, (uint8_t)quote[0], origin);
    }
    sbuf_text(r, b, quote);
    if (s->is_markup)
        sbuf_text(r, b, ")");
}

static void repr_range(struct run *r, struct sbuf *b, const struct list *l)
{
    char text[96];
    int n = snprintf(text, sizeof text, "range(%lld, %lld", (long long)l->start,
                     (long long)l->stop);
    if (l->step != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)l->step);
    (void)snprintf(text + n, sizeof text - (size_t)n, ")");
    sbuf_text(r, b, text);
}

static void repr_list(struct run *r, struct sbuf *b, const struct list *l)
{
    static const char *const open[] = {"[", "(", "", "dict_items([", "dict_keys([",
                                       "dict_values([", "("};
    static const char *const close[] = {"]", ")", "", "])", "])", "])", ")"};
    if (l->kind == LIST_RANGE) {
        repr_range(r, b, l);
        return;
    }
    if (l->kind >= LIST_GENERATOR) {
        sbuf_text(r, b, l->kind == LIST_GENERATOR ? "<generator object>"
                                                  : "<list_reverseiterator object>");
        return;
    }
    sbuf_text(r, b, open[l->kind]);
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        sbuf_text(r, b, i > 0 ? ", " : "");
        value_print(r, b, l->items[i], true);
    }
    if (l->n == 1 && (l->kind == LIST_TUPLE || l->kind == LIST_GROUP))
        sbuf_text(r, b, ",");
    sbuf_text(r, b, close[l->kind]);
}

static void repr_dict(struct run *r, struct sbuf *b, const struct dict *d)
{
    sbuf_text(r, b, "{");
    for (size_t i = 0; i < d->n && r->rc == 0; i++) {
        sbuf_text(r, b, i > 0 ? ", " : "");
        value_print(r, b, d->entries[i].key, true);
        sbuf_text(r, b, ": ");
        value_print(r, b, d->entries[i].value, true);
    }
    sbuf_text(r, b, "}");
}

static void print_object(struct run *r, struct sbuf *b, struct value v)
{
    char text[96];
    if (v.kind == V_NAMESPACE) {
        sbuf_text(r, b, "<Namespace ");
        repr_dict(r, b, v.u.dict);
        sbuf_text(r, b, ">");
    } else if (v.kind == V_MACRO) {
        const struct symbol *symbol = v.u.macro->node->symbol;
        sbuf_text(r, b, "<Macro ");
        if (symbol != NULL)
            repr_str(r, b, &symbol->name);
        sbuf_text(r, b, symbol != NULL ? ">" : "anonymous>");
    } else if (v.kind == V_LOOP) {
        (void)snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->index + 1,
                       v.u.loop->items->n);
        sbuf_text(r, b, text);
    } else {
        (void)snprintf(text, sizeof text, "<%s>", value_type(v));
        sbuf_text(r, b, text);
    }
}

void value_print(struct run *r, struct sbuf *b, struct value v, bool is_repr)
{
    char text[FLOAT_BYTES];
    if (!run_enter(r)) {
        run_leave(r);
        return;
    }
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
        sbuf_text(r, b, is_repr ? "Undefined" : "");
        break;
    case V_NONE:
        sbuf_text(r, b, "None");
        break;
    case V_BOOL:
        sbuf_text(r, b, v.u.flag ? "True" : "False");
        break;
    case V_INT:
        (void)snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        sbuf_text(r, b, text);
        break;
    case V_FLOAT:
        float_repr(v.u.f, text);
        sbuf_text(r, b, text);
        break;
    case V_STR:
        if (is_repr)
            repr_str(r, b, v.u.str);
        else
            sbuf_str(r, b, v.u.str);
        break;
    case V_LIST:
        repr_list(r, b, v.u.list);
        break;
    case V_DICT:
        repr_dict(r, b, v.u.dict);
        break;
    default:
        print_object(r, b, v);
        break;
    }
    run_leave(r);
}

const struct str *value_str(struct run *r, struct value v)
{
    if (is_str(v))
        return v.u.str;
    struct sbuf b = {0};
    value_print(r, &b, v, false);
    return sbuf_take(r, &b);
}

const struct str *str_escape(struct run *r, const struct str *s)
{
    static const char *const forms[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct sbuf b = {0};
    size_t begin = 0;
    for (size_t i = 0; i < s->bytes && r->rc == 0; i++) {
        const char *at = memchr("&<>'\"", s->text[i], 5);
        if (at == NULL)
            continue;
        static const char marks[] = "&<>'\"";
        const char *form = forms[strchr(marks, s->text[i]) - marks];
        sbuf_part(r, &b, s, begin, i);
        sbuf_add(r, &b, form, strlen(form), s->origins != NULL ? s->origins[i] : s->origin);
        begin = i + 1;
    }
    sbuf_part(r, &b, s, begin, s->bytes);
    struct str *made = (struct str *)sbuf_take(r, &b);
    made->is_markup = true;
    return made;
}

const struct str *value_escape(struct run *r, struct value v)
{
    return is_str(v) && v.u.str->is_markup ? v.u.str : str_escape(r, value_str(r, v));
}

/* ---- text as numbers ------------------------------------------------------------------------- */

/* Copies a number without surrounding blanks and without underscores between digits. Returns false
 * if it cannot be a number. */
static bool plain_number(const struct str *s, char *out, size_t out_bytes)
{
    size_t begin = 0, end = s->bytes, n = 0;
    while (begin < end && python_is_space((uint8_t)s->text[begin]))
        begin++;
    while (end > begin && python_is_space((uint8_t)s->text[end - 1]))
        end--;
    if (begin == end || end - begin >= out_bytes)
        return false;
    for (size_t i = begin; i < end; i++) {
        const bool is_mark = s->text[i] == '_';
        if (is_mark && (n == 0 || i + 1 == end || s->text[i + 1] == '_' || s->text[i - 1] == '_'))
            return false;
        if (!is_mark)
            out[n++] = s->text[i];
    }
    out[n] = '\0';
    return strlen(out) == n;
}

struct value float_of_str(struct run *r, const struct str *s)
{
    (void)r;
    char text[512], *end;
    if (!plain_number(s, text, sizeof text) || strpbrk(text, "xXpP()") != NULL)
        return (struct value){0};
    const double x = strtod(text, &end);
    return *end == '\0' ? v_float(x) : (struct value){0};
}

struct value int_of_str(struct run *r, const struct str *s, int64_t base)
{
    char text[512];
    if (!plain_number(s, text, sizeof text) || base == 1 || base < 0 || base > 36)
        return (struct value){0};
    const char *at = text + (text[0] == '+' || text[0] == '-');
    static const char marks[] = "bBoOxX";
    const char *mark = at[0] == '0' && at[1] != '\0' ? strchr(marks, at[1]) : NULL;
    const int64_t marked = mark == NULL ? 0 : mark - marks < 2 ? 2 : mark - marks < 4 ? 8 : 16;
    if (marked != 0 && (base == 0 || base == marked)) {
        base = marked;
        at += 2;
    }
    base = base == 0 ? 10 : base;
    if (*at == '\0')
        return (struct value){0};
    int64_t x = 0;
    for (; *at != '\0'; at++) {
        const int digit = *at >= '0' && *at <= '9' ? *at - '0'
                          : *at >= 'a' && *at <= 'z' ? *at - 'a' + 10
                          : *at >= 'A' && *at <= 'Z' ? *at - 'A' + 10 : 99;
        if (digit >= base)
            return (struct value){0};
        if (__builtin_mul_overflow(x, base, &x) || __builtin_sub_overflow(x, digit, &x))
            return run_fail(r, "the integer '%s' is too large", text);
    }
    if (text[0] != '-' && __builtin_sub_overflow(0, x, &x))
        return run_fail(r, "the integer '%s' is too large", text);
    return v_int(x);
}
