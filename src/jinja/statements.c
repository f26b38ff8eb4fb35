/* Executes statements (scopes, loops, macros, blocks) and renders whole templates. */
#include <string.h>

#include "base/mem.h"
#include "jinja/run.h"

#define DEFAULT_STEPS ((uint64_t)20 * 1000 * 1000)
#define DEFAULT_MEMORY_BYTES ((uint64_t)512 << 20)
#define DEFAULT_OUTPUT_BYTES ((uint64_t)64 << 20)

/* ---- scopes ---------------------------------------------------------------------------------- */

static struct scope *scope_new(struct run *r, struct scope *parent)
{
    struct scope *scope = run_new(r, 1, sizeof *scope);
    if (scope != NULL)
        scope->parent = parent;
    return scope;
}

void scope_set(struct run *r, struct scope *scope, const struct symbol *symbol, struct value v)
{
    if (scope == NULL || r->rc != 0)
        return;
    for (size_t i = 0; i < scope->n; i++)
        if (scope->bindings[i].symbol == symbol) {
            scope->bindings[i].value = v;
            return;
        }
    if (scope->n == scope->capacity) {
        const size_t capacity = scope->capacity > 0 ? 2 * scope->capacity : 4;
        struct binding *bindings = run_new(r, capacity, sizeof *bindings);
        if (bindings == NULL)
            return;
        if (scope->n > 0)
            memcpy(bindings, scope->bindings, scope->n * sizeof *bindings);
        scope->bindings = bindings;
        scope->capacity = capacity;
    }
    scope->bindings[scope->n++] = (struct binding){symbol, v};
}

struct value scope_get(struct run *r, const struct symbol *symbol)
{
    for (const struct scope *scope = r->scope; scope != NULL; scope = scope->parent) {
        if (!run_work(r, 0))
            return v_undefined();
        for (size_t i = 0; i < scope->n; i++)
            if (scope->bindings[i].symbol == symbol) {
                const struct value v = scope->bindings[i].value;
                return v.kind == V_MISSING ? v_undefined() : v;
            }
    }
    const struct value *found = dict_find_str(r, r->variables, &symbol->name);
    if (found != NULL)
        return *found;
    const struct function *function = global_find(&symbol->name);
    if (function != NULL)
        return (struct value){V_FUNCTION, {.function = function}};
    return v_undefined();
}

static void hide_names(struct run *r, struct scope *scope, struct symbol *const *hidden, size_t n)
{
    for (size_t i = 0; i < n; i++)
        scope_set(r, scope, hidden[i], (struct value){.kind = V_MISSING});
}

static void assign(struct run *r, const struct node *target, struct value v)
{
    if (target->kind == N_NAME) {
        scope_set(r, r->scope, target->symbol, v);
        return;
    }
    if (target->kind == N_NSREF) {
        const struct value space = scope_get(r, target->symbol);
        if (space.kind != V_NAMESPACE)
            (void)run_fail(r, "'%s' is not a namespace, so its attributes cannot be set",
                           target->symbol->name.text);
        else
            dict_set(r, space.u.dict, v_str(target->attribute), v);
        return;
    }
    const struct list *items = value_items(r, v);
    size_t n = 0;
    for (const struct node *item = target->list; item != NULL; item = item->next)
        n++;
    if (r->rc == 0 && items->n != n)
        (void)run_fail(r, "%zu values cannot be assigned to %zu names", items->n, n);
    size_t i = 0;
    for (const struct node *item = target->list; item != NULL && r->rc == 0; item = item->next)
        assign(r, item, items->items[i++]);
}

/* Renders a body in its own scope and returns the text. */
static const struct str *capture(struct run *r, const struct node *node, struct scope *scope)
{
    struct sbuf text = {0}, *const out = r->out;
    struct scope *const outer = r->scope;
    r->out = &text;
    r->scope = scope;
    if (scope != NULL)
        run_body(r, node->body);
    r->scope = outer;
    r->out = out;
    return sbuf_take(r, &text);
}

