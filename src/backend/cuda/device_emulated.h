/* The emulator as a device (device.h). Its memory is the host's own, so a test may hand it any
 * address. There is one, which is never closed. */
#ifndef FLASHMOE_BACKEND_CUDA_DEVICE_EMULATED_H
#define FLASHMOE_BACKEND_CUDA_DEVICE_EMULATED_H

#include "backend/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_device *device_emulated(void);
/* Lets the device fail with this reason; NULL: it works again. */
void device_emulated_fail(const char *why);
/* Asks how many bytes of its memory other programs have, whenever that matters; NULL: none. */
void device_emulated_share(uint64_t (*others)(void));
/* As emulator_on_fault. */
void device_emulated_on_fault(void (*fault)(const char *message));

#ifdef __cplusplus
}
#endif
#endif
