#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"

#define LENGTH_BYTES 8
#define METADATA "__metadata__"
/* Room for the path and " (safetensors header)". */
#define LABEL_BYTES (LIMIT_PATH_BYTES + 32)
/* Room for "[18446744073709551615, ...]" with the maximum number of dimensions. */
#define SHAPE_BYTES (22 * LIMIT_TENSOR_DIMS + 8)

struct dtype {
    const char *name;
    unsigned bytes; /* 0 for elements smaller than a byte, which are refused */
    const struct quant *quant;
};

static const struct dtype dtypes[] = {
    {"BF16", 2, &quant_bf16}, {"F16", 2, &quant_f16}, {"F32", 4, &quant_f32},
    {"BOOL", 1, NULL},        {"U8", 1, NULL},        {"I8", 1, NULL},
    {"F8_E5M2", 1, NULL},     {"F8_E4M3", 1, NULL},   {"F8_E8M0", 1, NULL},
    {"I16", 2, NULL},         {"U16", 2, NULL},       {"I32", 4, NULL},
    {"U32", 4, NULL},         {"I64", 8, NULL},       {"U64", 8, NULL},
    {"F64", 8, NULL},         {"C64", 8, NULL},       {"F4", 0, NULL},
    {"F6_E2M3", 0, NULL},     {"F6_E3M2", 0, NULL},
};

/* What reading one entry needs to know about its file. */
struct place {
    const char *path;
    uint64_t data_begin; /* absolute */
    uint64_t data_bytes;
};

static const struct dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

static int wrong_field(const struct place *place, const char *name, const char *field,
                       const json_t *value, const char *expected, struct fm_error *err)
{
    if (value == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: tensor '%.160s' has no %s", place->path, name,
                       field);
    char shown[80];
    return err_set(err, FM_ERR_FORMAT, "%s: tensor '%.160s': %s is %s, expected %s", place->path,
                   name, field, jdoc_show(value, shown, sizeof shown), expected);
}

static int read_dtype(const struct place *place, const char *name, const json_t *entry,
                      const struct dtype **out, struct fm_error *err)
{
    const json_t *value = json_object_get(entry, "dtype");
    if (!json_is_string(value))
        return wrong_field(place, name, "dtype", value, "a string", err);
    *out = find_dtype(json_string_value(value));
    if (*out == NULL)
        return wrong_field(place, name, "dtype", value, "a known one such as \"BF16\"", err);
    if ((*out)->bytes == 0)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: tensor '%.160s' has dtype %s, whose elements are smaller than a byte; "
                       "this version cannot read it",
                       place->path, name, (*out)->name);
    return 0;
}

static int read_shape(const struct place *place, const char *name, const json_t *entry,
                      struct tensor_info *t, struct fm_error *err)
{
    const char *expected = "an array of non-negative integers";
    const json_t *value = json_object_get(entry, "shape");
    if (!json_is_array(value))
        return wrong_field(place, name, "shape", value, expected, err);
    size_t n = json_array_size(value);
    if (n > LIMIT_TENSOR_DIMS)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s' has %zu dimensions, more than the limit of %d",
                       place->path, name, n, LIMIT_TENSOR_DIMS);
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(value, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return wrong_field(place, name, "shape", value, expected, err);
        t->dims[i] = (uint64_t)json_integer_value(dim);
    }
    t->n_dims = (unsigned)n;
    return 0;
}

/* Computes the size of a tensor of that shape. Dimensions of 0 are left out of the overflow check,
 * so that no partial product of dimensions can overflow either. */
static int shape_bytes(const struct place *place, const struct tensor_info *t,
                       const struct dtype *dtype, uint64_t *out, struct fm_error *err)
{
    uint64_t bytes = dtype->bytes;
    bool is_empty = false;
    for (unsigned i = 0; i < t->n_dims; i++) {
        is_empty = is_empty || t->dims[i] == 0;
        if (t->dims[i] != 0 && !mem_mul(bytes, t->dims[i], &bytes)) {
            char shape[SHAPE_BYTES];
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensor '%.160s': the bytes of shape %s in dtype %s overflow 64 "
                           "bits",
                           place->path, t->name, tensor_info_shape(t, shape, sizeof shape),
                           dtype->name);
        }
    }
    *out = is_empty ? 0 : bytes;
    return 0;
}

static int read_offsets(const struct place *place, const char *name, const json_t *entry,
                        struct tensor_info *t, struct fm_error *err)
{
    const json_t *value = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(value, 0), *second = json_array_get(value, 1);
    json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(first) ||
        !json_is_integer(second) || begin < 0 || end < 0)
        return wrong_field(place, name, "data_offsets", value,
                           "an array of two non-negative integers", err);
    if (begin > end)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s': data_offsets [%lld, %lld] end before they begin",
                       place->path, name, (long long)begin, (long long)end);
    if ((uint64_t)end > place->data_bytes)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.160s': data_offsets [%lld, %lld] end beyond the file, which "
                       "has %llu bytes after its header",
                       place->path, name, (long long)begin, (long long)end,
                       (unsigned long long)place->data_bytes);
    t->parts[0].offset = place->data_begin + (uint64_t)begin;
    t->parts[0].bytes = (uint64_t)(end - begin);
    return 0;
}

