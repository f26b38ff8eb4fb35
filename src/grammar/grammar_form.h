/* What an answer may be: a value that fits a schema, calls of tools, or either. Calls are written
 *
 *     <tool_call>
 *     {"name": "NAME", "arguments": {...}}
 *     </tool_call>
 *
 * one below the other, with nothing else around them. Names are literal, and between two parts of a
 * call there is one blank at most. Where a tool's schema cannot be enforced its arguments are any
 * object, unless the tool is strict: then the form is refused. Borrows all texts; any thread. */
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

struct grammar_form {
    const char *schema; /* JSON text; NULL: only calls */
    size_t schema_bytes;
    const struct grammar_tool *tools; /* [n_tools] */
    size_t n_tools;
    bool is_one_call; /* no second call */
    /* The prompt ends with the first line above, and the answer is the second one alone. */
    bool is_opened;
    bool *blames_tools; /* NULL, or becomes true where opening fails for a tool's schema */
};

#ifdef __cplusplus
}
#endif
#endif
