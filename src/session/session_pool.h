/* A pool of sessions for many conversations. Each request gets the session with the longest prefix
 * of its tokens. A conversation is dropped only if no other session and no snapshot can take the
 * new one. The thread that drives the model uses it. */
#ifndef FLASHMOE_SESSION_SESSION_POOL_H
#define FLASHMOE_SESSION_SESSION_POOL_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct session_pool;

struct session_pool_options {
    unsigned n_sessions;            /* opened at once, at most fm_model_options.n_sessions; 0: 1 */
    struct fm_snapshots *snapshots; /* keeps what does not fit; borrowed. NULL: nothing does */
    unsigned keep_min;              /* min tokens that are worth a snapshot */
};
int session_pool_open(struct fm_model *model, const struct session_pool_options *options,
                      struct session_pool **out, struct fm_error *err);
/* Give all sessions back first. Accepts NULL. */
void session_pool_close(struct session_pool *pool);

/* Returns a session for these tokens at position *n_found: evaluate `ids` from there. Returns NULL
 * when all are taken. Uses only what was computed for the same `owner`; fm_snapshots_keep saves for
 * owner 0. `key` names a conversation, 0: unknown; it decides where the tokens alone do not. */
struct fm_session *session_pool_take(struct session_pool *pool, const int32_t *ids, size_t n_ids,
                                     uint64_t key, uint64_t owner, unsigned *n_found);
/* Return how many leading tokens a session could go on from now, and how many some session has,
 * although it may have no mark there. Only sessions of this owner count. */
unsigned session_pool_nearest(const struct session_pool *pool, const int32_t *ids, size_t n_ids,
                              uint64_t owner);
unsigned session_pool_common(const struct session_pool *pool, const int32_t *ids, size_t n_ids,
                             uint64_t owner);
/* Keeps the mark that an evaluation which ends at this position leaves, until the session goes back
 * before it or another one is to be kept: other prompts will go on from there. */
void session_pool_keep_mark(struct fm_session *session, unsigned position);
/* Gives a session back with what it has computed. */
void session_pool_give(struct session_pool *pool, struct fm_session *session);
/* Saves and empties the least recently used session that is not taken, after an evaluation failed
 * with FM_ERR_BUDGET. Returns false when all are taken or empty. */
bool session_pool_drop_idle(struct session_pool *pool);
/* Saves one session that is not taken and has at least n_new tokens that no snapshot has. Returns 1
 * if there was one, 0 if not, or a negative code. */
int session_pool_keep(struct session_pool *pool, unsigned n_new, struct fm_error *err);

struct session_pool_info {
    bool is_taken;
    unsigned position; /* tokens computed */
    uint64_t key;
};
/* Gives the i-th session; false past the end. */
bool session_pool_info(const struct session_pool *pool, unsigned i,
                       struct session_pool_info *info);

/* Returns the owner that session_pool_take was last given for session i; 0 for none, and where
 * there is no such session. */
uint64_t session_pool_owner(const struct session_pool *pool, unsigned i);

#ifdef __cplusplus
}
#endif
#endif
