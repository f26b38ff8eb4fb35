/* What the files of the schema compiler share. */
#ifndef FLASHMOE_GRAMMAR_SCHEMA_INTERNAL_H
#define FLASHMOE_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/json_tree.h"
#include "grammar/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SCHEMA_SET 64u /* schemas that hold together for one value */
#define SCHEMA_FORMATS 10u

enum { DONE_ANY_OF = 1, DONE_ONE_OF = 2, IS_LITERAL = 4 };

/* A schema that a value must satisfy, and which of its choices others have taken the place of; or a
 * value that it must be. */
struct element {
    const struct json_node *node;
    uint32_t done;
};

struct element_set {
    struct element at[SCHEMA_SET];
    uint32_t n;
};

enum { TYPE_NULL = 1, TYPE_BOOL = 2, TYPE_INTEGER = 4, TYPE_NUMBER = 8, TYPE_STRING = 16,
       TYPE_ARRAY = 32, TYPE_OBJECT = 64, TYPE_ALL = 127 };

struct known_set; /* a set and its value */

struct schema {
    struct grammar_program *program;
    struct arena arena; /* what compiling takes; the program gets copies at the end */
    struct dfa_maker maker;
    const struct json_node *root;
    uint32_t n_nodes;
    uint8_t *marks;             /* [n_nodes] what was checked: MARK_* */
    const struct dfa **patterns; /* [n_nodes] of 'pattern' keywords */
    const struct dfa *formats[SCHEMA_FORMATS]; /* of 'format', shared by all documents */
    const struct json_node **targets; /* [n_nodes] of schemas with '$ref', once MARK_TARGET */
    struct known_set **table;
    struct known_set *first_new, *last_new; /* not compiled yet */
    size_t rules_capacity, values_capacity;
    bool is_in_tools; /* what fails is a tool's */
    struct fm_error *err;
};

enum { MARK_VETTED = 1, MARK_ONE_OF = 2, MARK_OPEN = 4, MARK_NO_CIRCLE = 8, MARK_TARGET = 16 };

/* FM_ERR_ARG with "the schema: 'KEYWORD' at #/...: WHY". */
int schema_refuse(struct schema *s, const struct json_node *schema, const char *keyword,
                  const char *why);
/* The same around what is in err already. */
int schema_blame(struct schema *s, const struct json_node *schema, const char *keyword, int rc);
void *schema_new(struct schema *s, size_t bytes, int *rc); /* lives while compiling */

/* Checks the keywords of one schema: known, of the right type, enforceable (schema_vet.c). */
int schema_vet(struct schema *s, const struct json_node *schema);
/* Refuses a schema that refers to itself without going into a value. */
int schema_check_circles(struct schema *s, const struct json_node *schema, unsigned depth);
/* What a $ref names, or NULL; searched for once. */
const struct json_node *schema_target(struct schema *s, const struct json_node *schema);
unsigned schema_types(const struct json_node *schema); /* TYPE_* of its 'type' */
unsigned schema_type_of(const struct json_node *value); /* TYPE_* of a literal */
bool schema_bound(const struct json_node *schema, const char *keyword, uint32_t *out);

/* Whether a literal satisfies a schema (schema_check.c). */
int schema_allows(struct schema *s, const struct json_node *schema, const struct json_node *value,
                  unsigned depth, bool *out);
/* FM_ERR_ARG unless no value can satisfy two members of a 'oneOf'. */
int schema_check_one_of(struct schema *s, const struct json_node *schema);

/* The automaton of a schema's 'pattern' or known 'format'; NULL for another format. */
int schema_pattern(struct schema *s, const struct json_node *keyword, bool is_format,
                   const struct dfa **out);
const char *schema_format(const char *name); /* its expression, or NULL */

/* Adds a schema unless it is there. */
int set_add(struct schema *s, struct element_set *set, const struct json_node *node,
            uint32_t done);
/* The number of the value that satisfies all of them; compiled later. */
int schema_value(struct schema *s, const struct element_set *set, uint32_t *value);
/* A list of rule numbers that grows. */
struct rule_list {
    uint32_t at[SCHEMA_ALTERNATIVES];
    uint32_t n;
};
int schema_add_rule(struct schema *s, struct rule_list *list, const struct rule *rule);
/* The rules of a set for values of these types (TYPE_*): closes it, takes its choices apart, adds
 * what each gives. Rules of objects expand their 'propertyNames' here again, for strings alone, so
 * that this recurses no further. */
int schema_expand(struct schema *s, const struct element_set *set, unsigned types,
                  struct rule_list *list);
/* Arrays and objects (schema_object.c). */
int schema_add_array(struct schema *s, const struct element_set *set, struct rule_list *list);
int schema_add_object(struct schema *s, const struct element_set *set, struct rule_list *list);
int schema_add_literal(struct schema *s, const struct json_node *value, struct rule_list *list);
/* Heights, what cannot be and tables for running (schema_finish.c). */
int schema_finish(struct schema *s);
/* The same for a rule that is made after it, of values that have their heights. */
int schema_finish_object(struct schema *s, struct rule *rule);
/* Moves what the program refers to into its own arena (schema_keep.c). */
int schema_keep(struct schema *s);
/* How calls are written, behind that. */
int schema_keep_call(struct schema *s, const struct grammar_call *call);

#ifdef __cplusplus
}
#endif
#endif
