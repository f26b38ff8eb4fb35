/* Softmax attention over the keys and values of every position so far. */
#ifndef FLASHMOE_ARCH_MIX_ATTENTION_H
#define FLASHMOE_ARCH_MIX_ATTENTION_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct attention {
    uint32_t n_heads, n_kv_heads, head_dim;
    bool has_gate; /* q has the rows of a head's query, then those of its gate */
    float eps, scale;
    struct weight q, k, v, o;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
    const float *q_norm, *k_norm; /* [head_dim] */
};

extern const struct mixer mixer_attention;

#ifdef __cplusplus
}
#endif
#endif
