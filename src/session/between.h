/* Evaluations between the layers of another one: a long prompt is computed in large pieces, which
 * read every expert once for many rows, and answers need not wait for the end of a piece. No row
 * depends on another, so all results are those of each evaluation alone. The thread that drives the
 * model uses it. */
#ifndef FLASHMOE_SESSION_BETWEEN_H
#define FLASHMOE_SESSION_BETWEEN_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct session_between {
    void *ctx;
    /* Called before every layer of an evaluation that has left rows free: at most prefill_chunk
     * tokens are computed at a time. Returns whether `run` shall be called now. */
    bool (*wants)(void *ctx);
    /* May evaluate other sessions than those that are being evaluated, with fm_eval_batch, and do
     * everything with those. Neither function is called meanwhile. */
    void (*run)(void *ctx);
};

/* Returns whether a model can do so: it computes on this processor, in one stage, and its layers
 * have no tables on the disk. */
bool session_can_pause(const struct fm_model *m);
/* Sets the functions for all evaluations from now on; NULL: none. Only with session_can_pause. */
void session_set_between(struct fm_model *m, const struct session_between *between);

#ifdef __cplusplus
}
#endif
#endif
