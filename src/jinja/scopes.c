/* Determines which names a scope hides. jinja2 decides at compile time where a name comes from. A
 * name that a scope sets before reading it belongs to that scope from the beginning, so `{% for x
 * in y %}{{ tools }}{% endfor %}{% set tools = 1 %}` prints nothing, even if a variable has the
 * name. Names that are read first, are set only in a branch, or are known in an outer scope are
 * looked up at run time. */
#include <string.h>

#include "jinja/tree.h"

enum ref_state { REF_FOUND, REF_HIDDEN };

struct ref {
    const struct symbol *symbol;
    enum ref_state state;
    bool is_stored;
    const struct ref *older;
};

struct frame {
    const struct frame *parent;
    const struct ref *refs; /* newest first; a newer entry replaces an older one */
};

struct analysis {
    struct jinja *jinja;
    unsigned depth; /* nesting of expressions */
    int rc;
    struct fm_error *err;
};

static void analyse_scopes(struct analysis *a, const struct frame *frame, struct node *body);

static const struct ref *find_own(const struct ref *refs, const struct symbol *symbol)
{
    while (refs != NULL && refs->symbol != symbol)
        refs = refs->older;
    return refs;
}

static bool is_known_outside(const struct frame *frame, const struct symbol *symbol)
{
    for (frame = frame->parent; frame != NULL; frame = frame->parent)
        if (find_own(frame->refs, symbol) != NULL)
            return true;
    return false;
}

static void add_ref(struct analysis *a, struct frame *frame, const struct symbol *symbol,
                    enum ref_state state, bool is_stored)
{
    struct ref *ref = a->rc == 0 ? arena_new(&a->jinja->arena, sizeof *ref, a->err) : NULL;
    if (ref == NULL) {
        a->rc = a->err->code;
        return;
    }
    *ref = (struct ref){symbol, state, is_stored, frame->refs};
    frame->refs = ref;
}

static void add_load(struct analysis *a, struct frame *frame, const struct symbol *symbol)
{
    if (find_own(frame->refs, symbol) == NULL && !is_known_outside(frame, symbol))
        add_ref(a, frame, symbol, REF_FOUND, false);
}

static void add_store(struct analysis *a, struct frame *frame, const struct symbol *symbol)
{
    const struct ref *own = find_own(frame->refs, symbol);
    if (own != NULL && own->is_stored)
        return;
    enum ref_state state = REF_FOUND;
    if (own == NULL && !is_known_outside(frame, symbol))
        state = REF_HIDDEN;
    add_ref(a, frame, symbol, state, true);
}

/* ---- the names of one frame ------------------------------------------------------------------ */

static void visit_list(struct analysis *a, struct frame *frame, const struct node *node);

static void visit_expression(struct analysis *a, struct frame *frame, const struct node *node)
{
    if (node == NULL || a->rc != 0)
        return;
    if (++a->depth > JINJA_DEPTH) { /* evaluating it would fail as well */
        a->rc = err_set(a->err, FM_ERR_FORMAT, "%s: line %u: operations are nested more than %d "
                        "levels deep", a->jinja->name, node->line, JINJA_DEPTH);
        return;
    }
    if (node->kind == N_NAME || node->kind == N_NSREF)
        add_load(a, frame, node->symbol);
    visit_expression(a, frame, node->a);
    visit_expression(a, frame, node->b);
    visit_expression(a, frame, node->c);
    for (const struct node *item = node->list; item != NULL; item = item->next)
        visit_expression(a, frame, item);
    for (const struct node *item = node->more; item != NULL; item = item->next)
        visit_expression(a, frame, item);
    a->depth--;
}

static void visit_target(struct analysis *a, struct frame *frame, const struct node *target)
{
    if (target->kind == N_NAME)
        add_store(a, frame, target->symbol);
    else if (target->kind == N_NSREF)
        add_load(a, frame, target->symbol);
    for (const struct node *item = target->list; item != NULL; item = item->next)
        visit_target(a, frame, item);
}

/* Merges what a branch has added since `before`. */
static void join_branch(struct analysis *a, struct frame *frame, const struct ref *before,
                        const struct ref *branch, const struct frame *branches)
{
    for (; branch != before && a->rc == 0; branch = branch->older) {
        const struct ref *old = find_own(before, branch->symbol);
        if (old != NULL && old->is_stored)
            continue;
        bool is_always = branch->is_stored;
        for (int i = 0; i < 3; i++) {
            const struct ref *there = find_own(branches[i].refs, branch->symbol);
            is_always = is_always && there != NULL && there->is_stored;
        }
        const bool is_hidden = is_always && old == NULL &&
                               !is_known_outside(frame, branch->symbol);
        add_ref(a, frame, branch->symbol, is_hidden ? REF_HIDDEN : REF_FOUND, branch->is_stored);
    }
}

