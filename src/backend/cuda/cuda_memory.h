/* A GPU's memory as base/memory.h wants it. A piece that is opened is a copy in the host's memory;
 * a lock guards the list of open pieces, since reader threads fill experts. The copies
 * that were reserved lie in pinned memory, which is kept: experts that are read, and logits. */
#ifndef FLASHMOE_BACKEND_CUDA_CUDA_MEMORY_H
#define FLASHMOE_BACKEND_CUDA_CUDA_MEMORY_H

#include <pthread.h>

#include "backend/cuda/cuda_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_block;
struct cuda_piece;

struct cuda_memory {
    struct memory base;
    struct cuda_queue *queue;
    struct cuda_block *blocks; /* those made of pages */
    pthread_mutex_t lock;
    struct cuda_piece *pieces;
    struct cuda_piece *kept; /* not open: their memory is for the next one */
    uint32_t n_kept, n_reserved;
    uint64_t max_kept; /* bytes of a piece that is kept */
};

void cuda_memory_init(struct cuda_memory *m, struct cuda_queue *queue);
void cuda_memory_clear(struct cuda_memory *m); /* no piece is open; the device still is */

#ifdef __cplusplus
}
#endif
#endif
