/* How the experts of a layer are bound: from one tensor each or from stacked ones, and where their
 * bytes go in a slot. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/reorder.h"
#include "model/binder.h"
#include "model/binder_internal.h"

static const char *const matrix_names[EXPERT_MATRICES] = {"gate_proj", "up_proj", "down_proj"};
/* Mixtral's, where every expert has tensors of its own. */
static const char *const short_names[EXPERT_MATRICES] = {"w1", "w3", "w2"};

/* Where one expert's matrix lies: rows [first_row, first_row + n_rows) of a slab, or every second
 * row if it is zipped. */
struct expert_piece {
    const struct tensor_info *tensor;
    const struct quant *quant;
    uint64_t slab, first_row, slab_rows;
    bool is_zipped, is_transposed;
};

/* [512, 1024, 4096] or, without experts, [1024, 4096]. */
static bool take_expert_tensor(struct binder *b, const char *name, uint32_t n_experts,
                               uint32_t n_rows, uint32_t n_cols, struct expert_piece *piece)
{
    const struct tensor_info *t = binder_take(b, name, TENSOR_EXPERT, n_cols, &piece->quant);
    if (t == NULL)
        return false;
    bool ok = n_experts == 0 ? t->n_dims == 2 && t->dims[0] == n_rows
                             : t->n_dims == 3 && t->dims[0] == n_experts && t->dims[1] == n_rows;
    if (ok && binder_has_cols(t, n_cols)) {
        piece->tensor = t;
        piece->slab_rows = n_rows;
        return true;
    }
    char expected[64];
    if (n_experts == 0)
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
    else
        (void)snprintf(expected, sizeof expected, "[%u, %u, %u]", n_experts, n_rows, n_cols);
    binder_wrong_shape(b, t, expected);
    return false;
}

/* Completes a piece of a tensor in Hugging Face's own order of zipped experts; n_rows is of the
 * slab. Other tensors are not zipped: those of converters end in ".weight", and packed ones have
 * records. */
static bool take_zipped(struct binder *b, const char *name, uint32_t n_experts, uint32_t n_rows,
                        uint32_t n_cols, bool is_pair, struct expert_piece *piece)
{
    const struct tensor_info *t = source_find(b->model->source, name);
    const struct quant *quant = t->quant;
    piece->is_zipped = is_pair;
    piece->is_transposed = quant != NULL && quant->kind == QUANT_FLOAT;
    if (!piece->is_transposed)
        return take_expert_tensor(b, name, n_experts, n_rows, n_cols, piece);
    if (!reorder_can_transpose(n_rows, n_cols, quant_row_bytes(quant, 1))) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is stored column by column; this version puts at most %u "
                        "bytes of a row or column in order",
                        binder_file_of(b, t), name, REORDER_MAX_LINE);
        return false;
    }
    const bool ok = take_expert_tensor(b, name, n_experts, n_cols, n_rows, piece);
    piece->slab_rows = n_rows; /* once it is in order */
    return ok;
}

static bool is_zipped_name(const struct binder *b, const struct expert_layer *layer,
                           const char *name)
{
    const struct tensor_info *t = source_find(b->model->source, name);
    const size_t length = strlen(name), suffix = strlen(".weight");
    return layer->order == EXPERTS_ZIPPED && t->records == NULL &&
           (length < suffix || strcmp(name + length - suffix, ".weight") != 0);
}

/* Finds the tensor that holds a matrix of all experts, under the name that transformers, GGUF or
 * mlx-lm gives it. Returns false when there is none. */
