/* What the GPU's kernels are called with. The host fills these structs, a launch passes them by
 * value, and every pointer in them is an address in the GPU's memory. k_ref.c of the CPU defines
 * each result; the kernels reproduce its bits.
 *
 * Beside each struct stands the grid that its kernel expects: blocks in x, blocks in y, threads.
 * Shapes as in backend.h: [n, m] is n rows of m contiguous elements unless a stride is given. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpu_kernel {
#define GPU_ENTRY(name) GPU_KERNEL_##name,
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY
    GPU_N_KERNELS
};

/* ---- products -------------------------------------------------------------------------------- */

/* How to read a number format that has no codes. */
enum gpu_plain {
    GPU_PLAIN_NONE, /* it has codes */
    GPU_PLAIN_F32,
    GPU_PLAIN_F16,
    GPU_PLAIN_BF16,
    GPU_PLAIN_FP8,
    GPU_PLAIN_IQ1_M,
    GPU_PLAIN_IQ1_S,
    GPU_PLAIN_IQ2_S,
    GPU_PLAIN_IQ2_XS,
    GPU_PLAIN_IQ2_XXS,
    GPU_PLAIN_IQ3_S,
    GPU_PLAIN_IQ3_XXS,
    GPU_PLAIN_TQ1_0,
    GPU_PLAIN_TQ2_0,
};

/* A number format, as struct quant describes it. */
struct gpu_format {
    uint8_t codes; /* enum quant_codes */
    uint8_t plain; /* enum gpu_plain, of the format */
    uint8_t scale; /* the same, of scales and biases that are parts */
    uint8_t bits, has_bias, has_wide_codes;
    uint16_t block, group, zero;
    uint16_t part_block_bytes[QUANT_MAX_PARTS], part_rows[QUANT_MAX_PARTS];
};

struct gpu_weight {
    struct gpu_format format;
    uint32_t n_rows, n_cols;
    uint32_t is_interleaved;
    const uint8_t *parts[QUANT_MAX_PARTS];
};

/* Rows as a weight wants them: x where its format has no codes, the rest where it has. */
struct gpu_input {
    const float *x;      /* [n, n_cols] */
    const int8_t *q;     /* [n, n_cols] */
    const float *scale;  /* [n, n_groups] */
    const float *offset; /* [n, n_groups] */
    const int32_t *sum;  /* [n, n_groups] */
};

/* x[t] = row tokens[t] of w. Grid: n, 1, 128. */
struct gpu_embed_args {
    struct gpu_weight w;
    const int32_t *tokens; /* [n] */
    float *x;              /* [n, w.n_cols] */
};

/* Rounds rows to int8 in groups of 16, 32, 64 or 128 columns. A warp takes a group.
 * Grid: groups of all rows / GPU_QUANTIZE_WARPS rounded up, 1, 32 * GPU_QUANTIZE_WARPS. */
#define GPU_QUANTIZE_WARPS 4
#define GPU_MIN_SCALED 0x1p-100f /* KERNEL_MIN_SCALED */
struct gpu_quantize_args {
    const float *x;    /* [n_groups, group]: of all rows */
    uint64_t n_groups;
    uint32_t group;
    int8_t *q;
    float *scale, *offset; /* [n_groups] */
    int32_t *sum;
};

/* Where a kernel leaves its rows rounded as gpu_quantize does; group 0: it does not. Groups lie
 * within a row. */
struct gpu_rounding {
    uint32_t group;
    int8_t *q;
    float *scale, *offset;
    int32_t *sum;
};

/* Rows [begin, end) of a weight against n inputs; input t is row pick[t] of `in` (NULL: row t), and
 * its result goes to row place[t] of y (NULL: row t). Column 0 of y is row y_first of the weight.
 * The bias is added to what is a finished sum. */
struct gpu_product {
    struct gpu_weight w;
    struct gpu_input in;
    uint32_t begin, end, n, y_first;
    const uint32_t *pick, *place;
    float *y;
    uint64_t y_stride;
    const float *bias; /* [w.n_rows], or NULL */
    /* The first block in x of this product: each takes GPU_MATMUL_ROWS rows from begin on. */
    uint32_t first_block;
};

