/* What the files of this folder share: the structs behind the public API's opaque types. */
#ifndef FLASHMOE_SESSION_SESSION_INTERNAL_H
#define FLASHMOE_SESSION_SESSION_INTERNAL_H

#include <signal.h>
#include <xxhash.h>

#include "chat/chat.h"
#include "engine/engine.h"
#include "flashmoe_lab.h"
#include "lab/routes.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fm_model {
    struct engine engine;
    struct tokenizer *tokenizer; /* NULL without tokenizer.json */
    struct chat *chat;           /* NULL without tokenizer */
    struct model_grammars *grammars; /* what grammars share (session_grammar.c) */
    struct fm_sampling default_sampling;
    bool is_metadata_only;
    bool checks_all;       /* verifies all that model.json lists */
    struct routes *routes; /* NULL: the model's routers */
    char approximate[160]; /* empty: exact */
    struct batch_segment *segments; /* [n_sessions], for one batch */
    uint32_t *segment_sessions;     /* [n_sessions], index of the item of each segment */
    unsigned n_open_sessions;
    uint64_t n_prefill_tokens, prefill_ns, n_decode_tokens, decode_ns;
};

struct fm_session {
    struct fm_model *owner;
    struct sequence *sequence;
    int32_t *ids;  /* [n_context]: the tokens so far, one for each position */
    float *logits; /* [vocabulary] */
    bool has_logits;
    volatile sig_atomic_t is_cancelled; /* accessed atomically: by any thread and signal handlers */
    struct fm_observer observer;
    XXH3_state_t *hash;
    uint64_t prefix_owner; /* whose the computed tokens are; snapshots of others are not used */
    uint32_t batch_item; /* while a batch runs: its place in the caller's list, plus one */
    /* The current call: where it began, tokens given to batches, whether there were logits. */
    uint32_t begin_position, n_done;
    bool has_new_logits;
    struct fm_failure failure; /* of the last one */
};

/* The chat form of the model: its template and special tokens (text.c). */
int chat_form_open(struct fm_model *m, struct fm_error *err);

/* What the grammars of a model share: a lock, and a vocabulary that the first one makes. NULL
 * without a tokenizer. */
int model_grammars_open(struct fm_model *m, struct fm_error *err);
void model_grammars_close(struct fm_model *m);
/* The tokens that a grammar allows, a bit for each id, stop tokens included. */
const uint32_t *constraint_mask(struct fm_grammar *grammar);

/* Memory for keys and values of so many positions of a session, inside the budget. FM_ERR_BUDGET,
 * FM_ERR_NOMEM: nothing has changed (session.c). */
int session_reach(struct fm_session *s, uint32_t n_positions, struct fm_error *err);
/* A wish to cancel that came too late. */
void session_forget_cancel(struct fm_session *s);
/* Makes it what the other one was at a position that it can go back to. After a failure, which is
 * want of memory, it is empty. */
int session_copy(struct fm_session *to, const struct fm_session *from, uint32_t position,
                 struct fm_error *err);

/* Checks the approximations that are asked for once the model's headers are read, and puts them in
 * words (approximate.c). */
int approximate_choose(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err);
/* The words, or NULL. */
const char *approximate_label(const struct fm_model *m);

#ifdef __cplusplus
}
#endif
#endif
