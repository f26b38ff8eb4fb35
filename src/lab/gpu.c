/* fm_gpu: describes a GPU and measures its speed. */
#include <stdio.h>
#include <stdlib.h>

#include "backend/gpu.h"
#include "base/err.h"
#include "base/sized.h"
#include "flashmoe_lab.h"

#define PASSES 11
#define PASSES_QUICK 5

static int open_gpu(unsigned i, struct gpu_device **out, struct fm_error *err)
{
    char why[256];
    bool is_there = false;
    *out = gpu_open(i, &is_there, why, sizeof why);
    return *out != NULL ? 0 : err_set(err, is_there ? FM_ERR_UNSUPPORTED : FM_ERR_ARG, "%s", why);
}

int fm_gpu_info(unsigned i, struct fm_gpu_info *out, struct fm_error *err)
{
    struct gpu_device *device = NULL;
    struct fm_gpu_info info = {0};
    int rc = sized_check(out, "fm_gpu_info", err);
    if (rc == 0)
        rc = open_gpu(i, &device, err);
    if (rc == 0) {
        (void)snprintf(info.name, sizeof info.name, "%s", gpu_name(device));
        info.memory_bytes = gpu_total_bytes(device);
        info.memory_free_bytes = gpu_free_bytes(device);
    }
    gpu_close(device);
    (void)sized_give(out, &info, sizeof info); /* a wrong size was refused above */
    return rc;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct fm_speed speed_of(double *figures, unsigned n)
{
    qsort(figures, n, sizeof figures[0], compare);
    return (struct fm_speed){.median = figures[n / 2], .min = figures[0], .max = figures[n - 1]};
}

int fm_gpu_measure(unsigned i, bool quick, struct fm_gpu_speeds *out, struct fm_error *err)
{
    const unsigned n = quick ? PASSES_QUICK : PASSES;
    double memory[PASSES], send[PASSES];
    struct gpu_device *device = NULL;
    struct fm_gpu_speeds speeds = {0};
    int rc = sized_check(out, "fm_gpu_speeds", err);
    if (rc == 0)
        rc = open_gpu(i, &device, err);
    if (rc == 0 && !gpu_measure(device, n, memory, send))
        rc = err_set(err, FM_ERR_UNSUPPORTED, "GPU %u cannot be measured: it has too little free "
                     "memory, or it failed", i);
    if (rc == 0)
        speeds = (struct fm_gpu_speeds){.memory = speed_of(memory, n), .send = speed_of(send, n)};
    gpu_close(device);
    (void)sized_give(out, &speeds, sizeof speeds);
    return rc;
}
