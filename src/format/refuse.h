/* Recognises checkpoints that cannot be used and says what they are and what to download instead.
 * Otherwise the user would see an error about a missing or odd tensor. Any thread. */
#ifndef FLASHMOE_FORMAT_REFUSE_H
#define FLASHMOE_FORMAT_REFUSE_H

#include "base/jdoc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fails if the folder contains a LoRA or another adapter. */
int refuse_adapter(const char *dir, struct fm_error *err);

/* Fails if the configuration names a quantisation that this version cannot read. FP8 in blocks of
 * 128 x 128 is accepted, compressed-tensors' weights of four bits in symmetric groups of 32, and
 * MLX's, which names no method. */
int refuse_quantised(const struct jdoc *config, struct fm_error *err);

/* Returns whether the configuration says that compressed-tensors has packed the weights. */
bool refuse_expects_packed(const struct jdoc *config);

#ifdef __cplusplus
}
#endif
#endif
