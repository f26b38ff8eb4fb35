/* The CPU backend: splits each operation over the thread pool and calls the kernels. */
#ifndef FLASHMOE_BACKEND_CPU_BACKEND_CPU_H
#define FLASHMOE_BACKEND_CPU_BACKEND_CPU_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

int backend_cpu_open(const struct backend_options *options, struct backend **out,
                     struct fm_error *err);
uint64_t backend_cpu_scratch_bytes(const struct backend_options *options);

#ifdef __cplusplus
}
#endif
#endif
