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

/* ---- attention ------------------------------------------------------------------------------- */

#define GPU_ATTENTION_BLOCK 256 /* positions: KERNEL_ATTENTION_BLOCK */

/* A format of keys and values, as struct kv_format describes it. */
struct gpu_kv_format {
    uint32_t plain; /* GPU_PLAIN_F32 or GPU_PLAIN_F16; GPU_PLAIN_NONE: rotated */
    uint32_t bits;
    int8_t levels[16];
    float unit;
};

struct gpu_attention {
    struct gpu_kv_format kv;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t block_positions;
    uint64_t block_bytes;
    const struct backend_segment *segments; /* in the GPU's memory */
    uint32_t n_segments;
    float *q;
    const float *gate; /* or NULL */
    uint64_t q_row_stride, q_head_stride;
    const float *k, *v;
    float scale;
    uint32_t window;
    const float *sinks; /* or NULL */
    float *out;         /* [n, n_heads * head_dim] */
    /* Results of single blocks: max and total, [n_rows, n_blocks, n_heads] each, and values,
     * [n_rows, n_blocks, n_heads, head_dim]. n_blocks is that of the row that has most; a row's
     * block 0 is the first one that it sees. */
    float *block_max, *block_total, *block_out;
    uint32_t n_blocks;
};

/* Stores keys and values of row y; where the format is rotated, rotates the row's queries too.
 * Grid: n_kv_heads, rows, 128. */
struct gpu_store_kv_args {
    struct gpu_attention a;
};

/* One row's query heads of one key and value head against one block of positions.
 * Grid: n_kv_heads * n_blocks, rows, 256. */
struct gpu_attend_args {
    struct gpu_attention a;
};

/* Merges the blocks of a row in ascending order, then sink, back rotation, division and gate.
 * Grid: n_heads, rows, 128. */
struct gpu_merge_args {
    struct gpu_attention a;
};

/* ---- the delta rule -------------------------------------------------------------------------- */

struct gpu_delta_net {
    struct backend_delta_net net; /* its segments lie in the GPU's memory */
    uint32_t channels;
};

/* Convolution, silu and new history of channels [begin, end) of a segment.
 * Grid: (end - begin) / 128 rounded up, n_segments, 128. */
struct gpu_conv_silu_args {
    struct gpu_delta_net d;
    uint32_t begin, end;
};

/* Value head first_head + x of segment y, row after row. Grid: heads, n_segments, 256. */
struct gpu_delta_head_args {
    struct gpu_delta_net d;
    uint32_t first_head;
};

/* ---- routers --------------------------------------------------------------------------------- */

/* Experts and weights of every row; ids ascending. Grid: n, 1, 256. */
struct gpu_route_args {
    struct router router;
    uint32_t is_plain; /* route_row of cpu/kernels.h, then times scale; else route_scored */
    const float *logits; /* [n, n_experts] */
    uint32_t *ids;
    float *weights; /* [n, k] */
};

/* ---- parts of kernels that tests call alone --------------------------------------------------
 * Grid: 1, 1, 128. */

#ifdef FLASHMOE_GPU_PIECES
/* kernels->store_kv of cpu/kernels.h */
struct gpu_piece_store_kv_args {
    struct gpu_kv_format kv;
    uint32_t side, n; /* enum kv_side */
    const float *x;
    uint8_t *to;
};

/* kernels->attend_merge */
struct gpu_piece_merge_args {
    float *max, *total, *out;
    float max_block, block_total;
    const float *block_out;
    uint32_t head_dim;
};

/* kernels->attend_sink */
struct gpu_piece_sink_args {
    float max;
    float *total, *out;
    float sink;
    uint32_t head_dim;
};

/* kernels->attend_close */
struct gpu_piece_close_args {
    float *out;
    float total;
    const float *gate;
    uint32_t head_dim;
};
#endif

#ifdef __cplusplus
}
#endif
#endif
