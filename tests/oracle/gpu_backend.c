/* The CUDA backend over the emulator. Linked with --wrap=backend_open it takes the place of every
 * backend. */
#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/device_emulated.h"

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    (void)name;
    return backend_cuda_open_on(device_emulated(), options, out, err);
}
