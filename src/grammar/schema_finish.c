/* The last pass: computes the height of each value, removes impossible rules and builds the tables
 * for running. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

static uint32_t value_height(const struct schema *s, uint32_t value)
{
    return value == RULE_NONE ? RULE_NONE : s->program->values[value].height;
}

static uint32_t higher(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t array_height(const struct schema *s, const struct rule *r)
{
    uint32_t height = 0;
    for (uint32_t i = 0; i < r->n_items && i < r->min; i++)
        height = higher(height, value_height(s, r->items[i]));
    if (r->min > r->n_items)
        height = higher(height, value_height(s, r->rest));
    return height >= RULE_NONE - 1 ? RULE_NONE : height + 1;
}

/* An object with a minimum above its required properties may need any of the others. */
static uint32_t object_height(const struct schema *s, const struct rule *r)
{
    uint32_t height = 0, highest = 0, n_required = 0;
    uint64_t n_possible = 0;
    for (uint32_t i = 0; i < r->n_properties; i++) {
        const uint32_t own = value_height(s, r->properties[i].value);
        n_required += r->properties[i].is_required;
        if (r->properties[i].is_required)
            height = higher(height, own);
        n_possible += own != RULE_NONE;
        highest = own != RULE_NONE ? higher(highest, own) : highest;
    }
    for (uint32_t i = 0; i < r->n_extras; i++) {
        const uint32_t own = value_height(s, r->extras[i].value);
        const uint64_t n = r->extras[i].names != NULL ? r->extras[i].names->n_words[0] : DFA_MANY;
        if (own == RULE_NONE)
            continue;
        highest = higher(highest, own);
        n_possible = n > DFA_MANY - 1 - n_possible ? DFA_MANY - 1 : n_possible + n;
    }
    if (height == RULE_NONE || n_possible < r->min || n_required > r->max)
        return RULE_NONE;
    return (r->min > n_required ? higher(height, highest) : height) + 1;
}

static int find_heights(struct schema *s)
{
    struct grammar_program *p = s->program;
    size_t work = 1;
    for (size_t i = 0; i < p->n_rules; i++) {
        p->rules[i].height = p->rules[i].kind > RULE_STRING ? RULE_NONE : 0;
        work += 1 + p->rules[i].n_items + p->rules[i].n_properties;
    }
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        const int rc = dfa_burn(&s->maker, work, s->err);
        if (rc != 0)
            return err_wrap(s->err, rc, "the schema");
        for (size_t i = 0; i < p->n_rules; i++) {
            struct rule *r = &p->rules[i];
            if (r->kind <= RULE_STRING)
                continue;
            const uint32_t height = r->kind == RULE_ARRAY ? array_height(s, r)
                                                          : object_height(s, r);
            /* Heights only decrease, so more choices never make one worse. */
            has_changed = has_changed || height < r->height;
            r->height = height < r->height ? height : r->height;
        }
        for (size_t v = 0; v < p->n_values; v++) {
            uint32_t min = RULE_NONE;
            for (uint32_t i = 0; i < p->values[v].n; i++) {
                const uint32_t own = p->rules[p->values[v].rules[i]].height;
                min = own < min ? own : min;
            }
            has_changed = has_changed || min < p->values[v].height;
            p->values[v].height = min;
        }
    }
    return 0;
}

/* Ends the array before the first item that cannot exist. */
static void finish_array(const struct schema *s, struct rule *r)
{
    uint32_t n = 0;
    while (n < r->n_items && value_height(s, r->items[n]) != RULE_NONE)
        n++;
    if (n < r->n_items || value_height(s, r->rest) == RULE_NONE)
        r->max = n < r->max ? n : r->max;
}

/* Writes the key as JSON: with the shortest escapes, then the closing quote. */
static int write_key(struct schema *s, struct rule_property *p)
{
    static const char short_names[] = "btn\vfr";
    int rc = 0;
    char *key = schema_new(s, 6 * p->name_bytes + 2, &rc);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < p->name_bytes; i++) {
        const uint8_t c = (uint8_t)p->name[i];
        if (c >= 8 && c <= 13 && c != 11) {
            key[p->key_bytes++] = '\\';
            key[p->key_bytes++] = short_names[c - 8];
        } else if (c < 32) {
            p->key_bytes += (uint32_t)snprintf(key + p->key_bytes, 7, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\')
                key[p->key_bytes++] = '\\';
            key[p->key_bytes++] = (char)c;
        }
    }
    key[p->key_bytes++] = '"';
    p->key = key;
    return 0;
}

