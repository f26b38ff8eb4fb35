/* Parses expressions, with the precedence of jinja2. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jinja/run.h"

static struct node *parse_unary(struct parser *p, bool with_filter);

/* Counts one nesting level. Returns false with an error if there are too many. Undo with
 * p->depth--. */
static bool deeper(struct parser *p)
{
    if (++p->depth > JINJA_NESTING)
        (void)parser_fail(p, p->token.line, "nested more than %d levels deep",
                          JINJA_NESTING);
    return p->rc == 0;
}

/* Records that `node` is the parent of `below`: a long chain is a deep tree too. */
static void stack_on(struct parser *p, struct node *node, const struct node *below)
{
    if (node == NULL || below == NULL)
        return;
    node->height = below->height + 1;
    if (node->height > JINJA_DEPTH)
        (void)parser_fail(p, node->line, "more than %d operations in a row", JINJA_DEPTH);
}

static struct node *parse_binary(struct parser *p, const char *const *ops,
                                 const enum operation *meanings, size_t n,
                                 struct node *(*parse)(struct parser *))
{
    struct node *left = parse(p);
    while (p->rc == 0) {
        size_t i = 0;
        while (i < n && !parser_is_operator(p, ops[i]))
            i++;
        if (i == n)
            break;
        struct node *node = parser_node(p, N_BINARY, p->token.line);
        parser_advance(p);
        struct node *right = parse(p);
        if (p->rc != 0)
            return NULL;
        node->op = meanings[i];
        node->a = left;
        node->b = right;
        stack_on(p, node, left);
        left = node;
    }
    return left;
}

static struct node *parse_filtered_unary(struct parser *p)
{
    return parse_unary(p, true);
}

static struct node *parse_power(struct parser *p)
{
    static const char *const ops[] = {"**"};
    static const enum operation meanings[] = {OP_POW};
    return parse_binary(p, ops, meanings, 1, parse_filtered_unary);
}

static struct node *parse_product(struct parser *p)
{
    static const char *const ops[] = {"*", "/", "//", "%"};
    static const enum operation meanings[] = {OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD};
    return parse_binary(p, ops, meanings, 4, parse_power);
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!parser_is_operator(p, "~"))
        return first;
    struct node *node = parser_node(p, N_CONCAT, p->token.line);
    if (node == NULL || first == NULL)
        return NULL;
    struct node **tail = &node->list;
    parser_append(&tail, first);
    while (parser_skip_operator(p, "~"))
        parser_append(&tail, parse_product(p));
    return node;
}

static struct node *parse_sum(struct parser *p)
{
    static const char *const ops[] = {"+", "-"};
    static const enum operation meanings[] = {OP_ADD, OP_SUB};
    return parse_binary(p, ops, meanings, 2, parse_concat);
}

/* Consumes a comparison operator, if there is one. */
static bool take_comparison(struct parser *p, enum operation *op)
{
    static const char *const ops[] = {"==", "!=", "<", "<=", ">", ">="};
    static const enum operation meanings[] = {OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE};
    for (size_t i = 0; i < 6; i++) {
        *op = meanings[i];
        if (parser_skip_operator(p, ops[i]))
            return true;
    }
    *op = OP_IN;
    if (parser_skip_name(p, "in"))
        return true;
    *op = OP_NOT_IN;
    if (!parser_is_name(p, "not") || p->next.kind != T_NAME || p->next.bytes != 2 ||
        memcmp(p->next.text, "in", 2) != 0)
        return false;
    parser_advance(p);
    parser_advance(p);
    return true;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_sum(p);
    struct node *node = NULL, **tail = NULL;
    enum operation op;
    while (p->rc == 0 && take_comparison(p, &op)) {
        if (node == NULL) {
            node = parser_node(p, N_COMPARE, p->token.line);
            if (node == NULL)
                return NULL;
            node->a = first;
            tail = &node->list;
        }
        struct node *operand = parser_node(p, N_OPERAND, p->token.line);
        struct node *right = parse_sum(p);
        if (operand == NULL || right == NULL)
            return NULL;
        operand->op = op;
        operand->a = right;
        parser_append(&tail, operand);
    }
    return node != NULL ? node : first;
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_is_name(p, "not"))
        return parse_compare(p);
    struct node *node = parser_node(p, N_NOT, p->token.line);
    parser_advance(p);
    if (deeper(p) && node != NULL)
        node->a = parse_not(p);
    p->depth--;
    return node;
}

