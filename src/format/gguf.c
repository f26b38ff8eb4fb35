/* The container: header, metadata, descriptions of tensors. */
#include "format/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "format/gguf_internal.h"

#define MAGIC_BYTES 4
#define FIXED_BYTES 24 /* magic, version, number of tensors, number of values */
#define MAX_DIMS 4     /* the limit of ggml */
#define MAX_NESTING 4
#define DEFAULT_ALIGNMENT 32
#define MAX_ALIGNMENT (1u << 20)
/* Size of the first read of gguf_read; later reads are larger. */
#define FIRST_READ_BYTES (256u * 1024)
#define READ_GROWTH 4
/* Room for "[18446744073709551615, ...]" with the maximum number of dimensions. */
#define SHAPE_BYTES (22 * MAX_DIMS + 8)

static const struct gguf_format formats[] = {
    {0, "F32", "f32", 1, 4},          {1, "F16", "f16", 1, 2},
    {2, "Q4_0", "q4_0", 32, 18},      {3, "Q4_1", "q4_1", 32, 20},
    {6, "Q5_0", "q5_0", 32, 22},      {7, "Q5_1", "q5_1", 32, 24},
    {8, "Q8_0", "q8_0", 32, 34},      {9, "Q8_1", "q8_1", 32, 36},
    {10, "Q2_K", "q2_k", 256, 84},    {11, "Q3_K", "q3_k", 256, 110},
    {12, "Q4_K", "q4_k", 256, 144},   {13, "Q5_K", "q5_k", 256, 176},
    {14, "Q6_K", "q6_k", 256, 210},   {15, "Q8_K", "q8_k", 256, 292},
    {16, "IQ2_XXS", "iq2_xxs", 256, 66}, {17, "IQ2_XS", "iq2_xs", 256, 74},
    {18, "IQ3_XXS", "iq3_xxs", 256, 98}, {19, "IQ1_S", "iq1_s", 256, 50},
    {20, "IQ4_NL", "iq4_nl", 32, 18}, {21, "IQ3_S", "iq3_s", 256, 110},
    {22, "IQ2_S", "iq2_s", 256, 82},  {23, "IQ4_XS", "iq4_xs", 256, 136},
    {24, "I8", "i8", 1, 1},           {25, "I16", "i16", 1, 2},
    {26, "I32", "i32", 1, 4},         {27, "I64", "i64", 1, 8},
    {28, "F64", "f64", 1, 8},         {29, "IQ1_M", "iq1_m", 256, 56},
    {30, "BF16", "bf16", 1, 2},       {34, "TQ1_0", "tq1_0", 256, 54},
    {35, "TQ2_0", "tq2_0", 256, 66},  {39, "MXFP4", "mxfp4", 32, 17},
    {40, "NVFP4", "nvfp4", 64, 36},   {41, "Q1_0", "q1_0", 128, 18},
    {42, "Q2_0", "q2_0", 64, 18},
};

const struct gguf_format *gguf_format_at(unsigned i)
{
    return i < sizeof formats / sizeof formats[0] ? &formats[i] : NULL;
}

const struct gguf_format *gguf_format_find(uint32_t id)
{
    for (unsigned i = 0; gguf_format_at(i) != NULL; i++)
        if (formats[i].id == id)
            return &formats[i];
    return NULL;
}

/* ---- a walk through the bytes ------------------------------------------------------------ */

/* Keeps the first failure; later calls do nothing. */
struct cursor {
    const char *path;
    const uint8_t *bytes;
    uint64_t n;          /* bytes available */
    uint64_t file_bytes; /* of the whole file */
    uint64_t at;
    const char *what; /* "entry" or "tensor", number `index` of which is being read */
    uint64_t index, count;
    bool wants_more; /* it failed because more bytes are needed */
    int rc;
    struct fm_error *err;
};

