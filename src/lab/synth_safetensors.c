/* Plans a Hugging Face directory. With an affine format it is one as mlx-lm writes it: the experts
 * of a matrix are stacked, norms and convolution follow its convention, and config.json lists the
 * bit widths. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lab/synth_internal.h"

#define SPLIT_BYTES 4000000000u

struct builder {
    struct synth_plan *plan;
    uint64_t split_bytes;
    bool is_mlx;
    json_t *header, *weight_map; /* of the open shard; of all shards */
    uint64_t at, total_bytes;    /* offset in the shard's data; sum of all tensors */
    struct fm_error *err;
};

/* ---- shards ---------------------------------------------------------------------------------- */

static struct synth_file *shard(struct builder *b)
{
    return &b->plan->files[b->plan->n_files - 1];
}

static int shard_close(struct builder *b)
{
    if (b->header == NULL)
        return 0;
    struct synth_file *file = shard(b);
    char *text, *head;
    size_t bytes;
    int rc = synth_json_text(b->header, JSON_COMPACT, &text, &bytes, b->err);
    b->header = NULL;
    if (rc != 0)
        return rc;
    const uint64_t padded = mem_round_up(bytes, 8);
    head = mem_new(8 + padded, 1, "a header", b->err);
    if (head != NULL) {
        memcpy(head, &padded, 8);
        memset(head + 8, ' ', padded);
        memcpy(head + 8, text, bytes);
    }
    mem_free(text);
    if (head == NULL)
        return FM_ERR_NOMEM;
    file->head = head;
    file->head_bytes = 8 + padded;
    for (size_t i = 0; i < file->n_spans; i++)
        file->spans[i].offset += file->head_bytes;
    file->bytes = file->head_bytes + b->at;
    b->total_bytes += b->at;
    return 0;
}

static int shard_open(struct builder *b)
{
    int rc = shard_close(b);
    if (rc != 0)
        return rc;
    b->header = json_pack("{s:{s:s}}", "__metadata__", "format", b->is_mlx ? "mlx" : "pt");
    b->at = 0;
    return synth_plan_file(b->plan, b->err) != NULL ? 0 : FM_ERR_NOMEM;
}

/* Announces a tensor of `bytes` bytes. The caller adds that many. */
static int add_entry(struct builder *b, const char *name, const char *dtype, const uint64_t dims[],
                     unsigned n_dims, uint64_t bytes)
{
    if (b->header == NULL || (b->at > 0 && b->at + bytes > b->split_bytes)) {
        int rc = shard_open(b);
        if (rc != 0)
            return rc;
    }
    json_t *shape = json_array();
    for (unsigned d = 0; d < n_dims; d++)
        (void)json_array_append_new(shape, json_integer((json_int_t)dims[d]));
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape,
                              "data_offsets", (json_int_t)b->at, (json_int_t)(b->at + bytes));
    if (json_object_set_new(b->header, name, entry) != 0 ||
        json_object_set_new(b->weight_map, name,
                            json_integer((json_int_t)b->plan->n_files)) != 0)
        return err_set(b->err, FM_ERR_NOMEM, "out of memory: cannot create a header");
    return 0;
}

