/* Parses GBNF. */
#include "grammar/gbnf.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/dfa.h"

#define CLASS_RANGES 512u

/* The alternative that is being read. */
struct sequence {
    struct gbnf_element *at;
    size_t n, capacity;
    size_t item; /* where its last item begins, which a repetition repeats */
};

struct parser {
    struct gbnf *g;
    const char *text;
    size_t at, end; /* after a failure, `at` may lie behind the end */
    unsigned line, nesting;
    int rc;
    struct fm_error *err;
};

/* ---- failing and reading -------------------------------------------------------------------- */

static bool fail(struct parser *p, const char *what)
{
    if (p->rc == 0)
        p->rc = err_set(p->err, FM_ERR_ARG, "line %u of the grammar: %s", p->line, what);
    return false;
}

static bool grow(struct parser *p, void **at, size_t *capacity, size_t n, size_t size, size_t max)
{
    if (p->rc != 0 || n > max)
        return fail(p, "the grammar is too large");
    p->rc = mem_grow(at, capacity, n, size, "a grammar", p->err);
    return p->rc == 0;
}

static char peek(const struct parser *p)
{
    return p->at < p->end ? p->text[p->at] : '\0';
}

/* Skips blanks and comments, and with `lines` newlines too. */
static void skip_space(struct parser *p, bool lines)
{
    for (;; p->at++) {
        const char c = peek(p);
        if (c == '#')
            while (p->at < p->end && p->text[p->at] != '\n')
                p->at++;
        const char now = peek(p);
        if (now == '\n' && lines)
            p->line++;
        else if (now != ' ' && now != '\t' && now != '\r')
            return;
    }
}

static bool skip_text(struct parser *p, const char *text)
{
    const size_t n = strlen(text);
    if (p->at > p->end || p->end - p->at < n || memcmp(p->text + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static uint32_t take_hex(struct parser *p, unsigned n_digits)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < n_digits; i++, p->at++) {
        const char c = peek(p);
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            (void)fail(p, "an escape has too few hexadecimal digits");
        value = value << 4 | (uint32_t)(digit & 15);
    }
    return value;
}

static uint32_t take_escape(struct parser *p)
{
    const char c = peek(p);
    p->at++;
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'x':
        return take_hex(p, 2);
    case 'u':
        return take_hex(p, 4);
    case 'U':
        return take_hex(p, 8);
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        return (uint32_t)c;
    default:
        (void)fail(p, "an escape is unknown: use \\n \\r \\t \\\\ \\\" \\[ \\] \\xHH \\uHHHH "
                   "\\UHHHHHHHH");
        return 0;
    }
}

/* Takes a character of a literal or a class. */
static uint32_t take_char(struct parser *p)
{
    const unsigned char first = (unsigned char)peek(p);
    if (p->at >= p->end) {
        (void)fail(p, "a literal or a class has no end");
        return 0;
    }
    p->at++;
    if (first == '\\')
        return take_escape(p);
    if (first == '\n')
        p->line++;
    const unsigned n_more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    uint32_t c = n_more == 0 ? first : first & (0x3fu >> n_more);
    if (p->end - p->at < n_more)
        (void)fail(p, "a character is cut off: the text is not UTF-8");
    for (unsigned i = 0; i < n_more; i++, p->at++)
        c = c << 6 | ((unsigned char)peek(p) & 0x3f);
    return c;
}

/* ---- elements ------------------------------------------------------------------------------- */

static bool push(struct parser *p, struct sequence *s, struct gbnf_element element)
{
    if (!grow(p, (void **)&s->at, &s->capacity, s->n + 1, sizeof *s->at, GBNF_ELEMENTS))
        return false;
    s->at[s->n++] = element;
    return true;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct gbnf_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void push_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    struct gbnf *g = p->g;
    if (grow(p, (void **)&g->ranges, &g->ranges_capacity, g->n_ranges + 1, sizeof *g->ranges,
             GBNF_RANGES))
        g->ranges[g->n_ranges++] = (struct gbnf_range){lo, hi};
}

