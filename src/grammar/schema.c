#include "grammar/schema.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "grammar/number_dfa.h"
#include "grammar/schema_internal.h"

#define TABLE_SIZE 1024u
#define MERGED_STATES 2000u /* automata of one place are merged up to this size */

struct known_set {
    struct element_set set;
    uint32_t value;
    struct known_set *next_in_table, *next_new;
};

/* ---- sets ----------------------------------------------------------------------------------- */

int set_add(struct schema *s, struct element_set *set, const struct json_node *node, uint32_t done)
{
    uint32_t i = 0;
    while (i < set->n && set->at[i].node->id < node->id)
        i++;
    if (i < set->n && set->at[i].node == node)
        return 0;
    if (set->n == SCHEMA_SET)
        return schema_refuse(s, node, "allOf", "too many schemas apply to one value");
    memmove(&set->at[i + 1], &set->at[i], (set->n - i) * sizeof set->at[0]);
    set->at[i] = (struct element){node, done};
    set->n++;
    return 0;
}

static bool is_same_set(const struct element_set *a, const struct element_set *b)
{
    bool same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->at[i].node == b->at[i].node && a->at[i].done == b->at[i].done;
    return same;
}

int schema_value(struct schema *s, const struct element_set *set, uint32_t *value)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < set->n; i++)
        hash = (hash + set->at[i].node->id * 8u + set->at[i].done + 1) * 0x9e3779b97f4a7c15u;
    struct known_set **head = &s->table[hash >> 54];
    for (struct known_set *k = *head; k != NULL; k = k->next_in_table)
        if (is_same_set(&k->set, set)) {
            *value = k->value;
            return 0;
        }
    struct grammar_program *p = s->program;
    if (p->n_values == SCHEMA_VALUES)
        return err_set(s->err, FM_ERR_ARG, "the schema has more than %u distinct places for "
                       "values", SCHEMA_VALUES);
    int rc = dfa_burn(&s->maker, 10, s->err);
    if (rc == 0)
        rc = mem_grow((void **)&p->values, &s->values_capacity, p->n_values + 1,
                      sizeof *p->values, "a schema", s->err);
    struct known_set *known = schema_new(s, sizeof *known, &rc);
    if (rc != 0)
        return rc;
    known->set = *set;
    known->value = *value = (uint32_t)p->n_values;
    p->values[p->n_values++] = (struct rule_value){0};
    known->next_in_table = *head;
    *head = known;
    if (s->first_new == NULL)
        s->first_new = known;
    else
        s->last_new->next_new = known;
    s->last_new = known;
    return 0;
}

int schema_add_rule(struct schema *s, struct rule_list *list, const struct rule *rule)
{
    struct grammar_program *p = s->program;
    if (list->n == SCHEMA_ALTERNATIVES)
        return err_set(s->err, FM_ERR_ARG, "the schema has more than %u alternatives for one "
                       "value", SCHEMA_ALTERNATIVES);
    const int rc = mem_grow((void **)&p->rules, &s->rules_capacity, p->n_rules + 1,
                            sizeof *p->rules, "a schema", s->err);
    if (rc != 0)
        return rc;
    p->rules[p->n_rules] = *rule;
    list->at[list->n++] = (uint32_t)p->n_rules++;
    return 0;
}

/* ---- scalars -------------------------------------------------------------------------------- */

static void narrow(struct number_bound *bound, const struct json_node *schema, const char *name,
                   bool is_exclusive, int sign)
{
    const struct json_node *node = json_node_get(schema, name);
    if (node == NULL)
        return;
    const struct decimal value = decimal_read(node->text);
    const int order = bound->is_set ? sign * decimal_compare(&value, &bound->value) : 1;
    if (order > 0 || (order == 0 && is_exclusive))
        *bound = (struct number_bound){value, true, is_exclusive};
}

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y != 0) {
        const uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    const uint64_t all = (uint64_t)(a / x) * b;
    return all <= NUMBER_MULTIPLE ? (uint32_t)all : 0;
}

