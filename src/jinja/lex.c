/* Splits a template into tokens. The rules are those of jinja2 with trim_blocks and lstrip_blocks.
 * A block or comment removes the line end after it, and the blanks before it if nothing else is in
 * that line. '-' removes all white space, '+' removes none. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "jinja/tree.h"
#include "jinja/python_text.h"
#include "text/unicode.h"

int lexer_fail(const struct lexer *lexer, unsigned line, const char *fmt, ...)
{
    char text[FM_ERROR_BYTES / 2];
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    return err_set(lexer->err, FM_ERR_FORMAT, "%s: line %u: %s", lexer->name, line, text);
}

/* Converts line ends to '\n' and removes the last one. */
int lexer_init(struct lexer *lexer, struct arena *arena, const char *name, const char *text,
               size_t bytes, struct fm_error *err)
{
    *lexer = (struct lexer){.arena = arena, .name = name, .line = 1, .is_line_start = true,
                            .err = err};
    if (bytes > JINJA_SOURCE_BYTES)
        return err_set(err, FM_ERR_FORMAT, "%s has %zu bytes; the limit for a chat template is %u",
                       name, bytes, JINJA_SOURCE_BYTES);
    if (utf8_count_bad((const uint8_t *)text, bytes) > 0)
        return err_set(err, FM_ERR_FORMAT, "%s is not UTF-8", name);
    char *copy = arena_new(arena, bytes + 1, err);
    if (copy == NULL)
        return FM_ERR_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    n -= n > 0 && copy[n - 1] == '\n';
    lexer->text = copy;
    lexer->bytes = n;
    return 0;
}

static bool starts(const struct lexer *l, size_t at, const char *with)
{
    const size_t n = strlen(with);
    return l->bytes - at >= n && memcmp(l->text + at, with, n) == 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    while (at < l->bytes) {
        uint32_t c;
        const size_t used = utf8_get((const uint8_t *)l->text + at, &c);
        if (!python_is_space(c))
            break;
        at += used;
    }
    return at;
}

/* Returns where the white space at the end of [begin, end) starts. */
static size_t trim_end(const struct lexer *l, size_t begin, size_t end)
{
    size_t kept = begin;
    for (size_t at = begin; at < end;) {
        uint32_t c;
        at += utf8_get((const uint8_t *)l->text + at, &c);
        if (!python_is_space(c))
            kept = at;
    }
    return kept;
}

static void move_to(struct lexer *l, size_t at)
{
    for (; l->at < at; l->at++)
        l->line += l->text[l->at] == '\n';
    l->is_line_start = at > 0 && l->text[at - 1] == '\n';
}

/* Returns where the text before the tag at `tag` ends, given the tag's sign. `strips`: it is a
 * block or comment. */
static size_t data_end(const struct lexer *l, size_t begin, size_t tag, char sign, bool strips)
{
    if (sign == '-')
        return trim_end(l, begin, tag);
    if (sign == '+' || !strips)
        return tag;
    size_t line = tag;
    while (line > begin && l->text[line - 1] != '\n')
        line--;
    const bool is_start = line > begin || l->is_line_start;
    return is_start && trim_end(l, line, tag) == line && line < tag ? line : tag;
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->bytes && (l->text[at] == '-' || l->text[at] == '+') ? l->text[at] : '\0';
}

/* Returns the end of a tag that closes with `close` at `at`, or 0 if it does not. A sign may
 * precede it. `trims`: it also removes a line end. */
static size_t tag_end(const struct lexer *l, size_t at, const char *close, bool trims)
{
    const char sign = sign_at(l, at);
    if (sign != '\0' && starts(l, at + 1, close) && (sign == '-' || trims)) {
        at += 1 + strlen(close);
        return sign == '-' ? skip_space(l, at) : at;
    }
    if (!starts(l, at, close))
        return 0;
    at += strlen(close);
    return trims && at < l->bytes && l->text[at] == '\n' ? at + 1 : at;
}

