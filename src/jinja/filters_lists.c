/* Filters for lists and dicts, and the lookup of filters by name. */
#include <string.h>

#include "jinja/run.h"

static struct value lower_of(struct run *r, struct value v)
{
    return is_str(v) ? v_str(str_case(r, v.u.str, 'l')) : v;
}

/* Returns the key by which elements are compared. */
static struct value key_of(struct run *r, struct value v, struct value path, bool is_exact)
{
    v = get_path(r, v, path);
    return is_exact ? v : lower_of(r, v);
}

static struct list *copy_of(struct run *r, struct value v, enum list_kind kind)
{
    const struct list *from = value_items(r, v);
    struct list *copy = list_new(r, kind);
    for (size_t i = 0; i < from->n && r->rc == 0; i++)
        list_push(r, copy, from->items[i]);
    return copy;
}

static struct value y_length(struct run *r, struct value v, const struct args *args)
{
    int64_t n;
    return args_bind(r, "length", args, "/", NULL) && value_length(r, v, &n) ? v_int(n)
                                                                             : v_undefined();
}

static struct value y_list(struct run *r, struct value v, const struct args *args)
{
    return args_bind(r, "list", args, "", NULL) ? v_list(copy_of(r, v, LIST_LIST))
                                                : v_undefined();
}

static struct value y_first(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "first", args, "", NULL))
        return v_undefined();
    if (v.kind == V_LIST && v.u.list->kind >= LIST_GENERATOR) {
        struct list *l = v.u.list;
        if (l->n_taken == l->n)
            (void)value_items(r, v); /* reports why not */
        return l->n_taken < l->n ? l->items[l->n_taken++] : v_undefined();
    }
    const struct list *l = value_items(r, v);
    return l->n > 0 ? l->items[0] : v_undefined();
}

static struct value y_last(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "last", args, "", NULL))
        return v_undefined();
    if (v.kind == V_LIST && v.u.list->kind >= LIST_GENERATOR)
        return run_fail(r, "last: a generator has no last element");
    const struct list *l = value_items(r, v);
    return l->n > 0 ? l->items[l->n - 1] : v_undefined();
}

static struct value y_join(struct run *r, struct value v, const struct args *args)
{
    struct value given[2];
    if (!args_bind(r, "join", args, "d? attribute?", given))
        return v_undefined();
    const struct list *l = value_items(r, v);
    struct sbuf text = {0};
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        if (i > 0 && given[0].kind != V_MISSING)
            value_print(r, &text, given[0], false);
        value_print(r, &text, get_path(r, l->items[i], given[1]), false);
    }
    return v_str(sbuf_take(r, &text));
}

static struct value y_default(struct run *r, struct value v, const struct args *args)
{
    struct value given[2];
    if (!args_bind(r, "default", args, "default_value? boolean?", given))
        return v_undefined();
    if (v.kind != V_UNDEFINED && (!value_is_true(r, given[1]) || value_is_true(r, v)))
        return v;
    return given[0].kind == V_MISSING ? v_text(r, "") : given[0];
}

static struct value items_now(struct run *r, struct value v, const struct args *args,
                              struct list *out)
{
    static const struct str name = {.text = "items", .bytes = 5, .n_chars = 5};
    if (!args_bind(r, "items", args, "", NULL))
        return v_undefined();
    if (v.kind == V_UNDEFINED)
        return v_none();
    if (v.kind != V_DICT)
        return run_fail(r, "items needs a mapping, not %s", value_type(v));
    const struct list *items = dict_method(&name)->call(r, v, args).u.list;
    for (size_t i = 0; r->rc == 0 && i < items->n; i++)
        list_push(r, out, items->items[i]);
    return v_none();
}

static struct value y_reverse(struct run *r, struct value v, const struct args *args)
{
    if (!args_bind(r, "reverse", args, "", NULL))
        return v_undefined();
    if (is_str(v))
        return get_slice(r, v, v_none(), v_none(), v_int(-1));
    const bool is_iterator = v.kind == V_LIST && v.u.list->kind >= LIST_GENERATOR;
    const struct list *from = value_items(r, v);
    struct list *out = list_new(r, is_iterator ? LIST_LIST : LIST_REVERSED);
    for (size_t i = from->n; i-- > 0 && r->rc == 0;)
        list_push(r, out, from->items[i]);
    return v_list(out);
}

static void sort_by(struct run *r, struct list *l, struct value path, bool is_exact,
                    bool is_reverse)
{
    struct value *keys = run_new(r, l->n + 1, sizeof *keys);
    for (size_t i = 0; keys != NULL && i < l->n && r->rc == 0; i++)
        keys[i] = key_of(r, l->items[i], path, is_exact);
    list_sort(r, l, keys, is_reverse);
}

