/* Tables that stay on the disk, and integers that a checkpoint repeats. */
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "model/binder_internal.h"

/* One tensor of the table: all of it, or a shard. Returns false after a failure. */
static bool bind_shard(struct binder *b, struct row_table *table, const char *name,
                       uint64_t first_row, uint64_t n_rows, struct row_shard *shard)
{
    const struct quant *quant;
    const struct tensor_info *t = binder_take(b, name, TENSOR_TABLE, table->n_cols, &quant);
    if (t == NULL)
        return false;
    if (quant->n_parts != 1 || quant->part_rows[0] > 1) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has type %s, whose scales are apart; rows of a table are "
                        "read one by one", binder_file_of(b, t), name, quant->name);
        return false;
    }
    if (t->n_dims != 2 || t->dims[0] != n_rows || t->dims[1] != table->n_cols) {
        char expected[64];
        (void)snprintf(expected, sizeof expected, "[%llu, %u]", (unsigned long long)n_rows,
                       table->n_cols);
        binder_wrong_shape(b, t, expected);
        return false;
    }
    if (table->quant != NULL && table->quant != quant) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has type %s, but the shard before it has %s",
                        binder_file_of(b, t), name, quant->name, table->quant->name);
        return false;
    }
    table->quant = quant;
    table->row_bytes = quant_row_bytes(quant, table->n_cols);
    *shard = (struct row_shard){t->parts[0].file, t->parts[0].offset, first_row};
    b->model->n_parameters += n_rows * table->n_cols;
    binder_count_dense(b, t, quant, t->parts[0].bytes);
    return true;
}

/* Returns whether a file has these bytes: what packing leaves of a file ends before them. */
static bool has_bytes(const struct source_file *file, const struct tensor_part *part)
{
    struct plat_file_info info;
    return file->fd >= 0 && plat_open_file_info(file->fd, &info) &&
           info.bytes >= part->offset + part->bytes;
}

/* Reads the scale of a table that is codes alone. */
static void bind_scale(struct binder *b, struct row_table *table, const char *prefix)
{
    char name[BINDER_NAME_BYTES];
    const struct quant *quant;
    uint8_t raw[sizeof(float)];
    const void *at = raw;
    table->scale = 1;
    if (b->rc != 0 || table->quant != &quant_fp8_codes)
        return;
    (void)snprintf(name, sizeof name, "%sweight_scale", prefix);
    const struct tensor_info *t = binder_take(b, name, TENSOR_VECTOR, 1, &quant);
    if (t == NULL)
        return;
    const struct source_file *file = &b->model->source->files[t->parts[0].file];
    if (quant->kind != QUANT_FLOAT || t->parts[0].bytes != quant_row_bytes(quant, 1)) {
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' has type %s and %llu bytes; the scale of a table is one "
                        "number in BF16, F16 or F32", file->path, name, t->dtype,
                        (unsigned long long)t->parts[0].bytes);
        return;
    }
    b->model->n_parameters++;
    binder_count_dense(b, t, quant, t->parts[0].bytes);
    if (!has_bytes(file, &t->parts[0]))
        return;
    b->rc = plat_read_at(file->fd, file->path, raw, t->parts[0].bytes, t->parts[0].offset, b->err);
    if (b->rc == 0)
        quant->decode_row(quant, &at, &table->scale, 1);
    if (b->rc == 0 && !(table->scale > 0 && table->scale <= FLT_MAX))
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' is %g, which is no scale",
                        file->path, name, (double)table->scale);
}

static void bind_shards(struct binder *b, struct row_table *table, uint64_t n_rows,
                        uint32_t n_parts, const char *prefix)
{
    const bool is_whole = binder_find(b, "%sweight", prefix) != NULL;
    char name[BINDER_NAME_BYTES];
    table->n_shards = is_whole ? 1 : n_parts;
    table->shards = mem_new(table->n_shards, sizeof *table->shards, "the parts of a table", b->err);
    if (table->shards == NULL) {
        b->rc = FM_ERR_NOMEM;
        return;
    }
    table->n_rows = n_rows;
    table->shard_rows = n_rows / table->n_shards;
    if (n_rows % table->n_shards != 0) {
        b->rc = err_set(b->err, FM_ERR_FORMAT,
                        "%s: the table '%s' has %llu rows by config.json (ngram_vocab_size_base, "
                        "make_ngram_vocab_size_divisible_by), which cannot be divided into the %u "
                        "equal parts of split_ngram_parts", b->model->source->path, prefix,
                        (unsigned long long)n_rows, table->n_shards);
        return;
    }
    for (uint32_t i = 0; i < table->n_shards; i++) {
        (void)snprintf(name, sizeof name, is_whole ? "%sweight" : "%sshard_%u.weight", prefix, i);
        if (!bind_shard(b, table, name, i * table->shard_rows, table->shard_rows,
                        &table->shards[i]))
            return;
    }
}

