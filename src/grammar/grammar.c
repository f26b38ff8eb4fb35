#include "grammar/grammar.h"

#include <string.h>

#include "base/mem.h"
#include "grammar/grammar_mask.h"
#include "grammar/schema.h"

/* Above this number, nodes that are no longer needed are removed. */
#define NODES_KEPT 4096u

struct grammar {
    const struct grammar_vocabulary *vocabulary;
    struct grammar_program *program;
    struct machine machine;
    size_t nodes_capacity;
    size_t n_kept; /* number of nodes after the last removal */
    struct threads *now, *next;
    void *text; /* the answer, with room for one token */
    size_t n_text, text_capacity;
    struct mask_maker maker;
    bool has_mask;
    bool is_looking; /* what is accepted will be undone */
    uint64_t n_masks;
};

/* ---- opening -------------------------------------------------------------------------------- */

int grammar_vocabulary_open(const struct tokenizer *tok, uint32_t n_ids,
                            struct grammar_vocabulary **out, struct fm_error *err)
{
    *out = NULL;
    struct grammar_vocabulary *v = mem_new(1, sizeof *v, "a vocabulary", err);
    if (v == NULL)
        return FM_ERR_NOMEM;
    int rc = token_trie_open(tok, n_ids, &v->trie, err);
    if (rc == 0)
        rc = mask_any_string(v, err);
    if (rc != 0) {
        grammar_vocabulary_close(v);
        return rc;
    }
    *out = v;
    return 0;
}

void grammar_vocabulary_close(struct grammar_vocabulary *v)
{
    if (v == NULL)
        return;
    token_trie_close(v->trie);
    mem_free(v->any_string);
    mem_free(v->token_chars);
    mem_free(v->exit_chars);
    mem_free(v);
}

const struct token_trie *grammar_vocabulary_trie(const struct grammar_vocabulary *v)
{
    return v->trie;
}

static int make_room(struct grammar *g, size_t n_bytes, struct fm_error *err)
{
    const size_t longest = g->vocabulary->trie->longest;
    int rc = mem_grow(&g->text, &g->text_capacity, g->n_text + n_bytes + longest + 1, 1,
                      "an answer", err);
    const size_t need = g->machine.n_nodes + (n_bytes + longest + 1) * MACHINE_THREADS;
    if (rc == 0)
        rc = mem_grow((void **)&g->machine.nodes, &g->nodes_capacity, need,
                      sizeof *g->machine.nodes, "an answer", err);
    g->machine.text = g->text;
    g->maker.text = g->text;
    return rc;
}

int grammar_open(const struct grammar_vocabulary *v, const char *schema, size_t bytes,
                 struct grammar **out, struct fm_error *err)
{
    static const char any_object[] = "{\"type\": \"object\"}";
    const struct grammar_form form = {
        .schema = schema != NULL ? schema : any_object,
        .schema_bytes = schema != NULL ? bytes : sizeof any_object - 1};
    return grammar_open_form(v, &form, out, err);
}

/* Finds the tags for which the vocabulary has a control token. */
static void find_tokens(struct grammar *g)
{
    const struct token_trie *trie = g->vocabulary->trie;
    for (uint32_t i = 0; i < g->program->call.n_tags; i++) {
        struct call_tag *tag = &g->program->call.tags[i];
        int32_t id;
        tag->is_token = tokenizer_find(trie->tok, tag->text, &id) &&
                        tokenizer_is_special(trie->tok, id) && (uint32_t)id < trie->n_ids;
    }
}

