/* The entrance for model options: everything below sees them in the layout of this library. */
#ifndef FLASHMOE_ENGINE_OPTIONS_H
#define FLASHMOE_ENGINE_OPTIONS_H

#include "engine/sequence.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct own_options {
    struct fm_model_options o; /* o.stages points to `stages`, or is NULL with one stage */
    struct fm_stage_options stages[SEQUENCE_PARTS];
};

/* Copies the caller's options, NULL for none; texts and paths in them stay borrowed. FM_ERR_ARG: a
 * size, the number of stages or an enum is wrong, or an option is set that this library does not
 * know. */
int own_options_take(struct own_options *own, const struct fm_model_options *given,
                     struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
