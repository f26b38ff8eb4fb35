/* Expressions: names, constants, conditions, calls. */
#include <string.h>

#include "jinja/run.h"

bool args_bind(struct run *r, const char *what, const struct args *args, const char *signature,
               struct value out[])
{
    const bool no_keywords = signature[0] == '/';
    const size_t n_keywords = args->keywords != NULL ? args->keywords->n : 0;
    size_t n = 0, n_used = 0;
    const char *at = signature + no_keywords;
    for (; r->rc == 0 && *at != '\0'; n++) {
        at += strspn(at, " ");
        const size_t bytes = strcspn(at, " ?");
        if (bytes == 0)
            break;
        const bool is_optional = at[bytes] == '?';
        const struct str name = {.text = at, .bytes = bytes, .n_chars = bytes};
        const struct value *named = n_keywords > 0 && !no_keywords
                                        ? dict_find_str(r, args->keywords, &name)
                                        : NULL;
        out[n] = (struct value){.kind = V_MISSING};
        n_used += named != NULL;
        if (n < args->n && named != NULL)
            (void)run_fail(r, "%s: '%.*s' is given twice", what, (int)bytes, at);
        else if (n < args->n)
            out[n] = args->args[n];
        else if (named != NULL)
            out[n] = *named;
        else if (!is_optional)
            (void)run_fail(r, "%s: the argument '%.*s' is missing", what, (int)bytes, at);
        at += bytes + is_optional;
    }
    if (r->rc == 0 && args->n > n)
        (void)run_fail(r, "%s takes at most %zu arguments, not %zu", what, n, args->n);
    if (r->rc == 0 && n_used < n_keywords)
        (void)run_fail(r, "%s: unexpected keyword argument", what);
    return r->rc == 0;
}

const struct str *arg_str(struct run *r, const char *what, struct value v)
{
    if (is_str(v))
        return v.u.str;
    (void)run_fail(r, "%s needs a string, not %s", what, value_type(v));
    return &r->sink_str;
}

int64_t arg_int(struct run *r, const char *what, struct value v, int64_t fallback)
{
    if (v.kind == V_MISSING)
        return fallback;
    if (!is_intlike(v))
        (void)run_fail(r, "%s needs an integer, not %s", what, value_type(v));
    return is_intlike(v) ? int_of(v) : fallback;
}

/* ---- arguments ------------------------------------------------------------------------------- */

static void add_keyword(struct run *r, struct args *args, const struct str *name, struct value v)
{
    if (args->keywords == NULL)
        args->keywords = dict_new(r);
    if (dict_find_str(r, args->keywords, name) != NULL)
        (void)run_fail(r, "the argument '%.*s' is given twice", (int)name->bytes, name->text);
    dict_set(r, args->keywords, v_str(name), v);
}

static void eval_args(struct run *r, const struct node *node, struct args *args)
{
    *args = (struct args){0};
    if (node->list == NULL && node->more == NULL && node->b == NULL && node->c == NULL)
        return;
    struct list *list = list_new(r, LIST_LIST);
    for (const struct node *item = node->list; item != NULL && r->rc == 0; item = item->next)
        list_push(r, list, eval(r, item));
    if (node->b != NULL) {
        const struct list *more = value_items(r, eval(r, node->b));
        for (size_t i = 0; i < more->n && r->rc == 0; i++)
            list_push(r, list, more->items[i]);
    }
    for (const struct node *item = node->more; item != NULL && r->rc == 0; item = item->next)
        add_keyword(r, args, item->attribute, eval(r, item->a));
    if (node->c != NULL) {
        const struct value more = eval(r, node->c);
        if (r->rc == 0 && more.kind != V_DICT)
            (void)run_fail(r, "** needs a dict, not %s", value_type(more));
        for (size_t i = 0; r->rc == 0 && i < more.u.dict->n; i++)
            add_keyword(r, args, arg_str(r, "a keyword", more.u.dict->entries[i].key),
                        more.u.dict->entries[i].value);
    }
    args->args = list->items;
    args->n = list->n;
}

struct value call_value(struct run *r, struct value callee, const struct args *args)
{
    switch (callee.kind) {
    case V_MACRO:
        return call_macro(r, callee.u.macro, args);
    case V_FUNCTION:
        return callee.u.function->call(r, args);
    case V_METHOD:
        return callee.u.method->call(r, callee.u.method->self, args);
    case V_LOOP:
        return call_loop(r, callee.u.loop, args);
    case V_JOINER:
        if (callee.u.cycler->position++ == 0)
            return v_text(r, "");
        return v_str(callee.u.cycler->separator);
    default:
        return run_fail(r, "%s cannot be called", value_type(callee));
    }
}

static struct value eval_call(struct run *r, const struct node *node)
{
    const struct value callee = eval(r, node->a);
    struct args args;
    eval_args(r, node, &args);
    r->line = node->line;
    return r->rc == 0 ? call_value(r, callee, &args) : v_undefined();
}

static struct value eval_filter(struct run *r, const struct node *node)
{
    const struct value input = node->a != NULL ? eval(r, node->a) : r->block_text;
    struct args args;
    eval_args(r, node, &args);
    r->line = node->line;
    const struct filter *filter = node->entry;
    if (filter == NULL)
        return run_fail(r, "there is no %s '%.*s'", node->kind == N_FILTER ? "filter" : "test",
                        (int)node->attribute->bytes, node->attribute->text);
    return r->rc == 0 ? filter->call(r, input, &args) : v_undefined();
}

/* ---- the others ------------------------------------------------------------------------------ */

