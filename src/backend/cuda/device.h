/* A GPU as the CUDA backend uses it: memory, copies and kernels in one queue. Two things are behind
 * it: CUDA (in a library of its own, loaded when there is a driver) and the emulator, for tests.
 *
 * Launches, copies and clears are queued and done in the order of the calls. What a call reads of
 * the host's memory it has copied when it returns. One thread uses a device, except for what says
 * otherwise. */
#ifndef FLASHMOE_BACKEND_CUDA_DEVICE_H
#define FLASHMOE_BACKEND_CUDA_DEVICE_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_device;

struct gpu_launch {
    enum gpu_kernel kernel;
    uint32_t n_blocks_x, n_blocks_y, n_threads, shared_bytes;
};

/* The largest arguments of a kernel. */
#define GPU_MAX_ARGS 384

/* A launch and its arguments. */
struct gpu_command {
    struct gpu_launch launch;
    uint32_t args_bytes;
    uint64_t args[GPU_MAX_ARGS / sizeof(uint64_t)];
};

struct gpu_device_ops {
    void (*close)(struct gpu_device *d);
    /* Returns NULL when the GPU has no memory left. Waits for nothing. Addresses are multiples of
     * 256. */
    void *(*make)(struct gpu_device *d, uint64_t bytes);
    void (*free)(struct gpu_device *d, void *at); /* nothing queued uses it; accepts NULL */
    /* Whole pages of such memory hold nothing now, until they are written again. */
    void (*give_back)(struct gpu_device *d, void *at, uint64_t bytes);

    void (*launch)(struct gpu_device *d, const struct gpu_launch *launch, const void *args,
                   size_t args_bytes);
    /* The pieces may overlap. */
    void (*copy)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    void (*clear)(struct gpu_device *d, void *at, uint64_t bytes);
    /* From the host's memory, in the queue. */
    void (*send)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    /* To the host's memory: waits for what is queued before. */
    void (*fetch)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    /* From the host's memory, now, past the queue: nothing queued uses the piece. Any thread. */
    void (*fill)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);

    /* A number for what is queued so far, above 0; waiting for it. */
    uint64_t (*fence)(struct gpu_device *d);
    void (*wait)(struct gpu_device *d, uint64_t fence);
};

struct gpu_device {
    const struct gpu_device_ops *ops;
    const char *name;
};

#ifdef __cplusplus
}
#endif
#endif
