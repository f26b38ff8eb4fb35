/* Which kernel computes a product, and what its blocks are. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_TILES_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_TILES_H

#include "backend/cuda/kernels_products.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* Whether gpu_matmul_head computes it: whole rows at a time, and more tiles than blocks that a
 * large GPU runs side by side. */
SHARED_HOST_FN bool gpu_is_head(const struct gpu_product *p)
{
    const struct gpu_weight *w = &p->w;
    const uint32_t slice = w->format.bits == 8 ? GPU_ONE_BYTES_SLICE : GPU_ONE_SLICE;
    return p->n == 1 && p->bases == NULL && p->up == NULL && p->pick == NULL && p->place == NULL &&
           gpu_kind_of(p) == GPU_MATMUL_ONE && w->is_interleaved && w->format.has_bias &&
           w->format.codes == QUANT_CODES_AFFINE && w->format.group == 64 &&
           w->n_cols <= GPU_ONE_WARPS * 8 * slice &&
           (p->end - p->begin) / gpu_tile_size_of(p).rows > GPU_HEAD_BLOCKS;
}

/* Gives a product its blocks in a launch of its kind, behind those that are there. */
SHARED_HOST_FN void gpu_place_product(struct gpu_product *p, uint32_t n_blocks[GPU_N_MATMULS])
{
    p->tile = gpu_tile_size_of(p);
    p->n_across = (p->end - p->begin + p->tile.rows - 1) / p->tile.rows;
    p->over_across = p->n_across > 0 ? (uint32_t)((UINT64_C(1) << 32) / p->n_across) + 1 : 0;
    p->log_split = 0;
    while (1u << p->log_split < gpu_one_split(&p->w))
        p->log_split++;
    for (unsigned kind = 0; kind < GPU_N_MATMULS; kind++)
        p->first_block[kind] = n_blocks[kind];
    n_blocks[gpu_kind_of(p)] += p->n_across * ((p->n + p->tile.inputs - 1) / p->tile.inputs);
}

#ifdef __cplusplus
}
#endif
#endif