static const struct str *capture_inner(struct run *r, const struct node *node)
{
    struct scope *scope = scope_new(r, r->scope);
    hide_names(r, scope, node->hidden, node->n_hidden);
    return capture(r, node, scope);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static const struct symbol *loop_symbol(struct run *r)
{
    for (const struct symbol *s = r->jinja->symbols; s != NULL; s = s->next)
        if (str_is(&s->name, "loop"))
            return s;
    return NULL;
}

/* Returns the elements of the loop that satisfy its condition. */
static struct list *loop_items(struct run *r, const struct node *node, struct value iterable)
{
    struct list *items = value_items(r, iterable);
    if (node->c == NULL)
        return items;
    struct list *kept = list_new(r, LIST_LIST);
    struct scope *const outer = r->scope;
    struct scope *scope = scope_new(r, outer);
    r->scope = scope;
    items->n_loops++;
    for (size_t i = 0; i < items->n && r->rc == 0; i++) {
        scope->n = 0;
        assign(r, node->a, items->items[i]);
        if (value_is_true(r, eval(r, node->c)))
            list_push(r, kept, items->items[i]);
    }
    items->n_loops--;
    r->scope = outer;
    return kept;
}

static void run_loop(struct run *r, const struct node *node, struct list *items, unsigned depth)
{
    struct scope *const outer = r->scope, *const scope = scope_new(r, outer);
    const struct symbol *name = loop_symbol(r);
    struct loop *loop = run_new(r, 1, sizeof *loop);
    bool is_done = false; /* as in jinja2: no `else` once a body was completed */
    if (scope == NULL || loop == NULL)
        return;
    loop->items = items;
    loop->depth = depth;
    loop->recursive = node->is_recursive ? node : NULL;
    loop->scope = outer;
    r->scope = scope;
    items->n_loops++;
    for (; loop->index < items->n && r->rc == 0 && !r->is_broken; loop->index++) {
        scope->n = 0;
        if (name != NULL)
            scope_set(r, scope, name, (struct value){V_LOOP, {.loop = loop}});
        hide_names(r, scope, node->hidden, node->n_hidden);
        assign(r, node->a, items->items[loop->index]);
        run_body(r, node->body);
        is_done = is_done || (!r->is_broken && !r->is_continued);
        r->is_continued = false;
    }
    items->n_loops--;
    r->is_broken = false;
    r->scope = outer;
    if (!is_done && node->more != NULL && r->rc == 0) {
        r->scope = scope_new(r, outer);
        run_body(r, node->more);
        r->scope = outer;
    }
}

struct value call_loop(struct run *r, struct loop *loop, const struct args *args)
{
    if (loop->recursive == NULL)
        return run_fail(r, "a loop that calls itself must be declared 'recursive'");
    if (args->n != 1 || args->keywords != NULL)
        return run_fail(r, "loop() takes one argument");
    struct sbuf text = {0}, *const out = r->out;
    struct scope *const outer = r->scope;
    struct list *items = NULL;
    r->scope = loop->scope;
    if (run_enter(r)) {
        items = loop_items(r, loop->recursive, args->args[0]);
        r->out = &text;
        run_loop(r, loop->recursive, items, loop->depth + 1);
    }
    run_leave(r);
    r->out = out;
    r->scope = outer;
    return v_str(sbuf_take(r, &text));
}

/* ---- macros ---------------------------------------------------------------------------------- */

static struct value macro_value(struct run *r, const struct node *node)
{
    struct macro *macro = run_new(r, 1, sizeof *macro);
    if (macro == NULL)
        return v_undefined();
    macro->node = node;
    macro->scope = r->scope;
    return (struct value){V_MACRO, {.macro = macro}};
}

static const struct symbol *symbol_of(struct run *r, const char *name)
{
    for (const struct symbol *s = r->jinja->symbols; s != NULL; s = s->next)
        if (str_is(&s->name, name))
            return s;
    return NULL;
}

/* Binds the parameters; the remaining keywords go to *rest. */
static void bind_parameters(struct run *r, const struct node *node, const struct args *args,
                            struct scope *scope, struct dict *rest, size_t *n_parameters)
{
    size_t i = 0;
    for (const struct node *p = node->list; p != NULL && r->rc == 0; p = p->next, i++) {
        struct value v = {.kind = V_MISSING};
        const struct value *named = args->keywords != NULL
                                        ? dict_find_str(r, args->keywords, &p->symbol->name)
                                        : NULL;
        if (i < args->n)
            v = args->args[i];
        else if (named != NULL)
            v = *named;
        scope_set(r, scope, p->symbol, v);
    }
    *n_parameters = i;
    for (size_t k = 0; args->keywords != NULL && k < args->keywords->n && r->rc == 0; k++) {
        const struct dict_entry *entry = &args->keywords->entries[k];
        size_t at = 0;
        const struct node *p = node->list;
        while (p != NULL && !str_equal(&p->symbol->name, entry->key.u.str))
            p = p->next, at++;
        if (p == NULL || at < args->n)
            dict_set(r, rest, entry->key, entry->value);
    }
}

static struct dict *without(struct run *r, const struct dict *from, const char *key)
{
    struct dict *kept = dict_new(r);
    for (size_t i = 0; i < from->n; i++)
        if (!str_is(from->entries[i].key.u.str, key))
            dict_set(r, kept, from->entries[i].key, from->entries[i].value);
    return kept;
}

/* Binds `caller`, `kwargs` and `varargs` if the macro uses them. */
static void bind_specials(struct run *r, const struct node *node, const struct args *args,
                          struct scope *scope, struct dict *rest, size_t n_parameters)
{
    if (node->takes_caller && !node->has_caller) {
        const struct value *caller = dict_find_text(r, rest, "caller");
        scope_set(r, scope, symbol_of(r, "caller"), caller != NULL ? *caller : v_undefined());
        rest = without(r, rest, "caller");
    }
    if (node->takes_kwargs)
        scope_set(r, scope, symbol_of(r, "kwargs"), v_dict(rest));
    else if (rest->n > 0)
        (void)run_fail(r, "the macro takes no argument '%.*s'",
                       (int)rest->entries[0].key.u.str->bytes, rest->entries[0].key.u.str->text);
    if (node->takes_varargs) {
        struct list *more = list_new(r, LIST_TUPLE);
        for (size_t i = n_parameters; i < args->n && r->rc == 0; i++)
            list_push(r, more, args->args[i]);
        scope_set(r, scope, symbol_of(r, "varargs"), v_list(more));
    } else if (args->n > n_parameters) {
        (void)run_fail(r, "the macro takes %zu arguments, not %zu", n_parameters, args->n);
    }
}

struct value call_macro(struct run *r, const struct macro *macro, const struct args *args)
{
    const struct node *node = macro->node;
    struct scope *const outer = r->scope, *scope = scope_new(r, macro->scope);
    struct dict *rest = dict_new(r);
    const struct str *text = &r->sink_str;
    size_t n_parameters = 0;
    if (run_enter(r) && scope != NULL) {
        hide_names(r, scope, node->hidden, node->n_hidden);
        bind_parameters(r, node, args, scope, rest, &n_parameters);
        bind_specials(r, node, args, scope, rest, n_parameters);
        r->scope = scope;
        for (const struct node *p = node->list; p != NULL && r->rc == 0; p = p->next) {
            const struct binding *b = scope->bindings;
            while (b->symbol != p->symbol)
                b++;
            if (b->value.kind == V_MISSING)
                scope_set(r, scope, p->symbol, p->a != NULL ? eval(r, p->a) : v_undefined());
        }
        if (r->rc == 0)
            text = capture(r, node, scope);
        r->scope = outer;
    }
    run_leave(r);
    return v_str(text);
}

static void run_call_block(struct run *r, const struct node *node)
{
    const struct node *call = node->a;
    const struct value callee = eval(r, call->a);
    struct node with_caller = *call; /* the call's arguments plus `caller` */
    struct symbol name = {.name = {.text = "caller", .bytes = 6, .n_chars = 6}};
    const struct value macro = macro_value(r, node);
    struct node value = {.kind = N_CONST, .value = macro, .line = node->line};
    struct node keyword = {.kind = N_KEYWORD, .attribute = &name.name, .a = &value,
                           .line = node->line};
    struct node constant = {.kind = N_CONST, .value = callee, .line = call->line};
    keyword.next = call->more;
    with_caller.more = &keyword;
    with_caller.a = &constant;
    if (r->rc == 0)
        value_print(r, r->out, eval(r, &with_caller), false);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void run_if(struct run *r, const struct node *node)
{
    if (value_is_true(r, eval(r, node->a))) {
        run_body(r, node->body);
        return;
    }
    for (const struct node *other = node->list; other != NULL && r->rc == 0; other = other->next) {
        r->line = other->line;
        if (value_is_true(r, eval(r, other->a))) {
            run_body(r, other->body);
            return;
        }
    }
    run_body(r, node->more);
}

static void run_with(struct run *r, const struct node *node)
{
    struct scope *const outer = r->scope, *const scope = scope_new(r, outer);
    hide_names(r, scope, node->hidden, node->n_hidden);
    for (const struct node *set = node->list; set != NULL && r->rc == 0; set = set->next) {
        const struct value v = eval(r, set->b);
        r->scope = scope;
        assign(r, set->a, v);
        r->scope = outer;
    }
    r->scope = scope;
    if (r->rc == 0)
        run_body(r, node->body);
    r->scope = outer;
}

static struct value filtered(struct run *r, const struct node *filter, const struct str *text)
{
    if (filter == NULL)
        return v_str(text);
    const struct value before = r->block_text;
    r->block_text = v_str(text);
    const struct value v = eval(r, filter);
    r->block_text = before;
    return v;
}

static void run_statement(struct run *r, const struct node *node)
{
    const struct str *text;
    switch (node->kind) {
    case N_DATA:
        sbuf_str(r, r->out, node->value.u.str);
        break;
    case N_PRINT:
        value_print(r, r->out, eval(r, node->a), false);
        break;
    case N_IF:
        run_if(r, node);
        break;
    case N_FOR:
        run_loop(r, node, loop_items(r, node, eval(r, node->b)), 1);
        break;
    case N_SET:
        assign(r, node->a, eval(r, node->b));
        break;
    case N_SET_BLOCK:
        text = capture_inner(r, node);
        if (!r->is_broken && !r->is_continued)
            assign(r, node->a, filtered(r, node->b, text));
        break;
    case N_MACRO:
        scope_set(r, r->scope, node->symbol, macro_value(r, node));
        break;
    case N_CALL_BLOCK:
        run_call_block(r, node);
        break;
    case N_FILTER_BLOCK:
        text = capture_inner(r, node);
        if (!r->is_broken && !r->is_continued)
            value_print(r, r->out, filtered(r, node->a, text), false);
        break;
    case N_WITH:
        run_with(r, node);
        break;
    case N_GENERATION:
        sbuf_str(r, r->out, capture_inner(r, node));
        break;
    case N_BREAK:
        r->is_broken = true;
        break;
    case N_CONTINUE:
        r->is_continued = true;
        break;
    default:
        break;
    }
    if (r->out->n > r->max_output)
        run_exceeds(r, "it writes more than %llu bytes", (unsigned long long)r->max_output);
}

void run_body(struct run *r, const struct node *body)
{
    if (run_enter(r))
        for (; body != NULL && r->rc == 0 && !r->is_broken && !r->is_continued;
             body = body->next) {
            r->line = body->line;
            if (run_work(r, 0))
                run_statement(r, body);
        }
    run_leave(r);
}

/* ---- rendering ------------------------------------------------------------------------------- */

static void add_variables(struct run *r, const json_t *from, enum jinja_origin origin)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)from, key, item)
    {
        if (r->rc != 0)
            break;
        const bool is_messages = strcmp(key, "messages") == 0 && origin == JINJA_DATA;
        struct str *name = run_new(r, 1, sizeof *name);
        if (name == NULL)
            break;
        *name = (struct str){.text = key, .bytes = strlen(key), .origin = (uint8_t)origin,
                             .n_chars = utf8_characters(key, strlen(key))};
        dict_set(r, r->variables, v_str(name),
                 is_messages ? value_from_messages(r, item) : value_from_json(r, item, origin));
    }
}