static int numbers_dfa(struct schema *s, const struct element_set *set, bool is_integer,
                       const struct dfa **out)
{
    struct number_range range = {.is_integer = is_integer};
    const struct json_node *last = s->root;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct json_node *schema = set->at[i].node;
        narrow(&range.min, schema, "minimum", false, 1);
        narrow(&range.min, schema, "exclusiveMinimum", true, 1);
        narrow(&range.max, schema, "maximum", false, -1);
        narrow(&range.max, schema, "exclusiveMaximum", true, -1);
        uint32_t divisor;
        last = schema;
        if (!schema_bound(schema, "multipleOf", &divisor))
            continue;
        range.multiple = range.multiple > 0 ? common_multiple(range.multiple, divisor) : divisor;
        if (range.multiple == 0)
            return schema_refuse(s, schema, "multipleOf", "combined with other keywords it is too "
                                 "large");
    }
    return schema_blame(s, last, "minimum, maximum", number_dfa(&s->maker, &range, out, s->err));
}

static int add_either(struct schema *s, const struct dfa **sum, const struct dfa *more)
{
    if (*sum == NULL) {
        *sum = more;
        return 0;
    }
    return dfa_combine(&s->maker, DFA_EITHER, *sum, more, sum, s->err);
}

static int add_raw(struct schema *s, const struct element_set *set, unsigned types,
                   struct rule_list *list)
{
    struct dfa_word words[3];
    size_t n = 0;
    if ((types & TYPE_NULL) != 0)
        words[n++] = (struct dfa_word){"null", 4};
    if ((types & TYPE_BOOL) != 0) {
        words[n++] = (struct dfa_word){"true", 4};
        words[n++] = (struct dfa_word){"false", 5};
    }
    const struct dfa *sum = NULL, *numbers = NULL;
    int rc = n > 0 ? dfa_words(&s->maker, words, n, &sum, s->err) : 0;
    if (rc == 0 && (types & (TYPE_NUMBER | TYPE_INTEGER)) != 0) {
        rc = numbers_dfa(s, set, (types & TYPE_NUMBER) == 0, &numbers);
        if (rc == 0)
            rc = add_either(s, &sum, numbers);
    }
    if (rc != 0 || sum == NULL || sum->n_states == 0)
        return rc;
    return schema_add_rule(s, list, &(struct rule){.kind = RULE_RAW, .dfa = sum});
}

static int add_string(struct schema *s, const struct element_set *set, struct rule_list *list)
{
    struct rule rule = {.kind = RULE_STRING, .max = RULE_NONE};
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < set->n; i++) {
        const struct json_node *schema = set->at[i].node;
        uint32_t bound;
        if (schema_bound(schema, "minLength", &bound) && bound > rule.min)
            rule.min = bound;
        if (schema_bound(schema, "maxLength", &bound) && bound < rule.max)
            rule.max = bound;
        for (unsigned k = 0; k < 2 && rc == 0; k++) {
            const char *name = k == 0 ? "pattern" : "format";
            const struct json_node *keyword = json_node_get(schema, name);
            const struct dfa *dfa = NULL;
            if (keyword != NULL)
                rc = schema_pattern(s, keyword, k == 1, &dfa);
            if (rc != 0 || dfa == NULL)
                continue;
            if (rule.dfa != NULL)
                rc = dfa_combine(&s->maker, DFA_BOTH, rule.dfa, dfa, &rule.dfa, s->err);
            else
                rule.dfa = dfa;
            rc = schema_blame(s, schema, name, rc);
        }
    }
    if (rule.min > rule.max || rc != 0)
        return rc;
    if (rule.dfa != NULL && (rule.min > 0 || rule.max != RULE_NONE)) {
        const struct dfa *lengths;
        rc = dfa_lengths(&s->maker, rule.min, rule.max, &lengths, s->err);
        if (rc == 0)
            rc = dfa_combine(&s->maker, DFA_BOTH, rule.dfa, lengths, &rule.dfa, s->err);
        rule.min = 0;
        rule.max = RULE_NONE;
        rc = schema_blame(s, set->at[0].node, "pattern with minLength, maxLength", rc);
    }
    if (rc != 0 || (rule.dfa != NULL && rule.dfa->n_states == 0))
        return rc;
    return schema_add_rule(s, list, &rule);
}

/* ---- literals ------------------------------------------------------------------------------- */

