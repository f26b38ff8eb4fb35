#include "grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/regex_tree.h"

enum { NFA_SET, NFA_FORK, NFA_BEGIN, NFA_END, NFA_ACCEPT };

struct nfa_node {
    uint8_t kind;
    uint32_t to, or_to; /* or_to is only for a fork; DFA_NONE for nowhere */
    const struct regex_node *set;
};

struct nfa {
    struct dfa_maker *maker;
    struct nfa_node *nodes; /* [REGEX_NODES] */
    uint32_t n;
    uint32_t *seen, round; /* [REGEX_NODES] the last round in which a closure contained the node */
    uint32_t *set, n_set;  /* [REGEX_NODES] nodes of a closure, sorted */
    uint32_t *bounds;      /* [2 * ranges of one set] code points where the set of nodes changes */
    size_t bounds_capacity;
    struct fm_error *err;
    int rc;
};

static uint32_t add(struct nfa *a, uint8_t kind, uint32_t to, uint32_t or_to)
{
    if (a->n == REGEX_NODES) {
        if (a->rc == 0)
            a->rc = err_set(a->err, FM_ERR_ARG, "it has too many repetitions to be enforced");
        return 0;
    }
    a->nodes[a->n] = (struct nfa_node){kind, to, or_to, NULL};
    return a->n++;
}

/* Emits the nodes of a tree that continue with `next`. Returns the first node. */
static uint32_t emit(struct nfa *a, const struct regex_node *node, uint32_t next);

static uint32_t emit_chain(struct nfa *a, const struct regex_node *node, uint32_t next)
{
    if (node == NULL || a->rc != 0)
        return next;
    const struct regex_node *parts[64]; /* emitted from its end */
    unsigned n = 0;
    for (; node != NULL && n < 64; node = node->next)
        parts[n++] = node;
    next = emit_chain(a, node, next);
    while (n-- > 0)
        next = emit(a, parts[n], next);
    return next;
}

static uint32_t emit_repeat(struct nfa *a, const struct regex_node *node, uint32_t next)
{
    if (node->max == DFA_NONE) {
        const uint32_t fork = add(a, NFA_FORK, DFA_NONE, next);
        const uint32_t inner = emit(a, node->first, fork);
        a->nodes[fork].to = inner;
        next = fork;
    }
    const uint32_t behind = next;
    for (uint32_t i = node->min; node->max != DFA_NONE && i < node->max && a->rc == 0; i++) {
        const uint32_t inner = emit(a, node->first, next);
        next = add(a, NFA_FORK, inner, behind);
    }
    for (uint32_t i = 0; i < node->min && a->rc == 0; i++)
        next = emit(a, node->first, next);
    return next;
}

static uint32_t emit(struct nfa *a, const struct regex_node *node, uint32_t next)
{
    uint32_t at = next;
    if (a->rc == 0)
        a->rc = dfa_burn(a->maker, 1, a->err);
    if (a->rc != 0)
        return next;
    switch (node->kind) {
    case REGEX_SET:
        at = add(a, NFA_SET, next, DFA_NONE);
        a->nodes[at].set = node;
        return at;
    case REGEX_BEGIN:
    case REGEX_END:
        return add(a, node->kind == REGEX_BEGIN ? NFA_BEGIN : NFA_END, next, DFA_NONE);
    case REGEX_CHAIN:
        return emit_chain(a, node->first, next);
    case REGEX_CHOICE:
        at = emit(a, node->first, next);
        for (const struct regex_node *c = node->first->next; c != NULL; c = c->next)
            at = add(a, NFA_FORK, emit(a, c, next), at);
        return at;
    case REGEX_REPEAT:
        return emit_repeat(a, node, next);
    }
    return next;
}

/* ---- sets of nodes -------------------------------------------------------------------------- */

/* Adds a node and everything it reaches without a character. Passes ^ only at the beginning and $
 * only at the end. Returns whether an accepting node was reached. Spends fuel for each node. */
static bool close_over(struct nfa *a, uint32_t from, bool is_begin, bool is_end)
{
    uint32_t top = a->n_set, *stack = a->set + REGEX_NODES; /* the stack uses the upper half of the
                                                             * array */
    uint32_t n = 0, n_seen = 0;
    bool accepts = false;
    stack[n++] = from;
    while (n > 0) {
        const uint32_t i = stack[--n];
        n_seen++;
        if (i == DFA_NONE || a->seen[i] == a->round)
            continue;
        a->seen[i] = a->round;
        const struct nfa_node *node = &a->nodes[i];
        accepts = accepts || node->kind == NFA_ACCEPT;
        if (node->kind == NFA_FORK) {
            stack[n++] = node->to;
            stack[n++] = node->or_to;
        } else if ((node->kind == NFA_BEGIN && is_begin) || (node->kind == NFA_END && is_end)) {
            stack[n++] = node->to;
        } else if (node->kind != NFA_BEGIN) {
            a->set[top++] = i;
        }
    }
    a->n_set = top;
    dfa_spend(a->maker, n_seen);
    return accepts;
}

