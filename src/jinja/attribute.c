/* Evaluates a.b, a[b] and a[b:c:d]. A name after a dot is looked up as a method first and then as a
 * key; a key in brackets the other way round. */
#include <string.h>

#include "jinja/run.h"

static struct value bound(struct run *r, struct value self, const struct method *of)
{
    struct method *method = run_new(r, 1, sizeof *method);
    if (method == NULL)
        return v_undefined();
    *method = *of;
    method->self = self;
    return (struct value){V_METHOD, {.method = method}};
}

static struct value loop_cycle(struct run *r, struct value self, const struct args *args)
{
    if (args->n == 0)
        return run_fail(r, "loop.cycle() needs at least one argument");
    return args->args[self.u.loop->index % args->n];
}

static struct value loop_changed(struct run *r, struct value self, const struct args *args)
{
    struct loop *loop = self.u.loop;
    struct list *now = list_new(r, LIST_TUPLE);
    for (size_t i = 0; i < args->n; i++)
        list_push(r, now, args->args[i]);
    if (loop->last_changed != NULL && value_equal(r, v_list(loop->last_changed), v_list(now)))
        return v_bool(false);
    loop->last_changed = now;
    return v_bool(true);
}

static struct value loop_attribute(struct run *r, struct loop *loop, const struct str *name)
{
    static const struct method cycle = {.name = "cycle", .call = loop_cycle};
    static const struct method changed = {.name = "changed", .call = loop_changed};
    const struct list *items = loop->items;
    const struct value self = {V_LOOP, {.loop = loop}};
    const int64_t index = (int64_t)loop->index, n = (int64_t)items->n;
    if (str_is(name, "index"))
        return v_int(index + 1);
    if (str_is(name, "index0"))
        return v_int(index);
    if (str_is(name, "first"))
        return v_bool(index == 0);
    if (str_is(name, "last"))
        return v_bool(index + 1 == n);
    if (str_is(name, "length"))
        return v_int(n);
    if (str_is(name, "revindex"))
        return v_int(n - index);
    if (str_is(name, "revindex0"))
        return v_int(n - index - 1);
    if (str_is(name, "previtem"))
        return index > 0 ? items->items[index - 1] : v_undefined();
    if (str_is(name, "nextitem"))
        return index + 1 < n ? items->items[index + 1] : v_undefined();
    if (str_is(name, "depth"))
        return v_int(loop->depth);
    if (str_is(name, "depth0"))
        return v_int(loop->depth - 1);
    if (str_is(name, "cycle"))
        return bound(r, self, &cycle);
    if (str_is(name, "changed"))
        return bound(r, self, &changed);
    return v_undefined();
}

static struct value macro_attribute(struct run *r, const struct macro *macro,
                                    const struct str *name)
{
    if (str_is(name, "name") && macro->node->symbol != NULL)
        return v_str(&macro->node->symbol->name);
    if (str_is(name, "catch_kwargs"))
        return v_bool(macro->node->takes_kwargs);
    if (str_is(name, "catch_varargs"))
        return v_bool(macro->node->takes_varargs);
    if (str_is(name, "caller"))
        return v_bool(macro->node->takes_caller);
    if (!str_is(name, "arguments"))
        return v_undefined();
    struct list *list = list_new(r, LIST_LIST);
    for (const struct node *p = macro->node->list; p != NULL; p = p->next)
        list_push(r, list, v_str(&p->symbol->name));
    return v_list(list);
}

static struct value cycler_next(struct run *r, struct value self, const struct args *args)
{
    (void)args;
    struct cycler *c = self.u.cycler;
    if (c->items->n == 0)
        return run_fail(r, "the cycler is empty");
    const struct value v = c->items->items[c->position];
    c->position = (c->position + 1) % c->items->n;
    return v;
}

static struct value cycler_reset(struct run *r, struct value self, const struct args *args)
{
    (void)r;
    (void)args;
    self.u.cycler->position = 0;
    return v_none();
}

