#include "engine/stage.h"

#include <stdio.h>
#include <string.h>

#include "backend/gpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "cache/heat_file.h"

/* Of a message to another rank, beside its rows and the tokens of a sequence. */
#define MESSAGE_BYTES (192ull << 10)

uint64_t stage_scratch_bytes(const struct model *model, const struct kv_format *kv_format,
                             const struct budget *b, uint32_t max_rows)
{
    const bool is_cut = model->end_layer - model->first_layer < model->shape.n_layers;
    const struct forward_options forward = {.max_rows = max_rows, .max_segments = b->n_sessions,
                                            .n_context = b->n_context, .kv_format = kv_format,
                                            .ahead_rows = 1 + b->n_drafts,
                                            .has_far = b->place != BUDGET_HOST};
    const struct pass_options pass = {.max_rows = max_rows, .max_segments = b->n_sessions,
                                      .row_floats = is_cut ? model->shape.row_floats : 0};
    struct backend_options backend = {.n_threads = b->n_threads};
    const struct pass_options without_rows = {.max_rows = max_rows,
                                              .max_segments = b->n_sessions};
    const uint64_t host =
        forward_host_bytes(model, &forward) + pass_bytes(&pass) +
        (b->n_passes > 1 ? b->n_passes - 1 : 0) * pass_bytes(&without_rows) +
        (is_cut || b->place != BUDGET_HOST ? 0 : pass_bytes(&without_rows)) + /* between layers */
        b->n_row_copies * (MESSAGE_BYTES + 2ull * b->n_context * sizeof(int32_t) +
                           (uint64_t)max_rows * model->shape.row_floats * sizeof(float));
    if (b->place == BUDGET_BESIDE) {
        struct backend_options gpu = {0};
        forward_far_options(model, &backend);
        forward_backend_options(model, &forward, &gpu);
        return host + backend_scratch_bytes(NULL, &backend) + expert_cache_piece_bytes(model) +
               forward_piece_bytes(model) + backend_gpu_host_bytes(&gpu);
    }
    forward_backend_options(model, &forward, &backend);
    if (b->place == BUDGET_DEVICE)
        return forward_row_bytes(model, &forward) + backend_gpu_scratch_bytes(&backend);
    return host + forward_row_bytes(model, &forward) + backend_scratch_bytes(NULL, &backend);
}

/* ---- experts --------------------------------------------------------------------------------- */

static int open_tiers(struct stage *stage, enum heat_policy policy, struct fm_error *err)
{
    struct cache_tier tiers[CACHE_TIERS];
    uint32_t n = 0;
    if (stage->has_gpu)
        tiers[n++] = (struct cache_tier){stage->be->memory, stage->device.n_max};
    if (stage_host_tier(stage) < CACHE_TIERS)
        tiers[n++] = (struct cache_tier){&memory_host, stage->budget.n_max};
    if (!stage->has_gpu)
        tiers[0].memory = stage->be->memory;
    return expert_cache_open(stage->model, stage->store, tiers, n, policy, &stage->cache, err);
}

/* Opens the cache with room for its maximum: memory costs nothing before an expert is read into it.
 * Where the system counts reserved memory, the cache cannot grow. */
static int open_cache(struct stage *stage, enum heat_policy policy, struct fm_error *err)
{
    struct budget *b = &stage->budget;
    const uint32_t tier = stage_host_tier(stage);
    int rc = open_tiers(stage, policy, err);
    if (rc == FM_ERR_NOMEM && b->n_max > b->n_slots) {
        log_info("cache", "%s; the cache cannot grow", err != NULL ? err->text : "out of memory");
        budget_stop_growth(b, stage->model);
        rc = open_tiers(stage, policy, err);
    }
    if (rc == 0 && tier < CACHE_TIERS && b->n_slots < b->n_max) {
        (void)expert_cache_resize(stage->cache, tier, b->n_slots);
        expert_cache_settle(stage->cache);
    }
    return rc;
}