/* Returns where the content of a `{% raw %}` at `at` begins, or 0. */
static size_t raw_begin(const struct lexer *l, size_t at)
{
    at += 2;
    at += sign_at(l, at) != '\0';
    at = skip_space(l, at);
    if (!starts(l, at, "raw"))
        return 0;
    at = skip_space(l, at + 3);
    if (starts(l, at, "-%}"))
        return skip_space(l, at + 3);
    return starts(l, at, "%}") ? at + 2 : 0;
}

static void set_data(struct lexer *l, struct token *token, size_t begin, size_t end)
{
    token->kind = T_DATA;
    token->line = l->line;
    token->text = l->text + begin;
    token->bytes = end - begin;
}

/* Reads the content of a raw block that begins at the current position. */
static int lex_raw(struct lexer *l, struct token *token)
{
    for (size_t at = l->at; at + 1 < l->bytes; at++) {
        if (!starts(l, at, "{%"))
            continue;
        const char sign = sign_at(l, at + 2);
        size_t end = skip_space(l, at + 2 + (sign != '\0'));
        if (!starts(l, end, "endraw"))
            continue;
        end = tag_end(l, skip_space(l, end + 6), "%}", true);
        if (end == 0)
            continue;
        set_data(l, token, l->at, data_end(l, l->at, at, sign, true));
        move_to(l, end);
        return 0;
    }
    return lexer_fail(l, l->line, "'raw' has no 'endraw'");
}

static int skip_comment(struct lexer *l, size_t at)
{
    for (; at + 1 < l->bytes; at++) {
        /* A sign belongs to the end of the comment and has no effect. */
        const size_t end = tag_end(l, at, "#}", true);
        if (end == 0)
            continue;
        move_to(l, end);
        return 0;
    }
    return lexer_fail(l, l->line, "a comment is not closed");
}

/* Reads text up to the next tag, or enters the tag. Sets *done to false if there is no token
 * yet. */
static int lex_root(struct lexer *l, struct token *token, bool *done)
{
    *done = true;
    size_t tag = l->at;
    while (tag < l->bytes && !starts(l, tag, "{%") && !starts(l, tag, "{{") &&
           !starts(l, tag, "{#"))
        tag++;
    if (tag == l->bytes) {
        set_data(l, token, l->at, tag);
        if (token->bytes == 0)
            token->kind = T_END;
        move_to(l, tag);
        return 0;
    }
    const char kind = l->text[tag + 1], sign = sign_at(l, tag + 2);
    const size_t begin = l->at, end = data_end(l, begin, tag, sign, kind != '{');
    if (end > begin) { /* the next call reads the tag */
        set_data(l, token, begin, end);
        const bool is_line_start = tag > 0 && l->text[tag - 1] == '\n';
        move_to(l, tag);
        l->is_line_start = is_line_start;
        return 0;
    }
    const size_t raw = kind == '%' ? raw_begin(l, tag) : 0;
    if (raw != 0) {
        move_to(l, raw);
        return lex_raw(l, token);
    }
    move_to(l, tag + 2 + (sign != '\0'));
    if (kind == '#') {
        *done = false;
        return skip_comment(l, l->at);
    }
    token->kind = kind == '%' ? T_BLOCK_BEGIN : T_PRINT_BEGIN;
    token->line = l->line;
    l->state = kind == '%' ? LEX_BLOCK : LEX_PRINT;
    return 0;
}

/* ---- inside a tag ---------------------------------------------------------------------------- */

static bool is_digit(const struct lexer *l, size_t at)
{
    return at < l->bytes && l->text[at] >= '0' && l->text[at] <= '9';
}

/* Returns the end of digits with single underscores between them, or `at` if there are none. */
static size_t digits_end(const struct lexer *l, size_t at)
{
    if (!is_digit(l, at))
        return at;
    while (is_digit(l, at) || (at < l->bytes && l->text[at] == '_' && is_digit(l, at + 1)))
        at++;
    return at;
}

