/* Checks keywords: which are supported, what type they must have, and which are refused. */
#include <string.h>

#include "grammar/decimal.h"
#include "grammar/schema_internal.h"

#define CIRCLE_DEPTH 200u /* maximum nesting of schemas that apply to one value */

enum expects { NOTE, SCHEMA, SCHEMAS, SCHEMA_MAP, COUNT, NUMBER, TEXT, FLAG, NAMES, VALUES,
               ANYTHING, TYPES, ITEMS };

static const struct keyword {
    const char *name;
    enum expects expects;
} keywords[] = {
    {"$anchor", NOTE}, {"$comment", NOTE}, {"$defs", NOTE}, {"$ref", TEXT}, {"$schema", NOTE},
    {"additionalItems", SCHEMA}, {"additionalProperties", SCHEMA}, {"allOf", SCHEMAS},
    {"anyOf", SCHEMAS}, {"const", ANYTHING}, {"contentEncoding", NOTE}, {"contentMediaType", NOTE},
    {"contentSchema", NOTE}, {"default", NOTE}, {"definitions", NOTE}, {"deprecated", NOTE},
    {"description", NOTE}, {"enum", VALUES}, {"examples", NOTE}, {"exclusiveMaximum", NUMBER},
    {"exclusiveMinimum", NUMBER}, {"format", TEXT}, {"items", ITEMS}, {"maxItems", COUNT},
    {"maxLength", COUNT}, {"maxProperties", COUNT}, {"maximum", NUMBER}, {"minItems", COUNT},
    {"minLength", COUNT}, {"minProperties", COUNT}, {"minimum", NUMBER}, {"multipleOf", NUMBER},
    {"oneOf", SCHEMAS}, {"pattern", TEXT}, {"patternProperties", SCHEMA_MAP},
    {"prefixItems", SCHEMAS}, {"properties", SCHEMA_MAP}, {"propertyNames", SCHEMA},
    {"readOnly", NOTE}, {"required", NAMES}, {"title", NOTE}, {"type", TYPES},
    {"uniqueItems", FLAG}, {"writeOnly", NOTE},
    /* of OpenAPI and of editors */
    {"defaultSnippets", NOTE}, {"deprecationMessage", NOTE}, {"discriminator", NOTE},
    {"enumDescriptions", NOTE}, {"enumNames", NOTE}, {"errorMessage", NOTE}, {"example", NOTE},
    {"externalDocs", NOTE}, {"markdownDescription", NOTE}, {"markdownEnumDescriptions", NOTE},
    {"patternErrorMessage", NOTE}, {"xml", NOTE},
};

int schema_refuse(struct schema *s, const struct json_node *schema, const char *keyword,
                  const char *why)
{
    char at[JSON_POINTER_BYTES];
    return err_set(s->err, FM_ERR_ARG, "the schema: '%.60s' at %s: %s", keyword,
                   json_node_pointer(schema, at), why);
}

int schema_blame(struct schema *s, const struct json_node *schema, const char *keyword, int rc)
{
    char at[JSON_POINTER_BYTES];
    return rc == 0 ? 0 : err_wrap(s->err, rc, "the schema: '%.60s' at %s", keyword,
                                  json_node_pointer(schema, at));
}

void *schema_new(struct schema *s, size_t bytes, int *rc)
{
    void *found = *rc == 0 ? arena_new(&s->arena, bytes, s->err) : NULL;
    if (found == NULL && *rc == 0)
        *rc = FM_ERR_NOMEM;
    return found;
}

static bool is_schema(const struct json_node *node)
{
    return node->kind == JSON_IS_OBJECT || node->kind == JSON_IS_BOOL;
}

static bool are_schemas(const struct json_node *node)
{
    bool all = true;
    for (const struct json_node *m = node->first; m != NULL; m = m->next)
        all = all && is_schema(m);
    return all;
}

