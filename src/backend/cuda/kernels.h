/* What the GPU's kernels are called with. The host fills these structs, a launch passes them by
 * value, and every pointer in them is an address in the GPU's memory. k_ref.c of the CPU defines
 * each result; the kernels reproduce its bits.
 *
 * Beside each struct stands the grid that its kernel expects: blocks in x, blocks in y, threads.
 * Shapes as in backend.h: [n, m] is n rows of m contiguous elements unless a stride is given. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_H

#include "backend/backend.h"
#include "backend/cuda/kernels_products.h"
#include "backend/cuda/kernels_tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

enum gpu_kernel {
#define GPU_ENTRY(name) GPU_KERNEL_##name,
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY
    GPU_N_KERNELS
};

/* Where a kernel leaves its rows rounded as gpu_quantize does; group 0: it does not. Groups lie
 * within a row. */
struct gpu_rounding {
    uint32_t group;
    int8_t *q;
    float *scale, *offset;
    int32_t *sum;
};

/* ---- inputs of products ---------------------------------------------------------------------- */

/* x[t] = row tokens[t] of w. Grid: n, 1, 256. */
struct gpu_embed_args {
    struct gpu_weight w;
    const int32_t *tokens; /* [n] */
    float *x;              /* [n, w.n_cols] */
};

/* Rounds rows to int8 in groups of 16, 32, 64 or 128 columns. A warp takes a group.
 * Grid: groups of all rows / GPU_QUANTIZE_WARPS rounded up, 1, 32 * GPU_QUANTIZE_WARPS. */
#define GPU_QUANTIZE_WARPS 4
#define GPU_MIN_SCALED 0x1p-100f /* KERNEL_MIN_SCALED */
#define GPU_INFINITY_BITS 0x7f800000u
struct gpu_quantize_args {
    const float *x;    /* [n_groups, group]: of all rows */
    uint64_t n_groups;
    uint32_t group;
    int8_t *q;
    float *scale, *offset; /* [n_groups] */
    int32_t *sum;
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
    uint32_t head_dim, rotary_dim, turns_neighbours;
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

/* Copies n words; from == NULL: clears them. Grid: n / 256 rounded up, 1, 256. */
struct gpu_copy_args {
    void *to;
    const void *from;
    uint32_t n;
};

/* Copies pieces of n_words words: piece numbers[i] to the same place. `from` may be the host's.
 * With a gate, which is the host's too, they are there when its word has reached
 * numbers[n_pieces]; words go round. Grid: n_pieces, n_words / 256 rounded up, 256. */
struct gpu_copy_pieces_args {
    void *to;
    const void *from;
    uint32_t n_words, n_pieces;
    const uint32_t *numbers; /* [n_pieces], or one more */
    const uint32_t *gate; /* NULL: none */
};

/* Copies `dim` floats of each of n heads. Grid: n, dim / 256 rounded up, 256. */
struct gpu_copy_heads_args {
    const float *from;
    float *to;
    uint64_t from_stride, to_stride;
    uint32_t dim;
};

/* Raises *found to the not_finite_code of the first of n rows with a value that is not finite; and,
 * where it is asked for, *peak to the peak_code of the only row's highest value. A warp takes
 * GPU_CHECK_COLUMNS of a row. Grid: n, dim / GPU_CHECK_COLUMNS rounded up, 32. */
#define GPU_CHECK_COLUMNS 2048u
struct gpu_find_not_finite_args {
    const float *x; /* [n, dim] */
    uint32_t dim;
    uint32_t *found;
    uint64_t *peak; /* or NULL */
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
    uint32_t *not_finite;          /* find_not_finite */
    const float *norm;             /* rms_norm with this weight, into normed */
    float *normed;
    float eps;
    struct gpu_rounding rounding;  /* quantize */
};

#ifdef __cplusplus
}
#endif
#endif
