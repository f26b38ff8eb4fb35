#include "grammar/grammar_mask.h"

#include <string.h>

#include "base/mem.h"
#include "grammar/grammar_string.h"

#define NODE_ROOT UINT32_MAX /* parent of the whole vocabulary */

static size_t n_words(const struct token_trie *trie)
{
    return trie->n_ids / 32 + 1;
}

int mask_maker_init(struct mask_maker *k, const struct grammar_vocabulary *v,
                    struct machine *machine, uint8_t *text, struct fm_error *err)
{
    const struct token_trie *trie = v->trie;
    *k = (struct mask_maker){.vocabulary = v, .machine = machine, .text = text};
    k->bits = mem_new(2 * n_words(trie), sizeof *k->bits, "a mask", err);
    k->exits = mem_new(2 * ((size_t)trie->n_nodes + 1), sizeof *k->exits, "a mask", err);
    k->levels = mem_new((size_t)trie->longest + 1, sizeof *k->levels, "a mask", err);
    k->level_nodes = mem_new((size_t)trie->longest + 1, sizeof(size_t), "a mask", err);
    k->kept = mem_new(MASKS_KEPT, sizeof *k->kept, "a mask", err);
    if (k->bits == NULL || k->exits == NULL || k->levels == NULL || k->level_nodes == NULL ||
        k->kept == NULL) {
        mask_maker_clear(k);
        return FM_ERR_NOMEM;
    }
    k->kept_bits = k->bits + n_words(trie);
    k->unsure = k->exits + trie->n_nodes + 1;
    return 0;
}

void mask_maker_clear(struct mask_maker *k)
{
    for (unsigned i = 0; k->kept != NULL && i < MASKS_KEPT; i++)
        mem_free(k->kept[i]);
    mem_free(k->bits);
    mem_free(k->exits);
    mem_free(k->levels);
    mem_free(k->level_nodes);
    mem_free(k->kept);
    *k = (struct mask_maker){0};
}

/* ---- walks ---------------------------------------------------------------------------------- */

static void set_token(const struct token_trie *trie, uint32_t *bits, int32_t id)
{
    for (; id >= 0; id = trie->same[id])
        bits[id / 32] |= 1u << id % 32;
}

/* Advances by one byte from levels[depth - 1] to levels[depth]. Returns false when no thread is
 * left. */
static bool step(struct mask_maker *k, size_t n_text, unsigned depth, uint8_t byte)
{
    struct machine *m = k->machine;
    k->text[n_text + depth - 1] = byte;
    m->n_text = n_text + depth;
    m->n_nodes = k->level_nodes[depth - 1];
    m->has_left = m->is_unsure = false;
    machine_step(m, &k->levels[depth - 1], &k->levels[depth]);
    k->level_nodes[depth] = m->n_nodes;
    return k->levels[depth].n > 0;
}

/* Walks the nodes below `from`, or all nodes; levels[] of its depth has the threads there. Sets the
 * bits of tokens that keep at least one thread. */
static void walk(struct mask_maker *k, size_t n_text, uint32_t from, uint32_t end)
{
    const struct token_trie *trie = k->vocabulary->trie;
    for (uint32_t i = from; i < end;) {
        const struct trie_node *node = &trie->nodes[i];
        if (!step(k, n_text, node->depth, node->byte)) {
            i = node->end;
            continue;
        }
        set_token(trie, k->bits, node->token);
        i++;
    }
}

/* Writes the bytes of a node after the answer. Returns their number. */
static unsigned write_path(struct mask_maker *k, size_t n_text, uint32_t i)
{
    const struct token_trie *trie = k->vocabulary->trie;
    const unsigned depth = trie->nodes[i].depth;
    while (trie->nodes[i].token < 0)
        i++; /* the first token below the node begins with its bytes */
    size_t bytes;
    memcpy(k->text + n_text, tokenizer_piece(trie->tok, trie->nodes[i].token, &bytes), depth);
    return depth;
}

/* ---- what a frame alone decides ------------------------------------------------------------- */

