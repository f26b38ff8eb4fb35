/* A backend computes. It owns the memory it computes in, its threads and its scratch. It knows
 * number formats, but no files, caches or architectures. One operation works on all rows (tokens)
 * of a batch; the result of a row never depends on the other rows.
 *
 * Rows, weights and the state of sequences lie in the backend's memory (base/memory.h), which only
 * operations may access. Ordinary host memory holds the structs that describe them, and whatever a
 * comment calls "the host's".
 *
 * Operations are queued: they run in the order of the calls, but may still be running after the
 * call returns. memory_copy and memory_clear go through the same queue. Three things wait for the
 * queue: opening memory to look at it, freeing memory, and memory_wait with a fence
 * (base/memory.h). Before an operation returns it copies what it needs from the host's memory:
 * structs, and the arrays in them that are the host's. The caller may change or free these at once.
 * Operations cannot fail or allocate. Only one thread at a time uses a backend.
 *
 * Shapes: [n, m] is n rows of m contiguous floats unless a stride is given. */
#ifndef FLASHMOE_BACKEND_BACKEND_H
#define FLASHMOE_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/heads.h"
#include "backend/routing.h"
#include "backend/streams.h"
#include "base/memory.h"
#include "quant/kv.h"
#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

struct backend;
#define BACKEND_STATE_PARTS 4 /* maximum per layer */

/* One sequence's rows within a batch, and its state for the current layer. */
struct backend_segment {
    uint32_t first_row, n_rows;
    uint32_t position; /* of the first row */
    /* After this many rows a mixer copies its recurrent parts from `state` to `mark`. 0 means
     * never. Operations do not look at it. */
    uint32_t mark_rows;
    /* Where rows leave a trail, a mixer keeps the recurrent parts before the rows and behind each:
     * those behind row r are in slot (slot + r + 1) % n_slots of a ring of slots, each slot_bytes
     * long. `state` is in slot `slot`. n_slots 0: there is no trail. Operations do not look at it,
     * but for delta_net where it leaves trails. */
    uint32_t slot, n_slots;
    uint64_t slot_bytes;
    /* The parts of the layer's state. Each operation's struct says which of them it uses. */
    void *state[BACKEND_STATE_PARTS];
    void *mark[BACKEND_STATE_PARTS]; /* by position: blocks that lie elsewhere (segment_shift) */
};

/* Parts of the state that attention uses: [n_kv_heads, block_positions] rows in kv_format for the
 * first block. Each further block begins block_bytes after the one before it. There are no values
 * if the keys have them. */
enum { ATTENTION_KEYS, ATTENTION_VALUES, ATTENTION_PARTS };

struct backend_attention {
    const struct backend_segment *segments; /* [n_segments], the host's */
    size_t n_segments;
    const struct kv_format *kv_format;
    unsigned n_heads, n_kv_heads, head_dim;
    /* Numbers of a value. Fewer than head_dim only if `v` is NULL and the format is not rotated. */
    unsigned value_dim;
    uint32_t block_positions; /* a multiple of 256 if there are several blocks */
    uint64_t block_bytes;
    /* Head h of row t is at t * q_row_stride + h * q_head_stride. Rotated in place if the format is
     * rotated. */
    float *q;
    const float *gate; /* the same strides, or NULL: out *= sigmoid(gate) */
    size_t q_row_stride, q_head_stride;
    /* [n, n_kv_heads * head_dim], stored before attending. v NULL: a value is the first numbers of
     * its key. */
    const float *k, *v;
    float scale;
    /* The number of positions a row sees, counting its own as the last. 0 means all. */
    uint32_t window;
    /* One more score per head, whose value vector is zero; NULL: none. */
    const float *sinks; /* [n_heads] */
    /* Of complete blocks of `ratio` positions a row sees those that index_choose chose, and the
     * positions behind them; NULL: it sees all. Without a window. */
    const uint32_t *chosen; /* [n, 1 + n_best] */
    unsigned ratio, n_best;
    float *out; /* [n, n_heads * value_dim] */
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
    bool has_sigmoid_gate; /* the output is multiplied with sigmoid(z), not silu(z) */
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
    /* With gate clamped to at most `limit`, and up to [-limit, limit]:
     * gate * sigmoid(alpha * gate) * (up + 1) */
    ACTIVATION_CLAMPED_SWIGLU,
};

struct activation {
    enum activation_kind kind;
    float alpha, limit; /* for ACTIVATION_CLAMPED_SWIGLU */
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

struct backend_ops {
    const char *name;
    void (*close)(struct backend *be); /* free all its memory first, so nothing is queued */
    const char *(*failure)(struct backend *be); /* why it is lost, or NULL; NULL: it never is */

