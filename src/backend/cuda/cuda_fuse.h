/* Makes fewer launches out of a list of them. A launch takes longer than the arithmetic of a row
 * does, so operations that follow each other on the same rows become one kernel. */
#ifndef FLASHMOE_BACKEND_CUDA_CUDA_FUSE_H
#define FLASHMOE_BACKEND_CUDA_CUDA_FUSE_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rewrites the list in place and returns its new length. What the list leaves in memory stays the
 * same, bit for bit. Joined are neighbours only, in this order, two of them or more:
 *   expert_sum, add_gated or add, add, find_not_finite, rms_norm, quantize   into row_chain
 *   delta_close, delta_token or merge, quantize                              into the first
 *   matmul_one, route of one row                                             into the first
 *   matmul_head, find_not_finite of its rows, copy of them                   into the first
 * where each works on what the one before has written, but for the last. The counter is in the
 * GPU's memory, 0 between launches. */
size_t cuda_fuse(struct gpu_command *commands, size_t n, uint32_t *counter);

#ifdef __cplusplus
}
#endif
#endif
