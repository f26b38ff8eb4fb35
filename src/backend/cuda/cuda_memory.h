/* A GPU's memory as base/memory.h wants it. A piece that is opened is a copy in the host's memory;
 * a lock guards the list of open pieces, since reader threads fill experts. */
#ifndef FLASHMOE_BACKEND_CUDA_CUDA_MEMORY_H
#define FLASHMOE_BACKEND_CUDA_CUDA_MEMORY_H

#include <pthread.h>

#include "backend/cuda/cuda_queue.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_piece;

struct cuda_memory {
    struct memory base;
    struct cuda_queue *queue;
    pthread_mutex_t lock;
    struct cuda_piece *pieces;
};

void cuda_memory_init(struct cuda_memory *m, struct cuda_queue *queue);
void cuda_memory_clear(struct cuda_memory *m); /* no piece is open */

#ifdef __cplusplus
}
#endif
#endif
