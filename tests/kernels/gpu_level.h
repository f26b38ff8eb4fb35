/* The GPU's kernels as a level of the CPU's table, so that the same cases check them: each function
 * makes one launch. */
#ifndef FLASHMOE_KERNELS_GPU_LEVEL_H
#define FLASHMOE_KERNELS_GPU_LEVEL_H

#include "backend/cpu/kernels.h"

/* The GPU of this library, or the emulator if it is NULL. Without a GPU the program ends with 77.
 * Kernels that the GPU does not have are those of `base`. `fault` is called with a message when a
 * kernel is stopped, and must not return. */
void gpu_level(const struct kernels *base, const char *library,
               void (*fault)(const char *message), struct kernels *table);
/* Returns memory that the GPU sees as well, or NULL. */
void *gpu_level_memory(size_t bytes);

#endif
