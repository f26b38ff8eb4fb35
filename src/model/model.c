#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/plat.h"
#include "model/binder_internal.h"

struct weight expert_layer_weight(const struct expert_layer *layer, unsigned matrix,
                                  const void *slot)
{
    const struct record_matrix *m = &layer->record.matrices[matrix];
    struct weight w = {.quant = m->quant, .n_rows = m->n_rows, .n_cols = m->n_cols};
    for (unsigned p = 0; p < m->quant->n_parts; p++)
        w.parts[p] = (const char *)slot + m->part_offset[p];
    return w;
}

/* ---- stop tokens ---------------------------------------------------------------------------- */

bool model_is_stop_token(const struct model *model, int32_t id)
{
    for (unsigned i = 0; i < model->n_stop_tokens; i++)
        if (model->stop_tokens[i] == id)
            return true;
    return false;
}

bool model_add_stop_token(struct model *model, int32_t id)
{
    if (model_is_stop_token(model, id))
        return true;
    if (model->n_stop_tokens == LIMIT_STOP_TOKENS)
        return false;
    model->stop_tokens[model->n_stop_tokens++] = id;
    return true;
}

/* eos_token_id is a number or a list of numbers. */
static int add_stop_tokens(struct model *model, const json_t *object, const char *file,
                           struct fm_error *err)
{
    const json_t *value = jdoc_find(object, "eos_token_id");
    const size_t n = json_is_array(value) ? json_array_size(value) : value != NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number >= LIMIT_VOCAB) {
            char shown[80];
            return err_set(err, FM_ERR_FORMAT, "%s: field 'eos_token_id' is %s, expected token ids",
                           file, jdoc_show(value, shown, sizeof shown));
        }
        if (!model_add_stop_token(model, (int32_t)number))
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'eos_token_id' has more than %d different ids", file,
                           LIMIT_STOP_TOKENS);
    }
    return 0;
}

static int read_stop_tokens(struct model *model, const struct config *config, struct fm_error *err)
{
    int rc = add_stop_tokens(model, config_holder(config, "eos_token_id"), config->file, err);
    struct jdoc doc = {0};
    if (rc == 0)
        rc = source_read_json(model->source, "generation_config.json", LIMIT_CONFIG_JSON_BYTES,
                              &doc, err);
    if (rc == 0 && doc.root != NULL)
        rc = add_stop_tokens(model, doc.root, doc.file, err);
    jdoc_clear(&doc);
    return rc;
}

/* ---- dense weights -------------------------------------------------------------------------- */

/* The binder's lists, which live on until the dense weights are read. */
struct dense_plan {
    struct dense_read *reads;
    size_t n_reads;
    struct dense_pointer *pointers;
    size_t n_pointers;
};

static void plan_free(struct dense_plan *plan)
{
    if (plan == NULL)
        return;
    mem_free(plan->reads);
    mem_free(plan->pointers);
    mem_free(plan);
}

static int plan_take(struct model *model, struct binder *b, struct fm_error *err)
{
    struct dense_plan *plan = mem_new(1, sizeof *plan, "the list of reads", err);
    if (plan == NULL)
        return FM_ERR_NOMEM;
    *plan = (struct dense_plan){b->reads, b->n_reads, b->pointers, b->n_pointers};
    b->reads = NULL;
    b->pointers = NULL;
    model->dense_plan = plan;
    return 0;
}

