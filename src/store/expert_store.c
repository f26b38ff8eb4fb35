#include "store/expert_store.h"

#include <string.h>

#include "base/mem.h"

struct expert_store {
    const struct model *model;
    struct reader *reader;
    bool checks;
};

/* No errno: the bytes came and are wrong. */
#define BAD_CHECKSUM INT64_MIN

int expert_store_open(const struct model *model, struct reader *reader, bool checks,
                      struct expert_store **out, struct fm_error *err)
{
    *out = NULL;
    struct expert_store *store = mem_new(1, sizeof *store, "the expert store", err);
    if (store == NULL) {
        reader->ops->close(reader);
        return FM_ERR_NOMEM;
    }
    *store = (struct expert_store){model, reader, checks};
    *out = store;
    return 0;
}

void expert_store_close(struct expert_store *store)
{
    if (store == NULL)
        return;
    store->reader->ops->close(store->reader);
    mem_free(store);
}

static bool has_checksum(const struct expert_read *read)
{
    const struct expert_store *store = read->store;
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    if (!store->checks || layer->sums == NULL)
        return true;
    struct packed_sum sum;
    packed_sum_of(read->dst, layer->record.bytes, &sum);
    return packed_sum_equal(&sum, &layer->sums[read->expert]);
}

static void finish(struct expert_read *read)
{
    bool ok = __atomic_load_n(&read->failed_extent, __ATOMIC_RELAXED) < 0;
    if (ok && !has_checksum(read)) {
        read->failed_result = BAD_CHECKSUM;
        read->failed_extent = 0;
        ok = false;
    }
    read->done(read, ok);
}

/* Pieces land on several threads. The decrement is acq_rel, so that the thread which reports sees
 * what all the others wrote. */
static void piece_done(struct read_op *op, int64_t result)
{
    struct expert_read *read = op->ctx;
    if (result < 0 || (uint64_t)result != op->bytes) {
        int none = -1;
        int mine = (int)(op - read->ops);
        if (__atomic_compare_exchange_n(&read->failed_extent, &none, mine, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            read->failed_result = result;
    }
    if (__atomic_fetch_sub(&read->n_pending, 1, __ATOMIC_ACQ_REL) == 1)
        finish(read);
}

void expert_store_submit(struct expert_store *store, struct expert_read *read)
{
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    const struct extent *extents = layer->extents + (size_t)read->expert * layer->n_extents;
    /* Experts whose pieces join better than others' leave the last extents empty. */
    unsigned n = layer->n_extents;
    while (n > 1 && extents[n - 1].bytes == 0)
        n--;
    read->store = store;
    read->failed_extent = -1; /* published to the reader threads by submit's lock */
    read->n_pending = n;
    for (unsigned i = 0; i < n; i++)
        read->ops[i] = (struct read_op){
            .fd = store->model->source->files[extents[i].file].fd,
            .offset = extents[i].offset,
            .bytes = extents[i].bytes,
            .dst = (char *)read->dst + extents[i].slot_offset,
            .urgency = read->urgency,
            .done = piece_done,
            .ctx = read,
        };
    /* After the last submit `read` may be gone. */
    for (unsigned i = 0; i < n; i++)
        store->reader->ops->submit(store->reader, &read->ops[i]);
}

int expert_store_explain(const struct expert_store *store, const struct expert_read *read,
                         struct fm_error *err)
{
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    const struct read_op *op = &read->ops[read->failed_extent];
    const struct extent *extents = layer->extents + (size_t)read->expert * layer->n_extents;
    const char *path = store->model->source->files[extents[op - read->ops].file].path;
    if (read->failed_result == BAD_CHECKSUM)
        return err_set(err, FM_ERR_FORMAT,
                       "expert %u of layer %u is damaged: '%s', %llu bytes at byte %llu do not "
                       "have the checksum of model.json",
                       read->expert, layer->layer, path, (unsigned long long)op->bytes,
                       (unsigned long long)op->offset);
    if (read->failed_result < 0)
        return err_set(err, FM_ERR_IO,
                       "cannot read expert %u of layer %u: '%s', %llu bytes at byte %llu: %s",
                       read->expert, layer->layer, path, (unsigned long long)op->bytes,
                       (unsigned long long)op->offset, strerror((int)-read->failed_result));
    return err_set(err, FM_ERR_IO,
                   "cannot read expert %u of layer %u: '%s' ends early, %lld of %llu bytes at "
                   "byte %llu (was the file changed?)",
                   read->expert, layer->layer, path, (long long)read->failed_result,
                   (unsigned long long)op->bytes, (unsigned long long)op->offset);
}
