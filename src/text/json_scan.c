#include "text/json_scan.h"

#include <string.h>

#include "text/unicode.h"

enum {
    EXPECT_VALUE,
    EXPECT_FIRST_VALUE, /* or the end of the array */
    EXPECT_KEY,
    EXPECT_FIRST_KEY, /* or the end of the object */
    EXPECT_COLON,
    EXPECT_NEXT, /* a comma or the end of the open container */
    IN_STRING,
    IN_ESCAPE,
    IN_HEX,
    EXPECT_LOW,   /* the backslash of the low surrogate */
    EXPECT_LOW_U, /* its u */
    IN_LITERAL,
    AFTER_MINUS,
    AFTER_ZERO,
    IN_DIGITS,
    AFTER_POINT,
    IN_FRACTION,
    AFTER_E,
    AFTER_E_SIGN,
    IN_EXPONENT,
    IS_WHOLE,
};

bool utf8_scan_push(struct utf8_scan *u, uint8_t byte)
{
    if (u->n_left > 0) {
        if (byte < u->lo || byte > u->hi)
            return false;
        *u = (struct utf8_scan){(uint8_t)(u->n_left - 1), 0x80, 0xbf};
        return true;
    }
    if (byte < 0x80)
        return true;
    if (byte < 0xc2 || byte > 0xf4)
        return false;
    u->n_left = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    u->lo = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    u->hi = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    return true;
}

void json_scan_init(struct json_scan *s)
{
    *s = (struct json_scan){.state = EXPECT_VALUE};
}

static bool is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static bool is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static bool go(struct json_scan *s, uint8_t state)
{
    s->state = state;
    return true;
}

static bool in_object(const struct json_scan *s)
{
    const unsigned top = s->depth - 1u;
    return (s->is_object[top / 8] >> top % 8 & 1) != 0;
}

static bool end_value(struct json_scan *s)
{
    return go(s, s->depth == 0 ? IS_WHOLE : EXPECT_NEXT);
}

static bool open_container(struct json_scan *s, uint8_t byte)
{
    if (s->depth == JSON_SCAN_DEPTH)
        return false;
    const uint8_t bit = (uint8_t)(1u << s->depth % 8);
    uint8_t *place = &s->is_object[s->depth / 8];
    *place = (uint8_t)(byte == '{' ? *place | bit : *place & ~bit);
    s->depth++;
    s->event = JSON_OPENED;
    return go(s, byte == '{' ? EXPECT_FIRST_KEY : EXPECT_FIRST_VALUE);
}

static bool close_container(struct json_scan *s)
{
    s->depth--;
    s->event = JSON_CLOSED;
    return end_value(s);
}

static bool begin_string(struct json_scan *s, bool is_key)
{
    s->is_key = is_key;
    s->event = JSON_STRING_BEGAN;
    s->high = 0;
    s->utf8 = (struct utf8_scan){0};
    return go(s, IN_STRING);
}

static bool begin_value(struct json_scan *s, uint8_t byte)
{
    s->kind = is_digit(byte) || byte == '-' ? '0' : byte;
    if (byte == '{' || byte == '[')
        return open_container(s, byte);
    if (byte == '"')
        return begin_string(s, false);
    s->event = JSON_SCALAR_BEGAN;
    if (s->kind == '0')
        return go(s, byte == '-' ? AFTER_MINUS : byte == '0' ? AFTER_ZERO : IN_DIGITS);
    s->literal = byte == 't' ? "rue" : byte == 'f' ? "alse" : byte == 'n' ? "ull" : NULL;
    return s->literal != NULL && go(s, IN_LITERAL);
}

/* Handles a byte between values. */
static bool push_structure(struct json_scan *s, uint8_t byte)
{
    if (is_space(byte))
        return true;
    switch (s->state) {
    case EXPECT_FIRST_VALUE:
        return byte == ']' ? close_container(s) : begin_value(s, byte);
    case EXPECT_VALUE:
        return begin_value(s, byte);
    case EXPECT_FIRST_KEY:
        return byte == '}' ? close_container(s) : byte == '"' && begin_string(s, true);
    case EXPECT_KEY:
        return byte == '"' && begin_string(s, true);
    case EXPECT_COLON:
        return byte == ':' && go(s, EXPECT_VALUE);
    case EXPECT_NEXT:
        if (byte == ',')
            return go(s, in_object(s) ? EXPECT_KEY : EXPECT_VALUE);
        return byte == (in_object(s) ? '}' : ']') && close_container(s);
    default:
        return false; /* after the document */
    }
}

static void decoded(struct json_scan *s, uint32_t code_point)
{
    s->n_decoded = (uint8_t)utf8_put(code_point, s->decoded);
}

