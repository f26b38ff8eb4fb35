#include "grammar/gbnf_machine.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "grammar/dfa.h"
#include "grammar/gbnf_states.h"

#define STACKS 512u          /* maximum ways in which an answer may fit */
#define NODES (1u << 15)     /* maximum; unused ones are removed between tokens */
#define TABLE (2u * NODES)   /* of hashes; a power of two */
#define FOLLOWERS (1u << 17) /* maximum entries of all lists of what a node begins with */
#define MASKS 32u
#define STEPS (1u << 27) /* maximum work for one mask; see gbnf_machine_steps */
#define NONE UINT32_MAX

struct node {
    uint32_t element, below;
    uint32_t first, n; /* unless a set: the sets that it may begin with, in `followers` */
    bool is_known;     /* the last two are set */
    bool may_end;      /* it may be empty, and all below it */
    uint32_t stamp;    /* of the last search that found it */
    uint64_t taken;    /* the last character whose followers include it */
};

/* Where an answer is. */
struct state {
    uint32_t n;
    uint32_t nodes[STACKS]; /* in the order in which they were found */
    uint32_t partial;       /* the bits of a character that is not complete */
    uint8_t n_bytes, n_left; /* its bytes, and those that are missing; 0: it is complete */
    bool may_end;
};

struct mask {
    struct state state;
    uint32_t *bits;
};

struct gbnf_machine {
    struct gbnf *g;
    const struct token_trie *trie;
    struct node *nodes, *spare; /* [NODES] */
    uint32_t n_nodes, stamp;
    uint64_t taken, n_steps;
    bool is_exhausted; /* more than STEPS; until the next reset */
    uint32_t forget_at; /* so many nodes are worth removing some */
    uint32_t *table; /* [TABLE] index of a node plus one; 0: free */
    uint32_t *followers; /* [FOLLOWERS] */
    uint32_t n_followers;
    uint32_t *work; /* [NODES] */
    struct state now;
    struct gbnf_states states;
    struct state *levels; /* [longest + 1] states behind each byte of a token, unless they have: */
    uint32_t *numbers;    /* [longest + 1] in `states` */
    struct mask masks[MASKS];
    uint32_t n_masks, next_mask;
    uint32_t *no_bits; /* the mask that allows nothing */
};

/* ---- nodes ---------------------------------------------------------------------------------- */

static void count(struct gbnf_machine *m)
{
    if (++m->n_steps > STEPS)
        m->is_exhausted = true;
}

/* Returns the node, or NONE if there is no room. */
static uint32_t node_of(struct gbnf_machine *m, uint32_t element, uint32_t below)
{
    uint32_t at = (uint32_t)splitmix_mix((uint64_t)below << 32 | element) & (TABLE - 1);
    for (; m->table[at] != 0; at = (at + 1) & (TABLE - 1)) {
        const struct node *node = &m->nodes[m->table[at] - 1];
        if (node->element == element && node->below == below)
            return m->table[at] - 1;
    }
    if (m->n_nodes == NODES)
        return NONE;
    m->nodes[m->n_nodes] = (struct node){.element = element, .below = below};
    m->table[at] = ++m->n_nodes;
    return m->n_nodes - 1;
}

/* What a search finds: the sets that may come next. */
struct found {
    uint32_t nodes[STACKS];
    uint32_t n, n_work;
    bool may_end;
    bool is_cut;     /* more than STACKS */
    bool is_too_deep; /* more than NODES */
};

/* Adds an element to what is still to be looked at. */
static void want(struct gbnf_machine *m, struct found *f, uint32_t element, uint32_t below)
{
    const uint32_t node = node_of(m, element, below);
    count(m);
    f->is_too_deep = f->is_too_deep || node == NONE;
    if (node == NONE || m->nodes[node].stamp == m->stamp)
        return;
    m->nodes[node].stamp = m->stamp;
    m->work[f->n_work++] = node;
}

