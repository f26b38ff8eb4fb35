/* What operations on single heads are called with; as backend.h. */
#ifndef FLASHMOE_BACKEND_HEADS_H
#define FLASHMOE_BACKEND_HEADS_H

#include <stdbool.h>
#include <stddef.h>

#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Heads of queries or keys. Normalises each head if there is a norm, then applies the rotary
 * embedding, in place. */
struct backend_heads {
    float *x;
    size_t row_stride, head_stride; /* floats */
    unsigned n_heads, head_dim, rotary_dim;
    /* Dimension 2 i turns with 2 i + 1. Otherwise i turns with i + rotary_dim / 2. */
    bool turns_neighbours;
    const float *norm; /* [head_dim]; NULL: none */
    float eps;
    const float *rope; /* [n, rotary_dim]: cosines, then sines */
};

/* One weight for each head: head h of every row t is multiplied with w[h], which has n_cols
 * columns and as many rows as the others.
 * y[t * n_heads + h] = w[h] x[t * n_heads + h], where rows of y are y_stride floats apart. */
struct backend_head_products {
    const struct weight *w; /* [n_heads], the host's; their parts lie in the backend's memory */
    unsigned n_heads;
    const float *x; /* [n, n_heads, n_cols] */
    float *y;
    size_t y_stride;
};

/* Copies `dim` floats of every head of every row. Head h of row t begins at
 * (t * n_heads + h) * stride. The two do not overlap. */
struct backend_head_copy {
    const float *from;
    float *to;
    size_t from_stride, to_stride;
    unsigned n_heads, dim;
};

#ifdef __cplusplus
}
#endif
#endif
