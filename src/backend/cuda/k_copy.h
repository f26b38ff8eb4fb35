/* Copies within the GPU's memory. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_COPY_H
#define FLASHMOE_BACKEND_CUDA_K_COPY_H

GPU_KERNEL void gpu_copy(const struct gpu_copy_args a)
{
    const uint32_t i = gpu_block_x() * gpu_n_threads() + gpu_thread();
    gpu_wait();
    if (i < a.n)
        ((uint32_t *)a.to)[i] = a.from != NULL ? ((const uint32_t *)a.from)[i] : 0;
}

GPU_KERNEL void gpu_copy_pieces(const struct gpu_copy_pieces_args a)
{
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    const uint64_t at = (uint64_t)a.numbers[gpu_block_x()] * a.n_words + i;
    const uint32_t open = a.gate != NULL ? a.numbers[a.n_pieces] : 0;
    gpu_wait();
    while (a.gate != NULL && gpu_thread() == 0 && (int32_t)(gpu_see_word(a.gate) - open) < 0)
        gpu_rest();
    gpu_barrier();
    if (i < a.n_words)
        ((uint32_t *)a.to)[at] = gpu_load_word_of_host((const uint32_t *)a.from + at);
}

GPU_KERNEL void gpu_copy_heads(const struct gpu_copy_heads_args a)
{
    const uint32_t i = gpu_block_y() * gpu_n_threads() + gpu_thread();
    const uint64_t head = gpu_block_x();
    gpu_wait();
    if (i < a.dim)
        a.to[head * a.to_stride + i] = a.from[head * a.from_stride + i];
}

#endif