static void look_at(struct gbnf_machine *m, struct found *f, uint32_t node)
{
    const struct gbnf_element *e = &m->g->elements[m->nodes[node].element];
    const uint32_t element = m->nodes[node].element, below = m->nodes[node].below;
    if (e->kind == GBNF_SET) {
        if (f->n < STACKS)
            f->nodes[f->n++] = node;
        else
            f->is_cut = true;
        return;
    }
    if (e->kind == GBNF_END) {
        if (below == NONE)
            f->may_end = true;
        else
            want(m, f, m->nodes[below].element, m->nodes[below].below);
        return;
    }
    /* Nothing is left to read behind the last rule of an alternative. */
    const bool is_last = m->g->elements[element + 1].kind == GBNF_END;
    const uint32_t then = is_last ? below : node_of(m, element + 1, below);
    const struct gbnf_rule *rule = &m->g->rules[e->rule];
    f->is_too_deep = f->is_too_deep || (!is_last && then == NONE);
    for (size_t k = 0; (is_last || then != NONE) && k < rule->n; k++)
        want(m, f, rule->alternatives[k], then);
}

static void search(struct gbnf_machine *m, struct found *f)
{
    for (uint32_t i = 0; i < f->n_work && !m->is_exhausted; i++)
        look_at(m, f, m->work[i]);
}

/* Finds the sets that a node may begin with, once. */
static void find_beginnings(struct gbnf_machine *m, uint32_t at)
{
    struct found f = {.n = 0};
    if (m->nodes[at].is_known)
        return;
    m->stamp++;
    want(m, &f, m->nodes[at].element, m->nodes[at].below);
    search(m, &f);
    if (m->is_exhausted)
        return;
    if (f.n > FOLLOWERS - m->n_followers)
        f.n = FOLLOWERS - m->n_followers;
    struct node *node = &m->nodes[at];
    node->first = m->n_followers;
    node->n = f.n;
    node->may_end = f.may_end;
    node->is_known = true;
    memcpy(m->followers + m->n_followers, f.nodes, f.n * sizeof *f.nodes);
    m->n_followers += f.n;
}

/* ---- characters ----------------------------------------------------------------------------- */

/* Returns whether the set of a node has a character from lo to hi. */
static bool has_any(struct gbnf_machine *m, uint32_t node, uint32_t lo, uint32_t hi)
{
    const struct gbnf_element *e = &m->g->elements[m->nodes[node].element];
    const struct gbnf_range *r = m->g->ranges + e->first_range;
    uint32_t a = 0, b = e->n_ranges;
    count(m);
    while (a < b) { /* the first range that does not end before lo */
        const uint32_t middle = (a + b) / 2;
        count(m);
        if (r[middle].hi < lo)
            a = middle + 1;
        else
            b = middle;
    }
    return a < e->n_ranges && r[a].lo <= hi;
}

/* Returns whether the node is new behind this character. */
static bool take(struct gbnf_machine *m, uint32_t node)
{
    const bool is_new = m->nodes[node].taken != m->taken;
    count(m);
    m->nodes[node].taken = m->taken;
    return is_new;
}

static void take_set(struct gbnf_machine *m, struct state *out, uint32_t node)
{
    if (take(m, node) && out->n < STACKS)
        out->nodes[out->n++] = node;
}

/* Takes what follows the character of a node. Many nodes may have the same behind them: the last
 * characters of all alternatives of a group, for example. */
static void take_followers(struct gbnf_machine *m, struct state *out, uint32_t at)
{
    const uint32_t element = m->nodes[at].element + 1, below = m->nodes[at].below;
    const bool is_last = m->g->elements[element].kind == GBNF_END;
    const uint32_t next = is_last ? below : node_of(m, element, below);
    if (next == NONE) { /* nothing follows, or there is no room */
        out->may_end = out->may_end || is_last;
        return;
    }
    if (m->g->elements[m->nodes[next].element].kind == GBNF_SET) {
        take_set(m, out, next);
        return;
    }
    if (!take(m, next))
        return;
    find_beginnings(m, next);
    const struct node *node = &m->nodes[next];
    out->may_end = out->may_end || node->may_end;
    for (uint32_t k = 0; k < node->n; k++)
        take_set(m, out, m->followers[node->first + k]);
}

static bool take_character(struct gbnf_machine *m, const struct gbnf_view *in, uint32_t c,
                           struct state *out)
{
    m->taken++;
    for (uint32_t i = 0; i < in->n && !m->is_exhausted; i++)
        if (has_any(m, in->nodes[i], c, c))
            take_followers(m, out, in->nodes[i]);
    return out->n > 0 || out->may_end;
}

