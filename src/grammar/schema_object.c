/* Arrays and objects: combines what all schemas of a set demand of each item and property. */
#include <string.h>

#include "grammar/regex.h"
#include "grammar/schema_internal.h"
#include "text/unicode.h"

#define TUPLE_ITEMS 1000u
#define LISTED_NAMES 64u  /* if a language has at most this many names, each becomes a property */
#define PATTERN_KEYS 5u   /* maximum number of 'patternProperties' of one object */

/* ---- arrays --------------------------------------------------------------------------------- */

static const struct json_node *tuple_of(const struct json_node *schema)
{
    const struct json_node *items = json_node_get(schema, "items");
    return items != NULL && items->kind == JSON_IS_ARRAY ? items
                                                         : json_node_get(schema, "prefixItems");
}

static const struct json_node *rest_of(const struct json_node *schema)
{
    const struct json_node *items = json_node_get(schema, "items");
    return items != NULL && items->kind == JSON_IS_ARRAY ? json_node_get(schema, "additionalItems")
                                                         : items;
}

/* Finds the value of item number i. */
static int item_value(struct schema *s, const struct element_set *set, uint32_t i, uint32_t *value)
{
    struct element_set item = {.n = 0};
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < set->n; k++) {
        const struct json_node *tuple = tuple_of(set->at[k].node);
        const struct json_node *found = rest_of(set->at[k].node);
        if (tuple != NULL && i < tuple->n) {
            found = tuple->first;
            for (uint32_t j = 0; j < i; j++)
                found = found->next;
        }
        rc = dfa_burn(&s->maker, 1 + i / 8, s->err);
        if (rc == 0 && found != NULL)
            rc = set_add(s, &item, found, 0);
    }
    return rc == 0 ? schema_value(s, &item, value) : rc;
}

int schema_add_array(struct schema *s, const struct element_set *set, struct rule_list *list)
{
    struct rule rule = {.kind = RULE_ARRAY, .max = RULE_NONE, .rest = RULE_NONE};
    int rc = 0;
    for (uint32_t k = 0; k < set->n; k++) {
        const struct json_node *schema = set->at[k].node, *tuple = tuple_of(schema);
        uint32_t bound;
        if (schema_bound(schema, "minItems", &bound) && bound > rule.min)
            rule.min = bound;
        if (schema_bound(schema, "maxItems", &bound) && bound < rule.max)
            rule.max = bound;
        if (tuple != NULL && tuple->n > rule.n_items)
            rule.n_items = tuple->n;
        if (tuple != NULL && tuple->n > TUPLE_ITEMS)
            return schema_refuse(s, schema, tuple->key, "too many items");
    }
    uint32_t *items = schema_new(s, rule.n_items * sizeof *items, &rc);
    for (uint32_t i = 0; rc == 0 && i < rule.n_items; i++)
        rc = item_value(s, set, i, &items[i]);
    rule.items = items;
    if (rc == 0 && rule.max > rule.n_items)
        rc = item_value(s, set, rule.n_items, &rule.rest);
    return rc != 0 || rule.min > rule.max ? rc : schema_add_rule(s, list, &rule);
}

/* ---- objects -------------------------------------------------------------------------------- */

struct object {
    struct schema *s;
    const struct element_set *set;
    struct rule rule;
    const struct dfa *names; /* all allowed names; NULL for any */
    const struct json_node *patterns[PATTERN_KEYS];
    const struct dfa *languages[PATTERN_KEYS];
    uint32_t owners[PATTERN_KEYS]; /* index in the set of the schema that has the pattern */
    uint32_t n_patterns;
};

