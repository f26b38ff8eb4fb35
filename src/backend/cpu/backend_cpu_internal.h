/* What the files of the CPU backend share: its state, and how work is split. */
#ifndef FLASHMOE_BACKEND_CPU_BACKEND_CPU_INTERNAL_H
#define FLASHMOE_BACKEND_CPU_BACKEND_CPU_INTERNAL_H

#include "backend/cpu/backend_cpu.h"
#include "backend/cpu/levels.h"
#include "base/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Group sizes of formats that are codes: 16, 32, 64 and 128 columns. */
#define CPU_GROUP_SIZES 4

/* Intermediates of a feed-forward block begin at a multiple of this many elements. */
#define CPU_HIDDEN_ALIGN 64
/* Heads of all rows that attention computes together, unless a row alone has more. */
#define CPU_TILE_HEADS 64

/* Rows quantized for formats with one group size. */
struct cpu_quantized {
    bool is_made;
    size_t group;
    int8_t *q;    /* [n, n_cols] */
    float *scale; /* [n, n_cols / group] */
    float *offset;
    int32_t *sum;
};

/* The rows that products are multiplied with: ops->input. */
struct cpu_input {
    const float *x;
    size_t n, n_cols;
    struct cpu_quantized quantized[CPU_GROUP_SIZES];
};

struct backend_cpu {
    struct backend base;
    struct kernels kernels;
    struct pool *pool;
    struct backend_options limits;
    struct cpu_input input;
    void *block; /* all of the following lie in it */
    float *thread_scratch; /* [n_threads, thread_floats] */
    size_t thread_floats;
    size_t gather_floats; /* at the end of it: keys and values that a row has chosen */
    float *gate, *up;            /* intermediates of feed-forward blocks */
    struct cpu_quantized hidden; /* the same, quantized in the down matrices' groups */
    /* Attention: [n_partial, n_heads, head_dim + 2], then [2, n_heads] */
    float *partial;
    size_t n_partial;
};

static inline struct backend_cpu *cpu_of(struct backend *be)
{
    return (struct backend_cpu *)be;
}

static inline float *cpu_scratch(const struct backend_cpu *cpu, unsigned part)
{
    return cpu->thread_scratch + part * cpu->thread_floats;
}

/* Runs fn in parts, or as a whole on the calling thread if `work` (roughly in multiply-adds) is too
 * small to wake another. The result is the same either way. */
void cpu_run(const struct backend_cpu *cpu, pool_fn *fn, void *ctx, size_t work);

/* cpu_products.c */
void cpu_input(struct backend *be, const float *x, size_t n, size_t n_cols);
void cpu_matmul(struct backend *be, const struct backend_product *products, size_t n);
void cpu_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks);

/* cpu_heads.c */
void cpu_head_products(struct backend *be, const struct backend_head_products *args, size_t n);
size_t cpu_head_floats(const struct backend_options *options); /* of a thread's scratch */

/* Returns the sum of products in 16 lanes, without fused operations. */
float cpu_dot(const float *a, const float *b, size_t n);

/* cpu_index.c */
void cpu_index_means(struct backend *be, const struct backend_index *args);
void cpu_index_choose(struct backend *be, const struct backend_index *args);

extern const struct backend_stream_ops cpu_stream_ops;

/* cpu_mix.c */
void cpu_attention(struct backend *be, const struct backend_attention *args);
void cpu_delta_net(struct backend *be, const struct backend_delta_net *args);

/* Returns how many bytes away from its place each block of a part by position lies, or NULL: all
 * are in their places. Blocks that lie elsewhere are not written: other sequences use them, too. */
static inline const int64_t *segment_shift(const struct backend_segment *segment, unsigned part)
{
    return (const int64_t *)segment->mark[part];
}

#ifdef __cplusplus
}
#endif
#endif