    /* x[t] = row tokens[t] of w; the tokens are the host's */
    void (*embed)(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                  float *x);
    /* Sets the rows x [n, n_cols] that the following products and feed-forward blocks are
     * multiplied with, until the next call. x must not change meanwhile. Conversions that a number
     * format needs are made once. */
    void (*input)(struct backend *be, const float *x, size_t n, size_t n_cols);
    /* y[t][r] = W[r] . x[t] for each product */
    void (*matmul)(struct backend *be, const struct backend_product *products, size_t n);
    /* All blocks together have at most options.max_ffn_rows rows. */
    void (*ffn)(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks);
    /* NULL: the host must know which experts were chosen, and calls ffn. */
    void (*ffn_routed)(struct backend *be, const struct backend_routed *args);
    void (*rms_norm)(struct backend *be, const float *x, const float *weight, float eps, size_t n,
                     size_t dim, float *y);
    /* out [n, rotary_dim] for position positions[t], times scale. frequencies is [rotary_dim / 2].
     * The positions and the frequencies are the host's. */
    void (*rope_table)(struct backend *be, const uint32_t *positions, size_t n,
                       const float *frequencies, unsigned rotary_dim, float scale, float *out);
    void (*norm_rope)(struct backend *be, const struct backend_heads *heads, size_t n);
    /* For n rows. Leaves no input set. */
    void (*head_products)(struct backend *be, const struct backend_head_products *args, size_t n);
    void (*copy_heads)(struct backend *be, const struct backend_head_copy *args, size_t n);
    void (*attention)(struct backend *be, const struct backend_attention *args);
    void (*delta_net)(struct backend *be, const struct backend_delta_net *args);
    bool delta_net_leaves_trails; /* by itself, where segments want them */
    /* Finds the experts, by ascending id, and weights of every row of logits [n, n_experts]. */
    void (*route)(struct backend *be, const struct router *router, const float *logits, size_t n,
                  uint32_t *ids, float *weights);
    void (*prefer)(struct backend *be, const struct backend_preference *args);
    /* Notes the first of n rows of x that is not finite in *found, 0 before (not_finite.h). */
    void (*find_not_finite)(struct backend *be, const float *x, size_t n, size_t dim,
                            uint32_t *found);
    /* The same for one row, and raises *peak, 0 before, to the code of its highest value (peak.h).
     * NULL: the host finds it. */
    void (*find_peak)(struct backend *be, const float *x, size_t dim, uint32_t *found,
                      uint64_t *peak);
    /* out[t] = sum over j of weights[t][j] * parts[t][j], ascending j; parts is [n, k, dim] */
    void (*expert_sum)(struct backend *be, const float *parts, const float *weights, size_t n,
                       unsigned k, size_t dim, float *out);
    /* y[t] += sigmoid(gate[t]) * x[t] */
    void (*add_gated)(struct backend *be, float *y, const float *x, const float *gate, size_t n,
                      size_t dim);
    /* y += x */
    void (*add)(struct backend *be, float *y, const float *x, size_t n);
    const struct backend_stream_ops *streams;
};

struct backend {
    const struct backend_ops *ops;
    const struct memory *memory; /* outlives what is allocated in it; freed with the backend */
    /* For code that reads weights into this memory. Outlives the backend. */
    const struct weight_preparer *preparer;
    const char *level; /* of the kernels in use */
};

#define BACKEND_HIDDEN_ALIGN 128u

struct backend_options {
    unsigned n_threads;
    bool pin_threads;
    uint32_t spin_ns;        /* longest time that a thread without work does not sleep; 0: usual */
    const char *cpu;         /* level of the CPU kernels by name; NULL: the best */
    size_t max_cols;         /* maximum columns of any weight */
    size_t max_rows;         /* maximum tokens in any batch */
    size_t max_ffn_rows;     /* maximum rows of all blocks of one ffn call */
    size_t max_intermediate; /* maximum rows of any gate */
    /* Numbers between the gates and the down matrices of one ffn call, if that is fewer than the
     * product of the two: a row of them takes a multiple of BACKEND_HIDDEN_ALIGN. 0: it is not. */
    uint64_t max_hidden;
    unsigned n_heads, head_dim, key_dim; /* of attention and of the delta rule; 0: none */
    uint32_t n_context;
    unsigned index_best; /* blocks that sparse attention chooses, at most; 0: none */
};

/* Returns how many numbers the rows of a block take at most. */
static inline uint64_t backend_hidden(uint64_t n_rows, uint64_t intermediate)
{
    return n_rows * ((intermediate + BACKEND_HIDDEN_ALIGN - 1) / BACKEND_HIDDEN_ALIGN *
                     BACKEND_HIDDEN_ALIGN);
}

static inline uint64_t backend_max_hidden(const struct backend_options *o)
{
    return o->max_hidden > 0 ? o->max_hidden : backend_hidden(o->max_ffn_rows, o->max_intermediate);
}

/* Opens a backend of the list by name. NULL means the first. */
int backend_open(const char *name, const struct backend_options *options, struct backend **out,
                 struct fm_error *err);
void backend_close(struct backend *be); /* accepts NULL */

/* Returns the bytes of scratch that the backend needs with these options. */
uint64_t backend_scratch_bytes(const char *name, const struct backend_options *options);

#ifdef __cplusplus
}
#endif
#endif
