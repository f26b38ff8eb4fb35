/* The compiled form of a schema: rules for values. Scalars are automata; objects and arrays refer
 * to other values by number, so recursive schemas need no special case.
 *
 * A program lives in its arena and is immutable once compiled. Any number of threads may use it. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_RULES_H
#define FLASHMOE_GRAMMAR_GRAMMAR_RULES_H

#include "grammar/dfa.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RULE_NONE UINT32_MAX
#define GRAMMAR_DEPTH 100u    /* maximum nesting of objects and arrays in an answer */
#define GRAMMAR_BLANKS 64u    /* maximum blanks after a newline */
#define GRAMMAR_PROPERTIES 1024u

enum rule_kind {
    RULE_RAW,    /* null, true, false and numbers */
    RULE_STRING,
    RULE_ARRAY,
    RULE_OBJECT
};

/* Properties come in this order; optional ones may be left out. */
struct rule_property {
    const char *name; /* UTF-8 */
    size_t name_bytes;
    const char *key; /* as written in JSON, after the opening quote up to and including the closing
                      * quote; of a tool, as written in a call */
    uint32_t key_bytes;
    uint32_t value;
    bool is_required;
};

/* Properties with other names. They come last, and no name may occur twice. */
struct rule_extra {
    const struct dfa *names; /* NULL for any name */
    uint32_t value;
    /* Some place has only finitely many names left; then names are plain ASCII and counted. */
    bool is_counted;
};

struct rule {
    enum rule_kind kind;
    uint32_t height;       /* nesting depth of the flattest value; RULE_NONE if there is no value */
    const struct dfa *dfa; /* for a raw value or a string; NULL for any string */
    uint32_t min, max;     /* number of characters, items or properties; max RULE_NONE for no
                            * limit */

    const uint32_t *items; /* [n_items] values of the first items */
    uint32_t n_items;
    uint32_t rest; /* value of all further items; RULE_NONE if none are allowed */

    struct rule_property *properties; /* [n_properties] */
    uint32_t *by_key;                 /* [n_properties] sorted by key */
    uint32_t *n_required;             /* [n_properties + 1] required properties from this index
                                       * on */
    uint32_t *next_required;          /* [n_properties + 1] index of the next required one;
                                       * n_properties if none */
    uint32_t n_properties;
    struct rule_extra *extras;
    uint32_t n_extras;
    uint64_t n_extra_names; /* DFA_MANY if unbounded */
    bool has_counts;        /* properties are counted against min and max */
    bool is_tight;          /* at most one blank between two of its parts */
};

/* What may stand at one place: any of its rules. */
struct rule_value {
    const uint32_t *rules; /* [n] */
    uint32_t n;
    uint32_t height;
};

/* A tag in one of the texts around a call. Many vocabularies have a token for it. */
struct call_tag {
    const char *in; /* the text */
    uint32_t at;
    char *text;
    bool is_token; /* the vocabulary has a control token for it, and its characters are no tag */
};

struct grammar_program {
    struct arena arena;
    struct rule *rules;
    size_t n_rules;
    struct rule_value *values;
    size_t n_values;
    uint32_t highest; /* maximum of all heights */
    uint32_t answer;  /* the value that is the whole answer; RULE_NONE if the answer must be a
                       * call */
    /* The rule whose properties are the tools with their arguments; RULE_NONE for no calls. */
    uint32_t calls;
    /* The texts around a call's name and arguments; each blank may be missing. */
    struct {
        char *lead, *arguments, *tail;
        uint32_t open_at, body_at; /* offsets in the lead: after the separator, after the opening
                                    * tag */
        uint32_t body_end;         /* offset in the tail: before the closing */
        struct call_tag *tags;     /* [n_tags] tags in the texts: <...> or [...] */
        uint32_t n_tags;
        bool is_bare; /* the key of a tool ends with the first byte of `arguments`, not a quote */
    } call;
    bool is_opened;   /* the prompt ends with the opening of the only call */
    bool is_one_call;
};

#ifdef __cplusplus
}
#endif
#endif
