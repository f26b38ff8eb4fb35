/* To come. */
GPU_KERNEL void gpu_conv_silu(const struct gpu_conv_silu_args) {}
GPU_KERNEL void gpu_delta_head(const struct gpu_delta_head_args) {}
