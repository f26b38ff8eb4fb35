#include "apps/bench/route_trace.h"

#include <ctype.h>

#include "base/limits.h"
#include "apps/cli/common.h"

int route_trace_open(struct route_trace *trace, const char *path, struct fm_error *err)
{
    *trace = (struct route_trace){0};
    return part_file_open(&trace->out, "--trace", path, PLAT_PRIVATE, err);
}

void route_trace_head(struct route_trace *trace, const char *model,
                      const struct fm_model_info *info)
{
    if (trace->out.file == NULL)
        return;
    (void)fprintf(trace->out.file, "# route_trace v1\n# model=");
    for (; *model != '\0'; model++)
        (void)fputc(iscntrl((unsigned char)*model) ? '?' : *model, trace->out.file);
    (void)fprintf(trace->out.file, " arch=%s n_layer=%u n_expert=%u n_expert_used=%u\n",
                  info->architecture, info->n_layers, info->n_experts, info->n_experts_per_token);
    csv_labels(trace->out.file, info);
    (void)fputs("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n",
                trace->out.file);
}

void route_trace_row(void *ctx, unsigned layer, unsigned position, unsigned n,
                     const uint32_t *ids, const float *weights)
{
    struct route_trace *trace = ctx;
    unsigned order[LIMIT_TOP_K];
    if (trace->out.file == NULL)
        return;
    for (unsigned i = 0; i < n; i++) { /* highest weight first, then the lower expert id */
        unsigned at = i;
        for (; at > 0 && weights[order[at - 1]] < weights[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (unsigned slot = 0; slot < n; slot++)
        (void)fprintf(trace->out.file, "%u,%d,%u,%u,%u,%u,%.9g,0,0\n", trace->turn,
                      trace->is_decode, position, layer, slot, (unsigned)ids[order[slot]],
                      (double)weights[order[slot]]);
}

int route_trace_close(struct route_trace *trace, bool is_whole, struct fm_error *err)
{
    return part_file_close(&trace->out, is_whole, err);
}