/* Returns whether some stack can go on with a character that begins with these bits. */
static bool may_begin(struct gbnf_machine *m, const struct gbnf_view *in, uint32_t partial,
                      unsigned n_bytes, unsigned n_left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t lo = partial << 6 * n_left, hi = lo | ((1u << 6 * n_left) - 1);
    lo = lo > least[n_bytes] ? lo : least[n_bytes]; /* no character has two spellings */
    hi = hi < CODE_POINT_MAX ? hi : CODE_POINT_MAX;
    for (uint32_t i = 0; lo <= hi && i < in->n; i++)
        if (has_any(m, in->nodes[i], lo, hi))
            return true;
    return false;
}

/* Advances by a byte. Returns false if it does not fit. */
static bool step(struct gbnf_machine *m, const struct gbnf_view *in, uint8_t byte,
                 struct state *out)
{
    unsigned n_bytes = in->n_bytes, n_left = in->n_left;
    uint32_t c = byte;
    out->n = 0;
    out->may_end = false;
    out->partial = out->n_bytes = out->n_left = 0;
    if (n_left > 0) {
        if ((byte & 0xc0) != 0x80)
            return false;
        c = in->partial << 6 | (byte & 0x3fu);
        n_left--;
    } else if (byte >= 0x80) {
        if (byte < 0xc2 || byte > 0xf4)
            return false;
        n_bytes = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
        n_left = n_bytes - 1;
        c = byte & (0x7fu >> n_bytes);
    } else {
        n_bytes = 1;
    }
    if (n_left == 0)
        return take_character(m, in, c, out);
    if (!may_begin(m, in, c, n_bytes, n_left))
        return false;
    out->n = in->n;
    memcpy(out->nodes, in->nodes, in->n * sizeof *in->nodes);
    out->partial = c;
    out->n_bytes = (uint8_t)n_bytes;
    out->n_left = (uint8_t)n_left;
    return true;
}

/* ---- tokens --------------------------------------------------------------------------------- */

static bool is_same(const struct state *a, const struct state *b)
{
    return a->n == b->n && a->partial == b->partial && a->n_bytes == b->n_bytes &&
           a->n_left == b->n_left && memcmp(a->nodes, b->nodes, a->n * sizeof *a->nodes) == 0;
}

static struct gbnf_view view_of(const struct state *s)
{
    return (struct gbnf_view){.nodes = s->nodes, .n = s->n, .partial = s->partial,
                              .n_bytes = s->n_bytes, .n_left = s->n_left};
}

/* Advances from the state behind `depth - 1` bytes of a token to the one behind `depth`. Returns
 * false if the byte does not fit. */
static bool step_level(struct gbnf_machine *m, unsigned depth, uint8_t byte)
{
    const uint32_t from = m->numbers[depth - 1];
    uint16_t *known = from != GBNF_NO_STATE ? gbnf_states_next(&m->states, from, byte) : NULL;
    if (known != NULL && *known != GBNF_STEP_UNKNOWN) {
        m->numbers[depth] = *known - (uint32_t)GBNF_STEP_TO;
        return *known != GBNF_STEP_NONE;
    }
    const struct gbnf_view in = known != NULL ? gbnf_states_get(&m->states, from)
                                              : view_of(&m->levels[depth - 1]);
    const bool is_step = step(m, &in, byte, &m->levels[depth]);
    if (m->is_exhausted)
        return false;
    m->numbers[depth] = GBNF_NO_STATE;
    if (is_step) {
        const struct gbnf_view out = view_of(&m->levels[depth]);
        m->numbers[depth] = gbnf_states_find(&m->states, &out);
    }
    if (known != NULL && !is_step)
        *known = GBNF_STEP_NONE;
    else if (known != NULL && m->numbers[depth] != GBNF_NO_STATE)
        *known = (uint16_t)(m->numbers[depth] + GBNF_STEP_TO);
    return is_step;
}

static void walk(struct gbnf_machine *m, uint32_t *bits)
{
    const struct token_trie *trie = m->trie;
    const struct gbnf_view now = view_of(&m->now);
    memset(bits, 0, (trie->n_ids / 32 + 1) * sizeof *bits);
    m->levels[0] = m->now;
    /* A full table may know this state, but hardly those behind it. */
    if (m->states.is_full)
        gbnf_states_clear(&m->states);
    m->numbers[0] = gbnf_states_find(&m->states, &now);
    if (m->numbers[0] == GBNF_NO_STATE) { /* only its stacks were too many for what was left */
        gbnf_states_clear(&m->states);
        m->numbers[0] = gbnf_states_find(&m->states, &now);
    }
    for (uint32_t i = 0; i < trie->n_nodes && !m->is_exhausted;) {
        const struct trie_node *node = &trie->nodes[i];
        if (!step_level(m, node->depth, node->byte)) {
            i = node->end;
            continue;
        }
        for (int32_t id = node->token; id >= 0; id = trie->same[id])
            bits[id / 32] |= 1u << id % 32;
        i++;
    }
}

