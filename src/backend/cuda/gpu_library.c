#include "backend/cuda/gpu_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/device_cuda.h"
#include "base/plat_module.h"

#define LIBRARY_NAME "libflashmoe_cuda.so"

struct gpu_device *gpu_library_open(unsigned index, bool *is_there, char *why, size_t why_bytes)
{
    device_cuda_open_fn *open;
    device_cuda_version_fn *version;
    *is_there = false;
    char reason[PLAT_MODULE_WHY_BYTES];
    void *library = plat_load_module(LIBRARY_NAME, false, "it is built where nvcc is found",
                                     reason);
    if (library == NULL) {
        (void)snprintf(why, why_bytes, "%s", reason);
        return NULL;
    }
    void *found[] = {dlsym(library, "device_cuda_open"), dlsym(library, "device_cuda_version")};
    memcpy(&open, &found[0], sizeof open);
    memcpy(&version, &found[1], sizeof version);
    if (found[0] == NULL || found[1] == NULL || strcmp(version(), FLASHMOE_VERSION) != 0) {
        (void)snprintf(why, why_bytes, LIBRARY_NAME " is of version %s, and this is %s",
                       found[1] != NULL ? version() : "unknown", FLASHMOE_VERSION);
        return NULL;
    }
    return open(index, is_there, why, why_bytes);
}
