/* The methods of strings, as in Python's str. */
#include <string.h>

#include "jinja/run.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

static struct value like(const struct str *made, const struct str *of)
{
    if (of->is_markup)
        ((struct str *)made)->is_markup = true;
    return v_str(made);
}

/* Returns a text argument, escaped if `self` is markup. */
static const struct str *text_arg(struct run *r, const struct str *self, const char *what,
                                  struct value v)
{
    const struct str *s = arg_str(r, what, v);
    return self->is_markup && !s->is_markup ? str_escape(r, s) : s;
}

static uint32_t char_at(const struct str *s, size_t at, size_t *used)
{
    uint32_t c;
    *used = utf8_get((const uint8_t *)s->text + at, &c);
    return c;
}

static uint8_t origin_at(const struct str *s, size_t at)
{
    return s->origins != NULL ? s->origins[at] : s->origin;
}

/* Returns where the character before `at` begins. */
static size_t step_back(const struct str *s, size_t at)
{
    do
        at--;
    while (at > 0 && ((uint8_t)s->text[at] & 0xc0) == 0x80);
    return at;
}

/* ---- case ------------------------------------------------------------------------------------ */

/* Greek sigma has another form at the end of a word. */
static bool is_final_sigma(const struct str *s, size_t at)
{
    size_t used, i = at;
    bool before = false, after = false;
    while (i > 0 && !before) {
        i = step_back(s, i);
        const uint32_t c = char_at(s, i, &used);
        before = python_is_cased(c);
        if (!before && (unicode_bits(c) & UNICODE_M) == 0 && c != '\'' && c != 0xad)
            break;
    }
    for (i = at + 2; i < s->bytes && !after; i += used) {
        const uint32_t c = char_at(s, i, &used);
        after = python_is_cased(c);
        if (!after && (unicode_bits(c) & UNICODE_M) == 0 && c != '\'' && c != 0xad)
            break;
    }
    return before && !after;
}

const struct str *str_case(struct run *r, const struct str *s, int how)
{
    struct sbuf text = {0};
    bool is_start = true; /* of a word for title, of the text for capitalize */
    size_t used;
    for (size_t at = 0; at < s->bytes && r->rc == 0; at += used) {
        const uint32_t c = char_at(s, at, &used);
        uint32_t out[3];
        enum python_case to = how == 'u' ? PYTHON_UPPER : how == 'f' ? PYTHON_FOLD : PYTHON_LOWER;
        if ((how == 't' || how == 'c') && is_start)
            to = PYTHON_TITLE;
        if (how == 's')
            to = python_is_upper(c) ? PYTHON_LOWER : PYTHON_UPPER;
        size_t n = python_change_case(c, to, out);
        /* swapcase keeps title case */
        if (how == 's' && !python_is_upper(c) && !python_is_lower(c)) {
            out[0] = c;
            n = 1;
        }
        if (c == 0x3a3 && to == PYTHON_LOWER)
            out[0] = is_final_sigma(s, at) ? 0x3c2 : 0x3c3;
        for (size_t i = 0; i < n; i++)
            sbuf_char(r, &text, out[i], origin_at(s, at));
        is_start = how == 't' ? !python_is_cased(c) : false;
    }
    const struct str *made = sbuf_take(r, &text);
    return like(made, s).u.str;
}

static struct value change_case(struct run *r, struct value self, const struct args *args,
                                const char *what, int how)
{
    return args_bind(r, what, args, "/", NULL) ? v_str(str_case(r, self.u.str, how))
                                               : v_undefined();
}

