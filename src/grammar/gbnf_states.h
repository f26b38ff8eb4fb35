/* States of a GBNF machine, each kept once, and where each byte leads from them: a deterministic
 * automaton that grows as texts are tried. Walking a vocabulary then looks up most bytes, where it
 * had to advance every stack.
 *
 * A state is a list of stacks and the bits of an incomplete character. The table has a fixed size;
 * when it is full, new states have no number until it is cleared. It owns its memory. One
 * thread. */
#ifndef FLASHMOE_GRAMMAR_GBNF_STATES_H
#define FLASHMOE_GRAMMAR_GBNF_STATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GBNF_NO_STATE UINT32_MAX

/* A state; its stacks are borrowed. */
struct gbnf_view {
    const uint32_t *nodes; /* [n] in the order in which they were found */
    uint32_t n;
    uint32_t partial;        /* the bits of a character that is not complete */
    uint8_t n_bytes, n_left; /* its bytes, and those that are missing; 0: it is complete */
};

/* Where a byte leads: GBNF_STEP_UNKNOWN, GBNF_STEP_NONE, or a state's number plus GBNF_STEP_TO. */
enum { GBNF_STEP_UNKNOWN, GBNF_STEP_NONE, GBNF_STEP_TO };

struct gbnf_states {
    struct gbnf_kept *kept; /* [n] */
    uint32_t n;
    uint32_t *nodes; /* of all states */
    uint32_t n_nodes;
    bool is_full;    /* a state has got no number since the table was cleared */
    uint16_t *next;  /* [n, 256] */
    uint16_t *table; /* of hashes: a number plus one; 0: free */
};

int gbnf_states_init(struct gbnf_states *s, struct fm_error *err);
void gbnf_states_free(struct gbnf_states *s);  /* accepts one that is all zeros */
void gbnf_states_clear(struct gbnf_states *s); /* forgets all states */

/* Returns the state's number, which may be new; GBNF_NO_STATE: there is no room. */
uint32_t gbnf_states_find(struct gbnf_states *s, const struct gbnf_view *state);
/* Returns a state. It is valid until the table is cleared. */
struct gbnf_view gbnf_states_get(const struct gbnf_states *s, uint32_t number);
/* Returns where the byte leads from a state; the caller may set it. */
uint16_t *gbnf_states_next(struct gbnf_states *s, uint32_t number, uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
