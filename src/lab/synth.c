#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "base/sized.h"
#include "flashmoe_lab.h"
#include "lab/synth_internal.h"

static void fill_result(const struct synth_plan *plan, const char *dst,
                        struct fm_synth_result *result)
{
    const uint32_t *n = plan->shape.n;
    char folder[LIMIT_PATH_BYTES];
    path_folder(dst, folder);
    *result = (struct fm_synth_result){
        .architecture = plan->shape.family->model_type,
        .n_files = plan->n_files + plan->n_texts + (plan->packed != NULL),
        .free_bytes = plat_free_bytes(folder),
    };
    for (size_t i = 0; i < plan->n_tensors; i++) {
        const struct synth_tensor *t = &plan->tensors[i];
        const uint64_t copies = t->n_experts > 0 ? t->n_experts : 1;
        const uint64_t bytes = quant_matrix_bytes(t->quant, t->n_rows, t->n_cols);
        result->n_parameters += copies * t->n_rows * t->n_cols;
        result->n_tensors += copies;
        if (t->n_experts > 0) {
            result->experts_bytes += copies * bytes;
            result->expert_bytes += t->layer == 0 ? bytes : 0;
            result->expert_token_bytes += n[FM_SYNTH_USED] * bytes;
        } else if (t->role != SYNTH_TABLE) {
            result->dense_bytes += bytes;
            result->dense_token_bytes +=
                t->role == SYNTH_EMBED ? quant_row_bytes(t->quant, t->n_cols) : bytes;
        }
    }
    for (size_t i = 0; i < plan->n_files; i++)
        result->file_bytes += plan->files[i].bytes;
    for (size_t i = 0; i < plan->n_texts; i++)
        result->file_bytes += plan->texts[i].bytes;
}

static int make_plan(struct synth_plan *plan, const char *shape, const char *dst,
                     const struct fm_synth_options *options, struct fm_error *err)
{
    if ((unsigned)options->form > FM_SYNTH_GGUF)
        return err_set(err, FM_ERR_ARG, "fm_synth_options.form is %d: expected 0 to %d",
                       (int)options->form, FM_SYNTH_GGUF);
    int rc = synth_shape_init(&plan->shape, shape, options, err);
    if (rc != 0)
        return rc;
    plan->seed = options->seed;
    plan->has_split_projections = plan->has_cut_heads = options->form == FM_SYNTH_GGUF;
    plan->config = synth_config(&plan->shape);
    rc = synth_plan_tensors(plan, err);
    if (rc == 0)
        rc = synth_plan_formats(plan, options, err);
    if (rc != 0)
        return rc;
    if (options->form == FM_SYNTH_PACKED)
        return synth_plan_packed(plan, err);
    if (options->form == FM_SYNTH_SAFETENSORS)
        return synth_plan_safetensors(plan, options->split_bytes, err);
    return synth_plan_gguf(plan, dst, options->split_bytes, err);
}

int fm_synth(const char *shape, const char *dst, const struct fm_synth_options *options,
             struct fm_synth_result *result, struct fm_error *err)
{
    struct fm_synth_options own;
    struct fm_synth_result made = {0};
    struct synth_plan plan = {.n_tensors = 0};
    int rc = result != NULL ? sized_check(result, "fm_synth_result", err) : 0;
    if (rc == 0)
        rc = sized_take(&own, sizeof own, options, "fm_synth_options", err);
    if (rc == 0)
        rc = make_plan(&plan, shape, dst, &own, err);
    if (rc == 0)
        fill_result(&plan, dst, &made);
    if (rc == 0 && result != NULL)
        rc = sized_give(result, &made, sizeof made);
    if (rc == 0 && !own.plan_only)
        rc = synth_write(&plan, dst, &own, err);
    synth_plan_clear(&plan);
    return rc;
}