#define CASE_METHOD(name, how) \
    static struct value m_##name(struct run *r, struct value self, const struct args *args) \
    { \
        return change_case(r, self, args, #name, how); \
    }
CASE_METHOD(upper, 'u')
CASE_METHOD(lower, 'l')
CASE_METHOD(title, 't')
CASE_METHOD(capitalize, 'c')
CASE_METHOD(swapcase, 's')
CASE_METHOD(casefold, 'f')

/* ---- strip, split, join ---------------------------------------------------------------------- */

static bool is_stripped(const struct str *chars, const struct str *s, size_t at, size_t used)
{
    uint32_t c;
    (void)utf8_get((const uint8_t *)s->text + at, &c);
    if (chars == NULL)
        return python_is_space(c);
    return memmem(chars->text, chars->bytes, s->text + at, used) != NULL;
}

const struct str *str_strip(struct run *r, const struct str *s, struct value chars, int sides)
{
    const struct str *set = NULL;
    if (chars.kind != V_MISSING && chars.kind != V_NONE)
        set = arg_str(r, "strip", chars);
    size_t begin = 0, end = s->bytes;
    const size_t n_set = set != NULL ? set->bytes : 0;
    while ((sides & 1) && begin < end && run_work(r, n_set)) {
        size_t used;
        (void)char_at(s, begin, &used);
        if (!is_stripped(set, s, begin, used))
            break;
        begin += used;
    }
    while ((sides & 2) && begin < end && run_work(r, n_set)) {
        const size_t at = step_back(s, end);
        if (!is_stripped(set, s, at, end - at))
            break;
        end = at;
    }
    return str_part(r, s, begin, end);
}

static struct value strip(struct run *r, struct value self, const struct args *args, int sides)
{
    struct value chars;
    return args_bind(r, "strip", args, "/chars?", &chars)
               ? v_str(str_strip(r, self.u.str, chars, sides)) : v_undefined();
}

static struct value m_strip(struct run *r, struct value self, const struct args *args)
{
    return strip(r, self, args, 3);
}

static struct value m_lstrip(struct run *r, struct value self, const struct args *args)
{
    return strip(r, self, args, 1);
}

static struct value m_rstrip(struct run *r, struct value self, const struct args *args)
{
    return strip(r, self, args, 2);
}

static void split_blanks(struct run *r, const struct str *s, int64_t max, struct list *out)
{
    size_t at = 0, used;
    for (int64_t n = 0; r->rc == 0; n++) {
        while (at < s->bytes && python_is_space(char_at(s, at, &used)))
            at += used;
        if (at == s->bytes)
            return;
        size_t end = at;
        if (max >= 0 && n == max) {
            const struct str *rest = str_part(r, s, at, s->bytes);
            list_push(r, out, v_str(str_strip(r, rest, v_none(), 2)));
            return;
        }
        while (end < s->bytes && !python_is_space(char_at(s, end, &used)))
            end += used;
        list_push(r, out, v_str(str_part(r, s, at, end)));
        at = end;
    }
}

static void split_blanks_right(struct run *r, const struct str *s, int64_t max, struct list *out)
{
    size_t at = s->bytes, used;
    for (int64_t n = 0; r->rc == 0; n++) {
        while (at > 0 && python_is_space(char_at(s, step_back(s, at), &used)))
            at = step_back(s, at);
        if (at == 0)
            break;
        size_t begin = at;
        if (max >= 0 && n == max) {
            const struct str *rest = str_part(r, s, 0, at);
            list_push(r, out, v_str(str_strip(r, rest, v_none(), 1)));
            break;
        }
        while (begin > 0 && !python_is_space(char_at(s, step_back(s, begin), &used)))
            begin = step_back(s, begin);
        list_push(r, out, v_str(str_part(r, s, begin, at)));
        at = begin;
    }
}

static size_t find_last(struct run *r, const struct str *s, const struct str *part, size_t end)
{
    (void)run_work(r, end);
    for (size_t at = end + 1; at-- > 0 && r->rc == 0;)
        if (part->bytes <= end - at && memcmp(s->text + at, part->text, part->bytes) == 0)
            return at;
    return SIZE_MAX;
}

static void reverse_items(struct list *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        const struct value v = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = v;
    }
}

