/* The kernel table: the inner loops of the CPU backend, one thread's share each. k_ref.c defines
 * every result; a faster kernel must reproduce its bits.
 *
 * Float reductions: 16 lanes, lane j takes elements j, j+16, ... with fused multiply-adds, then
 * the tree j += j+8, j+4, j+2, j+1.
 *
 * Quantised weights: the activation row is int8 per group of the weight's block (scale =
 * max|x|/127, round to nearest even); group dot products are exact integers; a row is the left
 * fold over groups acc = fmaf(s_w * s_x, dot, acc), acc = fmaf(b_w * s_x, sum_x, acc). */
#ifndef FLASHMOE_BACKEND_CPU_KERNELS_H
#define FLASHMOE_BACKEND_CPU_KERNELS_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Attention walks positions in blocks of this many from position 0. */
#define KERNEL_ATTENTION_BLOCK 64
/* Weight rows decoded together. */
#define KERNEL_ROW_BLOCK 4

/* Activation rows as the weight's format wants them. */
struct kernel_input {
    const float *x; /* [n, n_cols] */
    /* Quantised formats only. */
    const int8_t *q;      /* [n, n_cols] */
    const float *scale;   /* [n, n_groups] */
    const int32_t *q_sum; /* [n, n_groups] */
};

/* One row and one query head. */
struct kernel_attention {
    const struct quant *kv_format;
    const float *q;
    const char *keys, *values; /* [n_positions, head_dim] */
    size_t n_positions;
    unsigned head_dim;
    float scale;
    float *out;     /* [head_dim] */
    float *scratch; /* [KERNEL_ATTENTION_BLOCK + head_dim] */
};

struct kernels {
    const char *name;

    void (*quantize_row)(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         int32_t *q_sum);
    /* Rows [begin, end) of w against n inputs; y[t * y_stride + r]. `scratch` holds
     * KERNEL_ROW_BLOCK * n_cols floats. */
    void (*matmul)(const struct weight *w, size_t begin, size_t end,
                   const struct kernel_input *in, size_t n, float *y, size_t y_stride,
                   float *scratch);
    void (*rms_norm)(const float *x, const float *weight, float eps, size_t n, float *y);
    void (*rope_angles)(uint32_t position, const float *frequencies, unsigned half,
                        float *cosines, float *sines);
    void (*rotate)(float *x, const float *cosines, const float *sines, unsigned half);
    void (*attend)(const struct kernel_attention *args);
    void (*mul_sigmoid)(float *x, const float *gate, size_t n);
    /* Channels [begin, end) of one segment: convolution over time, silu, new history. */
    void (*conv_silu)(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end);
    /* One value head of one segment, row after row. `scratch` holds 2 * key_dim floats. */
    void (*delta_head)(const struct backend_delta_net *args,
                       const struct backend_segment *segment, unsigned head, float *scratch);
    void (*route_row)(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights);
    void (*silu_mul)(float *gate, const float *up, size_t n);
    void (*weighted_sum)(const float *parts, const float *weights, unsigned k, size_t dim,
                         float *out);
    void (*add_scaled_sigmoid)(float *y, const float *x, float gate, size_t n);
    void (*add)(float *y, const float *x, size_t n);
};

extern const struct kernels kernels_ref;

#ifdef __cplusplus
}
#endif
#endif
