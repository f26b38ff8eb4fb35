#include "model/binder.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/binder_internal.h"

#define NAME_BYTES 512

int binder_init(struct binder *b, struct model *model, struct fm_error *err)
{
    *b = (struct binder){.model = model, .err = err};
    b->is_used = mem_new(model->source->n_tensors, sizeof *b->is_used, "the tensor list", err);
    return b->is_used == NULL ? FM_ERR_NOMEM : 0;
}

void binder_clear(struct binder *b)
{
    mem_free(b->is_used);
    mem_free(b->reads);
    mem_free(b->pointers);
}

/* ---- small steps ---------------------------------------------------------------------------- */

static const char *file_of(const struct binder *b, const struct tensor_info *t)
{
    return b->model->source->files[t->file].path;
}

static void wrong_shape(struct binder *b, const struct tensor_info *t, const char *expected)
{
    char shape[160];
    b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' has shape %s, expected %s",
                    file_of(b, t), t->name, tensor_info_shape(t, shape, sizeof shape), expected);
}

/* Looks the tensor up, marks it used and makes sure that weights can be stored in its dtype. */
static const struct tensor_info *take(struct binder *b, const char *name)
{
    const struct source *source = b->model->source;
    const struct tensor_info *t = source_find(source, name);
    if (t == NULL) {
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' is missing", source->dir, name);
        return NULL;
    }
    b->is_used[t - source->tensors] = true;
    if (t->quant == NULL) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has dtype %s; this version reads BF16, F16 and F32",
                        file_of(b, t), name, t->dtype);
        return NULL;
    }
    return t;
}

static void count_format(struct binder *b, const struct quant *quant, bool is_expert,
                         uint64_t n_tensors, uint64_t n_bytes)
{
    struct model *m = b->model;
    unsigned i = 0;
    while (i < m->n_formats &&
           (m->formats[i].quant != quant || m->formats[i].is_expert != is_expert))
        i++;
    if (i == MODEL_MAX_FORMATS)
        return; /* a display limit only */
    if (i == m->n_formats)
        m->formats[m->n_formats++] = (struct model_format_use){.quant = quant,
                                                               .is_expert = is_expert};
    m->formats[i].n_tensors += n_tensors;
    m->formats[i].n_bytes += n_bytes;
}

static uint64_t reserve(struct binder *b, uint64_t bytes)
{
    uint64_t at = b->dense_bytes;
    b->dense_bytes = mem_round_up(at + bytes, MEM_CACHE_LINE);
    return at;
}

static void add_read(struct binder *b, struct dense_read read)
{
    if (b->rc == 0)
        b->rc = mem_grow((void **)&b->reads, &b->cap_reads, b->n_reads + 1, sizeof *b->reads,
                         "the list of reads", b->err);
    if (b->rc == 0)
        b->reads[b->n_reads++] = read;
}

static void add_pointer(struct binder *b, const void **at, uint64_t dense_offset)
{
    if (b->rc == 0)
        b->rc = mem_grow((void **)&b->pointers, &b->cap_pointers, b->n_pointers + 1,
                         sizeof *b->pointers, "the list of weights", b->err);
    if (b->rc == 0)
        b->pointers[b->n_pointers++] = (struct dense_pointer){at, dense_offset};
}

/* Formats the name; a name that does not fit is no tensor's name. */
static bool format_name(struct binder *b, char *name, const char *fmt, va_list args)
{
    int n = vsnprintf(name, NAME_BYTES, fmt, args);
    if (n > 0 && n < NAME_BYTES)
        return true;
    b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: a tensor name is too long", b->model->source->dir);
    return false;
}

/* ---- dense tensors -------------------------------------------------------------------------- */

bool binder_has_failed(const struct binder *b)
{
    return b->rc != 0;
}

const struct tensor_info *binder_find(const struct binder *b, const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    int n = vsnprintf(name, sizeof name, name_fmt, args);
    va_end(args);
    return n > 0 && n < NAME_BYTES ? source_find(b->model->source, name) : NULL;
}

/* True when the tensor is [n_rows, n_cols], or [n_cols] for one row, dimensions of one aside. */
static bool is_table(const struct tensor_info *t, uint32_t n_rows, uint32_t n_cols)
{
    uint64_t expected[] = {n_rows, n_cols};
    unsigned e = 0;
    for (unsigned d = 0; d < t->n_dims; d++) {
        if (t->dims[d] == 1)
            continue;
        while (e < 2 && expected[e] == 1)
            e++;
        if (e == 2 || t->dims[d] != expected[e++])
            return false;
    }
    while (e < 2 && expected[e] == 1)
        e++;
    return e == 2;
}

