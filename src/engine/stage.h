/* A stage: the layers [first, end) of a model on one backend, with their weights, the expert slots,
 * the scratch and the budget of their own. On a GPU it has a second backend, the processor's, for
 * experts that are in the host's memory. Rows go in and come out (forward.h); what the layers
 * keep of a sequence is a part of it (sequence.h). A model on one machine is one stage; every other
 * cut gives the same bits. One thread at a time. */
#ifndef FLASHMOE_ENGINE_STAGE_H
#define FLASHMOE_ENGINE_STAGE_H

#include "engine/budget.h"
#include "engine/forward.h"
#include "engine/streaming.h"

#ifdef __cplusplus
extern "C" {
#endif

struct stage {
    uint32_t index;
    struct model *model; /* its layers; the whole model's where there is one stage */
    struct budget budget; /* of the host's memory */
    struct budget device; /* of the GPU's memory, where has_gpu */
    bool has_gpu;
    bool gpu_has_failed; /* opening failed because of the GPU */
    struct backend *be;
    struct backend *host_be; /* NULL: all experts are where `be` computes */
    struct expert_store *store;
    struct expert_cache *cache; /* NULL without routed experts */
    const char *reader_name;    /* NULL likewise */
    char *heat_path;            /* NULL: none */
    struct forward *forward;
};

/* What all stages of a model have in common. */
struct stage_options {
    const struct streaming *streaming;
    const struct kv_format *kv_format;
    bool checks; /* verifies what is read */
    float cache_bias;
    replace_ids_fn *replace_ids, *predict_ids;
    void *replace_ctx;
    const char *cpu; /* level of the kernels, or NULL */
    bool pin_threads;
    model_load_fn *progress; /* of the dense weights */
    void *progress_ctx;
    struct gpu_device *gpu; /* the stage owns it from stage_open on; NULL: none */
};

/* The budget that has keys and values, and the first tier of the cache. */
static inline struct budget *stage_state_budget(struct stage *stage)
{
    return stage->has_gpu ? &stage->device : &stage->budget;
}

/* The number of the cache's tier in the host's memory, or CACHE_TIERS: there is none. */
static inline uint32_t stage_host_tier(const struct stage *stage)
{
    if (stage->has_gpu && stage->host_be == NULL)
        return CACHE_TIERS;
    return stage->has_gpu ? 1 : 0;
}

/* Opens backend, dense weights, store, cache and forward pass, with the sizes of the budget. The
 * model's headers are open already. The caller calls stage_close, also after a failure. */
int stage_open(struct stage *stage, const struct stage_options *options, struct fm_error *err);
/* Saves the heat and closes everything, the model too; accepts a zeroed one. */
void stage_close(struct stage *stage);

/* Returns the memory that a batch of max_rows takes beside weights and sequences. */
uint64_t stage_scratch_bytes(const struct model *model, const struct kv_format *kv_format,
                             const struct budget *b, uint32_t max_rows);

#ifdef __cplusplus
}
#endif
#endif