static void fail_beyond(struct cursor *c, uint64_t bytes)
{
    c->rc = err_set(c->err, FM_ERR_FORMAT,
                    "%s: the header is longer than the file: %s %llu of %llu needs %llu bytes, but "
                    "only %llu are left: the file is truncated or damaged; download it again",
                    c->path, c->what, (unsigned long long)(c->index + 1),
                    (unsigned long long)c->count, (unsigned long long)bytes,
                    (unsigned long long)(c->file_bytes - c->at));
}

/* Returns the next bytes, or NULL after a failure. */
static const uint8_t *take(struct cursor *c, uint64_t bytes)
{
    if (c->rc != 0)
        return NULL;
    if (bytes > c->file_bytes - c->at) {
        fail_beyond(c, bytes);
        return NULL;
    }
    if (bytes > c->n - c->at) {
        c->wants_more = true;
        c->rc = err_set(c->err, FM_ERR_ARG, "%s: the header is longer than the %llu bytes given",
                        c->path, (unsigned long long)c->n);
        return NULL;
    }
    const uint8_t *p = c->bytes + c->at;
    c->at += bytes;
    return p;
}

uint64_t gguf_get_le(const uint8_t *p, unsigned bytes)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < bytes; i++)
        n |= (uint64_t)p[i] << (8 * i);
    return n;
}

static uint64_t take_uint(struct cursor *c, unsigned bytes)
{
    const uint8_t *p = take(c, bytes);
    return p != NULL ? gguf_get_le(p, bytes) : 0;
}

static const uint8_t *take_string(struct cursor *c, uint64_t *bytes)
{
    *bytes = take_uint(c, 8);
    return take(c, *bytes);
}

/* Reads a key or a tensor name: not empty, not too long and printable. */
static const char *take_name(struct cursor *c, uint32_t *bytes)
{
    uint64_t n = 0;
    const uint8_t *name = take_string(c, &n);
    *bytes = (uint32_t)n;
    if (name == NULL)
        return NULL;
    if (n == 0 || n > LIMIT_GGUF_NAME_BYTES) {
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: %s %llu of %llu has a name of %llu bytes, expected 1 to %d", c->path,
                        c->what, (unsigned long long)(c->index + 1), (unsigned long long)c->count,
                        (unsigned long long)n, LIMIT_GGUF_NAME_BYTES);
        return NULL;
    }
    bool is_fit = gguf_is_text(name, n);
    for (uint64_t i = 0; i < n; i++)
        is_fit = is_fit && name[i] >= 0x20 && name[i] != 0x7f;
    if (!is_fit) {
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: the name of %s %llu of %llu is not printable text: the file is "
                        "damaged; download it again",
                        c->path, c->what, (unsigned long long)(c->index + 1),
                        (unsigned long long)c->count);
        return NULL;
    }
    return (const char *)name;
}

