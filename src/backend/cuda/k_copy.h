/* Copies within the GPU's memory. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_COPY_H
#define FLASHMOE_BACKEND_CUDA_K_COPY_H

GPU_KERNEL void gpu_copy(const struct gpu_copy_args a)
{
    const uint32_t i = gpu_block_x() * gpu_n_threads() + gpu_thread();
    if (i < a.n)
        ((uint32_t *)a.to)[i] = a.from != NULL ? ((const uint32_t *)a.from)[i] : 0;
}

#endif