static void bind_floats(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                        enum vector_transform transform, const char *name)
{
    const struct tensor_info *t = take(b, name);
    if (t == NULL)
        return;
    if (!is_table(t, n_rows, n_cols)) {
        char expected[48];
        if (n_rows == 1)
            (void)snprintf(expected, sizeof expected, "[%u]", n_cols);
        else
            (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
        wrong_shape(b, t, expected);
        return;
    }
    const uint32_t n = n_rows * n_cols; /* below 2^32: the limits of limits.h see to it */
    uint64_t at = reserve(b, (uint64_t)n * sizeof(float));
    add_read(b, (struct dense_read){.file = t->file, .offset = t->offset, .bytes = t->bytes,
                                    .dense_offset = at, .vector_quant = t->quant, .n = n,
                                    .transform = transform});
    add_pointer(b, (const void **)out, at);
    b->model->n_parameters += n;
    count_format(b, t->quant, false, 1, t->bytes);
}

void binder_vector(struct binder *b, const float **out, uint32_t n,
                   enum vector_transform transform, const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    if (ok)
        bind_floats(b, out, 1, n, transform, name);
}

void binder_table(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                  const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    if (ok)
        bind_floats(b, out, n_rows, n_cols, VECTOR_PLAIN, name);
}

static const struct tensor_info *take_matrix(struct binder *b, const char *name, uint32_t n_rows,
                                             uint32_t n_cols)
{
    const struct tensor_info *t = take(b, name);
    if (t == NULL)
        return NULL;
    if (t->n_dims != 2 || t->dims[0] != n_rows || t->dims[1] != n_cols) {
        char expected[48];
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
        wrong_shape(b, t, expected);
        return NULL;
    }
    return t;
}

static void bind_rows(struct binder *b, struct weight *out, const struct tensor_info *t,
                      const struct row_range *ranges, unsigned n_ranges)
{
    const uint32_t n_cols = (uint32_t)t->dims[1];
    const uint64_t row_bytes = quant_row_bytes(t->quant, n_cols);
    uint64_t n_rows = 0;
    for (unsigned i = 0; i < n_ranges; i++)
        n_rows += ranges[i].count;
    assert(t->quant->n_parts == 1 && t->quant->block == 1);
    *out = (struct weight){.quant = t->quant, .n_rows = (uint32_t)n_rows, .n_cols = n_cols};
    uint64_t at = reserve(b, n_rows * row_bytes);
    add_pointer(b, &out->parts[0], at);
    for (unsigned i = 0; i < n_ranges; i++) {
        uint64_t bytes = ranges[i].count * row_bytes;
        add_read(b, (struct dense_read){.file = t->file,
                                        .offset = t->offset + ranges[i].first * row_bytes,
                                        .bytes = bytes, .dense_offset = at});
        at += bytes;
    }
    b->model->n_parameters += n_rows * n_cols;
    count_format(b, t->quant, false, 1, n_rows * row_bytes);
}

void binder_matrix(struct binder *b, struct weight *out, uint32_t n_rows, uint32_t n_cols,
                   const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct tensor_info *t = ok ? take_matrix(b, name, n_rows, n_cols) : NULL;
    if (t != NULL)
        bind_rows(b, out, t, &(struct row_range){0, n_rows}, 1);
}

void binder_matrix_rows(struct binder *b, struct weight *out, uint32_t file_rows, uint32_t n_cols,
                        const struct row_range *ranges, unsigned n_ranges, const char *name_fmt,
                        ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct tensor_info *t = ok ? take_matrix(b, name, file_rows, n_cols) : NULL;
    if (t != NULL)
        bind_rows(b, out, t, ranges, n_ranges);
}

void binder_mark_lookup(struct binder *b, const struct weight *w)
{
    if (b->rc == 0 && w->n_rows > 0)
        b->lookup_bytes += weight_bytes(w) - quant_row_bytes(w->quant, w->n_cols);
}

/* ---- experts -------------------------------------------------------------------------------- */

static const char *const matrix_names[EXPERT_MATRICES] = {"gate_proj", "up_proj", "down_proj"};

/* Where one expert's matrix lies: `tensor`, starting `row_offset` rows into it. */
struct expert_piece {
    const struct tensor_info *tensor;
    uint64_t row_offset;
};

static void set_matrix(struct expert_layer *layer, unsigned m, const struct quant *quant,
                       uint32_t hidden, uint32_t intermediate)
{
    struct expert_matrix *matrix = &layer->matrices[m];
    assert(quant->n_parts == 1 && quant->block == 1);
    matrix->quant = quant;
    matrix->n_rows = m == EXPERT_DOWN ? hidden : intermediate;
    matrix->n_cols = m == EXPERT_DOWN ? intermediate : hidden;
    uint64_t bytes = matrix->n_rows * quant_row_bytes(quant, matrix->n_cols);
    matrix->part_offset[0] = mem_round_up(layer->slot_bytes, MEM_CACHE_LINE);
    layer->slot_bytes = matrix->part_offset[0] + bytes;
    layer->data_bytes += bytes;
}

/* "[512, 1024, 4096]" or "[1024, 4096]" as the layout wants it. */
static bool has_shape(struct binder *b, const struct tensor_info *t, uint32_t n_experts,
                      uint32_t n_rows, uint32_t n_cols)
{
    bool ok = n_experts == 0 ? t->n_dims == 2 && t->dims[0] == n_rows && t->dims[1] == n_cols
                             : t->n_dims == 3 && t->dims[0] == n_experts &&
                                   t->dims[1] == n_rows && t->dims[2] == n_cols;
    if (ok)
        return true;
    char expected[64];
    if (n_experts == 0)
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
    else
        (void)snprintf(expected, sizeof expected, "[%u, %u, %u]", n_experts, n_rows, n_cols);
    wrong_shape(b, t, expected);
    return false;
}

static const struct tensor_info *take_expert_tensor(struct binder *b, const char *name,
                                                    uint32_t n_experts, uint32_t n_rows,
                                                    uint32_t n_cols)
{
    const struct tensor_info *t = take(b, name);
    return t != NULL && has_shape(b, t, n_experts, n_rows, n_cols) ? t : NULL;
}

/* "PREFIXexperts.NAME" or the same with ".weight", whichever is there; false for neither. */
static bool stacked_name(const struct binder *b, const char *prefix, const char *matrix,
                         char *name)
{
    static const char *const suffixes[] = {"", ".weight"};
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(name, NAME_BYTES, "%sexperts.%s%s", prefix, matrix, suffixes[i]);
        if (source_find(b->model->source, name) != NULL)
            return true;
    }
    return false;
}