bool gguf_is_text(const uint8_t *bytes, uint64_t n)
{
    for (uint64_t at = 0; at < n;) {
        const uint8_t lead = bytes[at];
        const unsigned more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
        static const uint32_t lowest[] = {0, 0x80, 0x800, 0x10000};
        if (lead == 0 || (lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || more >= n - at)
            return false;
        uint32_t c = more == 0 ? lead : lead & (0x3fu >> more);
        for (unsigned i = 1; i <= more; i++) {
            if ((bytes[at + i] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (bytes[at + i] & 0x3f);
        }
        if (c < lowest[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return false;
        at += more + 1;
    }
    return true;
}

/* ---- metadata ---------------------------------------------------------------------------- */

/* Returns the size of a value; 0 for strings and arrays. */
unsigned gguf_type_bytes(uint32_t type)
{
    static const uint8_t bytes[N_GGUF_TYPES] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2, [GGUF_U32] = 4,
        [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8,
        [GGUF_F64] = 8,
    };
    return type < N_GGUF_TYPES ? bytes[type] : 0;
}

static bool check_type(struct cursor *c, uint32_t type)
{
    if (c->rc == 0 && type >= N_GGUF_TYPES)
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: %s %llu of %llu has a value of type %u, expected a type below %d",
                        c->path, c->what, (unsigned long long)(c->index + 1),
                        (unsigned long long)c->count, type, N_GGUF_TYPES);
    return c->rc == 0;
}

/* Skips n values of one type. A string takes at least 8 bytes and an array 12, so the size of the
 * file bounds the number of steps. */
static void walk_elements(struct cursor *c, uint32_t type, uint64_t n, unsigned depth)
{
    const unsigned fixed = gguf_type_bytes(type);
    uint64_t bytes = 0;
    if (!mem_mul(n, fixed > 0 ? fixed : type == GGUF_STRING ? 8 : 12, &bytes))
        bytes = UINT64_MAX;
    if (fixed > 0) {
        (void)take(c, bytes);
        return;
    }
    if (c->rc == 0 && bytes > c->file_bytes - c->at)
        fail_beyond(c, bytes);
    if (c->rc == 0 && type == GGUF_ARRAY && depth == MAX_NESTING)
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: entry %llu of %llu has arrays nested more than %d deep", c->path,
                        (unsigned long long)(c->index + 1), (unsigned long long)c->count,
                        MAX_NESTING);
    for (uint64_t i = 0; i < n && c->rc == 0; i++) {
        uint64_t ignored;
        if (type == GGUF_STRING) {
            (void)take_string(c, &ignored);
            continue;
        }
        const uint32_t inner = (uint32_t)take_uint(c, 4);
        const uint64_t n_inner = take_uint(c, 8);
        if (check_type(c, inner))
            walk_elements(c, inner, n_inner, depth + 1);
    }
}

static void read_value(struct cursor *c, struct gguf_value *v)
{
    v->key = take_name(c, &v->key_bytes);
    v->type = (uint32_t)take_uint(c, 4);
    if (!check_type(c, v->type))
        return;
    if (v->type == GGUF_STRING) {
        v->data = take_string(c, &v->n);
    } else if (v->type == GGUF_ARRAY) {
        v->element_type = (uint32_t)take_uint(c, 4);
        v->n = take_uint(c, 8);
        v->data = c->bytes + c->at;
        if (check_type(c, v->element_type))
            walk_elements(c, v->element_type, v->n, 1);
    } else {
        v->n = 1;
        v->data = take(c, gguf_type_bytes(v->type));
    }
}

static int compare_names(const char *a, uint32_t a_bytes, const char *b, uint32_t b_bytes)
{
    const int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *x = a, *y = b;
    return compare_names(x->key, x->key_bytes, y->key, y->key_bytes);
}

static int read_values(struct cursor *c, struct gguf *g, uint64_t n)
{
    size_t capacity = 0;
    c->what = "entry";
    c->count = n;
    for (c->index = 0; c->index < n && c->rc == 0; c->index++) {
        if (mem_grow((void **)&g->values, &capacity, g->n_values + 1, sizeof *g->values,
                     "metadata", c->err) != 0)
            return FM_ERR_NOMEM;
        struct gguf_value value = {0};
        read_value(c, &value);
        g->values[g->n_values++] = value;
    }
    if (c->rc != 0)
        return c->rc;
    if (n > 0)
        qsort(g->values, g->n_values, sizeof *g->values, by_key);
    for (size_t i = 1; i < g->n_values; i++)
        if (by_key(&g->values[i - 1], &g->values[i]) == 0)
            return err_set(c->err, FM_ERR_FORMAT, "%s: key '%.*s' occurs twice", c->path,
                           (int)g->values[i].key_bytes, g->values[i].key);
    return 0;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    const size_t bytes = strlen(key);
    const struct gguf_value wanted = {.key = key, .key_bytes = (uint32_t)bytes};
    return g->n_values == 0 || bytes > LIMIT_GGUF_NAME_BYTES
               ? NULL
               : bsearch(&wanted, g->values, g->n_values, sizeof *g->values, by_key);
}

/* ---- tensors ----------------------------------------------------------------------------- */

static const char *show_shape(const struct gguf_tensor *t, char buffer[SHAPE_BYTES])
{
    struct tensor_info info = {.n_dims = t->n_dims};
    memcpy(info.dims, t->dims, sizeof info.dims);
    return tensor_info_shape(&info, buffer, SHAPE_BYTES);
}

/* Computes the size of the tensor. Dimensions of 0 are left out of the overflow check, so that no
 * partial product of dimensions can overflow either. */
static void set_bytes(struct cursor *c, struct gguf_tensor *t)
{
    char shape[SHAPE_BYTES];
    const struct gguf_format *f = t->format;
    const uint64_t n_cols = t->n_dims > 0 ? t->dims[t->n_dims - 1] : 1;
    if (n_cols % f->block != 0) {
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: tensor '%.*s' has rows of %llu values, but its type %s has blocks "
                        "of %u",
                        c->path, (int)t->name_bytes, t->name, (unsigned long long)n_cols, f->name,
                        f->block);
        return;
    }
    uint64_t n_elements = 1, bytes;
    bool is_empty = false;
    for (unsigned d = 0; d < t->n_dims; d++) {
        is_empty = is_empty || t->dims[d] == 0;
        if (t->dims[d] != 0 && !mem_mul(n_elements, t->dims[d], &n_elements))
            n_elements = UINT64_MAX; /* any further dimension makes it overflow again */
    }
    /* A block has less than 16 bytes per value, so fewer than 2^60 elements cannot overflow. */
    if (n_elements >= UINT64_C(1) << 60) {
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: tensor '%.*s': the bytes of shape %s in type %s overflow 64 bits",
                        c->path, (int)t->name_bytes, t->name, show_shape(t, shape), f->name);
        return;
    }
    bytes = n_elements / f->block * f->block_bytes;
    t->bytes = is_empty ? 0 : bytes;
}

static void read_tensor(struct cursor *c, struct gguf_tensor *t)
{
    t->name = take_name(c, &t->name_bytes);
    const uint32_t n_dims = (uint32_t)take_uint(c, 4);
    if (c->rc == 0 && n_dims > MAX_DIMS)
        c->rc = err_set(c->err, FM_ERR_FORMAT,
                        "%s: tensor '%.*s' has %u dimensions, more than the limit of %d", c->path,
                        (int)t->name_bytes, t->name, n_dims, MAX_DIMS);
    if (c->rc != 0)
        return;
    t->n_dims = n_dims;
    for (unsigned d = n_dims; d-- > 0;)
        t->dims[d] = take_uint(c, 8);
    const uint32_t id = (uint32_t)take_uint(c, 4);
    t->offset = take_uint(c, 8); /* place_tensors makes it absolute */
    t->format = gguf_format_find(id);
    if (c->rc == 0 && t->format == NULL)
        c->rc = err_set(c->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%.*s' has type %u, which this version does not support",
                        c->path, (int)t->name_bytes, t->name, id);
    if (c->rc == 0)
        set_bytes(c, t);
}

static int by_name(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    return compare_names(x->name, x->name_bytes, y->name, y->name_bytes);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return by_name(a, b);
}

static int read_tensors(struct cursor *c, struct gguf *g, uint64_t n)
{
    size_t capacity = 0;
    c->what = "tensor";
    c->count = n;
    for (c->index = 0; c->index < n && c->rc == 0; c->index++) {
        if (mem_grow((void **)&g->tensors, &capacity, g->n_tensors + 1, sizeof *g->tensors,
                     "tensor descriptions", c->err) != 0)
            return FM_ERR_NOMEM;
        struct gguf_tensor tensor = {0};
        read_tensor(c, &tensor);
        g->tensors[g->n_tensors++] = tensor;
    }
    if (c->rc != 0)
        return c->rc;
    if (n > 0)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return err_set(c->err, FM_ERR_FORMAT, "%s: tensor '%.*s' occurs twice", c->path,
                           (int)g->tensors[i].name_bytes, g->tensors[i].name);
    return 0;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].name_bytes == bytes && memcmp(g->tensors[i].name, name, bytes) == 0)
            return &g->tensors[i];
    return NULL;
}