static bool are_strings(const struct json_node *node)
{
    bool all = node->kind == JSON_IS_ARRAY;
    for (const struct json_node *m = node->first; m != NULL; m = m->next)
        all = all && m->kind == JSON_IS_STRING;
    return all;
}

static unsigned type_named(const struct json_node *name)
{
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array",
                                        "object"};
    for (unsigned i = 0; i < 7 && name->kind == JSON_IS_STRING; i++)
        if (strcmp(name->text, names[i]) == 0)
            return 1u << i | (i == 3 ? TYPE_INTEGER : 0);
    return 0;
}

unsigned schema_types(const struct json_node *schema)
{
    const struct json_node *type = json_node_get(schema, "type");
    if (type == NULL)
        return TYPE_ALL;
    unsigned types = type_named(type);
    if (type->kind == JSON_IS_ARRAY)
        for (const struct json_node *m = type->first; m != NULL; m = m->next)
            types |= type_named(m);
    return types;
}

static bool are_types(const struct json_node *node)
{
    bool all = node->kind == JSON_IS_ARRAY ? node->n > 0 : type_named(node) != 0;
    if (node->kind == JSON_IS_ARRAY)
        for (const struct json_node *m = node->first; m != NULL; m = m->next)
            all = all && type_named(m) != 0;
    return all;
}

bool schema_bound(const struct json_node *schema, const char *keyword, uint32_t *out)
{
    const struct json_node *node = json_node_get(schema, keyword);
    if (node == NULL)
        return false;
    const struct decimal value = decimal_read(node->text);
    uint64_t n;
    *out = decimal_get_uint(&value, RULE_NONE - 1, &n) ? (uint32_t)n : RULE_NONE;
    return true;
}

static bool is_count(const struct json_node *node)
{
    if (node->kind != JSON_IS_NUMBER)
        return false;
    const struct decimal value = decimal_read(node->text);
    return !value.is_negative && decimal_is_integer(&value);
}

/* Returns what the keyword should be, or NULL if it is right. */
static const char *misfit(const struct json_node *node, enum expects expects)
{
    switch (expects) {
    case SCHEMA:
        return is_schema(node) ? NULL : "expected a schema";
    case SCHEMAS:
        return node->kind == JSON_IS_ARRAY && node->n > 0 && are_schemas(node)
                   ? NULL : "expected a non-empty array of schemas";
    case SCHEMA_MAP:
        return node->kind == JSON_IS_OBJECT && are_schemas(node) ? NULL
                                                                 : "expected an object of schemas";
    case COUNT:
        return is_count(node) ? NULL : "expected a non-negative integer";
    case NUMBER:
        return node->kind == JSON_IS_NUMBER ? NULL : "expected a number";
    case TEXT:
        return node->kind == JSON_IS_STRING ? NULL : "expected a string";
    case FLAG:
        return node->kind != JSON_IS_BOOL ? "expected true or false"
               : node->is_true            ? "unique items cannot be enforced" : NULL;
    case NAMES:
        return are_strings(node) ? NULL : "expected an array of names";
    case VALUES:
        return node->kind == JSON_IS_ARRAY ? NULL : "expected an array";
    case TYPES:
        return are_types(node) ? NULL : "expected null, boolean, integer, number, string, array, "
                                        "object, or an array of these";
    case ITEMS:
        return is_schema(node) || (node->kind == JSON_IS_ARRAY && are_schemas(node))
                   ? NULL : "expected a schema";
    default:
        return NULL;
    }
}

