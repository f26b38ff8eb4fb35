#include "engine/identity.h"

#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/plat.h"
#include "quant/interleave.h"

/* Bytes that are sampled of the first, middle and last expert of a layer without checksums. */
#define SAMPLE_BYTES 4096
static int sample_experts(const struct model *model, const struct expert_layer *layer,
                          uint64_t *hash, struct fm_error *err)
{
    const uint32_t experts[] = {0, layer->n_experts / 2, layer->n_experts - 1};
    unsigned char bytes[SAMPLE_BYTES];
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        const struct extent *e = &layer->extents[(size_t)experts[i] * layer->n_extents];
        const struct source_file *file = &model->source->files[e->file];
        const uint64_t n = e->bytes < sizeof bytes ? e->bytes : sizeof bytes;
        rc = plat_read_at(file->fd, file->path, bytes, n, e->offset, err);
        if (rc == 0)
            *hash = XXH3_64bits_withSeed(bytes, (size_t)n, *hash);
    }
    return rc;
}

/* Likewise of a table: its first, middle and last row. */
static int sample_table(const struct model *model, const struct row_table *table, uint64_t *hash,
                        struct fm_error *err)
{
    const uint64_t rows[] = {0, table->n_rows / 2, table->n_rows - 1};
    unsigned char bytes[SAMPLE_BYTES];
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        const struct row_shard *shard = &table->shards[rows[i] / table->shard_rows];
        const struct source_file *file = &model->source->files[shard->file];
        const uint64_t n = table->row_bytes < sizeof bytes ? table->row_bytes : sizeof bytes;
        rc = plat_read_at(file->fd, file->path, bytes, n,
                          shard->offset + (rows[i] - shard->first_row) * table->row_bytes, err);
        if (rc == 0)
            *hash = XXH3_64bits_withSeed(bytes, (size_t)n, *hash);
    }
    return rc;
}

static int hash_piece(const char *text, size_t n, void *hash)
{
    *(uint64_t *)hash = XXH3_64bits_withSeed(text, n, *(uint64_t *)hash);
    return 0;
}

/* Hashes every field of the configuration: the same weights give other results with another rope,
 * for example. */
int identity_add_config(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    const size_t how = JSON_COMPACT | JSON_SORT_KEYS;
    if (json_dump_callback(model->source->config.root, hash_piece, hash, how) != 0)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot hash the configuration");
    return 0;
}

/* Hashes [at, end) of the dense weights as they lie in memory. */
static int hash_as_it_lies(const struct model *model, uint64_t at, uint64_t end,
                           XXH3_state_t *state)
{
    while (at < end) {
        char *piece = (char *)model->dense + at;
        const uint64_t n = memory_handy(model->memory, end - at);
        const void *bytes = memory_open(model->memory, piece, n, MEMORY_LOOK);
        if (bytes == NULL)
            return FM_ERR_NOMEM;
        (void)XXH3_64bits_update(state, bytes, n);
        memory_close(model->memory, piece, n);
        at += n;
    }
    return 0;
}

/* Hashes one part of a matrix with its rows as they lie in the file. */
static int hash_by_rows(const struct model *model, const struct weight_part *turned, void *rows,
                        XXH3_state_t *state)
{
    const uint64_t n =
        INTERLEAVE_ROWS * quant_part_row_bytes(turned->quant, turned->part, turned->n_cols);
    char *at = (char *)model->dense + (turned->at - (const char *)model->dense);
    for (uint64_t r = 0; r < turned->n_rows; r += INTERLEAVE_ROWS, at += n) {
        const void *bytes = memory_open(model->memory, at, n, MEMORY_LOOK);
        if (bytes == NULL)
            return FM_ERR_NOMEM;
        interleave_restore(turned->quant, turned->part, turned->n_cols, bytes, rows);
        memory_close(model->memory, at, n);
        (void)XXH3_64bits_update(state, rows, n);
    }
    return 0;
}

static int hash_dense(const struct model *model, void *rows, XXH3_state_t *state)
{
    const uint64_t end = model->dense_bytes - model->mtp_dense_bytes; /* drafts change nothing */
    uint64_t at = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < model->n_turned; i++) {
        const struct weight_part *turned = &model->turned[i];
        const uint64_t begin = (uint64_t)(turned->at - (const char *)model->dense);
        if (begin < at || begin >= end) /* a matrix with two uses; a draft's */
            continue;
        rc = hash_as_it_lies(model, at, begin, state);
        if (rc == 0)
            rc = hash_by_rows(model, turned, rows, state);
        at = begin + quant_part_bytes(turned->quant, turned->part, turned->n_rows,
                                      turned->n_cols);
    }
    return rc != 0 ? rc : hash_as_it_lies(model, at, end, state);
}

/* Hashes the dense weights as they lie in memory, but with rows as in the file where only this
 * processor's kernels have them in another order: a snapshot does not depend on the processor. A
 * model cut into other stages has another hash, so its snapshots are not interchangeable. */
int identity_add_dense(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    void *rows = mem_new(1, INTERLEAVE_BLOCK_BYTES, "rows to hash", err);
    XXH3_state_t *state = rows != NULL ? XXH3_createState() : NULL;
    if (state == NULL) {
        mem_free(rows);
        return err_set(err, FM_ERR_NOMEM, "out of memory: a checksum");
    }
    (void)XXH3_64bits_reset_withSeed(state, *hash ^ model_identity(model));
    const int rc = hash_dense(model, rows, state);
    *hash = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    mem_free(rows);
    return rc == 0 ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory: weights");
}

int identity_add_samples(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < model_n_own_expert_layers(model); i++)
        if (model->expert_layers[i].sums == NULL)
            rc = sample_experts(model, &model->expert_layers[i], hash, err);
    for (uint32_t i = 0; rc == 0 && i < model->n_row_tables; i++)
        rc = sample_table(model, &model->row_tables[i], hash, err);
    return rc;
}

/* ---- the whole model, without its weights ---------------------------------------------------- */

static int sample_tensor(const struct source *source, const struct tensor_info *t, uint64_t *hash,
                         struct fm_error *err)
{
    unsigned char bytes[SAMPLE_BYTES];
    int rc = 0;
    for (unsigned p = 0; rc == 0 && p < t->n_parts; p++) {
        const struct source_file *file = &source->files[t->parts[p].file];
        const uint64_t n = t->parts[p].bytes < sizeof bytes ? t->parts[p].bytes : sizeof bytes;
        rc = plat_read_at(file->fd, file->path, bytes, n, t->parts[p].offset, err);
        if (rc == 0)
            *hash = XXH3_64bits_withSeed(bytes, (size_t)n, *hash);
    }
    return rc;
}

int identity_of_model(const struct model *model, uint64_t *identity, struct fm_error *err)
{
    const struct source *source = model->source;
    uint64_t hash = model_identity(model);
    int rc = identity_add_config(model, &hash, err);
    for (size_t i = 0; source->packed != NULL && i < source->packed->n_tensors; i++)
        hash = XXH3_64bits_withSeed(&source->packed->tensors[i].sum,
                                    sizeof source->packed->tensors[i].sum, hash);
    for (size_t i = 0; rc == 0 && source->packed == NULL && i < source->n_tensors; i++)
        if (model->uses[i].role != TENSOR_EXPERT && model->uses[i].role != TENSOR_TABLE)
            rc = sample_tensor(source, &source->tensors[i], &hash, err);
    if (rc == 0 && source->packed == NULL)
        rc = identity_add_samples(model, &hash, err);
    *identity = hash;
    return rc;
}
