/* Softmax attention over the keys and values of every position so far, or of the last ones. */
#ifndef FLASHMOE_ARCH_MIX_ATTENTION_H
#define FLASHMOE_ARCH_MIX_ATTENTION_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How blocks of positions are chosen (mix_indexed.c). */
struct attention_index {
    uint32_t n_heads, dim;
    uint32_t ratio;   /* positions of a block; 0: there is no index, and all are seen */
    uint32_t n_best;  /* blocks that a row sees, at most */
    struct weight qk; /* rows of the queries, then those of the key; or the queries alone */
    struct weight k;  /* the key, where they are apart; otherwise without rows */
    const float *q_norm, *k_norm; /* [dim] */
};

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
    struct attention_index index;
};

extern const struct mixer mixer_attention, mixer_indexed;

/* Of both. */
void attention_run(const void *mix, struct step *step, const struct mix_buffers *m);
/* Only keeps the keys and values of the rows. Without an index. */
void attention_keep(const void *mix, struct step *step, const struct mix_buffers *m);
/* Returns where the products of index.qk and index.k go, in the scratch of mixer_indexed. */
float *attention_index_key(const struct attention *a, const struct step *step, float *scratch);
/* Chooses blocks for every row, as index_choose does. The products are in `scratch`. */
const uint32_t *attention_choose(const struct attention *a, struct step *step,
                                 const struct mix_buffers *m, float *scratch);

#ifdef __cplusplus
}
#endif
#endif
