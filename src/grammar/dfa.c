#include "grammar/dfa.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "text/unicode.h"

/* ---- running -------------------------------------------------------------------------------- */

/* Returns the first edge of the state that ends at or after `c`. */
static const struct dfa_edge *find_edge(const struct dfa *d, uint32_t state, uint32_t c,
                                        const struct dfa_edge **end)
{
    const struct dfa_edge *lo = d->edges + d->states[state].first;
    const struct dfa_edge *hi = *end = d->edges + d->states[state + 1].first;
    while (lo < hi) {
        const struct dfa_edge *middle = lo + (hi - lo) / 2;
        if (middle->hi < c)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

uint32_t dfa_step(const struct dfa *d, uint32_t state, uint32_t c)
{
    const struct dfa_edge *end, *e = find_edge(d, state, c, &end);
    return e < end && e->lo <= c ? e->to : DFA_NONE;
}

bool dfa_leads(const struct dfa *d, uint32_t state, uint32_t lo, uint32_t hi)
{
    const struct dfa_edge *end, *e = find_edge(d, state, lo, &end);
    return e < end && e->lo <= hi;
}

bool dfa_accepts(const struct dfa *d, const char *utf8, size_t bytes)
{
    if (d->n_states == 0)
        return false;
    uint32_t state = 0, c;
    for (size_t i = 0; i < bytes && state != DFA_NONE;) {
        i += utf8_get((const uint8_t *)utf8 + i, &c);
        state = dfa_step(d, state, c);
    }
    return state != DFA_NONE && d->states[state].accepts;
}

/* ---- building ------------------------------------------------------------------------------- */

struct work_state {
    uint32_t key, n_key; /* offset and length in words */
    uint32_t first;      /* index of its first edge */
    bool accepts, is_live;
};

struct dfa_work {
    void *states; /* struct work_state */
    size_t n_states, states_capacity;
    void *edges; /* struct dfa_edge */
    size_t n_edges, edges_capacity;
    size_t first_edge; /* of the state whose edges are being added */
    void *words; /* uint32_t: the keys */
    size_t n_words, words_capacity;
    uint32_t *table; /* [table_size] state plus one, by hash of its key */
    size_t table_size;
};

int dfa_burn(struct dfa_maker *maker, uint64_t fuel, struct fm_error *err)
{
    if (maker->fuel < fuel) {
        maker->fuel = 0;
        return err_set(err, FM_ERR_ARG, "it takes too much work to enforce; simplify it");
    }
    maker->fuel -= fuel;
    return 0;
}

void dfa_spend(struct dfa_maker *maker, uint64_t fuel)
{
    maker->fuel = maker->fuel > fuel ? maker->fuel - fuel : 0;
}

static struct work_state *state_at(const struct dfa_work *w, size_t i)
{
    return (struct work_state *)w->states + i;
}

static int grow_table(struct dfa_work *w, struct fm_error *err)
{
    const size_t size = w->table_size > 0 ? 2 * w->table_size : 256;
    uint32_t *table = mem_new(size, sizeof *table, "an automaton", err);
    if (table == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < w->n_states; i++) {
        const struct work_state *s = state_at(w, i);
        size_t at = XXH3_64bits((uint32_t *)w->words + s->key, 4 * s->n_key) & (size - 1);
        while (table[at] != 0)
            at = (at + 1) & (size - 1);
        table[at] = (uint32_t)i + 1;
    }
    mem_free(w->table);
    w->table = table;
    w->table_size = size;
    return 0;
}

/* Finds the state of a key, or adds it. */
static int find_state(struct dfa_maker *maker, const uint32_t *key, size_t n, uint32_t *state,
                      struct fm_error *err)
{
    struct dfa_work *w = maker->work;
    int rc = 2 * w->n_states >= w->table_size ? grow_table(w, err) : 0;
    if (rc == 0)
        rc = dfa_burn(maker, 1 + n / 4, err);
    if (rc != 0)
        return rc;
    size_t at = XXH3_64bits(key, 4 * n) & (w->table_size - 1);
    for (; w->table[at] != 0; at = (at + 1) & (w->table_size - 1)) {
        const struct work_state *s = state_at(w, w->table[at] - 1);
        if (s->n_key == n && memcmp((uint32_t *)w->words + s->key, key, 4 * n) == 0) {
            *state = w->table[at] - 1;
            return 0;
        }
    }
    if (w->n_states == DFA_STATES)
        return err_set(err, FM_ERR_ARG, "it takes an automaton of more than %u states; simplify it",
                       DFA_STATES);
    rc = mem_grow(&w->states, &w->states_capacity, w->n_states + 1, sizeof(struct work_state),
                  "an automaton", err);
    if (rc == 0)
        rc = mem_grow(&w->words, &w->words_capacity, w->n_words + n, 4, "an automaton", err);
    if (rc != 0)
        return rc;
    *state_at(w, w->n_states) = (struct work_state){.key = (uint32_t)w->n_words,
                                                    .n_key = (uint32_t)n};
    memcpy((uint32_t *)w->words + w->n_words, key, 4 * n);
    w->n_words += n;
    *state = (uint32_t)w->n_states++;
    w->table[at] = *state + 1;
    return 0;
}

int dfa_edge_add(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const uint32_t *key, size_t n,
                 struct fm_error *err)
{
    struct dfa_work *w = maker->work;
    uint32_t to;
    int rc = find_state(maker, key, n, &to, err);
    if (rc == 0 && w->n_edges == DFA_EDGES)
        rc = err_set(err, FM_ERR_ARG, "it takes an automaton of more than %u edges; simplify "
                     "it", DFA_EDGES);
    if (rc == 0)
        rc = mem_grow(&w->edges, &w->edges_capacity, w->n_edges + 1, sizeof(struct dfa_edge),
                      "an automaton", err);
    if (rc != 0)
        return rc;
    struct dfa_edge *edges = w->edges, *last = w->n_edges > 0 ? edges + w->n_edges - 1 : edges;
    if (w->n_edges > w->first_edge && last->to == to && last->hi + 1 == lo)
        last->hi = hi;
    else
        edges[w->n_edges++] = (struct dfa_edge){lo, hi, to};
    return 0;
}

/* Marks the states from which an accepting state can be reached. Works backwards until nothing
 * changes; this order lets chains finish in one pass. */
static int mark_live(struct dfa_maker *maker, struct fm_error *err)
{
    struct dfa_work *w = maker->work;
    const struct dfa_edge *edges = w->edges;
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        const int rc = dfa_burn(maker, w->n_edges / 8 + 1, err);
        if (rc != 0)
            return rc;
        for (size_t i = w->n_states; i-- > 0;) {
            struct work_state *s = state_at(w, i);
            const size_t end = i + 1 < w->n_states ? s[1].first : w->n_edges;
            bool is_live = s->is_live || s->accepts;
            for (size_t e = s->first; !is_live && e < end; e++)
                is_live = state_at(w, edges[e].to)->is_live;
            has_changed = has_changed || is_live != s->is_live;
            s->is_live = is_live;
        }
    }
    return 0;
}

/* Counts how many texts lead from each state to acceptance, if finite. Works in rounds: a state is
 * counted once all its successors are. States that are never counted lie on or before a cycle. */
static int count_words(struct dfa_maker *maker, struct dfa *d, struct fm_error *err)
{
    for (uint32_t i = 0; i < d->n_states; i++)
        d->n_words[i] = 0; /* not known yet; a live state has at least one */
    for (bool has_changed = true; has_changed;) {
        has_changed = false;
        const int rc = dfa_burn(maker, d->states[d->n_states].first / 8 + 1, err);
        if (rc != 0)
            return rc;
        for (uint32_t i = d->n_states; i-- > 0;) {
            uint64_t n = d->states[i].accepts;
            bool is_known = d->n_words[i] == 0;
            for (uint32_t e = d->states[i].first; is_known && e < d->states[i + 1].first; e++) {
                const uint64_t each = d->n_words[d->edges[e].to];
                const uint64_t width = d->edges[e].hi - d->edges[e].lo + 1;
                is_known = each != 0;
                n = each > (DFA_MANY - 1 - n) / width ? DFA_MANY - 1 : n + each * width;
            }
            if (is_known)
                d->n_words[i] = n;
            has_changed = has_changed || is_known;
        }
    }
    for (uint32_t i = 0; i < d->n_states; i++)
        d->n_words[i] = d->n_words[i] == 0 ? DFA_MANY : d->n_words[i];
    return 0;
}

/* Copies the live states, renumbered, into the arena. */
static int finish(struct dfa_maker *maker, const struct dfa **out, struct fm_error *err)
{
    struct dfa_work *w = maker->work;
    struct dfa *d = arena_new(maker->arena, sizeof *d, err);
    int rc = d == NULL ? FM_ERR_NOMEM : mark_live(maker, err);
    if (rc != 0)
        return rc;
    size_t n_states = 0, n_edges = 0;
    for (size_t i = 0; i < w->n_states; i++)
        state_at(w, i)->key = state_at(w, i)->is_live ? (uint32_t)n_states++ : DFA_NONE;
    const struct dfa_edge *edges = w->edges;
    for (size_t e = 0; e < w->n_edges; e++)
        n_edges += state_at(w, edges[e].to)->is_live;
    d->states = arena_new(maker->arena, (n_states + 1) * sizeof *d->states, err);
    d->edges = arena_new(maker->arena, n_edges * sizeof *d->edges, err);
    d->n_words = arena_new(maker->arena, n_states * sizeof *d->n_words, err);
    if (d->states == NULL || d->edges == NULL || d->n_words == NULL)
        return FM_ERR_NOMEM;
    n_edges = 0;
    for (size_t i = 0; i < w->n_states; i++) {
        const struct work_state *s = state_at(w, i);
        if (!s->is_live)
            continue;
        d->states[d->n_states++] = (struct dfa_state){(uint32_t)n_edges, s->accepts};
        const size_t end = i + 1 < w->n_states ? s[1].first : w->n_edges;
        for (size_t e = s->first; e < end; e++)
            if (state_at(w, edges[e].to)->is_live)
                d->edges[n_edges++] = (struct dfa_edge){edges[e].lo, edges[e].hi,
                                                        state_at(w, edges[e].to)->key};
    }
    d->states[d->n_states].first = (uint32_t)n_edges;
    *out = d;
    return count_words(maker, d, err);
}

int dfa_build(struct dfa_maker *maker, const struct dfa_spec *spec, const uint32_t *start,
              size_t n_start, const struct dfa **out, struct fm_error *err)
{
    struct dfa_work work = {0};
    uint32_t state, *key = NULL;
    size_t key_capacity = 0;
    maker->work = &work;
    int rc = find_state(maker, start, n_start, &state, err);
    for (size_t i = 0; rc == 0 && i < work.n_states; i++) {
        struct work_state *s = state_at(&work, i);
        const size_t n = s->n_key;
        rc = mem_grow((void **)&key, &key_capacity, n + 1, 4, "an automaton", err);
        if (rc != 0)
            break;
        /* copied, because the array of words may move */
        memcpy(key, (uint32_t *)work.words + s->key, 4 * n);
        s->accepts = spec->accepts(spec->ctx, key, n);
        s->first = (uint32_t)(work.first_edge = work.n_edges);
        rc = spec->edges(maker, spec->ctx, key, n, err);
    }
    if (rc == 0)
        rc = finish(maker, out, err);
    mem_free(key);
    mem_free(work.states);
    mem_free(work.edges);
    mem_free(work.words);
    mem_free(work.table);
    maker->work = NULL;
    return rc;
}

/* ---- two at once ---------------------------------------------------------------------------- */

struct pair {
    enum dfa_how how;
    const struct dfa *a, *b;
};

static bool pair_accepts(const void *ctx, const uint32_t *key, size_t n)
{
    (void)n;
    const struct pair *p = ctx;
    const bool a = key[0] != DFA_NONE && p->a->states[key[0]].accepts;
    const bool b = key[1] != DFA_NONE && p->b->states[key[1]].accepts;
    return p->how == DFA_BOTH ? a && b : p->how == DFA_EITHER ? a || b : a && !b;
}

/* Returns where one side's edges lead from code point `at`, and sets *last to the end of that
 * range. */
static uint32_t side_at(const struct dfa *d, uint32_t state, uint32_t at, uint32_t *last)
{
    if (state == DFA_NONE)
        return DFA_NONE;
    const struct dfa_edge *end, *e = find_edge(d, state, at, &end);
    if (e == end)
        return DFA_NONE;
    const uint32_t until = e->lo <= at ? e->hi : e->lo - 1;
    *last = until < *last ? until : *last;
    return e->lo <= at ? e->to : DFA_NONE;
}

static int pair_edges(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                      struct fm_error *err)
{
    (void)n;
    const struct pair *p = ctx;
    int rc = 0;
    for (uint32_t at = 0, last; rc == 0 && at <= CODE_POINT_MAX; at = last + 1) {
        last = CODE_POINT_MAX;
        const uint32_t to[2] = {side_at(p->a, key[0], at, &last),
                                side_at(p->b, key[1], at, &last)};
        const bool leads = p->how == DFA_BOTH     ? to[0] != DFA_NONE && to[1] != DFA_NONE
                           : p->how == DFA_EITHER ? to[0] != DFA_NONE || to[1] != DFA_NONE
                                                  : to[0] != DFA_NONE;
        rc = leads ? dfa_edge_add(maker, at, last, to, 2, err) : dfa_burn(maker, 1, err);
    }
    return rc;
}

int dfa_combine(struct dfa_maker *maker, enum dfa_how how, const struct dfa *a,
                const struct dfa *b, const struct dfa **out, struct fm_error *err)
{
    const struct pair pair = {how, a, b};
    const uint32_t start[2] = {a->n_states > 0 ? 0 : DFA_NONE, b->n_states > 0 ? 0 : DFA_NONE};
    return dfa_build(maker, &(struct dfa_spec){&pair, pair_accepts, pair_edges}, start, 2, out,
                     err);
}

/* ---- simple ones ---------------------------------------------------------------------------- */

struct lengths {
    uint32_t min, max;
    uint32_t lo, hi; /* the allowed characters */
};

static bool lengths_accept(const void *ctx, const uint32_t *key, size_t n)
{
    (void)n;
    const struct lengths *l = ctx;
    return key[0] >= l->min && key[0] <= l->max;
}

static int lengths_edges(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                         struct fm_error *err)
{
    (void)n;
    const struct lengths *l = ctx;
    if (key[0] == l->max)
        return 0;
    /* Without an upper limit, all lengths beyond the lower limit share one state. */
    const uint32_t next = l->max == DFA_NONE && key[0] == l->min ? key[0] : key[0] + 1;
    const uint32_t below = l->hi < 0xd800 ? l->hi : 0xd7ff;
    const uint32_t above = l->lo > 0xe000 ? l->lo : 0xe000;
    int rc = l->lo <= below ? dfa_edge_add(maker, l->lo, below, &next, 1, err) : 0;
    if (rc == 0 && above <= l->hi)
        rc = dfa_edge_add(maker, above, l->hi, &next, 1, err);
    return rc;
}

int dfa_lengths(struct dfa_maker *maker, uint32_t min, uint32_t max, const struct dfa **out,
                struct fm_error *err)
{
    const struct lengths l = {min, max, 0, CODE_POINT_MAX};
    const uint32_t start = 0;
    return dfa_build(maker, &(struct dfa_spec){&l, lengths_accept, lengths_edges}, &start, 1, out,
                     err);
}

int dfa_alphabet(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const struct dfa **out,
                 struct fm_error *err)
{
    const struct lengths l = {0, DFA_NONE, lo, hi};
    const uint32_t start = 0;
    return dfa_build(maker, &(struct dfa_spec){&l, lengths_accept, lengths_edges}, &start, 1, out,
                     err);
}

/* A key is a range of the sorted words that share a prefix: first, end, bytes of the prefix. */
static bool words_accept(const void *ctx, const uint32_t *key, size_t n)
{
    (void)n;
    const struct dfa_word *words = ctx;
    return words[key[0]].bytes == key[2]; /* the shortest word comes first */
}

static int words_edges(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                       struct fm_error *err)
{
    (void)n;
    const struct dfa_word *words = ctx;
    int rc = dfa_burn(maker, key[1] - key[0], err);
    for (uint32_t i = key[0]; rc == 0 && i < key[1];) {
        if (words[i].bytes == key[2]) {
            i++;
            continue;
        }
        uint32_t c;
        const size_t used = utf8_get((const uint8_t *)words[i].text + key[2], &c);
        uint32_t end = i + 1;
        while (end < key[1] && words[end].bytes >= key[2] + used &&
               memcmp(words[end].text + key[2], words[i].text + key[2], used) == 0)
            end++;
        rc = dfa_edge_add(maker, c, c, (uint32_t[]){i, end, key[2] + (uint32_t)used}, 3, err);
        i = end;
    }
    return rc;
}

static int compare_words(const void *a, const void *b)
{
    const struct dfa_word *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

int dfa_words(struct dfa_maker *maker, struct dfa_word *words, size_t n, const struct dfa **out,
              struct fm_error *err)
{
    if (n == 0) { /* nothing is accepted */
        const struct lengths none = {1, 0, 0, 0};
        const uint32_t start = 0;
        return dfa_build(maker, &(struct dfa_spec){&none, lengths_accept, lengths_edges}, &start,
                         1, out, err);
    }
    qsort(words, n, sizeof *words, compare_words);
    const uint32_t start[3] = {0, (uint32_t)n, 0};
    return dfa_build(maker, &(struct dfa_spec){words, words_accept, words_edges}, start, 3, out,
                     err);
}