static struct value split(struct run *r, struct value self, const struct args *args, bool is_right)
{
    struct value given[2];
    if (!args_bind(r, "split", args, "sep? maxsplit?", given))
        return v_undefined();
    const struct str *s = self.u.str;
    const int64_t max = arg_int(r, "split", given[1], -1);
    struct list *out = list_new(r, LIST_LIST);
    if (given[0].kind == V_MISSING || given[0].kind == V_NONE) {
        (is_right ? split_blanks_right : split_blanks)(r, s, max, out);
        (void)run_work(r, s->bytes);
    } else {
        const struct str *by = text_arg(r, s, "split", given[0]);
        if (r->rc == 0 && by->bytes == 0)
            return run_fail(r, "split: the separator is empty");
        size_t begin = 0, end = s->bytes;
        for (int64_t n = 0; r->rc == 0 && (max < 0 || n < max); n++) {
            const size_t at = is_right ? find_last(r, s, by, end) : str_find(r, s, by, begin);
            if (at == SIZE_MAX)
                break;
            list_push(r, out, v_str(is_right ? str_part(r, s, at + by->bytes, end)
                                             : str_part(r, s, begin, at)));
            begin = is_right ? 0 : at + by->bytes;
            end = is_right ? at : end;
        }
        list_push(r, out, v_str(str_part(r, s, begin, end)));
    }
    if (is_right && r->rc == 0)
        reverse_items(out);
    return v_list(out);
}

static struct value m_split(struct run *r, struct value self, const struct args *args)
{
    return split(r, self, args, false);
}

static struct value m_rsplit(struct run *r, struct value self, const struct args *args)
{
    return split(r, self, args, true);
}

struct list *str_lines(struct run *r, const struct str *s, bool keeps_ends)
{
    struct list *out = list_new(r, LIST_LIST);
    size_t begin = 0, used;
    for (size_t at = 0; at < s->bytes && r->rc == 0;) {
        const uint32_t c = char_at(s, at, &used);
        if (!python_is_line_end(c)) {
            at += used;
            continue;
        }
        size_t next = at + used;
        next += c == '\r' && next < s->bytes && s->text[next] == '\n';
        list_push(r, out, v_str(str_part(r, s, begin, keeps_ends ? next : at)));
        at = begin = next;
    }
    if (begin < s->bytes)
        list_push(r, out, v_str(str_part(r, s, begin, s->bytes)));
    return out;
}

static struct value m_splitlines(struct run *r, struct value self, const struct args *args)
{
    struct value keep;
    if (!args_bind(r, "splitlines", args, "keepends?", &keep))
        return v_undefined();
    return v_list(str_lines(r, self.u.str, value_is_true(r, keep)));
}

static struct value m_join(struct run *r, struct value self, const struct args *args)
{
    struct value of;
    if (!args_bind(r, "join", args, "/iterable", &of))
        return v_undefined();
    if (of.kind == V_UNDEFINED)
        of = v_list(list_new(r, LIST_LIST));
    const struct list *items = value_items(r, of);
    struct sbuf text = {0};
    for (size_t i = 0; i < items->n && r->rc == 0; i++) {
        if (i > 0)
            sbuf_str(r, &text, self.u.str);
        sbuf_str(r, &text, self.u.str->is_markup ? value_escape(r, items->items[i])
                                                 : arg_str(r, "join", items->items[i]));
    }
    return like(sbuf_take(r, &text), self.u.str);
}

static struct value partition(struct run *r, struct value self, const struct args *args,
                              bool is_right)
{
    struct value given;
    if (!args_bind(r, "partition", args, "/sep", &given))
        return v_undefined();
    const struct str *s = self.u.str, *by = text_arg(r, s, "partition", given);
    if (r->rc == 0 && by->bytes == 0)
        return run_fail(r, "partition: the separator is empty");
    const size_t at = is_right ? find_last(r, s, by, s->bytes) : str_find(r, s, by, 0);
    const size_t missing = is_right ? 0 : s->bytes;
    const size_t a = at == SIZE_MAX ? missing : at, b = at == SIZE_MAX ? missing : at + by->bytes;
    struct list *out = list_new(r, LIST_TUPLE);
    list_push(r, out, v_str(str_part(r, s, 0, a)));
    list_push(r, out, v_str(str_part(r, s, a, b)));
    list_push(r, out, v_str(str_part(r, s, b, s->bytes)));
    return v_list(out);
}

