#include "apps/cli/gpu_report.h"

#include <stdio.h>

#include "apps/cli/term.h"

const char *gpu_report_division(const struct fm_stats *s, char text[GPU_REPORT_BYTES])
{
    char budget[UNIT_BYTES], dense[UNIT_BYTES], cache[UNIT_BYTES], kv[UNIT_BYTES],
        scratch[UNIT_BYTES];
    (void)snprintf(text, GPU_REPORT_BYTES, "%s: dense weights %s, expert cache %s (%llu slots), KV "
                   "and state %s, scratch %s", human_bytes(s->gpu_budget_bytes, budget),
                   human_bytes(s->gpu_dense_bytes, dense), human_bytes(s->gpu_cache_bytes, cache),
                   (unsigned long long)s->n_gpu_slots, human_bytes(s->gpu_kv_bytes, kv),
                   human_bytes(s->gpu_scratch_bytes, scratch));
    return text;
}

/* Returns the counters of the GPU since `before`. */
static struct fm_stats since(const struct fm_stats *before, const struct fm_stats *after)
{
    struct fm_stats s = *after;
    if (before == NULL)
        return s;
    s.n_expert_hits -= before->n_expert_hits;
    s.n_expert_hits_gpu -= before->n_expert_hits_gpu;
    s.n_experts_sent -= before->n_experts_sent;
    s.n_experts_computed -= before->n_experts_computed;
    s.n_experts_moved_up -= before->n_experts_moved_up;
    s.n_experts_moved_down -= before->n_experts_moved_down;
    return s;
}

const char *gpu_report_work(const struct fm_stats *before, const struct fm_stats *after,
                            char text[GPU_REPORT_BYTES])
{
    const struct fm_stats s = since(before, after);
    const double hits = s.n_expert_hits > 0 ? (double)s.n_expert_hits : 1;
    (void)snprintf(text, GPU_REPORT_BYTES, "%.1f%% of expert hits in its memory; %llu experts sent "
                   "for one use, %llu computed by the processor; %llu moved up, %llu down",
                   100 * (double)s.n_expert_hits_gpu / hits,
                   (unsigned long long)s.n_experts_sent, (unsigned long long)s.n_experts_computed,
                   (unsigned long long)s.n_experts_moved_up,
                   (unsigned long long)s.n_experts_moved_down);
    return text;
}

bool gpu_report_put(json_t *object, const struct fm_stats *before, const struct fm_stats *after)
{
    if (after->gpu == NULL)
        return true;
    const struct fm_stats s = since(before, after);
    return json_object_set_new(
               object, "gpu",
               json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}",
                         "name", s.gpu, "budget_bytes", (json_int_t)s.gpu_budget_bytes,
                         "dense_bytes", (json_int_t)s.gpu_dense_bytes,
                         "cache_bytes", (json_int_t)s.gpu_cache_bytes,
                         "kv_bytes", (json_int_t)s.gpu_kv_bytes,
                         "scratch_bytes", (json_int_t)s.gpu_scratch_bytes,
                         "n_slots", (json_int_t)s.n_gpu_slots,
                         "n_expert_hits", (json_int_t)s.n_expert_hits_gpu,
                         "n_experts_sent", (json_int_t)s.n_experts_sent,
                         "n_experts_computed", (json_int_t)s.n_experts_computed,
                         "n_experts_moved_up", (json_int_t)s.n_experts_moved_up,
                         "n_experts_moved_down", (json_int_t)s.n_experts_moved_down,
                         "expert_send_s", (double)s.expert_send_ns * 1e-9,
                         "expert_compute_s", (double)s.expert_compute_ns * 1e-9)) == 0;
}

const char *gpu_report_cpu_level(const struct fm_stats *stats)
{
    return stats->cpu_level != NULL ? stats->cpu_level : "none";
}
