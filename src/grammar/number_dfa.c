#include "grammar/number_dfa.h"

enum { AT_START, AT_MINUS, IN_ZERO, IN_INTEGER, AT_POINT, IN_FRACTION, AT_E, AT_E_SIGN,
       IN_EXPONENT };

/* The words of a key. How the digits so far compare with those of a bound: */
enum { SAME, LESS, MORE };
enum { K_PHASE, K_NEGATIVE, K_INTEGER, K_FRACTION, K_LOW, K_HIGH, K_REST, KEY_WORDS };

/* Magnitudes on one side of zero. */
struct side {
    bool is_possible;
    struct number_bound low, high;
};

struct spec {
    struct side sides[2]; /* non-negative and negative */
    uint32_t max_integer, max_digits, multiple;
    bool has_point, has_exponent;
};

/* Returns digit i of a bound, counted from the first one before the point; a leading zero
 * counts. */
static unsigned bound_digit(const struct number_bound *b, uint32_t i)
{
    const int32_t shift = b->value.point < 1 ? b->value.point - 1 : 0;
    const int32_t at = (int32_t)i + shift;
    return at < 0 ? 0 : decimal_digit(&b->value, (uint32_t)at);
}

static uint32_t bound_integer_digits(const struct number_bound *b)
{
    return b->value.n == 0 || b->value.point < 1 ? 1 : (uint32_t)b->value.point;
}

static uint32_t bound_fraction_digits(const struct number_bound *b)
{
    const int32_t n = (int32_t)b->value.n - b->value.point;
    return b->value.n > 0 && n > 0 ? (uint32_t)n : 0;
}

/* Compares one more digit, number i of all; `is_fraction` if it comes after the point. */
static uint32_t compare_digit(const struct number_bound *b, uint32_t order, uint32_t i,
                              unsigned digit, bool is_fraction)
{
    if (!b->is_set)
        return SAME;
    if (!is_fraction && i >= bound_integer_digits(b))
        return MORE;
    const unsigned other = bound_digit(b, i);
    return order != SAME || digit == other ? order : digit < other ? LESS : MORE;
}

/* Compares when the digits before the point are complete. */
static uint32_t compare_point(const struct number_bound *b, uint32_t order, uint32_t n_integer)
{
    return b->is_set && n_integer < bound_integer_digits(b) ? LESS : order;
}

static uint32_t compare_end(const struct number_bound *b, const uint32_t *key, uint32_t order)
{
    if (key[K_PHASE] == IN_ZERO || key[K_PHASE] == IN_INTEGER)
        order = compare_point(b, order, key[K_INTEGER]);
    return order == SAME && b->is_set && key[K_FRACTION] < bound_fraction_digits(b) ? LESS : order;
}

static bool number_accepts(const void *ctx, const uint32_t *key, size_t n)
{
    (void)n;
    const struct spec *p = ctx;
    const struct side *side = &p->sides[key[K_NEGATIVE]];
    if (key[K_PHASE] == IN_EXPONENT)
        return true;
    if ((key[K_PHASE] != IN_ZERO && key[K_PHASE] != IN_INTEGER && key[K_PHASE] != IN_FRACTION) ||
        key[K_REST] != 0)
        return false;
    const uint32_t low = compare_end(&side->low, key, key[K_LOW]);
    const uint32_t high = compare_end(&side->high, key, key[K_HIGH]);
    return (!side->low.is_set || low == MORE || (low == SAME && !side->low.is_exclusive)) &&
           (!side->high.is_set || high == LESS || (high == SAME && !side->high.is_exclusive));
}

/* Advances the key by a digit. Returns false if none may come. */
static bool push_digit(const struct spec *p, uint32_t *key, unsigned digit)
{
    const struct side *side = &p->sides[key[K_NEGATIVE]];
    const uint32_t phase = key[K_PHASE];
    if (phase == AT_E || phase == AT_E_SIGN || phase == IN_EXPONENT) {
        key[K_PHASE] = IN_EXPONENT;
        return key[K_FRACTION]++ < 2; /* from here on it counts the digits of the exponent */
    }
    const bool is_fraction = phase == AT_POINT || phase == IN_FRACTION;
    const uint32_t i = is_fraction ? bound_integer_digits(&side->low) + key[K_FRACTION]
                                   : key[K_INTEGER];
    const uint32_t j = is_fraction ? bound_integer_digits(&side->high) + key[K_FRACTION] : i;
    if (!side->is_possible || phase == IN_ZERO ||
        (is_fraction ? key[K_INTEGER] + key[K_FRACTION] >= p->max_digits
                     : key[K_INTEGER] >= p->max_integer))
        return false;
    key[K_LOW] = compare_digit(&side->low, key[K_LOW], i, digit, is_fraction);
    key[K_HIGH] = compare_digit(&side->high, key[K_HIGH], j, digit, is_fraction);
    key[K_PHASE] = is_fraction ? IN_FRACTION : key[K_INTEGER] == 0 && digit == 0 ? IN_ZERO
                                                                                 : IN_INTEGER;
    key[is_fraction ? K_FRACTION : K_INTEGER]++;
    if (p->multiple > 0)
        key[K_REST] = (key[K_REST] * 10 + digit) % p->multiple;
    return true;
}

