/* Folds quantised tensors that a Hugging Face directory stores as several into one:
 *   MLX:  X.weight (U32), X.scales, X.biases          -> X.weight in affine groups
 *   FP8:  X (F8_E4M3), X_scale_inv                    -> X in fp8-b128
 *   MXFP4: X_blocks (U8), X_scales                    -> X_blocks in mxfp4-g32
 *   compressed-tensors: X.weight_packed (I32), X.weight_scale, X.weight_shape
 *                                                     -> X.weight in int4-g32
 * Drops tensors that only other engines need (FP8's activation scales). The source owns all memory;
 * one thread, while the source is being opened. */
#ifndef FLASHMOE_FORMAT_FOLD_H
#define FLASHMOE_FORMAT_FOLD_H

#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Works on the sorted tensors of a source that is being opened. Tensors of layers that were not
 * requested stay unchanged, because their other parts may be in files that are missing. Fails with
 * FM_ERR_FORMAT if the parts do not fit together. */
int fold_quantised(struct source *source, const struct source_options *options,
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