int grammar_open_form(const struct grammar_vocabulary *v, const struct grammar_form *form,
                      struct grammar **out, struct fm_error *err)
{
    *out = NULL;
    struct grammar *g = mem_new(1, sizeof *g, "a grammar", err);
    if (g == NULL)
        return FM_ERR_NOMEM;
    g->vocabulary = v;
    int rc = schema_compile_form(form, &g->program, err);
    g->now = mem_new(2, sizeof *g->now, "a grammar", err);
    if (rc == 0 && g->now == NULL)
        rc = FM_ERR_NOMEM;
    g->machine.n_nodes = 1;
    if (rc == 0)
        rc = make_room(g, 0, err);
    if (rc == 0)
        rc = mask_maker_init(&g->maker, v, &g->machine, g->text, err);
    if (rc != 0) {
        grammar_close(g);
        return rc;
    }
    g->next = g->now + 1;
    g->machine.program = g->program;
    find_tokens(g);
    grammar_reset(g);
    *out = g;
    return 0;
}

void grammar_close(struct grammar *g)
{
    if (g == NULL)
        return;
    grammar_program_free(g->program);
    mask_maker_clear(&g->maker);
    mem_free(g->machine.nodes);
    mem_free(g->now < g->next || g->next == NULL ? g->now : g->next);
    mem_free(g->text);
    mem_free(g);
}

void grammar_reset(struct grammar *g)
{
    g->n_text = g->machine.n_text = g->machine.n_fixed = 0;
    g->has_mask = false;
    machine_start(&g->machine, g->now);
}

/* ---- the answer ----------------------------------------------------------------------------- */

/* Removes all nodes that no thread stands on. Parents come before children. */
static void clear_nodes(struct grammar *g)
{
    struct machine *m = &g->machine;
    uint32_t *place = mem_new(m->n_nodes, sizeof *place, "an answer", NULL);
    if (place == NULL)
        return; /* keep them all */
    for (uint32_t i = 0; i < g->now->n; i++)
        for (uint32_t n = g->now->at[i].parent; n != NODE_NONE && place[n] == 0;
             n = m->nodes[n].parent)
            place[n] = 1;
    uint32_t n_kept = 1;
    for (uint32_t n = 1; n < m->n_nodes; n++) {
        if (place[n] == 0)
            continue;
        struct node moved = m->nodes[n];
        moved.parent = moved.parent != NODE_NONE ? place[moved.parent] : NODE_NONE;
        m->nodes[n_kept] = moved;
        place[n] = n_kept++;
    }
    for (uint32_t i = 0; i < g->now->n; i++)
        if (g->now->at[i].parent != NODE_NONE)
            g->now->at[i].parent = place[g->now->at[i].parent];
    mem_free(place);
    m->n_nodes = g->n_kept = n_kept;
}

int grammar_accept_bytes(struct grammar *g, const char *bytes, size_t n, struct fm_error *err)
{
    struct machine *m = &g->machine;
    int rc = make_room(g, n, err);
    if (rc != 0)
        return rc;
    const size_t n_nodes = m->n_nodes;
    const struct threads before = *g->now;
    memcpy((char *)g->text + g->n_text, bytes, n);
    m->n_fixed = g->n_text;
    for (size_t i = 0; i < n; i++) {
        m->n_text = g->n_text + i + 1;
        machine_step(m, g->now, g->next);
        struct threads *swap = g->now;
        g->now = g->next;
        g->next = swap;
        if (g->now->n > 0)
            continue;
        *g->now = before;
        m->n_nodes = n_nodes;
        m->n_text = g->n_text;
        return err_set(err, FM_ERR_ARG, "the schema does not allow byte 0x%02x here",
                       (unsigned)(uint8_t)bytes[i]);
    }
    g->n_text += n;
    m->n_text = m->n_fixed = g->n_text;
    g->has_mask = false;
    if (m->n_nodes > 2 * g->n_kept + NODES_KEPT && !g->is_looking)
        clear_nodes(g);
    return 0;
}

/* Returns the token of the tag that may come next, or -1. This token is not in the trie, because
 * inside JSON it does not stand for its text. */
static int32_t tag_token(const struct grammar *g, const char **tag)
{
    int32_t id;
    *tag = machine_tag(&g->machine, g->now);
    return *tag != NULL && tokenizer_find(g->vocabulary->trie->tok, *tag, &id) &&
                   (uint32_t)id < g->vocabulary->trie->n_ids ? id : -1;
}