int schema_add_literal(struct schema *s, const struct json_node *value, struct rule_list *list)
{
    static const char *const names[] = {"null", "false", "true"};
    struct rule rule = {.kind = RULE_STRING, .max = RULE_NONE};
    struct dfa_word word = {value->text, value->text_bytes};
    int rc = 0;
    if (value->kind == JSON_IS_ARRAY || value->kind == JSON_IS_OBJECT) {
        uint32_t *items = schema_new(s, value->n * sizeof *items, &rc);
        struct rule_property *p = schema_new(s, value->n * sizeof *p, &rc);
        uint32_t n = 0;
        for (const struct json_node *m = value->first; rc == 0 && m != NULL; m = m->next, n++) {
            const struct element_set one = {.at = {{m, IS_LITERAL}}, .n = 1};
            rc = schema_value(s, &one, &items[n]);
            p[n] = (struct rule_property){.name = m->key, .name_bytes = m->key_bytes,
                                          .value = items[n], .is_required = true};
        }
        rule.kind = value->kind == JSON_IS_ARRAY ? RULE_ARRAY : RULE_OBJECT;
        rule.rest = RULE_NONE;
        rule.items = items;
        rule.properties = p;
        rule.n_items = rule.kind == RULE_ARRAY ? value->n : 0;
        rule.n_properties = rule.kind == RULE_OBJECT ? value->n : 0;
        rule.min = rule.n_items;
        rule.max = rule.kind == RULE_ARRAY ? value->n : RULE_NONE;
        if (rc == 0 && value->n > GRAMMAR_PROPERTIES)
            rc = schema_refuse(s, value, "const", "a literal has too many members");
        return rc != 0 ? rc : schema_add_rule(s, list, &rule);
    }
    if (value->kind != JSON_IS_STRING)
        rule.kind = RULE_RAW;
    if (value->kind == JSON_IS_NULL || value->kind == JSON_IS_BOOL) {
        word.text = names[value->kind == JSON_IS_NULL ? 0 : 1 + value->is_true];
        word.bytes = strlen(word.text);
    }
    rc = dfa_words(&s->maker, &word, 1, &rule.dfa, s->err);
    return rc != 0 ? rc : schema_add_rule(s, list, &rule);
}

static int allowed_by_all(struct schema *s, const struct element_set *set,
                          const struct json_node *value, bool *out)
{
    int rc = 0;
    *out = true;
    for (uint32_t i = 0; i < set->n && rc == 0 && *out; i++)
        rc = schema_allows(s, set->at[i].node, value, 0, out);
    return rc;
}

/* Adds the values of one 'enum' or 'const' that have one of these types and that all other schemas
 * of the set allow. Strings and scalars become one automaton each, so long lists cost no more than
 * short ones. */
static int add_literals(struct schema *s, const struct element_set *set, unsigned types,
                        const struct json_node *first, bool is_list, struct rule_list *list)
{
    const uint32_t max = is_list ? first->n : 1;
    int rc = 0;
    struct dfa_word *texts = schema_new(s, (max + 1) * sizeof *texts, &rc);
    struct dfa_word *raws = schema_new(s, (max + 1) * sizeof *raws, &rc);
    size_t n_texts = 0, n_raws = 0;
    for (const struct json_node *v = is_list ? first->first : first; v != NULL && rc == 0;
         v = is_list ? v->next : NULL) {
        bool is_allowed = (schema_type_of(v) & types) != 0;
        rc = is_allowed ? allowed_by_all(s, set, v, &is_allowed) : dfa_burn(&s->maker, 1, s->err);
        if (rc != 0 || !is_allowed)
            continue;
        if (v->kind == JSON_IS_STRING)
            texts[n_texts++] = (struct dfa_word){v->text, v->text_bytes};
        else if (v->kind == JSON_IS_NUMBER)
            raws[n_raws++] = (struct dfa_word){v->text, v->text_bytes};
        else
            rc = schema_add_literal(s, v, list);
    }
    struct rule rule = {.max = RULE_NONE};
    if (rc == 0 && n_texts > 0) {
        rule.kind = RULE_STRING;
        rc = dfa_words(&s->maker, texts, n_texts, &rule.dfa, s->err);
        rc = rc != 0 ? rc : schema_add_rule(s, list, &rule);
    }
    if (rc == 0 && n_raws > 0) {
        rule.kind = RULE_RAW;
        rc = dfa_words(&s->maker, raws, n_raws, &rule.dfa, s->err);
        rc = rc != 0 ? rc : schema_add_rule(s, list, &rule);
    }
    return schema_blame(s, first->parent != NULL ? first->parent : first, "enum, const", rc);
}

