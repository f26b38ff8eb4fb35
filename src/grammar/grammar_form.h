/* Describes what an answer may be: a value that fits a schema, tool calls, or either. Calls are
 * written as struct grammar_call says, one after the other, with nothing else around them. Example:
 *
 *     <tool_call>
 *     {"name": "NAME", "arguments": {...}}
 *     </tool_call>
 *
 * Names are literal. Between two parts of a call there is at most one blank. If a tool's schema
 * cannot be enforced, its arguments may be any object; if the tool is strict, the form is refused.
 * The caller owns all texts. Any thread. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_FORM_H
#define FLASHMOE_GRAMMAR_GRAMMAR_FORM_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct grammar_tool {
    const char *name;
    const char *schema; /* JSON text of the schema of its arguments; NULL accepts any object */
    size_t schema_bytes;
    bool is_strict;
};

/* The texts around a call's name, which is a JSON string unless it is bare, and its arguments,
 * which are a JSON object. Each blank may be missing. They appear in this order; only `middle` may
 * be NULL. */
struct grammar_call {
    const char *separator;        /* before each call but the first; may also end the answer */
    const char *open;             /* a tag: many vocabularies have a token for it */
    const char *open_end;
    const char *before_name;      /* up to and including the opening quote */
    /* The name has no quotes and no escapes. It ends before the text that follows, which does not
     * begin with a blank; a name with the first byte of that text is refused. */
    bool is_bare;
    const char *middle;           /* a tag after the closing quote; NULL: none */
    const char *before_arguments;
    const char *after_arguments;
    const char *close_begin;
    const char *close;            /* a tag, or empty */
};

struct grammar_form {
    const char *schema; /* JSON text; NULL if only calls are allowed */
    size_t schema_bytes;
    const struct grammar_tool *tools; /* [n_tools] */
    size_t n_tools;
    const struct grammar_call *call; /* required if there are tools */
    bool is_one_call; /* at most one call */
    /* The prompt already ends with `open` and `open_end`, and the answer ends before
     * `close_begin`. */
    bool is_opened;
    bool *blames_tools; /* NULL, or set to true when opening fails because of a tool's schema */
};

#ifdef __cplusplus
}
#endif
#endif