static int compare_words(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static bool nfa_accepts(const void *ctx, const uint32_t *key, size_t n)
{
    struct nfa *a = *(struct nfa *const *)ctx;
    bool accepts = false;
    a->round++;
    a->n_set = 0;
    for (size_t i = 0; i < n; i++)
        accepts = close_over(a, key[i], n > 0 && key[n - 1] == DFA_NONE, true) || accepts;
    return accepts;
}

static int add_bounds(struct nfa *a, const uint32_t *key, size_t n, size_t *n_bounds)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (key[i] == DFA_NONE || a->nodes[key[i]].kind != NFA_SET)
            continue;
        const struct regex_node *set = a->nodes[key[i]].set;
        int rc = dfa_burn(a->maker, 4 * set->n_ranges, a->err);
        if (rc == 0)
            rc = mem_grow((void **)&a->bounds, &a->bounds_capacity, used + 2 * set->n_ranges, 4,
                          "a pattern", a->err);
        if (rc != 0)
            return rc;
        for (uint32_t r = 0; r < set->n_ranges; r++) {
            a->bounds[used++] = set->ranges[r].lo;
            a->bounds[used++] = set->ranges[r].hi + 1;
        }
    }
    if (used > 0)
        qsort(a->bounds, used, sizeof *a->bounds, compare_words);
    *n_bounds = used;
    return 0;
}

static bool set_has(const struct regex_node *set, uint32_t c)
{
    uint32_t lo = 0, hi = set->n_ranges;
    while (lo < hi) {
        const uint32_t middle = (lo + hi) / 2;
        if (set->ranges[middle].hi < c)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < set->n_ranges && set->ranges[lo].lo <= c;
}

/* The key of a set of nodes is their numbers. A final DFA_NONE marks the beginning of the text,
 * where ^ was passed and may be passed again after a $. */
static int nfa_edges(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                     struct fm_error *err)
{
    struct nfa *a = *(struct nfa *const *)ctx;
    size_t n_bounds;
    int rc = add_bounds(a, key, n, &n_bounds);
    for (size_t b = 0; rc == 0 && b + 1 < n_bounds; b++) {
        const uint32_t lo = a->bounds[b], hi = a->bounds[b + 1];
        if (lo == hi)
            continue;
        a->round++;
        a->n_set = 0;
        for (size_t i = 0; i < n; i++)
            if (key[i] != DFA_NONE && a->nodes[key[i]].kind == NFA_SET &&
                set_has(a->nodes[key[i]].set, lo))
                (void)close_over(a, a->nodes[key[i]].to, false, false);
        rc = dfa_burn(maker, 4 * (n + a->n_set), err);
        if (rc != 0 || a->n_set == 0)
            continue;
        qsort(a->set, a->n_set, sizeof *a->set, compare_words);
        rc = dfa_edge_add(maker, lo, hi - 1, a->set, a->n_set, err);
    }
    return rc;
}

/* Emits the nodes of the expression, matched anywhere in a text. Returns the start node. */
static uint32_t emit_search(struct nfa *a, const struct regex_node *tree)
{
    static const struct code_range all[] = {{0, 0xd7ff}, {0xe000, CODE_POINT_MAX}};
    static const struct regex_node any = {.kind = REGEX_SET, .ranges = all, .n_ranges = 2};
    const uint32_t accept = add(a, NFA_ACCEPT, DFA_NONE, DFA_NONE);
    const uint32_t after = add(a, NFA_FORK, DFA_NONE, accept);
    const uint32_t rest = emit(a, &any, after);
    a->nodes[after].to = rest;
    const uint32_t found = emit(a, tree, after);
    const uint32_t before = add(a, NFA_FORK, DFA_NONE, found);
    const uint32_t ahead = emit(a, &any, before);
    a->nodes[before].to = ahead;
    return before;
}

int regex_compile(struct dfa_maker *maker, const char *text, size_t bytes, const struct dfa **out,
                  struct fm_error *err)
{
    struct regex_node *tree;
    int rc = regex_parse(maker, text, bytes, &tree, err);
    if (rc != 0)
        return rc;
    struct nfa a = {.maker = maker, .err = err};
    a.nodes = mem_new(REGEX_NODES, sizeof *a.nodes, "a pattern", err);
    a.seen = mem_new(REGEX_NODES, sizeof *a.seen, "a pattern", err);
    a.set = mem_new(4 * (size_t)REGEX_NODES, sizeof *a.set, "a pattern", err);
    rc = a.nodes != NULL && a.seen != NULL && a.set != NULL ? 0 : FM_ERR_NOMEM;
    if (rc == 0) {
        const uint32_t start = emit_search(&a, tree);
        rc = a.rc;
        a.round = 1;
        (void)close_over(&a, start, true, false);
    }
    if (rc == 0) {
        struct nfa *self = &a;
        qsort(a.set, a.n_set, sizeof *a.set, compare_words);
        a.set[a.n_set] = DFA_NONE;
        const struct dfa_spec spec = {&self, nfa_accepts, nfa_edges};
        uint32_t *start = arena_new(maker->arena, (a.n_set + 1) * sizeof *start, err);
        if (start != NULL)
            memcpy(start, a.set, (a.n_set + 1) * sizeof *start);
        rc = start != NULL ? dfa_build(maker, &spec, start, a.n_set + 1, out, err) : FM_ERR_NOMEM;
    }
    mem_free(a.nodes);
    mem_free(a.seen);
    mem_free(a.set);
    mem_free(a.bounds);
    return rc;
}
