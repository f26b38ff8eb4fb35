/* Declarations that the files of the schema compiler share; not for other code. Everything belongs
 * to one `struct schema`, which one thread owns while compiling. */
#ifndef FLASHMOE_GRAMMAR_SCHEMA_INTERNAL_H
#define FLASHMOE_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/json_tree.h"
#include "grammar/schema.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SCHEMA_SET 64u /* maximum number of schemas that apply to one value together */
#define SCHEMA_FORMATS 10u

enum { DONE_ANY_OF = 1, DONE_ONE_OF = 2, IS_LITERAL = 4 };

/* A schema that a value must satisfy, and which of its choices have been replaced by chosen
 * members; or a literal that the value must equal. */
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

struct known_set; /* a set and its value number */

struct schema {
    struct grammar_program *program;
    struct arena arena; /* memory for compiling; the program gets copies at the end */
    struct dfa_maker maker;
    const struct json_node *root;
    uint32_t n_nodes;
    uint8_t *marks;             /* [n_nodes] what has been checked: MARK_* */
    const struct dfa **patterns; /* [n_nodes] automata of 'pattern' keywords */
    const struct dfa *formats[SCHEMA_FORMATS]; /* automata of 'format', shared by all documents */
    const struct json_node **targets; /* [n_nodes] targets of '$ref', valid with MARK_TARGET */
    struct known_set **table;
    struct known_set *first_new, *last_new; /* list of sets that are not compiled yet */
    size_t rules_capacity, values_capacity;
    bool is_in_tools; /* a tool's schema is being compiled */
    struct fm_error *err;
};

enum { MARK_VETTED = 1, MARK_ONE_OF = 2, MARK_OPEN = 4, MARK_NO_CIRCLE = 8, MARK_TARGET = 16 };

/* Returns FM_ERR_ARG with the message "the schema: 'KEYWORD' at #/...: WHY". */
int schema_refuse(struct schema *s, const struct json_node *schema, const char *keyword,
                  const char *why);
/* Prepends the same to the message in err. */
int schema_blame(struct schema *s, const struct json_node *schema, const char *keyword, int rc);
void *schema_new(struct schema *s, size_t bytes, int *rc); /* lives while compiling */

/* Checks that the keywords of one schema are known, of the right type and enforceable
 * (schema_vet.c). */
int schema_vet(struct schema *s, const struct json_node *schema);
/* Refuses a schema that refers to itself without descending into a value. */
int schema_check_circles(struct schema *s, const struct json_node *schema, unsigned depth);
/* Returns the target of a $ref, or NULL. Searches only once. */
const struct json_node *schema_target(struct schema *s, const struct json_node *schema);
unsigned schema_types(const struct json_node *schema); /* TYPE_* of its 'type' */
unsigned schema_type_of(const struct json_node *value); /* TYPE_* of a literal */
bool schema_bound(const struct json_node *schema, const char *keyword, uint32_t *out);

/* Decides whether a literal satisfies a schema (schema_check.c). */
int schema_allows(struct schema *s, const struct json_node *schema, const struct json_node *value,
                  unsigned depth, bool *out);
/* Fails with FM_ERR_ARG if a value could satisfy two members of a 'oneOf'. */
int schema_check_one_of(struct schema *s, const struct json_node *schema);

/* Returns the automaton of a schema's 'pattern' or known 'format'; NULL for an unknown format. */
int schema_pattern(struct schema *s, const struct json_node *keyword, bool is_format,
                   const struct dfa **out);
const char *schema_format(const char *name); /* its regular expression, or NULL */

/* Adds a schema unless it is already in the set. */
int set_add(struct schema *s, struct element_set *set, const struct json_node *node,
            uint32_t done);
/* Returns the number of the value that satisfies the whole set; it is compiled later. */
int schema_value(struct schema *s, const struct element_set *set, uint32_t *value);
/* A list of rule numbers that grows. */
struct rule_list {
    uint32_t at[SCHEMA_ALTERNATIVES];
    uint32_t n;
};
int schema_add_rule(struct schema *s, struct rule_list *list, const struct rule *rule);
/* Adds the rules of a set for values of these types (TYPE_*): completes the set, expands its
 * choices and adds the rules of each. Object rules expand their 'propertyNames' the same way, but
 * only for strings, so the recursion ends there. */
int schema_expand(struct schema *s, const struct element_set *set, unsigned types,
                  struct rule_list *list);
/* Arrays and objects (schema_object.c). */
int schema_add_array(struct schema *s, const struct element_set *set, struct rule_list *list);
int schema_add_object(struct schema *s, const struct element_set *set, struct rule_list *list);
int schema_add_literal(struct schema *s, const struct json_node *value, struct rule_list *list);
/* Computes heights, removes impossible rules and builds the tables for running
 * (schema_finish.c). */
int schema_finish(struct schema *s);
/* Does the same for a rule that is added later and whose values have heights. Keys are written as
 * JSON, or, if bare_end is not 0, as they are and with this byte after them. */
int schema_finish_object(struct schema *s, struct rule *rule, char bare_end);
/* Moves what the program refers to into its own arena (schema_keep.c). */
int schema_keep(struct schema *s);
/* Adds how calls are written; call it after schema_keep. */
int schema_keep_call(struct schema *s, const struct grammar_call *call);

#ifdef __cplusplus
}
#endif
#endif
