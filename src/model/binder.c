#include "model/binder.h"

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
    model->uses = mem_new(model->source->n_tensors, sizeof *model->uses, "the tensor list", err);
    return model->uses == NULL ? FM_ERR_NOMEM : 0;
}

void binder_clear(struct binder *b)
{
    mem_free(b->reads);
    mem_free(b->pointers);
    mem_free(b->products);
}

/* ---- small steps ---------------------------------------------------------------------------- */

static const char *file_of(const struct binder *b, const struct tensor_info *t)
{
    return b->model->source->files[t->parts[0].file].path;
}

static void wrong_shape(struct binder *b, const struct tensor_info *t, const char *expected)
{
    char shape[160];
    b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' has shape %s, expected %s",
                    file_of(b, t), t->name, tensor_info_shape(t, shape, sizeof shape), expected);
}

/* Looks the tensor up and makes sure that rows of n_cols columns can be stored as it is. */
static const struct tensor_info *take(struct binder *b, const char *name, enum tensor_role role,
                                      uint64_t n_cols, const struct quant **quant)
{
    const struct source *source = b->model->source;
    const struct tensor_info *t = source_find(source, name);
    if (t == NULL) {
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' is missing", source->path, name);
        return NULL;
    }
    struct tensor_use *use = &b->model->uses[t - source->tensors];
    *quant = t->scale != NULL ? tensor_info_affine(t, n_cols) : t->quant;
    *use = (struct tensor_use){.role = role, .quant = *quant, .n_cols = n_cols, .n_rows = 1};
    for (unsigned d = 0; d + 1 < t->n_dims; d++)
        use->n_rows *= t->dims[d]; /* cannot overflow: the bytes did not */
    if (t->scale != NULL && *quant == NULL) {
        char shape[160];
        b->rc = err_set(b->err, FM_ERR_FORMAT,
                        "%s: tensor '%s' %s with %llu scales per row does not fit %llu columns of "
                        "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
                        file_of(b, t), name, tensor_info_shape(t, shape, sizeof shape),
                        (unsigned long long)t->n_scale_cols, (unsigned long long)n_cols);
        return NULL;
    }
    if (*quant == NULL) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has dtype %s, which this version does not read; "
                        "`flashmoe help formats` lists what it does",
                        file_of(b, t), name, t->dtype);
        return NULL;
    }
    return t;
}

/* The last dimension as columns: of MLX's codes it is words, which `take` has looked at. */
static bool has_cols(const struct tensor_info *t, uint32_t n_cols)
{
    return t->n_dims > 0 && (t->scale != NULL || t->dims[t->n_dims - 1] == n_cols);
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
    b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: a tensor name is too long", b->model->source->path);
    return false;
}

/* ---- layers that are not here --------------------------------------------------------------- */

void binder_set_layers(struct binder *b, uint32_t n_layers)
{
    struct model *m = b->model;
    if (m->end_layer == 0)
        m->end_layer = n_layers;
    if (b->rc == 0 && (m->first_layer >= m->end_layer || m->end_layer > n_layers))
        b->rc = err_set(b->err, FM_ERR_ARG, "'%s' has the layers 0 to %u, not %u to %u",
                        m->source->path, n_layers - 1, m->first_layer, m->end_layer - 1);
}

bool binder_has_layer(const struct binder *b, uint32_t layer)
{
    return layer >= b->model->first_layer && layer < b->model->end_layer;
}

/* Gives this role to the tensors that begin with `prefix` and have no other use. Returns their
 * count. */
static unsigned mark_prefix(struct binder *b, const char *prefix, enum tensor_role role)
{
    const struct source *source = b->model->source;
    const size_t length = strlen(prefix);
    unsigned n = 0;
    for (size_t i = 0; i < source->n_tensors && b->rc == 0; i++) {
        struct tensor_use *use = &b->model->uses[i];
        if (use->role != TENSOR_UNKNOWN ||
            strncmp(source->tensors[i].name, prefix, length) != 0)
            continue;
        use->role = role;
        n++;
    }
    return n;
}