static struct expert_piece find_piece(struct binder *b, const struct expert_layer *layer,
                                      const char *prefix, uint32_t expert, unsigned m)
{
    const struct expert_matrix *down = &layer->matrices[EXPERT_DOWN];
    const uint32_t hidden = down->n_rows, intermediate = down->n_cols;
    const uint32_t n_rows = m == EXPERT_DOWN ? hidden : intermediate;
    const uint32_t n_cols = m == EXPERT_DOWN ? intermediate : hidden;
    struct expert_piece piece = {0};
    char name[NAME_BYTES];
    if (m != EXPERT_DOWN && stacked_name(b, prefix, "gate_up_proj", name)) {
        piece.tensor = take_expert_tensor(b, name, layer->n_experts, 2 * n_rows, n_cols);
        piece.row_offset = (uint64_t)expert * 2 * n_rows + (m == EXPERT_UP ? n_rows : 0);
    } else if (stacked_name(b, prefix, matrix_names[m], name)) {
        piece.tensor = take_expert_tensor(b, name, layer->n_experts, n_rows, n_cols);
        piece.row_offset = (uint64_t)expert * n_rows;
    } else {
        (void)snprintf(name, sizeof name, "%sexperts.%u.%s.weight", prefix, expert,
                       matrix_names[m]);
        piece.tensor = take_expert_tensor(b, name, 0, n_rows, n_cols);
    }
    return piece;
}

/* Adds a run of bytes, or lengthens the last one when both sides continue it. */
static void add_extent(struct extent *extents, uint32_t *n, const struct extent *next)
{
    struct extent *last = *n > 0 ? &extents[*n - 1] : NULL;
    if (last != NULL && last->file == next->file && last->offset + last->bytes == next->offset &&
        last->slot_offset + last->bytes == next->slot_offset)
        last->bytes += next->bytes;
    else
        extents[(*n)++] = *next;
}

static void bind_expert(struct binder *b, struct expert_layer *layer, const char *prefix,
                        uint32_t expert, struct extent *extents, uint32_t *n_extents)
{
    *n_extents = 0;
    for (unsigned m = 0; m < EXPERT_MATRICES && b->rc == 0; m++) {
        struct expert_piece piece = find_piece(b, layer, prefix, expert, m);
        if (piece.tensor == NULL)
            return;
        const struct expert_matrix *matrix = &layer->matrices[m];
        if (piece.tensor->quant != matrix->quant) {
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' has dtype %s, the layer's other experts %s",
                            file_of(b, piece.tensor), piece.tensor->name, piece.tensor->dtype,
                            matrix->quant->name);
            return;
        }
        uint64_t row_bytes = quant_row_bytes(matrix->quant, matrix->n_cols);
        add_extent(extents, n_extents,
                   &(struct extent){.file = piece.tensor->file,
                                    .offset = piece.tensor->offset + piece.row_offset * row_bytes,
                                    .bytes = matrix->n_rows * row_bytes,
                                    .slot_offset = matrix->part_offset[0]});
    }
}

