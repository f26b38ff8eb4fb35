/* What the files of the CUDA backend share. */
#ifndef FLASHMOE_BACKEND_CUDA_BACKEND_CUDA_INTERNAL_H
#define FLASHMOE_BACKEND_CUDA_BACKEND_CUDA_INTERNAL_H

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/kernels_streams.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Groups of formats that are codes: 16, 32, 64 and 128 columns. */
#define CUDA_GROUP_SIZES 4
#define CUDA_MIN_GROUP 16
#define CUDA_MAX_GROUP 128
/* Rows of a batch: a grid has so many blocks in y. */
#define CUDA_MAX_ROWS 65535
/* Products of one call of matmul. */
#define CUDA_MAX_PRODUCTS 64

/* Rows in int8, in groups of one size. */
struct cuda_quantized {
    bool is_made;
    size_t group;
    int8_t *q;    /* [n, n_cols] */
    float *scale; /* [n, n_cols / group] */
    float *offset;
    int32_t *sum;
};

/* Of blocks that share something. */
#define CUDA_COUNTERS 16384

struct backend_cuda {
    struct backend base;
    struct cuda_memory memory;
    struct cuda_queue queue;
    struct gpu_device *device;
    struct backend_options limits;
    const float *x; /* ops->input */
    size_t n, n_cols;
    struct cuda_quantized input[CUDA_GROUP_SIZES];
    void *block; /* all of the following lie in it, in the GPU's memory */
    float *gate, *up;
    struct cuda_quantized hidden; /* of intermediates; scales as if all groups were the smallest */
    float *partial;               /* of attention */
    size_t partial_floats;
    float *scores; /* of blocks, for the choice of sparse attention */
    size_t score_floats;
    char *lists; /* the queue's */
    uint32_t *counters; /* [CUDA_COUNTERS + 1], 0 between two launches; the last is the queue's */
};

static inline struct backend_cuda *cuda_of(struct backend *be)
{
    return (struct backend_cuda *)be;
}

static inline uint32_t cuda_over(size_t n, size_t unit)
{
    return (uint32_t)((n + unit - 1) / unit);
}

/* Blocks of positions are counted as a power of two: launches stay the same for many tokens. */
static inline uint32_t cuda_power_of_two(uint32_t n)
{
    uint32_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Launches a kernel: CUDA_LAUNCH(cuda, name, blocks x, blocks y, threads, {arguments}). */
#define CUDA_LAUNCH(cuda, name, x, y, threads, ...)                                                \
    cuda_queue_add(&(cuda)->queue,                                                                 \
                   &(struct gpu_launch){GPU_KERNEL_##name, (uint32_t)(x), (uint32_t)(y),           \
                                        (uint32_t)(threads), 0},                                   \
                   &(struct gpu_##name##_args)__VA_ARGS__, sizeof(struct gpu_##name##_args))

/* cuda_products.c */
void cuda_embed(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                float *x);
void cuda_input(struct backend *be, const float *x, size_t n, size_t n_cols);
void cuda_matmul(struct backend *be, const struct backend_product *products, size_t n);
/* Numbers of all input rows: those of any weight, and all heads of a token. */
static inline uint64_t cuda_input_floats(const struct backend_options *o)
{
    const uint64_t rows = (uint64_t)o->max_rows * o->max_cols;
    const uint64_t heads = (uint64_t)o->n_heads * o->head_dim;
    return rows > heads ? rows : heads;
}

void cuda_head_products(struct backend *be, const struct backend_head_products *args, size_t n);
void cuda_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks);
void cuda_ffn_routed(struct backend *be, const struct backend_routed *args);

/* cuda_mix.c */
/* Returns the floats for results of blocks of attention: those of one row at least, and of as many
 * rows as 16 MiB hold. */
size_t cuda_partial_floats(const struct backend_options *o);
/* Returns the rows of all segments, which follow each other. */
uint32_t cuda_rows_of(const struct backend_segment *segments, size_t n);
void cuda_attention(struct backend *be, const struct backend_attention *args);
void cuda_delta_net(struct backend *be, const struct backend_delta_net *args);

/* cuda_streams.c */
/* Returns the floats for scores of blocks: those of one row at least. */
size_t cuda_score_floats(const struct backend_options *o);
extern const struct backend_stream_ops cuda_stream_ops;

#ifdef __cplusplus
}
#endif
#endif