static struct value m_partition(struct run *r, struct value self, const struct args *args)
{
    return partition(r, self, args, false);
}

static struct value m_rpartition(struct run *r, struct value self, const struct args *args)
{
    return partition(r, self, args, true);
}

/* ---- searching and replacing ----------------------------------------------------------------- */

const struct str *str_replace(struct run *r, const struct str *s, const struct str *old,
                              const struct str *with, int64_t count)
{
    struct sbuf text = {0};
    size_t begin = 0;
    for (int64_t n = 0; r->rc == 0 && (count < 0 || n < count); n++) {
        size_t at;
        if (old->bytes > 0) {
            at = str_find(r, s, old, begin);
        } else if (n == 0) { /* an empty pattern matches before and after every character */
            at = 0;
        } else if (begin < s->bytes) {
            size_t used;
            (void)char_at(s, begin, &used);
            at = begin + used;
        } else {
            break;
        }
        if (at == SIZE_MAX)
            break;
        sbuf_part(r, &text, s, begin, at);
        sbuf_str(r, &text, with);
        begin = at + old->bytes;
    }
    sbuf_part(r, &text, s, begin, s->bytes);
    return sbuf_take(r, &text);
}

static struct value m_replace(struct run *r, struct value self, const struct args *args)
{
    struct value given[3];
    if (!args_bind(r, "replace", args, "/old new count?", given))
        return v_undefined();
    const struct str *s = self.u.str;
    return like(str_replace(r, s, text_arg(r, s, "replace", given[0]),
                            text_arg(r, s, "replace", given[1]),
                            arg_int(r, "replace", given[2], -1)), s);
}

/* Computes the range that optional start and end select. Returns false if nothing can be in it. */
static bool bounds(struct run *r, const struct str *s, const struct value given[2], size_t *begin,
                   size_t *end)
{
    const int64_t n = (int64_t)s->n_chars;
    int64_t at[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (given[i].kind != V_NONE)
            at[i] = arg_int(r, "a position", given[i], at[i]);
        at[i] = at[i] < 0 ? (at[i] + n < 0 ? 0 : at[i] + n) : at[i];
    }
    if (r->rc != 0 || at[0] > n || at[0] > at[1])
        return false;
    *begin = str_offset(s, (size_t)at[0]);
    *end = str_offset(s, (size_t)(at[1] < n ? at[1] : n));
    return run_work(r, s->bytes);
}

static bool has_edge(const struct str *s, size_t begin, size_t end, const struct str *part,
                     bool is_end)
{
    if (part->bytes > end - begin)
        return false;
    const size_t at = is_end ? end - part->bytes : begin;
    return part->bytes == 0 || memcmp(s->text + at, part->text, part->bytes) == 0;
}

static struct value test_edge(struct run *r, struct value self, const struct args *args,
                              bool is_end)
{
    struct value given[3];
    size_t begin = 0, end = 0;
    if (!args_bind(r, is_end ? "endswith" : "startswith", args, "/prefix start? end?", given))
        return v_undefined();
    const bool is_tuple = given[0].kind == V_LIST && given[0].u.list->kind == LIST_TUPLE;
    if (!is_tuple && !is_str(given[0]))
        return run_fail(r, "startswith and endswith need a string, not %s", value_type(given[0]));
    if (!bounds(r, self.u.str, given + 1, &begin, &end))
        return v_bool(false);
    if (!is_tuple)
        return v_bool(has_edge(self.u.str, begin, end, given[0].u.str, is_end));
    for (size_t i = 0; i < given[0].u.list->n && r->rc == 0; i++)
        if (has_edge(self.u.str, begin, end,
                     arg_str(r, "startswith", given[0].u.list->items[i]), is_end))
            return v_bool(true);
    return v_bool(false);
}

