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

#include "flashmoe_lab.h"
#include "session/draft_gate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- drafts --------------------------------------------------------------------------------- */

/* Tokens that must have occurred before. Fewer occur everywhere and say little. */
#define DRAFT_MATCH 3
/* The same where the model's own block drafts otherwise, and mostly better. */
#define DRAFT_LONG_MATCH 8

/* Drafts what follows `id`, which follows ids[0..n), from a match of at least so many tokens; their
 * number becomes *match. Writes up to `max` tokens; returns how many. */
uint32_t draft_look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t min_match,
                       int32_t *drafts, uint32_t max, uint32_t *match);

/* ---- what a session keeps -------------------------------------------------------------------- */

struct draft {
    int32_t tokens[1 + SEQUENCE_DRAFTS]; /* the evaluated one, then the drafts */
    uint32_t n;                          /* drafts that are computed; 0: none */
    enum draft_source source;            /* of these */
    uint8_t sure[SEQUENCE_DRAFTS];       /* of each: how sure the source is */
    struct draft_chain chain;            /* of predicted ones */
    uint32_t n_taken;                    /* of these, accepted */
    float *logits;                       /* [n_drafts, vocabulary] behind each draft */
    uint32_t *experts;                   /* [n_drafts, n_expert_layers, experts per token] */
    struct draft_offer *offer;
    struct fm_draft_control control;
    struct fm_draft_counts counts;
};

/* What the answer's grammar forces behind the token that the session is given next. */
struct draft_offer {
    uint32_t position; /* of that token */
    int32_t id;        /* that token */
    int32_t drafts[SEQUENCE_DRAFTS];
    uint32_t n; /* 0: nothing */
};

struct fm_model;
struct fm_session;

/* Drafts what follows the token of each item that has to be computed, from all sources, as far as
 * the gate finds it worth it (draft_sources.c). Returns the time that predictions took.
 * *depends_on_block: the model's own block makes drafts, or would if trials did not say otherwise
 * (draft_trial.h), where no other source goes before it. */
uint64_t draft_make(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                    bool *depends_on_block);
/* Count a pass by its drafts, the drafts that it has computed, and one that was right. */
void draft_count_pass(struct fm_session *session);
void draft_count_made(struct fm_session *session);
void draft_count_accepted(struct fm_session *session, uint32_t at);
/* Returns where to offer drafts behind `id`, up to *max of them; NULL: the session drafts nothing.
 * Whoever writes them sets `n`. They count if `id` is evaluated next. */
struct draft_offer *draft_offer_for(const struct fm_session *session, int32_t id, uint32_t *max);

#ifdef __cplusplus
}
#endif
#endif
