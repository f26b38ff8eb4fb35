/* Parses statements, and has the helpers of the parser. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "jinja/run.h"

/* ---- tools ----------------------------------------------------------------------------------- */

struct node *parser_fail(struct parser *p, unsigned line, const char *fmt, ...)
{
    if (p->rc != 0)
        return NULL;
    if (fmt == NULL) { /* a failed allocation has already written the message */
        p->rc = p->err != NULL && p->err->code != 0 ? p->err->code : FM_ERR_NOMEM;
        return NULL;
    }
    char text[FM_ERROR_BYTES / 2];
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    p->rc = lexer_fail(&p->lexer, line, "%s", text);
    return NULL;
}

void parser_advance(struct parser *p)
{
    if (p->rc != 0)
        return;
    p->token = p->next;
    if (p->token.kind != T_END || p->lexer.at < p->lexer.bytes)
        p->rc = lexer_next(&p->lexer, &p->next);
}

struct node *parser_node(struct parser *p, enum node_kind kind, unsigned line)
{
    if (p->rc != 0)
        return NULL;
    struct node *node = arena_new(&p->jinja->arena, sizeof *node, p->err);
    if (node == NULL)
        return parser_fail(p, line, NULL);
    node->kind = kind;
    node->line = line;
    return node;
}

struct symbol *parser_symbol(struct parser *p, const char *text, size_t bytes)
{
    struct jinja *jinja = p->jinja;
    for (struct symbol *symbol = jinja->symbols; symbol != NULL; symbol = symbol->next)
        if (symbol->name.bytes == bytes && memcmp(symbol->name.text, text, bytes) == 0)
            return symbol;
    if (++jinja->n_symbols > JINJA_NAMES) {
        (void)parser_fail(p, p->token.line, "more than %d different names", JINJA_NAMES);
        return NULL;
    }
    struct symbol *symbol = arena_new(&jinja->arena, sizeof *symbol, p->err);
    char *copy = arena_new(&jinja->arena, bytes + 1, p->err);
    if (symbol == NULL || copy == NULL) {
        (void)parser_fail(p, 0, NULL);
        return NULL;
    }
    memcpy(copy, text, bytes);
    symbol->name = (struct str){.text = copy, .bytes = bytes,
                                .n_chars = utf8_characters(copy, bytes)};
    symbol->next = jinja->symbols;
    jinja->symbols = symbol;
    return symbol;
}

bool parser_is_name(const struct parser *p, const char *name)
{
    return p->rc == 0 && p->token.kind == T_NAME && p->token.bytes == strlen(name) &&
           memcmp(p->token.text, name, p->token.bytes) == 0;
}

bool parser_is_operator(const struct parser *p, const char *op)
{
    return p->rc == 0 && p->token.kind == T_OPERATOR && strcmp(p->token.text, op) == 0;
}

bool parser_skip_name(struct parser *p, const char *name)
{
    const bool is_there = parser_is_name(p, name);
    if (is_there)
        parser_advance(p);
    return is_there;
}

bool parser_skip_operator(struct parser *p, const char *op)
{
    const bool is_there = parser_is_operator(p, op);
    if (is_there)
        parser_advance(p);
    return is_there;
}

void parser_expect_operator(struct parser *p, const char *op)
{
    if (!parser_skip_operator(p, op))
        (void)parser_fail(p, p->token.line, "'%s' is missing", op);
}

void parser_append(struct node ***tail, struct node *node)
{
    if (node == NULL)
        return;
    **tail = node;
    *tail = &node->next;
}

/* ---- statements ------------------------------------------------------------------------------ */

static struct node *parse_bodies(struct parser *p, const char *const *ends);

static void expect_block_end(struct parser *p)
{
    if (p->rc == 0 && p->token.kind != T_BLOCK_END)
        (void)parser_fail(p, p->token.line, "'%%}' is missing");
    parser_advance(p);
}

