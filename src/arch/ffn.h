/* Feed-forward blocks: a dense one, and routed experts with an optional shared one. */
#ifndef FLASHMOE_ARCH_FFN_H
#define FLASHMOE_ARCH_FFN_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ffn_weights {
    struct weight gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* NULL: none */
};

/* The matrices gate_proj, up_proj and down_proj below "PREFIX" "BLOCK" ".". */
void ffn_bind(struct binder *b, struct ffn_weights *w, uint32_t hidden, uint32_t intermediate,
              const char *prefix, const char *block);

/* The block on every row of the input. */
struct backend_ffn ffn_on_all_rows(const struct step *step, const struct ffn_weights *w,
                                   float *out);

struct ffn_dense {
    struct ffn_weights weights;
};

/* One row for each expert; NULL: none. */
struct expert_biases {
    const float *gate, *up, *down;
};

struct ffn_routed {
    struct router rule;
    struct weight router;     /* [n_experts, hidden] */
    const float *router_bias; /* [n_experts], part of the logits; NULL: none */
    /* The experts' own, in the backend's memory and in that of the processor beside a device. */
    struct expert_biases biases, host_biases;
    struct ffn_weights shared;
    struct weight shared_gate; /* [1, hidden]; without rows: the shared expert counts in full */
};

/* Binds the experts' biases, which lie in tensors beside the weights, below "PREFIX" "mlp.". */
void ffn_bind_expert_biases(struct binder *b, const struct transformer *t, struct ffn_routed *r,
                            const struct layer_names *names);

extern const struct ffn_block ffn_block_dense, ffn_block_routed;

#ifdef __cplusplus
}
#endif
#endif
