#include "store/row_store.h"

#include <assert.h>
#include <pthread.h>

#include "base/carve.h"
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
    int64_t *results;    /* likewise: of the reads that are done, with the lock */
    uint64_t n_left;     /* with the lock */
};

struct row_store {
    const struct model *model;
    bool checks;
    uint32_t max_slots;
    struct reader *reader;
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
        reads->results = carve(c, n, sizeof *reads->results);
    }
}

static const struct reader_options reader_options = {.depth = DEPTH};

uint64_t row_store_bytes(const struct model *model, uint32_t max_slots)
{
    struct row_store scratch;
    struct carver c = {0};
    if (model->n_row_tables == 0)
        return 0;
    carve_tables(&c, &scratch, model, max_slots);
    return c.bytes + sizeof scratch + reader_bytes(&reader_options);
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
    int rc = c.at == NULL ? FM_ERR_NOMEM : reader_pread_open(&reader_options, &s->reader, err);
    if (rc != 0) {
        mem_free(s->block);
        mem_free(s);
        return rc;
    }
    carve_tables(&c, s, model, max_slots);
    s->model = model;
    s->checks = checks;
    s->max_slots = max_slots;
    for (uint32_t i = 0; i < model->n_row_tables; i++) {
        s->tables[i].store = s;
        s->tables[i].table = &model->row_tables[i];
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
    s->reader->ops->close(s->reader); /* waits */
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
    if (--reads->n_left == 0)
        pthread_cond_signal(&s->is_done);
    pthread_mutex_unlock(&s->lock);
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
        reads->rows[first + i] = rows[i];
        *op = (struct read_op){
            .fd = s->model->source->files[shard->file].fd,
            .offset = shard->offset + (rows[i] - shard->first_row) * t->row_bytes,
            .bytes = t->row_bytes, .dst = reads->raw + (first + i) * t->row_bytes,
            .urgency = READ_NEEDED, .done = read_done, .ctx = reads};
        s->reader->ops->submit(s->reader, op);
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
                                     reads->store->model->source->files[shard->file].path,
                                     op->bytes, op->offset, &why);
    return err_set(err, rc, "row %llu of the n-gram table of layer %u: %s",
                   (unsigned long long)row, t->layer, why.text);
}

/* Compares the table's files with what they were. */
static int check_files(const struct table_reads *reads, struct fm_error *err)
{
    const struct row_table *t = reads->table;
    const struct source *source = reads->store->model->source;
    for (uint32_t i = 0; i < t->n_shards; i++) {
        const struct source_file *file = &source->files[t->shards[i].file];
        if ((i == 0 || t->shards[i].file != t->shards[i - 1].file) &&
            source_file_has_changed(file))
            return source_explain_change(file->path, err);
    }
    return 0;
}

int row_store_wait(struct row_store *s, uint32_t table, struct fm_error *err)
{
    struct table_reads *reads = &s->tables[table];
    assert(table < s->model->n_row_tables);
    wait_for(reads);
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
