/* Tests: the names after `is`. */
#include <math.h>
#include <string.h>

#include "jinja/run.h"

static bool none_given(struct run *r, const struct args *args)
{
    return args_bind(r, "the test", args, "/", NULL);
}

static struct value plain(struct run *r, const struct args *args, bool holds)
{
    return none_given(r, args) ? v_bool(holds) : v_undefined();
}

#define PLAIN_TEST(name, holds) \
    static struct value t_##name(struct run *r, struct value v, const struct args *args) \
    { \
        return plain(r, args, holds); \
    }
PLAIN_TEST(defined, v.kind != V_UNDEFINED && v.kind != V_MISSING)
PLAIN_TEST(undefined, v.kind == V_UNDEFINED || v.kind == V_MISSING)
PLAIN_TEST(none, v.kind == V_NONE)
PLAIN_TEST(boolean, v.kind == V_BOOL)
PLAIN_TEST(true, v.kind == V_BOOL && v.u.flag)
PLAIN_TEST(false, v.kind == V_BOOL && !v.u.flag)
PLAIN_TEST(integer, v.kind == V_INT)
PLAIN_TEST(float, v.kind == V_FLOAT)
PLAIN_TEST(number, is_number(v))
PLAIN_TEST(string, is_str(v))
PLAIN_TEST(mapping, v.kind == V_DICT)
PLAIN_TEST(iterable, value_is_iterable(v))
PLAIN_TEST(escaped, is_str(v) && v.u.str->is_markup)
PLAIN_TEST(callable, v.kind == V_MACRO || v.kind == V_FUNCTION || v.kind == V_METHOD ||
                         v.kind == V_JOINER || v.kind == V_LOOP || v.kind == V_UNDEFINED)
PLAIN_TEST(sequence, is_str(v) || v.kind == V_DICT || v.kind == V_UNDEFINED ||
                         (v.kind == V_LIST && (v.u.list->kind <= LIST_RANGE ||
                                               v.u.list->kind == LIST_GROUP)))

static struct value remainder_is(struct run *r, struct value v, struct value by, int64_t wanted)
{
    const struct value rest = eval_operation(r, OP_MOD, v, by);
    return r->rc == 0 ? v_bool(value_equal(r, rest, v_int(wanted))) : v_undefined();
}

static struct value t_odd(struct run *r, struct value v, const struct args *args)
{
    return none_given(r, args) ? remainder_is(r, v, v_int(2), 1) : v_undefined();
}

static struct value t_even(struct run *r, struct value v, const struct args *args)
{
    return none_given(r, args) ? remainder_is(r, v, v_int(2), 0) : v_undefined();
}

static struct value t_divisibleby(struct run *r, struct value v, const struct args *args)
{
    struct value by;
    return args_bind(r, "divisibleby", args, "num", &by) ? remainder_is(r, v, by, 0)
                                                         : v_undefined();
}

static struct value case_is(struct run *r, struct value v, const struct args *args,
                            const char *method)
{
    const struct str name = {.text = method, .bytes = 7, .n_chars = 7};
    return none_given(r, args)
               ? str_method(&name)->call(r, v_str(value_str(r, v)), &(struct args){0})
               : v_undefined();
}

static struct value t_lower(struct run *r, struct value v, const struct args *args)
{
    return case_is(r, v, args, "islower");
}

static struct value t_upper(struct run *r, struct value v, const struct args *args)
{
    return case_is(r, v, args, "isupper");
}

static struct value t_filter(struct run *r, struct value v, const struct args *args)
{
    uint64_t hash; /* a value that cannot be a key cannot be found */
    return none_given(r, args) && value_hash(r, v, &hash)
               ? v_bool(is_str(v) && filter_find(v.u.str) != NULL) : v_undefined();
}

static struct value t_test(struct run *r, struct value v, const struct args *args)
{
    uint64_t hash;
    return none_given(r, args) && value_hash(r, v, &hash)
               ? v_bool(is_str(v) && test_find(v.u.str) != NULL) : v_undefined();
}

static struct value t_sameas(struct run *r, struct value v, const struct args *args)
{
    struct value other;
    return args_bind(r, "sameas", args, "other", &other) ? v_bool(value_same(v, other))
                                                         : v_undefined();
}

static struct value t_in(struct run *r, struct value v, const struct args *args)
{
    struct value seq;
    return args_bind(r, "in", args, "seq", &seq) ? v_bool(value_in(r, v, seq)) : v_undefined();
}

static struct value t_eq(struct run *r, struct value v, const struct args *args)
{
    struct value other;
    return args_bind(r, "eq", args, "/other", &other) ? v_bool(value_equal(r, v, other))
                                                      : v_undefined();
}

static struct value t_ne(struct run *r, struct value v, const struct args *args)
{
    struct value other;
    return args_bind(r, "ne", args, "/other", &other) ? v_bool(!value_equal(r, v, other))
                                                      : v_undefined();
}

/* Returns whether the order of v and the argument is in the mask: 1 less, 2 equal, 4 greater. */
static struct value ordered(struct run *r, struct value v, const struct args *args,
                            const char *op, int mask)
{
    struct value other;
    if (!args_bind(r, op, args, "/other", &other))
        return v_undefined();
    const int order = value_compare(r, v, other, op);
    const bool is_nan = (v.kind == V_FLOAT && isnan(v.u.f)) ||
                        (other.kind == V_FLOAT && isnan(other.u.f));
    return v_bool((mask & (order < 0 ? 1 : order == 0 ? 2 : 4)) != 0 && !is_nan);
}

static struct value t_lt(struct run *r, struct value v, const struct args *args)
{
    return ordered(r, v, args, "<", 1);
}

static struct value t_le(struct run *r, struct value v, const struct args *args)
{
    return ordered(r, v, args, "<=", 3);
}

static struct value t_gt(struct run *r, struct value v, const struct args *args)
{
    return ordered(r, v, args, ">", 4);
}

static struct value t_ge(struct run *r, struct value v, const struct args *args)
{
    return ordered(r, v, args, ">=", 6);
}

static const struct filter tests[] = {
    {"defined", t_defined}, {"undefined", t_undefined}, {"none", t_none}, {"string", t_string},
    {"mapping", t_mapping}, {"sequence", t_sequence}, {"iterable", t_iterable},
    {"boolean", t_boolean}, {"true", t_true}, {"false", t_false}, {"integer", t_integer},
    {"float", t_float}, {"number", t_number}, {"callable", t_callable}, {"odd", t_odd},
    {"even", t_even}, {"divisibleby", t_divisibleby}, {"lower", t_lower}, {"upper", t_upper},
    {"filter", t_filter}, {"test", t_test}, {"escaped", t_escaped}, {"sameas", t_sameas},
    {"in", t_in}, {"eq", t_eq}, {"equalto", t_eq}, {"==", t_eq}, {"ne", t_ne}, {"!=", t_ne},
    {"lt", t_lt}, {"lessthan", t_lt}, {"<", t_lt}, {"le", t_le}, {"<=", t_le}, {"gt", t_gt},
    {"greaterthan", t_gt}, {">", t_gt}, {"ge", t_ge}, {">=", t_ge},
};

const struct filter *test_find(const struct str *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}