/* Finds the names that 'propertyNames' allows: the strings of its rules. */
static int find_names(struct object *o)
{
    struct schema *s = o->s;
    struct element_set set = {.n = 0};
    struct rule_list list = {.n = 0};
    const struct json_node *keyword = NULL;
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < o->set->n; k++) {
        const struct json_node *names = json_node_get(o->set->at[k].node, "propertyNames");
        if (names != NULL)
            rc = set_add(s, &set, keyword = names, 0);
    }
    if (keyword != NULL && rc == 0)
        rc = schema_expand(s, &set, TYPE_STRING, &list);
    const struct dfa *sum = NULL;
    for (uint32_t i = 0; rc == 0 && i < list.n; i++) {
        const struct rule *rule = &s->program->rules[list.at[i]];
        const struct dfa *dfa = rule->dfa;
        if (rule->kind != RULE_STRING)
            continue;
        if (dfa == NULL && rule->min == 0 && rule->max == RULE_NONE)
            return 0; /* any name */
        if (dfa == NULL)
            rc = dfa_lengths(&s->maker, rule->min, rule->max, &dfa, s->err);
        if (rc == 0)
            rc = sum == NULL ? 0 : dfa_combine(&s->maker, DFA_EITHER, sum, dfa, &dfa, s->err);
        sum = dfa;
    }
    if (rc == 0 && keyword != NULL && sum == NULL)
        rc = dfa_words(&s->maker, NULL, 0, &sum, s->err); /* no name */
    o->names = sum;
    return keyword != NULL ? schema_blame(s, keyword->parent, "propertyNames", rc) : rc;
}

static int find_patterns(struct object *o)
{
    int rc = 0;
    for (uint32_t k = 0; k < o->set->n; k++) {
        const struct json_node *map = json_node_get(o->set->at[k].node, "patternProperties");
        for (const struct json_node *p = map != NULL ? map->first : NULL; p != NULL && rc == 0;
             p = p->next) {
            if (o->n_patterns == PATTERN_KEYS)
                return schema_refuse(o->s, map->parent, "patternProperties", "too many patterns");
            rc = schema_pattern(o->s, p, false, &o->languages[o->n_patterns]);
            o->owners[o->n_patterns] = k;
            o->patterns[o->n_patterns++] = p;
        }
    }
    return rc;
}

/* Finds the value of a name. With name NULL, finds the value of all names that match exactly the
 * patterns in `matches` and no property. */
static int property_value(struct object *o, const char *name, size_t bytes, unsigned matches,
                          uint32_t *value)
{
    struct element_set set = {.n = 0};
    int rc = 0;
    for (uint32_t k = 0; rc == 0 && k < o->set->n; k++) {
        const struct json_node *schema = o->set->at[k].node;
        const struct json_node *map = json_node_get(schema, "properties");
        const struct json_node *own = name != NULL ? json_node_find(map, name, bytes) : NULL;
        const struct json_node *rest = json_node_get(schema, "additionalProperties");
        bool is_named = own != NULL;
        rc = dfa_burn(&o->s->maker, 1 + (map != NULL && name != NULL ? map->n / 8 : 0), o->s->err);
        if (rc == 0 && own != NULL)
            rc = set_add(o->s, &set, own, 0);
        for (uint32_t p = 0; p < o->n_patterns && rc == 0; p++)
            if (o->owners[p] == k && (matches >> p & 1) != 0) {
                is_named = true;
                rc = set_add(o->s, &set, o->patterns[p], 0);
            }
        if (rc == 0 && !is_named && rest != NULL)
            rc = set_add(o->s, &set, rest, 0);
    }
    return rc == 0 ? schema_value(o->s, &set, value) : rc;
}

static struct rule_property *find_property(const struct object *o, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < o->rule.n_properties; i++) {
        struct rule_property *p = &o->rule.properties[i];
        if (p->name_bytes == bytes && memcmp(p->name, name, bytes) == 0)
            return p;
    }
    return NULL;
}

static int add_property(struct object *o, const char *name, size_t bytes, bool is_required)
{
    struct rule_property *known = find_property(o, name, bytes);
    int rc = dfa_burn(&o->s->maker, 1 + o->rule.n_properties / 8, o->s->err);
    if (rc != 0)
        return rc;
    if (known != NULL) {
        known->is_required = known->is_required || is_required;
        return 0;
    }
    if (o->rule.n_properties == GRAMMAR_PROPERTIES)
        return err_set(o->s->err, FM_ERR_ARG, "the schema has an object of more than %u "
                       "properties", GRAMMAR_PROPERTIES);
    struct rule_property *p = &o->rule.properties[o->rule.n_properties];
    *p = (struct rule_property){.name = name, .name_bytes = bytes, .is_required = is_required};
    unsigned matches = 0;
    for (uint32_t i = 0; i < o->n_patterns; i++)
        matches |= (unsigned)dfa_accepts(o->languages[i], name, bytes) << i;
    if (o->names != NULL && !dfa_accepts(o->names, name, bytes))
        p->value = RULE_NONE; /* a name that cannot exist */
    else
        rc = property_value(o, name, bytes, matches, &p->value);
    o->rule.n_properties++;
    return rc;
}