/* ---- expanding ------------------------------------------------------------------------------ */

/* Adds the rules of a set without choices. */
static int add_types(struct schema *s, const struct element_set *set, unsigned types,
                     struct rule_list *list)
{
    for (uint32_t i = 0; i < set->n; i++) {
        const struct json_node *one = json_node_get(set->at[i].node, "const");
        const struct json_node *all = json_node_get(set->at[i].node, "enum");
        if (one != NULL || all != NULL)
            return add_literals(s, set, types, one != NULL ? one : all, one == NULL, list);
    }
    for (uint32_t i = 0; i < set->n; i++)
        types &= schema_types(set->at[i].node);
    int rc = 0;
    if ((types & (TYPE_NULL | TYPE_BOOL | TYPE_NUMBER | TYPE_INTEGER)) != 0)
        rc = add_raw(s, set, types, list);
    if (rc == 0 && (types & TYPE_STRING) != 0)
        rc = add_string(s, set, list);
    if (rc == 0 && (types & TYPE_ARRAY) != 0)
        rc = schema_add_array(s, set, list);
    if (rc == 0 && (types & TYPE_OBJECT) != 0)
        rc = schema_add_object(s, set, list);
    return rc;
}

/* Adds the targets of references to the set. Sets *is_possible to false if one of them is
 * `false`. */
static int close_set(struct schema *s, struct element_set *set, bool *is_possible)
{
    *is_possible = true;
    bool has_changed = true;
    while (has_changed) {
        has_changed = false;
        for (uint32_t i = 0; i < set->n && !has_changed; i++) {
            const struct json_node *schema = set->at[i].node;
            int rc = schema_vet(s, schema);
            if (rc == 0)
                rc = schema_check_circles(s, schema, 0);
            if (rc == 0)
                rc = dfa_burn(&s->maker, 1 + set->n, s->err);
            *is_possible = *is_possible && (schema->kind != JSON_IS_BOOL || schema->is_true);
            const uint32_t before = set->n;
            const struct json_node *target = rc == 0 ? schema_target(s, schema) : NULL;
            if (target != NULL)
                rc = set_add(s, set, target, 0);
            const struct json_node *all = json_node_get(schema, "allOf");
            for (const struct json_node *m = all != NULL ? all->first : NULL;
                 rc == 0 && m != NULL; m = m->next)
                rc = set_add(s, set, m, 0);
            if (rc != 0)
                return rc;
            has_changed = set->n != before;
        }
    }
    return 0;
}

static int expand(struct schema *s, const struct element_set *from, unsigned types,
                  unsigned depth, struct rule_list *list)
{
    struct element_set set = *from;
    bool is_possible;
    int rc = depth <= SCHEMA_CHOICES ? 0
             : schema_refuse(s, from->at[0].node, "anyOf, oneOf", "choices for one value are "
                             "nested too deeply");
    if (rc == 0)
        rc = close_set(s, &set, &is_possible);
    if (rc != 0 || !is_possible)
        return rc;
    for (uint32_t i = 0; i < set.n; i++)
        for (uint32_t bit = DONE_ANY_OF; bit <= DONE_ONE_OF; bit *= 2) {
            const struct json_node *schema = set.at[i].node;
            const struct json_node *choice = (set.at[i].done & bit) != 0 ? NULL
                : json_node_get(schema, bit == DONE_ANY_OF ? "anyOf" : "oneOf");
            if (choice == NULL)
                continue;
            if (bit == DONE_ONE_OF)
                rc = schema_check_one_of(s, schema);
            set.at[i].done |= bit;
            for (const struct json_node *m = choice->first; rc == 0 && m != NULL; m = m->next) {
                struct element_set chosen = set;
                rc = set_add(s, &chosen, m, 0);
                if (rc == 0)
                    rc = expand(s, &chosen, types, depth + 1, list);
            }
            return rc;
        }
    return add_types(s, &set, types, list);
}

