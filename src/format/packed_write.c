/* Writes the text of model.json. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "format/packed.h"
#include "quant/interleave.h"

static json_t *sum_json(const struct packed_sum *sum)
{
    char hex[33];
    packed_sum_hex(sum, hex);
    return json_string(hex);
}

static json_t *uint_json(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *tensor_json(const struct packed_tensor *t)
{
    json_t *shape = json_array();
    for (unsigned d = 0; d < t->n_dims; d++)
        (void)json_array_append_new(shape, uint_json(t->dims[d]));
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", t->name, "format", t->quant->name,
                     "shape", shape, "offset", uint_json(t->offset), "xxh3_128",
                     sum_json(&t->sum));
}

static json_t *dense_json(const struct packed *packed)
{
    json_t *tensors = json_array();
    for (size_t i = 0; i < packed->n_tensors; i++)
        (void)json_array_append_new(tensors, tensor_json(&packed->tensors[i]));
    return json_pack("{s:s, s:o, s:o}", "file", PACKED_DENSE_NAME, "bytes",
                     uint_json(packed->dense_bytes), "tensors", tensors);
}

static json_t *matrix_json(const struct record_matrix *m)
{
    json_t *matrix = json_pack("{s:s, s:o, s:o}", "format", m->quant->name, "rows",
                               uint_json(m->n_rows), "cols", uint_json(m->n_cols));
    if (m->lies_interleaved)
        (void)json_object_set_new(matrix, "interleaved", uint_json(INTERLEAVE_ROWS));
    return matrix;
}

static bool has_interleaved(const struct packed_layer *layer)
{
    for (unsigned m = 0; m < EXPERT_MATRICES; m++)
        if (layer->record.matrices[m].lies_interleaved)
            return true;
    return false;
}

static json_t *layer_json(const struct packed_layer *layer, unsigned n_parts)
{
    char file[PACKED_NAME_BYTES];
    (void)snprintf(file, sizeof file, PACKED_EXPERTS_NAME, layer->layer);
    json_t *sums = json_array();
    for (uint32_t e = 0; e < layer->n_experts; e++)
        (void)json_array_append_new(sums, sum_json(&layer->sums[e]));
    const struct record_matrix *m = layer->record.matrices;
    json_t *entry = json_pack("{s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "layer",
                     uint_json(layer->layer), "file", file, "prefix", layer->prefix, "n_experts",
                     uint_json(layer->n_experts), "record_bytes", uint_json(layer->record.bytes),
                     "gate", matrix_json(&m[EXPERT_GATE]), "up", matrix_json(&m[EXPERT_UP]),
                     "down", matrix_json(&m[EXPERT_DOWN]), "xxh3_128", sums);
    if (layer->is_elsewhere)
        (void)json_object_set_new(entry, "elsewhere", json_true());
    json_t *parts = n_parts > 1 ? json_array() : NULL;
    for (unsigned i = 0; i < n_parts && parts != NULL; i++)
        (void)json_array_append_new(parts, uint_json(layer->part_bytes[i]));
    if (parts != NULL)
        (void)json_object_set_new(entry, "parts", parts);
    return entry;
}

static json_t *files_json(const struct packed *packed)
{
    json_t *files = json_array();
    for (size_t i = 0; i < packed->n_files; i++) {
        const struct packed_file *f = &packed->files[i];
        (void)json_array_append_new(files, json_pack("{s:s, s:o, s:o}", "name", f->name, "bytes",
                                                     uint_json(f->bytes), "xxh3_128",
                                                     sum_json(&f->sum)));
    }
    return files;
}

static json_t *model_json(const struct packed *packed, json_t *config,
                          const struct source_conventions *c, json_t *provenance)
{
    json_t *layers = json_array();
    int version = PACKED_VERSION_BY_ROWS;
    for (uint32_t i = 0; i < packed->n_layers; i++) {
        (void)json_array_append_new(layers, layer_json(&packed->layers[i], packed->n_parts));
        version = has_interleaved(&packed->layers[i]) ? PACKED_VERSION_MIXED : version;
    }
    version = packed->n_parts > 1 ? PACKED_VERSION_SPLIT : version;
    json_t *conventions = json_pack("{s:b, s:b, s:b}", "final_norms", c->has_final_norms,
                                    "final_decay", c->has_final_decay, "tiled_value_heads",
                                    c->has_tiled_value_heads);
    if (c->has_paired_rows) /* not in packed models of families without it */
        (void)json_object_set_new(conventions, "paired_rows", json_true());
    return json_pack("{s:s, s:i, s:O, s:O, s:o, s:o, s:o, s:o}", "format", PACKED_FORMAT,
                     "version", version, "provenance", provenance, "config", config,
                     "conventions", conventions, "files", files_json(packed), "dense",
                     dense_json(packed), "experts", layers);
}

/* Every failure here is a lack of memory: a NULL argument makes json_pack fail. */
int packed_model_text(const struct packed *packed, json_t *config,
                      const struct source_conventions *conventions, json_t *provenance,
                      char **text, size_t *bytes, struct fm_error *err)
{
    *text = NULL;
    json_t *root = model_json(packed, config, conventions, provenance);
    const size_t flags = JSON_INDENT(1) | JSON_REAL_PRECISION(17);
    /* Both calls return the length of the whole text; the first writes nothing. */
    size_t n = root != NULL ? json_dumpb(root, NULL, 0, flags) : 0;
    char *out = n > 0 ? mem_new(n + PACKED_SEAL_BYTES + 1, 1, "model.json", err) : NULL;
    if (out == NULL) {
        json_decref(root);
        return err_set(err, FM_ERR_NOMEM, "out of memory: model.json");
    }
    (void)json_dumpb(root, out, n, flags);
    json_decref(root);
    n -= strlen("\n}"); /* the seal closes the object */
    struct packed_sum sum;
    char hex[33];
    packed_sum_of(out, n, &sum);
    packed_sum_hex(&sum, hex);
    (void)snprintf(out + n, PACKED_SEAL_BYTES + 1, PACKED_SEAL, hex);
    *text = out;
    *bytes = n + PACKED_SEAL_BYTES;
    return 0;
}