static int add_declared(struct object *o)
{
    int rc = 0;
    for (uint32_t k = 0; k < o->set->n; k++) {
        const struct json_node *map = json_node_get(o->set->at[k].node, "properties");
        for (const struct json_node *p = map != NULL ? map->first : NULL; rc == 0 && p != NULL;
             p = p->next)
            rc = add_property(o, p->key, p->key_bytes, false);
    }
    for (uint32_t k = 0; k < o->set->n; k++) {
        const struct json_node *names = json_node_get(o->set->at[k].node, "required");
        for (const struct json_node *p = names != NULL ? names->first : NULL;
             rc == 0 && p != NULL; p = p->next)
            rc = add_property(o, p->text, p->text_bytes, true);
    }
    return rc;
}

/* Builds the names that match exactly these patterns and are not properties. */
static int other_names(struct object *o, uint32_t n_patterns, unsigned matches,
                       const struct dfa **out)
{
    struct schema *s = o->s;
    const struct dfa *names = o->names;
    int rc = 0;
    if (names == NULL && (o->rule.n_properties > 0 || n_patterns > 0))
        rc = dfa_lengths(&s->maker, 0, DFA_NONE, &names, s->err);
    if (rc == 0 && o->rule.n_properties > 0) {
        const struct dfa *taken;
        struct dfa_word *words = schema_new(s, o->rule.n_properties * sizeof *words, &rc);
        for (uint32_t i = 0; rc == 0 && i < o->rule.n_properties; i++)
            words[i] = (struct dfa_word){o->rule.properties[i].name,
                                         o->rule.properties[i].name_bytes};
        if (rc == 0)
            rc = dfa_words(&s->maker, words, o->rule.n_properties, &taken, s->err);
        if (rc == 0)
            rc = dfa_combine(&s->maker, DFA_FIRST_ONLY, names, taken, &names, s->err);
    }
    for (uint32_t i = 0; i < n_patterns && rc == 0; i++)
        rc = dfa_combine(&s->maker, (matches >> i & 1) != 0 ? DFA_BOTH : DFA_FIRST_ONLY, names,
                         o->languages[i], &names, s->err);
    *out = names;
    return rc;
}

/* Makes every text of a small language a property. */
static int list_names(struct object *o, const struct dfa *d, uint32_t state, char *text, size_t n)
{
    int rc = 0;
    if (d->states[state].accepts) {
        char *name = schema_new(o->s, n + 1, &rc);
        if (rc != 0)
            return rc;
        memcpy(name, text, n);
        rc = add_property(o, name, n, false);
    }
    for (uint32_t e = d->states[state].first; e < d->states[state + 1].first; e++)
        for (uint32_t c = d->edges[e].lo; rc == 0 && c <= d->edges[e].hi; c++) {
            const size_t more = utf8_put(c, (uint8_t *)text + n);
            rc = list_names(o, d, d->edges[e].to, text, n + more);
        }
    return rc;
}

static bool may_list(const struct dfa *names)
{
    return names != NULL && names->n_states > 0 && names->n_states < 2000 &&
           names->n_words[0] <= LISTED_NAMES;
}

static int list_all_names(struct object *o, const struct dfa *names)
{
    int rc = 0;
    char *text = schema_new(o->s, 4 * (size_t)names->n_states + 8, &rc);
    return rc == 0 ? list_names(o, names, 0, text, 0) : rc;
}

