#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/plat.h"
#include "model/binder_internal.h"
#include "model/dense_internal.h"
#include "model/unknown.h"
#include "text/pretok.h"

struct weight expert_layer_weight(const struct expert_layer *layer, unsigned matrix,
                                  const void *slot)
{
    const struct record_matrix *m = &layer->record.matrices[matrix];
    struct weight w = {.quant = m->quant, .n_rows = m->n_rows, .n_cols = m->n_cols,
                       .is_interleaved = m->is_interleaved};
    for (unsigned p = 0; p < m->quant->n_parts; p++)
        w.parts[p] = (const char *)slot + m->part_offset[p];
    return w;
}

bool expert_layer_changes(const struct model *model, const struct expert_layer *layer,
                          unsigned matrix)
{
    const struct record_matrix *m = &layer->record.matrices[matrix];
    const struct weight w = {.quant = m->quant, .n_rows = m->n_rows, .n_cols = m->n_cols,
                             .is_interleaved = m->lies_interleaved};
    return model->preparer != NULL && model->preparer->changes(&w);
}

void expert_layer_prepare(const struct model *model, const struct expert_layer *layer, void *slot)
{
    record_settle(&layer->record, slot);
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        const struct weight w = expert_layer_weight(layer, m, slot);
        if (expert_layer_changes(model, layer, m))
            model->preparer->prepare(&w, 0, 1);
    }
}

void model_prepare_for(struct model *model, const struct weight_preparer *preparer)
{
    model->preparer = preparer;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
            struct record_matrix *matrix = &model->expert_layers[i].record.matrices[m];
            matrix->is_interleaved = matrix->lies_interleaved ||
                                     expert_layer_changes(model, &model->expert_layers[i], m);
        }
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

/* `value` is an eos_token_id: a number, a list of numbers, or NULL. */
static int add_stop_tokens(struct model *model, const json_t *value, const char *file,
                           struct fm_error *err)
{
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
    int rc = add_stop_tokens(model, config_find(config, "eos_token_id"), config->file, err);
    struct jdoc doc = {0};
    if (rc == 0)
        rc = source_read_json(model->source, "generation_config.json", LIMIT_CONFIG_JSON_BYTES,
                              &doc, err);
    if (rc == 0 && doc.root != NULL)
        rc = add_stop_tokens(model, jdoc_find(doc.root, "eos_token_id"), doc.file, err);
    jdoc_clear(&doc);
    return rc;
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

/* Returns the family that both the checkpoint and its language model belong to. Only the family's
 * multimodal type has a text_config, and it must have one. */
static int choose_family(struct model *model, const struct config *config,
                         const struct model_options *options, struct fm_error *err)
{
    const struct model_family *family = find_family(options, config->root_type);
    if (family == NULL)
        return model_refuse_unknown(model->source, config, config->root_type, options->families,
                                    err);
    const bool is_multimodal =
        family->multimodal_type != NULL && strcmp(family->multimodal_type, config->root_type) == 0;
    if (is_multimodal != (config->text != config->root))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field 'text_config' is %s, but field 'model_type' is \"%s\": %s",
                       config->file, is_multimodal ? "missing" : "there", config->root_type,
                       is_multimodal ? "the language model's fields are expected there"
                                     : "only a multimodal checkpoint has it");
    if (find_family(options, config->model_type) != family)
        return model_refuse_unknown(model->source, config, config->model_type, options->families,
                                    err);
    model->family = family;
    return 0;
}

static int bind_tensors(struct model *model, const struct config *config,
                        const struct model_options *options, struct fm_error *err)
{
    struct binder b;
    int rc = binder_init(&b, model, err);
    b.wants_mtp = options->with_mtp;
    if (rc == 0)
        rc = model->family->open(config, &b, &model->shape, &model->arch, err);
    if (rc == 0)
        rc = b.rc != 0 ? b.rc : binder_finish(&b);
    model->dense_bytes = b.dense_bytes;
    model->dense_token_bytes = b.dense_bytes - b.lookup_bytes;
    if (model->has_mtp) {
        model->mtp_dense_bytes = b.dense_bytes - b.own_dense_bytes;
        model->dense_token_bytes = b.own_dense_bytes - b.own_lookup_bytes;
        model->has_large_mtp = model->expert_slot_bytes > b.own_slot_bytes;
    }
    if (rc == 0 && !options->metadata_only)
        rc = dense_plan_take(model, &b, err);
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
    config.experts_per_token = options->experts_per_token;
    model->first_layer = options->first_layer;
    model->end_layer = options->end_layer;
    model->has_head = options->head == HEAD_LOADED;
    model->leaves_head = options->head == HEAD_ELSEWHERE;
    rc = choose_family(model, &config, options, err);
    if (rc == 0)
        rc = config_check(&config, err);
    if (rc != 0)
        return rc;
    model->model_type = mem_strdup(config.model_type, err);
    if (model->model_type == NULL)
        return FM_ERR_NOMEM;
    rc = bind_tensors(model, &config, options, err);
    return rc != 0 ? rc : read_stop_tokens(model, &config, err);
}

void model_gguf_init(struct model_gguf *gguf, const struct model_family *const *families)
{
    unsigned n = 0;
    *gguf = (struct model_gguf){.names = {gguf->families, gguf->patterns}};
    for (const struct model_family *const *f = families; *f != NULL; f++)
        if ((*f)->gguf != NULL && n < MODEL_MAX_NAMES)
            gguf->families[n++] = (*f)->gguf;
    for (unsigned i = 0; i < MODEL_MAX_NAMES && pretok_at(i) != NULL; i++)
        gguf->patterns[i] = (struct gguf_pattern){
            pretok_at(i)->gguf_names, pretok_at(i)->regexes, pretok_at(i)->gguf_has_nfc,
            pretok_at(i)->gguf_ignores_merges};
}

int model_source_open(const char *path, const struct model_options *options, struct source **out,
                      struct fm_error *err)
{
    struct model_gguf gguf;
    const struct source_options source = {.gguf = &gguf.names, .spare_dir = options->spare_dir,
                                          .first_layer = options->first_layer,
                                          .end_layer = options->end_layer,
                                          .with_mtp = options->with_mtp,
                                          .n_layers = options->n_layers,
                                          .may_lack_experts = options->may_lack_experts,
                                          .may_be_part = options->may_be_part};
    model_gguf_init(&gguf, options->families);
    return source_open(path, &source, out, err);
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
    int rc = model_source_open(path, options, &source, err);
    return rc != 0 ? rc : model_open_source(source, options, out, err);
}

uint64_t model_identity(const struct model *model)
{
    XXH64_hash_t hash = XXH3_64bits(model->model_type, strlen(model->model_type));
    for (uint32_t i = 0; i < model_n_own_expert_layers(model); i++) {
        const struct expert_layer *l = &model->expert_layers[i];
        const uint64_t facts[] = {hash, l->layer, l->n_experts, l->read_bytes,
                                  l->extents[0].offset, l->extents[0].bytes};
        hash = XXH3_64bits(facts, sizeof facts);
        if (l->sums != NULL)
            hash ^= XXH3_64bits(l->sums, l->n_experts * sizeof *l->sums);
    }
    return hash;
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
    for (uint32_t i = 0; i < model->n_row_tables; i++)
        mem_free(model->row_tables[i].shards);
    mem_free(model->model_type);
    mem_free(model->uses);
    if (model->dense != NULL)
        memory_free(model->memory, model->dense);
    mem_free(model->host_copies);
    dense_plan_free(model->dense_plan);
    mem_free(model->turned);
    source_close(model->source);
    mem_free(model);
}
