/* Tables of n-grams: a hash of each token and the ones before it names rows of a table, which are
 * added to every stream of the residual. The rows follow from token ids alone, so they are read
 * while earlier layers are computed. The table stays on the disk; the projections and a convolution
 * over the last tokens are in memory. */
#ifndef FLASHMOE_ARCH_NGRAM_H
#define FLASHMOE_ARCH_NGRAM_H

#include "arch/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NGRAM_MAX_HEADS 64

/* What all tables of a model have in common. */
struct ngram_shape {
    uint32_t n_tables; /* 0: the model has none */
    uint32_t layers[MODEL_MAX_TABLES]; /* [n_tables] ascending: which layers have one */
    uint32_t order;           /* tokens of the longest n-gram */
    uint32_t heads_per_order; /* rows for each length from 2 on */
    uint32_t width;           /* floats of all rows of a token together */
    uint32_t conv_kernel;
    uint32_t first_size, padding, seed, n_parts;
    uint32_t vocabulary, end_token;
    /* The numbers of the hash, where a file has them in place of the fields that they follow from:
     * then there is one table. NULL: it does not. */
    const json_t *hash;
    int64_t factors[MODEL_MAX_RECENT], sizes[NGRAM_MAX_HEADS], offsets[NGRAM_MAX_HEADS];
};

/* The table of one layer. */
struct ngram {
    uint32_t table; /* in model->row_tables */
    uint32_t order, heads_per_order, end_token;
    uint32_t width, conv_kernel;
    int64_t factors[MODEL_MAX_RECENT]; /* [order] */
    int64_t sizes[NGRAM_MAX_HEADS], offsets[NGRAM_MAX_HEADS]; /* of each head's rows */
    struct weight key, value;
    const float *norm_key, *norm_query, *norm_conv, *conv;
};

int ngram_read(struct ngram_shape *shape, const struct transformer *t, const struct config *c,
               struct fm_error *err);
/* Binds table `index` of the shape below "PREFIXple.". */
void ngram_bind(struct ngram *n, const struct ngram_shape *shape, uint32_t index, struct binder *b,
                const struct transformer *t, const struct layer_names *names);

/* As in struct arch. */
void ngram_rows(const struct ngram *n, const int32_t *recent, uint64_t *rows);

/* The state that a table adds to a layer's. */
struct state_part ngram_state(const struct ngram *n, const struct transformer *t);

/* Floats of scratch for each row, and the largest number of columns. */
uint64_t ngram_floats_per_row(const struct ngram_shape *shape, const struct transformer *t);
/* x += what looked_up adds. */
void ngram_run(const struct ngram *n, struct step *step, float *scratch);

#ifdef __cplusplus
}
#endif
#endif