static struct value cycler_attribute(struct run *r, struct value v, const struct str *name)
{
    static const struct method next = {.name = "next", .call = cycler_next};
    static const struct method reset = {.name = "reset", .call = cycler_reset};
    if (str_is(name, "next"))
        return bound(r, v, &next);
    if (str_is(name, "reset"))
        return bound(r, v, &reset);
    return str_is(name, "current") ? v.u.cycler->items->items[v.u.cycler->position]
                                   : v_undefined();
}

/* Returns what Python's getattr finds; missing if nothing. */
static struct value python_attribute(struct run *r, struct value v, const struct str *name)
{
    const struct method *method = NULL;
    const struct value *found;
    switch (v.kind) {
    case V_STR:
        method = str_method(name);
        break;
    case V_LIST:
        if (v.u.list->kind == LIST_GROUP && str_is(name, "grouper"))
            return v.u.list->items[0];
        if (v.u.list->kind == LIST_GROUP && str_is(name, "list"))
            return v.u.list->items[1];
        method = list_method(v.u.list, name);
        break;
    case V_DICT:
        method = dict_method(name);
        break;
    case V_NAMESPACE:
        found = dict_find_str(r, v.u.dict, name);
        return found != NULL ? *found : (struct value){0};
    case V_LOOP:
        return loop_attribute(r, v.u.loop, name);
    case V_MACRO:
        return macro_attribute(r, v.u.macro, name);
    case V_CYCLER:
        return cycler_attribute(r, v, name);
    default:
        break;
    }
    if (method != NULL)
        return bound(r, v, method);
    /* Methods that change their object exist but cannot be used. */
    return is_mutator(v, name) ? v_undefined() : (struct value){0};
}

static bool index_of(struct value key, size_t n, size_t *out)
{
    const int64_t i = int_of(key), at = i < 0 ? i + (int64_t)n : i;
    *out = (size_t)at;
    return at >= 0 && at < (int64_t)n;
}

/* Returns what Python's v[key] finds; missing if it fails. */
static struct value python_item(struct run *r, struct value v, struct value key)
{
    size_t at;
    if (v.kind == V_DICT) {
        if (key.kind == V_DICT || (key.kind == V_LIST && key.u.list->kind != LIST_TUPLE &&
                                   key.u.list->kind != LIST_RANGE))
            return (struct value){0};
        const struct value *found = dict_find(r, v.u.dict, key);
        return found != NULL ? *found : (struct value){0};
    }
    if (!is_intlike(key))
        return (struct value){0};
    if (v.kind == V_LIST && (v.u.list->kind <= LIST_RANGE || v.u.list->kind == LIST_GROUP))
        return index_of(key, v.u.list->n, &at) ? v.u.list->items[at] : (struct value){0};
    if (is_str(v) && index_of(key, v.u.str->n_chars, &at)) {
        const size_t begin = str_offset(v.u.str, at);
        (void)run_work(r, begin);
        size_t end = begin + 1;
        while (end < v.u.str->bytes && ((uint8_t)v.u.str->text[end] & 0xc0) == 0x80)
            end++;
        return v_str(str_part(r, v.u.str, begin, end));
    }
    return (struct value){0};
}

struct value get_attribute(struct run *r, struct value v, const struct str *name)
{
    if (v.kind == V_UNDEFINED || v.kind == V_MISSING)
        return run_fail(r, "an undefined value has no attribute '%.*s'", (int)name->bytes,
                        name->text);
    struct value found = python_attribute(r, v, name);
    if (found.kind == V_MISSING)
        found = python_item(r, v, v_str(name));
    return found.kind == V_MISSING ? v_undefined() : found;
}