static int take_rendering(const struct sbuf *out, struct jinja_rendering *rendering,
                          struct fm_error *err)
{
    rendering->text = mem_new(out->n + 1, 1, "a rendered conversation", err);
    rendering->origins = mem_new(out->n, 1, "a rendered conversation", err);
    if (rendering->text == NULL || rendering->origins == NULL)
        return FM_ERR_NOMEM;
    if (out->n > 0) {
        memcpy(rendering->text, out->text, out->n);
        if (out->origins != NULL)
            memcpy(rendering->origins, out->origins, out->n);
        else
            memset(rendering->origins, out->origin, out->n);
    }
    rendering->bytes = out->n;
    return 0;
}

int jinja_render(const struct jinja *jinja, const struct jinja_input *input,
                 struct jinja_rendering *out, struct fm_error *err)
{
    *out = (struct jinja_rendering){0};
    const struct jinja_limits *limits = &input->limits;
    struct sbuf text = {0};
    struct fm_error why = {0};
    struct run r = {.jinja = jinja, .input = input, .out = &text, .line = 1, .err = &why};
    r.sink_str = (struct str){.text = ""};
    r.arena.limit = limits->memory_bytes > 0 ? limits->memory_bytes : DEFAULT_MEMORY_BYTES;
    r.max_steps = limits->n_steps > 0 ? limits->n_steps : DEFAULT_STEPS;
    r.max_output = limits->output_bytes > 0 ? limits->output_bytes : DEFAULT_OUTPUT_BYTES;
    r.variables = dict_new(&r);
    add_variables(&r, input->trusted, JINJA_TEMPLATE);
    add_variables(&r, input->variables, JINJA_DATA);
    r.scope = scope_new(&r, NULL);
    hide_names(&r, r.scope, jinja->hidden, jinja->n_hidden);
    if (r.rc == 0)
        run_body(&r, jinja->body);
    if (r.rc == 0)
        r.rc = take_rendering(&text, out, &why);
    arena_clear(&r.arena);
    if (r.rc == 0)
        return 0;
    jinja_rendering_clear(out);
    return err_set(err, r.rc, "%s", why.text);
}

void jinja_rendering_clear(struct jinja_rendering *rendering)
{
    mem_free(rendering->text);
    mem_free(rendering->origins);
    *rendering = (struct jinja_rendering){0};
}
