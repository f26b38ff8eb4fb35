#include "backend/gpu.h"

#include <string.h>

#include "backend/cuda/backend_cuda.h"
#include "backend/cuda/gpu_library.h"
#include "base/plat.h"

struct gpu_device *gpu_open(unsigned index, bool *is_there, char *why, size_t why_bytes)
{
    return gpu_library_open(index, is_there, why, why_bytes);
}

void gpu_close(struct gpu_device *device)
{
    if (device != NULL)
        device->ops->close(device);
}

const char *gpu_name(const struct gpu_device *device)
{
    return device->name;
}

uint64_t gpu_total_bytes(const struct gpu_device *device)
{
    return device->total_bytes;
}

uint64_t gpu_free_bytes(struct gpu_device *device)
{
    return device->ops->free_bytes(device);
}

/* ---- measuring ------------------------------------------------------------------------------ */

/* A piece that no cache of a GPU holds, or less where less is free. Each pass copies it several
 * times, so that starting a copy does not count. */
#define MEASURE_BYTES (256ull << 20)
#define MEASURE_COPIES 4

struct pieces {
    char *host, *from, *to;
    uint64_t bytes;
};

/* Returns bytes per second of one pass. */
static double copy_within(struct gpu_device *d, const struct pieces *p)
{
    d->ops->finish(d);
    const uint64_t begin_ns = plat_now_ns();
    for (int i = 0; i < MEASURE_COPIES; i++)
        d->ops->copy(d, i % 2 == 0 ? p->to : p->from, i % 2 == 0 ? p->from : p->to, p->bytes);
    d->ops->finish(d);
    const uint64_t ns = plat_now_ns() - begin_ns;
    return 2.0 * MEASURE_COPIES * (double)p->bytes * 1e9 / (double)(ns > 0 ? ns : 1);
}

static double copy_to(struct gpu_device *d, const struct pieces *p)
{
    d->ops->finish(d);
    const uint64_t begin_ns = plat_now_ns();
    d->ops->transfer(d, p->to, p->host, p->bytes, 0);
    d->ops->settle(d);
    const uint64_t ns = plat_now_ns() - begin_ns;
    return (double)p->bytes * 1e9 / (double)(ns > 0 ? ns : 1);
}

bool gpu_measure(struct gpu_device *d, unsigned n_passes, double *memory_per_s, double *send_per_s)
{
    const uint64_t quarter = gpu_free_bytes(d) / 4;
    struct pieces p = {.bytes = quarter < MEASURE_BYTES ? quarter : MEASURE_BYTES};
    p.from = d->ops->make(d, p.bytes);
    p.to = d->ops->make(d, p.bytes);
    p.host = d->ops->host_make(d, p.bytes);
    const bool has_all = p.bytes > 0 && p.from != NULL && p.to != NULL && p.host != NULL;
    if (has_all) {
        memset(p.host, 0, p.bytes);
        (void)copy_to(d, &p); /* pages and the queue are ready after it */
        d->ops->clear(d, p.from, p.bytes);
    }
    for (unsigned i = 0; has_all && i < n_passes; i++) {
        memory_per_s[i] = copy_within(d, &p);
        send_per_s[i] = copy_to(d, &p);
    }
    d->ops->free(d, p.from);
    d->ops->free(d, p.to);
    d->ops->host_free(d, p.host);
    return has_all && d->ops->failure(d) == NULL;
}

int backend_open_gpu(struct gpu_device *device, const struct backend_options *options,
                     struct backend **out, struct fm_error *err)
{
    return backend_cuda_open_on(device, options, out, err);
}

uint64_t backend_gpu_free_bytes(struct backend *be)
{
    return gpu_free_bytes(backend_cuda_device(be));
}

uint64_t backend_gpu_scratch_bytes(const struct backend_options *options)
{
    return backend_cuda_scratch_bytes(options);
}

uint64_t backend_gpu_host_bytes(const struct backend_options *options)
{
    return backend_cuda_host_bytes(options);
}
