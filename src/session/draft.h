/* Drafts: tokens that are drafted and computed behind the one that a session is given. When the
 * next evaluation is of the drafted token, its logits are there already and no layer runs. A wrong
 * draft is forgotten. Rows do not depend on each other, so nothing but the time depends on drafts.
 *
 * Drafts are looked up: where the last tokens occurred before, the ones behind them may follow
 * again. Or the model's own block predicts them (draft_mtp.h). Owned by a session; one thread at a
 * time. */
#ifndef FLASHMOE_SESSION_DRAFT_H
#define FLASHMOE_SESSION_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sequence.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- drafts --------------------------------------------------------------------------------- */

enum draft_source {
    DRAFT_NONE,
    DRAFT_LOOKED_UP,
    DRAFT_PREDICTED,
    DRAFT_GIVEN, /* by a measurement */
};

/* Tokens that must have occurred before. Fewer occur everywhere and say little. */
#define DRAFT_MATCH 3
/* The same where the model's own block drafts otherwise, and mostly better. */
#define DRAFT_LONG_MATCH 8

/* Drafts what follows `id`, which follows ids[0..n), from a match of at least so many tokens.
 * Writes up to `max` tokens; returns how many. */
uint32_t draft_look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t min_match,
                       int32_t *drafts, uint32_t max);

/* ---- how many are worth it ------------------------------------------------------------------- */

#define DRAFT_ROWS 64 /* rows of a pass whose time is remembered, at most */

/* What passes and drafts were worth lately. One for a model: its sessions share passes. */
struct draft_gate {
    bool is_open;                /* always lets all drafts through */
    double pass_ns[DRAFT_ROWS + 1]; /* of a pass with so many rows; 0: unknown */
    double accepted[SEQUENCE_DRAFTS]; /* share, given that the drafts before it were right */
    uint32_t n_refused;          /* drafts since one was let through */
};

void draft_gate_init(struct draft_gate *gate, bool is_open);
/* Returns how many of n drafts to compute in a pass that has n_rows without them. */
uint32_t draft_gate_choose(struct draft_gate *gate, uint32_t n_rows, uint32_t n);
/* A decoding pass with n_rows took so long. */
void draft_gate_time(struct draft_gate *gate, uint32_t n_rows, uint64_t ns);
/* It is known now whether a draft was right; those before it were. */
void draft_gate_result(struct draft_gate *gate, uint32_t at, bool is_right);

/* ---- what a session keeps -------------------------------------------------------------------- */

struct draft {
    int32_t tokens[1 + SEQUENCE_DRAFTS]; /* the evaluated one, then the drafts */
    uint32_t n;                          /* drafts that are computed; 0: none */
    enum draft_source source;            /* of these */
    uint32_t n_taken;                    /* of these, accepted */
    float *logits;                       /* [n_drafts, vocabulary] behind each draft */
    uint32_t *experts;                   /* [n_drafts, n_expert_layers, experts per token] */
    struct fm_draft_control control;
};

struct fm_session;

/* Drafts up to `max` tokens behind `id`, which the session is given next, or says that its model's
 * own block shall do so (draft_sources.c). */
void draft_choose(struct fm_session *session, int32_t id, uint32_t max);

#ifdef __cplusplus
}
#endif
#endif