static int read_entry(const struct place *place, const char *name, const json_t *entry,
                      struct tensor_info *t, struct fm_error *err)
{
    if (!json_is_object(entry)) {
        char shown[80];
        return err_set(err, FM_ERR_FORMAT, "%s: tensor '%.160s' is %s, expected an object",
                       place->path, name, jdoc_show(entry, shown, sizeof shown));
    }
    const struct dtype *dtype = NULL;
    uint64_t need = 0;
    int rc = read_dtype(place, name, entry, &dtype, err);
    if (rc == 0)
        rc = read_shape(place, name, entry, t, err);
    if (rc == 0)
        rc = shape_bytes(place, t, dtype, &need, err);
    if (rc == 0)
        rc = read_offsets(place, name, entry, t, err);
    if (rc != 0)
        return rc;
    t->dtype = dtype->name;
    t->quant = dtype->quant;
    t->n_parts = 1;
    if (t->parts[0].bytes == need)
        return 0;
    char shape[SHAPE_BYTES];
    return err_set(err, FM_ERR_FORMAT,
                   "%s: tensor '%.160s': shape %s in dtype %s needs %llu bytes, but its "
                   "data_offsets hold %llu",
                   place->path, name, tensor_info_shape(t, shape, sizeof shape), dtype->name,
                   (unsigned long long)need, (unsigned long long)t->parts[0].bytes);
}

static int check_metadata(const char *path, json_t *metadata, struct fm_error *err)
{
    char shown[80];
    if (json_is_null(metadata))
        return 0;
    if (!json_is_object(metadata))
        return err_set(err, FM_ERR_FORMAT, "%s: %s is %s, expected an object of strings", path,
                       METADATA, jdoc_show(metadata, shown, sizeof shown));
    for (void *i = json_object_iter(metadata); i != NULL; i = json_object_iter_next(metadata, i))
        if (!json_is_string(json_object_iter_value(i)))
            return err_set(err, FM_ERR_FORMAT,
                           "%s: field '%.160s' of %s is %s, expected a string", path,
                           json_object_iter_key(i), METADATA,
                           jdoc_show(json_object_iter_value(i), shown, sizeof shown));
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor_info *x = a, *y = b;
    if (x->parts[0].offset != y->parts[0].offset)
        return x->parts[0].offset < y->parts[0].offset ? -1 : 1;
    if (x->parts[0].bytes != y->parts[0].bytes)
        return x->parts[0].bytes < y->parts[0].bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Tensors must not overlap, and the last one must end at the end of the file: with a wrong header
 * length every tensor would be read a few bytes off. */
static int check_cover(const struct safetensors *st, const struct place *place,
                       struct fm_error *err)
{
    const struct tensor_info *last = NULL; /* with at least one byte */
    uint64_t end = place->data_begin;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct tensor_info *t = &st->tensors[i];
        const struct tensor_part *part = &t->parts[0];
        if (part->bytes == 0)
            continue;
        if (part->offset < end)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensors '%.160s' and '%.160s' overlap: data_offsets [%llu, %llu] "
                           "and [%llu, %llu]",
                           place->path, last->name, t->name,
                           (unsigned long long)(last->parts[0].offset - place->data_begin),
                           (unsigned long long)(end - place->data_begin),
                           (unsigned long long)(part->offset - place->data_begin),
                           (unsigned long long)(part->offset + part->bytes - place->data_begin));
        last = t;
        end = part->offset + part->bytes;
    }
    if (end != place->data_begin + place->data_bytes)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the tensors end at byte %llu, the file at byte %llu: the file is "
                       "damaged; download it again",
                       place->path, (unsigned long long)end,
                       (unsigned long long)(place->data_begin + place->data_bytes));
    return 0;
}

/* Counts the tensors of a header and allocates them, followed by their names. */
static int make_room(struct safetensors *st, json_t *root, char **names, struct fm_error *err)
{
    size_t n = 0;
    for (void *i = json_object_iter(root); i != NULL; i = json_object_iter_next(root, i)) {
        if (strcmp(json_object_iter_key(i), METADATA) == 0)
            continue;
        n++;
        st->names_bytes += strlen(json_object_iter_key(i)) + 1;
    }
    /* Both terms are bounded by the header, which is at most LIMIT_SAFETENSORS_HEADER_BYTES. */
    uint64_t tensors_bytes = (uint64_t)n * sizeof *st->tensors;
    st->tensors = mem_new(tensors_bytes + st->names_bytes, 1, "tensor descriptions", err);
    if (st->tensors == NULL)
        return FM_ERR_NOMEM;
    *names = (char *)st->tensors + tensors_bytes;
    return 0;
}