/* Adds a range to the last set, without surrogates: UTF-8 has none. */
static void add_range(struct parser *p, uint32_t lo, uint32_t hi)
{
    if (lo < 0xd800)
        push_range(p, lo, hi < 0xd7ff ? hi : 0xd7ff);
    if (hi > 0xdfff)
        push_range(p, lo > 0xe000 ? lo : 0xe000, hi);
}

/* Pushes the set of these ranges, or of all other characters. */
static void push_set(struct parser *p, struct sequence *s, struct gbnf_range *ranges, uint32_t n,
                     bool is_negated)
{
    const uint32_t first = (uint32_t)p->g->n_ranges;
    uint32_t from = 0; /* the first code point behind the ranges so far */
    qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t lo = ranges[i].lo > from ? ranges[i].lo : from;
        if (is_negated && ranges[i].lo > from)
            add_range(p, from, ranges[i].lo - 1);
        if (!is_negated && lo <= ranges[i].hi)
            add_range(p, lo, ranges[i].hi);
        from = ranges[i].hi + 1 > from ? ranges[i].hi + 1 : from;
    }
    if (is_negated && from <= CODE_POINT_MAX)
        add_range(p, from, CODE_POINT_MAX);
    (void)push(p, s, (struct gbnf_element){.kind = GBNF_SET, .first_range = first,
                                           .n_ranges = (uint32_t)p->g->n_ranges - first});
}

static uint32_t checked(struct parser *p, uint32_t c)
{
    if (c > CODE_POINT_MAX)
        (void)fail(p, "a character is beyond U+10FFFF");
    return c;
}

static void read_literal(struct parser *p, struct sequence *s)
{
    p->at++;
    while (p->rc == 0 && peek(p) != '"') {
        const uint32_t c = checked(p, take_char(p));
        push_set(p, s, &(struct gbnf_range){c, c}, 1, false);
    }
    p->at++;
}