const uint32_t *gbnf_machine_mask(struct gbnf_machine *m)
{
    if (m->is_exhausted)
        return m->no_bits;
    for (uint32_t i = 0; i < m->n_masks; i++)
        if (is_same(&m->masks[i].state, &m->now))
            return m->masks[i].bits;
    struct mask *mask = &m->masks[m->next_mask];
    m->next_mask = (m->next_mask + 1) % MASKS;
    m->n_masks += m->n_masks < MASKS;
    mask->state = m->now;
    m->n_steps = 0;
    walk(m, mask->bits);
    if (!m->is_exhausted)
        return mask->bits;
    m->n_masks = m->next_mask = 0; /* the last one is not complete */
    return m->no_bits;
}

static int too_ambiguous(struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "the grammar is too ambiguous: the answer fits in too many "
                   "ways at a time; write what several alternatives have in common only once");
}

int gbnf_machine_check(struct gbnf_machine *m, struct fm_error *err)
{
    const uint32_t *mask = gbnf_machine_mask(m);
    bool is_stuck = !m->now.may_end;
    for (uint32_t i = 0; is_stuck && i < m->trie->n_ids / 32 + 1; i++)
        is_stuck = mask[i] == 0;
    if (m->is_exhausted)
        return too_ambiguous(err);
    return is_stuck ? err_set(err, FM_ERR_ARG, "no token can follow in the grammar: it is too deep "
                              "or too ambiguous here") : 0;
}

uint64_t gbnf_machine_steps(const struct gbnf_machine *m)
{
    return m->n_steps;
}

/* Forgets all nodes but those of the answer. */
static void forget(struct gbnf_machine *m)
{
    struct node *old = m->nodes;
    memset(m->table, 0, TABLE * sizeof *m->table);
    m->nodes = m->spare;
    m->spare = old;
    m->n_nodes = m->n_followers = m->n_masks = m->next_mask = m->stamp = 0;
    m->taken = 0;
    gbnf_states_clear(&m->states);
    for (uint32_t i = 0; i < m->now.n; i++) {
        /* From the bottom of the stack, which is found by turning its links round. */
        uint32_t above = NONE, at = m->now.nodes[i];
        while (at != NONE) {
            const uint32_t below = old[at].below;
            old[at].stamp = above;
            above = at;
            at = below;
        }
        uint32_t copy = NONE;
        for (at = above; at != NONE; at = old[at].stamp)
            copy = node_of(m, old[at].element, copy);
        m->now.nodes[i] = copy;
    }
    /* A deep stack keeps many: the next time comes when there is something to gain. */
    m->forget_at = m->n_nodes + NODES / 4 > NODES / 2 ? m->n_nodes + NODES / 4 : NODES / 2;
}

int gbnf_machine_accept_bytes(struct gbnf_machine *m, const char *bytes, size_t n,
                              struct fm_error *err)
{
    struct state a = m->now, b;
    if (m->n_nodes > m->forget_at || m->n_followers > FOLLOWERS / 2) {
        forget(m);
        a = m->now;
    }
    m->n_steps = 0;
    for (size_t i = 0; i < n; i++) {
        const struct gbnf_view in = view_of(&a);
        const bool is_step = step(m, &in, (uint8_t)bytes[i], &b);
        if (m->is_exhausted)
            return too_ambiguous(err);
        if (!is_step)
            return err_set(err, FM_ERR_ARG, "the text does not fit the grammar");
        a = b;
    }
    m->now = a;
    return 0;
}

int gbnf_machine_accept(struct gbnf_machine *m, int32_t id, struct fm_error *err)
{
    size_t bytes = 0;
    const char *text = tokenizer_piece(m->trie->tok, id, &bytes);
    const uint32_t *mask = gbnf_machine_mask(m);
    if (m->is_exhausted)
        return too_ambiguous(err);
    if (id < 0 || (uint32_t)id >= m->trie->n_ids || text == NULL ||
        (mask[id / 32] >> id % 32 & 1) == 0)
        return err_set(err, FM_ERR_ARG, "token %d does not fit the grammar", (int)id);
    return gbnf_machine_accept_bytes(m, text, bytes, err);
}

