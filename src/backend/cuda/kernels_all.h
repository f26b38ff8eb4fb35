/* All kernels of kernel_list.h. The file that includes it is compiled by nvcc, or over the
 * emulator. */
#ifndef FLASHMOE_BACKEND_CUDA_KERNELS_ALL_H
#define FLASHMOE_BACKEND_CUDA_KERNELS_ALL_H

#include "backend/cuda/language.h"

#include "backend/cuda/kernels_streams.h"
#include "backend/not_finite.h"
#include "backend/peak.h"
#include "backend/prefer.h"
#include "backend/router.h"
#include "base/limits.h"
#include "quant/blocks.h"
#include "quant/codes.h"

#include "backend/cuda/k_copy.h"
#include "backend/cuda/k_rows.h"
#include "backend/cuda/k_products.h"
#include "backend/cuda/k_readers.h"
#include "backend/cuda/k_few.h"
#include "backend/cuda/k_many.h"
#include "backend/cuda/k_plain.h"
#include "backend/cuda/k_plain_tiles.h"
#include "backend/cuda/k_row_chain.h"
#include "backend/cuda/k_route.h"
#include "backend/cuda/k_one.h"
#include "backend/cuda/k_head.h"
#include "backend/cuda/k_kv.h"
#include "backend/cuda/k_attention.h"
#include "backend/cuda/k_chosen.h"
#include "backend/cuda/k_delta.h"
#include "backend/cuda/k_streams.h"

#endif
