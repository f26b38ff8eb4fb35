/* Truth, equality, order, membership and length, as in Python. */
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "jinja/run.h"

bool value_is_true(struct run *r, struct value v)
{
    (void)r;
    switch (v.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.u.flag;
    case V_INT:
        return v.u.i != 0;
    case V_FLOAT:
        return v.u.f != 0;
    case V_STR:
        return v.u.str->bytes > 0;
    case V_LIST: /* a generator is true, even if it is empty */
        return v.u.list->kind >= LIST_GENERATOR || v.u.list->n > 0;
    case V_DICT:
        return v.u.dict->n > 0;
    default:
        return true;
    }
}

bool value_same(struct value a, struct value b)
{
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return true;
    case V_BOOL:
        return a.u.flag == b.u.flag;
    case V_INT:
        return a.u.i == b.u.i;
    case V_FLOAT:
        return a.u.f == b.u.f;
    case V_STR:
        return a.u.str == b.u.str || str_equal(a.u.str, b.u.str);
    default:
        return a.u.list == b.u.list;
    }
}

/* Compares an integer with a float without losing digits. */
static int compare_numbers(struct value a, struct value b)
{
    if (is_intlike(a) && is_intlike(b))
        return (int_of(a) > int_of(b)) - (int_of(a) < int_of(b));
    if (a.kind == V_FLOAT && b.kind == V_FLOAT)
        return (a.u.f > b.u.f) - (a.u.f < b.u.f);
    const int64_t i = int_of(a.kind == V_FLOAT ? b : a);
    const double f = a.kind == V_FLOAT ? a.u.f : b.u.f;
    int order; /* of the float relative to the integer */
    if (isnan(f))
        order = 1; /* NaN: callers check for it themselves */
    else if (f >= 9223372036854775808.0)
        order = 1;
    else if (f < -9223372036854775808.0)
        order = -1;
    else if ((int64_t)f != i)
        order = (int64_t)f > i ? 1 : -1;
    else
        order = (f > (double)(int64_t)f) - (f < (double)(int64_t)f);
    return a.kind == V_FLOAT ? order : -order;
}

static bool is_nan_number(struct value v)
{
    return v.kind == V_FLOAT && isnan(v.u.f);
}

static bool is_tuple(const struct list *l)
{
    return l->kind == LIST_TUPLE || l->kind == LIST_GROUP;
}

static bool lists_comparable(const struct list *a, const struct list *b)
{
    if (is_tuple(a) && is_tuple(b))
        return true;
    return a->kind == b->kind && a->kind < LIST_GENERATOR && a->kind != LIST_VALUES;
}

static bool dicts_equal(struct run *r, struct dict *a, struct dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && r->rc == 0; i++) {
        const struct value *other = dict_find(r, b, a->entries[i].key);
        if (other == NULL || !value_equal(r, a->entries[i].value, *other))
            return false;
    }
    return r->rc == 0;
}

static bool lists_equal(struct run *r, struct list *a, struct list *b)
{
    if (a == b)
        return true;
    if (!lists_comparable(a, b) || a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n && r->rc == 0; i++)
        if (!value_equal(r, a->items[i], b->items[i]))
            return false;
    return r->rc == 0;
}

bool value_equal(struct run *r, struct value a, struct value b)
{
    if (is_number(a) && is_number(b))
        return !is_nan_number(a) && !is_nan_number(b) && compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    bool equal = false;
    if (is_str(a))
        return run_work(r, a.u.str->bytes) && str_equal(a.u.str, b.u.str);
    if ((a.kind != V_LIST && a.kind != V_DICT) || !run_work(r, 0))
        return value_same(a, b);
    if (run_enter(r))
        equal = a.kind == V_LIST ? lists_equal(r, a.u.list, b.u.list)
                                 : dicts_equal(r, a.u.dict, b.u.dict);
    run_leave(r);
    return equal;
}