static int add_part(struct builder *b, uint32_t tensor, uint32_t expert, unsigned part)
{
    const struct synth_tensor *t = &b->plan->tensors[tensor];
    const uint64_t bytes = quant_part_bytes(t->quant, part, t->n_rows, t->n_cols);
    int rc = synth_file_add(shard(b), (struct synth_span){.offset = b->at, .bytes = bytes,
                                                          .tensor = tensor, .expert = expert,
                                                          .part = part}, b->err);
    b->at += bytes;
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const char *dtype_of(const struct quant *quant)
{
    return quant == &quant_f32 ? "F32" : quant == &quant_f16 ? "F16" : "BF16";
}

/* Adds one tensor with a matrix of each of n experts, or of a matrix outside the experts (n = 0):
 * its floats, or one part of its affine groups. */
static int add_stacked(struct builder *b, uint32_t tensor, const char *module, unsigned part)
{
    static const char *const suffixes[] = {"weight", "scales", "biases"};
    const struct synth_tensor *t = &b->plan->tensors[tensor];
    const bool is_affine = t->quant->kind == QUANT_AFFINE;
    const uint32_t n = t->n_experts > 0 ? t->n_experts : 1;
    uint64_t dims[4] = {n};
    unsigned n_dims = t->n_experts > 0;
    for (unsigned d = 0; d < t->n_dims; d++)
        dims[n_dims++] = t->dims[d];
    if (b->is_mlx && t->n_dims == 3) { /* the convolution: [channels, 1, kernel] */
        dims[1] = t->dims[2];
        dims[2] = t->dims[1];
    }
    if (is_affine)
        dims[n_dims - 1] = part == 0 ? t->n_cols * t->quant->bits / 32
                                     : t->n_cols / t->quant->block;
    const char *dtype = !is_affine ? dtype_of(t->quant)
                        : part == 0 ? "U32" : dtype_of(t->quant->scale);
    char name[2 * SYNTH_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s%s", module, part > 0 || is_affine ? "." : "",
                   part > 0 || is_affine ? suffixes[part] : "");
    int rc = add_entry(b, name, dtype, dims, n_dims,
                       n * quant_part_bytes(t->quant, part, t->n_rows, t->n_cols));
    for (uint32_t e = 0; rc == 0 && e < n; e++)
        rc = add_part(b, tensor, e, part);
    return rc;
}

/* Adds all parts of a tensor. `name` ends in .weight if the tensor may be quantised. */
static int add_whole(struct builder *b, uint32_t tensor, const char *name)
{
    const struct quant *quant = b->plan->tensors[tensor].quant;
    if (quant->kind != QUANT_AFFINE)
        return add_stacked(b, tensor, name, 0);
    char module[2 * SYNTH_NAME_BYTES];
    (void)snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    int rc = 0;
    for (unsigned p = 0; rc == 0 && p < quant->n_parts; p++)
        rc = add_stacked(b, tensor, module, p);
    return rc;
}

static void mlx_name(const struct synth_plan *plan, const struct synth_tensor *t,
                     char name[2 * SYNTH_NAME_BYTES])
{
    const char *root = plan->shape.family->multimodal_type != NULL ? "language_model." : "";
    if (t->n_experts == 0)
        (void)snprintf(name, 2 * SYNTH_NAME_BYTES, "%s%s", root, t->stem);
    else
        (void)snprintf(name, 2 * SYNTH_NAME_BYTES, "%smodel.layers.%u.%sswitch_mlp.%s.weight",
                       root, t->layer, synth_block(&plan->shape), t->matrix);
}

/* Adds a tensor [E, 2I, H]: up follows gate in each expert. */
static int add_gate_up(struct builder *b, uint32_t gate)
{
    const struct synth_tensor *t = &b->plan->tensors[gate];
    const uint64_t dims[] = {t->n_experts, 2 * t->n_rows, t->n_cols};
    const uint64_t bytes = t->n_experts * 2 * quant_matrix_bytes(t->quant, t->n_rows, t->n_cols);
    char name[SYNTH_NAME_BYTES];
    (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", t->layer);
    int rc = add_entry(b, name, dtype_of(t->quant), dims, 3, bytes);
    for (uint32_t e = 0; rc == 0 && e < t->n_experts; e++) {
        rc = add_part(b, gate, e, 0);
        if (rc == 0)
            rc = add_part(b, gate + 1, e, 0);
    }
    return rc;
}

/* Adds the three matrices from `gate` on, one tensor per expert. */
static int add_experts(struct builder *b, uint32_t gate)
{
    int rc = 0;
    for (uint32_t e = 0; rc == 0 && e < b->plan->tensors[gate].n_experts; e++)
        for (uint32_t i = 0; rc == 0 && i < EXPERT_MATRICES; i++) {
            const struct synth_tensor *t = &b->plan->tensors[gate + i];
            char name[SYNTH_NAME_BYTES];
            synth_tensor_name(t, e, name);
            rc = add_entry(b, name, dtype_of(t->quant), t->dims, 2,
                           quant_matrix_bytes(t->quant, t->n_rows, t->n_cols));
            if (rc == 0)
                rc = add_part(b, gate + i, e, 0);
        }
    return rc;
}

static int add_tensors(struct builder *b)
{
    const struct synth_plan *plan = b->plan;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < plan->n_tensors; i++) {
        const struct synth_tensor *t = &plan->tensors[i];
        char name[2 * SYNTH_NAME_BYTES];
        if (b->is_mlx) {
            mlx_name(plan, t, name);
            rc = add_whole(b, i, name);
        } else if (t->n_experts == 0) {
            rc = add_whole(b, i, t->stem);
        } else if (plan->shape.family->has_stacked_experts) {
            (void)snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", t->layer);
            rc = add_gate_up(b, i);
            i += EXPERT_MATRICES - 1;
            if (rc == 0)
                rc = add_whole(b, i, name);
        } else {
            rc = add_experts(b, i);
            i += EXPERT_MATRICES - 1;
        }
    }
    return rc;
}

/* ---- config.json and the index --------------------------------------------------------------- */

static json_t *width_json(const struct quant *quant)
{
    if (quant->kind != QUANT_AFFINE)
        return json_false();
    return json_pack("{s:i, s:i, s:s}", "group_size", (int)quant->block, "bits", (int)quant->bits,
                     "mode", "affine");
}

/* Returns the bit width of the experts, or the first there is, and every module that has
 * another. */
static json_t *quantization_json(const struct synth_plan *plan)
{
    const struct quant *max = NULL;
    for (size_t i = 0; i < plan->n_tensors; i++) {
        const struct synth_tensor *t = &plan->tensors[i];
        if (t->quant->kind == QUANT_AFFINE && (max == NULL || t->role == SYNTH_EXPERT))
            max = t->quant;
    }
    json_t *out = width_json(max);
    for (size_t i = 0; i < plan->n_tensors; i++) {
        const struct synth_tensor *t = &plan->tensors[i];
        if (t->role == SYNTH_VECTOR || t->quant == max)
            continue;
        char name[2 * SYNTH_NAME_BYTES];
        mlx_name(plan, t, name);
        name[strlen(name) - strlen(".weight")] = '\0';
        (void)json_object_set_new(out, name, width_json(t->quant));
    }
    return out;
}

static json_t *config_json(const struct builder *b)
{
    const struct synth_tensor *first = &b->plan->tensors[0];
    const char *dtype = first->quant == &quant_f32   ? "float32"
                        : first->quant == &quant_f16 ? "float16"
                                                     : "bfloat16";
    json_t *config = json_deep_copy(b->plan->config);
    (void)json_object_set_new(config, "dtype", json_string(dtype));
    if (!b->is_mlx)
        return config;
    const struct synth_family *family = b->plan->shape.family;
    if (family->multimodal_type != NULL)
        config = json_pack("{s:[s], s:s, s:b, s:o}", "architectures",
                           family->multimodal_class_name, "model_type", family->multimodal_type,
                           "tie_word_embeddings", 0, "text_config", config);
    json_t *quantization = quantization_json(b->plan);
    (void)json_object_set(config, "quantization", quantization);
    (void)json_object_set_new(config, "quantization_config", quantization);
    return config;
}

static int name_shards(struct builder *b)
{
    struct synth_plan *plan = b->plan;
    if (plan->n_files == 1) {
        (void)snprintf(plan->files[0].name, sizeof plan->files[0].name, "model.safetensors");
        return 0;
    }
    for (size_t i = 0; i < plan->n_files; i++)
        (void)snprintf(plan->files[i].name, sizeof plan->files[i].name,
                       "model-%05zu-of-%05zu.safetensors", i + 1, plan->n_files);
    json_t *map = json_object();
    for (void *i = json_object_iter(b->weight_map); i != NULL;
         i = json_object_iter_next(b->weight_map, i)) {
        const json_int_t number = json_integer_value(json_object_iter_value(i));
        (void)json_object_set_new(map, json_object_iter_key(i),
                                  json_string(plan->files[number - 1].name));
    }
    return synth_plan_json(plan, "model.safetensors.index.json",
                           json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                                     (json_int_t)b->total_bytes, "weight_map", map), b->err);
}

int synth_plan_safetensors(struct synth_plan *plan, uint64_t split_bytes, struct fm_error *err)
{
    struct builder b = {.plan = plan, .err = err, .weight_map = json_object(),
                        .split_bytes = split_bytes > 0 ? split_bytes : SPLIT_BYTES};
    plan->is_directory = true;
    for (size_t i = 0; i < plan->n_tensors; i++)
        b.is_mlx |= plan->tensors[i].quant->kind == QUANT_AFFINE;
    plan->conventions.has_final_norms = b.is_mlx && plan->shape.family->has_zero_centred_norms;
    int rc = add_tensors(&b);
    if (rc == 0)
        rc = shard_close(&b);
    if (rc == 0)
        rc = name_shards(&b);
    if (rc == 0)
        rc = synth_plan_json(plan, "config.json", config_json(&b), err);
    if (rc == 0)
        rc = synth_plan_tokenizer(plan, err);
    json_decref(b.header);
    json_decref(b.weight_map);
    return rc;
}
