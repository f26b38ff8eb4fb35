/* Cuts every model that a test opens into stages with different budgets and thread counts. Linked
 * with --wrap=fm_model_open it turns a test of the whole engine into one of stages: whatever the
 * test compares must not depend on the cut. CUT_STAGES says how many stages: 2, 3, ..., or more
 * than there are layers for one stage per layer. */
#include <stdlib.h>

#include "flashmoe.h"

#define MAX_STAGES 64
#define MIB (1ull << 20)

int __real_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);
int __wrap_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);

static unsigned count_layers(const char *path)
{
    struct fm_model_options headers = {.size = sizeof headers};
    struct fm_model_info info = {.size = sizeof info};
    struct fm_model *model;
    struct fm_error err;
    headers.metadata_only = true;
    if (__real_fm_model_open(path, &headers, &model, &err) != 0)
        return 0;
    fm_model_info(model, &info);
    fm_model_close(model);
    return info.n_layers;
}

/* Later stages get the odd layers, more threads and more memory. */
static void cut(struct fm_stage_options *stages, unsigned n, unsigned n_layers,
                uint64_t memory_bytes)
{
    for (unsigned i = 0; i < n; i++)
        stages[i] = (struct fm_stage_options){
            .size = sizeof(struct fm_stage_options),
            .n_layers = n_layers / n + (i >= n - n_layers % n),
            .memory_bytes = memory_bytes + i * MIB / 2, .n_threads = 1 + i % 3};
}

/* A budget that holds the whole model is too small for some cuts, which have more buffers. Stages
 * get the smallest of a few shares that works, so that their caches stay as tight as the test's. */
int __wrap_fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err)
{
    const char *wanted = getenv("CUT_STAGES");
    const unsigned n_layers = options == NULL || options->metadata_only ? 0 : count_layers(path);
    unsigned n = wanted != NULL ? (unsigned)strtoul(wanted, NULL, 10) : 2;
    n = n < n_layers ? n : n_layers;
    if (n < 2)
        return __real_fm_model_open(path, options, out, err);
    struct fm_stage_options stages[MAX_STAGES];
    struct fm_model_options cut_options = *options;
    const uint64_t memory = options->memory_bytes > 0 ? options->memory_bytes : 256 * MIB * n;
    uint64_t share = memory / n;
    cut_options.memory_bytes = 0;
    cut_options.stages = stages;
    cut_options.n_stages = n;
    int rc;
    do {
        cut(stages, n, n_layers, share);
        rc = __real_fm_model_open(path, &cut_options, out, err);
        share += share / 8;
    } while (rc == FM_ERR_BUDGET && share < memory);
    return rc;
}
