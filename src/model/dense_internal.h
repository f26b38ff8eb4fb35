/* The dense weights between the binder, which lists their reads, and model_load_dense. */
#ifndef FLASHMOE_MODEL_DENSE_INTERNAL_H
#define FLASHMOE_MODEL_DENSE_INTERNAL_H

#include "model/binder_internal.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the binder's lists over; they live on until the dense weights are read. */
int dense_plan_take(struct model *model, struct binder *b, struct fm_error *err);
void dense_plan_free(struct dense_plan *plan); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
