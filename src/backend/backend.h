/* A backend computes, and has the memory it computes in: it owns threads and scratch, knows number
 * formats, and sees neither files nor caches nor architectures. One operation works on all rows
 * (tokens) of a batch; the result of a row never depends on the other rows.
 *
 * Rows, weights and the state of sequences lie in the backend's memory (base/memory.h), which only
 * operations look into. What is said to be the host's, and the structs that name the rest, are
 * ordinary memory.
 *
 * Operations are queued: they may be done after the call returns, in the order of the calls, with
 * memory_copy and memory_clear among them. Three things wait for them: opening memory to look at
 * it, taking memory away, and memory_wait with a fence (base/memory.h). An operation copies what it
 * needs of the host's memory before it returns: structs, and the arrays in them that are the
 * host's. The caller may change or free these at once. Operations cannot fail, and what calls them
 * does not allocate. A backend is used by one thread at a time.
 *
 * Shapes: [n, m] is n rows of m contiguous floats unless a stride is given. */
#ifndef FLASHMOE_BACKEND_BACKEND_H
#define FLASHMOE_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "quant/kv.h"
#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

struct backend;

#define BACKEND_STATE_PARTS 4 /* of one layer, at most */

/* One sequence's rows within a batch, and its state for the layer at hand. */
struct backend_segment {
    uint32_t first_row, n_rows;
    uint32_t position; /* of the first row */
    /* A mixer copies its recurrent parts from `state` to `mark` after so many rows; 0: it does
     * not. Operations do not look at it. */
    uint32_t mark_rows;
    /* The parts of the layer's state. The struct of an operation says which of them it uses. */
    void *state[BACKEND_STATE_PARTS];
    void *mark[BACKEND_STATE_PARTS]; /* NULL: the part is addressed by position */
};

/* Heads of queries or keys: norm over each head, where there is one, then rotary embedding, in
 * place. */
struct backend_heads {
    float *x;
    size_t row_stride, head_stride; /* floats */
    unsigned n_heads, head_dim, rotary_dim;
    const float *norm; /* [head_dim]; NULL: none */
    float eps;
    const float *rope; /* [n, rotary_dim]: cosines, then sines */
};

/* Parts of the state that attention uses: [n_kv_heads, block_positions] rows in kv_format, of the
 * first block. Those of the next block lie block_bytes behind. */
enum { ATTENTION_KEYS, ATTENTION_VALUES, ATTENTION_PARTS };

struct backend_attention {
    const struct backend_segment *segments; /* [n_segments], the host's */
    size_t n_segments;
    const struct kv_format *kv_format;
    unsigned n_heads, n_kv_heads, head_dim;
    uint32_t block_positions; /* a multiple of 256 where there is more than one block */
    uint64_t block_bytes;
    /* Head h of row t at t * q_row_stride + h * q_head_stride; rotated in place where the format
     * is. */
    float *q;
    const float *gate; /* the same strides, or NULL: out *= sigmoid(gate) */
    size_t q_row_stride, q_head_stride;
    const float *k, *v; /* [n, n_kv_heads * head_dim], stored before attending */
    float scale;
    /* A row sees this many positions, its own the last of them; 0: all. */
    uint32_t window;
    /* One more score for each head, whose value is zero; NULL: none. */
    const float *sinks; /* [n_heads] */
    float *out; /* [n, n_heads * head_dim] */
};

/* Parts of the state that the delta rule uses, in floats. */
enum {
    DELTA_NET_CONV,  /* [kernel - 1, channels], oldest first */
    DELTA_NET_STATE, /* [n_value_heads, value_dim, key_dim] */
    DELTA_NET_PARTS
};

struct backend_delta_net {
    const struct backend_segment *segments; /* [n_segments], the host's */
    size_t n_segments;
    unsigned n_key_heads, n_value_heads, key_dim, value_dim, kernel;
    bool has_tiled_value_heads; /* head h uses key head h % n_key_heads, not h / ratio */
    const float *qkv;         /* [n, channels], channels = 2 * key heads' + value heads' width */
    const float *z, *b, *a;   /* [n, value width], [n, n_value_heads] twice */
    const float *conv_weight; /* [kernel, channels] */
    const float *decay;       /* [n_value_heads], -exp(A_log) */
    const float *dt_bias;     /* [n_value_heads] */
    const float *norm;        /* [value_dim] */
    float eps;
    float *mixed; /* [n, channels], scratch: the convolution's output */
    float *out;   /* [n, value width] */
};

/* One weight to multiply the input with: y is [n, w.n_rows]. */
struct backend_product {
    const struct weight *w; /* the host's; its parts lie in the backend's memory */
    float *y;
    const float *bias; /* [w.n_rows], added to every row of y; NULL: none */
};

enum activation_kind {
    ACTIVATION_SILU, /* silu(gate) * up */
    ACTIVATION_GELU, /* gelu(gate) * up, in the form with tanh */
    /* gate is at most limit, up between -limit and limit:
     * gate * sigmoid(alpha * gate) * (up + 1) */
    ACTIVATION_CLAMPED_SWIGLU,
};

struct activation {
    enum activation_kind kind;
    float alpha, limit; /* of the clamped one */
};

/* A feed-forward block on some rows of the input:
 * out[places[i]] = down (activation(gate x, up x)), x = input row rows[i]. */
struct backend_ffn {
    struct weight gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* as in backend_product */
    struct activation activation;
    const uint32_t *rows, *places; /* [n], the host's; NULL: i */
    size_t n;
    float *out; /* rows of down.n_rows floats */
};

