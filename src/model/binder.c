#include "model/binder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/binder_internal.h"

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
    mem_free(b->copies);
}

/* ---- small steps ---------------------------------------------------------------------------- */

const char *binder_file_of(const struct binder *b, const struct tensor_info *t)
{
    return b->model->source->files[t->parts[0].file].path;
}

void binder_wrong_shape(struct binder *b, const struct tensor_info *t, const char *expected)
{
    char shape[160];
    b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' has shape %s, expected %s",
                    binder_file_of(b, t), t->name, tensor_info_shape(t, shape, sizeof shape),
                    expected);
}

const struct tensor_info *binder_take(struct binder *b, const char *name, enum tensor_role role,
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
    *use = (struct tensor_use){.role = role, .quant = *quant, .n_cols = n_cols, .n_rows = 1,
                               .counted = use->counted};
    for (unsigned d = 0; d + 1 < t->n_dims; d++)
        use->n_rows *= t->dims[d]; /* cannot overflow: the bytes did not */
    if (t->scale != NULL && *quant == NULL) {
        char shape[160];
        b->rc = err_set(b->err, FM_ERR_FORMAT,
                        "%s: tensor '%s' %s with %llu scales per row does not fit %llu columns of "
                        "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
                        binder_file_of(b, t), name, tensor_info_shape(t, shape, sizeof shape),
                        (unsigned long long)t->n_scale_cols, (unsigned long long)n_cols);
        return NULL;
    }
    if (*quant == NULL) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has dtype %s, which this version does not read; "
                        "`flashmoe help formats` lists what it does",
                        binder_file_of(b, t), name, t->dtype);
        return NULL;
    }
    if (*quant == &quant_fp8_codes && role != TENSOR_TABLE) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is FP8 with one scale for all of it: this version reads "
                        "weights in FP8 with one scale per 128 x 128 of them",
                        binder_file_of(b, t), name);
        return NULL;
    }
    return t;
}

bool binder_has_cols(const struct tensor_info *t, uint32_t n_cols)
{
    return t->n_dims > 0 && (t->scale != NULL || t->dims[t->n_dims - 1] == n_cols);
}

/* Returns the index of the format's entry; MODEL_MAX_FORMATS: there is no room for it. */
static unsigned format_index(struct binder *b, const struct quant *quant, bool is_expert)
{
    struct model *m = b->model;
    unsigned i = 0;
    while (i < m->n_formats &&
           (m->formats[i].quant != quant || m->formats[i].is_expert != is_expert))
        i++;
    if (i == m->n_formats && i < MODEL_MAX_FORMATS)
        m->formats[m->n_formats++] = (struct model_format_use){.quant = quant,
                                                               .is_expert = is_expert};
    return i;
}

void binder_count_experts(struct binder *b, const struct quant *quant, uint64_t n_tensors,
                          uint64_t n_bytes)
{
    const unsigned i = format_index(b, quant, true);
    if (i == MODEL_MAX_FORMATS)
        return; /* a display limit only */
    b->model->formats[i].n_tensors += n_tensors;
    b->model->formats[i].n_bytes += n_bytes;
}

