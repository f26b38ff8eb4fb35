/* The GPU's kernels as a level of the CPU's table, so that the same cases check them: each function
 * makes one launch. */
#ifndef FLASHMOE_KERNELS_GPU_LEVEL_H
#define FLASHMOE_KERNELS_GPU_LEVEL_H

#include "backend/cpu/kernels.h"

/* Kernels that the GPU does not have are those of `base`. `fault` is called with a message when a
 * kernel is stopped, and must not return. */
void gpu_level(const struct kernels *base, void (*fault)(const char *message),
               struct kernels *table);

#endif
