/* Softmax attention over the keys and values of every position so far, or of the last ones. */
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
    bool has_bias, has_output_bias;
    struct weight q, k, v, o;
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL: none */
    enum head_norms norms;
    const float *q_norm, *k_norm; /* [head_dim], or of all heads together */
    uint32_t window;    /* positions that a row sees; 0: all */
    const float *sinks; /* [n_heads], as in backend_attention; NULL: none */
};

extern const struct mixer mixer_attention;

#ifdef __cplusplus
}
#endif
#endif