/* Returns the frame without the fields that a mask does not depend on. */
static struct frame canonical(const struct mask_maker *k, const struct frame *from)
{
    const uint32_t longest = k->vocabulary->trie->longest;
    struct frame f = *from;
    f.at = AT_UNKNOWN;
    if (f.kind != FRAME_STRING || f.rule == RULE_NONE)
        return f;
    const struct rule *r = &k->machine->program->rules[f.rule];
    if (f.v[STRING_EXTRA] > 0) {
        if (r->extras[f.v[STRING_EXTRA] - 1].names == NULL) {
            f.rule = RULE_NONE;
            f.v[STRING_EXTRA] = 0;
        }
        return f;
    }
    if (r->dfa != NULL || (r->min == 0 && r->max == RULE_NONE))
        return f;
    /* Far from its limits, a string behaves like one without limits. */
    const uint32_t n = f.v[STRING_LENGTH];
    if (n >= r->min && (r->max == RULE_NONE || r->max - n > longest)) {
        f.rule = RULE_NONE;
        f.v[STRING_LENGTH] = 0;
    } else if (n < r->min && r->min - n > longest) {
        f.v[STRING_LENGTH] = 0; /* it cannot end within one token */
    }
    return f;
}

/* Returns whether the mask depends on the frame alone. It does not where names are counted or the
 * answer is very deep. */
static bool is_keepable(const struct mask_maker *k, const struct thread *t)
{
    const struct machine *m = k->machine;
    if (t->top.kind == FRAME_ANSWER)
        return false; /* used only once */
    if (t->top.kind == FRAME_STRING && t->top.v[STRING_EXTRA] > 0 && t->top.rule != RULE_NONE &&
        m->program->rules[t->top.rule].extras[t->top.v[STRING_EXTRA] - 1].is_counted)
        return false;
    return m->nodes[t->parent].depth + 2 + k->vocabulary->trie->max_opened + m->program->highest <=
           GRAMMAR_DEPTH;
}

/* Returns whether the frame can be left after this byte of the level. */
static bool has_exit(const struct mask_maker *k, unsigned depth)
{
    bool has = k->machine->has_left;
    const struct threads *level = &k->levels[depth];
    for (uint32_t t = 0; t < level->n; t++)
        has = has || (level->at[t].parent == NODE_UNKNOWN &&
                      machine_is_whole_raw(k->machine, &level->at[t]));
    return has;
}

static void start_level(struct mask_maker *k, unsigned depth, const struct thread *thread)
{
    k->levels[depth].n = 1;
    k->levels[depth].at[0] = *thread;
    k->level_nodes[depth] = k->base_nodes;
}

/* Walks the whole vocabulary with the frame on NODE_UNKNOWN. */
static void find_mask(struct mask_maker *k, const struct frame *key, size_t n_text)
{
    const struct token_trie *trie = k->vocabulary->trie;
    struct machine *m = k->machine;
    k->n_made++;
    k->n_exits = k->n_unsure = 0;
    memset(k->kept_bits, 0, n_words(trie) * sizeof *k->kept_bits);
    start_level(k, 0, &(struct thread){*key, NODE_UNKNOWN});
    if (machine_is_whole_raw(m, &k->levels[0].at[0]))
        k->exits[k->n_exits++] = NODE_ROOT;
    for (uint32_t i = 0; i < trie->n_nodes;) {
        const struct trie_node *node = &trie->nodes[i];
        const bool is_left = step(k, n_text, node->depth, node->byte);
        if (has_exit(k, node->depth))
            k->exits[k->n_exits++] = i;
        if (m->is_unsure)
            k->unsure[k->n_unsure++] = i;
        if (is_left)
            set_token(trie, k->kept_bits, node->token);
        i = is_left ? i + 1 : node->end;
    }
}

/* Packs the result into one block; returns NULL if memory runs out. Lists the tokens if they are
 * few. */
static struct kept_mask *pack_mask(const struct mask_maker *k, const struct frame *key,
                                   struct fm_error *err)
{
    const size_t n = n_words(k->vocabulary->trie);
    size_t n_tokens = 0;
    for (size_t i = 0; i < n; i++)
        n_tokens += (size_t)__builtin_popcount(k->kept_bits[i]);
    const bool has_bits = n_tokens > n;
    const size_t n_first = has_bits ? n : n_tokens;
    struct kept_mask *mask = mem_new(1, sizeof *mask + (n_first + k->n_exits + k->n_unsure) *
                                     sizeof mask->words[0], "a mask", err);
    if (mask == NULL)
        return NULL;
    mask->key = *key;
    mask->has_bits = has_bits;
    mask->n_tokens = has_bits ? 0 : (uint32_t)n_tokens;
    mask->n_exits = k->n_exits;
    mask->n_unsure = k->n_unsure;
    uint32_t *out = mask->words;
    if (has_bits)
        memcpy(out, k->kept_bits, n * sizeof *out);
    for (size_t i = 0, at = 0; i < n && !has_bits; i++)
        for (uint32_t word = k->kept_bits[i]; word != 0; word &= word - 1)
            out[at++] = (uint32_t)(32 * i) + (uint32_t)__builtin_ctz(word);
    memcpy(out + n_first, k->exits, k->n_exits * sizeof *out);
    memcpy(out + n_first + k->n_exits, k->unsure, k->n_unsure * sizeof *out);
    return mask;
}

