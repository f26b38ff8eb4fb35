/* Methods of lists and dicts, and the global functions of a template. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "jinja/run.h"
#include "text/unicode.h"

/* ---- lists and dicts ------------------------------------------------------------------------- */

static struct value l_count(struct run *r, struct value self, const struct args *args)
{
    struct value of;
    int64_t n = 0;
    if (!args_bind(r, "count", args, "/value", &of))
        return v_undefined();
    for (size_t i = 0; i < self.u.list->n && run_work(r, 0); i++)
        n += value_equal(r, self.u.list->items[i], of);
    return v_int(n);
}

static struct value l_index(struct run *r, struct value self, const struct args *args)
{
    struct value given[3];
    const struct list *l = self.u.list;
    if (!args_bind(r, "index", args, "/value start? stop?", given))
        return v_undefined();
    int64_t begin = arg_int(r, "index", given[1], 0), n = (int64_t)l->n;
    int64_t end = arg_int(r, "index", given[2], n);
    begin = begin < 0 ? (begin + n < 0 ? 0 : begin + n) : begin;
    end = end < 0 ? end + n : end;
    for (int64_t i = begin; i < end && i < n && run_work(r, 0); i++)
        if (value_equal(r, l->items[i], given[0]))
            return v_int(i);
    return run_fail(r, "index: there is no such element");
}

static struct value l_copy(struct run *r, struct value self, const struct args *args)
{
    struct list *copy = list_new(r, LIST_LIST);
    if (!args_bind(r, "copy", args, "/", NULL))
        return v_undefined();
    for (size_t i = 0; i < self.u.list->n && r->rc == 0; i++)
        list_push(r, copy, self.u.list->items[i]);
    return v_list(copy);
}

/* Returns true if the list may change: no loop goes over it. */
static bool may_change(struct run *r, const struct list *l, const char *method)
{
    if (l->n_loops > 0)
        (void)run_fail(r, "%s: a loop goes over this list", method);
    return l->n_loops == 0;
}

static struct value l_append(struct run *r, struct value self, const struct args *args)
{
    struct value more;
    if (!args_bind(r, "append", args, "/value", &more) || !may_change(r, self.u.list, "append"))
        return v_undefined();
    list_push(r, self.u.list, more);
    return v_none();
}

static struct value l_pop(struct run *r, struct value self, const struct args *args)
{
    struct value given;
    struct list *l = self.u.list;
    if (!args_bind(r, "pop", args, "/index?", &given) || !may_change(r, l, "pop"))
        return v_undefined();
    const int64_t index = arg_int(r, "pop", given, -1), n = (int64_t)l->n;
    const int64_t at = index < 0 ? index + n : index;
    if (r->rc != 0 || !run_work(r, l->n * sizeof *l->items))
        return v_undefined();
    if (at < 0 || at >= n)
        return run_fail(r, "pop: the list has %zu elements, and no element %lld", l->n,
                        (long long)index);
    const struct value popped = l->items[at];
    memmove(l->items + at, l->items + at + 1, (size_t)(n - at - 1) * sizeof *l->items);
    l->n--;
    return popped;
}

static const struct method list_methods[] = {
    {.name = "count", .call = l_count}, {.name = "index", .call = l_index},
    {.name = "copy", .call = l_copy},   {.name = "append", .call = l_append},
    {.name = "pop", .call = l_pop},
};

const struct method *list_method(const struct list *list, const struct str *name)
{
    const size_t n = list->kind == LIST_LIST ? sizeof list_methods / sizeof list_methods[0] : 2;
    if (list->kind > LIST_RANGE && list->kind != LIST_GROUP)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (str_is(name, list_methods[i].name))
            return &list_methods[i];
    return NULL;
}

static struct value view(struct run *r, const struct dict *d, enum list_kind kind)
{
    struct list *list = list_new(r, kind);
    for (size_t i = 0; i < d->n && r->rc == 0; i++) {
        struct value v = kind == LIST_KEYS ? d->entries[i].key : d->entries[i].value;
        if (kind == LIST_ITEMS) {
            struct list *pair = list_new(r, LIST_TUPLE);
            list_push(r, pair, d->entries[i].key);
            list_push(r, pair, d->entries[i].value);
            v = v_list(pair);
        }
        list_push(r, list, v);
    }
    return v_list(list);
}

static struct value d_items(struct run *r, struct value self, const struct args *args)
{
    return args_bind(r, "items", args, "/", NULL) ? view(r, self.u.dict, LIST_ITEMS)
                                                  : v_undefined();
}

