/* A GPU through CUDA (device.h). nvcc compiles it, with all kernels, into a library of its own, so
 * that the program needs neither CUDA nor a GPU. */
#ifndef FLASHMOE_BACKEND_CUDA_DEVICE_CUDA_H
#define FLASHMOE_BACKEND_CUDA_DEVICE_CUDA_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a GPU by its number. Returns NULL, and why, if there is no driver or no such GPU, if the
 * GPU is too old for the kernels, or if it does not answer. */
struct gpu_device *device_cuda_open(int index, char *why, size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
