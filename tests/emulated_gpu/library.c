/* libflashmoe_cuda.so for tests: one GPU that the emulator runs. The program beside it finds it as
 * it would find the real one. FLASHMOE_EMULATED_MEMORY is the size of its memory in MiB;
 * FLASHMOE_EMULATED_OTHERS names a file with the bytes that other programs have of it. With
 * FLASHMOE_EMULATED_FAILURE it is lost as soon as it is used. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/device_cuda.h"
#include "backend/cuda/device_emulated.h"

#define EXPORTED __attribute__((visibility("default")))

static uint64_t other_bytes(void)
{
    unsigned long long bytes = 0;
    FILE *file = fopen(getenv("FLASHMOE_EMULATED_OTHERS"), "r");
    if (file == NULL || fscanf(file, "%llu", &bytes) != 1)
        bytes = 0;
    if (file != NULL)
        (void)fclose(file);
    return bytes;
}

EXPORTED struct gpu_device *device_cuda_open(unsigned index, bool *is_there, char *why,
                                             size_t why_bytes)
{
    const char *mebibytes = getenv("FLASHMOE_EMULATED_MEMORY");
    *is_there = false;
    if (index > 0) {
        (void)snprintf(why, why_bytes, "there is no GPU %u: this machine has 1", index);
        return NULL;
    }
    struct gpu_device *device = device_emulated();
    device_emulated_fail(getenv("FLASHMOE_EMULATED_FAILURE"));
    if (getenv("FLASHMOE_EMULATED_OTHERS") != NULL)
        device_emulated_share(other_bytes);
    if (mebibytes != NULL)
        device->total_bytes = strtoull(mebibytes, NULL, 10) << 20;
    return device;
}

EXPORTED const char *device_cuda_version(void)
{
    return FLASHMOE_VERSION;
}
