/* The syntax tree of a template and the lexer and parser that build it. Everything lives in the
 * template's arena. One thread while compiling. A function that fails has written the message;
 * nothing is undone. */
#ifndef FLASHMOE_JINJA_TREE_H
#define FLASHMOE_JINJA_TREE_H

#include "jinja/value.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A name in the source; equal names share one symbol. */
struct symbol {
    struct str name;
    struct symbol *next;
};

enum token_kind {
    T_END, T_DATA, T_PRINT_BEGIN, T_PRINT_END, T_BLOCK_BEGIN, T_BLOCK_END,
    T_NAME, T_STRING, T_INT, T_FLOAT, T_OPERATOR,
};

struct token {
    enum token_kind kind;
    unsigned line;
    const char *text; /* in the source; one or two characters for an operator */
    size_t bytes;
    struct value value; /* T_STRING, T_INT, T_FLOAT */
};

enum node_kind {
    /* expressions */
    N_CONST, N_NAME, N_NSREF, N_TUPLE, N_LIST, N_DICT, N_COND, N_OR, N_AND, N_NOT, N_COMPARE,
    N_OPERAND, N_BINARY, N_CONCAT, N_NEGATIVE, N_POSITIVE, N_ATTRIBUTE, N_ITEM, N_SLICE, N_CALL,
    N_FILTER, N_TEST, N_KEYWORD,
    /* statements */
    N_DATA, N_PRINT, N_IF, N_FOR, N_SET, N_SET_BLOCK, N_MACRO, N_CALL_BLOCK, N_FILTER_BLOCK,
    N_WITH, N_BREAK, N_CONTINUE, N_GENERATION,
};

enum operation {
    OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN,
};

/* What a field means depends on the kind:
 *   N_CONST, N_DATA  value
 *   N_NAME           symbol
 *   N_NSREF          symbol, attribute
 *   N_TUPLE, N_LIST, N_CONCAT, N_DICT (keys and values in turn)   list
 *   N_COND           a if b else c (may be NULL)
 *   N_COMPARE        a, list of N_OPERAND (op, a)
 *   N_BINARY         a op b
 *   N_ATTRIBUTE      a.attribute
 *   N_ITEM           a[b]; b may be N_SLICE (a, b, c, each may be NULL)
 *   N_CALL, N_FILTER, N_TEST   a (NULL: the text of a block), attribute, list (arguments), more
 *                    (N_KEYWORD: attribute, a), b (*args), c (**kwargs)
 *   N_PRINT          a
 *   N_IF             a, body, list (N_IF: the elifs), more (else)
 *   N_FOR            a (target), b (iterable), c (condition), body, more (else)
 *   N_SET, N_WITH    a = b; of N_WITH: list of N_SET, body
 *   N_SET_BLOCK      a (target), b (filter), body
 *   N_MACRO          symbol, list (parameters: N_KEYWORD symbol, a), body
 *   N_CALL_BLOCK     a (N_CALL), list (parameters), body
 *   N_FILTER_BLOCK   a (filter), body
 *   N_GENERATION     body */
struct node {
    enum node_kind kind;
    enum operation op;
    unsigned line;
    unsigned height; /* height of the chain of operators, subscripts and filters that ends here */
    bool takes_varargs, takes_kwargs, takes_caller, has_caller; /* N_MACRO, N_CALL_BLOCK */
    bool is_recursive;                                         /* N_FOR */
    struct value value;
    struct symbol *symbol;
    const struct str *attribute;
    const void *entry; /* the filter or test; NULL if there is none of that name */
    struct node *a, *b, *c, *list, *more, *body;
    struct node *next; /* next in its list */
    /* Names that this scope (N_FOR, N_MACRO, ...) sets before it reads them. They are undefined
     * until then, even if a variable has the name. */
    struct symbol **hidden;
    size_t n_hidden;
};

struct jinja {
    struct arena arena;
    char *name;
    struct node *body;
    struct symbol **hidden; /* of the outermost scope */
    size_t n_hidden;
    struct symbol *symbols;
    size_t n_symbols;
};

struct lexer {
    struct arena *arena;
    const char *name, *text;
    size_t bytes, at;
    unsigned line;
    enum { LEX_ROOT, LEX_BLOCK, LEX_PRINT } state;
    bool is_line_start;
    char open[JINJA_NESTING + 1]; /* open brackets */
    size_t n_open;
    struct fm_error *err;
};

struct parser {
    struct lexer lexer;
    struct jinja *jinja;
    struct token token, next;
    unsigned depth;
    bool is_soft; /* an unknown filter is only an error when it is used */
    /* Whether the current body uses these names. */
    bool uses_varargs, uses_kwargs, uses_caller;
    unsigned n_loops; /* loops that break may leave */
    unsigned n_fors;  /* enclosing loops, also outside a macro */
    int rc;
    struct fm_error *err;
};

int lexer_init(struct lexer *lexer, struct arena *arena, const char *name, const char *text,
               size_t bytes, struct fm_error *err);
int lexer_next(struct lexer *lexer, struct token *token);
int lexer_fail(const struct lexer *lexer, unsigned line, const char *fmt, ...) ERR_PRINTF(3, 4);

/* The parser. After an error (rc) every function returns NULL and does nothing. */
void parser_advance(struct parser *p);
struct node *parser_fail(struct parser *p, unsigned line, const char *fmt, ...) ERR_PRINTF(3, 4);
struct node *parser_node(struct parser *p, enum node_kind kind, unsigned line);
struct symbol *parser_symbol(struct parser *p, const char *text, size_t bytes);
bool parser_is_name(const struct parser *p, const char *name);
bool parser_is_operator(const struct parser *p, const char *op);
bool parser_skip_name(struct parser *p, const char *name);
bool parser_skip_operator(struct parser *p, const char *op);
void parser_expect_operator(struct parser *p, const char *op);
void parser_append(struct node ***tail, struct node *node);

struct node *parse_expression(struct parser *p, bool with_condition);
struct node *parse_tuple(struct parser *p, bool with_condition, const char *end_name);
struct node *parse_target(struct parser *p, bool with_namespace, const char *end_name);
struct node *parse_filters(struct parser *p, struct node *input, bool is_first_inline);

/* Computes the hidden names of every scope. */
int scopes_analyse(struct jinja *jinja, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
