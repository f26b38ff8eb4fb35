/* Deterministic automata over code points, of which only states remain that can still accept.
 *
 * An automaton lives in the arena it was built in and is immutable: any thread may run it. Building
 * one takes fuel, so that a hostile pattern ends in an error (FM_ERR_ARG), not in time or memory.
 * The alphabet is all code points but surrogates; builders must not use those. */
#ifndef FLASHMOE_GRAMMAR_DFA_H
#define FLASHMOE_GRAMMAR_DFA_H

#include "base/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DFA_STATES 20000u /* of one automaton */
#define DFA_EDGES 2000000u
#define DFA_NONE UINT32_MAX
#define DFA_MANY UINT64_MAX
#define CODE_POINT_MAX 0x10ffffu

struct dfa_edge {
    uint32_t lo, hi, to;
};

struct dfa_state {
    uint32_t first; /* edge; the next state's first one ends them */
    bool accepts;
};

/* State 0 is the start. Without any state it accepts nothing. */
struct dfa {
    struct dfa_state *states; /* [n_states + 1] */
    struct dfa_edge *edges;   /* sorted within a state */
    uint64_t *n_words;        /* [n_states] texts accepted from there on; DFA_MANY: no end */
    uint32_t n_states;
    const struct dfa *kept; /* its copy in another arena, where there is one */
};

/* What building costs, counted down over a whole schema. */
struct dfa_maker {
    struct arena *arena;
    uint64_t fuel;
    struct dfa_work *work; /* while one is built */
};

/* The state after `c`, or DFA_NONE. */
uint32_t dfa_step(const struct dfa *d, uint32_t state, uint32_t c);
/* Whether some code point from lo to hi leads on. */
bool dfa_leads(const struct dfa *d, uint32_t state, uint32_t lo, uint32_t hi);
bool dfa_accepts(const struct dfa *d, const char *utf8, size_t bytes);

/* An automaton that is described by keys, words of any number, which stand for its states. `edges`
 * calls dfa_edge_add for each range that leads on, ascending. */
struct dfa_plan {
    const void *ctx;
    bool (*accepts)(const void *ctx, const uint32_t *key, size_t n);
    int (*edges)(struct dfa_maker *maker, const void *ctx, const uint32_t *key, size_t n,
                 struct fm_error *err);
};
int dfa_build(struct dfa_maker *maker, const struct dfa_plan *plan, const uint32_t *start,
              size_t n_start, const struct dfa **out, struct fm_error *err);
int dfa_edge_add(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const uint32_t *key, size_t n,
                 struct fm_error *err);
/* Takes fuel; FM_ERR_ARG when it is used up. */
int dfa_burn(struct dfa_maker *maker, uint64_t fuel, struct fm_error *err);
/* Takes fuel where nothing can fail: the next dfa_burn does when it is used up. */
void dfa_spend(struct dfa_maker *maker, uint64_t fuel);

enum dfa_how { DFA_BOTH, DFA_EITHER, DFA_FIRST_ONLY };
int dfa_combine(struct dfa_maker *maker, enum dfa_how how, const struct dfa *a,
                const struct dfa *b, const struct dfa **out, struct fm_error *err);

/* Texts of `min` to `max` characters, DFA_NONE: any number. */
int dfa_lengths(struct dfa_maker *maker, uint32_t min, uint32_t max, const struct dfa **out,
                struct fm_error *err);
/* Characters from lo to hi only, any number of them. */
int dfa_alphabet(struct dfa_maker *maker, uint32_t lo, uint32_t hi, const struct dfa **out,
                 struct fm_error *err);

struct dfa_word {
    const char *text; /* UTF-8 */
    size_t bytes;
};
/* Just these; sorts them by their bytes. */
int dfa_words(struct dfa_maker *maker, struct dfa_word *words, size_t n, const struct dfa **out,
              struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
