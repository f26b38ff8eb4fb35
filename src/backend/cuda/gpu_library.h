/* The library with the GPU's kernels, which is loaded only when somebody asks for a GPU: the
 * program works without it, and without a driver. It lies beside the program or in the directory
 * where it was installed. */
#ifndef FLASHMOE_BACKEND_CUDA_GPU_LIBRARY_H
#define FLASHMOE_BACKEND_CUDA_GPU_LIBRARY_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a GPU by its number. Returns NULL, and why, if there is no library, no driver or no such
 * GPU, or if it cannot be used; *is_there tells the last case from the others. */
struct gpu_device *gpu_library_open(unsigned index, bool *is_there, char *why, size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