static void visit_if(struct analysis *a, struct frame *frame, const struct node *node)
{
    visit_expression(a, frame, node->a);
    const struct ref *before = frame->refs;
    struct frame branches[3] = {*frame, *frame, *frame};
    visit_list(a, &branches[0], node->body);
    for (const struct node *other = node->list; other != NULL; other = other->next)
        visit_if(a, &branches[1], other);
    visit_list(a, &branches[2], node->more);
    for (int i = 0; i < 3; i++)
        join_branch(a, frame, before, branches[i].refs, branches);
}

static void visit_list(struct analysis *a, struct frame *frame, const struct node *node)
{
    for (; node != NULL && a->rc == 0; node = node->next) {
        switch (node->kind) {
        case N_IF:
            visit_if(a, frame, node);
            break;
        case N_SET:
            visit_expression(a, frame, node->b);
            visit_target(a, frame, node->a);
            break;
        case N_SET_BLOCK:
            visit_target(a, frame, node->a);
            break;
        case N_MACRO:
            add_store(a, frame, node->symbol);
            break;
        case N_FOR:
            visit_expression(a, frame, node->b);
            break;
        case N_PRINT:
        case N_CALL_BLOCK:
        case N_FILTER_BLOCK:
            visit_expression(a, frame, node->a);
            break;
        case N_WITH:
            for (const struct node *set = node->list; set != NULL; set = set->next)
                visit_expression(a, frame, set->b);
            break;
        default:
            break;
        }
    }
}

/* ---- all frames ------------------------------------------------------------------------------ */

static void keep_hidden(struct analysis *a, const struct frame *frame, struct symbol ***hidden,
                        size_t *n_hidden)
{
    size_t n = 0;
    for (const struct ref *ref = frame->refs; ref != NULL; ref = ref->older)
        n += ref->state == REF_HIDDEN;
    *hidden = a->rc == 0 ? arena_new(&a->jinja->arena, (n + 1) * sizeof **hidden, a->err) : NULL;
    *n_hidden = 0;
    if (*hidden == NULL) {
        a->rc = a->rc != 0 ? a->rc : a->err->code;
        return;
    }
    for (const struct ref *ref = frame->refs; ref != NULL; ref = ref->older)
        if (ref->state == REF_HIDDEN && find_own(frame->refs, ref->symbol) == ref)
            (*hidden)[(*n_hidden)++] = (struct symbol *)ref->symbol;
}

static void add_parameters(struct analysis *a, struct frame *frame, const struct node *list)
{
    for (; list != NULL; list = list->next)
        if (list->symbol != NULL)
            add_ref(a, frame, list->symbol, REF_FOUND, true);
}

static void add_target(struct analysis *a, struct frame *frame, const struct node *target)
{
    if (target->kind == N_NAME)
        add_ref(a, frame, target->symbol, REF_FOUND, true);
    for (const struct node *item = target->list; item != NULL; item = item->next)
        add_target(a, frame, item);
}

static void analyse_body(struct analysis *a, struct frame *frame, struct node *node)
{
    visit_list(a, frame, node->body);
    keep_hidden(a, frame, &node->hidden, &node->n_hidden);
    analyse_scopes(a, frame, node->body);
}

static void analyse_scope(struct analysis *a, const struct frame *parent, struct node *node)
{
    struct frame frame = {.parent = parent};
    switch (node->kind) {
    case N_FOR:
        add_target(a, &frame, node->a);
        break;
    case N_MACRO:
    case N_CALL_BLOCK:
        add_parameters(a, &frame, node->list);
        for (const struct node *item = node->list; item != NULL; item = item->next)
            visit_expression(a, &frame, item->a);
        break;
    case N_WITH:
        for (const struct node *set = node->list; set != NULL; set = set->next)
            add_target(a, &frame, set->a);
        break;
    default:
        break;
    }
    analyse_body(a, &frame, node);
    if (node->kind == N_FOR && node->more != NULL) {
        struct frame other = {.parent = parent};
        visit_list(a, &other, node->more);
        analyse_scopes(a, &other, node->more);
    }
}

static void analyse_scopes(struct analysis *a, const struct frame *frame, struct node *body)
{
    for (struct node *node = body; node != NULL && a->rc == 0; node = node->next) {
        if (node->kind == N_IF) {
            analyse_scopes(a, frame, node->body);
            analyse_scopes(a, frame, node->list);
            analyse_scopes(a, frame, node->more);
        } else if (node->kind == N_FOR || node->kind == N_MACRO || node->kind == N_CALL_BLOCK ||
                   node->kind == N_WITH || node->kind == N_FILTER_BLOCK ||
                   node->kind == N_SET_BLOCK || node->kind == N_GENERATION) {
            analyse_scope(a, frame, node);
        }
    }
}

int scopes_analyse(struct jinja *jinja, struct fm_error *err)
{
    struct analysis a = {.jinja = jinja, .err = err};
    struct frame frame = {0};
    visit_list(&a, &frame, jinja->body);
    keep_hidden(&a, &frame, &jinja->hidden, &jinja->n_hidden);
    analyse_scopes(&a, &frame, jinja->body);
    return a.rc;
}