static struct node *parse_logic(struct parser *p, const char *word, enum node_kind kind,
                                struct node *(*parse)(struct parser *))
{
    struct node *left = parse(p);
    while (p->rc == 0 && parser_is_name(p, word)) {
        struct node *node = parser_node(p, kind, p->token.line);
        parser_advance(p);
        struct node *right = parse(p);
        if (p->rc != 0)
            return NULL;
        node->a = left;
        node->b = right;
        stack_on(p, node, left);
        left = node;
    }
    return left;
}

static struct node *parse_and(struct parser *p)
{
    return parse_logic(p, "and", N_AND, parse_not);
}

static struct node *parse_or(struct parser *p)
{
    return parse_logic(p, "or", N_OR, parse_and);
}

static struct node *parse_condition(struct parser *p)
{
    const bool was_soft = p->is_soft;
    struct node *left = parse_or(p);
    while (p->rc == 0 && parser_is_name(p, "if")) {
        struct node *node = parser_node(p, N_COND, p->token.line);
        parser_advance(p);
        p->is_soft = true;
        struct node *test = parse_or(p);
        struct node *otherwise = NULL;
        if (parser_skip_name(p, "else"))
            otherwise = deeper(p) ? parse_condition(p) : NULL, p->depth--;
        p->is_soft = was_soft;
        if (p->rc != 0)
            return NULL;
        node->a = left;
        node->b = test;
        node->c = otherwise;
        stack_on(p, node, left);
        left = node;
    }
    return left;
}

struct node *parse_expression(struct parser *p, bool with_condition)
{
    struct node *node = NULL;
    if (deeper(p))
        node = with_condition ? parse_condition(p) : parse_or(p);
    p->depth--;
    return p->rc == 0 ? node : NULL;
}

/* ---- primary expressions --------------------------------------------------------------------- */

static struct node *parse_list(struct parser *p)
{
    struct node *node = parser_node(p, N_LIST, p->token.line);
    parser_advance(p);
    if (node == NULL)
        return NULL;
    struct node **tail = &node->list;
    while (p->rc == 0 && !parser_is_operator(p, "]")) {
        if (node->list != NULL)
            parser_expect_operator(p, ",");
        if (parser_is_operator(p, "]"))
            break;
        parser_append(&tail, parse_expression(p, true));
    }
    parser_expect_operator(p, "]");
    return node;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *node = parser_node(p, N_DICT, p->token.line);
    parser_advance(p);
    if (node == NULL)
        return NULL;
    struct node **tail = &node->list;
    while (p->rc == 0 && !parser_is_operator(p, "}")) {
        if (node->list != NULL)
            parser_expect_operator(p, ",");
        if (parser_is_operator(p, "}"))
            break;
        parser_append(&tail, parse_expression(p, true));
        parser_expect_operator(p, ":");
        parser_append(&tail, parse_expression(p, true));
    }
    parser_expect_operator(p, "}");
    return node;
}

static struct node *parse_name(struct parser *p, bool with_namespace)
{
    const struct token token = p->token;
    struct node *node = parser_node(p, N_CONST, token.line);
    const bool is_true = parser_is_name(p, "true") || parser_is_name(p, "True");
    const bool is_none = parser_is_name(p, "none") || parser_is_name(p, "None");
    const bool is_false = parser_is_name(p, "false") || parser_is_name(p, "False");
    p->uses_varargs |= parser_is_name(p, "varargs");
    p->uses_kwargs |= parser_is_name(p, "kwargs");
    p->uses_caller |= parser_is_name(p, "caller");
    parser_advance(p);
    if (node == NULL || p->rc != 0)
        return NULL;
    if (is_true || is_false || is_none) {
        node->value = is_none ? v_none() : v_bool(is_true);
        return node;
    }
    node->kind = N_NAME;
    node->symbol = parser_symbol(p, token.text, token.bytes);
    if (with_namespace && parser_skip_operator(p, ".")) {
        node->kind = N_NSREF;
        if (p->token.kind != T_NAME)
            return parser_fail(p, token.line, "a name is missing after '.'");
        const struct symbol *attribute = parser_symbol(p, p->token.text, p->token.bytes);
        node->attribute = attribute != NULL ? &attribute->name : NULL;
        parser_advance(p);
    }
    return node;
}

