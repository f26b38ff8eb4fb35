/* What the files of the forward pass share. */
#ifndef FLASHMOE_ENGINE_FORWARD_INTERNAL_H
#define FLASHMOE_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which rows each expert works on, found from the router's choice by counting. A pair is
 * row * k + place: the row and which of its experts. */
struct expert_groups {
    uint32_t *start;  /* [n_experts + 1] into pairs */
    uint32_t *pairs;  /* [max_rows * k] grouped by expert, rows ascending */
    uint32_t *rows;   /* [max_rows * k] the row of each pair */
    struct expert_use *chosen; /* experts with at least one row, ascending */
    uint32_t n_chosen;
};

struct forward {
    const struct arch *arch;
    const struct model *model;
    struct backend *be;
    struct expert_cache *cache;
    struct forward_options options;
    struct step step;
    struct expert_groups groups;
    /* For the host: what the layer at hand chose. */
    uint32_t *ids;    /* [max_rows, k] */
    float *weights;   /* [max_rows, k], where somebody wants to see them */
    uint32_t *ahead_ids; /* [k] */
    float *ahead_weights;
    bool *resident; /* [n_experts] */
    struct lookahead lookahead;
    void *lookahead_memory;
    struct pass *pass;       /* at hand */
    float *head_in, *logits; /* [HEAD_ROWS, hidden], [HEAD_ROWS, vocabulary] */
    /* Rows that are not finite, as not_finite_code: [1 + layers, max_segments], the embedding
     * first; in the backend's memory, and for the host. */
    uint32_t *not_finite, *not_finite_seen;
    void *block, *host_block; /* in the backend's memory and in the host's */
    bool is_timed; /* the pass at hand */
    uint64_t lap_ns;
    struct batch_times times; /* of the layer at hand */
    uint32_t planned_layer;   /* whose experts were computed last */
};

/* The routed experts of a layer: reads, waits and computes. Ends early when every segment is given
 * up. */
void forward_run_experts(struct forward *f, uint32_t layer);
/* The experts of the last plan were computed while their checksums were, too. Those that turn out
 * to be damaged are found here: before rows change their places or choose other experts, and before
 * anybody sees what came of them. */
void forward_verify_experts(struct forward *f);

/* The experts of one row; of many rows, what one expert may get and the shared expert beside. */
uint64_t forward_max_ffn_rows(const struct model *model, uint64_t max_rows);

/* Since the last lap; 0 when nobody wants to know. Waits for what is queued, so that a piece of
 * work is counted where it was asked for. */
static inline uint64_t forward_lap(struct forward *f)
{
    if (!f->is_timed)
        return 0;
    memory_finish(f->be->memory);
    const uint64_t now_ns = plat_now_ns(), ns = now_ns - f->lap_ns;
    f->lap_ns = now_ns;
    return ns;
}

#ifdef __cplusplus
}
#endif
#endif
