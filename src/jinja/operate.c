/* Arithmetic, and + * % of strings and lists, as in Python. */
#include <math.h>
#include <string.h>

#include "jinja/run.h"

static struct value too_large(struct run *r)
{
    return run_fail(r, "an integer does not fit into 64 bits");
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    const int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/* Computes base^exponent for integers with exponent >= 0. */
static struct value power(struct run *r, int64_t base, int64_t exponent)
{
    int64_t x = 1;
    if (base == 0 || base == 1 || base == -1)
        exponent = exponent > 0 ? 2 - exponent % 2 : 0;
    for (; exponent > 0; exponent--)
        if (__builtin_mul_overflow(x, base, &x))
            return too_large(r);
    return v_int(x);
}

static struct value operate_ints(struct run *r, enum operation op, int64_t a, int64_t b)
{
    int64_t x = 0;
    bool is_over = false;
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return run_fail(r, "division by zero");
    if (b == -1 && (op == OP_FLOORDIV || op == OP_MOD)) { /* the only quotient that overflows */
        is_over = op == OP_FLOORDIV && __builtin_sub_overflow(0, a, &x);
        return is_over ? too_large(r) : v_int(op == OP_MOD ? 0 : x);
    }
    switch (op) {
    case OP_ADD:
        is_over = __builtin_add_overflow(a, b, &x);
        break;
    case OP_SUB:
        is_over = __builtin_sub_overflow(a, b, &x);
        break;
    case OP_MUL:
        is_over = __builtin_mul_overflow(a, b, &x);
        break;
    case OP_DIV:
        return v_float((double)a / (double)b);
    case OP_FLOORDIV:
        return v_int(floor_divide(a, b));
    case OP_MOD:
        return v_int(a - floor_divide(a, b) * b);
    default:
        if (b >= 0)
            return power(r, a, b);
        if (a == 0)
            return run_fail(r, "0 cannot be raised to a negative power");
        return v_float(pow((double)a, (double)b));
    }
    return is_over ? too_large(r) : v_int(x);
}

/* Computes a remainder with the sign of the divisor. */
static double float_modulo(double a, double b)
{
    double x = fmod(a, b);
    if (x != 0 && (x < 0) != (b < 0))
        x += b;
    return x == 0 ? copysign(0.0, b) : x;
}

static double float_floor_divide(double a, double b)
{
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0))
        q -= 1;
    double whole = floor(q);
    if (q - whole > 0.5)
        whole += 1;
    return q == 0 ? copysign(0.0, a / b) : whole;
}

static struct value operate_floats(struct run *r, enum operation op, double a, double b)
{
    if (b == 0 && (op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD))
        return run_fail(r, "division by zero");
    switch (op) {
    case OP_ADD:
        return v_float(a + b);
    case OP_SUB:
        return v_float(a - b);
    case OP_MUL:
        return v_float(a * b);
    case OP_DIV:
        return v_float(a / b);
    case OP_FLOORDIV:
        return v_float(float_floor_divide(a, b));
    case OP_MOD:
        return v_float(float_modulo(a, b));
    default:
        break;
    }
    if ((a == 0 && b < 0) || (a < 0 && b != floor(b) && !isinf(a) && !isinf(b)))
        return run_fail(r, "a power has no real result");
    const double x = pow(a, b);
    if (isinf(x) && !isinf(a) && !isinf(b))
        return run_fail(r, "a power is too large");
    return v_float(x);
}

static struct value add_strings(struct run *r, const struct str *a, const struct str *b)
{
    const bool is_markup = a->is_markup || b->is_markup;
    struct sbuf text = {0};
    sbuf_str(r, &text, is_markup && !a->is_markup ? str_escape(r, a) : a);
    sbuf_str(r, &text, is_markup && !b->is_markup ? str_escape(r, b) : b);
    struct str *sum = (struct str *)sbuf_take(r, &text);
    sum->is_markup = is_markup;
    return v_str(sum);
}

static bool is_sequence(struct value v, enum list_kind kind)
{
    return v.kind == V_LIST && (v.u.list->kind == kind ||
                                (kind == LIST_TUPLE && v.u.list->kind == LIST_GROUP));
}

static struct value add_lists(struct run *r, const struct list *a, const struct list *b)
{
    struct list *sum = list_new(r, a->kind == LIST_GROUP ? LIST_TUPLE : a->kind);
    for (size_t i = 0; i < a->n && r->rc == 0; i++)
        list_push(r, sum, a->items[i]);
    for (size_t i = 0; i < b->n && r->rc == 0; i++)
        list_push(r, sum, b->items[i]);
    return v_list(sum);
}

static struct value repeat(struct run *r, struct value v, int64_t n)
{
    n = n > 0 ? n : 0;
    if (is_str(v)) {
        struct sbuf text = {0};
        sbuf_fill(r, &text, v.u.str, v.u.str->bytes > 0 ? (size_t)n : 0);
        struct str *made = (struct str *)sbuf_take(r, &text);
        made->is_markup = v.u.str->is_markup;
        return v_str(made);
    }
    struct list *list = list_new(r, is_sequence(v, LIST_LIST) ? LIST_LIST : LIST_TUPLE);
    for (int64_t k = 0; k < n && v.u.list->n > 0 && r->rc == 0; k++)
        for (size_t i = 0; i < v.u.list->n && r->rc == 0; i++)
            list_push(r, list, v.u.list->items[i]);
    return v_list(list);
}

struct value eval_operation(struct run *r, enum operation op, struct value a, struct value b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (op == OP_MOD && is_str(a))
        return str_format_percent(r, a.u.str, b);
    if (is_intlike(a) && is_intlike(b))
        return operate_ints(r, op, int_of(a), int_of(b));
    if (is_number(a) && is_number(b))
        return operate_floats(r, op, float_of(a), float_of(b));
    if (op == OP_ADD && is_str(a) && is_str(b))
        return add_strings(r, a.u.str, b.u.str);
    if (op == OP_ADD && ((is_sequence(a, LIST_LIST) && is_sequence(b, LIST_LIST)) ||
                         (is_sequence(a, LIST_TUPLE) && is_sequence(b, LIST_TUPLE))))
        return add_lists(r, a.u.list, b.u.list);
    const bool a_repeats = is_str(a) || is_sequence(a, LIST_LIST) || is_sequence(a, LIST_TUPLE);
    const bool b_repeats = is_str(b) || is_sequence(b, LIST_LIST) || is_sequence(b, LIST_TUPLE);
    if (op == OP_MUL && a_repeats && is_intlike(b))
        return repeat(r, a, int_of(b));
    if (op == OP_MUL && b_repeats && is_intlike(a))
        return repeat(r, b, int_of(a));
    return run_fail(r, "'%s' is not defined for %s and %s", names[op], value_type(a),
                    value_type(b));
}
