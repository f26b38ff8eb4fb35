/* Parts of kernels that tests call alone, sorted; behind all others (kernel_list.h). */
GPU_ENTRY(piece_close)
GPU_ENTRY(piece_merge)
GPU_ENTRY(piece_sink)
GPU_ENTRY(piece_store_kv)