void binder_leave_layer(struct binder *b, uint32_t layer, bool has_experts, const char *prefix_fmt,
                        ...)
{
    char prefix[NAME_BYTES];
    va_list args;
    va_start(args, prefix_fmt);
    const bool ok = b->rc == 0 && format_name(b, prefix, prefix_fmt, args);
    va_end(args);
    if (ok)
        (void)mark_prefix(b, prefix, TENSOR_ELSEWHERE);
    b->model->first_expert_layer += has_experts && layer < b->model->first_layer;
}

void binder_leave(struct binder *b, const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    const bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct tensor_info *t = ok ? source_find(b->model->source, name) : NULL;
    if (t != NULL)
        b->model->uses[t - b->model->source->tensors].role = TENSOR_ELSEWHERE;
}

/* ---- dense tensors -------------------------------------------------------------------------- */

const struct source_conventions *binder_conventions(const struct binder *b)
{
    return &b->model->source->conventions;
}

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
    const struct quant *quant;
    const struct tensor_info *t = take(b, name, TENSOR_VECTOR, n_cols, &quant);
    if (t == NULL)
        return;
    if (quant->kind != QUANT_FLOAT) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has type %s; it is read in BF16, F16 and F32",
                        file_of(b, t), name, t->dtype);
        return;
    }
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
    add_read(b, (struct dense_read){.file = t->parts[0].file, .offset = t->parts[0].offset,
                                    .bytes = t->parts[0].bytes, .dense_offset = at,
                                    .vector_quant = quant, .n = n, .n_rows = n_rows,
                                    .transform = transform});
    add_pointer(b, (const void **)out, at);
    b->model->n_parameters += n;
    count_format(b, quant, false, 1, t->parts[0].bytes);
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

static const struct tensor_info *take_matrix(struct binder *b, const char *name,
                                             enum tensor_role role, uint32_t n_rows,
                                             uint32_t n_cols, const struct quant **quant)
{
    const struct tensor_info *t = take(b, name, role, n_cols, quant);
    if (t == NULL)
        return NULL;
    if (t->n_dims != 2 || t->dims[0] != n_rows || !has_cols(t, n_cols)) {
        char expected[48];
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
        wrong_shape(b, t, expected);
        return NULL;
    }
    return t;
}

/* True when rows from `first` on can be cut out of a part that several rows share. */
static bool is_cut(const struct quant *quant, unsigned part, uint64_t first)
{
    return quant->part_rows[part] <= 1 || first % quant->part_rows[part] == 0;
}

static bool are_cut(const struct quant *quant, const struct row_range *ranges, unsigned n_ranges)
{
    for (unsigned p = 0; p < quant->n_parts; p++)
        for (unsigned i = 0; i < n_ranges; i++)
            if (!is_cut(quant, p, ranges[i].first) ||
                (i + 1 < n_ranges && !is_cut(quant, p, ranges[i].count)))
                return false;
    return true;
}

/* One part of the chosen rows, one range after the other. `stored` is the file's format; where
 * the weight's own does not share what the file shares, each row is read by itself. */
static void bind_part(struct binder *b, const struct weight *w, const struct tensor_info *t,
                      const struct quant *stored, unsigned part, const struct row_range *ranges,
                      unsigned n_ranges, uint64_t at)
{
    const uint64_t row_bytes = quant_part_row_bytes(stored, part, w->n_cols);
    const bool is_spread = stored->part_rows[part] > 1 && w->quant->part_rows[part] <= 1;
    for (unsigned i = 0; i < n_ranges; i++) {
        const uint64_t n = is_spread ? ranges[i].count : 1;
        for (uint64_t r = 0; r < n && b->rc == 0; r++) {
            uint64_t bytes = is_spread ? row_bytes : quant_part_bytes(stored, part,
                                                                      ranges[i].count, w->n_cols);
            add_read(b, (struct dense_read){
                .file = t->parts[part].file,
                .offset = t->parts[part].offset +
                          quant_part_row(stored, part, ranges[i].first + r) * row_bytes,
                .bytes = bytes, .dense_offset = at});
            at += bytes;
        }
    }
}