/* Parses statements up to one of the tags, whose name becomes the current token. */
static struct node *parse_body(struct parser *p, const char *const *ends)
{
    (void)parser_skip_operator(p, ":");
    expect_block_end(p);
    struct node *body = NULL;
    if (++p->depth > JINJA_NESTING)
        (void)parser_fail(p, p->token.line, "nested more than %d levels deep",
                          JINJA_NESTING);
    else
        body = parse_bodies(p, ends);
    p->depth--;
    return body;
}

static struct node *parse_body_to(struct parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct node *body = parse_body(p, ends);
    parser_advance(p); /* skips the name of the end tag */
    return body;
}

/* Parses a body with its own scope, in which filters are looked up at once. `is_function`: break
 * and continue cannot leave it. */
static struct node *parse_scope(struct parser *p, const char *end, bool is_function)
{
    const bool was_soft = p->is_soft;
    const unsigned n_loops = p->n_loops;
    p->is_soft = false;
    p->n_loops = is_function ? 0 : n_loops;
    struct node *body = parse_body_to(p, end);
    p->is_soft = was_soft;
    p->n_loops = n_loops;
    return body;
}

static void parse_if(struct parser *p, struct node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    const bool was_soft = p->is_soft;
    struct node **tail = &node->list, *at = node;
    p->is_soft = true;
    for (;;) {
        at->a = parse_tuple(p, false, NULL);
        at->body = parse_body(p, ends);
        if (!parser_is_name(p, "elif"))
            break;
        at = parser_node(p, N_IF, p->token.line);
        if (at == NULL)
            return;
        parser_append(&tail, at);
        parser_advance(p);
    }
    if (parser_skip_name(p, "else"))
        node->more = parse_body_to(p, "endif");
    else
        parser_advance(p);
    p->is_soft = was_soft;
}

static void parse_for(struct parser *p, struct node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    const bool was_soft = p->is_soft;
    p->n_fors++;
    node->a = parse_target(p, false, "in");
    if (!parser_skip_name(p, "in"))
        (void)parser_fail(p, p->token.line, "'in' is missing in 'for'");
    node->b = parse_tuple(p, false, "recursive");
    p->is_soft = false;
    if (parser_skip_name(p, "if"))
        node->c = parse_expression(p, true);
    node->is_recursive = parser_skip_name(p, "recursive");
    p->n_loops++;
    node->body = parse_body(p, ends);
    p->n_loops--;
    if (parser_skip_name(p, "else"))
        node->more = parse_body_to(p, "endfor");
    else
        parser_advance(p);
    p->n_fors--;
    p->is_soft = was_soft;
}

static void parse_set(struct parser *p, struct node *node)
{
    node->a = parse_target(p, true, NULL);
    if (parser_skip_operator(p, "=")) {
        node->b = parse_tuple(p, true, NULL);
        return;
    }
    node->kind = N_SET_BLOCK;
    node->b = parse_filters(p, NULL, false);
    node->body = parse_scope(p, "endset", false);
}

static void parse_parameters(struct parser *p, struct node *node)
{
    struct node **tail = &node->list;
    bool has_default = false;
    parser_expect_operator(p, "(");
    while (p->rc == 0 && !parser_is_operator(p, ")")) {
        if (node->list != NULL)
            parser_expect_operator(p, ",");
        struct node *parameter = parser_node(p, N_KEYWORD, p->token.line);
        if (parameter == NULL || p->token.kind != T_NAME) {
            (void)parser_fail(p, p->token.line, "the name of a parameter is missing");
            return;
        }
        parameter->symbol = parser_symbol(p, p->token.text, p->token.bytes);
        node->has_caller |= parser_is_name(p, "caller");
        parser_advance(p);
        if (parser_skip_operator(p, "=")) {
            parameter->a = parse_expression(p, true);
            has_default = true;
        } else if (has_default) {
            (void)parser_fail(p, parameter->line,
                              "a parameter without a default follows one with a default");
        }
        parser_append(&tail, parameter);
    }
    parser_expect_operator(p, ")");
}

/* Parses the body of a macro. The special names that it uses determine which arguments it
 * accepts. */
