/* Operations of families whose residual has several streams, that keep tables of n-grams, or whose
 * attention chooses what it looks at. As backend.h; every struct here is the host's. A row of
 * streams is [n_streams, dim]. */
#ifndef FLASHMOE_BACKEND_STREAMS_H
#define FLASHMOE_BACKEND_STREAMS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
struct backend_segment;

/* y[t][s] = the norm of x[t][s] alone, times weight[s]; y may be x. */
struct backend_stream_norm {
    const float *x;
    const float *weight; /* [n_streams, dim] */
    float eps;
    unsigned n_streams, dim;
    float *y;
};

/* out[t] = the mean over all streams of sigmoid(gate[t][s]) * x[t][s]. */
struct backend_stream_mean {
    const float *x, *gate;
    unsigned n_streams, dim;
    float *out; /* [n, dim] */
};

/* x[t][s] += 2 * sigmoid(gate[t][s] / n_streams) * y[t], where gate is [n, n_streams]. */
struct backend_stream_add {
    const float *y, *gate;
    unsigned n_streams, dim;
    float *x;
};

/* out[t][s] = sigmoid(g) * value[t], where g is the root of the product of key[t][s] and
 * query[t][s] by sqrt(dim), with its sign; of a product below 1e-6 the root of 1e-6. */
struct backend_ngram_gate {
    const float *key, *query; /* rows of streams */
    const float *value;       /* [n, dim] */
    unsigned n_streams, dim;
    float *out;
};

/* The part of the state that the convolution uses: [(kernel - 1) * distance, channels] floats,
 * oldest first. It follows the parts of the layer's mixer. */
enum { NGRAM_CONV = 2 };

/* x += gated + silu(convolution of normed over time), with taps `distance` tokens apart. */
struct backend_ngram_conv {
    const struct backend_segment *segments; /* [n_segments] */
    size_t n_segments;
    unsigned kernel, distance, channels;
    const float *weight; /* [kernel, channels], the oldest tap first */
    const float *gated, *normed; /* [n, channels] */
    float *x;
};

/* The part of the state that the index uses: a row of dim floats for each position. The last
 * position of a block of `ratio` positions has the block's key, the others have keys of their
 * own. */
enum { INDEX_KEYS = 2 };

/* Which blocks a row attends to. */
struct backend_index {
    const struct backend_segment *segments; /* [n_segments] */
    size_t n_segments;
    unsigned ratio, dim, n_heads;
    unsigned n_best; /* blocks that a row attends to, at most */
    uint32_t block_positions; /* as in backend_attention */
    uint64_t block_bytes;
    const float *key; /* [n, dim] of each position */
    /* The mean of the keys of the block that ends at a row's position; zeros if none does.
     * index_means makes it, and index_choose keeps what has become of it. */
    float *mean; /* [n, dim] */
    const float *q; /* head h of row t is at t * q_row_stride + h * dim */
    size_t q_row_stride;
    /* For each row: how many blocks, and which, ascending. INDEX_ALL: all of them. */
    uint32_t *chosen; /* [n, 1 + n_best] */
};

#define INDEX_ALL UINT32_MAX

struct backend_stream_ops {
    void (*norm)(struct backend *be, const struct backend_stream_norm *args, size_t n);
    void (*mean)(struct backend *be, const struct backend_stream_mean *args, size_t n);
    void (*add)(struct backend *be, const struct backend_stream_add *args, size_t n);
    /* x[i] = silu(x[i] / divisor) */
    void (*silu)(struct backend *be, float *x, float divisor, size_t n);
    void (*ngram_gate)(struct backend *be, const struct backend_ngram_gate *args, size_t n);
    void (*ngram_conv)(struct backend *be, const struct backend_ngram_conv *args);
    /* Keeps the keys, and makes the means. */
    void (*index_means)(struct backend *be, const struct backend_index *args);
    /* Keeps the keys of blocks, and chooses: the blocks with the largest sum over all heads of
     * max(0, q . key). Of equal ones the earlier block. Complete blocks alone are chosen from; the
     * positions behind them count in any case. */
    void (*index_choose)(struct backend *be, const struct backend_index *args);
};

#ifdef __cplusplus
}
#endif
#endif