static struct value d_keys(struct run *r, struct value self, const struct args *args)
{
    return args_bind(r, "keys", args, "/", NULL) ? view(r, self.u.dict, LIST_KEYS)
                                                 : v_undefined();
}

static struct value d_values(struct run *r, struct value self, const struct args *args)
{
    return args_bind(r, "values", args, "/", NULL) ? view(r, self.u.dict, LIST_VALUES)
                                                   : v_undefined();
}

static struct value d_get(struct run *r, struct value self, const struct args *args)
{
    struct value given[2];
    if (!args_bind(r, "get", args, "/key default?", given))
        return v_undefined();
    const struct value *found = dict_find(r, self.u.dict, given[0]);
    if (found != NULL)
        return *found;
    return given[1].kind == V_MISSING ? v_none() : given[1];
}

static struct value d_copy(struct run *r, struct value self, const struct args *args)
{
    struct dict *copy = dict_new(r);
    if (!args_bind(r, "copy", args, "/", NULL))
        return v_undefined();
    for (size_t i = 0; i < self.u.dict->n && r->rc == 0; i++)
        dict_set(r, copy, self.u.dict->entries[i].key, self.u.dict->entries[i].value);
    return v_dict(copy);
}

const struct method *dict_method(const struct str *name)
{
    static const struct method methods[] = {
        {.name = "get", .call = d_get}, {.name = "items", .call = d_items},
        {.name = "keys", .call = d_keys}, {.name = "values", .call = d_values},
        {.name = "copy", .call = d_copy},
    };
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (str_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}

bool is_mutator(struct value v, const struct str *name)
{
    static const char *const of_lists[] = {"clear", "reverse", "insert", "sort", "extend",
                                           "remove", NULL};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update",
                                           "fromkeys", NULL};
    const char *const *names = NULL;
    if (v.kind == V_DICT)
        names = of_dicts;
    else if (v.kind == V_LIST && v.u.list->kind == LIST_LIST)
        names = of_lists;
    for (; names != NULL && *names != NULL; names++)
        if (str_is(name, *names))
            return true;
    return false;
}

/* ---- functions ------------------------------------------------------------------------------- */

static struct value f_range(struct run *r, const struct args *args)
{
    struct value given[3];
    if (!args_bind(r, "range", args, "/start stop? step?", given))
        return v_undefined();
    int64_t start = arg_int(r, "range", given[0], 0), stop = arg_int(r, "range", given[1], start);
    const int64_t step = arg_int(r, "range", given[2], 1);
    if (given[1].kind == V_MISSING)
        start = 0;
    if (r->rc == 0 && step == 0)
        return run_fail(r, "range: the step is 0");
    struct list *list = list_new(r, LIST_RANGE);
    list->start = start;
    list->stop = stop;
    list->step = step;
    const bool is_empty = step > 0 ? start >= stop : start <= stop;
    const uint64_t span = step > 0 ? (uint64_t)stop - (uint64_t)start
                                   : (uint64_t)start - (uint64_t)stop;
    const uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    const uint64_t n = is_empty ? 0 : (span - 1) / by + 1;
    if (n > JINJA_RANGE)
        return run_fail(r, "range has %llu elements; the limit is %d",
                        (unsigned long long)n, JINJA_RANGE);
    for (uint64_t i = 0; i < n && r->rc == 0; i++)
        list_push(r, list, v_int((int64_t)((uint64_t)start + i * (uint64_t)step)));
    return v_list(list);
}