static struct value eval_elements(struct run *r, const struct node *node, enum list_kind kind)
{
    struct list *list = list_new(r, kind);
    for (const struct node *item = node->list; item != NULL && r->rc == 0; item = item->next)
        list_push(r, list, eval(r, item));
    return v_list(list);
}

static struct value eval_dict(struct run *r, const struct node *node)
{
    struct dict *dict = dict_new(r);
    const struct node *item = node->list;
    while (item != NULL && r->rc == 0) {
        const struct value key = eval(r, item);
        dict_set(r, dict, key, eval(r, item->next));
        item = item->next->next;
    }
    return v_dict(dict);
}

static bool holds(struct run *r, enum operation op, struct value a, struct value b)
{
    static const char *const names[] = {[OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">",
                                        [OP_GE] = ">="};
    const bool has_nan = (a.kind == V_FLOAT && a.u.f != a.u.f) ||
                         (b.kind == V_FLOAT && b.u.f != b.u.f);
    switch (op) {
    case OP_EQ:
        return value_equal(r, a, b);
    case OP_NE:
        return !value_equal(r, a, b);
    case OP_IN:
        return value_in(r, a, b);
    case OP_NOT_IN:
        return !value_in(r, a, b);
    case OP_LT:
        return value_compare(r, a, b, names[op]) < 0 && !has_nan;
    case OP_LE:
        return value_compare(r, a, b, names[op]) <= 0 && !has_nan;
    case OP_GT:
        return value_compare(r, a, b, names[op]) > 0 && !has_nan;
    default:
        return value_compare(r, a, b, names[op]) >= 0 && !has_nan;
    }
}

static struct value eval_compare(struct run *r, const struct node *node)
{
    struct value left = eval(r, node->a);
    for (const struct node *part = node->list; part != NULL && r->rc == 0; part = part->next) {
        const struct value right = eval(r, part->a);
        if (r->rc == 0 && !holds(r, part->op, left, right))
            return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

static struct value eval_concat(struct run *r, const struct node *node)
{
    struct sbuf text = {0};
    for (const struct node *item = node->list; item != NULL && r->rc == 0; item = item->next)
        value_print(r, &text, eval(r, item), false);
    return v_str(sbuf_take(r, &text));
}

static struct value eval_item(struct run *r, const struct node *node)
{
    const struct value of = eval(r, node->a);
    if (node->b->kind != N_SLICE) {
        const struct value key = eval(r, node->b);
        r->line = node->line;
        return r->rc == 0 ? get_item(r, of, key) : v_undefined();
    }
    struct value parts[3];
    const struct node *const from[3] = {node->b->a, node->b->b, node->b->c};
    for (int i = 0; i < 3; i++)
        parts[i] = from[i] != NULL ? eval(r, from[i]) : v_none();
    r->line = node->line;
    return r->rc == 0 ? get_slice(r, of, parts[0], parts[1], parts[2]) : v_undefined();
}

static struct value eval_sign(struct run *r, const struct node *node)
{
    const struct value v = eval(r, node->a);
    const bool is_negative = node->kind == N_NEGATIVE;
    if (v.kind == V_FLOAT)
        return v_float(is_negative ? -v.u.f : v.u.f);
    if (!is_intlike(v))
        return run_fail(r, "%s is not a number and cannot have a sign", value_type(v));
    int64_t x = int_of(v);
    if (is_negative && __builtin_sub_overflow(0, x, &x))
        return run_fail(r, "an integer does not fit into 64 bits");
    return v_int(x);
}

static struct value eval_plain(struct run *r, const struct node *node)
{
    struct value v;
    switch (node->kind) {
    case N_CONST:
        return node->value;
    case N_NAME:
        return scope_get(r, node->symbol);
    case N_TUPLE:
        return eval_elements(r, node, LIST_TUPLE);
    case N_LIST:
        return eval_elements(r, node, LIST_LIST);
    case N_DICT:
        return eval_dict(r, node);
    case N_COND:
        if (value_is_true(r, eval(r, node->b)))
            return eval(r, node->a);
        return node->c != NULL ? eval(r, node->c) : v_undefined();
    case N_OR:
        v = eval(r, node->a);
        return value_is_true(r, v) ? v : eval(r, node->b);
    case N_AND:
        v = eval(r, node->a);
        return value_is_true(r, v) ? eval(r, node->b) : v;
    case N_NOT:
        return v_bool(!value_is_true(r, eval(r, node->a)));
    case N_COMPARE:
        return eval_compare(r, node);
    case N_CONCAT:
        return eval_concat(r, node);
    default:
        return eval_sign(r, node);
    }
}

struct value eval(struct run *r, const struct node *node)
{
    struct value v = v_undefined();
    if (!run_enter(r) || !run_work(r, 0)) {
        run_leave(r);
        return v;
    }
    switch (node->kind) {
    case N_BINARY: {
        const struct value a = eval(r, node->a), b = eval(r, node->b);
        r->line = node->line;
        v = r->rc == 0 ? eval_operation(r, node->op, a, b) : v;
        break;
    }
    case N_ATTRIBUTE:
        v = eval(r, node->a);
        r->line = node->line;
        v = r->rc == 0 ? get_attribute(r, v, node->attribute) : v;
        break;
    case N_ITEM:
        v = eval_item(r, node);
        break;
    case N_CALL:
        v = eval_call(r, node);
        break;
    case N_FILTER:
    case N_TEST:
        v = eval_filter(r, node);
        break;
    default:
        v = eval_plain(r, node);
        break;
    }
    run_leave(r);
    return r->rc == 0 ? v : v_undefined();
}