static bool push(const struct spec *p, uint32_t *key, char c)
{
    const uint32_t phase = key[K_PHASE];
    const struct side *side = &p->sides[key[K_NEGATIVE]];
    if (c >= '0' && c <= '9')
        return push_digit(p, key, (unsigned)(c - '0'));
    const bool is_integer = phase == IN_ZERO || phase == IN_INTEGER;
    if (c == '.' && p->has_point && is_integer) {
        key[K_LOW] = compare_point(&side->low, key[K_LOW], key[K_INTEGER]);
        key[K_HIGH] = compare_point(&side->high, key[K_HIGH], key[K_INTEGER]);
        key[K_PHASE] = AT_POINT;
        return true;
    }
    if ((c == 'e' || c == 'E') && p->has_exponent && (is_integer || phase == IN_FRACTION)) {
        for (unsigned i = K_NEGATIVE; i < KEY_WORDS; i++)
            key[i] = 0;
        key[K_PHASE] = AT_E;
        return true;
    }
    if (c == '-' && phase == AT_START && p->sides[1].is_possible) {
        key[K_PHASE] = AT_MINUS;
        key[K_NEGATIVE] = 1;
        return true;
    }
    if ((c == '-' || c == '+') && phase == AT_E) {
        key[K_PHASE] = AT_E_SIGN;
        return true;
    }
    return false;
}

static int number_edges(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                        struct fm_error *err)
{
    static const char alphabet[] = "+-.0123456789Ee"; /* ascending */
    int rc = 0;
    for (const char *c = alphabet; rc == 0 && *c != '\0'; c++) {
        uint32_t next[KEY_WORDS];
        for (size_t i = 0; i < n; i++)
            next[i] = key[i];
        if (push(ctx, next, *c))
            rc = dfa_edge_add(maker, (uint8_t)*c, (uint8_t)*c, next, KEY_WORDS, err);
    }
    return rc;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int check_bound(const struct number_bound *b, struct fm_error *err)
{
    if (b->is_set && (b->value.point > NUMBER_BOUND_DIGITS || b->value.point <
                      -NUMBER_BOUND_DIGITS || b->value.n > NUMBER_BOUND_DIGITS))
        return err_set(err, FM_ERR_ARG, "has more than %d digits", NUMBER_BOUND_DIGITS);
    return 0;
}

static void set_sides(struct spec *p, const struct number_range *r)
{
    struct side *up = &p->sides[0], *down = &p->sides[1];
    const bool max_below = r->max.is_set && (r->max.value.is_negative ||
                                             (r->max.value.n == 0 && r->max.is_exclusive));
    up->is_possible = !max_below;
    up->high = r->max;
    if (r->min.is_set && !r->min.value.is_negative)
        up->low = r->min;
    down->is_possible = !r->min.is_set || r->min.value.is_negative;
    down->high = r->min;
    if (r->max.is_set && r->max.value.is_negative)
        down->low = r->max;
    else if (r->min.is_set || r->max.is_set) /* -0 is not allowed where there are bounds */
        down->low = (struct number_bound){.is_set = true, .is_exclusive = true};
}

int number_dfa(struct dfa_maker *maker, const struct number_range *r, const struct dfa **out,
               struct fm_error *err)
{
    int rc = check_bound(&r->min, err);
    if (rc == 0)
        rc = check_bound(&r->max, err);
    if (rc != 0)
        return rc;
    struct spec p = {.multiple = r->multiple};
    const bool has_bounds = r->min.is_set || r->max.is_set;
    const bool is_integer = r->is_integer || r->multiple > 0;
    set_sides(&p, r);
    /* Allows as many digits as the bound that numbers must not fall below, or the bound that was
     * written out. */
    uint32_t forced = 1, named = 1, fraction = 0;
    for (unsigned i = 0; i < 2; i++) {
        if (p.sides[i].is_possible && p.sides[i].low.is_set) {
            forced = larger(forced, bound_integer_digits(&p.sides[i].low) + 1);
            fraction = larger(fraction, bound_fraction_digits(&p.sides[i].low) + 1);
        }
        if (p.sides[i].is_possible && p.sides[i].high.is_set) {
            named = larger(named, bound_integer_digits(&p.sides[i].high));
            fraction = larger(fraction, bound_fraction_digits(&p.sides[i].high) + 1);
        }
    }
    forced = larger(forced, named <= 40 ? named : 1);
    const bool is_exclusive = (r->min.is_set && r->min.is_exclusive) ||
                              (r->max.is_set && r->max.is_exclusive);
    p.max_integer = larger(forced, is_integer ? NUMBER_INTEGER_DIGITS : NUMBER_EXCLUSIVE_DIGITS);
    p.max_digits = larger(is_exclusive ? NUMBER_EXCLUSIVE_DIGITS : NUMBER_DIGITS,
                           has_bounds ? forced + fraction : 0);
    p.has_point = !is_integer;
    p.has_exponent = !is_integer && !has_bounds;
    const uint32_t start[KEY_WORDS] = {AT_START};
    return dfa_build(maker, &(struct dfa_spec){&p, number_accepts, number_edges}, start, KEY_WORDS,
                     out, err);
}