/* Walks the vocabulary as any string does and counts the characters. */
static void count_chars(struct grammar_vocabulary *v)
{
    const struct token_trie *trie = v->trie;
    uint32_t part[TRIE_TOKEN_BYTES + 1] = {0}, n_exits = 0, c;
    uint16_t n_chars[TRIE_TOKEN_BYTES + 1] = {0};
    for (uint32_t i = 0; i < trie->n_nodes;) {
        const struct trie_node *node = &trie->nodes[i];
        const unsigned d = node->depth;
        part[d] = part[d - 1];
        if (part[d] == 0 && node->byte == '"') {
            v->exit_chars[n_exits++] = n_chars[d - 1];
            i = node->end;
            continue;
        }
        const enum string_step step_is = grammar_string_step(NULL, 0, &part[d], node->byte, &c);
        if (step_is == STRING_NO) {
            i = node->end;
            continue;
        }
        n_chars[d] = (uint16_t)(n_chars[d - 1] + (step_is == STRING_CHAR));
        for (int32_t id = node->token; id >= 0; id = trie->same[id])
            v->token_chars[id] = (uint16_t)(n_chars[d] + (part[d] != 0));
        i++;
    }
}

int mask_any_string(struct grammar_vocabulary *v, struct fm_error *err)
{
    const struct token_trie *trie = v->trie;
    const struct frame any = {.kind = FRAME_STRING, .rule = RULE_NONE, .at = AT_UNKNOWN};
    struct machine m = {.n_nodes = 1};
    struct mask_maker k;
    uint8_t *text = mem_new((size_t)trie->longest + 1, 1, "a mask", err);
    m.nodes = mem_new(1 + ((size_t)trie->longest + 1) * MACHINE_THREADS, sizeof *m.nodes, "a mask",
                      err);
    m.text = text;
    v->token_chars = mem_new(trie->n_ids, sizeof *v->token_chars, "a mask", err);
    int rc = text != NULL && m.nodes != NULL && v->token_chars != NULL
                 ? mask_maker_init(&k, v, &m, text, err) : FM_ERR_NOMEM;
    if (rc == 0) {
        k.base_nodes = 1;
        find_mask(&k, &any, 0);
        v->any_string = pack_mask(&k, &any, err);
        v->exit_chars = mem_new(k.n_exits, sizeof *v->exit_chars, "a mask", err);
        rc = v->any_string != NULL && v->exit_chars != NULL ? 0 : FM_ERR_NOMEM;
        mask_maker_clear(&k);
    }
    if (rc == 0)
        count_chars(v);
    mem_free(text);
    mem_free(m.nodes);
    return rc;
}

/* ---- putting a mask together ---------------------------------------------------------------- */

/* Adds the tokens that continue after the frame is left at a trie node: the frames below decide. */
static void add_exit(struct mask_maker *k, const struct thread *t, size_t n_text, uint32_t i)
{
    const struct token_trie *trie = k->vocabulary->trie;
    struct machine *m = k->machine;
    const struct node *parent = &m->nodes[t->parent];
    const struct thread below = {parent->frame, parent->parent};
    const struct trie_node *node = &trie->nodes[i];
    const bool is_key = t->top.kind == FRAME_STRING && t->top.v[STRING_EXTRA] > 0;
    if (is_key || node->end > i + 1)
        m->n_text = n_text + write_path(k, n_text, i);
    if (is_key && !machine_name_is_new(m, parent->frame.at, t->top.at))
        return;
    set_token(trie, k->bits, node->token);
    if (node->end == i + 1)
        return;
    start_level(k, node->depth, &below);
    walk(k, n_text, i + 1, node->end);
}

/* Adds the tokens below a node that must be checked against the whole answer. */
static void add_unsure(struct mask_maker *k, const struct thread *t, size_t n_text, uint32_t i)
{
    const struct token_trie *trie = k->vocabulary->trie;
    uint8_t path[TRIE_TOKEN_BYTES];
    const unsigned depth = write_path(k, n_text, i);
    memcpy(path, k->text + n_text, depth);
    start_level(k, 0, t);
    for (unsigned d = 1; d <= depth; d++)
        if (!step(k, n_text, d, path[d - 1]))
            return;
    set_token(trie, k->bits, trie->nodes[i].token);
    walk(k, n_text, i + 1, trie->nodes[i].end);
}

