/* Checks literals against schemas, for 'enum' and 'const' next to other keywords and for 'oneOf'.
 * Also compiles the expressions of 'pattern' and 'format'. */
#include <string.h>

#include "grammar/decimal.h"
#include "grammar/regex.h"
#include "grammar/schema_internal.h"
#include "text/unicode.h"

#define CHECK_DEPTH 100u
#define DISJOINT_DEPTH 6u

/* ---- expressions ---------------------------------------------------------------------------- */

#define YEAR "([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]" \
    "|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):" \
    "[0-5][0-9])"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HEX4 "[0-9A-Fa-f]{1,4}"
#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"

static const char *const formats[SCHEMA_FORMATS][2] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([0-9]{1,4}W|([0-9]{1,4}Y)([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D"
                 ")?|[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|"
                 "[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S))$"},
    {"email", "^[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@(" LABEL "\\.){1,4}[A-Za-z]"
              "{2,24}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,5}$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^((" HEX4 ":){7}" HEX4 "|::(" HEX4 "(:" HEX4 "){0,5})?|(" HEX4 ":){1,6}:" HEX4 ")$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(//" LABEL "(\\." LABEL "){0,5}(:[0-9]{1,4})?(/" URI_CHAR
            "*)?|[A-Za-z0-9]" URI_CHAR "*)(\\?" URI_CHAR "*)?(#" URI_CHAR "*)?$"},
};

static size_t format_named(const char *name)
{
    size_t i = 0;
    while (i < SCHEMA_FORMATS && strcmp(formats[i][0], name) != 0)
        i++;
    return i;
}

const char *schema_format(const char *name)
{
    const size_t i = format_named(name);
    return i < SCHEMA_FORMATS ? formats[i][1] : NULL;
}

int schema_pattern(struct schema *s, const struct json_node *keyword, bool is_format,
                   const struct dfa **out)
{
    const size_t format = is_format ? format_named(keyword->text) : 0;
    *out = NULL;
    if (format == SCHEMA_FORMATS)
        return 0;
    const struct dfa **known = is_format ? &s->formats[format] : &s->patterns[keyword->id];
    const bool is_name = keyword->kind != JSON_IS_STRING; /* a key of patternProperties */
    const char *text = is_format ? formats[format][1] : is_name ? keyword->key : keyword->text;
    *out = *known;
    if (*out != NULL)
        return 0;
    const size_t bytes = is_format ? strlen(text) : is_name ? keyword->key_bytes
                                                            : keyword->text_bytes;
    const int rc = regex_compile(&s->maker, text, bytes, out, s->err);
    *known = *out;
    return schema_blame(s, keyword->parent, keyword->key, rc);
}

/* ---- literals ------------------------------------------------------------------------------- */

unsigned schema_type_of(const struct json_node *value)
{
    static const unsigned types[] = {TYPE_NULL, TYPE_BOOL, TYPE_NUMBER, TYPE_STRING, TYPE_ARRAY,
                                     TYPE_OBJECT};
    if (value->kind != JSON_IS_NUMBER)
        return types[value->kind];
    const struct decimal d = decimal_read(value->text);
    return decimal_is_integer(&d) ? TYPE_INTEGER : TYPE_NUMBER;
}

/* An exponent may stand for a million zeros, so compute the power of 10 by squaring. */
static bool is_divisible(const struct decimal *d, uint64_t divisor)
{
    if (d->n == 0 || !decimal_is_integer(d))
        return d->n == 0;
    uint64_t rest = 0, power = 10 % divisor;
    for (uint32_t i = 0; i < d->n; i++)
        rest = (rest * 10 + decimal_digit(d, i)) % divisor;
    for (uint32_t n_zeros = (uint32_t)d->point - d->n; n_zeros > 0; n_zeros /= 2) {
        if (n_zeros % 2 == 1)
            rest = rest * power % divisor;
        power = power * power % divisor;
    }
    return rest == 0;
}

static int number_allowed(struct schema *s, const struct json_node *schema,
                          const struct json_node *value, bool *out)
{
    static const char *const names[] = {"minimum", "exclusiveMinimum", "maximum",
                                        "exclusiveMaximum"};
    const struct decimal d = decimal_read(value->text);
    uint64_t work = value->text_bytes;
    *out = true;
    for (unsigned i = 0; i < 4; i++) {
        const struct json_node *bound = json_node_get(schema, names[i]);
        if (bound == NULL)
            continue;
        const struct decimal b = decimal_read(bound->text);
        work += bound->text_bytes;
        const int order = i < 2 ? decimal_compare(&d, &b) : decimal_compare(&b, &d);
        *out = *out && (order > 0 || (order == 0 && i % 2 == 0));
    }
    uint32_t divisor;
    if (schema_bound(schema, "multipleOf", &divisor))
        *out = *out && is_divisible(&d, divisor);
    return dfa_burn(&s->maker, work, s->err);
}

static int string_allowed(struct schema *s, const struct json_node *schema,
                          const struct json_node *value, bool *out)
{
    uint32_t n = 0, bound;
    for (size_t i = 0; i < value->text_bytes; i++)
        n += ((uint8_t)value->text[i] & 0xc0) != 0x80;
    *out = !(schema_bound(schema, "minLength", &bound) && n < bound) &&
           !(schema_bound(schema, "maxLength", &bound) && n > bound);
    int rc = dfa_burn(&s->maker, value->text_bytes, s->err);
    for (unsigned i = 0; i < 2 && rc == 0 && *out; i++) {
        const struct json_node *keyword = json_node_get(schema, i == 0 ? "pattern" : "format");
        const struct dfa *dfa = NULL;
        if (keyword != NULL)
            rc = schema_pattern(s, keyword, i == 1, &dfa);
        if (rc == 0 && dfa != NULL)
            *out = dfa_accepts(dfa, value->text, value->text_bytes);
    }
    return rc;
}

static int array_allowed(struct schema *s, const struct json_node *schema,
                         const struct json_node *value, unsigned depth, bool *out)
{
    uint32_t bound;
    *out = !(schema_bound(schema, "minItems", &bound) && value->n < bound) &&
           !(schema_bound(schema, "maxItems", &bound) && value->n > bound);
    const struct json_node *items = json_node_get(schema, "items");
    const struct json_node *first = json_node_get(schema, "prefixItems");
    const struct json_node *rest = items;
    if (items != NULL && items->kind == JSON_IS_ARRAY) {
        first = items;
        rest = json_node_get(schema, "additionalItems");
    }
    first = first != NULL ? first->first : NULL;
    int rc = 0;
    for (const struct json_node *v = value->first; v != NULL && rc == 0 && *out; v = v->next) {
        const struct json_node *item = first != NULL ? first : rest;
        if (item != NULL)
            rc = schema_allows(s, item, v, depth + 1, out);
        first = first != NULL ? first->next : NULL;
    }
    return rc;
}

/* Checks one member against all schemas that its name selects. */
static int member_allowed(struct schema *s, const struct json_node *schema,
                          const struct json_node *member, unsigned depth, bool *out)
{
    const struct json_node *names = json_node_get(schema, "propertyNames");
    const struct json_node *patterns = json_node_get(schema, "patternProperties");
    const struct json_node *own = json_node_find(json_node_get(schema, "properties"), member->key,
                                                 member->key_bytes);
    const struct json_node *rest = json_node_get(schema, "additionalProperties");
    int rc = own != NULL ? schema_allows(s, own, member, depth + 1, out) : 0;
    bool is_named = own != NULL;
    for (const struct json_node *p = patterns != NULL ? patterns->first : NULL;
         p != NULL && rc == 0 && *out; p = p->next) {
        const struct dfa *dfa;
        rc = schema_pattern(s, p, false, &dfa);
        if (rc != 0 || !dfa_accepts(dfa, member->key, member->key_bytes))
            continue;
        is_named = true;
        rc = schema_allows(s, p, member, depth + 1, out);
    }
    if (rc == 0 && *out && !is_named && rest != NULL)
        rc = schema_allows(s, rest, member, depth + 1, out);
    const struct json_node name = {.kind = JSON_IS_STRING, .text = member->key,
                                   .text_bytes = member->key_bytes};
    if (rc == 0 && *out && names != NULL)
        rc = schema_allows(s, names, &name, depth + 1, out);
    return rc;
}

static int object_allowed(struct schema *s, const struct json_node *schema,
                          const struct json_node *value, unsigned depth, bool *out)
{
    uint32_t bound;
    *out = !(schema_bound(schema, "minProperties", &bound) && value->n < bound) &&
           !(schema_bound(schema, "maxProperties", &bound) && value->n > bound);
    const struct json_node *required = json_node_get(schema, "required");
    int rc = dfa_burn(&s->maker, 1 + (required != NULL ? required->n : 0) * (1 + value->n),
                      s->err);
    for (const struct json_node *r = required != NULL ? required->first : NULL;
         rc == 0 && r != NULL; r = r->next)
        *out = *out && json_node_find(value, r->text, r->text_bytes) != NULL;
    for (const struct json_node *m = value->first; m != NULL && rc == 0 && *out; m = m->next)
        rc = member_allowed(s, schema, m, depth, out);
    return rc;
}

/* Counts how many schemas of an allOf, anyOf or oneOf allow the literal. */
static int count_allowing(struct schema *s, const struct json_node *list,
                          const struct json_node *value, unsigned depth, uint32_t *n)
{
    int rc = 0;
    *n = 0;
    for (const struct json_node *m = list->first; m != NULL && rc == 0; m = m->next) {
        bool is_allowed;
        rc = schema_allows(s, m, value, depth + 1, &is_allowed);
        *n += rc == 0 && is_allowed;
    }
    return rc;
}

static int choices_allow(struct schema *s, const struct json_node *schema,
                         const struct json_node *value, unsigned depth, bool *out)
{
    static const char *const names[] = {"allOf", "anyOf", "oneOf"};
    int rc = 0;
    for (unsigned i = 0; i < 3 && rc == 0 && *out; i++) {
        const struct json_node *list = json_node_get(schema, names[i]);
        uint32_t n;
        if (list == NULL)
            continue;
        rc = count_allowing(s, list, value, depth, &n);
        *out = rc == 0 && (i == 0 ? n == list->n : i == 1 ? n > 0 : n == 1);
    }
    const struct json_node *target = schema_target(s, schema);
    if (rc == 0 && *out && target != NULL)
        rc = schema_allows(s, target, value, depth + 1, out);
    return rc;
}

static int literals_allow(struct schema *s, const struct json_node *schema,
                          const struct json_node *value, bool *out)
{
    const struct json_node *one = json_node_get(schema, "const");
    const struct json_node *list = json_node_get(schema, "enum");
    *out = one == NULL || json_node_equal(one, value);
    if (list == NULL || !*out || value->parent == list)
        return 0;
    *out = false;
    for (const struct json_node *m = list->first; m != NULL && !*out; m = m->next)
        *out = json_node_equal(m, value);
    return dfa_burn(&s->maker, list->n * (1 + value->n), s->err);
}

int schema_allows(struct schema *s, const struct json_node *schema, const struct json_node *value,
                  unsigned depth, bool *out)
{
    *out = schema->kind != JSON_IS_BOOL || schema->is_true;
    if (schema->kind == JSON_IS_BOOL)
        return 0;
    if (depth > CHECK_DEPTH)
        return schema_refuse(s, schema, "$ref", "schemas are nested too deeply");
    int rc = schema_vet(s, schema);
    if (rc == 0)
        rc = dfa_burn(&s->maker, 10, s->err);
    *out = (schema_types(schema) & schema_type_of(value)) != 0;
    if (rc == 0 && *out)
        rc = literals_allow(s, schema, value, out);
    if (rc != 0 || !*out)
        return rc;
    if (value->kind == JSON_IS_NUMBER)
        rc = number_allowed(s, schema, value, out);
    else if (value->kind == JSON_IS_STRING)
        rc = string_allowed(s, schema, value, out);
    else if (value->kind == JSON_IS_ARRAY)
        rc = array_allowed(s, schema, value, depth, out);
    else if (value->kind == JSON_IS_OBJECT)
        rc = object_allowed(s, schema, value, depth, out);
    return rc == 0 && *out ? choices_allow(s, schema, value, depth, out) : rc;
}

/* ---- oneOf ---------------------------------------------------------------------------------- */

static int are_apart(struct schema *s, const struct json_node *a, const struct json_node *b,
                     unsigned depth, bool *out);

/* Returns whether `b` allows none of the values that `a` lists; false if `a` has no list. */
static int lists_are_apart(struct schema *s, const struct json_node *a, const struct json_node *b,
                           bool *out)
{
    const struct json_node *one = json_node_get(a, "const"), *list = json_node_get(a, "enum");
    const struct json_node *m = one != NULL ? one : list != NULL ? list->first : NULL;
    bool is_allowed = false;
    int rc = 0;
    *out = false;
    if (one == NULL && list == NULL)
        return 0;
    for (; m != NULL && rc == 0 && !is_allowed; m = one != NULL ? NULL : m->next)
        rc = schema_allows(s, b, m, 0, &is_allowed);
    *out = !is_allowed;
    return rc;
}

/* Returns whether both require a property whose values are disjoint. */
static int objects_are_apart(struct schema *s, const struct json_node *a,
                             const struct json_node *b, unsigned depth, bool *out)
{
    const struct json_node *required = json_node_get(a, "required");
    const struct json_node *other = json_node_get(b, "required");
    *out = false;
    if (schema_types(a) != TYPE_OBJECT || schema_types(b) != TYPE_OBJECT || required == NULL ||
        other == NULL)
        return 0;
    int rc = 0;
    for (const struct json_node *r = required->first; r != NULL && rc == 0 && !*out; r = r->next) {
        const struct json_node *x = json_node_find(json_node_get(a, "properties"), r->text,
                                                   r->text_bytes);
        const struct json_node *y = json_node_find(json_node_get(b, "properties"), r->text,
                                                   r->text_bytes);
        bool in_both = false;
        for (const struct json_node *o = other->first; o != NULL; o = o->next)
            in_both = in_both || json_node_equal(o, r);
        rc = dfa_burn(&s->maker, 1 + other->n, s->err);
        if (rc == 0 && in_both && x != NULL && y != NULL)
            rc = are_apart(s, x, y, depth + 1, out);
    }
    return rc;
}

static int are_apart(struct schema *s, const struct json_node *a, const struct json_node *b,
                     unsigned depth, bool *out)
{
    *out = false;
    if (depth > DISJOINT_DEPTH || a->kind == JSON_IS_BOOL || b->kind == JSON_IS_BOOL)
        return 0;
    int rc = dfa_burn(&s->maker, 8, s->err);
    if (rc == 0)
        rc = schema_vet(s, a);
    if (rc == 0)
        rc = schema_vet(s, b);
    const struct json_node *to_a = rc == 0 ? schema_target(s, a) : NULL;
    const struct json_node *to_b = rc == 0 ? schema_target(s, b) : NULL;
    if (rc == 0 && to_a != NULL)
        rc = are_apart(s, to_a, b, depth + 1, out);
    if (rc == 0 && !*out && to_b != NULL)
        rc = are_apart(s, a, to_b, depth + 1, out);
    if (rc != 0 || *out)
        return rc;
    *out = (schema_types(a) & schema_types(b)) == 0;
    if (!*out)
        rc = lists_are_apart(s, a, b, out);
    if (rc == 0 && !*out)
        rc = lists_are_apart(s, b, a, out);
    if (rc == 0 && !*out)
        rc = objects_are_apart(s, a, b, depth, out);
    return rc;
}

int schema_check_one_of(struct schema *s, const struct json_node *schema)
{
    const struct json_node *list = json_node_get(schema, "oneOf");
    if ((s->marks[schema->id] & MARK_ONE_OF) != 0)
        return 0;
    s->marks[schema->id] |= MARK_ONE_OF;
    int rc = 0;
    for (const struct json_node *a = list->first; a != NULL; a = a->next)
        for (const struct json_node *b = a->next; b != NULL && rc == 0; b = b->next) {
            bool apart = false;
            rc = are_apart(s, a, b, 0, &apart);
            if (rc == 0 && !apart)
                rc = schema_refuse(s, schema, "oneOf", "a value might satisfy two of its schemas; "
                                   "use anyOf instead, which can be enforced");
        }
    return rc;
}