void binder_count_dense(struct binder *b, const struct tensor_info *t, const struct quant *quant,
                        uint64_t n_bytes)
{
    struct tensor_use *use = &b->model->uses[t - b->model->source->tensors];
    const unsigned i = format_index(b, quant, false);
    if (i == MODEL_MAX_FORMATS)
        return;
    b->model->formats[i].n_tensors += (use->counted >> i & 1) == 0;
    b->model->formats[i].n_bytes += n_bytes;
    use->counted |= 1u << i;
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

bool binder_is_probe(const struct binder *b)
{
    return b->probe != NULL;
}

void binder_note(struct binder *b, const char *name)
{
    const struct source *source = b->model->source;
    const struct tensor_info *t = source_find(source, name);
    if (t != NULL)
        b->model->uses[t - source->tensors].role = TENSOR_MATRIX;
    else
        name_set_add(&b->probe->wanted_tensors, name, strlen(name));
}

/* Formats the name; a name that does not fit is no tensor's name. Returns false if nothing is to be
 * bound. */
static bool format_name(struct binder *b, char *name, const char *fmt, va_list args)
{
    int n = vsnprintf(name, BINDER_NAME_BYTES, fmt, args);
    if (n > 0 && n < BINDER_NAME_BYTES && b->probe != NULL) {
        binder_note(b, name);
        return false;
    }
    if (n > 0 && n < BINDER_NAME_BYTES)
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
    m->has_head |= m->end_layer == n_layers && !m->leaves_head;
    if (b->rc == 0 && (m->first_layer >= m->end_layer || m->end_layer > n_layers))
        b->rc = err_set(b->err, FM_ERR_ARG, "'%s' has the layers 0 to %u, not %u to %u",
                        m->source->path, n_layers - 1, m->first_layer, m->end_layer - 1);
}

bool binder_has_layer(const struct binder *b, uint32_t layer)
{
    return layer >= b->model->first_layer && layer < b->model->end_layer;
}

bool binder_has_head(const struct binder *b)
{
    return b->model->has_head;
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
    char prefix[BINDER_NAME_BYTES];
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
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    const bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct tensor_info *t = ok ? source_find(b->model->source, name) : NULL;
    if (t != NULL)
        b->model->uses[t - b->model->source->tensors].role = TENSOR_ELSEWHERE;
}

/* ---- multi-token prediction ------------------------------------------------------------------ */

bool binder_wants_mtp(const struct binder *b)
{
    return b->wants_mtp && b->probe == NULL && b->rc == 0;
}

void binder_begin_mtp(struct binder *b)
{
    b->model->has_mtp = true;
    b->own_dense_bytes = b->dense_bytes;
    b->own_lookup_bytes = b->lookup_bytes;
    b->own_slot_bytes = b->model->expert_slot_bytes;
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

struct row_range *binder_ranges(struct binder *b, uint32_t n)
{
    struct row_range *ranges =
        b->rc == 0 ? mem_new(n, sizeof *ranges, "the rows of a matrix", b->err) : NULL;
    if (ranges == NULL && b->rc == 0)
        b->rc = FM_ERR_NOMEM;
    return ranges;
}

const struct tensor_info *binder_find(const struct binder *b, const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    int n = vsnprintf(name, sizeof name, name_fmt, args);
    va_end(args);
    return n > 0 && n < BINDER_NAME_BYTES ? source_find(b->model->source, name) : NULL;
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

/* Looks up a float tensor [n_rows, n_cols]. Returns NULL after a failure. */
static const struct tensor_info *take_floats(struct binder *b, uint32_t n_rows, uint32_t n_cols,
                                             const char *name, const struct quant **quant)
{
    const struct tensor_info *t = binder_take(b, name, TENSOR_VECTOR, n_cols, quant);
    if (t == NULL)
        return NULL;
    if ((*quant)->kind != QUANT_FLOAT) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has type %s; it is read in BF16, F16 and F32",
                        binder_file_of(b, t), name, t->dtype);
        return NULL;
    }
    if (is_table(t, n_rows, n_cols) && (uint64_t)n_rows * n_cols <= UINT32_MAX)
        return t;
    char expected[48];
    if (n_rows == 1)
        (void)snprintf(expected, sizeof expected, "[%u]", n_cols);
    else
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
    binder_wrong_shape(b, t, expected);
    return NULL;
}

/* Reads a tensor's floats, transposed if they are taken as n_rows rows. Returns their place. */
static uint64_t read_floats(struct binder *b, const struct tensor_info *t,
                            const struct quant *quant, uint32_t n_rows, uint32_t n,
                            enum vector_transform transform)
{
    uint64_t at = reserve(b, (uint64_t)n * sizeof(float));
    add_read(b, (struct dense_read){.file = t->parts[0].file, .offset = t->parts[0].offset,
                                    .bytes = t->parts[0].bytes, .dense_offset = at,
                                    .vector_quant = quant, .n = n, .n_rows = n_rows,
                                    .transform = transform});
    b->model->n_parameters += n;
    binder_count_dense(b, t, quant, t->parts[0].bytes);
    return at;
}

static void bind_floats(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                        enum vector_transform transform, const char *name)
{
    const struct quant *quant;
    const struct tensor_info *t = take_floats(b, n_rows, n_cols, name, &quant);
    if (t != NULL)
        add_pointer(b, (const void **)out,
                    read_floats(b, t, quant, n_rows, n_rows * n_cols, transform));
}

void binder_vector(struct binder *b, const float **out, uint32_t n,
                   enum vector_transform transform, const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
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
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    if (ok)
        bind_floats(b, out, n_rows, n_cols, VECTOR_PLAIN, name);
}

void binder_rows(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                 const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t = ok ? take_floats(b, n_rows, n_cols, name, &quant) : NULL;
    if (t != NULL)
        add_pointer(b, (const void **)out,
                    read_floats(b, t, quant, 1, n_rows * n_cols, VECTOR_PLAIN));
}

void binder_pairs(struct binder *b, const float **first, const float **second, uint32_t n_rows,
                  uint32_t n_cols, const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t = ok ? take_floats(b, n_rows, 2 * n_cols, name, &quant) : NULL;
    if (t == NULL)
        return;
    /* A transposed table of pairs is the first numbers, then the second. */
    const uint32_t n = n_rows * n_cols;
    const uint64_t at = read_floats(b, t, quant, n, 2 * n, VECTOR_PLAIN);
    add_pointer(b, (const void **)first, at);
    add_pointer(b, (const void **)second, at + (uint64_t)n * sizeof(float));
}

void binder_host_copy(struct binder *b, const float **out, const float *const *of, uint64_t n)
{
    if (b->rc == 0)
        b->rc = mem_grow((void **)&b->copies, &b->cap_copies, b->n_copies + 1, sizeof *b->copies,
                         "the list of weights", b->err);
    if (b->rc != 0)
        return;
    b->copies[b->n_copies++] = (struct dense_copy){out, of, n * sizeof(float)};
    b->model->host_copy_bytes += n * sizeof(float);
}

/* Returns the rows of a matrix or, if that is allowed, of several in one tensor; 0 for any other
 * tensor. */
static uint64_t rows_of(const struct tensor_info *t, bool may_be_several)
{
    uint64_t n = 0;
    if (t->n_dims == 3 && may_be_several && !mem_mul(t->dims[0], t->dims[1], &n))
        return 0;
    return t->n_dims == 2 ? t->dims[0] : n;
}

static const struct tensor_info *take_matrix(struct binder *b, const char *name,
                                             enum tensor_role role, uint32_t n_rows,
                                             uint32_t n_cols, bool may_be_several,
                                             const struct quant **quant)
{
    const struct tensor_info *t = binder_take(b, name, role, n_cols, quant);
    if (t == NULL)
        return NULL;
    if (rows_of(t, may_be_several) != n_rows || !binder_has_cols(t, n_cols)) {
        char expected[48];
        (void)snprintf(expected, sizeof expected, "[%u, %u]", n_rows, n_cols);
        binder_wrong_shape(b, t, expected);
        return NULL;
    }
    return t;
}

bool binder_is_cut(const struct quant *quant, unsigned part, uint64_t first)
{
    return quant->part_rows[part] <= 1 || first % quant->part_rows[part] == 0;
}

static bool are_cut(const struct quant *quant, const struct row_range *ranges, unsigned n_ranges)
{
    for (unsigned p = 0; p < quant->n_parts; p++)
        for (unsigned i = 0; i < n_ranges; i++)
            if (!binder_is_cut(quant, p, ranges[i].first) ||
                (i + 1 < n_ranges && !binder_is_cut(quant, p, ranges[i].count)))
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
    binder_count_dense(b, t, own, weight_bytes(out));
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
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t =
        ok ? take_matrix(b, name, role, n_rows, n_cols, false, &quant) : NULL;
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
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t =
        ok ? take_matrix(b, name, TENSOR_MATRIX, file_rows, n_cols, true, &quant) : NULL;
    if (t != NULL) {
        bind_rows(b, out, t, quant, n_cols, ranges, n_ranges);
        prepare_later(b, out);
    }
}

static void bind_turned(struct binder *b, struct weight *out, const struct tensor_info *t,
                        const struct quant *quant, uint32_t n_cols, uint32_t first_row,
                        uint32_t n_rows)
{
    const struct quant *own = quant->kind == QUANT_FLOAT ? quant : &quant_f32;
    const uint64_t row_bytes = quant_part_row_bytes(quant, 0, n_cols);
    *out = (struct weight){.quant = own, .n_rows = n_cols, .n_cols = n_rows};
    const uint64_t at = reserve(b, weight_bytes(out));
    add_read(b, (struct dense_read){
        .file = t->parts[0].file,
        .offset = t->parts[0].offset + quant_part_row(quant, 0, first_row) * row_bytes,
        .bytes = quant_matrix_bytes(quant, n_rows, n_cols), .dense_offset = at,
        .vector_quant = quant, .n = n_rows * n_cols, .n_rows = n_rows, .turned = t,
        .first_row = first_row, .turned_quant = own});
    add_pointer(b, &out->parts[0], at);
    b->model->n_parameters += (uint64_t)n_rows * n_cols;
    binder_count_dense(b, t, own, weight_bytes(out));
    prepare_later(b, out);
}

void binder_turned_rows(struct binder *b, struct weight *out, uint32_t file_rows, uint32_t n_cols,
                        uint32_t first_row, uint32_t n_rows, const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    bool ok = b->rc == 0 && format_name(b, name, name_fmt, args);
    va_end(args);
    const struct quant *quant;
    const struct tensor_info *t =
        ok ? take_matrix(b, name, TENSOR_MATRIX, file_rows, n_cols, false, &quant) : NULL;
    if (t != NULL)
        bind_turned(b, out, t, quant, n_cols, first_row, n_rows);
}

/* ---- the rest ------------------------------------------------------------------------------- */

void binder_ignore(struct binder *b, const char *prefix, bool is_warning, const char *why)
{
    const unsigned n = mark_prefix(b, prefix, TENSOR_IGNORED);
    b->model->n_ignored_tensors += n;
    if (n > 0 && b->probe == NULL)
        (is_warning ? log_warn : log_info)("model", "%u tensors below '%s' are not used: %s", n,
                                           prefix, why);
}

int binder_finish(struct binder *b)
{
    const struct source *source = b->model->source;
    for (size_t i = 0; i < source->n_tensors && b->rc == 0; i++)
        if (b->model->uses[i].role == TENSOR_UNKNOWN && b->probe != NULL)
            name_set_add(&b->probe->other_tensors, source->tensors[i].name,
                         strlen(source->tensors[i].name));
        else if (b->model->uses[i].role == TENSOR_UNKNOWN)
            b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                            "%s: tensor '%s' does not belong to a '%s' model; ignoring it would "
                            "give wrong results",
                            binder_file_of(b, &source->tensors[i]), source->tensors[i].name,
                            b->model->model_type);
    return b->rc;
}