/* Reserves a place for a part that begins at this byte of its file. A large part gets the same
 * offset within a page as in the file, so that whole pages are read to their final place. */
#define LARGE_PART_BYTES (256u << 10)
static uint64_t reserve_part(struct binder *b, uint64_t bytes, uint64_t offset)
{
    if (bytes >= LARGE_PART_BYTES && offset % MEM_CACHE_LINE == 0)
        b->dense_bytes += (offset - b->dense_bytes) % MEM_PAGE;
    return reserve(b, bytes);
}

static void bind_rows(struct binder *b, struct weight *out, const struct tensor_info *t,
                      const struct quant *quant, uint32_t n_cols, const struct row_range *ranges,
                      unsigned n_ranges)
{
    uint64_t n_rows = 0;
    for (unsigned i = 0; i < n_ranges; i++)
        n_rows += ranges[i].count;
    const struct quant *own = are_cut(quant, ranges, n_ranges) ? quant : quant->unshared;
    *out = (struct weight){.quant = own, .n_rows = (uint32_t)n_rows, .n_cols = n_cols};
    for (unsigned p = 0; p < own->n_parts && b->rc == 0; p++) {
        uint64_t at = reserve_part(b, quant_part_bytes(own, p, n_rows, n_cols),
                                   t->parts[p].offset);
        add_pointer(b, &out->parts[p], at);
        bind_part(b, out, t, quant, p, ranges, n_ranges, at);
    }
    b->model->n_parameters += n_rows * n_cols;
    count_format(b, own, false, 1, weight_bytes(out));
}

/* Notes that the matrix gets the layout that kernels want, once it is read. */
static void prepare_later(struct binder *b, struct weight *w)
{
    if (b->rc == 0)
        b->rc = mem_grow((void **)&b->products, &b->cap_products, b->n_products + 1,
                         sizeof *b->products, "the list of matrices", b->err);
    if (b->rc == 0)
        b->products[b->n_products++] = w;
}