bool gbnf_machine_may_end(const struct gbnf_machine *m)
{
    return m->now.may_end && !m->is_exhausted;
}

bool gbnf_machine_must_end(const struct gbnf_machine *m)
{
    return gbnf_machine_may_end(m) && m->now.n == 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

/* Finds what an answer may begin with. */
static struct found start(struct gbnf_machine *m)
{
    struct found f = {.n = 0};
    const struct gbnf_rule *root = &m->g->rules[m->g->root];
    m->now = (struct state){.n = 0};
    if (m->n_nodes > NODES / 2)
        forget(m);
    m->n_steps = 0;
    m->is_exhausted = false;
    m->stamp++;
    for (size_t k = 0; k < root->n; k++)
        want(m, &f, root->alternatives[k], NONE);
    search(m, &f);
    m->now.n = f.n;
    m->now.may_end = f.may_end;
    memcpy(m->now.nodes, f.nodes, f.n * sizeof *f.nodes);
    return f;
}

static int check_start(struct gbnf_machine *m, struct fm_error *err)
{
    const struct found f = start(m);
    if (m->is_exhausted)
        return too_ambiguous(err);
    if (f.is_too_deep)
        return err_set(err, FM_ERR_ARG, "the grammar is too deep: its first character is more than "
                       "%u steps away from the rule 'root'", NODES);
    if (f.is_cut)
        return err_set(err, FM_ERR_ARG, "an answer may begin in more than %u ways in the grammar: "
                       "write what several alternatives begin with only once", STACKS);
    return 0;
}

void gbnf_machine_reset(struct gbnf_machine *m)
{
    const struct found f = start(m);
    assert(f.n > 0 || f.may_end);
    (void)f;
}

int gbnf_machine_open(struct gbnf *g, const struct token_trie *trie, struct gbnf_machine **out,
                      struct fm_error *err)
{
    *out = NULL;
    struct gbnf_machine *m = mem_new(1, sizeof *m, "a grammar", err);
    if (m == NULL) {
        gbnf_free(g);
        return FM_ERR_NOMEM;
    }
    m->g = g;
    m->trie = trie;
    m->forget_at = NODES / 2;
    m->nodes = mem_new(NODES, sizeof *m->nodes, "a grammar", err);
    m->spare = mem_new(NODES, sizeof *m->spare, "a grammar", err);
    m->table = mem_new(TABLE, sizeof *m->table, "a grammar", err);
    m->followers = mem_new(FOLLOWERS, sizeof *m->followers, "a grammar", err);
    m->work = mem_new(NODES, sizeof *m->work, "a grammar", err);
    m->levels = mem_new(trie->longest + 1, sizeof *m->levels, "a grammar", err);
    m->numbers = mem_new(trie->longest + 1, sizeof *m->numbers, "a grammar", err);
    m->no_bits = mem_new(trie->n_ids / 32 + 1, sizeof *m->no_bits, "a grammar", err);
    bool is_good = gbnf_states_init(&m->states, err) == 0 && m->numbers != NULL &&
                   m->no_bits != NULL && m->nodes != NULL && m->spare != NULL && m->table != NULL &&
                   m->followers != NULL && m->work != NULL && m->levels != NULL;
    for (uint32_t i = 0; is_good && i < MASKS; i++) {
        m->masks[i].bits = mem_new(trie->n_ids / 32 + 1, sizeof(uint32_t), "a grammar", err);
        is_good = m->masks[i].bits != NULL;
    }
    const int rc = is_good ? check_start(m, err) : FM_ERR_NOMEM;
    if (rc != 0)
        gbnf_machine_close(m);
    else
        *out = m;
    return rc;
}

void gbnf_machine_close(struct gbnf_machine *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; i < MASKS; i++)
        mem_free(m->masks[i].bits);
    mem_free(m->nodes);
    mem_free(m->spare);
    mem_free(m->table);
    mem_free(m->followers);
    mem_free(m->work);
    mem_free(m->levels);
    mem_free(m->numbers);
    mem_free(m->no_bits);
    gbnf_states_free(&m->states);
    gbnf_free(m->g);
    mem_free(m);
}