static void parse_macro_body(struct parser *p, struct node *node, const char *end)
{
    const bool before[3] = {p->uses_varargs, p->uses_kwargs, p->uses_caller};
    p->uses_varargs = p->uses_kwargs = p->uses_caller = false;
    node->body = parse_scope(p, end, true);
    node->takes_varargs = p->uses_varargs;
    node->takes_kwargs = p->uses_kwargs;
    node->takes_caller = p->uses_caller;
    p->uses_varargs |= before[0];
    p->uses_kwargs |= before[1];
    p->uses_caller |= before[2];
}

static void parse_macro(struct parser *p, struct node *node)
{
    if (p->token.kind != T_NAME) {
        (void)parser_fail(p, p->token.line, "the name of a macro is missing");
        return;
    }
    node->symbol = parser_symbol(p, p->token.text, p->token.bytes);
    parser_advance(p);
    parse_parameters(p, node);
    parse_macro_body(p, node, "endmacro");
}

static void parse_call_block(struct parser *p, struct node *node)
{
    if (parser_is_operator(p, "("))
        parse_parameters(p, node);
    node->a = parse_expression(p, true);
    if (p->rc == 0 && node->a->kind != N_CALL)
        (void)parser_fail(p, node->line, "'call' needs a call");
    parse_macro_body(p, node, "endcall");
}

static void parse_with(struct parser *p, struct node *node)
{
    struct node **tail = &node->list;
    while (p->rc == 0 && p->token.kind != T_BLOCK_END) {
        if (node->list != NULL)
            parser_expect_operator(p, ",");
        struct node *set = parser_node(p, N_SET, p->token.line);
        if (set == NULL)
            return;
        set->a = parse_target(p, false, NULL);
        parser_expect_operator(p, "=");
        set->b = parse_expression(p, true);
        parser_append(&tail, set);
    }
    node->body = parse_scope(p, "endwith", false);
}

static void parse_filter_block(struct parser *p, struct node *node)
{
    node->a = parse_filters(p, NULL, true);
    node->body = parse_scope(p, "endfilter", false);
}

static void parse_generation(struct parser *p, struct node *node)
{
    node->body = parse_scope(p, "endgeneration", true);
}

static void parse_loop_control(struct parser *p, struct node *node)
{
    if (p->n_loops == 0)
        (void)parser_fail(p, node->line, "'break' and 'continue' are only allowed in a loop");
}

static const struct {
    const char *name;
    enum node_kind kind;
    void (*parse)(struct parser *p, struct node *node); /* NULL if the statement is refused */
} statements[] = {
    {"if", N_IF, parse_if}, {"for", N_FOR, parse_for}, {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro}, {"call", N_CALL_BLOCK, parse_call_block},
    {"filter", N_FILTER_BLOCK, parse_filter_block}, {"with", N_WITH, parse_with},
    {"generation", N_GENERATION, parse_generation}, {"break", N_BREAK, parse_loop_control},
    {"continue", N_CONTINUE, parse_loop_control},
    {"include", N_DATA, NULL}, {"import", N_DATA, NULL}, {"from", N_DATA, NULL},
    {"extends", N_DATA, NULL}, {"block", N_DATA, NULL}, {"autoescape", N_DATA, NULL},
};

/* `{% print a, b %}` gives several nodes, all other statements one. */
static struct node *parse_statement(struct parser *p)
{
    const unsigned line = p->token.line;
    if (p->token.kind != T_NAME)
        return parser_fail(p, line, "the name of a tag is missing");
    if (parser_skip_name(p, "print")) {
        struct node *first = NULL, **tail = &first;
        while (p->rc == 0 && p->token.kind != T_BLOCK_END) {
            if (first != NULL)
                parser_expect_operator(p, ",");
            struct node *node = parser_node(p, N_PRINT, line);
            struct node *of = parse_expression(p, true);
            if (node != NULL)
                node->a = of;
            parser_append(&tail, node);
        }
        return first;
    }
    const size_t n = sizeof statements / sizeof statements[0];
    size_t i = 0;
    while (i < n && !parser_is_name(p, statements[i].name))
        i++;
    if (i == n)
        return parser_fail(p, line, "unknown or misplaced tag '%.*s'", (int)p->token.bytes,
                           p->token.text);
    if (statements[i].parse == NULL) {
        (void)parser_fail(p, line, "'%s' is not supported in a chat template",
                          statements[i].name);
        p->rc = FM_ERR_UNSUPPORTED;
        if (p->err != NULL)
            p->err->code = p->rc;
        return NULL;
    }
    struct node *node = parser_node(p, statements[i].kind, line);
    parser_advance(p);
    if (node != NULL)
        statements[i].parse(p, node);
    return node;
}

