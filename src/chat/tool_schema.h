/* Which types a tool's parameter may have, by the JSON schema of the tool. The tools are the array
 * of a request: [{"type": "function", "function": {"name", "parameters"}}], or its members without
 * that frame, or with "input_schema" in place of "parameters". They are borrowed. Any thread;
 * nothing allocates or fails. */
#ifndef FLASHMOE_CHAT_TOOL_SCHEMA_H
#define FLASHMOE_CHAT_TOOL_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TOOL_STRING = 1,
    TOOL_NUMBER = 2, /* integers too */
    TOOL_BOOLEAN = 4,
    TOOL_ARRAY = 8,
    TOOL_OBJECT = 16,
    TOOL_NULL = 32,
};

/* True when one of the tools has that name. */
bool tool_schema_has(const json_t *tools, const char *function);

/* The types above that the schema of the parameter allows: its "type" or list of types; all of
 * anyOf and oneOf; what is common in allOf; the types of the values of enum and const; local
 * references are followed. 0: nothing is known, also when `tools` is NULL. */
unsigned tool_schema_types(const json_t *tools, const char *function, const char *parameter);

#ifdef __cplusplus
}
#endif
#endif