static int write_bare_key(struct schema *s, struct rule_property *p, char end)
{
    int rc = 0;
    char *key = schema_new(s, p->name_bytes + 1, &rc);
    if (rc != 0)
        return rc;
    memcpy(key, p->name, p->name_bytes);
    key[p->name_bytes] = end;
    p->key = key;
    p->key_bytes = (uint32_t)p->name_bytes + 1;
    return 0;
}

static int compare_keys(const struct rule_property *a, const struct rule_property *b)
{
    const uint32_t n = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    return memcmp(a->key, b->key, n); /* because of the last byte no key is a prefix of another */
}

static void sort_keys(struct rule *r)
{
    for (uint32_t i = 0; i < r->n_properties; i++) {
        uint32_t k = i;
        for (; k > 0 && compare_keys(&r->properties[i], &r->properties[r->by_key[k - 1]]) < 0; k--)
            r->by_key[k] = r->by_key[k - 1];
        r->by_key[k] = i;
    }
}

int schema_finish_object(struct schema *s, struct rule *r, char bare_end)
{
    uint32_t n = 0;
    int rc = dfa_burn(&s->maker, 1 + r->n_properties * r->n_properties / 16, s->err);
    for (uint32_t i = 0; i < r->n_properties; i++)
        if (value_height(s, r->properties[i].value) != RULE_NONE)
            r->properties[n++] = r->properties[i];
    r->n_properties = n;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = bare_end != '\0' ? write_bare_key(s, &r->properties[i], bare_end)
                              : write_key(s, &r->properties[i]);
    r->by_key = schema_new(s, (n + 1) * sizeof *r->by_key, &rc);
    r->n_required = schema_new(s, (n + 1) * sizeof *r->n_required, &rc);
    r->next_required = schema_new(s, (n + 1) * sizeof *r->next_required, &rc);
    if (rc != 0)
        return rc;
    sort_keys(r);
    r->next_required[n] = n;
    for (uint32_t i = n; i-- > 0;) {
        r->n_required[i] = r->n_required[i + 1] + r->properties[i].is_required;
        r->next_required[i] = r->properties[i].is_required ? i : r->next_required[i + 1];
    }
    uint32_t n_extras = 0;
    for (uint32_t i = 0; i < r->n_extras; i++) {
        const struct rule_extra extra = r->extras[i];
        const uint64_t names = extra.names != NULL ? extra.names->n_words[0] : DFA_MANY;
        if (value_height(s, extra.value) == RULE_NONE)
            continue;
        r->extras[n_extras++] = extra;
        r->n_extra_names = names > DFA_MANY - r->n_extra_names ? DFA_MANY
                                                               : r->n_extra_names + names;
    }
    r->n_extras = n_extras;
    r->has_counts = r->min > 0 || r->max != RULE_NONE ||
                    (n_extras > 0 && r->n_extra_names != DFA_MANY);
    return 0;
}

int schema_finish(struct schema *s)
{
    struct grammar_program *p = s->program;
    int rc = find_heights(s);
    for (size_t i = 0; i < p->n_rules && rc == 0; i++) {
        struct rule *r = &p->rules[i];
        p->highest = r->height != RULE_NONE ? higher(p->highest, r->height) : p->highest;
        if (r->kind == RULE_ARRAY && r->height != RULE_NONE)
            finish_array(s, r);
        else if (r->kind == RULE_OBJECT && r->height != RULE_NONE)
            rc = schema_finish_object(s, r, '\0');
    }
    if (rc == 0 && p->values[0].height == RULE_NONE)
        rc = err_set(s->err, FM_ERR_ARG, "the schema: no value satisfies it");
    if (rc == 0 && p->values[0].height > GRAMMAR_DEPTH)
        rc = err_set(s->err, FM_ERR_ARG, "the schema: every value that satisfies it is nested more "
                     "than %u levels deep", GRAMMAR_DEPTH);
    return rc;
}
