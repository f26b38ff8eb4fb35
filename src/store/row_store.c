#include "store/row_store.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/carve.h"
#include "base/log.h"
#include "base/path.h"
#include "base/plat.h"

/* Reads in flight. */
#define DEPTH 8

/* One table's reads. */
struct table_reads {
    struct row_store *store;
    const struct row_table *table;
    struct read_op *ops; /* [max_slots, n_per_token] */
    uint64_t *rows;      /* likewise: which row each reads */
    char *raw;           /* likewise, row_bytes each */
    uint8_t *disks;      /* likewise: where each reads */
    int64_t *results;    /* likewise: of the reads that are done, with the lock */
    uint64_t n_left;     /* with the lock */
};

struct row_store {
    const struct model *model;
    bool checks;
    uint32_t max_slots;
    /* A mirrored model has its tables on every disk. For others there is one place. */
    unsigned n_disks;
    struct row_disk {
        struct reader *reader;
        struct source_file copy; /* of the file with the tables; unused for the first */
        uint64_t n_waiting;      /* rows asked for, with the lock */
        bool is_lost;            /* it cannot be read; only the asking thread looks */
    } disks[SOURCE_MAX_DISKS];
    pthread_mutex_t lock;
    pthread_cond_t is_done;
    struct table_reads tables[MODEL_MAX_TABLES];
    void *block;
};

static void carve_tables(struct carver *c, struct row_store *s, const struct model *model,
                         uint32_t max_slots)
{
    for (uint32_t i = 0; i < model->n_row_tables; i++) {
        const struct row_table *table = &model->row_tables[i];
        const uint64_t n = (uint64_t)max_slots * table->n_per_token;
        struct table_reads *reads = &s->tables[i];
        reads->ops = carve(c, n, sizeof *reads->ops);
        reads->rows = carve(c, n, sizeof *reads->rows);
        reads->raw = carve(c, n, table->row_bytes);
        reads->disks = carve(c, n, sizeof *reads->disks);
        reads->results = carve(c, n, sizeof *reads->results);
    }
}

static const struct reader_options reader_options = {.depth = DEPTH};

static unsigned count_disks(const struct model *model)
{
    return model->source->is_mirrored ? model->source->n_disks : 1;
}

uint64_t row_store_bytes(const struct model *model, uint32_t max_slots)
{
    struct row_store scratch;
    struct carver c = {0};
    if (model->n_row_tables == 0)
        return 0;
    carve_tables(&c, &scratch, model, max_slots);
    return c.bytes + sizeof scratch + count_disks(model) * reader_bytes(&reader_options);
}

/* Opens the copy of the tables in another folder. One that cannot be used is left out. */
static int open_copy(struct row_store *s, unsigned d, struct fm_error *err)
{
    const struct source *source = s->model->source;
    const struct source_file *own = &source->files[0];
    struct source_file *copy = &s->disks[d].copy;
    struct fm_error why = {0};
    copy->fd = -1;
    if (source->disks[d].is_lost) { /* the source has said so */
        s->disks[d].is_lost = true;
        return 0;
    }
    copy->path = source_join(source->disks[d].folder, path_base(own->path), err);
    if (copy->path == NULL)
        return FM_ERR_NOMEM;
    int rc = source_file_open(copy, &why);
    if (rc == 0 && copy->bytes != own->bytes)
        rc = err_set(&why, FM_ERR_FORMAT, "'%s' has %llu bytes, but '%s' has %llu", copy->path,
                     (unsigned long long)copy->bytes, own->path, (unsigned long long)own->bytes);
    if (rc != 0)
        log_warn("store", "the n-gram tables of the mirror '%s' are not used: %s",
                 source->disks[d].folder, why.text);
    s->disks[d].is_lost = rc != 0;
    return 0;
}

static int open_disks(struct row_store *s, struct fm_error *err)
{
    int rc = 0;
    s->n_disks = count_disks(s->model);
    for (unsigned d = 0; d < s->n_disks; d++)
        s->disks[d].copy.fd = -1;
    for (unsigned d = 0; rc == 0 && d < s->n_disks; d++) {
        if (d > 0)
            rc = open_copy(s, d, err);
        if (rc == 0)
            rc = reader_pread_open(&reader_options, &s->disks[d].reader, err);
    }
    return rc;
}

/* Waits for the reads. */
static void close_disks(struct row_store *s)
{
    for (unsigned d = 0; d < s->n_disks; d++) {
        if (s->disks[d].reader != NULL)
            s->disks[d].reader->ops->close(s->disks[d].reader);
        plat_close(s->disks[d].copy.fd);
        mem_free(s->disks[d].copy.path);
    }
}