static int vet_keyword(struct schema *s, const struct json_node *schema,
                       const struct json_node *node)
{
    const size_t n = sizeof keywords / sizeof keywords[0];
    size_t i = 0;
    while (i < n && (strlen(keywords[i].name) != node->key_bytes ||
                     strcmp(keywords[i].name, node->key) != 0))
        i++;
    if (strcmp(node->key, "$id") == 0) {
        if (schema != s->root)
            return schema_refuse(s, schema, "$id", "a schema with its own $id inside a schema is "
                                 "not supported");
        return 0;
    }
    if (i == n && strncmp(node->key, "x-", 2) == 0)
        return 0; /* an extension, which demands nothing */
    if (i == n)
        return schema_refuse(s, schema, node->key, "this keyword is unknown or cannot be enforced");
    const char *why = misfit(node, keywords[i].expects);
    if (why != NULL)
        return schema_refuse(s, schema, node->key, why);
    if (strcmp(node->key, "$ref") == 0 && schema_target(s, schema) == NULL)
        return schema_refuse(s, schema, "$ref", "it names nothing in this schema; use a pointer "
                             "such as #/$defs/NAME");
    if (strcmp(node->key, "multipleOf") == 0) {
        const struct decimal value = decimal_read(node->text);
        uint64_t divisor;
        if (!decimal_get_uint(&value, 10000, &divisor) || divisor == 0)
            return schema_refuse(s, schema, "multipleOf", "only integers from 1 to 10000 can be "
                                 "enforced");
    }
    return 0;
}

int schema_vet(struct schema *s, const struct json_node *schema)
{
    if ((s->marks[schema->id] & MARK_VETTED) != 0)
        return 0;
    s->marks[schema->id] |= MARK_VETTED;
    int rc = dfa_burn(&s->maker, 1 + schema->n, s->err);
    if (!is_schema(schema)) {
        char at[JSON_POINTER_BYTES];
        return err_set(s->err, FM_ERR_ARG, "the schema: %s is not a schema",
                       json_node_pointer(schema, at));
    }
    if (schema->kind == JSON_IS_OBJECT)
        for (const struct json_node *m = schema->first; rc == 0 && m != NULL; m = m->next)
            rc = vet_keyword(s, schema, m);
    const struct json_node *items = json_node_get(schema, "items");
    if (rc == 0 && items != NULL && items->kind == JSON_IS_ARRAY &&
        json_node_get(schema, "prefixItems") != NULL)
        rc = schema_refuse(s, schema, "items", "an array is not allowed together with prefixItems");
    return rc;
}

const struct json_node *schema_target(struct schema *s, const struct json_node *schema)
{
    const struct json_node *ref = json_node_get(schema, "$ref");
    if (ref == NULL || ref->kind != JSON_IS_STRING)
        return NULL;
    if ((s->marks[schema->id] & MARK_TARGET) == 0) {
        uint64_t n_steps = 0;
        const struct json_node *target = json_node_follow(s->root, ref->text, ref->text_bytes,
                                                          &n_steps);
        dfa_spend(&s->maker, 1 + n_steps / 4);
        s->targets[schema->id] = target != NULL && is_schema(target) ? target : NULL;
        s->marks[schema->id] |= MARK_TARGET;
    }
    return s->targets[schema->id];
}

int schema_check_circles(struct schema *s, const struct json_node *schema, unsigned depth)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    uint8_t *mark = &s->marks[schema->id];
    if ((*mark & MARK_NO_CIRCLE) != 0)
        return 0;
    if ((*mark & MARK_OPEN) != 0 || depth > CIRCLE_DEPTH)
        return schema_refuse(s, schema, "$ref", "it refers back to itself without descending into "
                             "a property or an item, or through too many others");
    *mark |= MARK_OPEN;
    int rc = dfa_burn(&s->maker, 1, s->err);
    const struct json_node *target = rc == 0 ? schema_target(s, schema) : NULL;
    if (target != NULL)
        rc = schema_check_circles(s, target, depth + 1);
    for (unsigned i = 0; i < 3; i++) {
        const struct json_node *list = json_node_get(schema, lists[i]);
        for (const struct json_node *m = list != NULL ? list->first : NULL; rc == 0 && m != NULL;
             m = m->next)
            rc = schema_check_circles(s, m, depth + 1);
    }
    *mark = (uint8_t)((*mark & ~MARK_OPEN) | MARK_NO_CIRCLE);
    return rc;
}
