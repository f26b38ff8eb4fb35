/* A GPU for tests and benchmarks, through the library of its kernels. */
#ifndef FLASHMOE_TESTS_OPEN_CUDA_H
#define FLASHMOE_TESTS_OPEN_CUDA_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device_cuda.h"

/* Opens the first GPU. Returns NULL, and why, if there is none. Without the library the program
 * ends. */
static inline struct gpu_device *open_cuda(const char *library, char *why, size_t why_bytes)
{
    device_cuda_open_fn *open;
    bool is_there;
    void *handle = dlopen(library, RTLD_NOW);
    void *found = handle != NULL ? dlsym(handle, "device_cuda_open") : NULL;
    memcpy(&open, &found, sizeof open);
    if (found != NULL)
        return open(0, &is_there, why, why_bytes);
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
}

#endif