/* Joins adjacent strings. */
static struct node *parse_string(struct parser *p)
{
    struct node *node = parser_node(p, N_CONST, p->token.line);
    if (node == NULL)
        return NULL;
    node->value = p->token.value;
    parser_advance(p);
    while (p->rc == 0 && p->token.kind == T_STRING) {
        const struct str *a = node->value.u.str, *b = p->token.value.u.str;
        struct str *both = arena_new(&p->jinja->arena, sizeof *both, p->err);
        char *text = arena_new(&p->jinja->arena, a->bytes + b->bytes + 1, p->err);
        if (both == NULL || text == NULL)
            return parser_fail(p, 0, NULL);
        memcpy(text, a->text, a->bytes);
        memcpy(text + a->bytes, b->text, b->bytes);
        *both = (struct str){.text = text, .bytes = a->bytes + b->bytes,
                             .n_chars = a->n_chars + b->n_chars};
        node->value = v_str(both);
        parser_advance(p);
    }
    return node;
}

static struct node *parse_primary(struct parser *p, bool with_namespace)
{
    if (p->rc != 0)
        return NULL;
    struct node *node = NULL;
    switch (p->token.kind) {
    case T_NAME:
        return parse_name(p, with_namespace);
    case T_STRING:
        return parse_string(p);
    case T_INT:
    case T_FLOAT:
        node = parser_node(p, N_CONST, p->token.line);
        if (node != NULL)
            node->value = p->token.value;
        parser_advance(p);
        return node;
    default:
        break;
    }
    if (parser_is_operator(p, "["))
        return parse_list(p);
    if (parser_is_operator(p, "{"))
        return parse_dict(p);
    if (!parser_skip_operator(p, "("))
        return parser_fail(p, p->token.line, p->token.kind == T_END
                                                 ? "the template ends inside a tag"
                                                 : "an expression is missing");
    if (deeper(p))
        node = parse_tuple(p, true, "(");
    p->depth--;
    parser_expect_operator(p, ")");
    return node;
}

static bool is_tuple_end(const struct parser *p, const char *end_name)
{
    return p->token.kind == T_PRINT_END || p->token.kind == T_BLOCK_END ||
           parser_is_operator(p, ")") || (end_name != NULL && parser_is_name(p, end_name));
}

/* Parses elements up to the end of the tuple; a single element stands for itself. `parse` NULL
 * parses expressions. */
static struct node *parse_elements(struct parser *p, bool is_target, bool with_condition,
                                   bool with_namespace, const char *end_name)
{
    struct node *tuple = parser_node(p, N_TUPLE, p->token.line);
    bool is_tuple = false;
    if (tuple == NULL)
        return NULL;
    struct node **tail = &tuple->list;
    while (p->rc == 0) {
        if (tuple->list != NULL)
            parser_expect_operator(p, ",");
        if (is_tuple_end(p, end_name))
            break;
        parser_append(&tail, is_target ? parse_primary(p, with_namespace)
                                       : parse_expression(p, with_condition));
        if (!parser_is_operator(p, ","))
            break;
        is_tuple = true;
    }
    if (p->rc != 0)
        return NULL;
    if (!is_tuple && tuple->list != NULL)
        return tuple->list;
    const bool has_parentheses = end_name != NULL && end_name[0] == '(';
    if (!is_tuple && !has_parentheses)
        return parser_fail(p, p->token.line, "an expression is missing");
    return tuple;
}

struct node *parse_tuple(struct parser *p, bool with_condition, const char *end_name)
{
    return parse_elements(p, false, with_condition, false, end_name);
}

/* The name `loop` cannot be assigned in a loop. */
static bool can_assign(const struct parser *p, const struct node *node)
{
    if (node->kind == N_NAME)
        return p->n_fors == 0 || !str_is(&node->symbol->name, "loop");
    if (node->kind != N_TUPLE)
        return node->kind == N_NSREF;
    for (const struct node *item = node->list; item != NULL; item = item->next)
        if (!can_assign(p, item))
            return false;
    return true;
}

struct node *parse_target(struct parser *p, bool with_namespace, const char *end_name)
{
    struct node *node = parse_elements(p, true, false, with_namespace, end_name);
    if (node != NULL && !can_assign(p, node))
        return parser_fail(p, node->line, "this cannot be the target of an assignment");
    return node;
}

