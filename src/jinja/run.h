/* Internal interface of the files that render a template. Everything belongs to one run, which one
 * thread owns. Errors are kept in run->rc (value.h). */
#ifndef FLASHMOE_JINJA_RUN_H
#define FLASHMOE_JINJA_RUN_H

#include "jinja/tree.h"

#ifdef __cplusplus
extern "C" {
#endif

struct binding {
    const struct symbol *symbol;
    struct value value;
};

struct scope {
    struct scope *parent;
    struct binding *bindings;
    size_t n, capacity;
};

struct macro {
    const struct node *node; /* N_MACRO or N_CALL_BLOCK */
    struct scope *scope;     /* where it was defined */
};

/* ---- values (value.c, compare.c, print.c, json.c) -------------------------------------------- */

bool value_is_true(struct run *r, struct value v);
bool value_equal(struct run *r, struct value a, struct value b);
bool value_same(struct value a, struct value b); /* Python's `is` */
/* Returns a value below, at or above 0. Fails if the values have no order. */
int value_compare(struct run *r, struct value a, struct value b, const char *op);
bool value_in(struct run *r, struct value item, struct value container);
bool value_hash(struct run *r, struct value v, uint64_t *hash); /* false after an error */
/* Python's str() and repr(). */
const struct str *value_str(struct run *r, struct value v);
void value_print(struct run *r, struct sbuf *b, struct value v, bool is_repr);
#define FLOAT_BYTES 64
void float_repr(double x, char out[FLOAT_BYTES]);
struct value value_json(struct run *r, struct value v, const struct args *args);
/* Returns the elements of an iterable; exhausts a generator. Borrowed. */
struct list *value_items(struct run *r, struct value v);
bool value_is_iterable(struct value v);
/* Sets *n to Python's len(). Returns false for a value without a length, such as a generator. */
bool value_length(struct run *r, struct value v, int64_t *n);
const struct str *str_escape(struct run *r, const struct str *s);
/* Escapes a value as HTML, unless it is already markup. */
const struct str *value_escape(struct run *r, struct value v);
struct value float_of_str(struct run *r, const struct str *s); /* missing if it is not a number */
struct value int_of_str(struct run *r, const struct str *s, int64_t base);
/* Sorts `l` by keys [l->n], stably as Python does. */
void list_sort(struct run *r, struct list *l, struct value *keys, bool is_reverse);

struct value value_from_json(struct run *r, const json_t *json, enum jinja_origin origin);
/* Converts the messages of a conversation; every part gets its origin. */
struct value value_from_messages(struct run *r, const json_t *messages);

/* ---- evaluation (eval.c, operate.c, attribute.c, statements.c) ------------------------------- */

struct value eval(struct run *r, const struct node *node);
struct value eval_operation(struct run *r, enum operation op, struct value a, struct value b);
struct value str_format_percent(struct run *r, const struct str *format, struct value v);
struct value str_format_braces(struct run *r, const struct str *format, const struct args *args);
struct value get_attribute(struct run *r, struct value v, const struct str *name);
struct value get_item(struct run *r, struct value v, struct value key);
struct value get_slice(struct run *r, struct value v, struct value start, struct value stop,
                       struct value step);
struct value call_value(struct run *r, struct value callee, const struct args *args);
struct value call_macro(struct run *r, const struct macro *macro, const struct args *args);
struct value call_loop(struct run *r, struct loop *loop, const struct args *args);
/* Looks up a path such as `a.b.0`, as filters accept it. */
struct value get_path(struct run *r, struct value v, struct value path);
struct value scope_get(struct run *r, const struct symbol *symbol);
void scope_set(struct run *r, struct scope *scope, const struct symbol *symbol, struct value v);
void run_body(struct run *r, const struct node *body);

/* ---- what names stand for -------------------------------------------------------------------- */

typedef struct value filter_call(struct run *r, struct value input, const struct args *args);
struct filter {
    const char *name;
    filter_call *call;
};
const struct filter *filter_find(const struct str *name);
const struct filter *test_find(const struct str *name);
const struct function *global_find(const struct str *name);
extern const struct filter filters_text[], filters_lists[], filters_numbers[];

/* Returns NULL if a string, list or dict has no such method. */
const struct method *str_method(const struct str *name);
const struct method *list_method(const struct list *list, const struct str *name);
const struct method *dict_method(const struct str *name);
/* Returns whether the method changes its object. Such methods are refused, because the sandbox is
 * immutable; only append and pop of a list work, for templates of Kimi-K2. */
bool is_mutator(struct value v, const struct str *name);
const struct str *str_case(struct run *r, const struct str *s, int how); /* 'u' 'l' 't' 'c' 's' */
const struct str *str_strip(struct run *r, const struct str *s, struct value chars, int sides);
const struct str *str_replace(struct run *r, const struct str *s, const struct str *old,
                              const struct str *with, int64_t count);
struct list *str_lines(struct run *r, const struct str *s, bool keeps_ends);

/* Binds arguments to the names in `signature`, separated by blanks: "old new count?". A name with
 * '?' is optional and missing if not given; a leading '/' forbids keyword arguments. Returns false
 * after an error. */
bool args_bind(struct run *r, const char *what, const struct args *args, const char *signature,
               struct value out[]);
/* Read arguments that must be a string or an integer; a missing one gives the fallback. */
const struct str *arg_str(struct run *r, const char *what, struct value v);
int64_t arg_int(struct run *r, const char *what, struct value v, int64_t fallback);

#ifdef __cplusplus
}
#endif
#endif