int schema_expand(struct schema *s, const struct element_set *set, unsigned types,
                  struct rule_list *list)
{
    if (set->n == 1 && (set->at[0].done & IS_LITERAL) != 0)
        return schema_add_literal(s, set->at[0].node, list);
    return expand(s, set, types, 0, list);
}

/* Merges the automata of one place, and drops all strings next to the rule for any string. */
static int merge_rules(struct schema *s, struct rule_list *list)
{
    struct rule *rules = s->program->rules;
    for (uint32_t i = 0; i < list->n; i++) {
        struct rule *a = &rules[list->at[i]];
        const bool is_any = a->kind == RULE_STRING && a->dfa == NULL && a->min == 0 &&
                            a->max == RULE_NONE;
        for (uint32_t k = list->n; k-- > 0;) {
            struct rule *b = &rules[list->at[k]];
            if (k == i || b->kind != a->kind || a->kind > RULE_STRING ||
                (!is_any && (k < i || a->dfa == NULL || b->dfa == NULL ||
                             a->dfa->n_states + b->dfa->n_states > MERGED_STATES)))
                continue;
            const int rc = is_any ? 0 : dfa_combine(&s->maker, DFA_EITHER, a->dfa, b->dfa,
                                                    &a->dfa, s->err);
            if (rc != 0)
                return rc;
            memmove(&list->at[k], &list->at[k + 1], (list->n - k - 1) * sizeof list->at[0]);
            list->n--;
            i -= k < i;
        }
    }
    return 0;
}

static int compile_all(struct schema *s, uint32_t *value)
{
    const struct element_set root = {.at = {{s->root, 0}}, .n = 1};
    int rc = schema_value(s, &root, value);
    while (rc == 0 && s->first_new != NULL) {
        const struct known_set *known = s->first_new;
        struct rule_list list = {.n = 0};
        s->first_new = known->next_new;
        rc = schema_expand(s, &known->set, TYPE_ALL, &list);
        if (rc == 0)
            rc = merge_rules(s, &list);
        uint32_t *rules = schema_new(s, (list.n + 1) * sizeof *rules, &rc);
        if (rc != 0)
            break;
        memcpy(rules, list.at, list.n * sizeof *rules);
        s->program->values[known->value] = (struct rule_value){rules, list.n, RULE_NONE};
    }
    return rc;
}

/* Compiles a separate document, whose references stay within it. */
static int compile_text(struct schema *s, const char *text, size_t bytes, uint32_t *value)
{
    struct json_node *root = NULL;
    int rc = json_tree_parse(&s->arena, "the schema", text, bytes, &root, &s->n_nodes,
                             s->err);
    s->root = root;
    s->first_new = s->last_new = NULL;
    s->marks = schema_new(s, s->n_nodes, &rc);
    s->patterns = schema_new(s, s->n_nodes * sizeof *s->patterns, &rc);
    s->targets = schema_new(s, s->n_nodes * sizeof *s->targets, &rc);
    s->table = schema_new(s, TABLE_SIZE * sizeof(struct known_set *), &rc);
    return rc == 0 ? compile_all(s, value) : rc;
}

/* ---- calls ---------------------------------------------------------------------------------- */

/* `is_limit`: a limit was reached that all tools share. */
static int refuse_tool(struct fm_error *err, const struct grammar_tool *tool, int rc,
                       const char *why, bool is_limit)
{
    static const char prefix[] = "the schema: ";
    const size_t n = sizeof prefix - 1;
    return err_set(err, rc == FM_ERR_NOMEM ? rc : FM_ERR_ARG, "the schema of tool '%.60s': %s%s",
                   tool->name, strncmp(why, prefix, n) == 0 ? why + n : why,
                   is_limit ? " (the limit applies to all tools together)" : "");
}