static int compare_lists(struct run *r, struct list *a, struct list *b, const char *op)
{
    int order = 0;
    if (run_enter(r)) {
        size_t i = 0;
        while (i < a->n && i < b->n && value_equal(r, a->items[i], b->items[i]) && r->rc == 0)
            i++;
        if (r->rc == 0 && i < a->n && i < b->n)
            order = value_compare(r, a->items[i], b->items[i], op);
        else
            order = (a->n > b->n) - (a->n < b->n);
    }
    run_leave(r);
    return order;
}

int value_compare(struct run *r, struct value a, struct value b, const char *op)
{
    if (!run_work(r, 0))
        return 0;
    if (is_number(a) && is_number(b))
        return compare_numbers(a, b);
    if (is_str(a) && is_str(b))
        return run_work(r, a.u.str->bytes) ? str_compare(a.u.str, b.u.str) : 0;
    if (a.kind == V_LIST && b.kind == V_LIST && lists_comparable(a.u.list, b.u.list) &&
        (a.u.list->kind == LIST_LIST || is_tuple(a.u.list)))
        return compare_lists(r, a.u.list, b.u.list, op);
    (void)run_fail(r, "'%s' is not defined between %s and %s", op, value_type(a), value_type(b));
    return 0;
}

bool value_in(struct run *r, struct value item, struct value container)
{
    if (is_str(container)) {
        if (!is_str(item)) {
            (void)run_fail(r, "'in <string>' needs a string, not %s", value_type(item));
            return false;
        }
        return str_find(r, container.u.str, item.u.str, 0) != SIZE_MAX;
    }
    if (container.kind == V_DICT)
        return dict_find(r, container.u.dict, item) != NULL;
    const struct list *list = value_items(r, container);
    for (size_t i = 0; i < list->n && run_work(r, 0); i++)
        if (value_equal(r, list->items[i], item))
            return true;
    return false;
}

static uint64_t mix_hash(uint64_t a, uint64_t b)
{
    const uint64_t pair[2] = {a, b};
    return XXH3_64bits(pair, sizeof pair);
}

bool value_hash(struct run *r, struct value v, uint64_t *hash)
{
    *hash = (uint64_t)v.kind;
    switch (v.kind) {
    case V_STR:
        *hash = XXH3_64bits(v.u.str->text, v.u.str->bytes);
        return run_work(r, v.u.str->bytes);
    case V_BOOL:
    case V_INT:
        *hash = mix_hash(1, (uint64_t)int_of(v));
        return true;
    case V_FLOAT:
        if (v.u.f == floor(v.u.f) && fabs(v.u.f) < 9e18)
            *hash = mix_hash(1, (uint64_t)(int64_t)v.u.f);
        else
            *hash = XXH3_64bits(&v.u.f, sizeof v.u.f);
        return true;
    case V_LIST:
        break;
    case V_DICT:
        (void)run_fail(r, "a dict cannot be a key");
        return false;
    default:
        return true;
    }
    if (!is_tuple(v.u.list) && v.u.list->kind != LIST_RANGE) {
        (void)run_fail(r, "a %s cannot be a key", value_type(v));
        return false;
    }
    bool is_good = run_enter(r);
    for (size_t i = 0; is_good && i < v.u.list->n; i++) {
        uint64_t one;
        is_good = value_hash(r, v.u.list->items[i], &one) && run_work(r, 0);
        *hash = is_good ? mix_hash(*hash, one) : 0;
    }
    run_leave(r);
    return is_good;
}

bool value_is_iterable(struct value v)
{
    return v.kind == V_UNDEFINED || v.kind == V_MISSING || v.kind == V_STR || v.kind == V_LIST ||
           v.kind == V_DICT || v.kind == V_LOOP;
}