static int fill(struct safetensors *st, const struct place *place, json_t *root,
                struct fm_error *err)
{
    char *names = NULL;
    int rc = make_room(st, root, &names, err);
    if (rc != 0)
        return rc;
    for (void *i = json_object_iter(root); i != NULL; i = json_object_iter_next(root, i)) {
        const char *key = json_object_iter_key(i);
        if (strcmp(key, METADATA) == 0) {
            rc = check_metadata(place->path, json_object_iter_value(i), err);
            if (rc != 0)
                return rc;
            continue;
        }
        struct tensor_info *t = &st->tensors[st->n_tensors];
        size_t bytes = strlen(key) + 1;
        memcpy(names, key, bytes);
        t->name = names;
        names += bytes;
        rc = read_entry(place, t->name, json_object_iter_value(i), t, err);
        if (rc != 0)
            return rc;
        st->n_tensors++;
    }
    qsort(st->tensors, st->n_tensors, sizeof *st->tensors, by_offset);
    return check_cover(st, place, err);
}

/* Parses the JSON text of a header, which begins at byte 8. */
static int parse_text(struct safetensors *out, const char *path, const char *text,
                      uint64_t text_bytes, uint64_t file_bytes, struct fm_error *err)
{
    struct place place = {path, LENGTH_BYTES + text_bytes, 0};
    place.data_bytes = file_bytes - place.data_begin;
    char label[LABEL_BYTES];
    (void)snprintf(label, sizeof label, "%s (safetensors header)", path);
    struct jdoc header;
    int rc = jdoc_parse(&header, label, text, (size_t)text_bytes, err);
    if (rc == 0)
        rc = fill(out, &place, header.root, err);
    jdoc_clear(&header);
    if (rc != 0)
        safetensors_clear(out);
    return rc;
}

static int too_short(const char *path, uint64_t file_bytes, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT,
                   "%s: %llu bytes, too short for a safetensors file, which begins with 8 bytes "
                   "of header length",
                   path, (unsigned long long)file_bytes);
}

/* Decodes and checks the length of the header. */
static int read_length(const char *path, const unsigned char length[LENGTH_BYTES],
                       uint64_t file_bytes, uint64_t *out, struct fm_error *err)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        n |= (uint64_t)length[i] << (8 * i);
    if (n == 0)
        return err_set(err, FM_ERR_FORMAT, "%s: the safetensors header length is 0", path);
    if (n > file_bytes - LENGTH_BYTES && memcmp(length, "version ", LENGTH_BYTES) == 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: this is a Git LFS pointer of %llu bytes, not a safetensors file; "
                       "download the file itself, for example with 'git lfs pull'",
                       path, (unsigned long long)file_bytes);
    if (n > file_bytes - LENGTH_BYTES)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the safetensors header length is %llu, but only %llu bytes follow it: "
                       "the file is truncated or not a safetensors file; download it again",
                       path, (unsigned long long)n,
                       (unsigned long long)(file_bytes - LENGTH_BYTES));
    if (n > LIMIT_SAFETENSORS_HEADER_BYTES)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the safetensors header length is %llu, more than the limit of %u", path,
                       (unsigned long long)n, LIMIT_SAFETENSORS_HEADER_BYTES);
    *out = n;
    return 0;
}

int safetensors_read(struct safetensors *out, int fd, const char *path, uint64_t file_bytes,
                     struct fm_error *err)
{
    *out = (struct safetensors){0};
    if (file_bytes < LENGTH_BYTES)
        return too_short(path, file_bytes, err);
    unsigned char length[LENGTH_BYTES];
    uint64_t n = 0;
    int rc = plat_read_at(fd, path, length, sizeof length, 0, err);
    if (rc == 0)
        rc = read_length(path, length, file_bytes, &n, err);
    if (rc != 0)
        return rc;
    char *text = mem_new(n, 1, "a safetensors header", err);
    if (text == NULL)
        return FM_ERR_NOMEM;
    rc = plat_read_at(fd, path, text, n, LENGTH_BYTES, err);
    if (rc == 0)
        rc = parse_text(out, path, text, n, file_bytes, err);
    mem_free(text);
    return rc;
}

int safetensors_parse(struct safetensors *out, const char *path, const void *head,
                      size_t head_bytes, uint64_t file_bytes, struct fm_error *err)
{
    *out = (struct safetensors){0};
    if (head_bytes < LENGTH_BYTES || file_bytes < LENGTH_BYTES)
        return too_short(path, head_bytes < file_bytes ? head_bytes : file_bytes, err);
    uint64_t n = 0;
    int rc = read_length(path, head, file_bytes, &n, err);
    if (rc != 0)
        return rc;
    if (n > head_bytes - LENGTH_BYTES)
        return err_set(err, FM_ERR_ARG, "%s: %zu bytes were given of a header of %llu", path,
                       head_bytes - LENGTH_BYTES, (unsigned long long)n);
    return parse_text(out, path, (const char *)head + LENGTH_BYTES, n, file_bytes, err);
}

void safetensors_clear(struct safetensors *st)
{
    mem_free(st->tensors);
    *st = (struct safetensors){0};
}
