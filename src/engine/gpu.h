/* The GPU that the options choose, until a stage takes it. */
#ifndef FLASHMOE_ENGINE_GPU_H
#define FLASHMOE_ENGINE_GPU_H

#include <stdint.h>

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_device;

struct gpu_choice {
    struct gpu_device *device; /* NULL: the processor alone */
    uint64_t bytes;            /* of its memory that may be used */
    bool is_asked_for;         /* by number: not using it is an error */
    bool has_failed;           /* when a stage opened with it */
};

/* Says what is wrong with the options for a GPU, before anything is opened. */
int gpu_check(const struct fm_model_options *options, struct fm_error *err);
/* Opens the GPU. Without one that can be used, "auto" means the processor alone; *gpu says so and a
 * line in the log says why. A number fails then: FM_ERR_UNSUPPORTED, FM_ERR_BUDGET. */
int gpu_choose(const struct fm_model_options *options, struct gpu_choice *gpu,
               struct fm_error *err);
/* Lets the GPU go because `why`. Returns 0 if the processor takes over, else `rc`. */
int gpu_refuse(struct gpu_choice *gpu, int rc, const struct fm_error *why);
/* Whether the model can be opened without the GPU that has failed. */
static inline bool gpu_can_do_without(const struct gpu_choice *gpu)
{
    return gpu->has_failed && !gpu->is_asked_for;
}
void gpu_drop(struct gpu_choice *gpu); /* accepts one without a device */

#ifdef __cplusplus
}
#endif
#endif
