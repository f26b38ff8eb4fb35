/* Every kernel of the GPU, sorted: GPU_ENTRY(name) stands for gpu_NAME and its gpu_NAME_args. */
GPU_ENTRY(activate)
GPU_ENTRY(add)
GPU_ENTRY(add_gated)
GPU_ENTRY(attend)
GPU_ENTRY(conv_silu)
GPU_ENTRY(delta_head)
GPU_ENTRY(embed)
GPU_ENTRY(expert_sum)
GPU_ENTRY(find_not_finite)
GPU_ENTRY(matmul)
GPU_ENTRY(matmul_few)
GPU_ENTRY(merge)
GPU_ENTRY(norm_rope)
GPU_ENTRY(prefer)
GPU_ENTRY(quantize)
GPU_ENTRY(rms_norm)
GPU_ENTRY(rope_table)
GPU_ENTRY(route)
GPU_ENTRY(store_kv)
#ifdef FLASHMOE_GPU_PIECES
#include "backend/cuda/piece_list.h"
#endif