/* Grid: blocks of all products, the largest n of them / GPU_MATMUL_INPUTS rounded up,
 * GPU_MATMUL_THREADS. */
#define GPU_MATMUL_ROWS 16
#define GPU_MATMUL_INPUTS 8
#define GPU_MATMUL_THREADS 256
struct gpu_matmul_args {
    const struct gpu_product *products; /* [n_products], in the order of their blocks */
    uint32_t n_products;
};

/* gate = activation(gate, up), and, where group > 0, rounded as gpu_quantize does. Group as there.
 * Grid: n_rows, width / (group or 32) rounded up to warps / GPU_QUANTIZE_WARPS, as gpu_quantize. */
struct gpu_activate_args {
    float *gate;     /* [n_rows, width] */
    const float *up; /* [n_rows, width] */
    uint32_t width, n_rows, group;
    struct activation activation;
    int8_t *q;             /* [n_rows, width] */
    float *scale, *offset; /* [n_rows, width / group] */
    int32_t *sum;
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* Grid: n, 1, GPU_ROW_THREADS. */
#define GPU_ROW_THREADS 256
struct gpu_rms_norm_args {
    const float *x, *weight;
    float *y; /* may be x */
    float eps;
    uint32_t dim;
};

/* Grid: n, 1, 32 * k with k so large that a thread has one frequency, at most 256 threads. */
struct gpu_rope_table_args {
    const uint32_t *positions; /* [n] */
    const float *frequencies;  /* [rotary_dim / 2] */
    float scale;
    uint32_t rotary_dim;
    float *out; /* [n, rotary_dim]: cosines, then sines */
};

/* Grid: n, n_heads, 64. */
struct gpu_norm_rope_args {
    float *x;
    uint64_t row_stride, head_stride; /* floats */
    uint32_t head_dim, rotary_dim;
    const float *norm; /* [head_dim], or NULL */
    float eps;
    const float *rope; /* [n, rotary_dim] */
};

/* out[t] = sum over j of weights[t][j] * parts[t][j], ascending j. Grid: n, dim / 256 rounded up,
 * 256. */
struct gpu_expert_sum_args {
    const float *parts, *weights; /* [n, k, dim], [n, k] */
    uint32_t k, dim;
    float *out;
};

/* y[t] += sigmoid(gate[t]) * x[t]. Grid: n, dim / 256 rounded up, 256. */
struct gpu_add_gated_args {
    float *y;
    const float *x, *gate;
    uint32_t dim;
};

/* y += x. Grid: n / 256 rounded up, 1, 256. */
struct gpu_add_args {
    float *y;
    const float *x;
    uint64_t n;
};

/* Lowers *first to the first of n rows with a value that is not finite. Grid: n, 1, 256. */
struct gpu_find_not_finite_args {
    const float *x; /* [n, dim] */
    uint32_t dim;
    uint32_t *first;
};

/* Operations on the same rows, one after the other (cuda_fuse.h). Each stage has the arithmetic of
 * its own kernel and writes what that writes; one that is not there has NULL for the pointer named
 * first. Rows that only pass through are not written.
 * Grid: n, 1, GPU_ROW_CHAIN_THREADS. */
#define GPU_ROW_CHAIN_THREADS 512
#define GPU_ROW_CHAIN_DIM 8192 /* at most */
struct gpu_row_chain_args {
    uint32_t dim, k;
    float *rows;                   /* [n, dim]; what the stages up to `added` work on */
    const float *parts, *weights;  /* expert_sum into rows */
    const float *gated, *gate;     /* add_gated to rows */
    const float *added;            /* add to rows */
    float *residual;               /* add of rows to it; it takes the place of rows */
    uint32_t *first_not_finite;    /* find_not_finite */
    const float *norm;             /* rms_norm with this weight, into normed */
    float *normed;
    float eps;
    struct gpu_rounding rounding;  /* quantize */
};

#ifdef __cplusplus
}
#endif
#endif