/* Sorts by several paths, separated by commas: the keys are lists. */
static void sort_by_many(struct run *r, struct list *l, const struct str *paths, bool is_exact,
                         bool is_reverse)
{
    struct value *keys = run_new(r, l->n + 1, sizeof *keys);
    for (size_t i = 0; keys != NULL && i < l->n && r->rc == 0; i++) {
        struct list *key = list_new(r, LIST_LIST);
        for (size_t begin = 0; begin <= paths->bytes && r->rc == 0;) {
            size_t end = begin;
            while (end < paths->bytes && paths->text[end] != ',')
                end++;
            const struct value path = v_str(str_part(r, paths, begin, end));
            list_push(r, key, key_of(r, l->items[i], path, is_exact));
            begin = end + 1;
        }
        keys[i] = v_list(key);
    }
    list_sort(r, l, keys, is_reverse);
}

static struct value y_sort(struct run *r, struct value v, const struct args *args)
{
    struct value given[3];
    if (!args_bind(r, "sort", args, "reverse? case_sensitive? attribute?", given))
        return v_undefined();
    struct list *l = copy_of(r, v, LIST_LIST);
    const bool is_exact = value_is_true(r, given[1]), is_reverse = value_is_true(r, given[0]);
    if (is_str(given[2]))
        sort_by_many(r, l, given[2].u.str, is_exact, is_reverse);
    else
        sort_by(r, l, given[2], is_exact, is_reverse);
    return v_list(l);
}

static struct value y_dictsort(struct run *r, struct value v, const struct args *args)
{
    static const struct str name = {.text = "items", .bytes = 5, .n_chars = 5};
    struct value given[3];
    if (!args_bind(r, "dictsort", args, "case_sensitive? by? reverse?", given))
        return v_undefined();
    if (v.kind != V_DICT)
        return run_fail(r, "dictsort needs a dict, not %s", value_type(v));
    int64_t by = 0;
    if (given[1].kind != V_MISSING) {
        by = is_str(given[1]) && str_is(given[1].u.str, "value");
        if (by == 0 && !(is_str(given[1]) && str_is(given[1].u.str, "key")))
            return run_fail(r, "dictsort: 'by' must be \"key\" or \"value\"");
    }
    struct list *l = dict_method(&name)->call(r, v, &(struct args){0}).u.list;
    if (r->rc != 0)
        return v_undefined();
    l->kind = LIST_LIST;
    sort_by(r, l, v_int(by), value_is_true(r, given[0]), value_is_true(r, given[2]));
    return v_list(l);
}

static struct value unique_now(struct run *r, struct value v, const struct args *args,
                              struct list *out)
{
    struct value given[2];
    if (!args_bind(r, "unique", args, "case_sensitive? attribute?", given))
        return v_undefined();
    const struct list *from = value_items(r, v);
    struct dict *seen = dict_new(r);
    for (size_t i = 0; i < from->n && r->rc == 0; i++) {
        const struct value key = key_of(r, from->items[i], given[1], value_is_true(r, given[0]));
        if (dict_find(r, seen, key) != NULL)
            continue;
        dict_set(r, seen, key, v_none());
        list_push(r, out, from->items[i]);
    }
    return v_list(out);
}

static struct value extreme(struct run *r, struct value v, const struct args *args, bool is_max)
{
    struct value given[2];
    if (!args_bind(r, is_max ? "max" : "min", args, "case_sensitive? attribute?", given))
        return v_undefined();
    const struct list *l = value_items(r, v);
    const bool is_exact = value_is_true(r, given[0]);
    if (l->n == 0)
        return v_undefined();
    struct value best = l->items[0], best_key = key_of(r, best, given[1], is_exact);
    for (size_t i = 1; i < l->n && r->rc == 0; i++) {
        const struct value key = key_of(r, l->items[i], given[1], is_exact);
        const int order = value_compare(r, key, best_key, is_max ? ">" : "<");
        if (is_max ? order > 0 : order < 0) {
            best = l->items[i];
            best_key = key;
        }
    }
    return best;
}

static struct value y_min(struct run *r, struct value v, const struct args *args)
{
    return extreme(r, v, args, false);
}

static struct value y_max(struct run *r, struct value v, const struct args *args)
{
    return extreme(r, v, args, true);
}

static struct value y_sum(struct run *r, struct value v, const struct args *args)
{
    struct value given[2];
    if (!args_bind(r, "sum", args, "attribute? start?", given))
        return v_undefined();
    const struct list *l = value_items(r, v);
    struct value sum = given[1].kind == V_MISSING ? v_int(0) : given[1];
    if (is_str(sum))
        return run_fail(r, "sum: strings cannot be summed");
    for (size_t i = 0; i < l->n && r->rc == 0; i++)
        sum = eval_operation(r, OP_ADD, sum, get_path(r, l->items[i], given[0]));
    return sum;
}