/* Implements dict() and namespace(): from pairs or another dict, and keywords. */
static struct dict *make_dict(struct run *r, const struct args *args)
{
    struct dict *d = dict_new(r);
    if (args->n > 1)
        (void)run_fail(r, "dict() takes at most one argument");
    if (args->n == 1 && args->args[0].kind == V_DICT) {
        const struct dict *from = args->args[0].u.dict;
        for (size_t i = 0; i < from->n && r->rc == 0; i++)
            dict_set(r, d, from->entries[i].key, from->entries[i].value);
    } else if (args->n == 1) {
        const struct list *pairs = value_items(r, args->args[0]);
        for (size_t i = 0; i < pairs->n && r->rc == 0; i++) {
            const struct list *pair = value_items(r, pairs->items[i]);
            if (r->rc == 0 && pair->n != 2)
                (void)run_fail(r, "dict() needs pairs");
            else if (r->rc == 0)
                dict_set(r, d, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; args->keywords != NULL && i < args->keywords->n && r->rc == 0; i++)
        dict_set(r, d, args->keywords->entries[i].key, args->keywords->entries[i].value);
    return d;
}

static struct value f_dict(struct run *r, const struct args *args)
{
    return v_dict(make_dict(r, args));
}

static struct value f_namespace(struct run *r, const struct args *args)
{
    struct dict *d = make_dict(r, args);
    return (struct value){V_NAMESPACE, {.dict = d}};
}

static struct value f_raise_exception(struct run *r, const struct args *args)
{
    struct value message;
    if (!args_bind(r, "raise_exception", args, "message", &message))
        return v_undefined();
    const struct str *text = value_str(r, message);
    if (r->rc == 0)
        r->rc = err_set(r->err, FM_ERR_ARG, "%s: line %u refuses the conversation: %.*s",
                        r->jinja->name, r->line,
                        (int)(text->bytes < 400 ? text->bytes : 400), text->text);
    return v_undefined();
}

/* Expands %z, %Z and %f for local time as Python does, because the C library cannot. */
static bool local_format(const struct str *s, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < s->bytes; i++) {
        if (n + 8 > out_bytes || s->text[i] == '\0')
            return false;
        if (s->text[i] == '%' && i + 1 < s->bytes) {
            const char c = s->text[++i];
            if (c == 'f')
                n += (size_t)snprintf(out + n, out_bytes - n, "000000");
            else if (c != 'z' && c != 'Z')
                n += (size_t)snprintf(out + n, out_bytes - n, "%%%c", c);
            continue;
        }
        out[n++] = s->text[i];
    }
    out[n] = '\0';
    return true;
}

static struct value f_strftime_now(struct run *r, const struct args *args)
{
    struct value format;
    char form[1024], text[4096];
    if (!args_bind(r, "strftime_now", args, "format", &format))
        return v_undefined();
    const struct str *s = arg_str(r, "strftime_now", format);
    const time_t now = (time_t)(r->input->now_s + r->input->now_offset_s);
    struct tm parts;
    if (r->rc != 0 || s->bytes == 0)
        return r->rc == 0 ? format : v_undefined();
    if (!local_format(s, form, sizeof form) || gmtime_r(&now, &parts) == NULL)
        return run_fail(r, "strftime_now: a format of %zu bytes is too long", s->bytes);
    text[0] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const size_t n = form[0] != '\0' ? strftime(text, sizeof text, form, &parts) : 0;
#pragma GCC diagnostic pop
    if (utf8_count_bad((const uint8_t *)text, n) > 0)
        return run_fail(r, "strftime_now: the result is not UTF-8");
    struct sbuf b = {0};
    sbuf_add(r, &b, text, n, s->origins == NULL ? s->origin : (uint8_t)JINJA_DATA);
    return v_str(sbuf_take(r, &b));
}

static struct value f_cycler(struct run *r, const struct args *args)
{
    struct cycler *c = run_new(r, 1, sizeof *c);
    if (c == NULL || args->n == 0)
        return run_fail(r, "cycler() needs at least one argument");
    c->items = list_new(r, LIST_LIST);
    for (size_t i = 0; i < args->n; i++)
        list_push(r, c->items, args->args[i]);
    return r->rc == 0 ? (struct value){V_CYCLER, {.cycler = c}} : v_undefined();
}

static struct value f_joiner(struct run *r, const struct args *args)
{
    struct value separator;
    struct cycler *c = run_new(r, 1, sizeof *c);
    if (c == NULL || !args_bind(r, "joiner", args, "sep?", &separator))
        return v_undefined();
    c->separator = separator.kind == V_MISSING ? v_text(r, ", ").u.str : value_str(r, separator);
    return (struct value){V_JOINER, {.cycler = c}};
}

static struct value f_refused(struct run *r, const struct args *args)
{
    (void)args;
    return run_fail(r, "lipsum() is not supported in a chat template");
}

const struct function *global_find(const struct str *name)
{
    static const struct function functions[] = {
        {"range", f_range}, {"dict", f_dict}, {"namespace", f_namespace},
        {"raise_exception", f_raise_exception}, {"strftime_now", f_strftime_now},
        {"cycler", f_cycler}, {"joiner", f_joiner}, {"lipsum", f_refused},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (str_is(name, functions[i].name))
            return &functions[i];
    return NULL;
}
