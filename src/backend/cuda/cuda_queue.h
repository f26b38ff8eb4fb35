/* What the CUDA backend has asked for and not submitted yet. Operations append commands and the
 * lists that their kernels read. They are submitted when the host waits for a result, when a buffer
 * is full, and in between so often that the GPU has work while the host prepares more. The device
 * can keep a submission and repeat it as a graph: the same operations give the same submissions,
 * with lists at the same addresses. */
#ifndef FLASHMOE_BACKEND_CUDA_CUDA_QUEUE_H
#define FLASHMOE_BACKEND_CUDA_CUDA_QUEUE_H

#include "backend/cuda/device.h"
#include "base/link.h"
#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_queue {
    struct gpu_device *device;
    struct gpu_command *commands;
    size_t n, capacity;
    size_t enough; /* commands that are worth a submission before the host waits */
    char *host_lists, *lists; /* the host's, and the GPU's, which the backend owns */
    size_t list_used, list_bytes, operation_bytes; /* the last: the longest lists of an operation */
    uint64_t n_submitted, n_finished;
    uint32_t *counter; /* for cuda_fuse */
};

/* Returns the bytes of the GPU's memory for lists. */
size_t cuda_queue_list_bytes(size_t operation_bytes);
/* Returns the bytes of the host's memory that a queue takes. */
uint64_t cuda_queue_host_bytes(size_t operation_bytes);
/* `lists` are so many bytes of the GPU's memory, which the caller owns. */
int cuda_queue_open(struct cuda_queue *q, char *lists, size_t operation_bytes,
                    struct fm_error *err);
void cuda_queue_close(struct cuda_queue *q); /* accepts a zeroed one */

/* Begins an operation: there is room for the longest lists of one afterwards. */
void cuda_queue_begin(struct cuda_queue *q);
/* Makes room for a list that the caller fills in before the next operation. Returns where on the
 * host; *device is where it will lie in the GPU's memory. */
void *cuda_queue_reserve(struct cuda_queue *q, size_t bytes, const void **device);
/* Adds a list; returns where it will lie. NULL stays NULL. */
const void *cuda_queue_put(struct cuda_queue *q, const void *list, size_t bytes);
void cuda_queue_add(struct cuda_queue *q, const struct gpu_launch *launch, const void *args,
                    size_t args_bytes);
void cuda_queue_submit(struct cuda_queue *q);
/* The pieces may overlap. */
void cuda_queue_copy(struct cuda_queue *q, void *to, const void *from, uint64_t bytes);
void cuda_queue_clear(struct cuda_queue *q, void *at, uint64_t bytes);
/* Copies whole words from the host. */
void cuda_queue_upload(struct cuda_queue *q, void *to, const void *from, uint64_t bytes);
/* Copies pieces out of the host's locked pages (base/link.h). */
void cuda_queue_bring(struct cuda_queue *q, void *to, const struct link_pieces *pieces);
/* Copies to the host, which has the bytes when the queue has passed. */
void cuda_queue_download(struct cuda_queue *q, void *to, const void *from, uint64_t bytes);
/* Copies to the host after all that was added. */
void cuda_queue_fetch(struct cuda_queue *q, void *to, const void *from, uint64_t bytes);

/* A number for what was added so far, and waiting for it. */
uint64_t cuda_queue_fence(const struct cuda_queue *q);
void cuda_queue_wait(struct cuda_queue *q, uint64_t fence);

#ifdef __cplusplus
}
#endif
#endif
