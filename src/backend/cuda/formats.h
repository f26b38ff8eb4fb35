/* Number formats as the GPU's kernels see them. Pure functions for any thread. */
#ifndef FLASHMOE_BACKEND_CUDA_FORMATS_H
#define FLASHMOE_BACKEND_CUDA_FORMATS_H

#include "backend/cuda/kernels_mix.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_format gpu_format_of(const struct quant *quant);
struct gpu_weight gpu_weight_of(const struct weight *w);
struct gpu_kv_format gpu_kv_format_of(const struct kv_format *format);

#ifdef __cplusplus
}
#endif
#endif
