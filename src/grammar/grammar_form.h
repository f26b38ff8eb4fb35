/* What an answer may be: a value that fits a schema, calls of tools, or either. Calls are written
 * as struct grammar_call says, one behind the other, with nothing else around them: for example
 *
 *     <tool_call>
 *     {"name": "NAME", "arguments": {...}}
 *     </tool_call>
 *
 * Names are literal, and between two parts of a call there is one blank at most. Where a tool's
 * schema cannot be enforced its arguments are any object, unless the tool is strict: then the form
 * is refused. Borrows all texts; any thread. */
#ifndef FLASHMOE_GRAMMAR_GRAMMAR_FORM_H
#define FLASHMOE_GRAMMAR_GRAMMAR_FORM_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct grammar_tool {
    const char *name;
    const char *schema; /* JSON text, of its arguments; NULL: any object */
    size_t schema_bytes;
    bool is_strict;
};

/* How a call is written: the texts around a name, which is a JSON string, and arguments, which are
 * a JSON object. Each blank may be missing. In this order, none NULL: */
struct grammar_call {
    const char *separator;        /* before each call but the first; may also end the answer */
    const char *open;             /* a tag: many vocabularies have a token for it */
    const char *open_end;
    const char *before_name;      /* up to the quote, which is part of it */
    const char *before_arguments; /* behind the closing quote */
    const char *after_arguments;
    const char *close_begin;
    const char *close;            /* a tag, or empty */
};

struct grammar_form {
    const char *schema; /* JSON text; NULL: only calls */
    size_t schema_bytes;
    const struct grammar_tool *tools; /* [n_tools] */
    size_t n_tools;
    const struct grammar_call *call; /* needed with tools */
    bool is_one_call; /* no second call */
    /* The prompt ends with `open` and `open_end`; the answer ends before `close_begin`. */
    bool is_opened;
    bool *blames_tools; /* NULL, or becomes true where opening fails for a tool's schema */
};

#ifdef __cplusplus
}
#endif
#endif