static size_t float_end(const struct lexer *l, size_t at)
{
    if (at > 0 && l->text[at - 1] == '.')
        return at;
    size_t end = digits_end(l, at);
    bool is_float = false;
    if (end < l->bytes && l->text[end] == '.' && is_digit(l, end + 1)) {
        end = digits_end(l, end + 1);
        is_float = true;
    }
    if (end < l->bytes && (l->text[end] | 32) == 'e') {
        const size_t exponent = end + 1 + (sign_at(l, end + 1) != '\0');
        if (is_digit(l, exponent)) {
            end = digits_end(l, exponent);
            is_float = true;
        }
    }
    return is_float ? end : at;
}

static bool is_base_digit(const struct lexer *l, size_t at, int base)
{
    if (at >= l->bytes)
        return false;
    const char c = l->text[at] | 32;
    return base == 16 ? is_digit(l, at) || (c >= 'a' && c <= 'f')
                      : l->text[at] >= '0' && l->text[at] < '0' + base;
}

static size_t integer_end(const struct lexer *l, size_t at, int *base)
{
    const char mark = at + 1 < l->bytes && l->text[at] == '0' ? l->text[at + 1] | 32 : '\0';
    *base = mark == 'b' ? 2 : mark == 'o' ? 8 : mark == 'x' ? 16 : 10;
    if (*base != 10) {
        size_t end = at + 2;
        while (is_base_digit(l, end, *base) ||
               (end < l->bytes && l->text[end] == '_' && is_base_digit(l, end + 1, *base)))
            end++;
        if (end > at + 2)
            return end;
        *base = 10;
    }
    if (l->text[at] != '0')
        return digits_end(l, at);
    size_t end = at + 1;
    while (end < l->bytes && (l->text[end] == '0' ||
                              (l->text[end] == '_' && end + 1 < l->bytes &&
                               l->text[end + 1] == '0')))
        end++;
    return end;
}

static int lex_number(struct lexer *l, struct token *token)
{
    char digits[512];
    int base = 10;
    size_t end = float_end(l, l->at), n = 0;
    token->kind = end > l->at ? T_FLOAT : T_INT;
    if (token->kind == T_INT)
        end = integer_end(l, l->at, &base);
    const size_t begin = l->at + (base != 10 ? 2 : 0);
    if (end - begin >= sizeof digits)
        return lexer_fail(l, l->line, "a number with %zu digits is too long", end - begin);
    for (size_t i = begin; i < end; i++)
        if (l->text[i] != '_')
            digits[n++] = l->text[i];
    digits[n] = '\0';
    move_to(l, end);
    if (token->kind == T_FLOAT) {
        token->value = v_float(strtod(digits, NULL));
        return 0;
    }
    int64_t x = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t digit = digits[i] <= '9' ? digits[i] - '0' : (digits[i] | 32) - 'a' + 10;
        if (__builtin_mul_overflow(x, base, &x) || __builtin_add_overflow(x, digit, &x))
            return lexer_fail(l, l->line, "the integer '%s' is too large", digits);
    }
    token->value = v_int(x);
    return 0;
}

/* Reads the code point after a backslash and advances *at. Returns false if it is not an escape. */
static int unescape(struct lexer *l, const char *text, size_t bytes, size_t *at, uint32_t *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = text[*at];
    const char *found = c != '\0' ? strchr(from, c) : NULL;
    if (found != NULL) {
        *out = (uint8_t)to[found - from];
        (*at)++;
        return 1;
    }
    const size_t wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 3;
    const bool is_octal = c >= '0' && c <= '7';
    if (!is_octal && wanted == 3)
        return c == 'N' ? lexer_fail(l, l->line, "\\N{...} escapes are not supported") : 0;
    size_t n = 0, i = *at + !is_octal;
    uint32_t x = 0;
    for (; n < wanted && i < bytes; n++, i++) {
        const char d = text[i], e = d | 32;
        const int digit = d >= '0' && d <= '9' ? d - '0' : e >= 'a' && e <= 'f' ? e - 'a' + 10 : 99;
        if (digit >= (is_octal ? 8 : 16))
            break;
        x = x * (is_octal ? 8 : 16) + (uint32_t)digit;
    }
    if ((!is_octal && n < wanted) || x > 0x10ffff || (x >= 0xd800 && x < 0xe000))
        return lexer_fail(l, l->line, "a string has an escape that is not valid");
    *at = i;
    *out = x;
    return 1;
}

