/* Feed-forward blocks: a dense one, and routed experts with an optional shared one. */
#ifndef FLASHMOE_ARCH_FFN_H
#define FLASHMOE_ARCH_FFN_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ffn_weights {
    struct weight gate, up, down;
};

/* The matrices gate_proj, up_proj and down_proj below "PREFIX" "BLOCK" ".". */
void ffn_bind(struct binder *b, struct ffn_weights *w, uint32_t hidden, uint32_t intermediate,
              const char *prefix, const char *block);

struct ffn_dense {
    struct ffn_weights weights;
};

struct ffn_routed {
    struct router rule;
    struct weight router; /* [n_experts, hidden] */
    struct ffn_weights shared;
    struct weight shared_gate; /* [1, hidden] */
};

extern const struct ffn_block ffn_block_dense, ffn_block_routed;

#ifdef __cplusplus
}
#endif
#endif