static struct list *characters_of(struct run *r, const struct str *s)
{
    struct list *list = list_new(r, LIST_LIST);
    for (size_t at = 0; at < s->bytes && r->rc == 0;) {
        size_t end = at + 1;
        while (end < s->bytes && ((uint8_t)s->text[end] & 0xc0) == 0x80)
            end++;
        struct str *one = run_new(r, 1, sizeof *one);
        if (one == NULL)
            break;
        *one = *str_part(r, s, at, end);
        one->is_markup = false; /* a character of markup is not markup itself */
        list_push(r, list, v_str(one));
        at = end;
    }
    return list;
}

struct list *value_items(struct run *r, struct value v)
{
    if (v.kind == V_LIST && v.u.list->kind < LIST_GENERATOR)
        return v.u.list;
    if (is_str(v))
        return characters_of(r, v.u.str);
    struct list *list = list_new(r, LIST_LIST);
    if (v.kind == V_LIST) {
        struct list *from = v.u.list;
        while (from->n_taken < from->n && r->rc == 0)
            list_push(r, list, from->items[from->n_taken++]);
        if (from->why != NULL && r->rc == 0)
            r->rc = err_set(r->err, FM_ERR_FORMAT, "%s", from->why);
    } else if (v.kind == V_DICT) {
        for (size_t i = 0; i < v.u.dict->n && r->rc == 0; i++)
            list_push(r, list, v.u.dict->entries[i].key);
    } else if (v.kind != V_UNDEFINED && v.kind != V_MISSING) {
        (void)run_fail(r, "%s is not iterable", value_type(v));
    }
    return list;
}

bool value_length(struct run *r, struct value v, int64_t *n)
{
    *n = 0;
    if (is_str(v))
        *n = (int64_t)v.u.str->n_chars;
    else if (v.kind == V_DICT)
        *n = (int64_t)v.u.dict->n;
    else if (v.kind == V_LIST && v.u.list->kind < LIST_GENERATOR)
        *n = (int64_t)v.u.list->n;
    else if (v.kind == V_LOOP)
        *n = (int64_t)v.u.loop->items->n;
    else if (v.kind != V_UNDEFINED && v.kind != V_MISSING)
        (void)run_fail(r, "%s has no length", value_type(v));
    return r->rc == 0;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* Merges the sorted halves [begin, middle) and [middle, end) of `order`. */
static void merge(struct run *r, size_t *order, size_t *spare, const struct value *keys,
                  size_t begin, size_t middle, size_t end, bool is_reverse)
{
    size_t a = begin, b = middle;
    for (size_t at = begin; at < end && r->rc == 0; at++) {
        bool takes_a = b == end;
        if (a < middle && b < end) { /* Python compares whether the later one is less */
            const int c = is_reverse ? value_compare(r, keys[order[a]], keys[order[b]], "<")
                                     : value_compare(r, keys[order[b]], keys[order[a]], "<");
            takes_a = c >= 0;
        }
        spare[at] = takes_a ? order[a++] : order[b++];
    }
    if (r->rc == 0)
        memcpy(order + begin, spare + begin, (end - begin) * sizeof *order);
}

void list_sort(struct run *r, struct list *l, struct value *keys, bool is_reverse)
{
    size_t *order = run_new(r, l->n + 1, sizeof *order);
    size_t *spare = run_new(r, l->n + 1, sizeof *spare);
    struct value *items = run_new(r, l->n + 1, sizeof *items);
    if (order == NULL || spare == NULL || items == NULL)
        return;
    for (size_t i = 0; i < l->n; i++)
        order[i] = i;
    for (size_t width = 1; width < l->n && r->rc == 0; width *= 2)
        for (size_t begin = 0; begin + width < l->n && r->rc == 0; begin += 2 * width) {
            const size_t end = begin + 2 * width < l->n ? begin + 2 * width : l->n;
            merge(r, order, spare, keys, begin, begin + width, end, is_reverse);
        }
    if (r->rc != 0)
        return;
    for (size_t i = 0; i < l->n; i++)
        items[i] = l->items[order[i]];
    l->items = items;
    l->capacity = l->n;
}