void binder_matrix(struct binder *b, struct weight *out, enum tensor_role role, uint32_t n_rows,
                   uint32_t n_cols, const char *name_fmt, ...)
{
    char name[NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t = ok ? take_matrix(b, name, role, n_rows, n_cols, &quant) : NULL;
    if (t != NULL)
        bind_rows(b, out, t, quant, n_cols, &(struct row_range){0, n_rows}, 1);
    if (t != NULL && role == TENSOR_EMBEDDING)
        b->lookup_bytes += weight_bytes(out) - quant_row_bytes(quant, n_cols);
    else if (t != NULL)
        prepare_later(b, out);
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
    const struct quant *quant;
    const struct tensor_info *t =
        ok ? take_matrix(b, name, TENSOR_MATRIX, file_rows, n_cols, &quant) : NULL;
    if (t != NULL) {
        bind_rows(b, out, t, quant, n_cols, ranges, n_ranges);
        prepare_later(b, out);
    }
}

/* ---- experts -------------------------------------------------------------------------------- */

static const char *const matrix_names[EXPERT_MATRICES] = {"gate_proj", "up_proj", "down_proj"};

/* Where one expert's matrix lies: rows [first_row, first_row + n_rows) of a slab. */
struct expert_piece {
    const struct tensor_info *tensor;
    const struct quant *quant;
    uint64_t slab, first_row, slab_rows;
};

/* [512, 1024, 4096] or, without experts, [1024, 4096]. */
static bool take_expert_tensor(struct binder *b, const char *name, uint32_t n_experts,
                               uint32_t n_rows, uint32_t n_cols, struct expert_piece *piece)
{
    const struct tensor_info *t = take(b, name, TENSOR_EXPERT, n_cols, &piece->quant);
    if (t == NULL)
        return false;
    bool ok = n_experts == 0 ? t->n_dims == 2 && t->dims[0] == n_rows
                             : t->n_dims == 3 && t->dims[0] == n_experts && t->dims[1] == n_rows;
    if (ok && has_cols(t, n_cols)) {
        piece->tensor = t;
        piece->slab_rows = n_rows;
        return true;
    }
    char expected[64];
    if (n_experts == 0)
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
    else
        (void)snprintf(expected, sizeof expected, "[%u, %u, %u]", n_experts, n_rows, n_cols);
    wrong_shape(b, t, expected);
    return false;
}

/* Finds the tensor that holds a matrix of all experts, under the name that transformers, GGUF or
 * mlx-lm gives it. Returns false when there is none. */
static bool stacked_name(const struct binder *b, const char *prefix, const char *matrix,
                         char *name)
{
    static const char *const forms[][2] = {
        {"experts.", ""}, {"experts.", ".weight"}, {"switch_mlp.", ".weight"}};
    for (unsigned i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        (void)snprintf(name, NAME_BYTES, "%s%s%s%s", prefix, forms[i][0], matrix, forms[i][1]);
        if (source_find(b->model->source, name) != NULL)
            return true;
    }
    return false;
}

static bool find_piece(struct binder *b, const struct expert_layer *layer, uint32_t expert,
                       unsigned m, struct expert_piece *piece)
{
    const uint32_t n_rows = layer->record.matrices[m].n_rows;
    const uint32_t n_cols = layer->record.matrices[m].n_cols;
    char name[NAME_BYTES];
    *piece = (struct expert_piece){0};
    if (m != EXPERT_DOWN && stacked_name(b, layer->prefix, "gate_up_proj", name)) {
        piece->slab = expert;
        piece->first_row = m == EXPERT_UP ? n_rows : 0;
        return take_expert_tensor(b, name, layer->n_experts, 2 * n_rows, n_cols, piece);
    }
    if (stacked_name(b, layer->prefix, matrix_names[m], name)) {
        piece->slab = expert;
        return take_expert_tensor(b, name, layer->n_experts, n_rows, n_cols, piece);
    }
    (void)snprintf(name, sizeof name, "%sexperts.%u.%s.weight", layer->prefix, expert,
                   matrix_names[m]);
    return take_expert_tensor(b, name, 0, n_rows, n_cols, piece);
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

static void bind_piece(struct binder *b, const struct record_matrix *matrix,
                       const struct expert_piece *piece, struct extent *extents, uint32_t *n)
{
    const struct tensor_info *t = piece->tensor;
    for (unsigned p = 0; p < matrix->quant->n_parts && b->rc == 0; p++) {
        const struct tensor_part *part = &t->parts[p];
        const uint64_t slab_bytes =
            quant_part_bytes(matrix->quant, p, piece->slab_rows, matrix->n_cols);
        const uint64_t stride = part->stride > 0 ? part->stride : slab_bytes;
        if (!is_cut(matrix->quant, p, piece->first_row))
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' is %s, whose scales belong to %u rows: it cannot be "
                            "cut at row %llu",
                            file_of(b, t), t->name, matrix->quant->name,
                            matrix->quant->part_rows[p], (unsigned long long)piece->first_row);
        add_extent(extents, n, &(struct extent){
            .file = part->file,
            .offset = part->offset + piece->slab * stride +
                      quant_part_row(matrix->quant, p, piece->first_row) *
                          quant_part_row_bytes(matrix->quant, p, matrix->n_cols),
            .bytes = quant_part_bytes(matrix->quant, p, matrix->n_rows, matrix->n_cols),
            .slot_offset = matrix->part_offset[p]});
    }
}

static void bind_expert(struct binder *b, struct expert_layer *layer, uint32_t expert,
                        struct extent *extents, uint32_t *n_extents)
{
    *n_extents = 0;
    for (unsigned m = 0; m < EXPERT_MATRICES && b->rc == 0; m++) {
        struct expert_piece piece;
        if (!find_piece(b, layer, expert, m, &piece))
            return;
        const struct record_matrix *matrix = &layer->record.matrices[m];
        if (piece.quant != matrix->quant) {
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' has dtype %s, the layer's other experts are %s",
                            file_of(b, piece.tensor), piece.tensor->name, piece.tensor->dtype,
                            matrix->quant->name);
            return;
        }
        bind_piece(b, matrix, &piece, extents, n_extents);
    }
}

