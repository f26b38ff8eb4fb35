/* Values of a running template and operations on them.
 *
 * Everything lives in the arena of the run and is freed only with it. One thread per run. The first
 * error is kept in run->rc with its message. After that every function returns something harmless
 * (a missing value, an empty string or list), so callers only need to check rc in loops. */
#ifndef FLASHMOE_JINJA_VALUE_H
#define FLASHMOE_JINJA_VALUE_H

#include "base/arena.h"
#include "jinja/jinja.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Text with the origin of each byte: `origins`, or `origin` for all bytes if that is NULL. */
struct str {
    const char *text;
    size_t bytes, n_chars;
    const uint8_t *origins;
    uint8_t origin;
    bool is_markup; /* result of `safe` and `escape`: strings added to it are escaped */
};

enum value_kind {
    V_MISSING, V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STR, V_LIST, V_DICT, V_NAMESPACE,
    V_MACRO, V_LOOP, V_FUNCTION, V_METHOD, V_CYCLER, V_JOINER,
};

struct run;
struct value;
struct args;

struct value {
    enum value_kind kind;
    union {
        bool flag;
        int64_t i;
        double f;
        const struct str *str;
        struct list *list;
        struct dict *dict; /* also for a namespace */
        struct macro *macro;
        struct loop *loop;
        const struct function *function;
        struct method *method;
        struct cycler *cycler;
    } u;
};

enum list_kind {
    LIST_LIST, LIST_TUPLE, LIST_RANGE, LIST_ITEMS, LIST_KEYS, LIST_VALUES,
    LIST_GROUP,     /* a tuple with the names `grouper` and `list` */
    LIST_GENERATOR, /* can be iterated only once */
    LIST_REVERSED,  /* likewise */
};

struct list {
    struct value *items;
    size_t n, capacity;
    size_t n_taken;  /* for a generator */
    unsigned n_loops; /* that go over it; meanwhile it may not change */
    const char *why; /* for a generator that fails after its last element: the message */
    enum list_kind kind;
    int64_t start, stop, step; /* for a range */
};

struct dict_entry {
    struct value key, value;
    uint64_t hash;
};

/* Keeps insertion order. */
struct dict {
    struct dict_entry *entries;
    size_t n, capacity;
    uint32_t *index; /* [n_index] entry number + 1; NULL while the dict is small */
    size_t n_index;
};

struct args {
    struct value *args;
    size_t n;
    struct dict *keywords; /* NULL for none */
};

struct function {
    const char *name;
    struct value (*call)(struct run *r, const struct args *args);
};

struct method {
    struct value self;
    const char *name;
    struct value (*call)(struct run *r, struct value self, const struct args *args);
};

struct cycler { /* also a joiner, for which `position` says whether it was used */
    struct list *items;
    size_t position;
    const struct str *separator;
};

struct loop {
    struct list *items;
    size_t index;
    unsigned depth;
    struct list *last_changed;
    const struct node *recursive; /* the N_FOR if it is declared recursive */
    struct scope *scope;
};

/* A growing text buffer. */
struct sbuf {
    char *text;
    uint8_t *origins; /* NULL while all bytes have the same origin */
    size_t n, capacity;
    uint8_t origin;
};

struct run {
    const struct jinja *jinja;
    struct arena arena;
    const struct jinja_input *input;
    struct dict *variables;
    struct scope *scope;
    struct sbuf *out;
    uint64_t n_steps, max_steps, max_output;
    unsigned depth, line;
    bool is_broken, is_continued; /* a break or continue is being executed */
    struct value block_text;      /* the input of a filter block */
    struct list sink_list;        /* returned by failed allocations */
    struct dict sink_dict;
    struct str sink_str;
    int rc;
    struct fm_error *err; /* never NULL */
};

/* ---- faults and limits ----------------------------------------------------------------------- */