/* A probe looks for names and binds nothing. */
static void probe_table(struct binder *b, uint32_t n_parts, const char *prefix)
{
    const bool is_whole = binder_find(b, "%sweight", prefix) != NULL;
    char name[BINDER_NAME_BYTES];
    for (uint32_t i = 0; i < (is_whole ? 1 : n_parts); i++) {
        (void)snprintf(name, sizeof name, is_whole ? "%sweight" : "%sshard_%u.weight", prefix, i);
        binder_note(b, name);
    }
    if (binder_find(b, "%sweight_scale", prefix) != NULL) { /* of one in FP8 */
        (void)snprintf(name, sizeof name, "%sweight_scale", prefix);
        binder_note(b, name);
    }
}

uint32_t binder_row_table(struct binder *b, const struct row_table *shape, uint64_t n_rows,
                          uint32_t n_parts, const char *prefix)
{
    struct model *m = b->model;
    if (b->probe != NULL) {
        probe_table(b, n_parts, prefix);
        return 0;
    }
    if (b->rc == 0 && m->n_row_tables == MODEL_MAX_TABLES)
        b->rc = err_set(b->err, FM_ERR_UNSUPPORTED, "%s: more than %d tables of n-grams",
                        m->source->path, MODEL_MAX_TABLES);
    if (b->rc != 0)
        return 0;
    m->row_tables[m->n_row_tables] = *shape;
    bind_shards(b, &m->row_tables[m->n_row_tables], n_rows, n_parts, prefix);
    bind_scale(b, &m->row_tables[m->n_row_tables], prefix);
    return m->n_row_tables++;
}

/* Compares the tensor's numbers, which are little-endian, with those expected. */
static int compare(const struct binder *b, const struct tensor_info *t, const int64_t *expected,
                   uint32_t n)
{
    const struct source_file *file = &b->model->source->files[t->parts[0].file];
    uint8_t raw[8];
    for (uint32_t i = 0; i < n && has_bytes(file, &t->parts[0]); i++) {
        uint64_t found = 0;
        int rc = plat_read_at(file->fd, file->path, raw, sizeof raw,
                              t->parts[0].offset + i * sizeof raw, b->err);
        if (rc != 0)
            return rc;
        for (unsigned k = 0; k < sizeof raw; k++)
            found |= (uint64_t)raw[k] << 8 * k;
        if ((int64_t)found != expected[i])
            return err_set(b->err, FM_ERR_UNSUPPORTED,
                           "%s: number %u of tensor '%s' is %lld, but the configuration gives "
                           "%lld", file->path, i, t->name, (long long)found,
                           (long long)expected[i]);
    }
    return 0;
}

void binder_expect_integers(struct binder *b, const int64_t *expected, uint32_t n,
                            const char *name_fmt, ...)
{
    char name[BINDER_NAME_BYTES];
    va_list args;
    va_start(args, name_fmt);
    (void)vsnprintf(name, sizeof name, name_fmt, args);
    va_end(args);
    const struct tensor_info *t = b->rc == 0 ? source_find(b->model->source, name) : NULL;
    if (t != NULL && b->probe != NULL)
        b->model->uses[t - b->model->source->tensors].role = TENSOR_DERIVED;
    if (t == NULL || b->probe != NULL)
        return;
    if (strcmp(t->dtype, "I64") != 0 || t->n_dims != 1 || t->dims[0] != n) {
        char shape[160];
        b->rc = err_set(b->err, FM_ERR_FORMAT, "%s: tensor '%s' has type %s and shape %s, "
                        "expected I64 and [%u]", binder_file_of(b, t), name, t->dtype,
                        tensor_info_shape(t, shape, sizeof shape), n);
        return;
    }
    b->model->uses[t - b->model->source->tensors].role = TENSOR_DERIVED;
    b->rc = compare(b, t, expected, n);
}
