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
#define GPU_PLAIN_TILES 32u     /* rows and inputs of a block */
#define GPU_PLAIN_MANY 16u      /* rows and inputs of a block */

/* Warps of gpu_matmul_one that share sixteen rows. A warp has eight slices of each. */
SHARED_HOST_FN uint32_t gpu_one_split(const struct gpu_weight *w)
{
    const uint32_t slice = w->format.bits == 8 ? GPU_ONE_BYTES_SLICE : GPU_ONE_SLICE;
    uint32_t split = 1;
    while (split < GPU_ONE_WARPS && split * 8 * slice < w->n_cols)
        split *= 2;
    return split;
}

/* Groups that a warp multiplies at a time: as many as its registers hold. */
SHARED_HOST_FN uint32_t gpu_few_groups(const struct gpu_weight *w)
{
    const bool is_wide = w->is_interleaved && w->format.bits == 8;
    const uint32_t n = (is_wide ? GPU_FEW_COLUMNS / 2 : GPU_FEW_COLUMNS) / w->format.group;
    return n < GPU_FEW_GROUPS ? n : GPU_FEW_GROUPS;
}

/* Warps that share sixteen rows, so that as many groups as possible are read at a time. */
SHARED_HOST_FN uint32_t gpu_few_split(const struct gpu_weight *w)
{
    uint32_t split = 1;
    while (split < GPU_FEW_WARPS && split * gpu_few_groups(w) * w->format.group < w->n_cols)
        split *= 2;
    return split;
}

/* Whether gpu_matmul_one reads the weight, sixteen bytes at a time: rows side by side, or a few
 * rows of bytes. */
SHARED_HOST_FN bool gpu_suits_one(const struct gpu_weight *w)
{
    if (w->n_cols % GPU_ONE_SLICE != 0 || (uintptr_t)w->parts[0] % 16 != 0)
        return false;
    if (w->is_interleaved)
        return w->format.bits == 4 || w->format.bits == 8;
    return w->format.codes == QUANT_CODES_AFFINE && w->format.has_bias && w->n_rows < 16 &&
           w->format.bits == 8 && w->format.group == 64;
}

/* The same for floats and halves: four columns at a time. */
SHARED_HOST_FN bool gpu_suits_plain(const struct gpu_weight *w)
{
    return w->format.plain >= GPU_PLAIN_F32 && w->format.plain <= GPU_PLAIN_BF16 &&
           w->n_cols % 16 == 0 && (uintptr_t)w->parts[0] % 8 == 0;
}

SHARED_HOST_FN enum gpu_matmul_kind gpu_kind_of(const struct gpu_product *p)
{
    const bool is_plain = p->w.format.codes == QUANT_NO_CODES;
    const bool is_one = p->n == 1 || p->bases != NULL;
    if (is_one && !is_plain && gpu_suits_one(&p->w))
        return GPU_MATMUL_ONE;
    if (is_one && is_plain && gpu_suits_plain(&p->w))
        return GPU_MATMUL_PLAIN_ONE;
    if (p->n <= GPU_FEW_INPUTS || p->bases != NULL)
        return is_plain ? GPU_MATMUL_PLAIN : GPU_MATMUL_FEW;
    if (!is_plain)
        return GPU_MATMUL_MANY;
    return gpu_suits_plain(&p->w) ? GPU_MATMUL_PLAIN_TILES : GPU_MATMUL_PLAIN_MANY;
}

SHARED_HOST_FN struct gpu_tile_size gpu_tile_size_of(const struct gpu_product *p)
{
    struct gpu_tile_size size = {GPU_PLAIN_MANY, GPU_PLAIN_MANY};
    const uint32_t few = p->bases != NULL ? 1 : GPU_FEW_INPUTS;
    switch (gpu_kind_of(p)) {
    case GPU_MATMUL_FEW:
        size.rows = 16 * GPU_FEW_WARPS / gpu_few_split(&p->w);
        size.inputs = few;
        break;
    case GPU_MATMUL_MANY:
        size.rows = 16 * GPU_MANY_WARPS;
        size.inputs = GPU_MANY_INPUTS;
        break;
    case GPU_MATMUL_PLAIN:
        size.rows = GPU_PLAIN_ROWS;
        size.inputs = few;
        break;
    case GPU_MATMUL_ONE:
        size.rows = p->w.is_interleaved ? 16 * GPU_ONE_WARPS / gpu_one_split(&p->w)
                                        : GPU_ONE_WARPS;
        size.inputs = 1;
        break;
    case GPU_MATMUL_PLAIN_TILES:
        size.rows = size.inputs = GPU_PLAIN_TILES;
        break;
    case GPU_MATMUL_PLAIN_ONE:
        size.rows = GPU_PLAIN_ONE_ROWS;
        size.inputs = 1;
        break;
    default: break;
    }
    return size;
}

/* Gives a product its blocks in a launch of its kind, behind those that are there. */
SHARED_HOST_FN void gpu_place_product(struct gpu_product *p, uint32_t n_blocks[GPU_N_MATMULS])
{
    p->tile = gpu_tile_size_of(p);
    p->n_across = (p->end - p->begin + p->tile.rows - 1) / p->tile.rows;
    p->over_across = (uint32_t)((UINT64_C(1) << 32) / p->n_across) + 1;
    p->log_split = 0;
    while (1u << p->log_split < gpu_one_split(&p->w))
        p->log_split++;
    for (unsigned kind = 0; kind < GPU_N_MATMULS; kind++)
        p->first_block[kind] = n_blocks[kind];
    n_blocks[gpu_kind_of(p)] += p->n_across * ((p->n + p->tile.inputs - 1) / p->tile.inputs);
}

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
