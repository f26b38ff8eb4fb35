/* What the GPU's kernels for products are called with, as in kernels.h. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_PRODUCTS_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_PRODUCTS_H

#include "backend/backend.h"
#include "base/shared_fn.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* What computes a product: the kernel gpu_matmul_NAME. */
enum gpu_matmul_kind {
    GPU_MATMUL_FEW,  /* codes, up to GPU_FEW_INPUTS inputs */
    GPU_MATMUL_MANY, /* codes, more of them */
    GPU_MATMUL_PLAIN,
    GPU_MATMUL_PLAIN_MANY,
    GPU_MATMUL_ONE,       /* affine codes and those of four bits, one input */
    GPU_MATMUL_PLAIN_ONE, /* floats and halves, one input */
    GPU_MATMUL_PLAIN_TILES, /* the same, more than GPU_FEW_INPUTS */
    GPU_N_MATMULS
};

/* Rows and inputs that one block computes. */
struct gpu_tile_size {
    uint32_t rows, inputs;
};

/* Rows [begin, end) of a weight against n inputs; input t is row pick[t] of `in` (NULL: row t), and
 * its result goes to row place[t] of y (NULL: row t). Column 0 of y is row y_first of the weight.
 * The bias is added to what is a finished sum.
 *
 * With `bases`, every input has a weight of its own: the GPU finds the expert that its router
 * chose. For input t, the addresses of the weight's parts are offsets from bases[id[t]], and the
 * bias is row id[t] of biases. A block then has one input.
 *
 * With `up`, the inputs are activation(in.x, up), which gpu_matmul_one computes and rounds itself.
 * It has at most GPU_ONE_HIDDEN columns then. */
struct gpu_product {
    struct gpu_weight w;
    struct gpu_input in;
    uint32_t begin, end, n, y_first;
    const uint32_t *pick, *place;
    float *y;
    uint64_t y_stride;
    const float *bias; /* [w.n_rows], or with `bases` [n_experts, w.n_rows]; NULL: none */
    const uint64_t *bases; /* [n_experts], or NULL */
    const uint32_t *id;    /* [n] */
    uint32_t has_old_ids;  /* the launch directly ahead does not write them */
    const float *up;       /* [n, w.n_cols], or NULL */
    struct activation activation;
    /* What gpu_place_product fills in: what one block computes, how many blocks all rows have,
     * 2^32 over that rounded up, and how many warps of gpu_matmul_one share sixteen rows, as a
     * power of two. */
    struct gpu_tile_size tile;
    uint32_t n_across, over_across, log_split;
    /* The first block of this product in a launch of each kind; it has none in those of others. */
    uint32_t first_block[GPU_N_MATMULS];
};

#define GPU_MATMUL_THREADS 256u
#define GPU_FEW_INPUTS 8u
#define GPU_FEW_WARPS 8u
#define GPU_FEW_GROUPS 8u    /* at most, of a row in a warp at a time */
#define GPU_FEW_COLUMNS 512u /* the same */
#define GPU_MANY_INPUTS 64u
#define GPU_MANY_WARPS 8u
#define GPU_PLAIN_ROWS 4u
#define GPU_PLAIN_COLUMNS 2048u /* at a time */
#define GPU_PLAIN_ONE_ROWS 8u
#define GPU_PLAIN_ONE_THREADS (8 * GPU_PLAIN_ONE_ROWS)
#define GPU_ONE_WARPS 8u
#define GPU_ONE_SLICE 64u       /* columns of a thread */
#define GPU_ONE_BYTES_SLICE 32u /* the same with codes of eight bits */
#define GPU_ONE_HIDDEN 4096u
#define GPU_HEAD_BLOCKS 264u     /* at most, of gpu_matmul_head: two on each of 132 processors */
#define GPU_PLAIN_TILES 32u     /* rows and inputs of a block */
#define GPU_PLAIN_MANY 16u      /* rows and inputs of a block */

/* In the order of their blocks. */
struct gpu_products {
    const struct gpu_product *products; /* [n] */
    uint32_t n;
};

/* Grid: blocks of all products of the kind, 1, GPU_MATMUL_THREADS; of gpu_matmul_plain_one
 * GPU_PLAIN_ONE_THREADS. Those of gpu_matmul_one are in kernels_mix.h. */
struct gpu_matmul_few_args {
    struct gpu_products list;
};
struct gpu_matmul_many_args {
    struct gpu_products list;
};
struct gpu_matmul_plain_args {
    struct gpu_products list;
};
struct gpu_matmul_plain_many_args {
    struct gpu_products list;
};
struct gpu_matmul_plain_one_args {
    struct gpu_products list;
};
struct gpu_matmul_plain_tiles_args {
    struct gpu_products list;
};

#ifdef __cplusplus
}
#endif
#endif
