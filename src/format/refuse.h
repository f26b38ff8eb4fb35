/* Checkpoints that are recognised and refused by kind: what they are, and what to download instead.
 * Without this a missing or odd tensor would be reported. */
#ifndef FLASHMOE_FORMAT_REFUSE_H
#define FLASHMOE_FORMAT_REFUSE_H

#include "base/jdoc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Refuses a folder that holds a LoRA or another adapter. */
int refuse_adapter(const char *dir, struct fm_error *err);

/* Refuses a configuration that names a quantisation this version does not read. FP8 in blocks of
 * 128 x 128 is read, and so is MLX's, which names no method. */
int refuse_quantised(const struct jdoc *config, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
