/* Checks the rules of a GBNF grammar, so that the machine can rely on them: every rule exists,
 * every alternative can be completed, and no rule comes back to itself without a character, unless
 * as the last of its alternative. */
#include <string.h>

#include "base/mem.h"
#include "grammar/gbnf.h"

#define VET_STEPS 200000000u /* about a second */

static int check_defined(const struct gbnf *g, struct fm_error *err)
{
    for (size_t i = 0; i < g->n_rules; i++)
        if (!g->rules[i].is_defined)
            return err_set(err, FM_ERR_ARG, "line %u of the grammar: the rule '%s' is not defined",
                           g->rules[i].line, g->rules[i].name);
    return 0;
}

/* Returns whether a text fits the alternative; with `is_empty`, whether the empty one does. */
static bool fits(const struct gbnf *g, uint32_t at, bool is_empty)
{
    for (; g->elements[at].kind != GBNF_END; at++) {
        const struct gbnf_element *e = &g->elements[at];
        if (e->kind == GBNF_SET && (is_empty || e->n_ranges == 0))
            return false;
        if (e->kind == GBNF_RULE && !(is_empty ? g->rules[e->rule].may_be_empty
                                               : g->rules[e->rule].is_productive))
            return false;
    }
    return true;
}

static bool any_fits(const struct gbnf *g, const struct gbnf_rule *rule, bool is_empty)
{
    for (size_t k = 0; k < rule->n; k++)
        if (fits(g, rule->alternatives[k], is_empty))
            return true;
    return false;
}

/* Marks rules until nothing changes. A group was written after the rule that uses it began, so
 * going backwards finds most in one round. */
static int mark(struct gbnf *g, bool is_empty, struct fm_error *err)
{
    bool changes = true;
    for (uint64_t n_steps = 0; changes; n_steps += g->n_elements + g->n_rules) {
        changes = false;
        if (n_steps > VET_STEPS)
            return err_set(err, FM_ERR_ARG, "the grammar is too large");
        for (size_t i = g->n_rules; i-- > 0;) {
            struct gbnf_rule *rule = &g->rules[i];
            bool *is_marked = is_empty ? &rule->may_be_empty : &rule->is_productive;
            if (!*is_marked && any_fits(g, rule, is_empty))
                *is_marked = changes = true;
        }
    }
    return 0;
}

/* Leaves out alternatives that no text fits. */
static void drop_unproductive(struct gbnf *g)
{
    for (size_t i = 0; i < g->n_rules; i++) {
        struct gbnf_rule *rule = &g->rules[i];
        size_t n = 0;
        for (size_t k = 0; k < rule->n; k++)
            if (fits(g, rule->alternatives[k], false))
                rule->alternatives[n++] = rule->alternatives[k];
        rule->n = n;
    }
}

/* ---- rules that come back to themselves ----------------------------------------------------- */

/* Tarjan's search for rules that lead to each other before a character is read. */
struct search {
    const struct gbnf *g;
    uint32_t *order, *low, *group, *stack; /* [n_rules]; 0: not seen, no group */
    uint32_t n_seen, n_groups, n_stack;
};

static void visit(struct search *s, uint32_t rule);

/* Calls visit for each rule that an alternative may begin with. */
static void visit_beginnings(struct search *s, uint32_t rule, uint32_t at)
{
    const struct gbnf *g = s->g;
    for (; g->elements[at].kind == GBNF_RULE; at++) {
        const uint32_t next = g->elements[at].rule;
        if (s->order[next] == 0)
            visit(s, next);
        if (s->group[next] == 0 && s->low[next] < s->low[rule])
            s->low[rule] = s->low[next];
        if (!g->rules[next].may_be_empty)
            return;
    }
}

/* Goes as deep as there are rules, at most GBNF_RULES. */
static void visit(struct search *s, uint32_t rule)
{
    s->order[rule] = s->low[rule] = ++s->n_seen;
    s->stack[s->n_stack++] = rule;
    for (size_t k = 0; k < s->g->rules[rule].n; k++)
        visit_beginnings(s, rule, s->g->rules[rule].alternatives[k]);
    if (s->low[rule] != s->order[rule])
        return;
    s->n_groups++;
    uint32_t member;
    do {
        member = s->stack[--s->n_stack];
        s->group[member] = s->n_groups;
    } while (member != rule);
}

/* Refuses a reference within a group that something follows: each round would add to what is still
 * to be read. */
static int check_beginnings(const struct search *s, uint32_t rule, uint32_t at,
                            struct fm_error *err)
{
    const struct gbnf *g = s->g;
    for (; g->elements[at].kind == GBNF_RULE; at++) {
        const uint32_t next = g->elements[at].rule;
        if (s->group[next] == s->group[rule] && g->elements[at + 1].kind != GBNF_END) {
            const struct gbnf_rule *shown = &g->rules[g->rules[next].name[0] != '\0' ? next : rule];
            return err_set(err, FM_ERR_ARG, "line %u of the grammar: the rule '%s' refers to "
                           "itself before it has read a character; write the repetition with * "
                           "or +", shown->line, shown->name);
        }
        if (!g->rules[next].may_be_empty)
            break;
    }
    return 0;
}

static int check_recursion(const struct gbnf *g, struct fm_error *err)
{
    uint32_t *all = mem_new(4 * g->n_rules, sizeof *all, "a grammar", err);
    if (all == NULL)
        return FM_ERR_NOMEM;
    struct search s = {.g = g, .order = all, .low = all + g->n_rules, .group = all + 2 * g->n_rules,
                       .stack = all + 3 * g->n_rules};
    int rc = 0;
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (s.order[i] == 0)
            visit(&s, i);
    for (uint32_t i = 0; rc == 0 && i < g->n_rules; i++)
        for (size_t k = 0; rc == 0 && k < g->rules[i].n; k++)
            rc = check_beginnings(&s, i, g->rules[i].alternatives[k], err);
    mem_free(all);
    return rc;
}

int gbnf_vet(struct gbnf *g, struct fm_error *err)
{
    if (!g->rules[g->root].is_defined)
        return err_set(err, FM_ERR_ARG, "the grammar has no rule 'root', with which an answer "
                       "begins");
    int rc = check_defined(g, err);
    if (rc == 0)
        rc = mark(g, false, err);
    if (rc == 0 && !g->rules[g->root].is_productive)
        rc = err_set(err, FM_ERR_ARG, "no text fits the rule 'root' of the grammar: it never ends");
    if (rc == 0)
        drop_unproductive(g);
    if (rc == 0)
        rc = mark(g, true, err);
    return rc == 0 ? check_recursion(g, err) : rc;
}