static struct value m_startswith(struct run *r, struct value self, const struct args *args)
{
    return test_edge(r, self, args, false);
}

static struct value m_endswith(struct run *r, struct value self, const struct args *args)
{
    return test_edge(r, self, args, true);
}

static struct value find(struct run *r, struct value self, const struct args *args, bool is_right,
                         bool is_index)
{
    struct value given[3];
    size_t begin = 0, end = 0, at = SIZE_MAX;
    if (!args_bind(r, "find", args, "/sub start? end?", given))
        return v_undefined();
    const struct str *part = arg_str(r, "find", given[0]);
    if (bounds(r, self.u.str, given + 1, &begin, &end)) {
        const struct str *inside = str_part(r, self.u.str, begin, end);
        at = is_right ? find_last(r, inside, part, inside->bytes) : str_find(r, inside, part, 0);
    }
    if (at != SIZE_MAX)
        return v_int((int64_t)utf8_characters(self.u.str->text, begin + at));
    return is_index ? run_fail(r, "index: the substring was not found") : v_int(-1);
}

static struct value m_find(struct run *r, struct value self, const struct args *args)
{
    return find(r, self, args, false, false);
}

static struct value m_rfind(struct run *r, struct value self, const struct args *args)
{
    return find(r, self, args, true, false);
}

static struct value m_index(struct run *r, struct value self, const struct args *args)
{
    return find(r, self, args, false, true);
}

static struct value m_rindex(struct run *r, struct value self, const struct args *args)
{
    return find(r, self, args, true, true);
}

static struct value m_count(struct run *r, struct value self, const struct args *args)
{
    struct value given[3];
    size_t begin = 0, end = 0;
    int64_t n = 0;
    if (!args_bind(r, "count", args, "/sub start? end?", given))
        return v_undefined();
    const struct str *part = arg_str(r, "count", given[0]);
    if (!bounds(r, self.u.str, given + 1, &begin, &end))
        return v_int(0);
    const struct str *inside = str_part(r, self.u.str, begin, end);
    if (part->bytes == 0)
        return v_int((int64_t)inside->n_chars + 1);
    for (size_t at = 0; (at = str_find(r, inside, part, at)) != SIZE_MAX; at += part->bytes)
        n++;
    return v_int(n);
}

static struct value remove_edge(struct run *r, struct value self, const struct args *args,
                                bool is_end)
{
    struct value given;
    if (!args_bind(r, "removeprefix", args, "/prefix", &given))
        return v_undefined();
    const struct str *s = self.u.str, *part = arg_str(r, "removeprefix", given);
    if (!has_edge(s, 0, s->bytes, part, is_end))
        return self;
    return v_str(is_end ? str_part(r, s, 0, s->bytes - part->bytes)
                        : str_part(r, s, part->bytes, s->bytes));
}

static struct value m_removeprefix(struct run *r, struct value self, const struct args *args)
{
    return remove_edge(r, self, args, false);
}

static struct value m_removesuffix(struct run *r, struct value self, const struct args *args)
{
    return remove_edge(r, self, args, true);
}

/* ---- padding --------------------------------------------------------------------------------- */

static struct value pad(struct run *r, struct value self, const struct args *args, int how)
{
    static const struct str blank = {.text = " ", .bytes = 1, .n_chars = 1};
    struct value given[2];
    if (!args_bind(r, "center", args, "/width fillchar?", given))
        return v_undefined();
    const struct str *s = self.u.str;
    const struct str *fill = given[1].kind != V_MISSING ? arg_str(r, "center", given[1]) : &blank;
    const int64_t width = arg_int(r, "center", given[0], 0), have = (int64_t)s->n_chars;
    if (r->rc == 0 && fill->n_chars != 1)
        return run_fail(r, "the fill character must be a single character");
    const int64_t n = width > have ? width - have : 0;
    const int64_t half = n / 2 + (n & width & 1);
    const int64_t left = how == 'l' ? 0 : how == 'r' ? n : half;
    struct sbuf text = {0};
    sbuf_fill(r, &text, fill, (size_t)left);
    sbuf_str(r, &text, s);
    sbuf_fill(r, &text, fill, (size_t)(n - left));
    return like(sbuf_take(r, &text), s);
}