static struct value y_attr(struct run *r, struct value v, const struct args *args)
{
    struct value name;
    if (!args_bind(r, "attr", args, "name", &name))
        return v_undefined();
    const struct str *s = arg_str(r, "attr", name);
    if (v.kind == V_DICT && dict_method(s) == NULL) /* an attribute, never an item */
        return v_undefined();
    return get_attribute(r, v, s);
}

static struct value batch_now(struct run *r, struct value v, const struct args *args,
                              struct list *out)
{
    struct value given[2];
    if (!args_bind(r, "batch", args, "linecount fill_with?", given))
        return v_undefined();
    const struct list *l = value_items(r, v);
    const int64_t size = arg_int(r, "batch", given[0], 1);
    struct list *row = list_new(r, LIST_LIST);
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        if ((int64_t)row->n == size) {
            list_push(r, out, v_list(row));
            row = list_new(r, LIST_LIST);
        }
        list_push(r, row, l->items[i]);
    }
    if (row->n > 0) {
        const bool fills = given[1].kind != V_MISSING && given[1].kind != V_NONE;
        while (fills && (int64_t)row->n < size && r->rc == 0)
            list_push(r, row, given[1]);
        list_push(r, out, v_list(row));
    }
    return v_list(out);
}

static struct value slice_now(struct run *r, struct value v, const struct args *args,
                              struct list *out)
{
    struct value given[2];
    if (!args_bind(r, "slice", args, "slices fill_with?", given))
        return v_undefined();
    const struct list *l = value_items(r, v);
    const int64_t n = arg_int(r, "slice", given[0], 1);
    if (r->rc == 0 && n == 0)
        return run_fail(r, "slice: division by zero");
    const bool fills = given[1].kind != V_MISSING && given[1].kind != V_NONE;
    size_t at = 0;
    for (int64_t i = 0; i < n && r->rc == 0; i++) {
        const bool is_longer = i < (int64_t)(l->n % (size_t)n);
        struct list *row = list_new(r, LIST_LIST);
        for (size_t k = 0; k < l->n / (size_t)n + is_longer && r->rc == 0; k++)
            list_push(r, row, l->items[at++]);
        if (fills && !is_longer)
            list_push(r, row, given[1]);
        list_push(r, out, v_list(row));
    }
    return v_list(out);
}

static struct value y_groupby(struct run *r, struct value v, const struct args *args)
{
    struct value given[3];
    if (!args_bind(r, "groupby", args, "attribute default? case_sensitive?", given))
        return v_undefined();
    struct list *l = copy_of(r, v, LIST_LIST), *out = list_new(r, LIST_LIST);
    const bool is_exact = value_is_true(r, given[2]);
    const bool has_default = given[1].kind != V_MISSING && given[1].kind != V_NONE;
    struct value *keys = run_new(r, l->n + 1, sizeof *keys);
    for (size_t i = 0; keys != NULL && i < l->n && r->rc == 0; i++) {
        struct value key = get_path(r, l->items[i], given[0]);
        if (key.kind == V_UNDEFINED && has_default)
            key = given[1];
        struct list *pair = list_new(r, LIST_TUPLE);
        list_push(r, pair, key);
        list_push(r, pair, l->items[i]);
        keys[i] = is_exact ? key : lower_of(r, key);
        l->items[i] = v_list(pair);
    }
    list_sort(r, l, keys, false);
    struct list *group = NULL;
    struct value last = {0};
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        const struct value key = l->items[i].u.list->items[0];
        const struct value folded = is_exact ? key : lower_of(r, key);
        if (group == NULL || !value_equal(r, folded, last)) {
            struct list *pair = list_new(r, LIST_GROUP);
            group = list_new(r, LIST_LIST);
            list_push(r, pair, key);
            list_push(r, pair, v_list(group));
            list_push(r, out, v_list(pair));
            last = folded;
        }
        list_push(r, group, l->items[i].u.list->items[1]);
    }
    return v_list(out);
}

/* ---- map, select and their like -------------------------------------------------------------- */

static struct args rest_of(const struct args *args, size_t n)
{
    n = n < args->n ? n : args->n;
    return (struct args){.args = n > 0 ? args->args + n : args->args, .n = args->n - n,
                         .keywords = args->keywords};
}

