#include "grammar/decimal.h"

#define MAX_EXPONENT 1000000

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

struct decimal decimal_read(const char *text)
{
    struct decimal d = {.is_negative = text[0] == '-'};
    const char *c = text + d.is_negative;
    bool is_past_point = false;
    uint32_t n_seen = 0; /* significant digits so far */
    for (; is_digit(*c) || *c == '.'; c++) {
        if (*c == '.') {
            is_past_point = true;
            continue;
        }
        if (d.text == NULL && *c != '0')
            d.text = c;
        if (d.text != NULL) {
            n_seen++;
            d.n = *c != '0' ? n_seen : d.n;
            d.point += !is_past_point;
        } else {
            d.point -= is_past_point;
        }
    }
    int32_t exponent = 0;
    bool is_down = false;
    if (*c == 'e' || *c == 'E') {
        c++;
        is_down = *c == '-';
        c += *c == '-' || *c == '+';
        for (; is_digit(*c); c++)
            exponent = exponent < MAX_EXPONENT ? exponent * 10 + (*c - '0') : MAX_EXPONENT;
    }
    if (d.n == 0)
        return (struct decimal){.text = text};
    d.point += is_down ? -exponent : exponent;
    return d;
}

unsigned decimal_digit(const struct decimal *d, uint32_t i)
{
    if (i >= d->n)
        return 0;
    const char *c = d->text;
    for (uint32_t k = 0;; c++) {
        if (*c == '.')
            continue;
        if (k++ == i)
            return (unsigned)(*c - '0');
    }
}

int decimal_compare_magnitude(const struct decimal *a, const struct decimal *b)
{
    if (a->n == 0 || b->n == 0)
        return (a->n > 0) - (b->n > 0);
    if (a->point != b->point)
        return a->point < b->point ? -1 : 1;
    const char *x = a->text, *y = b->text;
    for (uint32_t i = 0; i < a->n || i < b->n; i++) {
        x += i < a->n && *x == '.';
        y += i < b->n && *y == '.';
        const char p = i < a->n ? *x++ : '0', q = i < b->n ? *y++ : '0';
        if (p != q)
            return p < q ? -1 : 1;
    }
    return 0;
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->is_negative != b->is_negative)
        return a->is_negative ? -1 : 1;
    const int order = decimal_compare_magnitude(a, b);
    return a->is_negative ? -order : order;
}

bool decimal_is_integer(const struct decimal *d)
{
    return d->n == 0 || (d->point > 0 && d->n <= (uint32_t)d->point);
}

bool decimal_get_uint(const struct decimal *d, uint64_t max, uint64_t *out)
{
    if (d->is_negative || !decimal_is_integer(d) || d->point > 20)
        return false;
    uint64_t value = 0;
    for (int32_t i = 0; i < d->point && d->n > 0; i++) {
        const unsigned digit = decimal_digit(d, (uint32_t)i);
        if (digit > max || value > (max - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *out = value;
    return value <= max;
}
