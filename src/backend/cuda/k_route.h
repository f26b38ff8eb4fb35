/* To come. */
GPU_KERNEL void gpu_route(const struct gpu_route_args) {}
