#include "chat/tool_schema.h"

#include <stdlib.h>
#include <string.h>

#include "text/json_pointer.h"

/* Maximum nesting of schemas including references, so that a schema that refers to itself ends. */
#define SCHEMA_DEPTH 16
/* Maximum steps per call; a schema that branches at every level would otherwise take exponential
 * time. */
#define SCHEMA_STEPS 4096

struct question {
    const json_t *root; /* the target of "#" */
    unsigned n_steps;
};

static unsigned named_type(const char *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {
        {"string", TOOL_STRING}, {"number", TOOL_NUMBER}, {"integer", TOOL_NUMBER},
        {"boolean", TOOL_BOOLEAN}, {"array", TOOL_ARRAY}, {"object", TOOL_OBJECT},
        {"null", TOOL_NULL},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(name, types[i].name) == 0)
            return types[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        return TOOL_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return TOOL_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TOOL_BOOLEAN;
    case JSON_ARRAY:
        return TOOL_ARRAY;
    case JSON_OBJECT:
        return TOOL_OBJECT;
    default:
        return TOOL_NULL;
    }
}

static unsigned types_of_values(const json_t *list)
{
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= type_of_value(json_array_get(list, i));
    return types;
}

/* Returns the target of "#/$defs/Place", or NULL. */
static const json_t *follow(const json_t *root, const json_t *reference)
{
    struct json_pointer p;
    const json_t *at = json_pointer_open(&p, json_string_value(reference),
                                         json_string_length(reference)) ? root : NULL;
    while (at != NULL && json_pointer_next(&p))
        at = json_is_array(at) && p.part[0] >= '0' && p.part[0] <= '9'
                 ? json_array_get(at, strtoul(p.part, NULL, 10)) : json_object_get(at, p.part);
    return at;
}

static unsigned types_of(struct question *q, const json_t *schema, unsigned depth);

static unsigned types_of_any(struct question *q, const json_t *list, unsigned depth)
{
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        types |= types_of(q, json_array_get(list, i), depth);
    return types;
}

static unsigned types_of_all(struct question *q, const json_t *list, unsigned depth)
{
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const unsigned more = types_of(q, json_array_get(list, i), depth);
        types = types == 0 || more == 0 ? types | more : types & more;
    }
    return types;
}

static unsigned types_of(struct question *q, const json_t *schema, unsigned depth)
{
    if (!json_is_object(schema) || depth == SCHEMA_DEPTH || ++q->n_steps > SCHEMA_STEPS)
        return 0;
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type))
        return named_type(json_string_value(type));
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        const json_t *each = json_array_get(type, i);
        types |= json_is_string(each) ? named_type(json_string_value(each)) : 0;
    }
    if (types == 0)
        types = types_of_any(q, json_object_get(schema, "anyOf"), depth + 1);
    if (types == 0)
        types = types_of_any(q, json_object_get(schema, "oneOf"), depth + 1);
    if (types == 0)
        types = types_of_all(q, json_object_get(schema, "allOf"), depth + 1);
    const json_t *values = json_object_get(schema, "enum");
    if (types == 0)
        types = types_of_values(values);
    const json_t *only = json_object_get(schema, "const");
    if (types == 0 && only != NULL)
        types = type_of_value(only);
    const json_t *reference = json_object_get(schema, "$ref");
    if (types == 0 && json_is_string(reference))
        types = types_of(q, follow(q->root, reference), depth + 1);
    return types;
}

/* Returns the object with "name" and the schema. */
static const json_t *find_tool(const json_t *tools, const char *function)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *inner = json_object_get(tool, "function");
        tool = json_is_object(inner) ? inner : tool;
        const json_t *name = json_object_get(tool, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), function) == 0)
            return tool;
    }
    return NULL;
}

bool tool_schema_has(const json_t *tools, const char *function)
{
    return find_tool(tools, function) != NULL;
}

unsigned tool_schema_types(const json_t *tools, const char *function, const char *parameter)
{
    const json_t *tool = find_tool(tools, function);
    const json_t *schema = json_object_get(tool, "parameters");
    if (schema == NULL)
        schema = json_object_get(tool, "input_schema");
    struct question q = {.root = schema};
    return types_of(&q, json_object_get(json_object_get(schema, "properties"), parameter), 0);
}