struct value run_fail(struct run *r, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Like run_fail with FM_ERR_ARG: the conversation exceeds one of the limits. */
void run_exceeds(struct run *r, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Counts the work of visiting `bytes` bytes or elements. Returns false when the limit is
 * exceeded. */
bool run_work(struct run *r, uint64_t bytes);
bool run_enter(struct run *r); /* enters a nesting level; false if that is too deep */
void run_leave(struct run *r);
void *run_new(struct run *r, size_t n, size_t bytes);
/* Defers an error of the template until `generator` is iterated, because a generator in Python
 * fails then and not when it is created. */
struct value run_put_off(struct run *r, struct list *generator);
const char *value_type(struct value v); /* the Python name such as "str", for messages */

/* ---- making values --------------------------------------------------------------------------- */

static inline struct value v_undefined(void) { return (struct value){.kind = V_UNDEFINED}; }
static inline struct value v_none(void) { return (struct value){.kind = V_NONE}; }
static inline struct value v_bool(bool x) { return (struct value){V_BOOL, {.flag = x}}; }
static inline struct value v_int(int64_t x) { return (struct value){V_INT, {.i = x}}; }
static inline struct value v_float(double x) { return (struct value){V_FLOAT, {.f = x}}; }
static inline struct value v_str(const struct str *s) { return (struct value){V_STR, {.str = s}}; }
static inline struct value v_list(struct list *l) { return (struct value){V_LIST, {.list = l}}; }
static inline struct value v_dict(struct dict *d) { return (struct value){V_DICT, {.dict = d}}; }

static inline bool is_str(struct value v) { return v.kind == V_STR; }
static inline bool is_intlike(struct value v) { return v.kind == V_INT || v.kind == V_BOOL; }
static inline bool is_number(struct value v) { return is_intlike(v) || v.kind == V_FLOAT; }
static inline int64_t int_of(struct value v) { return v.kind == V_BOOL ? v.u.flag : v.u.i; }
static inline double float_of(struct value v)
{
    return v.kind == V_FLOAT ? v.u.f : (double)int_of(v);
}

/* Copies text; its origin is the template. */
struct value v_text(struct run *r, const char *text);
/* Returns a part of a string, which is markup if the whole is. */
const struct str *str_part(struct run *r, const struct str *s, size_t begin, size_t end);
/* Returns the byte offset of a character, at most s->bytes. */
size_t str_offset(const struct str *s, size_t n_chars);
bool str_equal(const struct str *a, const struct str *b);
bool str_is(const struct str *s, const char *text);
int str_compare(const struct str *a, const struct str *b);
/* Returns the first occurrence at or after `from`, or SIZE_MAX. Counts the work. */
size_t str_find(struct run *r, const struct str *s, const struct str *part, size_t from);
size_t utf8_characters(const char *text, size_t bytes);

void sbuf_add(struct run *r, struct sbuf *b, const char *text, size_t bytes, uint8_t origin);
void sbuf_text(struct run *r, struct sbuf *b, const char *text);
void sbuf_part(struct run *r, struct sbuf *b, const struct str *s, size_t begin, size_t end);
void sbuf_str(struct run *r, struct sbuf *b, const struct str *s);
void sbuf_char(struct run *r, struct sbuf *b, uint32_t code_point, uint8_t origin);
void sbuf_fill(struct run *r, struct sbuf *b, const struct str *fill, size_t n);
const struct str *sbuf_take(struct run *r, struct sbuf *b);

struct list *list_new(struct run *r, enum list_kind kind);
void list_push(struct run *r, struct list *l, struct value v);
struct dict *dict_new(struct run *r);
/* Returns NULL if there is none. Fails for a key that cannot be hashed. */
struct value *dict_find(struct run *r, const struct dict *d, struct value key);
struct value *dict_find_str(struct run *r, const struct dict *d, const struct str *key);
struct value *dict_find_text(struct run *r, const struct dict *d, const char *key);
void dict_set(struct run *r, struct dict *d, struct value key, struct value value);

#ifdef __cplusplus
}
#endif
#endif