int grammar_accept(struct grammar *g, int32_t id, struct fm_error *err)
{
    size_t n;
    const char *tag;
    if (id >= 0 && id == tag_token(g, &tag)) {
        g->machine.is_tag = true;
        const int rc = grammar_accept_bytes(g, tag, strlen(tag), err);
        g->machine.is_tag = false;
        return rc;
    }
    const char *piece = tokenizer_piece(g->vocabulary->trie->tok, id, &n);
    if (piece == NULL || n == 0 || tokenizer_is_special(g->vocabulary->trie->tok, id))
        return err_set(err, FM_ERR_ARG, "the schema does not allow token %d here", (int)id);
    return grammar_accept_bytes(g, piece, n, err);
}

const uint32_t *grammar_mask(struct grammar *g)
{
    if (g->has_mask)
        return g->maker.bits;
    const char *tag;
    const int32_t id = tag_token(g, &tag);
    mask_make(&g->maker, g->now, g->n_text);
    if (id >= 0)
        g->maker.bits[id / 32] |= 1u << id % 32;
    g->n_masks++;
    g->has_mask = true;
    return g->maker.bits;
}

/* ---- forced text ---------------------------------------------------------------------------- */

/* More tokens than this do not begin one text. */
#define FORCED_TOKENS 64

/* Returns the longest token that the mask allows, if all others begin it; otherwise -1. One alone
 * may be that of a tag. */
static int32_t forced_token(const struct grammar *g, const uint32_t *mask)
{
    const struct tokenizer *tok = g->vocabulary->trie->tok;
    const uint32_t n_words = g->vocabulary->trie->n_ids / 32 + 1;
    int32_t found[FORCED_TOKENS], best = -1;
    uint32_t n = 0;
    size_t n_best = 0, n_bytes;
    for (uint32_t w = 0; w < n_words; w++)
        for (uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
            if (n == FORCED_TOKENS)
                return -1;
            const int32_t id = (int32_t)(w * 32) + __builtin_ctz(bits);
            if (tokenizer_piece(tok, id, &n_bytes) == NULL)
                n_bytes = 0;
            if (n == 0 || n_bytes > n_best) {
                best = id;
                n_best = n_bytes;
            }
            found[n++] = id;
        }
    for (uint32_t i = 0; n > 1 && i < n; i++) {
        const char *piece = tokenizer_piece(tok, found[i], &n_bytes);
        const bool is_text = piece != NULL && !tokenizer_is_special(tok, found[i]);
        if (!is_text || memcmp(piece, tokenizer_piece(tok, best, &n_best), n_bytes) != 0)
            return -1;
    }
    return best;
}

uint32_t grammar_forced(struct grammar *g, int32_t *ids, uint32_t max)
{
    const struct threads before = *g->now;
    const size_t n_text = g->n_text, n_nodes = g->machine.n_nodes;
    uint32_t n = 0;
    g->is_looking = true;
    while (n < max && !grammar_may_end(g)) {
        const int32_t id = forced_token(g, grammar_mask(g));
        if (id < 0)
            break;
        ids[n++] = id;
        if (n < max && grammar_accept(g, id, NULL) != 0)
            break;
    }
    g->is_looking = false;
    if (g->n_text == n_text)
        return n;
    *g->now = before;
    g->n_text = g->machine.n_text = g->machine.n_fixed = n_text;
    g->machine.n_nodes = n_nodes;
    g->machine.names_object = g->machine.names_key = AT_UNKNOWN; /* of text that is gone */
    g->has_mask = false;
    return n;
}

bool grammar_may_end(const struct grammar *g)
{
    return machine_may_end(&g->machine, g->now);
}

bool grammar_must_end(const struct grammar *g)
{
    return machine_must_end(g->now);
}

struct grammar_counts grammar_counts(const struct grammar *g)
{
    return (struct grammar_counts){g->n_masks, g->maker.n_made};
}
