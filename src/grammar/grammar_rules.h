/* What a schema is compiled to: rules for values, whose scalars are automata and whose objects and
 * arrays refer to other values by number, so that recursion costs nothing.
 *
 * A program lives in its arena and is immutable once compiled; any number of threads may use it. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_RULES_H
#define FLASHMOE_GRAMMAR_GRAMMAR_RULES_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RULE_NONE UINT32_MAX
#define GRAMMAR_DEPTH 100u    /* objects and arrays within each other in an answer */
#define GRAMMAR_BLANKS 64u    /* blanks behind a newline */
#define GRAMMAR_PROPERTIES 1024u

enum rule_kind {
    RULE_RAW,    /* null, true, false and numbers */
    RULE_STRING,
    RULE_ARRAY,
    RULE_OBJECT
};

/* Properties come in this order; those that are not required may be left out. */
struct rule_property {
    const char *name; /* UTF-8 */
    size_t name_bytes;
    const char *key; /* as it is written, from behind the first quote to the last one */
    uint32_t key_bytes;
    uint32_t value;
    bool is_required;
};

/* Properties with other names, which come last and no name twice. */
struct rule_extra {
    const struct dfa *names; /* NULL: any */
    uint32_t value;
    /* Somewhere only so many names are left: they are of plain ASCII then, and counted. */
    bool is_counted;
};

struct rule {
    enum rule_kind kind;
    uint32_t height;       /* objects and arrays in the flattest value; RULE_NONE: there is none */
    const struct dfa *dfa; /* of a raw value or a string; NULL: any string */
    uint32_t min, max;     /* characters, items, properties; max RULE_NONE: no limit */

    const uint32_t *items; /* [n_items] values of the first items */
    uint32_t n_items;
    uint32_t rest; /* value of all others; RULE_NONE: there are none */

    struct rule_property *properties; /* [n_properties] */
    uint32_t *by_key;                 /* [n_properties] sorted by key */
    uint32_t *n_required;             /* [n_properties + 1] from there on */
    uint32_t *next_required;          /* [n_properties + 1]; n_properties: none */
    uint32_t n_properties;
    struct rule_extra *extras;
    uint32_t n_extras;
    uint64_t n_extra_names; /* DFA_MANY: no end */
    bool has_counts;        /* properties are counted */
    bool is_tight;          /* one blank at most between two parts of it */
};

/* What may stand in one place: any of its rules. */
struct rule_value {
    const uint32_t *rules; /* [n] */
    uint32_t n;
    uint32_t height;
};

struct grammar_program {
    struct arena arena;
    struct rule *rules;
    size_t n_rules;
    struct rule_value *values;
    size_t n_values;
    uint32_t highest; /* of all heights */
    uint32_t answer;  /* the value that is the whole answer; RULE_NONE: it has to be a call */
    /* The rule whose properties are the tools, each with its arguments; RULE_NONE: no calls. */
    uint32_t calls;
    /* A call around its name and its arguments; each blank may be missing. */
    struct {
        char *lead, *arguments, *tail;
        uint32_t open_at, body_at;   /* in the lead: behind the separator, behind the opening */
        uint32_t body_end, close_at; /* in the tail: before the closing, before its tag */
        char *open, *close; /* tags; empty: none */
    } call;
    bool is_opened;   /* the prompt ends with what opens the only call */
    bool is_one_call;
};

#ifdef __cplusplus
}
#endif
#endif
