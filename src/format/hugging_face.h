/* Opens a Hugging Face directory: config.json, and model.safetensors or the shards listed in
 * model.safetensors.index.json. Quantised tensors that consist of several (MLX's weight, scales and
 * biases; FP8's weight and scales) become one. Ownership and threads as in source.h. */
#ifndef FLASHMOE_FORMAT_HUGGING_FACE_H
#define FLASHMOE_FORMAT_HUGGING_FACE_H

#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills a zeroed source whose path is set. After a failure it can only be closed. */
int hugging_face_open(struct source *source, const char *dir, const struct source_options *options,
                      struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
