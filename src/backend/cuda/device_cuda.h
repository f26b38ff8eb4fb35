/* A GPU through CUDA (device.h). nvcc compiles it, with all kernels, into a library of its own, so
 * that the program needs neither CUDA nor a GPU. */
#ifndef FLASHMOE_BACKEND_CUDA_DEVICE_CUDA_H
#define FLASHMOE_BACKEND_CUDA_DEVICE_CUDA_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a GPU by its number. Returns NULL, and why, if there is no driver or no such GPU, or, with
 * *is_there, if the GPU is too old for the kernels or does not answer. */
typedef struct gpu_device *device_cuda_open_fn(unsigned index, bool *is_there, char *why,
                                               size_t why_bytes);
device_cuda_open_fn device_cuda_open;
/* Returns the version of the program that the library belongs to. */
typedef const char *device_cuda_version_fn(void);
device_cuda_version_fn device_cuda_version;

#ifdef __cplusplus
}
#endif
#endif