/* Loads the heat of a stage from its own file: PATH, or PATH-FIRST-LAST with several stages. */
static int load_heat(struct stage *stage, const char *path, struct fm_error *err)
{
    const struct model *model = stage->model;
    char cut[32] = "";
    if (model->end_layer - model->first_layer < model->shape.n_layers)
        (void)snprintf(cut, sizeof cut, "-%u-%u", model->first_layer, model->end_layer - 1);
    const size_t bytes = strlen(path) + strlen(cut) + 1;
    stage->heat_path = mem_new(bytes, 1, "the path of the heat file", err);
    if (stage->heat_path == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(stage->heat_path, bytes, "%s%s", path, cut);
    if (heat_file_load(stage->heat_path, model, expert_cache_heat(stage->cache)))
        expert_cache_warm(stage->cache);
    return 0;
}

static int open_experts(struct stage *stage, const struct stage_options *options,
                        struct fm_error *err)
{
    const struct streaming *s = options->streaming;
    if (stage->model->n_expert_layers == 0)
        return 0;
    int rc = streaming_open_store(s, stage->model, options->checks, &stage->reader_name,
                                  &stage->store, err);
    if (rc == 0)
        rc = open_cache(stage, s->policy, err);
    if (rc == 0 && s->heat_path != NULL)
        rc = load_heat(stage, s->heat_path, err);
    /* A biased router chooses by what is resident, so that must not depend on time. */
    if (rc == 0 && options->cache_bias == 0)
        expert_cache_read_all(stage->cache);
    return rc;
}

static void close_experts(struct stage *stage)
{
    struct fm_error err;
    if (stage->heat_path != NULL && stage->cache != NULL &&
        heat_file_save(stage->heat_path, stage->model, expert_cache_heat(stage->cache), &err) != 0)
        log_warn("cache", "the heat file is not kept (--no-heat: none is made): %s", err.text);
    mem_free(stage->heat_path);
    if (stage->cache != NULL)
        expert_cache_stop_warming(stage->cache);
    expert_store_close(stage->store); /* before the cache: its slots are what reads write to */
    expert_cache_close(stage->cache);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Opens what computes: it makes the stage's memory. */
static int open_backends(struct stage *stage, const struct forward_options *forward,
                         const struct stage_options *options, struct fm_error *err)
{
    const struct budget *b = &stage->budget;
    struct backend_options backend = {.n_threads = b->n_threads, .cpu = options->cpu,
                                      .pin_threads = options->pin_threads};
    struct backend_options far = backend;
    forward_backend_options(stage->model, forward, &backend);
    if (options->gpu == NULL)
        return backend_open(NULL, &backend, &stage->be, err);
    int rc = backend_open_gpu(options->gpu, &backend, &stage->be, err);
    stage->gpu_has_failed = rc != 0;
    if (rc == 0 && b->n_max > 0) {
        forward_far_options(stage->model, &far);
        rc = backend_open(NULL, &far, &stage->host_be, err);
    }
    return rc;
}

/* A GPU that is lost while the model opens is told now, not with the first token. */
static int check_gpu(struct stage *stage, int rc, struct fm_error *err)
{
    const struct backend *be = stage->be;
    const char *why = be->ops->failure != NULL ? be->ops->failure(stage->be) : NULL;
    if (why != NULL)
        rc = err_set(err, FM_ERR_IO, "%s", why);
    stage->gpu_has_failed = stage->has_gpu && (why != NULL || rc == FM_ERR_NOMEM);
    return rc;
}

int stage_open(struct stage *stage, const struct stage_options *options, struct fm_error *err)
{
    const struct budget *b = &stage->budget;
    struct forward_options forward = {.stage = stage->index,
                                            .max_rows = b->max_rows,
                                            .max_segments = b->n_sessions,
                                            .n_context = b->n_context,
                                            .kv_format = options->kv_format,
                                            .lookahead = options->streaming->lookahead,
                                            .ahead_rows = 1 + b->n_drafts,
                                            .cache_bias = options->cache_bias,
                                            .replace_ids = options->replace_ids,
                                            .predict_ids = options->predict_ids,
                                            .replace_ctx = options->replace_ctx,
                                            .checks = options->checks};
    int rc = open_backends(stage, &forward, options, err);
    forward.host_be = stage->host_be;
    forward.has_far = stage->host_be != NULL;
    if (rc != 0)
        return rc;
    model_prepare_for(stage->model, stage->be->preparer);
    rc = model_load_dense(stage->model, stage->be->memory, options->checks, options->progress,
                          options->progress_ctx, err);
    if (rc == 0)
        rc = open_experts(stage, options, err);
    if (rc == 0)
        rc = forward_open(stage->model, stage->be, stage->cache, &forward, &stage->forward, err);
    return check_gpu(stage, rc, err);
}

void stage_close(struct stage *stage)
{
    forward_close(stage->forward);
    close_experts(stage);
    model_close(stage->model);
    backend_close(stage->host_be);
    backend_close(stage->be); /* after all that lies in its memory */
    *stage = (struct stage){0};
}
