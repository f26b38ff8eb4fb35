/* The block for multi-token prediction of Qwen3-Next and Qwen3.5: one more layer of full attention
 * and experts, with keys and values of its own. It is given a token and what the final norm gave at
 * the position before, and predicts the token behind; embedding and head are the model's. Its
 * tensors lie below "mtp.". It only drafts: no logits of the model depend on it.
 *
 * Made while a model opens, and constant afterwards. */
#ifndef FLASHMOE_ARCH_MTP_H
#define FLASHMOE_ARCH_MTP_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mtp {
    struct weight fc; /* [hidden, 2 * hidden]: of the token's part, then of the position's */
    const float *embedding_norm, *hidden_norm, *norm; /* [hidden] */
};

/* Returns whether the files have a block, and the options ask for it. */
bool mtp_is_wanted(const struct binder *b, const struct transformer_traits *traits);
/* Binds all but the layer. */
void mtp_bind(struct binder *b, struct mtp *mtp, const struct transformer *t,
              enum vector_transform norm);

/* Returns the mixer's own memory, behind the rope table (blocks.c). */
struct mix_buffers blocks_mix_buffers(const struct step *step);

extern const struct arch_mtp blocks_mtp;

#ifdef __cplusplus
}
#endif
#endif