static void read_class(struct parser *p, struct sequence *s)
{
    struct gbnf_range ranges[CLASS_RANGES];
    uint32_t n = 0;
    p->at++;
    const bool is_negated = skip_text(p, "^");
    while (p->rc == 0 && peek(p) != ']') {
        const uint32_t lo = checked(p, take_char(p));
        const bool is_range = peek(p) == '-' && p->at + 1 < p->end && p->text[p->at + 1] != ']';
        p->at += is_range;
        const uint32_t hi = is_range ? checked(p, take_char(p)) : lo;
        if (hi < lo)
            (void)fail(p, "a range of characters ends before it begins");
        if (n == CLASS_RANGES)
            (void)fail(p, "a class has more than 512 parts");
        else
            ranges[n++] = (struct gbnf_range){lo, hi};
    }
    p->at++;
    push_set(p, s, ranges, p->rc == 0 ? n : 0, is_negated);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static uint32_t new_rule(struct parser *p, const char *name, size_t bytes)
{
    struct gbnf *g = p->g;
    if (bytes >= sizeof g->rules->name)
        (void)fail(p, "a name has more than 63 characters");
    if (!grow(p, (void **)&g->rules, &g->rules_capacity, g->n_rules + 1, sizeof *g->rules,
              GBNF_RULES))
        return 0;
    struct gbnf_rule *rule = &g->rules[g->n_rules];
    *rule = (struct gbnf_rule){.line = p->line, .is_defined = bytes == 0};
    memcpy(rule->name, name, bytes);
    return (uint32_t)g->n_rules++;
}

static uint32_t find_rule(struct parser *p, const char *name, size_t bytes)
{
    for (size_t i = 0; i < p->g->n_rules; i++)
        if (strlen(p->g->rules[i].name) == bytes &&
            memcmp(p->g->rules[i].name, name, bytes) == 0)
            return (uint32_t)i;
    return new_rule(p, name, bytes);
}

/* Reads a name and returns its rule. */
static uint32_t read_name(struct parser *p)
{
    const size_t begin = p->at;
    while (is_name(peek(p)))
        p->at++;
    if (p->at == begin) {
        (void)fail(p, "a name is expected");
        return 0;
    }
    return find_rule(p, p->text + begin, p->at - begin);
}

/* Adds an alternative to a rule: the elements, and perhaps a reference behind them. */
static void add_alternative(struct parser *p, uint32_t rule, const struct gbnf_element *elements,
                            size_t n, const uint32_t *then)
{
    struct gbnf *g = p->g;
    const size_t more = n + (then != NULL) + 1;
    if (p->rc != 0 ||
        !grow(p, (void **)&g->elements, &g->elements_capacity, g->n_elements + more,
              sizeof *g->elements, GBNF_ELEMENTS) ||
        !grow(p, (void **)&g->rules[rule].alternatives, &g->rules[rule].capacity,
              g->rules[rule].n + 1, sizeof *g->rules[rule].alternatives, GBNF_ELEMENTS))
        return;
    g->rules[rule].alternatives[g->rules[rule].n++] = (uint32_t)g->n_elements;
    if (n > 0)
        memcpy(&g->elements[g->n_elements], elements, n * sizeof *elements);
    g->n_elements += n;
    if (then != NULL)
        g->elements[g->n_elements++] = (struct gbnf_element){.kind = GBNF_RULE, .rule = *then};
    g->elements[g->n_elements++] = (struct gbnf_element){.kind = GBNF_END};
}

/* Replaces the last item by `min` of it, and up to max - min more; UINT32_MAX: without a limit. */
static void repeat_item(struct parser *p, struct sequence *s, uint32_t min, uint32_t max)
{
    const size_t n = s->n - s->item;
    struct gbnf_element *item = NULL;
    size_t capacity = 0;
    if (!grow(p, (void **)&item, &capacity, n + 1, sizeof *item, GBNF_ELEMENTS))
        return;
    if (n > 0)
        memcpy(item, s->at + s->item, n * sizeof *item);
    s->n = s->item;
    for (uint32_t i = 0; i < min && p->rc == 0; i++)
        for (size_t k = 0; k < n; k++)
            (void)push(p, s, item[k]);
    uint32_t next = 0;
    const uint32_t n_rules = max == UINT32_MAX ? 1 : max - min;
    for (uint32_t i = 0; i < n_rules && p->rc == 0; i++) { /* from the innermost one */
        const uint32_t rule = new_rule(p, "", 0);
        const bool has_next = max == UINT32_MAX || i > 0;
        next = max == UINT32_MAX ? rule : next;
        add_alternative(p, rule, item, n, has_next ? &next : NULL);
        add_alternative(p, rule, NULL, 0, NULL);
        next = rule;
    }
    if (n_rules > 0)
        (void)push(p, s, (struct gbnf_element){.kind = GBNF_RULE, .rule = next});
    mem_free(item);
}

static uint32_t read_count(struct parser *p)
{
    uint32_t n = 0;
    if (peek(p) < '0' || peek(p) > '9')
        (void)fail(p, "a repetition must be {m}, {m,} or {m,n}");
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        n = n <= GBNF_REPEATS ? n * 10 + (uint32_t)(peek(p) - '0') : n;
    if (n > GBNF_REPEATS)
        (void)fail(p, "a repetition counts beyond 2000");
    return n;
}

static void read_repetition(struct parser *p, struct sequence *s)
{
    const char c = peek(p);
    p->at++;
    if (s->item == s->n && s->n == 0)
        (void)fail(p, "there is nothing to repeat");
    if (c != '{') {
        repeat_item(p, s, c == '+' ? 1 : 0, c == '?' ? 1 : UINT32_MAX);
        return;
    }
    skip_space(p, false);
    const uint32_t min = read_count(p);
    uint32_t max = min;
    skip_space(p, false);
    if (skip_text(p, ",")) {
        skip_space(p, false);
        max = peek(p) == '}' ? UINT32_MAX : read_count(p);
        skip_space(p, false);
    }
    if (!skip_text(p, "}") || max < min)
        (void)fail(p, "a repetition must be {m}, {m,} or {m,n}, with m up to n");
    if (p->rc == 0)
        repeat_item(p, s, min, max);
}

static void read_alternatives(struct parser *p, uint32_t rule);

static void read_group(struct parser *p, struct sequence *s)
{
    p->at++;
    if (++p->nesting > GBNF_NESTING)
        (void)fail(p, "groups are nested more than 50 deep");
    const uint32_t rule = p->rc == 0 ? new_rule(p, "", 0) : 0;
    skip_space(p, true);
    if (p->rc == 0)
        read_alternatives(p, rule);
    p->nesting--;
    if (!skip_text(p, ")"))
        (void)fail(p, "a group lacks its ')'");
    (void)push(p, s, (struct gbnf_element){.kind = GBNF_RULE, .rule = rule});
}

/* Reads one item of a sequence. Returns false if there is none. */
static bool read_item(struct parser *p, struct sequence *s)
{
    const char c = peek(p);
    if (c == '*' || c == '+' || c == '?' || c == '{') {
        read_repetition(p, s);
        return true;
    }
    const size_t item = s->n;
    if (c == '"')
        read_literal(p, s);
    else if (c == '[')
        read_class(p, s);
    else if (c == '(')
        read_group(p, s);
    else if (c == '.')
        push_set(p, s, &(struct gbnf_range){0, CODE_POINT_MAX}, skip_text(p, "."), false);
    else if (is_name(c))
        (void)push(p, s, (struct gbnf_element){.kind = GBNF_RULE, .rule = read_name(p)});
    else
        return false;
    s->item = item;
    return true;
}

static void read_sequence(struct parser *p, uint32_t rule)
{
    struct sequence s = {0};
    while (p->rc == 0 && read_item(p, &s))
        skip_space(p, p->nesting > 0);
    add_alternative(p, rule, s.at, s.n, NULL);
    mem_free(s.at);
}

/* Returns whether another alternative follows, perhaps on another line. */
static bool skip_bar(struct parser *p)
{
    const size_t at = p->at;
    const unsigned line = p->line;
    skip_space(p, true);
    if (skip_text(p, "|"))
        return true;
    p->at = at;
    p->line = line;
    return false;
}

static void read_alternatives(struct parser *p, uint32_t rule)
{
    do {
        skip_space(p, true);
        read_sequence(p, rule);
    } while (p->rc == 0 && skip_bar(p));
    if (p->nesting > 0)
        skip_space(p, true);
}

static void read_rule(struct parser *p)
{
    const uint32_t rule = read_name(p);
    skip_space(p, false);
    if (!skip_text(p, "::="))
        (void)fail(p, "'::=' is expected behind the name of a rule");
    if (p->rc == 0 && p->g->rules[rule].is_defined)
        (void)fail(p, "a rule is defined twice");
    if (p->rc != 0)
        return;
    p->g->rules[rule].is_defined = true;
    read_alternatives(p, rule);
    skip_space(p, false);
    if (p->at < p->end && peek(p) != '\n')
        (void)fail(p, "this is neither a literal, a class, a name, a group nor the end of a rule");
    skip_space(p, true);
}

int gbnf_compile(const char *text, size_t bytes, struct gbnf **out, struct fm_error *err)
{
    *out = NULL;
    struct parser p = {.text = text, .end = bytes, .line = 1, .err = err};
    if (bytes > GBNF_BYTES)
        return err_set(err, FM_ERR_ARG, "the grammar has %zu bytes; the maximum is %u", bytes,
                       GBNF_BYTES);
    p.g = mem_new(1, sizeof *p.g, "a grammar", err);
    if (p.g == NULL)
        return FM_ERR_NOMEM;
    p.g->root = find_rule(&p, "root", 4);
    skip_space(&p, true);
    while (p.rc == 0 && p.at < p.end)
        read_rule(&p);
    if (p.rc == 0)
        p.rc = gbnf_vet(p.g, err);
    if (p.rc != 0)
        gbnf_free(p.g);
    else
        *out = p.g;
    return p.rc;
}

void gbnf_free(struct gbnf *g)
{
    if (g == NULL)
        return;
    for (size_t i = 0; i < g->n_rules; i++)
        mem_free(g->rules[i].alternatives);
    mem_free(g->rules);
    mem_free(g->elements);
    mem_free(g->ranges);
    mem_free(g);
}