static int by_place_on_disk(const void *a, const void *b)
{
    const struct dense_read *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static float transformed(float x, enum vector_transform transform)
{
    switch (transform) {
    case VECTOR_PLUS_ONE:
        return 1.0f + x;
    case VECTOR_NEG_EXP:
        return -fmath_exp_of(x);
    case VECTOR_PLAIN:
        break;
    }
    return x;
}

/* [n_rows, n_cols] in the file becomes [n_cols, n_rows]. */
static void decode_turned(const struct dense_read *r, const char *raw, float *dst)
{
    const struct quant *quant = r->vector_quant;
    const uint32_t n_rows = r->n_rows, n_cols = r->n / n_rows;
    const size_t element_bytes = quant_row_bytes(quant, 1); /* floats: one block a column */
    for (uint32_t i = 0; i < r->n; i++) {
        const void *one[] = {raw + i * element_bytes};
        quant->decode_row(quant, one, &dst[i % n_cols * n_rows + i / n_cols], 1);
    }
}

static int read_vector(const struct model *model, const struct dense_read *r, struct fm_error *err)
{
    const struct source_file *file = &model->source->files[r->file];
    void *raw = mem_new(r->bytes, 1, "a vector", err);
    if (raw == NULL)
        return FM_ERR_NOMEM;
    int rc = plat_read_at(file->fd, file->path, raw, r->bytes, r->offset, err);
    if (rc == 0) {
        float *dst = (float *)(void *)((char *)model->dense + r->dense_offset);
        const void *parts[] = {raw};
        if (r->n_rows > 1)
            decode_turned(r, raw, dst);
        else
            r->vector_quant->decode_row(r->vector_quant, parts, dst, r->n);
        for (uint32_t i = 0; i < r->n; i++)
            dst[i] = transformed(dst[i], r->transform);
    }
    mem_free(raw);
    return rc;
}

int model_load_dense(struct model *model, fm_progress_fn *progress, void *progress_ctx,
                     struct fm_error *err)
{
    struct dense_plan *plan = model->dense_plan;
    model->dense = mem_new_bulk(model->dense_bytes, "the dense weights", err);
    if (model->dense == NULL)
        return FM_ERR_NOMEM;
    qsort(plan->reads, plan->n_reads, sizeof *plan->reads, by_place_on_disk);
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < plan->n_reads; i++)
        total += plan->reads[i].bytes;
    for (size_t i = 0; i < plan->n_reads; i++) {
        const struct dense_read *r = &plan->reads[i];
        const struct source_file *file = &model->source->files[r->file];
        int rc = r->vector_quant != NULL
                     ? read_vector(model, r, err)
                     : plat_read_at(file->fd, file->path, (char *)model->dense + r->dense_offset,
                                    r->bytes, r->offset, err);
        if (rc != 0)
            return rc;
        done += r->bytes;
        if (progress != NULL)
            progress(progress_ctx, done, total);
    }
    for (size_t i = 0; i < plan->n_pointers; i++)
        *plan->pointers[i].at = (const char *)model->dense + plan->pointers[i].dense_offset;
    plan_free(plan);
    model->dense_plan = NULL;
    return 0;
}

/* ---- open and close ------------------------------------------------------------------------- */

static const struct model_family *find_family(const struct model_options *options,
                                              const char *model_type)
{
    for (const struct model_family *const *f = options->families; *f != NULL; f++)
        for (const char *const *type = (*f)->model_types; *type != NULL; type++)
            if (strcmp(*type, model_type) == 0)
                return *f;
    return NULL;
}

static int unknown_family(const struct model_options *options, const struct config *config,
                          struct fm_error *err)
{
    char known[256] = "";
    for (const struct model_family *const *f = options->families; *f != NULL; f++)
        for (const char *const *type = (*f)->model_types; *type != NULL; type++) {
            size_t used = strlen(known);
            (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", *type);
        }
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: field 'model_type' is \"%s\"; this version runs %s", config->file,
                   config->model_type, known);
}

static int bind_tensors(struct model *model, const struct config *config,
                        const struct model_options *options, struct fm_error *err)
{
    struct binder b;
    int rc = binder_init(&b, model, err);
    if (rc == 0)
        rc = model->family->open(config, &b, &model->shape, &model->arch, err);
    if (rc == 0)
        rc = b.rc != 0 ? b.rc : binder_finish(&b);
    model->dense_bytes = b.dense_bytes;
    model->dense_token_bytes = b.dense_bytes - b.lookup_bytes;
    if (rc == 0 && !options->metadata_only)
        rc = plan_take(model, &b, err);
    binder_clear(&b);
    return rc;
}

static int open_into(struct model *model, const struct model_options *options,
                     struct fm_error *err)
{
    struct config config;
    int rc = config_init(&config, &model->source->config, err);
    if (rc != 0)
        return rc;
    model->family = find_family(options, config.model_type);
    if (model->family == NULL)
        return unknown_family(options, &config, err);
    model->model_type = mem_strdup(config.model_type, err);
    if (model->model_type == NULL)
        return FM_ERR_NOMEM;
    rc = bind_tensors(model, &config, options, err);
    return rc != 0 ? rc : read_stop_tokens(model, &config, err);
}

int model_open_source(struct source *source, const struct model_options *options,
                      struct model **out, struct fm_error *err)
{
    *out = NULL;
    struct model *model = mem_new(1, sizeof *model, "the model", err);
    if (model == NULL) {
        source_close(source);
        return FM_ERR_NOMEM;
    }
    model->source = source;
    int rc = open_into(model, options, err);
    if (rc != 0) {
        model_close(model);
        return rc;
    }
    *out = model;
    return 0;
}

int model_open(const char *path, const struct model_options *options, struct model **out,
               struct fm_error *err)
{
    *out = NULL;
    struct source *source;
    int rc = source_open(path, &source, err);
    return rc != 0 ? rc : model_open_source(source, options, out, err);
}

void model_close(struct model *model)
{
    if (model == NULL)
        return;
    if (model->family != NULL)
        model->family->close(model->arch);
    for (uint32_t i = 0; i < model->n_expert_layers; i++) {
        mem_free(model->expert_layers[i].extents);
        mem_free(model->expert_layers[i].prefix);
    }
    mem_free(model->expert_layers);
    mem_free(model->model_type);
    mem_free(model->uses);
    mem_free(model->dense);
    plan_free(model->dense_plan);
    source_close(model->source);
    mem_free(model);
}
