/* GPUs as the engine sees them: a device that is opened, looked at and given to a backend. */
#ifndef FLASHMOE_BACKEND_GPU_H
#define FLASHMOE_BACKEND_GPU_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_device;

/* Opens a GPU by its number. Returns NULL, and why, if this build has no library for GPUs, if there
 * is no driver or no such GPU, or, with *is_there, if it cannot be used. */
struct gpu_device *gpu_open(unsigned index, bool *is_there, char *why, size_t why_bytes);
void gpu_close(struct gpu_device *device); /* accepts NULL */

const char *gpu_name(const struct gpu_device *device);
uint64_t gpu_total_bytes(const struct gpu_device *device);
uint64_t gpu_free_bytes(struct gpu_device *device); /* now */

/* Measures bytes per second in each of n_passes: read and written by copies within the GPU's
 * memory, and copied to it from the host's. Returns false if memory is missing or the GPU fails.
 * Nothing is queued. */
bool gpu_measure(struct gpu_device *device, unsigned n_passes, double *memory_per_s,
                 double *send_per_s);

/* Opens a backend on a GPU, which it owns from then on, even when it fails. */
int backend_open_gpu(struct gpu_device *device, const struct backend_options *options,
                     struct backend **out, struct fm_error *err);
/* Returns what is free of the memory of the GPU that such a backend computes on. */
uint64_t backend_gpu_free_bytes(struct backend *be);
/* Return the bytes of the GPU's memory that it takes for its scratch, and those of the host's. */
uint64_t backend_gpu_scratch_bytes(const struct backend_options *options);
uint64_t backend_gpu_host_bytes(const struct backend_options *options);

#ifdef __cplusplus
}
#endif
#endif
