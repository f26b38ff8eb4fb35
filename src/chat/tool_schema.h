/* Determines which types a tool's parameter may have from the JSON schema of the tool. The tools
 * are the array of a request: [{"type": "function", "function": {"name", "parameters"}}], or its
 * inner objects alone, or with "input_schema" instead of "parameters". They are borrowed. Any
 * thread; nothing allocates or fails. */
#ifndef FLASHMOE_CHAT_TOOL_SCHEMA_H
#define FLASHMOE_CHAT_TOOL_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TOOL_STRING = 1,
    TOOL_NUMBER = 2, /* including integers */
    TOOL_BOOLEAN = 4,
    TOOL_ARRAY = 8,
    TOOL_OBJECT = 16,
    TOOL_NULL = 32,
};

/* Returns true if one of the tools has that name. */
bool tool_schema_has(const json_t *tools, const char *function);

/* Returns the types above that the parameter's schema allows: its "type" or list of types; the
 * union of anyOf and oneOf; the intersection of allOf; the types of the values of enum and const.
 * Follows local references. 0 means unknown, also if `tools` is NULL. */
unsigned tool_schema_types(const json_t *tools, const char *function, const char *parameter);

#ifdef __cplusplus
}
#endif
#endif
