#include "grammar/regex_tree.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/regex.h"
#include "text/unicode.h"

#define MAX_REPEATS 10000u
#define CLASS_RANGES 512u
#define PATTERN_BYTES 16384u

struct parser {
    struct dfa_maker *maker;
    const uint8_t *text;
    size_t at, end;
    unsigned depth;
    struct fm_error *err;
    int rc;
};

/* A character class under construction. */
struct set {
    struct code_range *ranges; /* [CLASS_RANGES] */
    uint32_t n;
};

static const struct code_range digits[] = {{'0', '9'}};
static const struct code_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct code_range spaces[] = {
    {'\t', '\r'}, {' ', ' '}, {0xa0, 0xa0}, {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
    {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
static const struct code_range newlines[] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

static int fail(struct parser *p, const char *why)
{
    if (p->rc == 0)
        p->rc = err_set(p->err, FM_ERR_ARG, "%s at byte %zu", why, p->at + 1);
    return p->rc;
}

static void *take(struct parser *p, size_t bytes)
{
    void *found = p->rc == 0 ? arena_new(p->maker->arena, bytes, p->err) : NULL;
    if (found == NULL && p->rc == 0)
        p->rc = FM_ERR_NOMEM;
    return found;
}

static bool is_at(const struct parser *p, char c)
{
    return p->at < p->end && p->text[p->at] == (uint8_t)c;
}

static bool is_at_repeat(const struct parser *p)
{
    return p->at < p->end && p->text[p->at] != '\0' && strchr("*+?{", p->text[p->at]) != NULL;
}

static bool skip(struct parser *p, const char *text)
{
    const size_t n = strlen(text);
    if (p->end - p->at < n || memcmp(p->text + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

static uint32_t take_char(struct parser *p)
{
    uint32_t c = 0;
    if (p->at < p->end)
        p->at += utf8_get(p->text + p->at, &c);
    return c;
}

/* ---- sets ----------------------------------------------------------------------------------- */

static void set_add(struct parser *p, struct set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == CLASS_RANGES)
        (void)fail(p, "a character class has too many parts");
    else if (p->rc == 0)
        s->ranges[s->n++] = (struct code_range){lo, hi};
}

static int compare_ranges(const void *a, const void *b)
{
    const struct code_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void set_sort(struct set *s)
{
    uint32_t n = 0;
    if (s->n == 0)
        return;
    qsort(s->ranges, s->n, sizeof *s->ranges, compare_ranges);
    for (uint32_t i = 1; i < s->n; i++) {
        struct code_range *last = &s->ranges[n];
        if (s->ranges[i].lo > last->hi + 1)
            s->ranges[++n] = s->ranges[i];
        else if (s->ranges[i].hi > last->hi)
            last->hi = s->ranges[i].hi;
    }
    s->n = n + 1;
}

/* Adds the complement of the sorted ranges. */
static void set_add_others(struct parser *p, struct set *s, const struct code_range *ranges,
                           uint32_t n)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (ranges[i].lo > from)
            set_add(p, s, from, ranges[i].lo - 1);
        from = ranges[i].hi + 1;
    }
    if (from <= CODE_POINT_MAX)
        set_add(p, s, from, CODE_POINT_MAX);
}

static struct regex_node *new_node(struct parser *p, enum regex_kind kind)
{
    struct regex_node *node = take(p, sizeof *node);
    if (node != NULL)
        node->kind = kind;
    return node;
}

/* Returns a node for the set or its complement, without surrogates. */
static struct regex_node *set_node(struct parser *p, struct set *s, bool is_negated)
{
    set_sort(s);
    struct set all = *s;
    if (is_negated) {
        all = (struct set){take(p, CLASS_RANGES * sizeof *all.ranges), 0};
        set_add_others(p, &all, s->ranges, s->n);
    }
    struct regex_node *node = new_node(p, REGEX_SET);
    struct code_range *out = take(p, (all.n + 1) * sizeof *out);
    if (node == NULL || out == NULL)
        return NULL;
    node->ranges = out;
    for (uint32_t i = 0; i < all.n; i++) {
        const struct code_range r = all.ranges[i];
        if (r.lo < 0xd800)
            out[node->n_ranges++] = (struct code_range){r.lo, r.hi < 0xd800 ? r.hi : 0xd7ff};
        if (r.hi > 0xdfff)
            out[node->n_ranges++] = (struct code_range){r.lo > 0xdfff ? r.lo : 0xe000, r.hi};
    }
    return node;
}

/* ---- characters ----------------------------------------------------------------------------- */

static uint32_t take_hex(struct parser *p, unsigned n)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < n; i++) {
        const uint32_t c = take_char(p);
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) {
            (void)fail(p, "hexadecimal digits are missing");
            return 0;
        }
        value = value << 4 | (c <= '9' ? c - '0' : (c | 32u) - 'a' + 10);
    }
    return value;
}

static uint32_t take_unicode_escape(struct parser *p)
{
    if (is_at(p, '{')) {
        uint32_t value = 0;
        p->at++;
        while (p->rc == 0 && !is_at(p, '}') && value <= CODE_POINT_MAX)
            value = value << 4 | take_hex(p, 1);
        p->at++;
        if (value > CODE_POINT_MAX || p->at > p->end)
            (void)fail(p, "\\u{} does not name a code point");
        return value;
    }
    const uint32_t high = take_hex(p, 4);
    if (high < 0xd800 || high > 0xdbff || !skip(p, "\\u"))
        return high;
    const uint32_t low = take_hex(p, 4);
    if (low < 0xdc00 || low > 0xdfff)
        (void)fail(p, "a surrogate without its partner");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* Reads an escape that stands for one character, after its backslash. Returns false for \d and the
 * like. */
static bool take_escape(struct parser *p, uint32_t *c)
{
    static const char names[] = "tnrfv", values[] = "\t\n\r\f\v";
    const size_t before = p->at;
    *c = take_char(p);
    const char *name = *c != 0 && *c < 128 ? strchr(names, (int)*c) : NULL;
    if (name != NULL) {
        *c = (uint8_t)values[name - names];
    } else if (*c == 'x') {
        *c = take_hex(p, 2);
    } else if (*c == 'u') {
        *c = take_unicode_escape(p);
    } else if (*c == 'c') {
        *c = take_char(p) & 31;
    } else if (*c == '0' && !(p->at < p->end && p->text[p->at] >= '0' && p->text[p->at] <= '9')) {
        *c = 0;
    } else if (*c != 0 && *c < 128 && strchr("dDwWsS", (int)*c) != NULL) {
        p->at = before;
        return false;
    } else if ((*c >= '0' && *c <= '9') || *c == 'k') {
        (void)fail(p, "a back-reference cannot be enforced");
    } else if (*c == 'b' || *c == 'B') {
        (void)fail(p, "a word boundary cannot be enforced");
    } else if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || before == p->end) {
        (void)fail(p, "this escape is not supported");
    }
    return true;
}

static void set_add_class(struct parser *p, struct set *s, uint32_t name)
{
    const bool is_word = (name | 32) == 'w', is_digit = (name | 32) == 'd';
    const struct code_range *ranges = is_word ? words : is_digit ? digits : spaces;
    const uint32_t n = is_word ? 4 : is_digit ? 1 : sizeof spaces / sizeof spaces[0];
    if (name < 'a') {
        set_add_others(p, s, ranges, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        set_add(p, s, ranges[i].lo, ranges[i].hi);
}

/* Reads one character of a class. Returns false for \d and the like, which it adds to the set. */
static bool take_class_char(struct parser *p, struct set *s, uint32_t *c)
{
    if (!skip(p, "\\")) {
        *c = take_char(p);
        return true;
    }
    if (is_at(p, 'b')) {
        p->at++;
        *c = '\b';
        return true;
    }
    if (is_at(p, '-')) {
        p->at++;
        *c = '-';
        return true;
    }
    if (take_escape(p, c))
        return true;
    set_add_class(p, s, take_char(p));
    return false;
}

static struct regex_node *parse_class(struct parser *p)
{
    struct set s = {take(p, CLASS_RANGES * sizeof *s.ranges), 0};
    const bool is_negated = skip(p, "^");
    while (p->rc == 0 && !is_at(p, ']')) {
        uint32_t lo, hi;
        if (p->at >= p->end) {
            (void)fail(p, "a character class is not closed");
            break;
        }
        const bool is_char = take_class_char(p, &s, &lo);
        if (is_char && is_at(p, '-') && p->at + 1 < p->end && p->text[p->at + 1] != ']') {
            p->at++;
            if (!take_class_char(p, &s, &hi) || hi < lo)
                (void)fail(p, "a range in a character class is out of order");
            else
                set_add(p, &s, lo, hi);
        } else if (is_char) {
            set_add(p, &s, lo, lo);
        }
    }
    p->at++;
    return p->rc == 0 ? set_node(p, &s, is_negated) : NULL;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static struct regex_node *parse_choice(struct parser *p);

static struct regex_node *parse_group(struct parser *p)
{
    if (skip(p, "?:")) {
        /* (?: ) has no name to read */
    } else if (is_at(p, '?')) {
        const bool is_named = skip(p, "?<") && !is_at(p, '=') && !is_at(p, '!');
        while (is_named && p->at < p->end && !is_at(p, '>'))
            p->at++;
        if (!is_named || !skip(p, ">"))
            (void)fail(p, "lookahead and lookbehind, (?, cannot be enforced");
    }
    if (++p->depth > REGEX_DEPTH)
        (void)fail(p, "groups are nested too deeply");
    struct regex_node *inner = p->rc == 0 ? parse_choice(p) : NULL;
    p->depth--;
    if (p->rc == 0 && !skip(p, ")"))
        (void)fail(p, "a group is not closed");
    return inner;
}

static struct regex_node *single(struct parser *p, uint32_t c)
{
    struct code_range one = {c, c};
    struct set s = {&one, 1};
    return set_node(p, &s, false);
}

static struct regex_node *parse_atom(struct parser *p)
{
    if (skip(p, "("))
        return parse_group(p);
    if (skip(p, "["))
        return parse_class(p);
    if (skip(p, "^"))
        return new_node(p, REGEX_BEGIN);
    if (skip(p, "$"))
        return new_node(p, REGEX_END);
    struct code_range room[16]; /* \S has the largest number of ranges */
    struct set s = {room, 0};
    if (skip(p, ".")) {
        memcpy(room, newlines, sizeof newlines);
        s.n = sizeof newlines / sizeof newlines[0];
        return set_node(p, &s, true);
    }
    if (is_at_repeat(p)) {
        (void)fail(p, "there is nothing to repeat");
        return NULL;
    }
    uint32_t c;
    if (!skip(p, "\\"))
        return single(p, take_char(p));
    if (take_escape(p, &c))
        return p->rc == 0 ? single(p, c) : NULL;
    set_add_class(p, &s, take_char(p));
    return p->rc == 0 ? set_node(p, &s, false) : NULL;
}

static uint32_t take_count(struct parser *p)
{
    uint32_t n = 0;
    if (p->at >= p->end || p->text[p->at] < '0' || p->text[p->at] > '9')
        (void)fail(p, "a repetition count is missing");
    while (p->at < p->end && p->text[p->at] >= '0' && p->text[p->at] <= '9' && n <= MAX_REPEATS)
        n = n * 10 + (p->text[p->at++] - '0');
    if (n > MAX_REPEATS)
        (void)fail(p, "too many repetitions");
    return n;
}

static struct regex_node *parse_repeated(struct parser *p)
{
    struct regex_node *atom = parse_atom(p);
    if (p->rc == 0 && is_at_repeat(p)) {
        struct regex_node *repeat = new_node(p, REGEX_REPEAT);
        if (repeat == NULL)
            return NULL;
        const char how = (char)p->text[p->at++];
        repeat->min = how == '+';
        repeat->max = how == '?' ? 1 : DFA_NONE;
        if (how == '{') {
            repeat->min = repeat->max = take_count(p);
            if (skip(p, ","))
                repeat->max = is_at(p, '}') ? DFA_NONE : take_count(p);
            if (!skip(p, "}") || repeat->max < repeat->min)
                (void)fail(p, "a repetition count is not valid");
        }
        (void)skip(p, "?"); /* a lazy repetition matches the same texts */
        repeat->first = atom;
        atom = repeat;
        /* ECMA-262 forbids this too. So a tree is never deeper than its groups. */
        if (is_at_repeat(p))
            (void)fail(p, "a repetition of a repetition needs a group such as (?:a+)*,");
    }
    return atom;
}

static struct regex_node *parse_chain(struct parser *p)
{
    struct regex_node *chain = new_node(p, REGEX_CHAIN);
    struct regex_node **tail = chain != NULL ? &chain->first : NULL;
    while (p->rc == 0 && p->at < p->end && !is_at(p, '|') && !is_at(p, ')')) {
        *tail = parse_repeated(p);
        if (*tail != NULL)
            tail = &(*tail)->next;
    }
    return chain;
}

static struct regex_node *parse_choice(struct parser *p)
{
    struct regex_node *choice = new_node(p, REGEX_CHOICE);
    struct regex_node **tail = choice != NULL ? &choice->first : NULL;
    do {
        if (p->rc != 0)
            return NULL;
        *tail = parse_chain(p);
        if (*tail != NULL)
            tail = &(*tail)->next;
    } while (p->rc == 0 && skip(p, "|"));
    return choice;
}

int regex_parse(struct dfa_maker *maker, const char *text, size_t bytes, struct regex_node **out,
                struct fm_error *err)
{
    if (bytes > PATTERN_BYTES)
        return err_set(err, FM_ERR_ARG, "it has more than %u bytes", PATTERN_BYTES);
    struct parser p = {.maker = maker, .text = (const uint8_t *)text, .end = bytes, .err = err};
    *out = parse_choice(&p);
    if (p.rc == 0 && p.at < p.end)
        (void)fail(&p, "an unmatched bracket");
    return p.rc;
}
