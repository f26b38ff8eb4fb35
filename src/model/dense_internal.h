/* Passes the dense weights from the binder, which lists their reads, to model_load_dense. */
#ifndef FLASHMOE_MODEL_DENSE_INTERNAL_H
#define FLASHMOE_MODEL_DENSE_INTERNAL_H

#include "model/binder_internal.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes ownership of the binder's lists, until the dense weights are read. */
int dense_plan_take(struct model *model, struct binder *b, struct fm_error *err);
void dense_plan_free(struct dense_plan *plan); /* accepts NULL */

/* Verifies a tensor of a packed model. Its matrices are in memory from `dense` on, with their rows
 * still in the file's order. `reads` are all dense reads, sorted by their offset in dense.bin. Any
 * thread may call. */
int dense_check_matrix(const struct model *model, const struct packed_tensor *tensor,
                       const char *dense, const struct dense_read *reads, size_t n_reads,
                       struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
