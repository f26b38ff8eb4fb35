/* The gated delta rule: a convolution over the last few tokens and a state of fixed size. */
#ifndef FLASHMOE_ARCH_MIX_DELTA_NET_H
#define FLASHMOE_ARCH_MIX_DELTA_NET_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct delta_net {
    uint32_t n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel;
    bool has_tiled_value_heads; /* source_conventions */
    bool has_sigmoid_gate;      /* as in backend_delta_net */
    float eps;
    struct weight qkv, z, b, a, out;
    const float *conv, *decay, *dt_bias, *norm;
    void (*bind_projections)(struct binder *b, const struct transformer *t, struct delta_net *d,
                             const char *prefix); /* the family's */
};

extern const struct mixer mixer_delta_net;

/* The projections where they lie apart: all queries, keys and values in one matrix, the gates z in
 * another. */
void delta_net_bind_qkv_z(struct binder *b, const struct transformer *t, struct delta_net *d,
                          const char *prefix);
/* The same, and b and a each in a matrix of its own. */
void delta_net_bind_apart(struct binder *b, const struct transformer *t, struct delta_net *d,
                          const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
