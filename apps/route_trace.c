#include "route_trace.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

int route_trace_open(struct route_trace *trace, const char *path, struct fm_error *err)
{
    *trace = (struct route_trace){.path = path};
    if (path == NULL)
        return 0;
    const size_t bytes = strlen(path) + sizeof ".part";
    trace->part = mem_new(bytes, 1, "a path", err);
    if (trace->part == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(trace->part, bytes, "%s.part", path);
    trace->file = fopen(trace->part, "w");
    if (trace->file == NULL) {
        int rc = err_set(err, FM_ERR_IO, "--trace: cannot write '%s': %s", trace->part,
                         strerror(errno));
        mem_free(trace->part);
        trace->part = NULL;
        return rc;
    }
    return 0;
}

void route_trace_head(struct route_trace *trace, const char *model,
                      const struct fm_model_info *info)
{
    if (trace->file == NULL)
        return;
    (void)fprintf(trace->file, "# route_trace v1\n# model=");
    for (; *model != '\0'; model++)
        (void)fputc(iscntrl((unsigned char)*model) ? '?' : *model, trace->file);
    (void)fprintf(trace->file, " arch=%s n_layer=%u n_expert=%u n_expert_used=%u\n"
                  "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n",
                  info->architecture, info->n_layers, info->n_experts, info->n_experts_per_token);
}

void route_trace_row(void *ctx, unsigned layer, unsigned position, unsigned n,
                     const uint32_t *ids, const float *weights)
{
    struct route_trace *trace = ctx;
    unsigned order[LIMIT_TOP_K];
    if (trace->file == NULL)
        return;
    for (unsigned i = 0; i < n; i++) { /* heaviest first, then the lower expert */
        unsigned at = i;
        for (; at > 0 && weights[order[at - 1]] < weights[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (unsigned slot = 0; slot < n; slot++)
        (void)fprintf(trace->file, "%u,%d,%u,%u,%u,%u,%.9g,0,0\n", trace->turn, trace->is_decode,
                      position, layer, slot, (unsigned)ids[order[slot]],
                      (double)weights[order[slot]]);
}

int route_trace_close(struct route_trace *trace, bool is_whole, struct fm_error *err)
{
    int rc = 0;
    if (trace->file == NULL)
        return 0;
    bool is_written = fflush(trace->file) == 0 && !ferror(trace->file) &&
                      (!is_whole || fsync(fileno(trace->file)) == 0 || errno == EINVAL);
    int why = errno;
    if (fclose(trace->file) != 0 && is_written) {
        is_written = false;
        why = errno;
    }
    if (is_whole && is_written && rename(trace->part, trace->path) != 0) {
        is_written = false;
        why = errno;
    }
    if (is_whole && !is_written)
        rc = err_set(err, FM_ERR_IO, "--trace: cannot write '%s': %s", trace->path, strerror(why));
    if (!is_whole || !is_written)
        (void)unlink(trace->part); /* the fault is already reported */
    mem_free(trace->part);
    *trace = (struct route_trace){0};
    return rc;
}