/* The formats of a layer are those of its first expert. */
static int layout_slot(struct binder *b, struct expert_layer *layer, uint32_t hidden,
                       uint32_t intermediate, const char *prefix)
{
    /* find_piece derives the shapes from the down matrix. */
    layer->matrices[EXPERT_DOWN] = (struct expert_matrix){.n_rows = hidden,
                                                          .n_cols = intermediate};
    const struct quant *quants[EXPERT_MATRICES];
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        struct expert_piece piece = find_piece(b, layer, prefix, 0, m);
        if (piece.tensor == NULL)
            return b->rc;
        quants[m] = piece.tensor->quant;
    }
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        set_matrix(layer, m, quants[m], hidden, intermediate);
        count_format(b, quants[m], true, layer->n_experts,
                     (uint64_t)layer->n_experts * hidden * intermediate * quants[m]->bits / 8);
    }
    layer->slot_bytes = mem_round_up(layer->slot_bytes, MEM_PAGE);
    b->model->n_parameters += (uint64_t)layer->n_experts * EXPERT_MATRICES * hidden * intermediate;
    return 0;
}

/* Experts may differ in how their pieces join; all get as many extents as the worst of them. */
static void bind_extents(struct binder *b, struct expert_layer *layer, const char *prefix)
{
    const uint32_t n_experts = layer->n_experts;
    struct extent *found = mem_new((uint64_t)n_experts * EXPERT_MAX_EXTENTS, sizeof *found,
                                   "the expert table", b->err);
    if (found == NULL) {
        b->rc = FM_ERR_NOMEM;
        return;
    }
    for (uint32_t e = 0; e < n_experts && b->rc == 0; e++) {
        uint32_t n;
        bind_expert(b, layer, prefix, e, found + e * EXPERT_MAX_EXTENTS, &n);
        layer->n_extents = n > layer->n_extents ? n : layer->n_extents;
    }
    layer->extents = mem_new((uint64_t)n_experts * layer->n_extents, sizeof *layer->extents,
                             "the expert table", b->err);
    if (layer->extents == NULL)
        b->rc = FM_ERR_NOMEM;
    for (uint32_t e = 0; e < n_experts && b->rc == 0; e++)
        memcpy(layer->extents + (size_t)e * layer->n_extents, found + e * EXPERT_MAX_EXTENTS,
               layer->n_extents * sizeof *layer->extents);
    mem_free(found);
}

uint32_t binder_experts(struct binder *b, uint32_t layer_index, uint32_t n_experts,
                        uint32_t hidden, uint32_t intermediate, const char *prefix)
{
    struct model *model = b->model;
    if (b->rc == 0)
        b->rc = mem_grow((void **)&model->expert_layers, &b->cap_expert_layers,
                         model->n_expert_layers + 1, sizeof *model->expert_layers,
                         "the expert table", b->err);
    if (b->rc != 0)
        return 0;
    struct expert_layer *layer = &model->expert_layers[model->n_expert_layers];
    *layer = (struct expert_layer){.layer = layer_index, .n_experts = n_experts};
    model->n_expert_layers++;
    if (layout_slot(b, layer, hidden, intermediate, prefix) == 0)
        bind_extents(b, layer, prefix);
    if (layer->slot_bytes > model->expert_slot_bytes)
        model->expert_slot_bytes = layer->slot_bytes;
    return model->n_expert_layers - 1;
}

/* ---- the rest ------------------------------------------------------------------------------- */

void binder_ignore(struct binder *b, const char *prefix, bool is_warning, const char *why)
{
    const struct source *source = b->model->source;
    const size_t length = strlen(prefix);
    unsigned n = 0;
    for (size_t i = 0; i < source->n_tensors && b->rc == 0; i++) {
        if (b->is_used[i] || strncmp(source->tensors[i].name, prefix, length) != 0)
            continue;
        b->is_used[i] = true;
        n++;
    }
    b->model->n_ignored_tensors += n;
    if (n > 0)
        (is_warning ? log_warn : log_info)("model", "%u tensors below '%s' are left aside: %s", n,
                                           prefix, why);
}

int binder_finish(struct binder *b)
{
    const struct source *source = b->model->source;
    for (size_t i = 0; i < source->n_tensors && b->rc == 0; i++)
        if (!b->is_used[i])
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' is none that a '%s' model has; it would be ignored "
                            "and the result would be wrong",
                            file_of(b, &source->tensors[i]), source->tensors[i].name,
                            b->model->model_type);
    return b->rc;
}