static struct value map_attribute(struct run *r, const struct list *l, const struct args *args,
                                  struct list *out)
{
    struct value given[2];
    if (!args_bind(r, "map", args, "attribute default?", given))
        return v_undefined();
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        struct value v = l->items[i];
        if (given[1].kind == V_MISSING || given[1].kind == V_NONE || !is_str(given[0])) {
            v = get_path(r, v, given[0]);
            if (v.kind == V_UNDEFINED && given[1].kind != V_MISSING && given[1].kind != V_NONE)
                v = given[1];
        } else { /* the default replaces a missing value after every step of the path */
            const struct str *s = given[0].u.str;
            for (size_t begin = 0; begin <= s->bytes && r->rc == 0;) {
                const char *dot = memchr(s->text + begin, '.', s->bytes - begin);
                const size_t end = dot != NULL ? (size_t)(dot - s->text) : s->bytes;
                v = get_path(r, v, v_str(str_part(r, s, begin, end)));
                v = v.kind == V_UNDEFINED ? given[1] : v;
                begin = end + 1;
            }
        }
        list_push(r, out, v);
    }
    return v_list(out);
}

static struct value map_now(struct run *r, struct value v, const struct args *args,
                              struct list *out)
{
    if (!value_is_true(r, v))
        return v_none();
    const struct list *l = value_items(r, v);
    if (args->n == 0 && args->keywords != NULL)
        return map_attribute(r, l, args, out);
    if (args->n == 0)
        return run_fail(r, "map needs a filter or an attribute");
    const struct filter *filter = filter_find(arg_str(r, "map", args->args[0]));
    if (r->rc == 0 && filter == NULL)
        return run_fail(r, "map: there is no such filter");
    const struct args rest = rest_of(args, 1);
    if (run_enter(r)) /* map('map', 'map', ...) */
        for (size_t i = 0; i < l->n && r->rc == 0; i++)
            list_push(r, out, filter->call(r, l->items[i], &rest));
    run_leave(r);
    return v_list(out);
}

static struct value choose_now(struct run *r, struct value v, const struct args *args,
                               bool wanted, bool by_attribute, struct list *out)
{
    if (!value_is_true(r, v))
        return v_none();
    const struct list *l = value_items(r, v);
    const size_t at = by_attribute;
    if (by_attribute && args->n == 0)
        return run_fail(r, "the name of an attribute is missing");
    const struct filter *test = NULL;
    if (args->n > at) {
        test = is_str(args->args[at]) ? test_find(args->args[at].u.str) : NULL;
        if (test == NULL)
            return run_fail(r, "there is no such test");
    }
    const struct args rest = rest_of(args, at + 1);
    for (size_t i = 0; i < l->n && r->rc == 0; i++) {
        const struct value of = by_attribute ? get_path(r, l->items[i], args->args[0])
                                             : l->items[i];
        const struct value found = test != NULL && r->rc == 0 ? test->call(r, of, &rest) : of;
        if (r->rc == 0 && value_is_true(r, found) == wanted)
            list_push(r, out, l->items[i]);
    }
    return v_list(out);
}

static struct value choose(struct run *r, struct value v, const struct args *args, bool wanted,
                           bool by_attribute)
{
    struct list *out = list_new(r, LIST_GENERATOR);
    (void)choose_now(r, v, args, wanted, by_attribute, out);
    return run_put_off(r, out);
}

#define GENERATOR(name) \
    static struct value y_##name(struct run *r, struct value v, const struct args *args) \
    { \
        struct list *out = list_new(r, LIST_GENERATOR); \
        (void)name##_now(r, v, args, out); \
        return run_put_off(r, out); \
    }
GENERATOR(items)
GENERATOR(unique)
GENERATOR(batch)
GENERATOR(slice)
GENERATOR(map)

static struct value y_select(struct run *r, struct value v, const struct args *args)
{
    return choose(r, v, args, true, false);
}

static struct value y_reject(struct run *r, struct value v, const struct args *args)
{
    return choose(r, v, args, false, false);
}

static struct value y_selectattr(struct run *r, struct value v, const struct args *args)
{
    return choose(r, v, args, true, true);
}

static struct value y_rejectattr(struct run *r, struct value v, const struct args *args)
{
    return choose(r, v, args, false, true);
}

const struct filter filters_lists[] = {
    {"length", y_length}, {"count", y_length}, {"list", y_list}, {"first", y_first},
    {"last", y_last}, {"join", y_join}, {"default", y_default}, {"d", y_default},
    {"items", y_items}, {"reverse", y_reverse}, {"sort", y_sort}, {"dictsort", y_dictsort},
    {"unique", y_unique}, {"min", y_min}, {"max", y_max}, {"sum", y_sum}, {"attr", y_attr},
    {"batch", y_batch}, {"slice", y_slice}, {"groupby", y_groupby}, {"map", y_map},
    {"select", y_select}, {"reject", y_reject}, {"selectattr", y_selectattr},
    {"rejectattr", y_rejectattr}, {NULL, NULL},
};

const struct filter *filter_find(const struct str *name)
{
    static const struct filter *const all[] = {filters_text, filters_lists, filters_numbers};
    for (size_t k = 0; k < 3; k++)
        for (const struct filter *filter = all[k]; filter->name != NULL; filter++)
            if (str_is(name, filter->name))
                return filter;
    return NULL;
}