/* Takes the formats of a layer from its first expert. */
static void layout_slot(struct binder *b, struct expert_layer *layer, uint32_t hidden,
                        uint32_t intermediate)
{
    const struct tensor_info *first = NULL;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        struct record_matrix *matrix = &layer->record.matrices[m];
        struct expert_piece piece;
        matrix->n_rows = m == EXPERT_DOWN ? hidden : intermediate;
        matrix->n_cols = m == EXPERT_DOWN ? intermediate : hidden;
        if (!find_piece(b, layer, 0, m, &piece))
            return;
        matrix->quant = piece.quant;
        matrix->lies_interleaved = piece.tensor->records != NULL &&
                                   piece.tensor->records->record.matrices[m].lies_interleaved;
        matrix->is_interleaved = matrix->lies_interleaved;
        first = piece.tensor;
        count_format(b, piece.quant, true, layer->n_experts,
                     layer->n_experts *
                         quant_matrix_bytes(piece.quant, matrix->n_rows, matrix->n_cols));
    }
    if (!record_layout(&layer->record)) {
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: an expert's bytes overflow 64 bits",
                        file_of(b, first));
        return;
    }
    layer->read_bytes = layer->record.data_bytes;
    if (first->records != NULL) {
        layer->sums = first->records->sums;
        layer->read_bytes = layer->record.bytes;
    }
    b->model->n_parameters += (uint64_t)layer->n_experts * EXPERT_MATRICES * hidden * intermediate;
}

/* A packed expert is one read, padding included: the checksum covers it. */
static void bind_packed_expert(const struct expert_layer *layer, struct extent *extents,
                               uint32_t *n_extents)
{
    extents[0].bytes = layer->record.bytes;
    *n_extents = 1;
}

/* Gives all experts of a layer the same number of extents, the maximum of them: their pieces may
 * join differently. */
static void bind_extents(struct binder *b, struct expert_layer *layer)
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
        bind_expert(b, layer, e, found + e * EXPERT_MAX_EXTENTS, &n);
        if (layer->sums != NULL && b->rc == 0)
            bind_packed_expert(layer, found + e * EXPERT_MAX_EXTENTS, &n);
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
    layer->prefix = mem_strdup(prefix, b->err);
    if (layer->prefix == NULL) {
        b->rc = FM_ERR_NOMEM;
        return 0;
    }
    layout_slot(b, layer, hidden, intermediate);
    if (b->rc == 0)
        bind_extents(b, layer);
    if (layer->record.bytes > model->expert_slot_bytes)
        model->expert_slot_bytes = layer->record.bytes;
    return model->n_expert_layers - 1;
}

/* ---- the rest ------------------------------------------------------------------------------- */

void binder_ignore(struct binder *b, const char *prefix, bool is_warning, const char *why)
{
    const unsigned n = mark_prefix(b, prefix, TENSOR_IGNORED);
    b->model->n_ignored_tensors += n;
    if (n > 0)
        (is_warning ? log_warn : log_info)("model", "%u tensors below '%s' are not used: %s", n,
                                           prefix, why);
}

int binder_finish(struct binder *b)
{
    const struct source *source = b->model->source;
    for (size_t i = 0; i < source->n_tensors && b->rc == 0; i++)
        if (b->model->uses[i].role == TENSOR_UNKNOWN)
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' does not belong to a '%s' model; ignoring it would "
                            "give wrong results",
                            file_of(b, &source->tensors[i]), source->tensors[i].name,
                            b->model->model_type);
    return b->rc;
}
