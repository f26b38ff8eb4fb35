#include "engine/gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu.h"
#include "base/bytes_text.h"
#include "base/err.h"
#include "base/log.h"

/* Left free: what the driver takes for itself while it runs, and a part for other programs. */
#define MARGIN_BYTES (384ull << 20)
#define MARGIN_SHARE 32

static bool is_off(const struct fm_model_options *options)
{
    return options->gpu == NULL || strcmp(options->gpu, "off") == 0;
}

static bool is_auto(const struct fm_model_options *options)
{
    return options->gpu != NULL && strcmp(options->gpu, "auto") == 0;
}

/* Returns false for what is no number of a GPU. */
static bool read_number(const char *text, unsigned *number)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    const unsigned long n = strtoul(text, &end, 10);
    *number = (unsigned)n;
    return *end == '\0' && errno == 0 && n < 1024;
}

int gpu_check(const struct fm_model_options *options, struct fm_error *err)
{
    unsigned number;
    if (is_off(options))
        return options->gpu_memory_bytes == 0
                   ? 0 : err_set(err, FM_ERR_ARG, "memory of a GPU is given (--gpu-memory), but "
                                 "none is used (--gpu off)");
    if (!is_auto(options) && !read_number(options->gpu, &number))
        return err_set(err, FM_ERR_ARG, "'%s' is no GPU: expected off, auto or a number from 0 on "
                       "(--gpu)", options->gpu);
    if (!is_auto(options) && options->n_stages > 1)
        return err_set(err, FM_ERR_ARG, "a model that is cut into %u stages uses the processor "
                       "alone (--gpu off)", options->n_stages);
    return 0;
}

static int no_gpu(const struct gpu_choice *gpu, bool is_there, const char *why,
                  struct fm_error *err)
{
    if (gpu->is_asked_for)
        return err_set(err, FM_ERR_UNSUPPORTED, "%s; use the processor alone with --gpu off", why);
    if (is_there)
        log_warn("gpu", "%s; the processor computes alone", why);
    else
        log_info("gpu", "%s; the processor computes alone", why);
    return 0;
}

static int choose_bytes(struct gpu_choice *gpu, uint64_t asked, struct fm_error *err)
{
    char t[2][BYTES_TEXT];
    const uint64_t left = gpu_free_bytes(gpu->device);
    const uint64_t margin = MARGIN_BYTES + left / MARGIN_SHARE;
    gpu->bytes = asked > 0 ? asked : left > margin ? left - margin : 0;
    if (asked <= left)
        return 0;
    return err_set(err, FM_ERR_BUDGET, "a budget of %s of the GPU's memory was requested, and %s "
                   "of it is free; lower it (--gpu-memory)", bytes_text(asked, t[0]),
                   bytes_text(left, t[1]));
}

int gpu_choose(const struct fm_model_options *options, struct gpu_choice *gpu,
               struct fm_error *err)
{
    char why[256];
    unsigned number = 0;
    bool is_there;
    *gpu = (struct gpu_choice){0};
    if (is_off(options) || options->n_stages > 1)
        return 0;
    gpu->is_asked_for = !is_auto(options);
    if (gpu->is_asked_for)
        (void)read_number(options->gpu, &number); /* gpu_check has read it */
    gpu->device = gpu_open(number, &is_there, why, sizeof why);
    if (gpu->device == NULL)
        return no_gpu(gpu, is_there, why, err);
    return choose_bytes(gpu, options->gpu_memory_bytes, err);
}

int gpu_refuse(struct gpu_choice *gpu, int rc, const struct fm_error *why)
{
    if (gpu->is_asked_for)
        return rc;
    log_warn("gpu", "the processor computes alone: %s", why != NULL ? why->text : "no memory");
    gpu_drop(gpu);
    return 0;
}

void gpu_drop(struct gpu_choice *gpu)
{
    gpu_close(gpu->device);
    *gpu = (struct gpu_choice){0};
}
