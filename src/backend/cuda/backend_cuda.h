/* The backend that computes on a GPU: every operation of backend.h as launches of kernels
 * (kernels.h) on a device (device.h). Its memory is the device's. Results have the CPU's bits. */
#ifndef FLASHMOE_BACKEND_CUDA_BACKEND_CUDA_H
#define FLASHMOE_BACKEND_CUDA_BACKEND_CUDA_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the backend on a device, which it owns from then on, even when it fails. Fails with
 * FM_ERR_NOMEM, and with FM_ERR_ARG for a model whose heads are too large for the kernels. */
int backend_cuda_open_on(struct gpu_device *device, const struct backend_options *options,
                         struct backend **out, struct fm_error *err);
struct gpu_device *backend_cuda_device(struct backend *be); /* still the backend's */
/* Returns the bytes of the GPU's memory that it takes for its scratch, and those of the host's. */
uint64_t backend_cuda_scratch_bytes(const struct backend_options *options);
uint64_t backend_cuda_host_bytes(const struct backend_options *options);

#ifdef __cplusplus
}
#endif
#endif