static bool is_end(const struct parser *p, const char *const *ends)
{
    for (size_t i = 0; ends != NULL && ends[i] != NULL; i++)
        if (parser_is_name(p, ends[i]))
            return true;
    return false;
}

static struct node *parse_data(struct parser *p)
{
    struct node *node = parser_node(p, N_DATA, p->token.line);
    struct str *s = arena_new(&p->jinja->arena, sizeof *s, p->err);
    if (node == NULL || s == NULL)
        return parser_fail(p, 0, NULL);
    *s = (struct str){.text = p->token.text, .bytes = p->token.bytes,
                      .n_chars = utf8_characters(p->token.text, p->token.bytes)};
    node->value = v_str(s);
    parser_advance(p);
    return node;
}

static struct node *parse_print(struct parser *p)
{
    struct node *node = parser_node(p, N_PRINT, p->token.line);
    parser_advance(p);
    struct node *of = parse_tuple(p, true, NULL);
    if (p->rc == 0 && p->token.kind != T_PRINT_END)
        return parser_fail(p, p->token.line, "'}}' is missing");
    parser_advance(p);
    if (node != NULL)
        node->a = of;
    return node;
}

/* Parses up to a tag of `ends`, whose name becomes the current token; NULL parses to the end. */
static struct node *parse_bodies(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, **tail = &first;
    const unsigned line = p->token.line;
    while (p->rc == 0 && p->token.kind != T_END) {
        if (p->token.kind == T_DATA) {
            parser_append(&tail, parse_data(p));
        } else if (p->token.kind == T_PRINT_BEGIN) {
            parser_append(&tail, parse_print(p));
        } else {
            parser_advance(p);
            if (is_end(p, ends))
                return first;
            struct node *node = parse_statement(p);
            expect_block_end(p);
            for (; node != NULL && p->rc == 0; node = node->next)
                parser_append(&tail, node);
        }
    }
    if (p->rc == 0 && ends != NULL)
        (void)parser_fail(p, line, "the template ends before '%s'", ends[0]);
    return first;
}

/* ---- compiling ------------------------------------------------------------------------------- */

#define TREE_BYTES ((uint64_t)256 << 20) /* about 200 bytes per byte of the source */

int jinja_compile(const char *name, const char *text, size_t bytes, struct jinja **out,
                  struct fm_error *err)
{
    *out = NULL;
    struct fm_error why = {0};
    struct jinja *jinja = mem_new(1, sizeof *jinja, "a chat template", err);
    if (jinja == NULL)
        return FM_ERR_NOMEM;
    jinja->arena.limit = TREE_BYTES;
    jinja->name = mem_strdup(name, &why);
    struct parser p = {.jinja = jinja, .err = &why};
    p.rc = jinja->name == NULL ? FM_ERR_NOMEM
                               : lexer_init(&p.lexer, &jinja->arena, jinja->name, text, bytes,
                                            &why);
    if (p.rc == 0)
        p.rc = lexer_next(&p.lexer, &p.next);
    parser_advance(&p);
    if (p.rc == 0)
        jinja->body = parse_bodies(&p, NULL);
    if (p.rc == 0)
        p.rc = scopes_analyse(jinja, &why);
    if (p.rc != 0) {
        jinja_free(jinja);
        return err_set(err, p.rc, "%s", why.text);
    }
    *out = jinja;
    return 0;
}

void jinja_free(struct jinja *jinja)
{
    if (jinja == NULL)
        return;
    arena_clear(&jinja->arena);
    mem_free(jinja->name);
    mem_free(jinja);
}