/* ---- where the data lies ----------------------------------------------------------------- */

static int read_alignment(const struct gguf *g, uint64_t *alignment, struct fm_error *err)
{
    int rc = gguf_uint_or(g, "general.alignment", 1, MAX_ALIGNMENT, DEFAULT_ALIGNMENT, alignment,
                          err);
    if (rc == 0 && (*alignment & (*alignment - 1)) != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: general.alignment is %llu, expected a power of two", g->path,
                     (unsigned long long)*alignment);
    return rc;
}

/* Makes offsets absolute and checks that they lie inside the file. */
static int place_tensors(struct gguf *g, uint64_t header_bytes, uint64_t file_bytes,
                         struct fm_error *err)
{
    uint64_t alignment, end = 0;
    int rc = read_alignment(g, &alignment, err);
    if (rc != 0)
        return rc;
    g->data_begin = mem_round_up(header_bytes, alignment);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t t_end;
        if (t->offset % alignment != 0)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensor '%.*s' has offset %llu, expected a multiple of %llu",
                           g->path, (int)t->name_bytes, t->name, (unsigned long long)t->offset,
                           (unsigned long long)alignment);
        if (!mem_add(t->offset, g->data_begin, &t->offset) ||
            !mem_add(t->offset, t->bytes, &t_end))
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensor '%.*s': offset and bytes overflow 64 bits", g->path,
                           (int)t->name_bytes, t->name);
        if (t_end > end)
            end = t_end;
    }
    if (end > file_bytes)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the file has %llu bytes, but its tensors end at byte %llu: the file is "
                       "truncated, %llu bytes are missing; download it again",
                       g->path, (unsigned long long)file_bytes, (unsigned long long)end,
                       (unsigned long long)(end - file_bytes));
    return 0;
}

