/* What single layers of a model take. */
#include <string.h>

#include "arch/arch.h"
#include "base/sized.h"
#include "cluster/wire.h"
#include "session/session_internal.h"

void session_count_mul_adds(const struct model *model, uint64_t *per_token, uint64_t *per_head)
{
    uint64_t experts = 0;
    *per_token = *per_head = 0;
    for (size_t i = 0; i < model->source->n_tensors; i++) {
        const struct tensor_use *use = &model->uses[i];
        const uint64_t n = use->n_rows * use->n_cols;
        if (strncmp(model->source->tensors[i].name, "mtp.", 4) == 0)
            continue; /* no token of the model uses it */
        if (use->role == TENSOR_MATRIX || use->role == TENSOR_GATE)
            *per_token += n;
        else if (use->role == TENSOR_EXPERT)
            experts += n;
        else if (use->role == TENSOR_HEAD) /* also a tied embedding */
            *per_head += n;
    }
    if (model->shape.n_experts > 0)
        *per_token += experts / model->shape.n_experts * model->shape.n_experts_per_token;
}

static int open_layer(const struct fm_model *m, uint32_t i, bool with_head, struct model **out,
                      struct fm_error *err)
{
    const struct model *whole = m->engine.model;
    const struct model_options options = {
        .families = arch_families(), .metadata_only = true, .may_lack_experts = true,
        .experts_per_token = whole->shape.n_experts_per_token, .first_layer = i,
        .end_layer = i + 1, .n_layers = whole->shape.n_layers,
        .head = with_head ? HEAD_LOADED : HEAD_ELSEWHERE};
    return model_open(whole->source->path, &options, out, err);
}

/* Adds what the first rank has with the head, beside its first layer. */
static int add_head(const struct fm_model *m, struct fm_layer_info *info, struct fm_error *err)
{
    struct model *model;
    uint64_t unused;
    const int rc = open_layer(m, 0, true, &model, err);
    if (rc != 0)
        return rc;
    info->head_bytes = model->dense_bytes - info->dense_bytes;
    info->head_token_bytes = model->dense_token_bytes - info->dense_token_bytes;
    session_count_mul_adds(model, &unused, &info->mul_adds_per_head);
    model_close(model);
    return 0;
}

int fm_model_layer(const struct fm_model *m, unsigned i, struct fm_layer_info *out,
                   struct fm_error *err)
{
    struct fm_layer_info info = {0};
    struct sequence_sizes sizes;
    struct model *model;
    uint64_t unused;
    int rc = sized_check(out, "fm_layer_info", err);
    if (rc == 0 && i >= m->engine.model->shape.n_layers)
        rc = err_set(err, FM_ERR_ARG, "layer %u is asked for, and the model has %u", i,
                     m->engine.model->shape.n_layers);
    if (rc == 0)
        rc = open_layer(m, i, false, &model, err);
    if (rc != 0)
        return rc;
    sequence_sizes(model, m->engine.kv_format, &sizes);
    info.dense_bytes = model->dense_bytes;
    info.dense_token_bytes = model->dense_token_bytes;
    info.kv_position_bytes = sizes.kv_position_bytes;
    info.state_bytes = sizes.recurrent_bytes;
    for (uint32_t e = 0; e < model->n_expert_layers; e++) {
        const struct expert_layer *l = &model->expert_layers[e];
        info.experts_bytes += l->n_experts * l->read_bytes;
        info.expert_token_bytes += model->shape.n_experts_per_token * l->read_bytes;
    }
    session_count_mul_adds(model, &info.mul_adds_per_token, &unused);
    model_close(model);
    if (i == 0)
        rc = add_head(m, &info, err);
    return rc != 0 ? rc : sized_give(out, &info, sizeof info);
}

uint64_t fm_model_message_bytes(const struct fm_model *m, unsigned n_sequences, unsigned n_rows)
{
    return wire_pass_bytes(n_sequences, n_rows, m->engine.model->shape.row_floats);
}