int row_store_open(const struct model *model, uint32_t max_slots, bool checks,
                   struct row_store **out, struct fm_error *err)
{
    *out = NULL;
    if (model->n_row_tables == 0)
        return 0;
    struct row_store *s = mem_new(1, sizeof *s, "the reader of tables", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    struct carver c = {0};
    carve_tables(&c, s, model, max_slots);
    c = (struct carver){.at = mem_new_aligned(MEM_CACHE_LINE, c.bytes, "rows of tables", err)};
    s->block = c.at;
    s->model = model;
    int rc = c.at == NULL ? FM_ERR_NOMEM : open_disks(s, err);
    if (rc != 0) {
        close_disks(s);
        mem_free(s->block);
        mem_free(s);
        return rc;
    }
    carve_tables(&c, s, model, max_slots);
    s->checks = checks;
    s->max_slots = max_slots;
    for (uint32_t i = 0; i < model->n_row_tables; i++) {
        s->tables[i].store = s;
        s->tables[i].table = &model->row_tables[i];
        const uint64_t n = (uint64_t)max_slots * model->row_tables[i].n_per_token;
        for (uint64_t at = 0; s->n_disks > 1 && at < n; at++) { /* none has failed */
            s->tables[i].ops[at].bytes = 0;
            s->tables[i].results[at] = 0;
        }
    }
    (void)pthread_mutex_init(&s->lock, NULL); /* cannot fail without attributes */
    (void)pthread_cond_init(&s->is_done, NULL);
    *out = s;
    return 0;
}

void row_store_close(struct row_store *s)
{
    if (s == NULL)
        return;
    close_disks(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->is_done);
    mem_free(s->block);
    mem_free(s);
}

static void wait_for(struct table_reads *reads)
{
    struct row_store *s = reads->store;
    pthread_mutex_lock(&s->lock);
    while (reads->n_left > 0)
        pthread_cond_wait(&s->is_done, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void row_store_begin(struct row_store *s)
{
    for (uint32_t i = 0; i < s->model->n_row_tables; i++)
        wait_for(&s->tables[i]);
}

static void read_done(struct read_op *op, int64_t result)
{
    struct table_reads *reads = op->ctx;
    struct row_store *s = reads->store;
    pthread_mutex_lock(&s->lock);
    reads->results[op - reads->ops] = result;
    s->disks[reads->disks[op - reads->ops]].n_waiting--;
    if (--reads->n_left == 0)
        pthread_cond_signal(&s->is_done);
    pthread_mutex_unlock(&s->lock);
}

/* Returns the disk's file with the shard. */
static const struct source_file *file_on(const struct row_store *s, const struct row_shard *shard,
                                         unsigned disk)
{
    assert(disk == 0 || shard->file == 0);
    return disk == 0 ? &s->model->source->files[shard->file] : &s->disks[disk].copy;
}

/* Returns the disk with the shortest queue, which counts the read. A fast one empties its own
 * sooner, so it gets more. */
static unsigned pick_disk(struct row_store *s)
{
    unsigned best = 0;
    pthread_mutex_lock(&s->lock);
    for (unsigned d = 1; d < s->n_disks; d++)
        if (!s->disks[d].is_lost &&
            (s->disks[best].is_lost || s->disks[d].n_waiting < s->disks[best].n_waiting))
            best = d;
    s->disks[best].n_waiting++;
    pthread_mutex_unlock(&s->lock);
    return best;
}

void row_store_ask(struct row_store *s, uint32_t table, uint32_t slot, const uint64_t *rows)
{
    struct table_reads *reads = &s->tables[table];
    const struct row_table *t = reads->table;
    const uint64_t first = (uint64_t)slot * t->n_per_token;
    assert(table < s->model->n_row_tables && slot < s->max_slots);
    pthread_mutex_lock(&s->lock);
    reads->n_left += t->n_per_token;
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < t->n_per_token; i++) {
        assert(rows[i] < t->n_rows);
        const struct row_shard *shard = &t->shards[rows[i] / t->shard_rows];
        struct read_op *op = &reads->ops[first + i];
        const unsigned disk = pick_disk(s);
        reads->rows[first + i] = rows[i];
        reads->disks[first + i] = (uint8_t)disk;
        *op = (struct read_op){
            .fd = file_on(s, shard, disk)->fd,
            .offset = shard->offset + (rows[i] - shard->first_row) * t->row_bytes,
            .bytes = t->row_bytes, .dst = reads->raw + (first + i) * t->row_bytes,
            .urgency = READ_NEEDED, .done = read_done, .ctx = reads};
        s->disks[disk].reader->ops->submit(s->disks[disk].reader, op);
    }
}

static int explain(const struct table_reads *reads, uint64_t at, struct fm_error *err)
{
    const struct row_table *t = reads->table;
    const struct read_op *op = &reads->ops[at];
    const uint64_t row = reads->rows[at];
    const struct row_shard *shard = &t->shards[row / t->shard_rows];
    struct fm_error why;
    const int rc = plat_explain_read(reads->results[at],
                                     file_on(reads->store, shard, reads->disks[at])->path,
                                     op->bytes, op->offset, &why);
    return err_set(err, rc, "row %llu of the n-gram table of layer %u: %s",
                   (unsigned long long)row, t->layer, why.text);
}

/* Compares the table's files with what they were. */
static int check_files(const struct table_reads *reads, struct fm_error *err)
{
    const struct row_store *s = reads->store;
    const struct row_table *t = reads->table;
    const struct source *source = s->model->source;
    for (unsigned d = 1; d < s->n_disks; d++)
        if (!s->disks[d].is_lost && source_file_has_changed(&s->disks[d].copy))
            return source_explain_change(s->disks[d].copy.path, err);
    for (uint32_t i = 0; i < t->n_shards; i++) {
        const struct source_file *file = &source->files[t->shards[i].file];
        if ((i == 0 || t->shards[i].file != t->shards[i - 1].file) &&
            source_file_has_changed(file))
            return source_explain_change(file->path, err);
    }
    return 0;
}

/* Gives up the disk of a row that could not be read, and reads the row from another. */
static void read_elsewhere(struct table_reads *reads, uint64_t at)
{
    struct row_store *s = reads->store;
    const struct source_disk *disks = s->model->source->disks;
    const struct row_shard *shard = &reads->table->shards[reads->rows[at] /
                                                          reads->table->shard_rows];
    const struct read_op *op = &reads->ops[at];
    const unsigned lost = reads->disks[at];
    const int64_t result = reads->results[at];
    const bool is_first = !s->disks[lost].is_lost;
    s->disks[lost].is_lost = true;
    for (unsigned d = 0; d < s->n_disks; d++) {
        const struct source_file *file = file_on(s, shard, d);
        if (s->disks[d].is_lost ||
            plat_read_at(file->fd, file->path, op->dst, op->bytes, op->offset, NULL) != 0)
            continue;
        reads->results[at] = (int64_t)op->bytes;
        reads->disks[at] = (uint8_t)d;
        if (is_first)
            log_warn("store", "the n-gram tables in '%s' cannot be read any more: %s. Going on "
                     "with the mirror '%s'; start again when the disk is back",
                     disks[lost].folder, result < 0 ? strerror((int)-result)
                                                    : "the file ends early", disks[d].folder);
        return;
    }
}

int row_store_wait(struct row_store *s, uint32_t table, struct fm_error *err)
{
    struct table_reads *reads = &s->tables[table];
    assert(table < s->model->n_row_tables);
    wait_for(reads);
    const uint64_t n = (uint64_t)s->max_slots * reads->table->n_per_token;
    for (uint64_t at = 0; s->n_disks > 1 && at < n; at++)
        if (reads->results[at] != (int64_t)reads->ops[at].bytes)
            read_elsewhere(reads, at);
    return s->checks ? check_files(reads, err) : 0;
}

int row_store_check(const struct row_store *s, uint32_t table, uint32_t slot, struct fm_error *err)
{
    const struct table_reads *reads = &s->tables[table];
    const uint64_t first = (uint64_t)slot * reads->table->n_per_token;
    for (uint64_t at = first; at < first + reads->table->n_per_token; at++)
        if (reads->results[at] != (int64_t)reads->ops[at].bytes)
            return explain(reads, at, err);
    return 0;
}

void row_store_decode(const struct row_store *s, uint32_t table, uint32_t slot, float *to)
{
    const struct table_reads *reads = &s->tables[table];
    const struct row_table *t = reads->table;
    for (uint32_t i = 0; i < t->n_per_token; i++) {
        const void *row = reads->raw + ((uint64_t)slot * t->n_per_token + i) * t->row_bytes;
        t->quant->decode_row(t->quant, &row, to + (size_t)i * t->n_cols, t->n_cols);
    }
    for (size_t i = 0; t->scale != 1 && i < (size_t)t->n_per_token * t->n_cols; i++)
        to[i] *= t->scale;
}
