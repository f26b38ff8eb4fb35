/* Drafts of sessions by the model's own block for multi-token prediction (engine/mtp.h). Sessions
 * of a model without it know nothing, and nothing happens. One thread at a time. */
#ifndef FLASHMOE_SESSION_DRAFT_MTP_H
#define FLASHMOE_SESSION_DRAFT_MTP_H

#include "session/session_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

int draft_mtp_open(struct fm_session *s, struct fm_error *err);
/* The session's next tokens are known and about to be computed. Makes the rows before them if they
 * are a prompt, or if many are missing. */
void draft_mtp_follow(struct fm_session *s, const struct batch_segment *next);

/* Looks up what follows a session's token, draft.tokens[0], or says that the block shall draft:
 * draft.source and draft.n, at most `max`. */
void draft_choose(struct fm_session *s, uint32_t max);
/* Makes the drafts of all items whose source is DRAFT_PREDICTED, as many as each shall have. They
 * get none if that fails. Returns the largest number of drafts. */
uint32_t draft_mtp_predict(struct fm_model *m, struct fm_batch_item *items, size_t n_items);

#ifdef __cplusplus
}
#endif
#endif
