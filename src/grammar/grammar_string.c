#include "grammar/grammar_string.h"

#include <string.h>

#include "text/unicode.h"

/* A part encodes the unfinished character: a mode, a number of bytes or digits, and the value so
 * far. */
enum { PLAIN, IN_UTF8, AT_ESCAPE, IN_HEX, AT_LOW, AT_LOW_U, IN_LOW };

static uint32_t make_part(unsigned mode, unsigned n, uint32_t value)
{
    return mode | n << 3 | value << 8;
}

/* Returns whether some character from lo to hi may come. */
static bool leads(const struct dfa *dfa, uint32_t state, uint32_t lo, uint32_t hi)
{
    if (dfa != NULL)
        return lo <= hi && dfa_leads(dfa, state, lo, hi);
    return lo <= hi && (lo < 0xd800 || hi > 0xdfff);
}

/* n_left of `length` bytes are still missing. */
static enum string_step step_utf8(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                  uint32_t value, unsigned length, unsigned n_left, uint32_t *c)
{
    static const uint32_t min[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t lo = value << 6 * n_left, hi = lo + (1u << 6 * n_left) - 1;
    lo = lo > min[length] ? lo : min[length];
    hi = hi < CODE_POINT_MAX ? hi : CODE_POINT_MAX;
    if (!leads(dfa, state, lo, hi))
        return STRING_NO;
    *c = value;
    *part = n_left == 0 ? 0 : make_part(IN_UTF8, length << 2 | n_left, value);
    return n_left == 0 ? STRING_CHAR : STRING_MORE;
}

/* Returns whether a UTF-16 unit from lo to hi may come. A high surrogate stands for all characters
 * that start with it. */
static bool unit_leads(const struct dfa *dfa, uint32_t state, uint32_t lo, uint32_t hi)
{
    const uint32_t first = lo > 0xd800 ? lo : 0xd800, last = hi < 0xdbff ? hi : 0xdbff;
    const uint32_t below = hi < 0xd7ff ? hi : 0xd7ff, above = lo > 0xe000 ? lo : 0xe000;
    return leads(dfa, state, lo, below) || leads(dfa, state, above, hi) ||
           (first <= last && leads(dfa, state, 0x10000 + ((first - 0xd800) << 10),
                                   0x10000 + ((last - 0xd800) << 10) + 0x3ff));
}

static int hex_value(uint8_t b)
{
    return b >= '0' && b <= '9' ? b - '0'
           : (b | 32) >= 'a' && (b | 32) <= 'f' ? (b | 32) - 'a' + 10 : -1;
}

/* Takes one of four hexadecimal digits; n are already read, with the value `value`. */
static enum string_step step_hex(const struct dfa *dfa, uint32_t state, uint32_t *part, unsigned n,
                                 uint32_t value, uint8_t b, uint32_t *c)
{
    const int digit = hex_value(b);
    if (digit < 0)
        return STRING_NO;
    value = value << 4 | (uint32_t)digit;
    const unsigned bits = 4 * (3 - n);
    if (!unit_leads(dfa, state, value << bits, (value << bits) + (1u << bits) - 1))
        return STRING_NO;
    *c = value;
    if (n < 3)
        *part = make_part(IN_HEX, n + 1, value);
    else
        *part = value >= 0xd800 && value <= 0xdbff ? make_part(AT_LOW, 0, value - 0xd800) : 0;
    return *part == 0 ? STRING_CHAR : STRING_MORE;
}

/* Does the same for a low surrogate; the bits above the digits hold the high one. */
static enum string_step step_low(const struct dfa *dfa, uint32_t state, uint32_t *part, unsigned n,
                                 uint32_t value, uint8_t b, uint32_t *c)
{
    const int digit = hex_value(b);
    if (digit < 0)
        return STRING_NO;
    const uint32_t high = value >> 12, low = (value & 0xfff) << 4 | (uint32_t)digit;
    const unsigned bits = 4 * (3 - n);
    uint32_t lo = low << bits, hi = lo + (1u << bits) - 1;
    lo = lo > 0xdc00 ? lo : 0xdc00;
    hi = hi < 0xdfff ? hi : 0xdfff;
    const uint32_t base = 0x10000 + (high << 10);
    if (lo > hi || !leads(dfa, state, base + lo - 0xdc00, base + hi - 0xdc00))
        return STRING_NO;
    *c = base + lo - 0xdc00;
    *part = n == 3 ? 0 : make_part(IN_LOW, n + 1, high << 12 | low);
    return n == 3 ? STRING_CHAR : STRING_MORE;
}

static enum string_step step_escape(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                    uint8_t b, uint32_t *c)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (b == 'u') {
        *part = make_part(IN_HEX, 0, 0);
        return STRING_MORE;
    }
    const char *name = b != 0 ? strchr(names, b) : NULL;
    if (name == NULL)
        return STRING_NO;
    *c = (uint8_t)values[name - names];
    *part = 0;
    return leads(dfa, state, *c, *c) ? STRING_CHAR : STRING_NO;
}

static enum string_step step_plain(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                   uint8_t b, uint32_t *c)
{
    if (b < 0x20 || b == '"')
        return STRING_NO;
    if (b == '\\') {
        *part = make_part(AT_ESCAPE, 0, 0);
        return leads(dfa, state, 0, CODE_POINT_MAX) ? STRING_MORE : STRING_NO;
    }
    if (b < 0x80) {
        *c = b;
        return leads(dfa, state, b, b) ? STRING_CHAR : STRING_NO;
    }
    if (b < 0xc2 || b > 0xf4)
        return STRING_NO;
    const unsigned length = b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
    return step_utf8(dfa, state, part, b & (0x7fu >> length), length, length - 1, c);
}

enum string_step grammar_string_step(const struct dfa *dfa, uint32_t state, uint32_t *part,
                                     uint8_t b, uint32_t *c)
{
    const unsigned mode = *part & 7, n = *part >> 3 & 31;
    const uint32_t value = *part >> 8;
    switch (mode) {
    case IN_UTF8:
        if ((b & 0xc0) != 0x80)
            return STRING_NO;
        return step_utf8(dfa, state, part, value << 6 | (b & 0x3f), n >> 2, (n & 3) - 1, c);
    case AT_ESCAPE:
        return step_escape(dfa, state, part, b, c);
    case IN_HEX:
        return step_hex(dfa, state, part, n, value, b, c);
    case AT_LOW:
    case AT_LOW_U:
        if (b != (mode == AT_LOW ? '\\' : 'u'))
            return STRING_NO;
        *part = mode == AT_LOW ? make_part(AT_LOW_U, 0, value) : make_part(IN_LOW, 0, value << 12);
        return STRING_MORE;
    case IN_LOW:
        return step_low(dfa, state, part, n, value, b, c);
    default:
        return step_plain(dfa, state, part, b, c);
    }
}

uint32_t grammar_read_char(const uint8_t *text, uint32_t *c)
{
    if (text[0] != '\\')
        return (uint32_t)utf8_get(text, c);
    uint32_t part = 0, used = 0;
    while (grammar_string_step(NULL, 0, &part, text[used++], c) == STRING_MORE)
        continue;
    return used;
}