/* ---- what follows a primary expression ------------------------------------------------------- */

static struct node *parse_subscribed(struct parser *p)
{
    struct node *parts[3] = {NULL};
    const unsigned line = p->token.line;
    if (!parser_is_operator(p, ":")) {
        parts[0] = parse_expression(p, true);
        if (!parser_is_operator(p, ":"))
            return parts[0];
    }
    parser_advance(p);
    for (int i = 1; i < 3 && p->rc == 0; i++) {
        if (!parser_is_operator(p, ":") && !parser_is_operator(p, "]") &&
            !parser_is_operator(p, ","))
            parts[i] = parse_expression(p, true);
        if (i == 2 || !parser_skip_operator(p, ":"))
            break;
    }
    struct node *node = parser_node(p, N_SLICE, line);
    if (node == NULL)
        return NULL;
    node->a = parts[0];
    node->b = parts[1];
    node->c = parts[2];
    return node;
}

static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *node = parser_node(p, N_ITEM, p->token.line);
    if (node == NULL)
        return NULL;
    node->a = of;
    stack_on(p, node, of);
    if (parser_skip_operator(p, ".")) {
        if (p->token.kind == T_NAME) {
            const struct symbol *attribute = parser_symbol(p, p->token.text, p->token.bytes);
            node->kind = N_ATTRIBUTE;
            node->attribute = attribute != NULL ? &attribute->name : NULL;
        } else if (p->token.kind == T_INT) {
            node->b = parser_node(p, N_CONST, p->token.line);
            if (node->b != NULL)
                node->b->value = p->token.value;
        } else {
            return parser_fail(p, p->token.line, "a name or number is missing after '.'");
        }
        parser_advance(p);
        return node;
    }
    parser_advance(p);
    struct node *tuple = parser_node(p, N_TUPLE, p->token.line);
    bool has_slice = false;
    if (tuple == NULL)
        return NULL;
    struct node **tail = &tuple->list;
    while (p->rc == 0 && !parser_is_operator(p, "]")) {
        if (tuple->list != NULL)
            parser_expect_operator(p, ",");
        struct node *part = parse_subscribed(p);
        has_slice = has_slice || (part != NULL && part->kind == N_SLICE);
        parser_append(&tail, part);
    }
    parser_expect_operator(p, "]");
    if (has_slice && p->rc == 0 && tuple->list->next != NULL)
        return parser_fail(p, node->line, "a slice cannot be combined with other subscripts");
    node->b = tuple->list != NULL && tuple->list->next == NULL ? tuple->list : tuple;
    return node;
}

/* Parses the arguments of a call into node->list, more, b and c. */
static void parse_arguments(struct parser *p, struct node *node)
{
    struct node **tail = &node->list, **more = &node->more;
    const unsigned line = p->token.line;
    bool is_first = true, is_bad = false;
    parser_expect_operator(p, "(");
    while (p->rc == 0 && !parser_is_operator(p, ")")) {
        if (!is_first) {
            parser_expect_operator(p, ",");
            if (parser_is_operator(p, ")"))
                break;
        }
        is_first = false;
        if (parser_skip_operator(p, "*")) {
            is_bad |= node->b != NULL || node->c != NULL;
            node->b = parse_expression(p, true);
        } else if (parser_skip_operator(p, "**")) {
            is_bad |= node->c != NULL;
            node->c = parse_expression(p, true);
        } else if (p->token.kind == T_NAME && p->next.kind == T_OPERATOR &&
                   strcmp(p->next.text, "=") == 0) {
            struct node *keyword = parser_node(p, N_KEYWORD, p->token.line);
            const struct symbol *name = parser_symbol(p, p->token.text, p->token.bytes);
            is_bad |= node->c != NULL;
            parser_advance(p);
            parser_advance(p);
            struct node *value = parse_expression(p, true);
            if (keyword == NULL || name == NULL || value == NULL)
                return;
            keyword->attribute = &name->name;
            keyword->a = value;
            parser_append(&more, keyword);
        } else {
            is_bad |= node->b != NULL || node->c != NULL || node->more != NULL;
            parser_append(&tail, parse_expression(p, true));
        }
    }
    parser_expect_operator(p, ")");
    if (is_bad)
        (void)parser_fail(p, line, "the arguments of a call are in the wrong order");
}