static bool stacked_name(const struct binder *b, const char *prefix, const char *matrix,
                         char *name)
{
    static const char *const forms[][2] = {
        {"experts.", ""}, {"experts.", "_blocks"}, {"experts.", ".weight"},
        {"switch_mlp.", ".weight"}};
    for (unsigned i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        (void)snprintf(name, BINDER_NAME_BYTES, "%s%s%s%s", prefix, forms[i][0], matrix,
                       forms[i][1]);
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
    char name[BINDER_NAME_BYTES];
    *piece = (struct expert_piece){0};
    if (m != EXPERT_DOWN && stacked_name(b, layer->prefix, "gate_up_proj", name)) {
        piece->slab = expert;
        if (is_zipped_name(b, layer, name))
            return take_zipped(b, name, layer->n_experts, 2 * n_rows, n_cols, true, piece);
        piece->first_row = m == EXPERT_UP ? n_rows : 0;
        return take_expert_tensor(b, name, layer->n_experts, 2 * n_rows, n_cols, piece);
    }
    if (stacked_name(b, layer->prefix, matrix_names[m], name)) {
        piece->slab = expert;
        if (is_zipped_name(b, layer, name))
            return take_zipped(b, name, layer->n_experts, n_rows, n_cols, false, piece);
        return take_expert_tensor(b, name, layer->n_experts, n_rows, n_cols, piece);
    }
    (void)snprintf(name, sizeof name, "%sexperts.%u.%s.weight", layer->prefix, expert,
                   short_names[m]);
    if (source_find(b->model->source, name) == NULL)
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
        if (!binder_is_cut(matrix->quant, p, piece->first_row))
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' is %s, whose scales belong to %u rows: it cannot be "
                            "cut at row %llu",
                            binder_file_of(b, t), t->name, matrix->quant->name,
                            matrix->quant->part_rows[p], (unsigned long long)piece->first_row);
        add_extent(extents, n, &(struct extent){
            .file = part->file,
            .offset = part->offset + piece->slab * stride +
                      quant_part_row(matrix->quant, p, piece->first_row) *
                          quant_part_row_bytes(matrix->quant, p, matrix->n_cols),
            .bytes = quant_part_bytes(matrix->quant, p,
                                      piece->is_zipped ? piece->slab_rows : matrix->n_rows,
                                      matrix->n_cols),
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
                            binder_file_of(b, piece.tensor), piece.tensor->name,
                            piece.tensor->dtype, matrix->quant->name);
            return;
        }
        if (!piece.is_zipped || m == EXPERT_GATE) /* up comes with gate */
            bind_piece(b, matrix, &piece, extents, n_extents);
    }
}

/* Notes how gate, up and down lie: all of them in the same way. */
static void note_order(struct binder *b, struct record *record, unsigned m,
                       const struct expert_piece *piece)
{
    bool is_same = true;
    if (m == EXPERT_GATE) {
        record->lies_zipped = piece->is_zipped;
        record->lies_transposed = piece->is_transposed;
    } else {
        is_same = piece->is_transposed == record->lies_transposed &&
                  (m == EXPERT_DOWN || piece->is_zipped == record->lies_zipped);
    }
    for (unsigned p = 0; piece->is_zipped && p < piece->quant->n_parts; p++)
        is_same = is_same && piece->quant->part_rows[p] <= 1;
    if (!is_same && b->rc == 0)
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is %s: this version cannot put its rows in order beside "
                        "the other matrices of the experts",
                        binder_file_of(b, piece->tensor), piece->tensor->name,
                        piece->tensor->dtype);
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
        note_order(b, &layer->record, m, &piece);
        matrix->lies_interleaved = piece.tensor->records != NULL &&
                                   piece.tensor->records->record.matrices[m].lies_interleaved;
        matrix->is_interleaved = matrix->lies_interleaved;
        first = piece.tensor;
        binder_count_experts(b, piece.quant, layer->n_experts,
                             layer->n_experts * quant_matrix_bytes(piece.quant, matrix->n_rows,
                                                                   matrix->n_cols));
    }
    if (b->rc == 0 && !record_layout(&layer->record)) {
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: an expert's bytes overflow 64 bits",
                        binder_file_of(b, first));
        return;
    }
    layer->read_bytes = layer->record.data_bytes;
    if (first->records != NULL) {
        layer->sums = first->records->sums;
        layer->read_bytes = layer->record.bytes;
    }
    b->model->n_parameters += (uint64_t)layer->n_experts * EXPERT_MATRICES * hidden * intermediate;
}

