/* Compares passes with drafts of the model's own block and without them by what counts: tokens per
 * time. What the gate expects of such passes follows from times of many numbers of rows, and is
 * often wrong by more than these drafts gain. It does not know either that the block's experts and
 * those of wrong drafts take slots of the cache, so that all passes read more. So the way that was
 * faster lately is used, and now and then a few passes go the other way.
 *
 * Passes of so many sessions are compared with each other: about as many are one kind. Part of a
 * gate; one thread at a time. */
#ifndef FLASHMOE_SESSION_DRAFT_TRIAL_H
#define FLASHMOE_SESSION_DRAFT_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DRAFT_TRIALS 7 /* kinds: 1, 2, 3 to 4, 5 to 8, 9 to 16, 17 to 32, more sessions */

struct draft_trial {
    bool is_plain;     /* the way that is used: without the block */
    bool is_other_way; /* the passes at hand go the other one */
    uint32_t n_unsettled; /* passes to come that do not count */
    uint32_t n_passes; /* at hand */
    double n_tokens, ns; /* likewise */
    uint32_t n_stretches; /* on the way that is used, since a trial */
    double rate;       /* of the last of them */
    uint32_t n_trials;
    double gain;       /* lately: by so much drafts are faster; below 0: slower */
};

struct draft_trials {
    struct draft_trial kinds[DRAFT_TRIALS];
    struct draft_trial *at_hand; /* NULL: the last pass does not count */
};

/* Begins a pass of so many sessions. Returns whether it goes without the block. */
bool draft_trials_begin(struct draft_trials *trials, uint32_t n_sessions);
/* So many tokens took so long. n_sessions were computed in a pass; 0: all tokens were drafts that
 * the pass before has computed. A pass counts unless both ways have the same drafts in it. */
void draft_trials_note(struct draft_trials *trials, uint32_t n_sessions, uint64_t n_tokens,
                       uint64_t ns, bool counts);

#ifdef __cplusplus
}
#endif
#endif
