/* Deterministic automata over code points. Only states from which a text can still be accepted are
 * kept.
 *
 * An automaton lives in the arena it was built in and is immutable, so any thread may run it.
 * Building consumes fuel: a hostile pattern fails with FM_ERR_ARG instead of taking unbounded time
 * or memory. The alphabet is all code points except surrogates; builders must not use those. */
#ifndef FLASHMOE_GRAMMAR_DFA_H
#define FLASHMOE_GRAMMAR_DFA_H

#include "base/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DFA_STATES 20000u /* maximum per automaton */
#define DFA_EDGES 2000000u
#define DFA_NONE UINT32_MAX
#define DFA_MANY UINT64_MAX
#define CODE_POINT_MAX 0x10ffffu

struct dfa_edge {
    uint32_t lo, hi, to;
};

struct dfa_state {
    uint32_t first; /* its edges run from here to the next state's first */
    bool accepts;
};

/* State 0 is the start. An automaton without states accepts nothing. */
struct dfa {
    struct dfa_state *states; /* [n_states + 1] */
    struct dfa_edge *edges;   /* sorted within a state */
    uint64_t *n_words;        /* [n_states] number of texts accepted from this state; DFA_MANY if
                               * unbounded */
    uint32_t n_states;
    const struct dfa *kept; /* its copy in another arena, or NULL */
};

/* The remaining fuel and memory for building automata, shared by a whole schema. */
struct dfa_maker {
    struct arena *arena;
    uint64_t fuel;
    struct dfa_work *work; /* only while an automaton is being built */
};

/* Returns the state after `c`, or DFA_NONE. */
uint32_t dfa_step(const struct dfa *d, uint32_t state, uint32_t c);
/* Returns whether some code point from lo to hi has an edge. */
bool dfa_leads(const struct dfa *d, uint32_t state, uint32_t lo, uint32_t hi);
bool dfa_accepts(const struct dfa *d, const char *utf8, size_t bytes);

/* Describes an automaton by keys: each key is an array of words that identifies one state. `edges`
 * calls dfa_edge_add for each outgoing range in ascending order. */
struct dfa_spec {
    const void *ctx;
    bool (*accepts)(const void *ctx, const uint32_t *key, size_t n);
    int (*edges)(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                 struct fm_error *err);
};
int dfa_build(struct dfa_maker *maker, const struct dfa_spec *spec, const uint32_t *start,
              size_t n_start, const struct dfa **out, struct fm_error *err);
int dfa_edge_add(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const uint32_t *key, size_t n,
                 struct fm_error *err);
/* Takes fuel. Fails with FM_ERR_ARG when it is used up. */
int dfa_burn(struct dfa_maker *maker, uint64_t fuel, struct fm_error *err);
/* Takes fuel in a place that cannot fail; the next dfa_burn fails if it is used up. */
void dfa_spend(struct dfa_maker *maker, uint64_t fuel);

enum dfa_how { DFA_BOTH, DFA_EITHER, DFA_FIRST_ONLY };
int dfa_combine(struct dfa_maker *maker, enum dfa_how how, const struct dfa *a,
                const struct dfa *b, const struct dfa **out, struct fm_error *err);

/* Builds texts of `min` to `max` characters; DFA_NONE means no maximum. */
int dfa_lengths(struct dfa_maker *maker, uint32_t min, uint32_t max, const struct dfa **out,
                struct fm_error *err);
/* Builds texts of any length with characters from lo to hi only. */
int dfa_alphabet(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const struct dfa **out,
                 struct fm_error *err);

struct dfa_word {
    const char *text; /* UTF-8 */
    size_t bytes;
};
/* Builds exactly these texts; sorts `words` by their bytes. */
int dfa_words(struct dfa_maker *maker, struct dfa_word *words, size_t n, const struct dfa **out,
              struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
