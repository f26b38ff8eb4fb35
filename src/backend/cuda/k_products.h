/* To come. */
GPU_KERNEL void gpu_embed(const struct gpu_embed_args) {}
GPU_KERNEL void gpu_quantize(const struct gpu_quantize_args) {}
GPU_KERNEL void gpu_matmul(const struct gpu_matmul_args) {}
GPU_KERNEL void gpu_activate(const struct gpu_activate_args) {}
