/* Latent attention: keys and values of all heads are products of one short row per position, and
 * only that row is kept. Each head multiplies its query with its part of the keys' matrix first, so
 * that it attends to the rows as they are; its part of the values' matrix follows. A prompt is
 * computed in the same way as a token, so both have the same bits. */
#ifndef FLASHMOE_ARCH_MIX_LATENT_H
#define FLASHMOE_ARCH_MIX_LATENT_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

struct latent {
    uint32_t n_heads;
    uint32_t rank;      /* numbers of a row that keys and values are made of */
    uint32_t rope_dim;  /* numbers behind them: a key that turns with its position, for all heads */
    uint32_t plain_dim; /* numbers of a head's query that do not turn; rope_dim follow */
    uint32_t value_dim; /* numbers of a head's value */
    uint32_t q_rank;    /* queries are made of so many numbers; 0: of the hidden state */
    bool turns_neighbours;
    bool has_bias;
    float scale;
    struct weight q_a, q, kv_a, o;
    const float *q_a_bias, *kv_a_bias, *o_bias; /* NULL: none */
    const float *q_norm, *kv_norm; /* [q_rank], [rank] */
    /* For each head: [rank, plain_dim] of the keys, turned. Behind them, [value_dim, rank] of the
     * values. */
    struct weight heads[];
};

extern const struct mixer mixer_latent;

#ifdef __cplusplus
}
#endif
#endif
