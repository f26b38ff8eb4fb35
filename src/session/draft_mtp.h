/* Drafts of sessions by the model's own block for multi-token prediction (engine/mtp.h). Sessions
 * of a model without it know nothing, and nothing happens. One thread at a time. */
#ifndef FLASHMOE_SESSION_DRAFT_MTP_H
#define FLASHMOE_SESSION_DRAFT_MTP_H

#include "session/session_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

int draft_mtp_open(struct fm_session *s, struct fm_error *err);
/* Returns whether the session keeps what the block needs: not while it drafts nothing. */
bool draft_mtp_follows(const struct fm_session *s);
/* The session's next tokens are known and about to be computed. Makes the rows before them if they
 * are a prompt, or if many are missing. */
void draft_mtp_follow(struct fm_session *s, const struct batch_segment *next);

/* Returns whether drafts can be made: the hidden state before the session's next token is known. */
bool draft_mtp_can(const struct fm_session *s);
/* Notes a token of a text: in which part of the vocabulary drafts are looked for depends on it. */
void draft_mtp_note(struct fm_model *m, int32_t id);
/* Makes the drafts of all items whose source is DRAFT_PREDICTED, as many as each shall have at
 * most, and adds those to the pass that the gate finds worth it. They get none if that fails.
 * Returns the time it took, which the gate learns. */
uint64_t draft_mtp_predict(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                           struct draft_pass *pass);

#ifdef __cplusplus
}
#endif
#endif
