/* Writes the routing of a run as "# route_trace v1" CSV, which --routes reads: one line per token,
 * layer and slot, with the highest-weighted expert in slot 0. `residency` and `expert_bytes` are 0.
 * The head has the labels of replaced routes and of approximations. One thread. */
#ifndef FLASHMOE_APPS_BENCH_ROUTE_TRACE_H
#define FLASHMOE_APPS_BENCH_ROUTE_TRACE_H

#include <stdint.h>

#include "flashmoe_lab.h"
#include "apps/cli/part_file.h"

struct route_trace {
    struct part_file out;
    unsigned turn;
    bool is_decode;
};

/* Opens the file. A NULL `path` makes every call do nothing. */
int route_trace_open(struct route_trace *trace, const char *path, struct fm_error *err);
/* Writes the head. Call after opening the model and before the first row. */
void route_trace_head(struct route_trace *trace, const char *model,
                      const struct fm_model_info *info);
/* Adds rows, with fm_observer's `route` arguments. Write errors are reported on closing. */
void route_trace_row(void *trace, unsigned layer, unsigned position, unsigned n,
                     const uint32_t *ids, const float *weights);
/* Renames the file into place, or removes it if `is_whole` is false. */
int route_trace_close(struct route_trace *trace, bool is_whole, struct fm_error *err);

#endif
