/* Quantised tensors that a Hugging Face directory keeps in several become one:
 *   MLX:  X.weight (U32), X.scales, X.biases          -> X.weight in affine groups
 *   FP8:  X (F8_E4M3), X_scale_inv                    -> X in fp8-b128
 * What only helps other engines (FP8's activation scales) is dropped. */
#ifndef FLASHMOE_FORMAT_FOLD_H
#define FLASHMOE_FORMAT_FOLD_H

#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Works on the sorted tensors of a source that is being opened. Those of layers that are not asked
 * for stay as they are: their other parts may lie in files that are not there. */
int fold_quantised(struct source *source, const struct source_options *options,
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
