/* What the kernels of streams, of tables of n-grams and of sparse attention are called with; as
 * kernels.h. backend/streams.h says what they compute. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_STREAMS_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_STREAMS_H

#include "backend/cuda/kernels_mix.h"
#include "backend/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- streams --------------------------------------------------------------------------------- */

/* Grid: n * n_streams, 1, GPU_ROW_THREADS. */
struct gpu_stream_norm_args {
    struct backend_stream_norm s;
};

/* Grid: n, dim / 256 rounded up, 256. */
struct gpu_stream_mean_args {
    struct backend_stream_mean s;
};

/* Grid: n, dim / 256 rounded up, 256. */
struct gpu_stream_add_args {
    struct backend_stream_add s;
};

/* x[i] = silu(x[i] / divisor). Grid: n / 256 rounded up, 1, 256. */
struct gpu_stream_silu_args {
    float *x;
    float divisor;
    uint64_t n;
};

/* ---- n-grams --------------------------------------------------------------------------------- */

/* Grid: n * n_streams, 1, GPU_ROW_THREADS. */
struct gpu_ngram_gate_args {
    struct backend_ngram_gate g;
};

/* A thread has a channel of a segment, row after row; then it keeps the last rows.
 * Grid: channels / 128 rounded up, n_segments, 128. */
struct gpu_ngram_conv_args {
    struct backend_ngram_conv c; /* its segments lie in the GPU's memory */
};

/* ---- sparse attention ------------------------------------------------------------------------ */

/* A launch takes rows from first_row on; block y has row first_row + y. */
struct gpu_index {
    struct backend_index i; /* its segments lie in the GPU's memory */
    uint32_t first_row;
};

/* Keeps the key of each position, and makes the means. Grid: dim / 128 rounded up, n, 128. */
struct gpu_index_means_args {
    struct gpu_index x;
};

/* Keeps the keys of blocks that end at a row. Grid: dim / 128 rounded up, n, 128. */
struct gpu_index_keep_args {
    struct gpu_index x;
};

/* Scores of blocks: half a warp takes one. Rows that see all of them have none.
 * Grid: max_blocks / GPU_SCORE_BLOCKS rounded up, n, 16 * GPU_SCORE_BLOCKS. */
#define GPU_SCORE_BLOCKS 16u
struct gpu_index_score_args {
    struct gpu_index x;
    uint64_t max_blocks; /* of a row */
    float *scores;       /* [n, max_blocks] */
};

/* The choice. Grid: n, 1, GPU_CHOOSE_THREADS. */
#define GPU_CHOOSE_THREADS 512u
struct gpu_index_choose_args {
    struct gpu_index x;
    uint64_t max_blocks;
    const float *scores;
};

/* Which positions a row sees; as in backend_attention. */
struct gpu_sight {
    const uint32_t *chosen;
    uint32_t ratio, n_best;
};

/* As gpu_attend. The total of a block of which a row sees nothing is GPU_BLIND. */
#define GPU_BLIND (-1.0f)
struct gpu_attend_chosen_args {
    struct gpu_attention a;
    uint32_t n_parts;
    struct gpu_sight sight;
};

/* As gpu_merge, without the blocks of which a row sees nothing. Grid: n_heads, rows, 128. */
struct gpu_merge_chosen_args {
    struct gpu_attention a;
};

#ifdef __cplusplus
}
#endif
#endif