static int check_overlap(struct gguf *g, struct fm_error *err)
{
    if (g->n_tensors > 0)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_offset);
    const struct gguf_tensor *last = NULL; /* with at least one byte */
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        if (t->bytes == 0)
            continue;
        if (last != NULL && t->offset < last->offset + last->bytes)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: tensors '%.*s' and '%.*s' overlap: bytes %llu to %llu and %llu "
                           "to %llu",
                           g->path, (int)last->name_bytes, last->name, (int)t->name_bytes,
                           t->name, (unsigned long long)last->offset,
                           (unsigned long long)(last->offset + last->bytes),
                           (unsigned long long)t->offset,
                           (unsigned long long)(t->offset + t->bytes));
        last = t;
    }
    return 0;
}

/* ---- the header -------------------------------------------------------------------------- */

static int check_magic(const char *path, const uint8_t *head, uint64_t head_bytes,
                       uint64_t file_bytes, struct fm_error *err)
{
    const char lfs[] = "version ";
    if (head_bytes >= sizeof lfs - 1 && memcmp(head, lfs, sizeof lfs - 1) == 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: this is a Git LFS pointer of %llu bytes, not a GGUF file; download the "
                       "file itself, for example with 'git lfs pull'",
                       path, (unsigned long long)file_bytes);
    if (file_bytes < FIXED_BYTES || head_bytes < FIXED_BYTES)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the file has %llu bytes, but a GGUF header has at least %d: the file "
                       "is truncated or not GGUF; download it again",
                       path, (unsigned long long)file_bytes, FIXED_BYTES);
    const uint64_t version = gguf_get_le(head + MAGIC_BYTES, 4);
    const bool is_gguf = memcmp(head, "GGUF", MAGIC_BYTES) == 0;
    if (memcmp(head, "FUGG", MAGIC_BYTES) == 0 || (is_gguf && version != 0 && version % 65536 == 0))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: the GGUF file is big-endian; this version reads only "
                       "little-endian files",
                       path);
    if (!is_gguf)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: not a GGUF file: it begins with the bytes %02x %02x %02x %02x, "
                       "expected \"GGUF\"",
                       path, head[0], head[1], head[2], head[3]);
    if (version != 2 && version != 3)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: the file has GGUF version %llu; this version reads 2 and 3", path,
                       (unsigned long long)version);
    return 0;
}

