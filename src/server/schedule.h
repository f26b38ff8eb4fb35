/* Which tokens the next pass computes: one of each running answer, and parts of the prompts that
 * wait. Plain arithmetic on what it is given: no clock, no lock, no memory of its own. The runner
 * thread uses it.
 *
 * Prompts are read one after the other, so that their first tokens come one after the other, too.
 * The order is that of `due`: the prompt tokens that the server had computed when the prompt came,
 * plus its own. A short prompt so overtakes a long one that is being read, and a long one waits for
 * at most as many tokens of others as it has itself. */
#ifndef FLASHMOE_SERVER_SCHEDULE_H
#define FLASHMOE_SERVER_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A job that can be computed. */
struct schedule_entry {
    size_t n_left;   /* prompt tokens that are not computed; 0: it answers */
    size_t n_stop;   /* a piece must not go beyond so many tokens; 0: no limit */
    uint64_t due;    /* of its prompt */
    uint64_t order;  /* decides between prompts with the same due: the order of their arrival */
    size_t n_piece;  /* result: tokens in the next pass; 0: it waits */
};

/* Returns whether the next pass of a job has one token, as that of an answer has. The last token of
 * a prompt is computed alone: recurrent layers can go back to the mark before it, so that another
 * answer to the same prompt computes only that token. */
static inline bool schedule_is_single(const struct schedule_entry *entry)
{
    return entry->n_left <= 1;
}

/* Sets n_piece of all entries. Every answer gets its token; prompts get n_max tokens together, in
 * the order of `due`. At least one entry gets some. */
void schedule_pass(struct schedule_entry *entries, size_t n, size_t n_max);

/* ---- how many prompt tokens a pass with running answers may have ---------------------------- */

/* Prompt tokens delay the answers of their pass, which takes about fixed_ns + n * token_ns: the
 * answers and the weights that any number of prompt tokens needs, then something for each token.
 * Both are estimated from the passes so far, and the number follows from them: a pass takes
 * limit_ns. Where fixed_ns alone is near that or above it, as with experts on the disk, fewer
 * tokens would gain the answers little and cost the prompt much: it takes 1.5 * fixed_ns then. */
struct pace {
    uint64_t limit_ns;
    size_t n_max;    /* the largest number */
    size_t n_tokens; /* for the next pass */
    double fixed_ns, token_ns; /* token_ns 0: not known yet */
    double last_n, last_ns;    /* of the pass before; 0: there was none */
};

/* The number to begin with, and the smallest one. */
#define PACE_MIN 16

void pace_init(struct pace *pace, uint64_t limit_ns, size_t n_max);
/* Notes a pass that took so long: its prompt tokens, and whether answers waited for it. */
void pace_note(struct pace *pace, size_t n_prompt, bool has_answers, uint64_t took_ns);

/* ---- answers between the layers of a prompt ------------------------------------------------- */

/* A large piece of a prompt reads every weight once for many rows, so it is faster than small
 * pieces in passes with answers. Answers then run before it and between two of its layers
 * (session/between.h): as seldom as the limit allows, because each time is a pass of its own. */
struct turns {
    uint64_t limit_ns;    /* from one token of an answer to the next */
    uint64_t answered_ns; /* when answers last had a pass */
    uint64_t looked_ns;   /* when the layer at hand began; 0: none has */
    uint64_t layer_ns, answers_ns; /* that a layer and a pass of the answers take */
};

/* A piece begins. */
void turns_begin(struct turns *turns);
/* Before a layer: returns whether answers have to run now. They do before the first one, and if
 * they would get their tokens too late after one more. */
bool turns_look(struct turns *turns, uint64_t now_ns);
/* Answers alone had a pass. */
void turns_note(struct turns *turns, uint64_t begin_ns, uint64_t end_ns);
/* Returns how long a layer may take, so that answers wait for one of them at most. */
uint64_t turns_layer_max_ns(const struct turns *turns);

#ifdef __cplusplus
}
#endif
#endif