/* Lists all names if 'propertyNames' allows only few, so that they have a fixed order. */
static int list_few_names(struct object *o)
{
    const struct dfa *names = NULL;
    const int rc = o->names != NULL ? other_names(o, 0, 0, &names) : 0;
    return rc == 0 && may_list(names) ? list_all_names(o, names) : rc;
}

static bool has_few(const struct dfa *d)
{
    bool few = false;
    for (uint32_t i = 0; i < d->n_states; i++)
        few = few || d->n_words[i] != DFA_MANY;
    return few;
}

static int add_extra(struct object *o, unsigned matches, struct rule_extra *room)
{
    struct schema *s = o->s;
    struct rule_extra extra = {0};
    int rc = other_names(o, o->n_patterns, matches, &extra.names);
    if (rc == 0 && (extra.names == NULL || extra.names->n_states > 0))
        rc = property_value(o, NULL, 0, matches, &extra.value);
    if (rc != 0 || (extra.names != NULL && extra.names->n_states == 0))
        return rc;
    if (may_list(extra.names))
        return list_all_names(o, extra.names);
    extra.is_counted = extra.names != NULL && has_few(extra.names);
    if (extra.is_counted) {
        static const char plain[] = "^[ !#-\\[\\]-~]*$";
        const struct dfa *ascii;
        rc = regex_compile(&s->maker, plain, strlen(plain), &ascii, s->err);
        if (rc == 0)
            rc = dfa_combine(&s->maker, DFA_BOTH, extra.names, ascii, &extra.names, s->err);
        if (rc == 0 && extra.names->n_states == 0)
            return 0; /* such names are never written */
    }
    room[o->rule.n_extras++] = extra;
    return rc;
}

/* Returns false if a schema forbids all names that match exactly these patterns. */
static bool may_have_others(const struct object *o, unsigned matches)
{
    for (uint32_t k = 0; k < o->set->n; k++) {
        const struct json_node *rest = json_node_get(o->set->at[k].node, "additionalProperties");
        bool is_named = false;
        for (uint32_t p = 0; p < o->n_patterns; p++)
            is_named = is_named || (o->owners[p] == k && (matches >> p & 1) != 0);
        if (!is_named && rest != NULL && rest->kind == JSON_IS_BOOL && !rest->is_true)
            return false;
    }
    return true;
}

int schema_add_object(struct schema *s, const struct element_set *set, struct rule_list *list)
{
    struct object o = {.s = s, .set = set, .rule = {.kind = RULE_OBJECT, .max = RULE_NONE}};
    int rc = 0;
    size_t n = 1;
    for (uint32_t k = 0; k < set->n; k++) {
        const struct json_node *schema = set->at[k].node;
        const struct json_node *map = json_node_get(schema, "properties");
        const struct json_node *required = json_node_get(schema, "required");
        uint32_t bound;
        if (json_node_get(schema, "propertyNames") != NULL ||
            json_node_get(schema, "patternProperties") != NULL)
            n = GRAMMAR_PROPERTIES; /* names may have been listed */
        n += (map != NULL ? map->n : 0) + (required != NULL ? required->n : 0);
        if (schema_bound(schema, "minProperties", &bound) && bound > o.rule.min)
            o.rule.min = bound;
        if (schema_bound(schema, "maxProperties", &bound) && bound < o.rule.max)
            o.rule.max = bound;
    }
    n = n < GRAMMAR_PROPERTIES ? n : GRAMMAR_PROPERTIES;
    o.rule.properties = schema_new(s, n * sizeof *o.rule.properties, &rc);
    o.rule.extras = schema_new(s, (1u << PATTERN_KEYS) * sizeof *o.rule.extras, &rc);
    if (rc == 0)
        rc = find_names(&o);
    if (rc == 0)
        rc = find_patterns(&o);
    if (rc == 0)
        rc = add_declared(&o);
    if (rc == 0)
        rc = list_few_names(&o);
    for (unsigned matches = 0; rc == 0 && matches < 1u << o.n_patterns; matches++)
        if (may_have_others(&o, matches))
            rc = add_extra(&o, matches, o.rule.extras);
    return rc != 0 || o.rule.min > o.rule.max ? rc : schema_add_rule(s, list, &o.rule);
}
