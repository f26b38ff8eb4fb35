/* Recurrent mixers: rows that leave a mark are cut there, rows that leave a trail are cut apart. */
#ifndef FLASHMOE_ARCH_RECURRENT_H
#define FLASHMOE_ARCH_RECURRENT_H

#include "arch/arch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the operations for the rows of n segments; `ctx` is the mixer's own. */
typedef void recurrent_fn(void *ctx, struct backend *be, const struct backend_segment *segments,
                          size_t n);

/* Runs the mixer on every row. Where a segment has a mark, the recurrent parts of its state are
 * copied there between the rows before the mark and those behind it. Where it has a trail, every
 * row computes in a slot of its own, unless the operations leave trails themselves. `state`
 * describes the layer.
 * Tokens follow each other in a recurrent layer, so cutting the rows changes nothing. */
void recurrent_run(struct backend *be, const struct layer_state *state,
                   const struct backend_segment *segments, size_t n, bool leaves_trails,
                   recurrent_fn *run, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