enum router_score {
    ROUTER_SOFTMAX, /* over all experts */
    ROUTER_SIGMOID, /* of each expert alone */
};

/* How the logits of a row become k experts and their weights. Chosen are those with the highest
 * score plus correction; ties go to the lower id. With groups, which are neighbours, only the
 * n_groups_chosen groups count whose two highest such sums add up to the most.
 * The weight of a chosen expert is its score without correction; with `renormalises` divided by
 * (the sum of the chosen ones + 1e-20); then times scale. Where there is neither correction nor
 * group, a softmax chooses by logit and `renormalises` is the softmax over the chosen: a softmax
 * that is taken behind the choice is the same. */
struct router {
    enum router_score score;
    unsigned n_experts, k;
    const float *correction; /* [n_experts] in the backend's memory, or NULL */
    /* 1 or 0: no groups. Otherwise they divide n_experts, have two experts at least, and those
     * chosen (at most LIMIT_TOP_K) have k. */
    unsigned n_groups, n_groups_chosen;
    bool renormalises;
    float scale;
};

/* Cache-biased routing, after route: the k experts with the highest rating + bias * (highest -
 * lowest rating of the row) * resident. A rating is what the router chooses by: the logit, or
 * score plus correction within the chosen groups. The expert with the highest one stays. Weights
 * are those the router gives the chosen experts without any bias. A row whose choice stays has its
 * weights unchanged. */
struct backend_preference {
    const struct router *router; /* the host's */
    const float *logits; /* [n, n_experts] */
    size_t n;
    const bool *resident; /* [n_experts], the host's */
    float bias;
    float *scores;  /* [n_experts], scratch */
    uint32_t *ids;  /* [n, k] as route left them */
    float *weights; /* [n, k] */
};

struct backend_ops {
    const char *name;
    void (*close)(struct backend *be); /* its memory is free by then, so nothing is queued */

    /* x[t] = row tokens[t] of w; the tokens are the host's */
    void (*embed)(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                  float *x);
    /* Names the rows x [n, n_cols] that the products and feed-forward blocks that follow are
     * multiplied with, until the next call; x must not change meanwhile. What a number format
     * needs of the rows is made once. */
    void (*input)(struct backend *be, const float *x, size_t n, size_t n_cols);
    /* y[t][r] = W[r] . x[t] for each product */
    void (*matmul)(struct backend *be, const struct backend_product *products, size_t n);
    /* At most options.max_ffn_rows rows in all blocks together. */
    void (*ffn)(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks);
    void (*rms_norm)(struct backend *be, const float *x, const float *weight, float eps, size_t n,
                     size_t dim, float *y);
    /* out [n, rotary_dim] for position positions[t], times scale; frequencies is
     * [rotary_dim / 2]; both are the host's */
    void (*rope_table)(struct backend *be, const uint32_t *positions, size_t n,
                       const float *frequencies, unsigned rotary_dim, float scale, float *out);
    void (*norm_rope)(struct backend *be, const struct backend_heads *heads, size_t n);
    void (*attention)(struct backend *be, const struct backend_attention *args);
    void (*delta_net)(struct backend *be, const struct backend_delta_net *args);
    /* Experts and weights of every row of logits [n, n_experts]; ids ascending */
    void (*route)(struct backend *be, const struct router *router, const float *logits, size_t n,
                  uint32_t *ids, float *weights);
    void (*prefer)(struct backend *be, const struct backend_preference *args);
    /* Returns the first of n rows of x with a value that is not finite, or n. Waits for the
     * operations queued before. */
    size_t (*find_not_finite)(struct backend *be, const float *x, size_t n, size_t dim);
    /* out[t] = sum over j of weights[t][j] * parts[t][j], ascending j; parts is [n, k, dim] */
    void (*expert_sum)(struct backend *be, const float *parts, const float *weights, size_t n,
                       unsigned k, size_t dim, float *out);
    /* y[t] += sigmoid(gate[t]) * x[t] */
    void (*add_gated)(struct backend *be, float *y, const float *x, const float *gate, size_t n,
                      size_t dim);
    /* y += x */
    void (*add)(struct backend *be, float *y, const float *x, size_t n);
};

struct backend {
    const struct backend_ops *ops;
    const struct memory *memory; /* outlives what is made in it; gone with the backend */
    /* For whoever reads weights into it; outlives the backend. */
    const struct weight_preparer *preparer;
    const char *level; /* of the processor's instructions in use */
};

struct backend_options {
    unsigned n_threads;
    bool pin_threads;
    const char *cpu;         /* a level of the CPU kernels by name; NULL: the best there is */
    size_t max_cols;         /* of any weight */
    size_t max_rows;         /* tokens in any batch */
    size_t max_ffn_rows;     /* rows of all feed-forward blocks of one call */
    size_t max_intermediate; /* rows of any gate */
    unsigned n_heads, head_dim, key_dim; /* of attention and of the delta rule; 0: none */
    uint32_t n_context;
};

/* A backend of the list by name; NULL takes the first. */
int backend_open(const char *name, const struct backend_options *options, struct backend **out,
                 struct fm_error *err);
void backend_close(struct backend *be); /* accepts NULL */

/* Bytes that backend takes for its scratch with these options. */
uint64_t backend_scratch_bytes(const char *name, const struct backend_options *options);

#ifdef __cplusplus
}
#endif
#endif
