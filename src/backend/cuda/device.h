/* A GPU as the CUDA backend uses it: memory, copies and kernels in one queue. Two things are behind
 * it: CUDA (in a library of its own, loaded when there is a driver) and the emulator, for tests.
 *
 * Commands, copies and clears are queued and done in the order of the calls. What a call reads of
 * the host's memory it has copied when it returns. One thread uses a device, except for what says
 * otherwise. A device that fails (it was lost, or a kernel broke) does nothing from then on: what
 * the host fetches is zero, and `failure` says why. */
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

/* Commands that are submitted together, after their lists have been copied to the GPU. */
struct gpu_batch {
    const struct gpu_command *commands;
    size_t n;
    void *lists;            /* in the GPU's memory */
    const void *host_lists; /* the same in the host's */
    size_t list_bytes;
};

struct gpu_device_ops {
    void (*close)(struct gpu_device *d);
    /* Returns NULL when the GPU has no memory left. Addresses are multiples of 256. */
    void *(*make)(struct gpu_device *d, uint64_t bytes);
    void (*free)(struct gpu_device *d, void *at); /* nothing queued uses it; accepts NULL */

    /* Addresses without memory, and memory for whole pages of them. Nothing queued uses what is
     * taken away. map returns false when the GPU has no memory left, and changes nothing then. */
    void *(*reserve)(struct gpu_device *d, uint64_t bytes);
    void (*release)(struct gpu_device *d, void *at, uint64_t bytes);
    bool (*map)(struct gpu_device *d, void *at, uint64_t bytes);
    void (*unmap)(struct gpu_device *d, void *at, uint64_t bytes);

    void (*submit)(struct gpu_device *d, const struct gpu_batch *batch);
    /* The pieces may overlap. */
    void (*copy)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    void (*clear)(struct gpu_device *d, void *at, uint64_t bytes);
    /* To the host's memory: waits for what is queued before. */
    void (*fetch)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    /* From the host's memory, now, past the queue: nothing queued uses the piece. Any thread. */
    void (*fill)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    /* Waits for all that is queued. */
    void (*finish)(struct gpu_device *d);
    /* From the host's memory, in the queue. Addresses and bytes are multiples of 4. */
    void (*upload)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);
    /* Whether kernels may read and write that piece of the host's memory. */
    bool (*is_seen)(struct gpu_device *d, const void *at, uint64_t bytes);
    /* To the host's memory, in the queue. */
    void (*download)(struct gpu_device *d, void *to, const void *from, uint64_t bytes);

    /* Transfers between the two memories run beside the queue: base/link.h. */
    uint64_t (*mark)(struct gpu_device *d);
    void (*transfer)(struct gpu_device *d, void *to, const void *from, uint64_t bytes,
                     uint64_t mark);
    void (*send)(struct gpu_device *d, void *to, const void *from, uint64_t bytes, uint64_t mark);
    void (*join)(struct gpu_device *d);
    void (*settle)(struct gpu_device *d);
    bool (*is_settled)(struct gpu_device *d);
    /* Locks whole pages of the host's memory, so that transfers of them are fast and need no
     * processor. Returns false when the system refuses; transfers work all the same. */
    bool (*pin)(struct gpu_device *d, void *at, uint64_t bytes);
    void (*unpin)(struct gpu_device *d, void *at, uint64_t bytes);
    /* Returns pages of the host with which fill and fetch are fast, or NULL. Any thread. */
    void *(*host_make)(struct gpu_device *d, uint64_t bytes);
    void (*host_free)(struct gpu_device *d, void *at); /* accepts NULL */

    /* Returns bytes that are free now. */
    uint64_t (*free_bytes)(struct gpu_device *d);
    /* Returns what the device failed with, or NULL. */
    const char *(*failure)(struct gpu_device *d);
};

struct gpu_device {
    const struct gpu_device_ops *ops;
    const char *name;
    uint64_t total_bytes;
    uint64_t page_bytes; /* of reserve, map and unmap */
    bool has_patience;   /* a kernel may wait for the host as long as it likes */
};

#ifdef __cplusplus
}
#endif
#endif