static bool push_hex(struct json_scan *s, uint8_t byte)
{
    const uint8_t lower = byte | 0x20;
    const bool is_letter = lower >= 'a' && lower <= 'f';
    if (!is_digit(byte) && !is_letter)
        return false;
    s->unit = (uint16_t)(s->unit << 4 | (is_letter ? lower - 'a' + 10 : byte - '0'));
    if (++s->n_hex < 4)
        return true;
    const bool is_high = (s->unit & 0xfc00) == 0xd800, is_low = (s->unit & 0xfc00) == 0xdc00;
    if (is_low != (s->high != 0))
        return false;
    if (is_high) {
        s->high = s->unit;
        return go(s, EXPECT_LOW);
    }
    decoded(s, is_low ? 0x10000u + ((s->high & 0x3ffu) << 10) + (s->unit & 0x3ffu) : s->unit);
    s->high = 0;
    return go(s, IN_STRING);
}

static bool begin_hex(struct json_scan *s)
{
    s->unit = 0;
    s->n_hex = 0;
    return go(s, IN_HEX);
}

static bool push_escape(struct json_scan *s, uint8_t byte)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (byte == 'u')
        return begin_hex(s);
    const char *found = byte != '\0' ? strchr(names, byte) : NULL;
    if (found == NULL)
        return false;
    decoded(s, (uint8_t)meant[found - names]);
    return go(s, IN_STRING);
}

static bool push_string(struct json_scan *s, uint8_t byte)
{
    switch (s->state) {
    case IN_ESCAPE:
        return push_escape(s, byte);
    case IN_HEX:
        return push_hex(s, byte);
    case EXPECT_LOW:
        return byte == '\\' && go(s, EXPECT_LOW_U);
    case EXPECT_LOW_U:
        return byte == 'u' && begin_hex(s);
    default:
        break;
    }
    if (byte < 0x20 || !utf8_scan_push(&s->utf8, byte))
        return false;
    if (byte == '\\')
        return go(s, IN_ESCAPE);
    if (byte != '"') {
        s->decoded[0] = byte;
        s->n_decoded = 1;
        return true;
    }
    s->event = JSON_STRING_ENDED;
    return s->is_key ? go(s, EXPECT_COLON) : end_value(s);
}

/* A number ends at the byte after it, which may be anything that can follow a value. */
static bool push_number(struct json_scan *s, uint8_t byte)
{
    const uint8_t state = s->state;
    if (is_digit(byte) && state != AFTER_ZERO) {
        if (state == AFTER_MINUS)
            return go(s, byte == '0' ? AFTER_ZERO : IN_DIGITS);
        return go(s, state == AFTER_POINT                             ? IN_FRACTION
                     : state == AFTER_E || state == AFTER_E_SIGN ? IN_EXPONENT
                                                                      : state);
    }
    if (byte == '.' && (state == AFTER_ZERO || state == IN_DIGITS))
        return go(s, AFTER_POINT);
    if ((byte | 0x20) == 'e' &&
        (state == AFTER_ZERO || state == IN_DIGITS || state == IN_FRACTION))
        return go(s, AFTER_E);
    if ((byte == '+' || byte == '-') && state == AFTER_E)
        return go(s, AFTER_E_SIGN);
    if (state == AFTER_MINUS || state == AFTER_POINT || state == AFTER_E || state == AFTER_E_SIGN)
        return false;
    (void)end_value(s);
    return push_structure(s, byte);
}

bool json_scan_push(struct json_scan *s, uint8_t byte)
{
    s->event = JSON_NOTHING;
    s->n_decoded = 0;
    if (s->state >= IN_STRING && s->state <= EXPECT_LOW_U)
        return push_string(s, byte);
    if (s->state >= AFTER_MINUS && s->state <= IN_EXPONENT)
        return push_number(s, byte);
    if (s->state != IN_LITERAL)
        return push_structure(s, byte);
    if (byte != (uint8_t)*s->literal++)
        return false;
    return *s->literal != '\0' || end_value(s);
}

bool json_scan_is_whole(const struct json_scan *s)
{
    const bool is_number = s->state == AFTER_ZERO || s->state == IN_DIGITS ||
                           s->state == IN_FRACTION || s->state == IN_EXPONENT;
    return s->state == IS_WHOLE || (is_number && s->depth == 0);
}

uint8_t json_scan_text(const char *text, size_t bytes)
{
    struct json_scan s;
    json_scan_init(&s);
    uint8_t kind = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (!json_scan_push(&s, (uint8_t)text[i]))
            return 0;
        kind = kind == 0 ? s.kind : kind;
    }
    return json_scan_is_whole(&s) ? kind : 0;
}

size_t json_escape(uint8_t byte, char out[6])
{
    static const char digits[] = "0123456789abcdef", names[] = "btn_fr";
    if (byte >= 0x20 && byte != '"' && byte != '\\') {
        out[0] = (char)byte;
        return 1;
    }
    out[0] = '\\';
    const bool is_named = byte >= '\b' && byte <= '\r' && byte != '\v';
    if (byte >= 0x20 || is_named) {
        out[1] = byte >= 0x20 ? (char)byte : names[byte - '\b'];
        return 2;
    }
    memcpy(out + 1, "u00", 3);
    out[4] = digits[byte >> 4];
    out[5] = digits[byte & 15];
    return 6;
}
