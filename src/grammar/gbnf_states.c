#include "grammar/gbnf_states.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/splitmix.h"

#define STATES 2048u         /* maximum */
#define TABLE (4u * STATES)  /* a power of two */
#define NODES (1u << 17)     /* of all states, maximum */

struct gbnf_kept {
    uint64_t hash;
    uint32_t first, n; /* in `nodes` */
    uint32_t partial;
    uint8_t n_bytes, n_left;
};

int gbnf_states_init(struct gbnf_states *s, struct fm_error *err)
{
    *s = (struct gbnf_states){0};
    s->kept = mem_new(STATES, sizeof *s->kept, "a grammar", err);
    s->nodes = mem_new(NODES, sizeof *s->nodes, "a grammar", err);
    s->next = mem_new((size_t)STATES * 256, sizeof *s->next, "a grammar", err);
    s->table = mem_new(TABLE, sizeof *s->table, "a grammar", err);
    const bool is_good = s->kept != NULL && s->nodes != NULL && s->next != NULL && s->table != NULL;
    return is_good ? 0 : FM_ERR_NOMEM;
}

void gbnf_states_free(struct gbnf_states *s)
{
    mem_free(s->kept);
    mem_free(s->nodes);
    mem_free(s->next);
    mem_free(s->table);
    *s = (struct gbnf_states){0};
}

void gbnf_states_clear(struct gbnf_states *s)
{
    memset(s->table, 0, TABLE * sizeof *s->table);
    s->n = s->n_nodes = 0;
    s->is_full = false;
}

static uint64_t hash_of(const struct gbnf_view *v)
{
    uint64_t hash = splitmix_mix((uint64_t)v->partial << 32 | (uint64_t)v->n_bytes << 8 |
                                 v->n_left);
    for (uint32_t i = 0; i < v->n; i++)
        hash = splitmix_mix(hash ^ v->nodes[i]);
    return hash;
}

uint32_t gbnf_states_find(struct gbnf_states *s, const struct gbnf_view *v)
{
    const uint64_t hash = hash_of(v);
    uint32_t at = (uint32_t)hash & (TABLE - 1);
    for (; s->table[at] != 0; at = (at + 1) & (TABLE - 1)) {
        const struct gbnf_kept *k = &s->kept[s->table[at] - 1];
        if (k->hash == hash && k->n == v->n && k->partial == v->partial &&
            k->n_bytes == v->n_bytes && k->n_left == v->n_left &&
            memcmp(s->nodes + k->first, v->nodes, v->n * sizeof *v->nodes) == 0)
            return s->table[at] - 1u;
    }
    if (s->n == STATES || v->n > NODES - s->n_nodes) {
        s->is_full = true;
        return GBNF_NO_STATE;
    }
    s->kept[s->n] = (struct gbnf_kept){.hash = hash, .first = s->n_nodes, .n = v->n,
                                       .partial = v->partial, .n_bytes = v->n_bytes,
                                       .n_left = v->n_left};
    memcpy(s->nodes + s->n_nodes, v->nodes, v->n * sizeof *v->nodes);
    memset(s->next + (size_t)s->n * 256, GBNF_STEP_UNKNOWN, 256 * sizeof *s->next);
    s->n_nodes += v->n;
    s->table[at] = (uint16_t)++s->n;
    return s->n - 1;
}

struct gbnf_view gbnf_states_get(const struct gbnf_states *s, uint32_t number)
{
    assert(number < s->n);
    const struct gbnf_kept *k = &s->kept[number];
    return (struct gbnf_view){.nodes = s->nodes + k->first, .n = k->n, .partial = k->partial,
                              .n_bytes = k->n_bytes, .n_left = k->n_left};
}

uint16_t *gbnf_states_next(struct gbnf_states *s, uint32_t number, uint8_t byte)
{
    assert(number < s->n);
    return &s->next[(size_t)number * 256 + byte];
}
