/* Drafts by the model's own block for multi-token prediction (arch/mtp.h). A row of the block is a
 * token and the hidden state before it; its keys and values lie in the sequence like those of a
 * layer, and `struct mtp_state` says which rows are there. A row whose hidden state is not known is
 * left out, so drafting goes on wherever a sequence came from; it only drafts worse.
 *
 * Owned by a session; belongs to the thread that drives the forward pass. */
#ifndef FLASHMOE_ENGINE_MTP_H
#define FLASHMOE_ENGINE_MTP_H

#include <stdbool.h>
#include <stdint.h>

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct engine;
struct sequence;

/* What the block knows of a sequence. */
struct mtp_state {
    uint32_t n_rows;     /* with keys and values */
    uint32_t *positions; /* [n_context]: of each row's hidden state, ascending */
    /* The model's hidden states at `n_hidden` positions from `first` on, up to the last one that
     * was computed: several rows are made together, when they are needed. */
    uint32_t first, n_hidden;
    float *hidden; /* [max_hidden, hidden] */
    uint32_t max_hidden;
    float *next; /* [hidden]: that of a row that drafts */
};

int mtp_state_open(struct mtp_state *state, uint32_t n_context, uint32_t n_drafts,
                   uint32_t hidden, struct fm_error *err);
void mtp_state_close(struct mtp_state *state); /* accepts a zeroed one */
/* Returns how many rows a sequence lacks at most. */
uint32_t mtp_max_missing(uint32_t n_drafts);
uint64_t mtp_state_bytes(uint32_t n_context, uint32_t n_drafts, uint32_t hidden);
/* Returns whether there is no room for the hidden states of another pass. */
bool mtp_state_is_full(const struct mtp_state *state, uint32_t n_drafts);
/* Forgets the hidden states whose rows are made, but for the last one: its token may change. */
void mtp_state_trim(struct mtp_state *state, uint32_t hidden);
/* Knows nothing. */
void mtp_state_reset(struct mtp_state *state);
/* Forgets what follows from tokens that the sequence does not have: it is at `position` now. */
void mtp_state_go(struct mtp_state *state, uint32_t position);
/* The same as another's whose sequence was copied. */
void mtp_state_copy(struct mtp_state *to, const struct mtp_state *from, uint32_t hidden);
void mtp_state_add(struct mtp_state *state, uint32_t position);

/* A row to compute. */
struct mtp_row {
    struct sequence *sequence; /* has memory for the keys and values */
    uint32_t place;    /* of its keys and values: the rows of a sequence follow each other */
    uint32_t position; /* of the hidden state */
    int32_t token;     /* behind it */
    const float *hidden; /* of the model, or of the row before; the host's */
    float *next;       /* becomes the row's own hidden state; may be `hidden` */
    int32_t draft;     /* becomes the most likely token behind `token` */
    float margin;      /* becomes the difference of its logit to the next one's */
};

/* Keeps the keys and values of the rows; those of a sequence are consecutive. */
void engine_mtp_keep(struct engine *e, const struct mtp_row *rows, uint32_t n);
/* Computes a row of each of some sequences, at most as many as a batch has. Drafts are among the
 * first n_tokens of the vocabulary, which engine_mtp_tokens gives. Returns false if that fails: an
 * expert cannot be read, for example. It concerns nobody then. */
bool engine_mtp_draft(struct engine *e, struct mtp_row *rows, uint32_t n, uint32_t n_tokens);
/* Returns how many tokens a part 1 / divisor of the vocabulary has. */
uint32_t engine_mtp_tokens(const struct engine *e, uint32_t divisor);

#ifdef __cplusplus
}
#endif
#endif
