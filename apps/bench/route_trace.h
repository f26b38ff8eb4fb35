/* Writes the routing of a run as a "# route_trace v1" CSV, the form that --routes reads: one line
 * per token, layer and slot, the heaviest expert in slot 0. `residency` and `expert_bytes` are
 * written as 0. The labels of replaced routes and of approximations stand in its head. */
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

/* `path` NULL makes a trace that does nothing. */
int route_trace_open(struct route_trace *trace, const char *path, struct fm_error *err);
/* Once the model is open and before the first row. */
void route_trace_head(struct route_trace *trace, const char *model,
                      const struct fm_model_info *info);
/* As fm_observer's `route`, with the trace as ctx. A fault is reported at the end. */
void route_trace_row(void *trace, unsigned layer, unsigned position, unsigned n,
                     const uint32_t *ids, const float *weights);
/* Puts the whole file in place, or with `is_whole` false removes what there is. */
int route_trace_close(struct route_trace *trace, bool is_whole, struct fm_error *err);

#endif
