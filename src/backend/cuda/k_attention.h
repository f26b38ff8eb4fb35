/* To come. */
GPU_KERNEL void gpu_store_kv(const struct gpu_store_kv_args) {}
GPU_KERNEL void gpu_attend(const struct gpu_attend_args) {}
GPU_KERNEL void gpu_merge(const struct gpu_merge_args) {}
#ifdef FLASHMOE_GPU_PIECES
GPU_KERNEL void gpu_piece_store_kv(const struct gpu_piece_store_kv_args) {}
GPU_KERNEL void gpu_piece_merge(const struct gpu_piece_merge_args) {}
GPU_KERNEL void gpu_piece_sink(const struct gpu_piece_sink_args) {}
GPU_KERNEL void gpu_piece_close(const struct gpu_piece_close_args) {}
#endif
