/* What the kernels of sequence mixers and routers are called with; as kernels.h. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_MIX_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_MIX_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    uint32_t n_heads, n_kv_heads, head_dim, value_dim;
    uint32_t block_positions;
    uint64_t block_bytes;
    const struct backend_segment *segments; /* in the GPU's memory */
    uint32_t n_segments;
    float *q;
    const float *gate; /* or NULL */
    uint64_t q_row_stride, q_head_stride;
    const float *k, *v;
    uint32_t keys_have_values; /* there is no v, and no state for values */
    float scale;
    uint32_t window;
    const float *sinks; /* or NULL */
    float *out;         /* [n, n_heads * value_dim] */
    /* A launch takes rows from first_row on. */
    uint32_t first_row;
    /* Results of single blocks: max and total, [rows, n_blocks, n_heads] each, and values,
     * [rows, n_blocks, n_heads, value_dim]. n_blocks is that of the row that has most; a row's
     * block 0 is the first one that it sees. */
    float *block_max, *block_total, *block_out;
    uint32_t n_blocks;
};

/* Stores keys and values of row y; where the format is rotated, rotates the row's queries too.
 * Grid: n_kv_heads, rows, 128. */
struct gpu_store_kv_args {
    struct gpu_attention a;
};

/* norm_rope of queries and of keys, then store_kv (cuda_fuse.h). A block has a query head or a key
 * and value head of a row. Grid: n_heads + n_kv_heads, rows, 128. */
struct gpu_place_heads_args {
    struct gpu_norm_rope_args q, k;
    struct gpu_attention a;
};

/* One row's query heads of one key and value head, in n_parts parts, against one block of
 * positions. Blocks that a row does not see end at once.
 * Grid: n_parts * n_kv_heads * n_blocks, rows, GPU_ATTEND_THREADS. */
#define GPU_ATTEND_THREADS (2 * GPU_ATTENTION_BLOCK)
struct gpu_attend_args {
    struct gpu_attention a;
    uint32_t n_parts;
};

/* Merges the blocks of a row in ascending order, then sink, back rotation, division and gate.
 * Grid: n_heads, rows, 128. */
struct gpu_merge_args {
    struct gpu_attention a;
    struct gpu_rounding rounding; /* value_dim is a multiple of its group */
};

/* ---- the delta rule -------------------------------------------------------------------------- */

#define GPU_MAX_KEY_DIM 512 /* of a head */

struct gpu_delta_net {
    struct backend_delta_net net; /* its segments lie in the GPU's memory */
    uint32_t channels, n_rows;    /* rows of all segments */
};

/* Convolution, silu and new history of channels [begin, end) of a segment. The longest segment has
 * n_chunks chunks of GPU_CONV_ROWS rows, rounded up.
 * Grid: (end - begin) / 128 rounded up * n_chunks, n_segments, 128. */
#define GPU_CONV_ROWS 32u /* more than a kernel of the convolution reaches back */
struct gpu_conv_silu_args {
    struct gpu_delta_net d;
    uint32_t begin, end;
};

/* The rule for value heads from first_head on: GPU_DELTA_COLUMNS value dimensions of a head, row
 * after row. What it writes to `out` delta_close completes.
 * Grid: heads * value_dim / GPU_DELTA_COLUMNS rounded up, n_segments, 4 * GPU_DELTA_COLUMNS. */
#define GPU_DELTA_COLUMNS 32u
struct gpu_delta_head_args {
    struct gpu_delta_net d;
    uint32_t first_head;
};

/* Norm and gate of n_heads heads of every row, from first_head on. A warp takes a head.
 * Grid: rows of the longest segment * n_heads / 4 rounded up, n_segments, 128. */
struct gpu_delta_close_args {
    struct gpu_delta_net d;
    uint32_t first_head, n_heads;
    struct gpu_rounding rounding; /* value_dim is a multiple of its group */
};

/* All of the above for segments of one row, with heads of GPU_TOKEN_DIM keys and values and a
 * kernel up to GPU_TOKEN_KERNEL. It does not write `mixed`.
 * Grid: n_value_heads, n_segments, 4 * GPU_TOKEN_DIM. */
#define GPU_TOKEN_DIM 128u
#define GPU_QUAD_BYTES 16u /* states begin at a multiple of it */
#define GPU_TOKEN_KERNEL 4u
struct gpu_delta_token_args {
    struct gpu_delta_net d;
    uint32_t *n_read; /* [n_segments, n_key_heads]: 0 before and after */
    struct gpu_rounding rounding;
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

/* Whether one warp makes the choice: a softmax over the chosen, of so many experts. */
#define GPU_FEW_EXPERTS 512u
SHARED_HOST_FN bool gpu_has_few(const struct gpu_route_args *r)
{
    return r->is_plain && r->router.renormalises && r->router.n_experts <= GPU_FEW_EXPERTS;
}

/* Where there are only a few products, `first` says where the blocks of those behind the first one
 * begin, so that a block finds its own without a search in memory.
 *
 * With has_route, the products are a router's logits of one row, and the block that ends last does
 * what gpu_route does (gpu_has_few). */
#define GPU_ONE_FEW 4u
struct gpu_matmul_one_args {
    struct gpu_products list;
    uint32_t first[GPU_ONE_FEW - 1];
    uint32_t has_route, n_blocks; /* of this launch */
    uint32_t *n_ended;            /* 0 before and after */
    struct gpu_route_args route;
};

/* A product of one input with so many rows that a block computes n_tiles tiles, one after the other
 * (gpu_is_head). With `found` and `peak` it also does what gpu_find_not_finite does with y as one
 * row, and with `copy` it writes y there as well. Grid: tiles / n_tiles rounded up, 1,
 * GPU_MATMUL_THREADS. */
struct gpu_matmul_head_args {
    struct gpu_product p;
    uint32_t n_tiles;
    uint32_t *found; /* or NULL */
    uint64_t *peak;  /* or NULL */
    float *copy;     /* or NULL; may be the host's memory */
};

/* Cache-biased routing, for a few rows: one thread. Grid: 1, 1, 32. */
struct gpu_prefer_args {
    struct backend_preference p; /* its lists lie in the GPU's memory; the router is the next one */
    struct router router;
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