struct value get_item(struct run *r, struct value v, struct value key)
{
    if (v.kind == V_UNDEFINED || v.kind == V_MISSING)
        return run_fail(r, "an undefined value has no elements");
    struct value found = python_item(r, v, key);
    if (found.kind == V_MISSING && is_str(key))
        found = python_attribute(r, v, key.u.str);
    return found.kind == V_MISSING ? v_undefined() : found;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Clamps one bound of a slice as Python does. */
static int64_t slice_bound(struct run *r, struct value v, int64_t n, int64_t step,
                           int64_t fallback)
{
    if (v.kind == V_NONE)
        return fallback;
    int64_t x = arg_int(r, "a slice", v, 0);
    const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (x < 0)
        x = x + n < low ? low : x + n;
    return x > high ? high : x;
}

static struct value slice_str(struct run *r, const struct str *s, int64_t start, int64_t stop,
                              int64_t step)
{
    if (step == 1) {
        if (!run_work(r, s->bytes))
            return v_undefined();
        const size_t begin = str_offset(s, (size_t)start);
        const size_t end = stop > start ? str_offset(s, (size_t)stop) : begin;
        return v_str(str_part(r, s, begin, end));
    }
    const struct list *chars = value_items(r, v_str(s));
    struct sbuf text = {0};
    for (int64_t i = start; r->rc == 0 && (step > 0 ? i < stop : i > stop); i += step)
        sbuf_str(r, &text, chars->items[i].u.str);
    return v_str(sbuf_take(r, &text));
}

struct value get_slice(struct run *r, struct value v, struct value start, struct value stop,
                       struct value step)
{
    const int64_t by = step.kind == V_NONE ? 1 : arg_int(r, "a slice", step, 1);
    const bool is_list = v.kind == V_LIST && (v.u.list->kind <= LIST_RANGE ||
                                              v.u.list->kind == LIST_GROUP);
    if (r->rc == 0 && by == 0)
        return run_fail(r, "the step of a slice is 0");
    if (!is_list && !is_str(v))
        return run_fail(r, "%s cannot be sliced", value_type(v));
    const int64_t n = is_str(v) ? (int64_t)v.u.str->n_chars : (int64_t)v.u.list->n;
    const int64_t a = slice_bound(r, start, n, by, by < 0 ? n - 1 : 0);
    const int64_t b = slice_bound(r, stop, n, by, by < 0 ? -1 : n);
    /* A step beyond the length has the same effect as the length. */
    const int64_t clipped = by > n ? n + 1 : by < -n ? -n - 1 : by;
    if (r->rc != 0)
        return v_undefined();
    if (is_str(v))
        return slice_str(r, v.u.str, a, b, clipped);
    struct list *list = list_new(r, v.u.list->kind == LIST_GROUP ? LIST_TUPLE : v.u.list->kind);
    for (int64_t i = a; r->rc == 0 && (by > 0 ? i < b : i > b); i += clipped)
        list_push(r, list, v.u.list->items[i]);
    if (v.u.list->kind == LIST_RANGE) { /* only printed, so it may wrap around */
        const uint64_t from = (uint64_t)v.u.list->start, unit = (uint64_t)v.u.list->step;
        list->start = (int64_t)(from + (uint64_t)a * unit);
        list->stop = (int64_t)(from + (uint64_t)b * unit);
        list->step = (int64_t)(unit * (uint64_t)by);
    }
    return v_list(list);
}

struct value get_path(struct run *r, struct value v, struct value path)
{
    if (path.kind == V_MISSING || path.kind == V_NONE)
        return v;
    if (!is_str(path))
        return get_item(r, v, path);
    const struct str *s = path.u.str;
    for (size_t begin = 0; begin <= s->bytes && r->rc == 0;) {
        size_t end = begin;
        bool is_number = true;
        for (; end < s->bytes && s->text[end] != '.'; end++)
            is_number = is_number && s->text[end] >= '0' && s->text[end] <= '9';
        const struct str *part = str_part(r, s, begin, end);
        struct value key = v_str(part);
        if (is_number && end > begin)
            key = int_of_str(r, part, 10);
        v = r->rc == 0 ? get_item(r, v, key) : v;
        begin = end + 1;
    }
    return v;
}