/* A packed expert is one read on each disk that has a part of it, padding included: the checksum
 * covers it. */
static void bind_packed_expert(const struct packed *packed, uint32_t expert,
                               struct extent *extents, uint32_t *n_extents)
{
    const uint32_t index = extents[0].file - packed_file_index(packed, 0, 0);
    const uint64_t *bytes = packed->layers[index].part_bytes;
    uint64_t at = 0;
    for (unsigned d = 0; d < packed->n_parts; d++) {
        extents[d] = (struct extent){.file = packed_file_index(packed, index, d),
                                     .offset = expert * bytes[d], .bytes = bytes[d],
                                     .slot_offset = at};
        at += bytes[d];
    }
    *n_extents = packed->n_parts;
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
    const bool is_packed = layer->sums != NULL;
    for (uint32_t e = 0; e < n_experts && b->rc == 0; e++) {
        struct extent *extents = found + e * EXPERT_MAX_EXTENTS;
        uint32_t n;
        if (is_packed && e > 0) /* all in one file: no name needs to be found again */
            extents[0] = found[0];
        else
            bind_expert(b, layer, e, extents, &n);
        if (is_packed && b->rc == 0)
            bind_packed_expert(b->model->source->packed, e, extents, &n);
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

/* Returns whether a name, below the experts' own, is that of one of their matrices. */
static bool is_expert_matrix(const char *name)
{
    bool is_one = strncmp(name, "gate_up_proj", 12) == 0;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++)
        is_one |= strncmp(name, matrix_names[m], strlen(matrix_names[m])) == 0 ||
                  strncmp(name, short_names[m], strlen(short_names[m])) == 0;
    return is_one;
}

/* Returns the part of a tensor's name behind the expert's number; NULL: it is no expert. */
static const char *behind_expert(const char *name, const char *prefix)
{
    static const char *const groups[] = {"experts.", "switch_mlp."};
    for (unsigned i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const size_t n = strlen(prefix), n_group = strlen(groups[i]);
        if (strncmp(name, prefix, n) != 0 || strncmp(name + n, groups[i], n_group) != 0)
            continue;
        name += n + n_group;
        name += strspn(name, "0123456789");
        return name + (*name == '.');
    }
    return NULL;
}

/* Notes the experts of a probe, in any of the forms that find_piece knows. */
static void note_experts(struct binder *b, const char *prefix)
{
    const struct source *source = b->model->source;
    char name[BINDER_NAME_BYTES];
    size_t low = 0, high = source->n_tensors; /* the first name that is not below the prefix */
    bool has_any = false;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(source->tensors[middle].name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < source->n_tensors &&
                         strncmp(source->tensors[i].name, prefix, strlen(prefix)) == 0; i++) {
        const char *rest = behind_expert(source->tensors[i].name, prefix);
        if (rest == NULL || !is_expert_matrix(rest))
            continue;
        b->model->uses[i].role = TENSOR_EXPERT;
        has_any = true;
    }
    (void)snprintf(name, sizeof name, "%sexperts.0.gate_proj.weight", prefix);
    if (!has_any)
        binder_note(b, name);
}

uint32_t binder_experts(struct binder *b, uint32_t layer_index, uint32_t n_experts,
                        uint32_t hidden, uint32_t intermediate, enum expert_order order,
                        const char *prefix)
{
    struct model *model = b->model;
    if (b->probe != NULL) {
        note_experts(b, prefix);
        return 0;
    }
    if (b->rc == 0)
        b->rc = mem_grow((void **)&model->expert_layers, &b->cap_expert_layers,
                         model->n_expert_layers + 1, sizeof *model->expert_layers,
                         "the expert table", b->err);
    if (b->rc != 0)
        return 0;
    struct expert_layer *layer = &model->expert_layers[model->n_expert_layers];
    *layer = (struct expert_layer){.layer = layer_index, .n_experts = n_experts,
                                   .order = (uint8_t)order};
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
