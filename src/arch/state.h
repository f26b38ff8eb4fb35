/* A sequence: what the layers of a model remember of one token stream. Keys and values of
 * attention layers for every position up to n_context, and the recurrent state of the others.
 * All of it is one block taken at new; pages of positions never reached are never touched.
 *
 * Belongs to the thread that drives the forward pass. */
#ifndef FLASHMOE_ARCH_STATE_H
#define FLASHMOE_ARCH_STATE_H

#include "arch/arch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sequence_layer {
    void *keys, *values;
    float *conv, *delta;
};

struct sequence {
    uint32_t position; /* tokens so far */
    void *block;
    uint64_t recurrent_bytes; /* at the front of the block */
    struct sequence_layer layers[]; /* [n_layers] */
};

struct sequence_sizes {
    uint64_t kv_position_bytes; /* keys and values of one position, all layers */
    uint64_t recurrent_bytes;
};

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes);
/* Refuses a format that the heads of a layer do not fit. */
int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err);
/* All a sequence takes; false when that does not fit into 64 bits. */
bool sequence_bytes(const struct model *model, const struct kv_format *kv_format,
                    uint32_t n_context, uint64_t *bytes);

int sequence_new(const struct model *model, const struct kv_format *kv_format, uint32_t n_context,
                 struct sequence **out, struct fm_error *err);
void sequence_free(struct sequence *sequence); /* accepts NULL */

/* Back to position 0. */
void sequence_reset(struct sequence *sequence);

#ifdef __cplusplus
}
#endif
#endif