/* Compiles the arguments of one tool: the objects that its schema allows. */
static int compile_arguments(struct schema *s, const struct grammar_tool *tool, uint32_t *value)
{
    struct grammar_program *p = s->program;
    const size_t n_rules = p->n_rules, n_values = p->n_values;
    struct fm_error why = {0}, *err = s->err;
    uint32_t whole;
    s->err = &why;
    int rc = compile_text(s, tool->schema, tool->schema_bytes, &whole);
    if (rc == 0)
        rc = mem_grow((void **)&p->values, &s->values_capacity, p->n_values + 1,
                      sizeof *p->values, "a schema", &why);
    uint32_t *rules = schema_new(s, (rc == 0 ? p->values[whole].n + 1 : 1) * sizeof *rules, &rc);
    s->err = err;
    if (rc != 0) { /* this tool accepts any object */
        const bool is_full = s->arena.is_full; /* the limit was reached, not the end of memory */
        const bool is_limit = is_full || p->n_values == SCHEMA_VALUES || s->maker.fuel == 0;
        p->n_rules = n_rules;
        p->n_values = n_values;
        if ((rc == FM_ERR_NOMEM && !is_full) || tool->is_strict)
            return refuse_tool(err, tool, is_full ? FM_ERR_ARG : rc, why.text, is_limit);
        return 0;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->values[whole].n; i++)
        if (p->rules[p->values[whole].rules[i]].kind == RULE_OBJECT)
            rules[n++] = p->values[whole].rules[i];
    for (size_t i = n_rules; i < p->n_rules; i++)
        p->rules[i].is_tight = true;
    *value = (uint32_t)p->n_values;
    p->values[p->n_values++] = (struct rule_value){rules, n, RULE_NONE};
    return 0;
}

/* Makes every tool a property; `any` accepts any object. */
static int compile_tools(struct schema *s, const struct grammar_form *form, uint32_t any,
                         struct rule_property **out)
{
    int rc = 0;
    struct rule_property *all = schema_new(s, form->n_tools * sizeof *all, &rc);
    for (size_t i = 0; rc == 0 && i < form->n_tools; i++) {
        const struct grammar_tool *tool = &form->tools[i];
        const size_t n = strlen(tool->name);
        char *name = schema_new(s, n + 1, &rc);
        if (rc != 0)
            break;
        memcpy(name, tool->name, n);
        all[i] = (struct rule_property){.name = name, .name_bytes = n, .value = any};
        if (tool->schema != NULL)
            rc = compile_arguments(s, tool, &all[i].value);
    }
    *out = all;
    return rc;
}

/* Returns the byte that ends a bare name; 0: names are in quotes. */
static char bare_end(const struct grammar_call *call)
{
    const bool has_tag = call->middle != NULL && call->middle[0] != '\0';
    const char end = has_tag ? call->middle[0] : call->before_arguments[0];
    assert(!call->is_bare || (end != '\0' && end != ' ')); /* something ends the name */
    return call->is_bare ? end : '\0';
}

/* Makes the rule of all calls, once the heights of their arguments are known. */
static int finish_calls(struct schema *s, const struct grammar_form *form, uint32_t any,
                        struct rule_property *tools)
{
    struct grammar_program *p = s->program;
    struct rule_list list = {.n = 0};
    for (size_t i = 0; i < form->n_tools; i++)
        if (p->values[tools[i].value].height > GRAMMAR_DEPTH) {
            if (form->tools[i].is_strict)
                return refuse_tool(s->err, &form->tools[i], FM_ERR_ARG, "no object satisfies "
                                   "it", false);
            tools[i].value = any; /* no object satisfies its schema */
        }
    struct rule rule = {.kind = RULE_OBJECT, .max = RULE_NONE, .properties = tools,
                        .n_properties = (uint32_t)form->n_tools};
    int rc = schema_finish_object(s, &rule, bare_end(form->call));
    if (rc == 0)
        rc = schema_add_rule(s, &list, &rule);
    p->calls = rc == 0 ? list.at[0] : RULE_NONE;
    return rc;
}

/* Returns whether a name without quotes and escapes can be told from what follows it. */
static bool may_be_bare(const char *name, char end)
{
    size_t n = 0;
    while ((uint8_t)name[n] >= 0x20 && name[n] != end)
        n++;
    return n > 0 && name[n] == '\0';
}

static int check_names(const struct grammar_form *form, struct fm_error *err)
{
    const char end = bare_end(form->call);
    for (size_t i = 0; end != '\0' && i < form->n_tools; i++)
        if (!may_be_bare(form->tools[i].name, end))
            return err_set(err, FM_ERR_ARG, "the tool '%.60s': calls of this name cannot be "
                           "enforced, because this model writes names without quotes; use a name "
                           "of letters, digits, '_' and '-'", form->tools[i].name);
    return 0;
}