static int lex_string(struct lexer *l, struct token *token)
{
    const char quote = l->text[l->at];
    size_t end = l->at + 1;
    while (end < l->bytes && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->bytes)
        return lexer_fail(l, l->line, "a string is not closed");
    const char *text = l->text + l->at + 1;
    const size_t bytes = end - l->at - 1;
    struct str *s = arena_new(l->arena, sizeof *s, l->err);
    char *out = arena_new(l->arena, bytes + 1, l->err);
    if (s == NULL || out == NULL)
        return l->err != NULL ? l->err->code : FM_ERR_NOMEM;
    size_t n = 0;
    for (size_t at = 0; at < bytes;) {
        if (text[at] != '\\') {
            out[n++] = text[at++];
            continue;
        }
        at++;
        uint32_t code_point = 0;
        if (text[at] == '\n') {
            at++;
            continue;
        }
        const int rc = unescape(l, text, bytes, &at, &code_point);
        if (rc < 0)
            return rc;
        if (rc == 0)
            out[n++] = '\\';
        else
            n += utf8_put(code_point, (uint8_t *)out + n);
    }
    *s = (struct str){.text = out, .bytes = n, .n_chars = utf8_characters(out, n)};
    token->kind = T_STRING;
    token->value = v_str(s);
    move_to(l, end + 1);
    return 0;
}

static size_t name_end(const struct lexer *l, size_t at)
{
    while (at < l->bytes) {
        uint32_t c;
        const size_t used = utf8_get((const uint8_t *)l->text + at, &c);
        if (c != '_' && (unicode_bits(c) & (UNICODE_L | UNICODE_M | UNICODE_N)) == 0)
            break;
        at += used;
    }
    return at;
}

static int lex_operator(struct lexer *l, struct token *token)
{
    static const char *const known[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*",
                                        "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=",
                                        ".", ":", "|", ",", ";"};
    size_t i = 0;
    while (i < sizeof known / sizeof known[0] && !starts(l, l->at, known[i]))
        i++;
    if (i == sizeof known / sizeof known[0])
        return lexer_fail(l, l->line, "unexpected character '%.1s'", l->text + l->at);
    token->kind = T_OPERATOR;
    token->text = known[i];
    token->bytes = strlen(known[i]);
    const char c = known[i][0];
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == JINJA_NESTING)
            return lexer_fail(l, l->line, "brackets are nested more than %d levels deep",
                              JINJA_NESTING);
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (l->n_open == 0 || l->open[--l->n_open] != c)
            return lexer_fail(l, l->line, "unexpected '%c'", c);
    }
    move_to(l, l->at + token->bytes);
    return 0;
}

static int lex_tag(struct lexer *l, struct token *token)
{
    move_to(l, skip_space(l, l->at));
    const bool is_block = l->state == LEX_BLOCK;
    token->line = l->line;
    if (l->at == l->bytes) {
        token->kind = T_END;
        return 0;
    }
    if (l->n_open == 0) {
        const size_t end = tag_end(l, l->at, is_block ? "%}" : "}}", is_block);
        if (end != 0) {
            token->kind = is_block ? T_BLOCK_END : T_PRINT_END;
            move_to(l, end);
            l->state = LEX_ROOT;
            return 0;
        }
    }
    if (is_digit(l, l->at))
        return lex_number(l, token);
    const size_t end = name_end(l, l->at);
    if (end > l->at) {
        token->kind = T_NAME;
        token->text = l->text + l->at;
        token->bytes = end - l->at;
        move_to(l, end);
        return 0;
    }
    if (l->text[l->at] == '\'' || l->text[l->at] == '"')
        return lex_string(l, token);
    return lex_operator(l, token);
}

int lexer_next(struct lexer *lexer, struct token *token)
{
    bool done = true;
    int rc = 0;
    do {
        *token = (struct token){.kind = T_END, .line = lexer->line, .text = ""};
        rc = lexer->state == LEX_ROOT ? lex_root(lexer, token, &done) : lex_tag(lexer, token);
    } while (rc == 0 && !done);
    return rc;
}
