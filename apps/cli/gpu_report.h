/* What a GPU holds and what it did, as text and JSON. Statistics without a GPU give nothing: the
 * output is then that of the processor alone. One thread. */
#ifndef FLASHMOE_APPS_CLI_GPU_REPORT_H
#define FLASHMOE_APPS_CLI_GPU_REPORT_H

#include <jansson.h>

#include "flashmoe_lab.h"

#define GPU_REPORT_BYTES 384

/* Writes "16.0 GiB: dense weights 1.0 GiB, expert cache 14.0 GiB (512 slots), KV and state 0.5 GiB,
 * scratch 0.5 GiB" and returns it. */
const char *gpu_report_division(const struct fm_stats *stats, char text[GPU_REPORT_BYTES]);
/* Writes "97.0% of expert hits in its memory; 12 experts sent for one use, 3 computed by the
 * processor; 5 moved up, 4 down" about what was counted since `before`; NULL: since the model was
 * opened. Returns it. */
const char *gpu_report_work(const struct fm_stats *before, const struct fm_stats *after,
                            char text[GPU_REPORT_BYTES]);
/* Adds "gpu" to an object, with the counters since `before`; NULL: since the model was opened.
 * Returns false when memory runs out. */
bool gpu_report_put(json_t *object, const struct fm_stats *before, const struct fm_stats *after);
/* Returns the kernels that the processor uses; "none" when the GPU computes everything. */
const char *gpu_report_cpu_level(const struct fm_stats *stats);

#endif