static int check_form(const struct grammar_form *form, struct fm_error *err)
{
    if (form->schema == NULL && form->n_tools == 0)
        return err_set(err, FM_ERR_ARG, "a tool call is required, but there is no tool");
    if (form->n_tools > 0 && form->call == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "tool calls cannot be enforced in the format that "
                       "this model writes");
    if (form->n_tools > GRAMMAR_PROPERTIES)
        return err_set(err, FM_ERR_ARG, "there are %zu tools; calls can be enforced for at most %u",
                       form->n_tools, GRAMMAR_PROPERTIES);
    return form->n_tools > 0 ? check_names(form, err) : 0;
}

static int compile_form(struct schema *s, const struct grammar_form *form)
{
    static const char any_object[] = "{\"type\": \"object\"}";
    struct grammar_program *p = s->program;
    struct rule_property *tools = NULL;
    uint32_t any = RULE_NONE;
    int rc = check_form(form, s->err);
    p->answer = p->calls = RULE_NONE;
    p->is_opened = form->is_opened;
    p->is_one_call = form->is_one_call;
    if (rc == 0 && form->schema != NULL)
        rc = compile_text(s, form->schema, form->schema_bytes, &p->answer);
    const size_t n_rules = p->n_rules;
    if (rc == 0 && form->n_tools > 0)
        rc = compile_text(s, any_object, sizeof any_object - 1, &any);
    for (size_t i = n_rules; i < p->n_rules; i++)
        p->rules[i].is_tight = true;
    const uint64_t fuel = s->maker.fuel;
    s->is_in_tools = rc == 0 && form->n_tools > 0;
    if (s->is_in_tools)
        rc = compile_tools(s, form, any, &tools);
    if (s->maker.fuel < fuel / 4)
        s->maker.fuel = fuel / 4; /* tools that take too much accept any object; go on with the
                                   * rest */
    if (rc != 0)
        return rc;
    s->is_in_tools = form->schema == NULL;
    rc = schema_finish(s);
    if (rc != 0 || form->n_tools == 0)
        return rc;
    s->is_in_tools = true;
    return finish_calls(s, form, any, tools);
}

int schema_compile_form(const struct grammar_form *form, struct grammar_program **out,
                        struct fm_error *err)
{
    struct fm_error unread;
    err = err != NULL ? err : &unread;
    err->code = 0;
    *out = NULL;
    struct grammar_program *p = mem_new(1, sizeof *p, "a schema", err);
    if (p == NULL)
        return FM_ERR_NOMEM;
    p->arena.limit = SCHEMA_MEMORY_BYTES;
    struct schema s = {.program = p, .arena = {.limit = SCHEMA_MEMORY_BYTES},
                       .maker = {.fuel = SCHEMA_FUEL}, .err = err};
    s.maker.arena = &s.arena;
    int rc = compile_form(&s, form);
    if (rc == 0)
        rc = schema_keep(&s);
    if (rc == 0 && p->calls != RULE_NONE)
        rc = schema_keep_call(&s, form->call);
    arena_clear(&s.arena);
    if (rc != 0) {
        /* Reaching the arena's limit is the schema's fault. */
        const bool is_full = rc == FM_ERR_NOMEM && (s.arena.is_full || p->arena.is_full);
        grammar_program_free(p);
        const bool has_name = strncmp(err->text, "the schema", 10) == 0;
        const int code = err->code == FM_ERR_FORMAT || is_full ? FM_ERR_ARG : rc;
        err->code = code;
        const char *whose = s.is_in_tools ? "the schemas of the tools" : "the schema";
        if (form->blames_tools != NULL)
            *form->blames_tools = s.is_in_tools;
        return has_name || code != FM_ERR_ARG ? code : err_wrap(err, code, "%s", whose);
    }
    *out = p;
    return 0;
}

int schema_compile(const char *text, size_t bytes, struct grammar_program **out,
                   struct fm_error *err)
{
    return schema_compile_form(&(struct grammar_form){.schema = text, .schema_bytes = bytes},
                               out, err);
}

void grammar_program_free(struct grammar_program *p)
{
    if (p == NULL)
        return;
    mem_free(p->rules);
    mem_free(p->values);
    arena_clear(&p->arena);
    mem_free(p);
}