static int check_count(const struct cursor *c, const char *what, uint64_t n, uint64_t max)
{
    if (n <= max)
        return 0;
    return err_set(c->err, FM_ERR_FORMAT, "%s: the header declares %llu %s, more than the limit of "
                   "%llu: the file is damaged; download it again",
                   c->path, (unsigned long long)n, what, (unsigned long long)max);
}

static int parse(struct gguf *g, struct cursor *c)
{
    *g = (struct gguf){.path = c->path};
    int rc = check_magic(c->path, c->bytes, c->n, c->file_bytes, c->err);
    if (rc != 0)
        return rc;
    c->at = 8;
    const uint64_t n_tensors = take_uint(c, 8), n_values = take_uint(c, 8);
    rc = check_count(c, "tensors", n_tensors, LIMIT_GGUF_TENSORS);
    if (rc == 0)
        rc = check_count(c, "entries of metadata", n_values, LIMIT_GGUF_VALUES);
    if (rc == 0)
        rc = read_values(c, g, n_values);
    if (rc == 0)
        rc = read_tensors(c, g, n_tensors);
    if (rc == 0)
        rc = place_tensors(g, c->at, c->file_bytes, c->err);
    return rc != 0 ? rc : check_overlap(g, c->err);
}

int gguf_parse(struct gguf *out, const char *path, const void *head, size_t head_bytes,
               uint64_t file_bytes, struct fm_error *err)
{
    struct cursor c = {.path = path,
                       .bytes = head,
                       .n = head_bytes < file_bytes ? head_bytes : file_bytes,
                       .file_bytes = file_bytes,
                       .err = err};
    const int rc = parse(out, &c);
    if (rc != 0)
        gguf_clear(out);
    return rc;
}

/* Continues reading from *have to `want` bytes or to the end of the file; a spare ends after the
 * header. */
static int read_more(int fd, const char *path, void *bytes, uint64_t *have, uint64_t want,
                     struct fm_error *err)
{
    const int64_t got = plat_read_some(fd, (uint8_t *)bytes + *have, want - *have, *have);
    if (got < 0)
        return err_set(err, FM_ERR_IO, "cannot read '%s' at byte %llu: %s", path,
                       (unsigned long long)*have, strerror((int)-got));
    if (got == 0 && want > *have)
        return err_set(err, FM_ERR_IO, "'%s' ends early, at byte %llu", path,
                       (unsigned long long)*have);
    *have += (uint64_t)got;
    return 0;
}

/* The length of the header is not known in advance, so it is read in growing steps. */
int gguf_read(struct gguf *out, int fd, const char *path, uint64_t file_bytes,
              struct fm_error *err)
{
    *out = (struct gguf){0};
    void *bytes = NULL;
    size_t capacity = 0;
    uint64_t have = 0, want = FIRST_READ_BYTES;
    int rc;
    for (;;) {
        if (want > file_bytes)
            want = file_bytes;
        rc = mem_grow(&bytes, &capacity, (size_t)want + 1, 1, "a GGUF header", err);
        if (rc == 0)
            rc = read_more(fd, path, bytes, &have, want, err);
        if (rc != 0)
            break;
        struct cursor c = {.path = path, .bytes = bytes, .n = have, .file_bytes = file_bytes,
                           .err = err};
        rc = parse(out, &c);
        if (rc == 0) {
            out->owned = bytes;
            return 0;
        }
        gguf_clear(out);
        if (!c.wants_more)
            break;
        if (have == LIMIT_GGUF_HEADER_BYTES) {
            rc = err_set(err, FM_ERR_FORMAT, "%s: the header is longer than the limit of %u bytes",
                         path, LIMIT_GGUF_HEADER_BYTES);
            break;
        }
        want = have * READ_GROWTH;
        if (want > LIMIT_GGUF_HEADER_BYTES)
            want = LIMIT_GGUF_HEADER_BYTES;
    }
    mem_free(bytes);
    return rc;
}

void gguf_clear(struct gguf *g)
{
    mem_free(g->owned);
    mem_free(g->values);
    mem_free(g->tensors);
    *g = (struct gguf){0};
}
