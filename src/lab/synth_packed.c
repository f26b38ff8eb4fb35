/* Plans the packed form: dense.bin, experts-LLL.bin, and model.json when everything is written. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "flashmoe_lab.h"
#include "quant/interleave.h"
#include "lab/synth_internal.h"

static int plan_dense(struct synth_plan *plan, struct fm_error *err)
{
    struct packed *packed = plan->packed;
    struct synth_file *file = synth_plan_file(plan, err);
    packed->tensors = mem_new(plan->n_tensors, sizeof *packed->tensors, "the tensors", err);
    if (file == NULL || packed->tensors == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(file->name, sizeof file->name, PACKED_DENSE_NAME);
    file->sums = SYNTH_TENSOR_SUMS;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < plan->n_tensors; i++) {
        const struct synth_tensor *t = &plan->tensors[i];
        if (t->n_experts > 0)
            continue;
        struct packed_tensor *out = &packed->tensors[packed->n_tensors++];
        uint64_t part_offset[QUANT_MAX_PARTS];
        *out = (struct packed_tensor){.name = t->stem, .quant = t->quant, .n_dims = t->n_dims,
                                      .offset = file->bytes};
        memcpy(out->dims, t->dims, sizeof t->dims);
        if (!packed_tensor_layout(out, &out->bytes, part_offset))
            return err_set(err, FM_ERR_ARG, "'%s' is too large", t->stem);
        for (unsigned p = 0; rc == 0 && p < t->quant->n_parts; p++)
            rc = synth_file_add(file, (struct synth_span){
                .offset = part_offset[p], .tensor = (uint32_t)i, .part = p,
                .bytes = quant_part_bytes(t->quant, p, t->n_rows, t->n_cols)}, err);
        file->bytes += out->bytes;
    }
    packed->dense_bytes = file->bytes;
    return rc;
}

static int plan_records(struct synth_file *file, const struct packed_layer *layer, uint32_t first,
                        struct fm_error *err)
{
    int rc = 0;
    for (uint32_t e = 0; rc == 0 && e < layer->n_experts; e++)
        for (unsigned i = 0; rc == 0 && i < EXPERT_MATRICES; i++) {
            const struct record_matrix *m = &layer->record.matrices[i];
            for (unsigned p = 0; rc == 0 && p < m->quant->n_parts; p++)
                rc = synth_file_add(file, (struct synth_span){
                    .offset = e * layer->record.bytes + m->part_offset[p], .part = p,
                    .bytes = quant_part_bytes(m->quant, p, m->n_rows, m->n_cols),
                    .tensor = first + i, .expert = e}, err);
        }
    return rc;
}

/* Plans a layer. `first` is its gate; up and down follow. */
static int plan_layer(struct synth_plan *plan, uint32_t first, struct fm_error *err)
{
    const struct synth_tensor *t = &plan->tensors[first];
    struct packed_layer *layer = &plan->packed->layers[plan->packed->n_layers++];
    *layer = (struct packed_layer){.layer = t->layer, .n_experts = t->n_experts};
    for (unsigned i = 0; i < EXPERT_MATRICES; i++)
        layer->record.matrices[i] = (struct record_matrix){
            .quant = t[i].quant, .n_rows = (uint32_t)t[i].n_rows, .n_cols = (uint32_t)t[i].n_cols,
            .lies_interleaved = interleave_suits(t[i].quant, t[i].n_rows, t[i].n_cols)};
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%u.%s", t->layer,
                   synth_block(&plan->shape));
    layer->prefix = mem_strdup(prefix, err);
    layer->sums = mem_new(layer->n_experts, sizeof *layer->sums, "checksums", err);
    struct synth_file *file = synth_plan_file(plan, err);
    uint64_t all;
    if (layer->prefix == NULL || layer->sums == NULL || file == NULL)
        return FM_ERR_NOMEM;
    if (!record_layout(&layer->record) || !mem_mul(layer->record.bytes, t->n_experts, &all))
        return err_set(err, FM_ERR_ARG, "layer %u is too large", t->layer);
    (void)snprintf(file->name, sizeof file->name, PACKED_EXPERTS_NAME, t->layer);
    file->bytes = all;
    file->piece_bytes = layer->record.bytes;
    file->sums = SYNTH_PIECE_SUMS;
    file->piece_sums = layer->sums;
    file->record = &layer->record;
    return plan_records(file, layer, first, err);
}

static int plan_files(struct synth_plan *plan, struct fm_error *err)
{
    struct packed *packed = plan->packed;
    packed->files = mem_new(plan->n_texts, sizeof *packed->files, "the files", err);
    if (packed->files == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < plan->n_texts; i++) {
        struct packed_file *file = &packed->files[packed->n_files];
        file->name = mem_strdup(plan->texts[i].name, err);
        if (file->name == NULL)
            return FM_ERR_NOMEM;
        file->bytes = plan->texts[i].bytes;
        packed_sum_of(plan->texts[i].text, plan->texts[i].bytes, &file->sum);
        packed->n_files++;
    }
    return 0;
}

int synth_plan_packed(struct synth_plan *plan, struct fm_error *err)
{
    plan->is_directory = true;
    plan->packed = mem_new(1, sizeof *plan->packed, "a packed model", err);
    if (plan->packed == NULL)
        return FM_ERR_NOMEM;
    plan->packed->layers = mem_new(plan->shape.n[FM_SYNTH_LAYERS], sizeof *plan->packed->layers,
                                   "the layers", err);
    int rc = plan->packed->layers == NULL ? FM_ERR_NOMEM : synth_plan_tokenizer(plan, err);
    if (rc == 0)
        rc = plan_files(plan, err);
    if (rc == 0)
        rc = plan_dense(plan, err);
    for (size_t i = 0; rc == 0 && i < plan->n_tensors; i++)
        if (plan->tensors[i].n_experts > 0) {
            rc = plan_layer(plan, (uint32_t)i, err);
            i += EXPERT_MATRICES - 1;
        }
    return rc;
}

int synth_packed_model(struct synth_plan *plan, char **text, size_t *bytes, struct fm_error *err)
{
    json_t *provenance = json_pack("{s:s, s:s, s:I}", "synthetic", plan->shape.name, "flashmoe",
                                   FLASHMOE_VERSION, "seed", (json_int_t)plan->seed);
    if (plan->config == NULL || provenance == NULL) {
        json_decref(provenance);
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot create model.json");
    }
    int rc = packed_model_text(plan->packed, plan->config, &plan->conventions, provenance, text,
                               bytes, err);
    json_decref(provenance);
    return rc;
}