static struct value m_ljust(struct run *r, struct value self, const struct args *args)
{
    return pad(r, self, args, 'l');
}

static struct value m_rjust(struct run *r, struct value self, const struct args *args)
{
    return pad(r, self, args, 'r');
}

static struct value m_center(struct run *r, struct value self, const struct args *args)
{
    return pad(r, self, args, 'c');
}

static struct value m_zfill(struct run *r, struct value self, const struct args *args)
{
    static const struct str zero = {.text = "0", .bytes = 1, .n_chars = 1};
    struct value given;
    if (!args_bind(r, "zfill", args, "/width", &given))
        return v_undefined();
    const struct str *s = self.u.str;
    const int64_t width = arg_int(r, "zfill", given, 0), have = (int64_t)s->n_chars;
    const size_t sign = s->bytes > 0 && (s->text[0] == '-' || s->text[0] == '+');
    struct sbuf text = {0};
    sbuf_part(r, &text, s, 0, sign);
    sbuf_fill(r, &text, &zero, width > have ? (size_t)(width - have) : 0);
    sbuf_part(r, &text, s, sign, s->bytes);
    return like(sbuf_take(r, &text), s);
}

static struct value m_expandtabs(struct run *r, struct value self, const struct args *args)
{
    static const struct str blank = {.text = " ", .bytes = 1, .n_chars = 1};
    struct value given;
    if (!args_bind(r, "expandtabs", args, "tabsize?", &given))
        return v_undefined();
    const int64_t size = arg_int(r, "expandtabs", given, 8);
    const struct str *s = self.u.str;
    struct sbuf text = {0};
    int64_t column = 0;
    size_t used;
    for (size_t at = 0; at < s->bytes && r->rc == 0; at += used) {
        const uint32_t c = char_at(s, at, &used);
        if (c == '\t') {
            const int64_t n = size > 0 ? size - column % size : 0;
            sbuf_fill(r, &text, &blank, (size_t)n);
            column += r->rc == 0 ? n : 0;
            continue;
        }
        sbuf_part(r, &text, s, at, at + used);
        column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    return like(sbuf_take(r, &text), s);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static bool is_kind(uint32_t c, int kind)
{
    const unsigned bits = unicode_bits(c);
    switch (kind) {
    case 'a':
        return (bits & UNICODE_L) != 0;
    case 'd':
        return c < 0x80 ? c >= '0' && c <= '9' : (bits & UNICODE_N) != 0;
    case 'n':
        return (bits & (UNICODE_L | UNICODE_N)) != 0;
    case 's':
        return python_is_space(c);
    case 'p':
        return python_is_printable(c);
    default:
        return c < 0x80;
    }
}

static struct value ask(struct run *r, struct value self, const struct args *args, int kind,
                        bool of_empty)
{
    if (!args_bind(r, "is...", args, "/", NULL))
        return v_undefined();
    const struct str *s = self.u.str;
    size_t used;
    for (size_t at = 0; at < s->bytes; at += used)
        if (!is_kind(char_at(s, at, &used), kind))
            return v_bool(false);
    (void)run_work(r, s->bytes);
    return v_bool(s->bytes > 0 || of_empty);
}

#define ASK_METHOD(name, kind, of_empty) \
    static struct value m_##name(struct run *r, struct value self, const struct args *args) \
    { \
        return ask(r, self, args, kind, of_empty); \
    }
ASK_METHOD(isalpha, 'a', false)
ASK_METHOD(isdigit, 'd', false)
ASK_METHOD(isalnum, 'n', false)
ASK_METHOD(isspace, 's', false)
ASK_METHOD(isprintable, 'p', true)
ASK_METHOD(isascii, 'x', true)

static struct value ask_case(struct run *r, struct value self, const struct args *args, int how)
{
    if (!args_bind(r, "is...", args, "/", NULL) || !run_work(r, self.u.str->bytes))
        return v_undefined();
    const struct str *s = self.u.str;
    bool has_cased = false, was_cased = false;
    size_t used;
    for (size_t at = 0; at < s->bytes; at += used) {
        const uint32_t c = char_at(s, at, &used);
        const bool is_lower = python_is_lower(c), is_upper = python_is_upper(c);
        if ((how == 'l' && is_upper) || (how == 'u' && is_lower))
            return v_bool(false);
        if (how == 't' && ((is_upper && was_cased) || (is_lower && !was_cased)))
            return v_bool(false);
        was_cased = is_lower || is_upper;
        has_cased = has_cased || was_cased;
    }
    return v_bool(has_cased);
}

static struct value m_islower(struct run *r, struct value self, const struct args *args)
{
    return ask_case(r, self, args, 'l');
}

static struct value m_isupper(struct run *r, struct value self, const struct args *args)
{
    return ask_case(r, self, args, 'u');
}

static struct value m_istitle(struct run *r, struct value self, const struct args *args)
{
    return ask_case(r, self, args, 't');
}

static struct value m_format(struct run *r, struct value self, const struct args *args)
{
    return str_format_braces(r, self.u.str, args);
}

static struct value m_refused(struct run *r, struct value self, const struct args *args)
{
    (void)self;
    (void)args;
    return run_fail(r, "this method of a string is not supported in a chat template");
}

static const struct method methods[] = {
    {.name = "capitalize", .call = m_capitalize}, {.name = "casefold", .call = m_casefold},
    {.name = "center", .call = m_center}, {.name = "count", .call = m_count},
    {.name = "encode", .call = m_refused}, {.name = "endswith", .call = m_endswith},
    {.name = "expandtabs", .call = m_expandtabs}, {.name = "find", .call = m_find},
    {.name = "format", .call = m_format}, {.name = "format_map", .call = m_refused},
    {.name = "index", .call = m_index}, {.name = "isalnum", .call = m_isalnum},
    {.name = "isalpha", .call = m_isalpha}, {.name = "isascii", .call = m_isascii},
    {.name = "isdecimal", .call = m_isdigit}, {.name = "isdigit", .call = m_isdigit},
    {.name = "isidentifier", .call = m_refused}, {.name = "islower", .call = m_islower},
    {.name = "isnumeric", .call = m_isdigit}, {.name = "isprintable", .call = m_isprintable},
    {.name = "isspace", .call = m_isspace}, {.name = "istitle", .call = m_istitle},
    {.name = "isupper", .call = m_isupper}, {.name = "join", .call = m_join},
    {.name = "ljust", .call = m_ljust}, {.name = "lower", .call = m_lower},
    {.name = "lstrip", .call = m_lstrip}, {.name = "maketrans", .call = m_refused},
    {.name = "partition", .call = m_partition}, {.name = "removeprefix", .call = m_removeprefix},
    {.name = "removesuffix", .call = m_removesuffix}, {.name = "replace", .call = m_replace},
    {.name = "rfind", .call = m_rfind}, {.name = "rindex", .call = m_rindex},
    {.name = "rjust", .call = m_rjust}, {.name = "rpartition", .call = m_rpartition},
    {.name = "rsplit", .call = m_rsplit}, {.name = "rstrip", .call = m_rstrip},
    {.name = "split", .call = m_split}, {.name = "splitlines", .call = m_splitlines},
    {.name = "startswith", .call = m_startswith}, {.name = "strip", .call = m_strip},
    {.name = "swapcase", .call = m_swapcase}, {.name = "title", .call = m_title},
    {.name = "translate", .call = m_refused}, {.name = "upper", .call = m_upper},
    {.name = "zfill", .call = m_zfill},
};

const struct method *str_method(const struct str *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (str_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}