/* Returns the mask of a frame: kept, shared or computed now. Returns NULL if memory runs out. */
static const struct kept_mask *get_mask(struct mask_maker *k, const struct frame *key,
                                        size_t n_text)
{
    const struct kept_mask *any = k->vocabulary->any_string;
    if (memcmp(&any->key, key, sizeof *key) == 0)
        return any;
    for (unsigned i = 0; i < MASKS_KEPT && k->kept[i] != NULL; i++)
        if (memcmp(&k->kept[i]->key, key, sizeof *key) == 0)
            return k->kept[i];
    find_mask(k, key, n_text);
    struct kept_mask *mask = pack_mask(k, key, NULL);
    if (mask == NULL)
        return NULL;
    mem_free(k->kept[k->next_kept]);
    k->kept[k->next_kept] = mask;
    k->next_kept = (k->next_kept + 1) % MASKS_KEPT;
    return mask;
}

/* Handles a string with limits on its length but not on its characters: from the mask of any
 * string, drops what would be too long or too short. */
static void add_limited(struct mask_maker *k, const struct thread *t, size_t n_text)
{
    const struct grammar_vocabulary *v = k->vocabulary;
    const struct kept_mask *any = v->any_string;
    const struct rule *r = &k->machine->program->rules[t->top.rule];
    const uint32_t n = t->top.v[STRING_LENGTH], left = r->max - n;
    const size_t n_first = any->has_bits ? n_words(v->trie) : any->n_tokens;
    for (size_t i = 0; i < n_first; i++) {
        if (!any->has_bits && v->token_chars[any->words[i]] <= left)
            k->bits[any->words[i] / 32] |= 1u << any->words[i] % 32;
        for (uint32_t word = any->has_bits ? any->words[i] : 0; word != 0; word &= word - 1) {
            const uint32_t bit = (uint32_t)__builtin_ctz(word);
            k->bits[i] |= (uint32_t)(v->token_chars[32 * i + bit] <= left) << bit;
        }
    }
    for (uint32_t i = 0; i < any->n_exits; i++)
        if (v->exit_chars[i] <= left && n + v->exit_chars[i] >= r->min)
            add_exit(k, t, n_text, any->words[n_first + i]);
}

static bool is_limited(const struct mask_maker *k, const struct frame *f)
{
    return f->kind == FRAME_STRING && f->rule != RULE_NONE && f->v[STRING_EXTRA] == 0 &&
           f->v[STRING_PART] == 0 && k->machine->program->rules[f->rule].dfa == NULL;
}

static void add_mask(struct mask_maker *k, const struct thread *t, size_t n_text)
{
    const struct token_trie *trie = k->vocabulary->trie;
    if (t->top.kind == FRAME_ANSWER && t->top.phase == PHASE_AFTER)
        return;
    if (is_limited(k, &t->top)) {
        add_limited(k, t, n_text);
        return;
    }
    const struct frame key = canonical(k, &t->top);
    const struct kept_mask *mask = is_keepable(k, t) ? get_mask(k, &key, n_text) : NULL;
    if (mask == NULL) {
        start_level(k, 0, t);
        walk(k, n_text, 0, trie->n_nodes);
        return;
    }
    const size_t n_first = mask->has_bits ? n_words(trie) : mask->n_tokens;
    for (size_t i = 0; i < n_first; i++) {
        if (mask->has_bits)
            k->bits[i] |= mask->words[i];
        else
            k->bits[mask->words[i] / 32] |= 1u << mask->words[i] % 32;
    }
    const uint32_t *exits = mask->words + n_first, *unsure = exits + mask->n_exits;
    const bool is_over = mask->n_exits > 0 && exits[0] == NODE_ROOT;
    for (uint32_t i = is_over; i < mask->n_exits; i++)
        add_exit(k, t, n_text, exits[i]);
    for (uint32_t i = 0; i < mask->n_unsure; i++)
        add_unsure(k, t, n_text, unsure[i]);
    if (is_over) { /* last, because this may free the mask */
        const struct node *parent = &k->machine->nodes[t->parent];
        add_mask(k, &(struct thread){parent->frame, parent->parent}, n_text);
    }
}

void mask_make(struct mask_maker *k, const struct threads *threads, size_t n_text)
{
    struct machine *m = k->machine;
    k->base_nodes = m->n_nodes;
    memset(k->bits, 0, n_words(k->vocabulary->trie) * sizeof *k->bits);
    for (uint32_t i = 0; i < threads->n; i++)
        add_mask(k, &threads->at[i], n_text);
    m->n_nodes = k->base_nodes;
    m->n_text = n_text;
}