static struct node *parse_call(struct parser *p, struct node *of)
{
    struct node *node = parser_node(p, N_CALL, p->token.line);
    if (node == NULL)
        return NULL;
    node->a = of;
    stack_on(p, node, of);
    parse_arguments(p, node);
    return node;
}

static struct node *parse_postfix(struct parser *p, struct node *node)
{
    while (p->rc == 0) {
        if (parser_is_operator(p, ".") || parser_is_operator(p, "["))
            node = parse_subscript(p, node);
        else if (parser_is_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

/* Parses the name of a filter or test, including dots, into node->attribute. */
static void parse_dotted(struct parser *p, struct node *node)
{
    const struct symbol *name = NULL;
    char text[256];
    size_t n = 0;
    do {
        if (p->token.kind != T_NAME || n + p->token.bytes + 2 > sizeof text) {
            (void)parser_fail(p, p->token.line, "the name of a filter or test is missing");
            return;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.*s", n > 0 ? "." : "",
                              (int)p->token.bytes, p->token.text);
        parser_advance(p);
    } while (p->rc == 0 && parser_skip_operator(p, "."));
    name = parser_symbol(p, text, n);
    node->attribute = name != NULL ? &name->name : NULL;
}

struct node *parse_filters(struct parser *p, struct node *input, bool is_first_inline)
{
    while (p->rc == 0 && (is_first_inline || parser_skip_operator(p, "|"))) {
        struct node *node = parser_node(p, N_FILTER, p->token.line);
        if (node == NULL)
            return NULL;
        is_first_inline = false;
        node->a = input;
        stack_on(p, node, input);
        parse_dotted(p, node);
        if (parser_is_operator(p, "("))
            parse_arguments(p, node);
        if (p->rc != 0)
            return NULL;
        node->entry = filter_find(node->attribute);
        if (node->entry == NULL && !p->is_soft)
            return parser_fail(p, node->line, "there is no filter '%.*s'",
                               (int)node->attribute->bytes, node->attribute->text);
        input = node;
    }
    return input;
}

static struct node *parse_test(struct parser *p, struct node *of)
{
    struct node *node = parser_node(p, N_TEST, p->token.line);
    parser_advance(p);
    const bool is_negated = parser_skip_name(p, "not");
    if (node == NULL)
        return NULL;
    node->a = of;
    stack_on(p, node, of);
    parse_dotted(p, node);
    if (parser_is_operator(p, "(")) {
        parse_arguments(p, node);
    } else if (p->token.kind == T_NAME || p->token.kind == T_STRING || p->token.kind == T_INT ||
               p->token.kind == T_FLOAT || parser_is_operator(p, "[") ||
               parser_is_operator(p, "{")) {
        if (parser_is_name(p, "is"))
            return parser_fail(p, p->token.line, "tests cannot follow each other");
        if (!parser_is_name(p, "else") && !parser_is_name(p, "or") && !parser_is_name(p, "and"))
            node->list = parse_postfix(p, parse_primary(p, false));
    }
    if (p->rc != 0)
        return NULL;
    node->entry = test_find(node->attribute);
    if (node->entry == NULL && !p->is_soft)
        return parser_fail(p, node->line, "there is no test '%.*s'", (int)node->attribute->bytes,
                           node->attribute->text);
    if (!is_negated)
        return node;
    struct node *negation = parser_node(p, N_NOT, node->line);
    if (negation != NULL)
        negation->a = node;
    stack_on(p, negation, node);
    return negation;
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    struct node *node = NULL;
    if (!deeper(p)) {
        p->depth--;
        return NULL;
    }
    if (parser_is_operator(p, "-") || parser_is_operator(p, "+")) {
        node = parser_node(p, parser_is_operator(p, "-") ? N_NEGATIVE : N_POSITIVE,
                           p->token.line);
        parser_advance(p);
        struct node *of = parse_unary(p, false);
        if (node != NULL)
            node->a = of;
    } else {
        node = parse_primary(p, false);
    }
    node = parse_postfix(p, node);
    while (with_filter && p->rc == 0) {
        if (parser_is_operator(p, "|"))
            node = parse_filters(p, node, false);
        else if (parser_is_name(p, "is"))
            node = parse_test(p, node);
        else if (parser_is_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    p->depth--;
    return p->rc == 0 ? node : NULL;
}
