#include "format/packed.h"

#include <stdio.h>
#include <string.h>

#ifdef FLASHMOE_XXH_DISPATCH
/* The same functions for the widest vectors of the processor, up to three times as fast. */
#include <xxh_x86dispatch.h>
#endif

#include "base/mem.h"
#include "base/plat.h"
#include "format/refuse.h"
#include "quant/interleave.h"

#define NAME_BYTES 512

static const char *const matrix_fields[EXPERT_MATRICES] = {"gate", "up", "down"};

/* ---- checksums ------------------------------------------------------------------------------ */

static void set_sum(struct packed_sum *sum, XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(sum->bytes, canonical.digest, sizeof sum->bytes);
}

void packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum)
{
    set_sum(sum, XXH3_128bits(data, bytes));
}

void packed_hash_add(XXH3_state_t *hash, const void *data, size_t bytes)
{
    (void)XXH3_128bits_update(hash, data, bytes); /* fails only for a NULL state */
}

void packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum)
{
    set_sum(sum, XXH3_128bits_digest(hash));
}

void packed_sum_hex(const struct packed_sum *sum, char hex[33])
{
    for (unsigned i = 0; i < sizeof sum->bytes; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", sum->bytes[i]);
}

bool packed_sum_equal(const struct packed_sum *a, const struct packed_sum *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool sum_parse(const char *hex, struct packed_sum *sum)
{
    if (hex == NULL || strlen(hex) != 2 * sizeof sum->bytes)
        return false;
    for (unsigned i = 0; i < sizeof sum->bytes; i++) {
        int high = digit_of(hex[2 * i]), low = digit_of(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        sum->bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* ---- layout --------------------------------------------------------------------------------- */

uint64_t packed_tensor_rows(const struct packed_tensor *t)
{
    uint64_t n_rows = 1;
    for (unsigned d = 0; d + 1 < t->n_dims; d++)
        n_rows *= t->dims[d];
    return n_rows;
}

bool packed_tensor_layout(const struct packed_tensor *t, uint64_t *bytes,
                          uint64_t part_offset[QUANT_MAX_PARTS])
{
    const uint64_t n_cols = t->dims[t->n_dims - 1];
    uint64_t n_values = n_cols, end = t->offset, limit;
    bool fits = n_cols % t->quant->block == 0;
    for (unsigned d = 0; d + 1 < t->n_dims; d++)
        fits = fits && mem_mul(n_values, t->dims[d], &n_values);
    fits = fits && record_place(t->quant, packed_tensor_rows(t), n_cols, &end, part_offset) &&
           mem_add(end, RECORD_PART_ALIGN, &limit);
    *bytes = fits ? mem_round_up(end, RECORD_PART_ALIGN) - t->offset : 0;
    return fits;
}

/* ---- model.json ----------------------------------------------------------------------------- */

struct parser {
    struct source *source;
    struct packed *packed;
    const char *label;
    const json_t *root;
    uint64_t version;
    char *names;      /* where the next tensor's name is written */
    uint64_t dense_at; /* where the next tensor of dense.bin begins */
    struct fm_error *err;
};

static int wrong(struct parser *p, const char *where, const char *field, const json_t *value,
                 const char *expected)
{
    char shown[80];
    return err_set(p->err, FM_ERR_FORMAT, "%s: %.160s: field '%s' is %s, expected %s", p->label,
                   where, field, value == NULL ? "missing" : jdoc_show(value, shown, sizeof shown),
                   expected);
}

static int read_sum(struct parser *p, const json_t *object, const char *where,
                    struct packed_sum *sum)
{
    const json_t *value = json_object_get(object, "xxh3_128");
    if (sum_parse(json_string_value(value), sum))
        return 0;
    return wrong(p, where, "xxh3_128", value, "32 hexadecimal digits");
}

static int read_format(struct parser *p, const json_t *object, const char *where,
                       const struct quant **quant)
{
    const json_t *value = json_object_get(object, "format");
    *quant = json_is_string(value) ? quant_find(json_string_value(value)) : NULL;
    if (*quant != NULL)
        return 0;
    return wrong(p, where, "format", value, "a number format this version knows");
}

static int read_dims(struct parser *p, const json_t *entry, struct tensor_info *t)
{
    const json_t *shape = json_object_get(entry, "shape");
    const size_t n = json_array_size(shape);
    if (n == 0 || n > LIMIT_TENSOR_DIMS)
        return wrong(p, t->name, "shape", shape, "a list of dimensions");
    for (size_t i = 0; i < n; i++) {
        json_int_t dim = json_integer_value(json_array_get(shape, i));
        if (dim < 1)
            return wrong(p, t->name, "shape", shape, "dimensions of at least 1");
        t->dims[i] = (uint64_t)dim;
    }
    t->n_dims = (unsigned)n;
    return 0;
}

/* Reads a tensor of dense.bin. They are stored in the listed order, each at the next multiple of
 * RECORD_PART_ALIGN. */
static int read_tensor(struct parser *p, const json_t *entry, struct tensor_info *t,
                       struct packed_tensor *out)
{
    uint64_t offset, part_offset[QUANT_MAX_PARTS];
    int rc = read_format(p, entry, t->name, &t->quant);
    if (rc == 0)
        rc = read_dims(p, entry, t);
    if (rc == 0)
        rc = read_sum(p, entry, t->name, &out->sum);
    if (rc == 0)
        rc = jdoc_uint(entry, p->label, "offset", 0, INT64_MAX, &offset, p->err);
    if (rc != 0)
        return rc;
    out->name = t->name;
    out->quant = t->quant;
    out->n_dims = t->n_dims;
    memcpy(out->dims, t->dims, sizeof out->dims);
    out->offset = offset;
    if (offset != p->dense_at)
        return wrong(p, t->name, "offset", json_object_get(entry, "offset"),
                     "the end of the tensor before it");
    if (!packed_tensor_layout(out, &out->bytes, part_offset))
        return wrong(p, t->name, "shape", json_object_get(entry, "shape"),
                     "one that its format can hold");
    p->dense_at += out->bytes;
    t->dtype = t->quant->name;
    t->n_parts = t->quant->n_parts;
    const uint64_t n_cols = t->dims[t->n_dims - 1], n_rows = packed_tensor_rows(out);
    for (unsigned i = 0; i < t->n_parts; i++)
        t->parts[i] = (struct tensor_part){
            .offset = part_offset[i],
            .bytes = quant_part_bytes(t->quant, i, n_rows, n_cols),
        };
    return 0;
}

static const char *keep_name(struct parser *p, const char *stem, const char *rest)
{
    char *name = p->names;
    size_t n = strlen(stem), m = strlen(rest) + 1;
    memcpy(name, stem, n);
    memcpy(name + n, rest, m);
    p->names += n + m;
    return name;
}

static int read_dense(struct parser *p)
{
    const json_t *dense = json_object_get(p->root, "dense");
    const json_t *list = json_object_get(dense, "tensors");
    for (size_t i = 0; i < p->packed->n_tensors; i++) {
        const json_t *entry = json_array_get(list, i);
        struct tensor_info *t = &p->source->tensors[p->source->n_tensors++];
        t->name = keep_name(p, json_string_value(json_object_get(entry, "name")), "");
        int rc = read_tensor(p, entry, t, &p->packed->tensors[i]);
        if (rc != 0)
            return rc;
    }
    p->packed->dense_bytes = p->dense_at;
    uint64_t bytes;
    int rc = jdoc_uint(dense, p->label, "bytes", 0, INT64_MAX, &bytes, p->err);
    if (rc == 0 && bytes != p->dense_at)
        rc = wrong(p, "dense", "bytes", json_object_get(dense, "bytes"),
                   "the end of the last tensor");
    return rc;
}

static int read_matrix(struct parser *p, const json_t *entry, unsigned m,
                       struct record_matrix *out)
{
    const json_t *object = json_object_get(entry, matrix_fields[m]);
    uint64_t rows = 0, cols = 0;
    int rc = read_format(p, object, matrix_fields[m], &out->quant);
    if (rc == 0)
        rc = jdoc_uint(object, p->label, "rows", 1, LIMIT_INTERMEDIATE, &rows, p->err);
    if (rc == 0)
        rc = jdoc_uint(object, p->label, "cols", 1, LIMIT_INTERMEDIATE, &cols, p->err);
    if (rc == 0 && cols % out->quant->block != 0)
        rc = wrong(p, matrix_fields[m], "cols", json_object_get(object, "cols"),
                   "a multiple of the format's block");
    out->n_rows = (uint32_t)rows;
    out->n_cols = (uint32_t)cols;
    const json_t *interleaved = json_object_get(object, "interleaved");
    if (rc != 0 || interleaved == NULL || p->version == PACKED_VERSION_BY_ROWS)
        return rc;
    out->lies_interleaved = json_integer_value(interleaved) == INTERLEAVE_ROWS;
    if (!out->lies_interleaved || !interleave_suits(out->quant, rows, cols))
        return wrong(p, matrix_fields[m], "interleaved", interleaved,
                     "16, for affine groups of 4 or 8 bits and rows in whole blocks of 16");
    return 0;
}

static int read_record_sums(struct parser *p, const json_t *entry, struct packed_layer *layer)
{
    const json_t *list = json_object_get(entry, "xxh3_128");
    if (json_array_size(list) != layer->n_experts)
        return err_set(p->err, FM_ERR_FORMAT,
                       "%s: layer %u: field 'xxh3_128' has %zu checksums, expected one for each of "
                       "%u experts",
                       p->label, layer->layer, json_array_size(list), layer->n_experts);
    layer->sums = mem_new(layer->n_experts, sizeof *layer->sums, "checksums", p->err);
    if (layer->sums == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t e = 0; e < layer->n_experts; e++)
        if (!sum_parse(json_string_value(json_array_get(list, e)), &layer->sums[e]))
            return wrong(p, layer->prefix, "xxh3_128", json_array_get(list, e),
                         "32 hexadecimal digits");
    return 0;
}

/* Reads how a record is cut, for a model that is split over several folders. All layers have as
 * many parts. */
static int read_parts(struct parser *p, const json_t *entry, uint32_t index,
                      struct packed_layer *layer)
{
    const json_t *list = json_object_get(entry, "parts");
    layer->part_bytes[0] = layer->record.bytes;
    if (index == 0)
        p->packed->n_parts = list != NULL ? (unsigned)json_array_size(list) : 1;
    if (list == NULL && p->packed->n_parts == 1)
        return 0;
    const size_t n = json_array_size(list);
    uint64_t sum = 0;
    bool is_right = n >= 2 && n <= SOURCE_MAX_DISKS && n == p->packed->n_parts &&
                    p->version >= PACKED_VERSION_SPLIT;
    for (size_t i = 0; is_right && i < n; i++) {
        const json_int_t bytes = json_integer_value(json_array_get(list, i));
        is_right = bytes > 0 && bytes % MEM_PAGE == 0 &&
                   mem_add(sum, (uint64_t)bytes, &sum);
        layer->part_bytes[i] = (uint64_t)bytes;
    }
    if (is_right && sum == layer->record.bytes)
        return 0;
    return wrong(p, layer->prefix, "parts", list, "for each folder the bytes of a record that it "
                 "has: multiples of 4096 that add up to record_bytes, as many in every layer");
}

static void add_expert_tensor(struct parser *p, const struct packed_layer *layer, unsigned m,
                              unsigned file)
{
    static const char *const names[] = {"experts.gate_proj", "experts.up_proj",
                                        "experts.down_proj"};
    const struct record_matrix *matrix = &layer->record.matrices[m];
    struct tensor_info *t = &p->source->tensors[p->source->n_tensors++];
    *t = (struct tensor_info){
        .name = keep_name(p, layer->prefix, names[m]),
        .dtype = matrix->quant->name, .quant = matrix->quant, .n_dims = 3,
        .dims = {layer->n_experts, matrix->n_rows, matrix->n_cols},
        .n_parts = matrix->quant->n_parts, .records = layer,
    };
    for (unsigned i = 0; i < t->n_parts; i++)
        t->parts[i] = (struct tensor_part){
            .offset = matrix->part_offset[i],
            .bytes = layer->n_experts *
                     quant_part_bytes(matrix->quant, i, matrix->n_rows, matrix->n_cols),
            .stride = layer->record.bytes, .file = file,
        };
}

static int read_layer(struct parser *p, const json_t *entry, uint32_t index)
{
    struct packed_layer *layer = &p->packed->layers[index];
    const uint64_t min = index == 0 ? 0 : (uint64_t)layer[-1].layer + 1;
    uint64_t number = 0, n_experts = 0, record_bytes = 0;
    const char *prefix = NULL;
    int rc = jdoc_uint(entry, p->label, "layer", min, LIMIT_LAYERS, &number, p->err);
    if (rc == 0)
        rc = jdoc_uint(entry, p->label, "n_experts", 1, LIMIT_EXPERTS, &n_experts, p->err);
    if (rc == 0)
        rc = jdoc_uint(entry, p->label, "record_bytes", 1, INT64_MAX, &record_bytes, p->err);
    if (rc == 0)
        rc = jdoc_string(entry, p->label, "prefix", &prefix, p->err);
    layer->layer = (uint32_t)number;
    layer->n_experts = (uint32_t)n_experts;
    if (rc == 0)
        layer->prefix = mem_strdup(prefix, p->err);
    if (rc == 0 && layer->prefix == NULL)
        rc = FM_ERR_NOMEM;
    for (unsigned m = 0; rc == 0 && m < EXPERT_MATRICES; m++)
        rc = read_matrix(p, entry, m, &layer->record.matrices[m]);
    uint64_t all;
    if (rc == 0 && (!record_layout(&layer->record) || layer->record.bytes != record_bytes ||
                    !mem_mul(record_bytes, n_experts, &all)))
        rc = wrong(p, layer->prefix, "record_bytes", json_object_get(entry, "record_bytes"),
                   "the size that follows from the formats and shapes of its matrices");
    if (rc == 0)
        rc = read_parts(p, entry, index, layer);
    if (rc == 0)
        rc = read_record_sums(p, entry, layer);
    if (rc == 0)
        rc = jdoc_bool_or(entry, p->label, "elsewhere", false, &layer->is_elsewhere, p->err);
    for (unsigned m = 0; rc == 0 && m < EXPERT_MATRICES; m++)
        add_expert_tensor(p, layer, m, index + 1);
    return rc;
}

static int read_files(struct parser *p)
{
    const json_t *list = json_object_get(p->root, "files");
    struct packed *packed = p->packed;
    packed->files = mem_new(json_array_size(list), sizeof *packed->files, "the files", p->err);
    if (packed->files == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        struct packed_file *file = &packed->files[i];
        const char *name = NULL;
        int rc = jdoc_string(entry, p->label, "name", &name, p->err);
        if (rc == 0 && (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL))
            rc = wrong(p, "files", "name", json_object_get(entry, "name"),
                       "the name of a file in the same directory");
        if (rc == 0)
            rc = jdoc_uint(entry, p->label, "bytes", 0, INT64_MAX, &file->bytes, p->err);
        if (rc == 0)
            rc = read_sum(p, entry, name, &file->sum);
        if (rc != 0)
            return rc;
        file->name = mem_strdup(name, p->err);
        if (file->name == NULL)
            return FM_ERR_NOMEM;
        packed->n_files++;
    }
    return 0;
}

/* Allocates all tensors, followed by their names. */
static int make_room(struct parser *p)
{
    const json_t *list = json_object_get(json_object_get(p->root, "dense"), "tensors");
    const json_t *layers = json_object_get(p->root, "experts");
    const size_t n_dense = json_array_size(list), n_layers = json_array_size(layers);
    uint64_t names_bytes = 0;
    for (size_t i = 0; i < n_dense; i++) {
        const json_t *name = json_object_get(json_array_get(list, i), "name");
        if (!json_is_string(name) || json_string_length(name) >= NAME_BYTES)
            return wrong(p, "dense", "tensors", json_array_get(list, i), "a tensor with a name");
        names_bytes += json_string_length(name) + 1;
    }
    for (size_t i = 0; i < n_layers; i++) {
        const json_t *prefix = json_object_get(json_array_get(layers, i), "prefix");
        names_bytes += EXPERT_MATRICES * (json_string_length(prefix) + NAME_BYTES);
    }
    if (n_layers > LIMIT_LAYERS)
        return err_set(p->err, FM_ERR_FORMAT, "%s: %zu layers of experts, more than the limit of "
                       "%d", p->label, n_layers, LIMIT_LAYERS);
    /* All bounded by the text, which is in memory. */
    const uint64_t n = n_dense + EXPERT_MATRICES * n_layers;
    p->source->tensors = mem_new(n * sizeof(struct tensor_info) + names_bytes, 1,
                                 "tensor descriptions", p->err);
    p->packed->tensors = mem_new(n_dense, sizeof *p->packed->tensors, "tensors", p->err);
    p->packed->layers = mem_new(n_layers, sizeof *p->packed->layers, "layers", p->err);
    if (p->source->tensors == NULL || p->packed->tensors == NULL || p->packed->layers == NULL)
        return FM_ERR_NOMEM;
    p->names = (char *)(p->source->tensors + n);
    p->packed->n_tensors = n_dense;
    p->packed->n_layers = (uint32_t)n_layers;
    return 0;
}

static int read_head(struct parser *p)
{
    const char *format = NULL;
    int rc = jdoc_string(p->root, p->label, "format", &format, p->err);
    if (rc == 0 && strcmp(format, PACKED_FORMAT) != 0)
        rc = err_set(p->err, FM_ERR_FORMAT, "%s: field 'format' is \"%.60s\", expected \"%s\"",
                     p->label, format, PACKED_FORMAT);
    if (rc == 0)
        rc = jdoc_uint(p->root, p->label, "version", 1, INT64_MAX, &p->version, p->err);
    if (rc == 0 && p->version > PACKED_VERSION)
        rc = err_set(p->err, FM_ERR_UNSUPPORTED,
                     "%s: field 'version' is %llu, but this version of flashmoe reads at most %d: "
                     "use a newer flashmoe, or pack the model again", p->label,
                     (unsigned long long)p->version, PACKED_VERSION);
    struct source_conventions *c = &p->source->conventions;
    const json_t *object = json_object_get(p->root, "conventions");
    if (rc == 0)
        rc = jdoc_bool_or(object, p->label, "final_norms", false, &c->has_final_norms, p->err);
    if (rc == 0)
        rc = jdoc_bool_or(object, p->label, "final_decay", false, &c->has_final_decay, p->err);
    if (rc == 0)
        rc = jdoc_bool_or(object, p->label, "tiled_value_heads", false,
                          &c->has_tiled_value_heads, p->err);
    if (rc == 0)
        rc = jdoc_bool_or(object, p->label, "paired_rows", false, &c->has_paired_rows, p->err);
    return rc;
}

static int read_config(struct parser *p)
{
    json_t *config = json_object_get(p->root, "config");
    if (!json_is_object(config))
        return wrong(p, "the model", "config", config, "an object");
    p->source->config.file = mem_strdup(p->label, p->err);
    if (p->source->config.file == NULL)
        return FM_ERR_NOMEM;
    p->source->config.root = json_incref(config);
    return refuse_quantised(&p->source->config, p->err);
}

int packed_parse_unsealed(struct source *source, const char *label, const char *text, size_t bytes,
                          struct fm_error *err)
{
    source->kind = SOURCE_PACKED;
    source->packed = mem_new(1, sizeof *source->packed, "a packed model", err);
    if (source->packed == NULL)
        return FM_ERR_NOMEM;
    struct jdoc doc;
    int rc = jdoc_parse(&doc, label, text, bytes, err);
    struct parser p = {.source = source, .packed = source->packed, .label = label,
                       .root = doc.root, .err = err};
    if (rc == 0)
        rc = read_head(&p);
    if (rc == 0)
        rc = read_config(&p);
    if (rc == 0)
        rc = read_files(&p);
    if (rc == 0)
        rc = make_room(&p);
    if (rc == 0)
        rc = read_dense(&p);
    const json_t *layers = json_object_get(p.root, "experts");
    for (uint32_t i = 0; rc == 0 && i < p.packed->n_layers; i++)
        rc = read_layer(&p, json_array_get(layers, i), i);
    jdoc_clear(&doc);
    return rc;
}

int packed_parse(struct source *source, const char *label, const char *text, size_t bytes,
                 struct fm_error *err)
{
    char seal[PACKED_SEAL_BYTES + 1], hex[33];
    struct packed_sum sum;
    bool is_whole = bytes > PACKED_SEAL_BYTES;
    if (is_whole) {
        packed_sum_of(text, bytes - PACKED_SEAL_BYTES, &sum);
        packed_sum_hex(&sum, hex);
        (void)snprintf(seal, sizeof seal, PACKED_SEAL, hex);
        is_whole = memcmp(seal, text + bytes - PACKED_SEAL_BYTES, PACKED_SEAL_BYTES) == 0;
    }
    if (!is_whole)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the checksum at its end does not match: the file is damaged or was "
                       "edited; pack the model again", label);
    return packed_parse_unsealed(source, label, text, bytes, err);
}

/* ---- small files --------------------------------------------------------------------------- */

void packed_free(struct packed *packed)
{
    if (packed == NULL)
        return;
    for (uint32_t i = 0; packed->layers != NULL && i < packed->n_layers; i++) {
        mem_free(packed->layers[i].prefix);
        mem_free(packed->layers[i].sums);
    }
    for (size_t i = 0; i < packed->n_files; i++)
        mem_free(packed->files[i].name);
    mem_free(packed->layers);
    mem_free(packed->tensors);
    mem_free(packed->files);
    mem_free(packed);
}

static const struct packed_file *find_file(const struct packed *packed, const char *name)
{
    for (size_t i = 0; i < packed->n_files; i++)
        if (strcmp(packed->files[i].name, name) == 0)
            return &packed->files[i];
    return NULL;
}

bool packed_lists(const struct packed *packed, const char *name)
{
    return find_file(packed, name) != NULL;
}

int packed_check_text(const struct packed *packed, const char *name, const char *label,
                      const char *text, size_t bytes, struct fm_error *err)
{
    const struct packed_file *file = find_file(packed, name);
    if (file == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: model.json does not list this file; remove it or "
                       "pack the model again", label);
    struct packed_sum sum;
    packed_sum_of(text, bytes, &sum);
    if (bytes == file->bytes && packed_sum_equal(&sum, &file->sum))
        return 0;
    return err_set(err, FM_ERR_FORMAT,
                   "%s: the file does not match its checksum in model.json: it is damaged or was "
                   "edited; copy it again or pack the model again", label);
}

/* ---- checking ------------------------------------------------------------------------------- */

/* A run of bytes in a file. */
struct range {
    const struct source_file *file;
    uint64_t offset, bytes;
};

#define SUM_BUFFER_BYTES (4u << 20)

static int hash_range(const struct range *range, XXH3_state_t *state, char *buffer,
                      struct fm_error *err)
{
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < range->bytes;) {
        uint64_t n = range->bytes - done;
        n = n < SUM_BUFFER_BYTES ? n : SUM_BUFFER_BYTES;
        rc = plat_read_at(range->file->fd, range->file->path, buffer, n, range->offset + done, err);
        if (rc == 0)
            packed_hash_add(state, buffer, n);
        done += n;
    }
    return rc;
}

/* Computes the checksum of all ranges together. */
static int sum_ranges(const struct range ranges[], unsigned n, struct packed_sum *sum,
                      struct fm_error *err)
{
    uint64_t max = 0;
    for (unsigned i = 0; i < n; i++)
        max = ranges[i].bytes > max ? ranges[i].bytes : max;
    XXH3_state_t *state = XXH3_createState();
    char *buffer = mem_new(max < SUM_BUFFER_BYTES ? max : SUM_BUFFER_BYTES, 1, "a read buffer",
                           err);
    int rc = 0;
    if (buffer == NULL || state == NULL)
        rc = err_set(err, FM_ERR_NOMEM, "out of memory: a checksum");
    else
        (void)XXH3_128bits_reset(state); /* fails only for a NULL state */
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = hash_range(&ranges[i], state, buffer, err);
    if (rc == 0)
        packed_sum_of_hash(state, sum);
    (void)XXH3_freeState(state); /* accepts NULL */
    mem_free(buffer);
    return rc;
}

int packed_check_record(const struct source *source, uint32_t index, uint32_t expert,
                        struct fm_error *err)
{
    const struct packed *packed = source->packed;
    const struct packed_layer *layer = &packed->layers[index];
    struct range ranges[SOURCE_MAX_DISKS];
    struct packed_sum sum;
    for (unsigned d = 0; d < packed->n_parts; d++)
        ranges[d] = (struct range){&source->files[packed_file_index(packed, index, d)],
                                   expert * layer->part_bytes[d], layer->part_bytes[d]};
    int rc = sum_ranges(ranges, packed->n_parts, &sum, err);
    if (rc == 0 && !packed_sum_equal(&sum, &layer->sums[expert]))
        rc = err_set(err, FM_ERR_FORMAT, "'%s' is damaged: %llu bytes at byte %llu do not match "
                     "their checksum in model.json", ranges[0].file->path,
                     (unsigned long long)ranges[0].bytes, (unsigned long long)ranges[0].offset);
    return rc;
}

const struct packed_tensor *packed_tensor_at(const struct packed *packed, uint64_t offset)
{
    size_t low = 0, high = packed->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct packed_tensor *t = &packed->tensors[middle];
        if (offset < t->offset)
            high = middle;
        else if (offset >= t->offset + t->bytes)
            low = middle + 1;
        else
            return t;
    }
    return NULL;
}

int packed_explain_tensor(const struct source *source, const struct packed_tensor *t,
                          struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT,
                   "tensor '%s' is damaged: '%s', %llu bytes at byte %llu do not match their "
                   "checksum in model.json; 'flashmoe verify' lists all damage",
                   t->name, source->files[0].path, (unsigned long long)t->bytes,
                   (unsigned long long)t->offset);
}

int packed_check_tensor(const struct source *source, const struct tensor_info *tensor,
                        struct fm_error *err)
{
    const struct packed_tensor *t = packed_tensor_at(source->packed, tensor->parts[0].offset);
    struct packed_sum sum;
    int rc = sum_ranges(&(struct range){&source->files[0], t->offset, t->bytes}, 1, &sum, err);
    if (rc == 0 && !packed_sum_equal(&sum, &t->sum))
        rc = packed_explain_tensor(source, t, err);
    return rc;
}

int packed_check_texts(const struct source *source, struct fm_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < source->packed->n_files; i++) {
        const struct packed_file *file = &source->packed->files[i];
        char label[LIMIT_PATH_BYTES], *text;
        size_t bytes;
        rc = source_read_text(source, file->name, LIMIT_TOKENIZER_JSON_BYTES, &text, &bytes, label,
                              err);
        mem_free(text);
    }
    return rc;
}
