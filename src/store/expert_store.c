#include "store/expert_store.h"

#include <assert.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"

struct store_file {
    int fd; /* the store's own if is_direct, else the source's */
    bool is_direct;
};

/* A checksum that is being computed. */
struct store_hash {
    XXH3_state_t *state;
    bool is_taken; /* atomic */
};

/* Number of experts whose pieces are hashed as they land. Further ones are hashed at the end. */
#define N_HASHES 16

struct expert_store {
    const struct model *model;
    struct reader *reader;
    struct store_file *files; /* [model->source->n_files] */
    bool checks, has_direct;
    bool drops; /* drops the pages that were read through the page cache */
    bool has_warned; /* atomic: a damaged prefetched expert was logged as a warning */
    struct store_hash hashes[N_HASHES];
};

/* Values of failed_result that are not an errno: all bytes were read. */
#define BAD_CHECKSUM INT64_MIN
#define FILE_CHANGED (INT64_MIN + 1)

/* Bit of expert_read.pieces: a thread hashes the landed pieces. */
#define IS_HASHING (1u << 31)
_Static_assert(EXPERT_MAX_OPS < 31, "a bit for each piece");

/* ---- open and close ------------------------------------------------------------------------- */

/* Approximate size of an operation. With eight in flight, half of it does not saturate an SSD, and
 * twice as much was a quarter slower into memory outside the processor's cache. */
#define OP_BYTES (1u << 19)

/* Returns the maximum size of an operation, in whole pages. Larger experts have larger
 * operations. */
static uint64_t op_bytes(uint64_t expert_bytes)
{
    const uint64_t max = EXPERT_MAX_OPS - EXPERT_MAX_EXTENTS;
    const uint64_t longer = mem_round_up((expert_bytes + max - 1) / max, MEM_PAGE);
    return longer > OP_BYTES ? longer : OP_BYTES;
}

/* Returns the size of the longest extent that is not page-aligned; 0: all are. */
static uint64_t longest_unaligned(const struct expert_layer *layer)
{
    uint64_t max = 0;
    for (size_t i = 0; i < (size_t)layer->n_experts * layer->n_extents; i++) {
        const struct extent *e = &layer->extents[i];
        if ((e->offset | e->bytes | e->slot_offset) % MEM_PAGE != 0 && e->bytes > max)
            max = e->bytes;
    }
    return max;
}

uint64_t expert_store_bounce_bytes(const struct model *model, enum store_io io)
{
    uint64_t max = 0;
    for (uint32_t i = 0; io == STORE_DIRECT && i < model->n_expert_layers; i++) {
        const struct expert_layer *layer = &model->expert_layers[i];
        const uint64_t longest = longest_unaligned(layer), op = op_bytes(layer->read_bytes);
        const uint64_t need = longest < op ? longest : op;
        max = need > max ? need : max;
    }
    return max;
}

uint64_t expert_store_page_bytes(const struct model *model, enum store_io io)
{
    uint64_t max = 0;
    for (uint32_t i = 0; io == STORE_PAGES_DROPPED && i < model->n_expert_layers; i++) {
        const uint64_t expert = model->expert_layers[i].read_bytes, op = op_bytes(expert);
        const uint64_t need = expert < op ? expert : op;
        max = need > max ? need : max;
    }
    return max > 0 ? max + 2 * MEM_PAGE : 0;
}

static int open_direct(struct expert_store *store, uint32_t i, struct fm_error *err)
{
    int fd;
    int rc = source_reopen_direct(&store->model->source->files[i], &fd, err);
    if (rc == 0 && fd >= 0) {
        store->files[i] = (struct store_file){fd, true};
        store->has_direct = true;
    }
    return rc;
}

/* Disables readahead, which would leave pages in the page cache that nobody drops. */
static void expect_random(const struct expert_store *store, bool is_random)
{
    for (uint32_t i = 0; store->drops && i < store->model->source->n_files; i++)
        if (!store->files[i].is_direct)
            plat_expect_random(store->files[i].fd, is_random);
}

static int open_files(struct expert_store *store, enum store_io io, struct fm_error *err)
{
    const struct source *source = store->model->source;
    store->files = mem_new(source->n_files, sizeof *store->files, "the expert store", err);
    if (store->files == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < source->n_files; i++)
        store->files[i].fd = source->files[i].fd;
    int rc = 0;
    for (uint32_t l = 0; io == STORE_DIRECT && l < store->model->n_expert_layers; l++) {
        const struct expert_layer *layer = &store->model->expert_layers[l];
        const size_t n = (size_t)layer->n_experts * layer->n_extents;
        for (size_t i = 0; rc == 0 && i < n; i++)
            if (layer->extents[i].bytes > 0 && !store->files[layer->extents[i].file].is_direct &&
                (i == 0 || layer->extents[i].file != layer->extents[i - 1].file))
                rc = open_direct(store, layer->extents[i].file, err);
    }
    if (rc == 0 && io == STORE_DIRECT && !store->has_direct && store->model->n_expert_layers > 0)
        log_info("store", "'%s' does not support direct I/O: reading through the page cache",
                 source->files[store->model->expert_layers[0].extents[0].file].path);
    return rc;
}

static int open_hashes(struct expert_store *store, struct fm_error *err)
{
    const bool is_hashed = store->checks && store->model->source->packed != NULL;
    for (unsigned i = 0; is_hashed && i < N_HASHES; i++) {
        store->hashes[i].state = XXH3_createState();
        if (store->hashes[i].state == NULL)
            return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate checksums");
    }
    return 0;
}

int expert_store_open(const struct model *model, struct reader *reader, enum store_io io,
                      bool checks, struct expert_store **out, struct fm_error *err)
{
    *out = NULL;
    struct expert_store *store = mem_new(1, sizeof *store, "the expert store", err);
    if (store == NULL) {
        reader->ops->close(reader);
        return FM_ERR_NOMEM;
    }
    *store = (struct expert_store){.model = model, .reader = reader, .checks = checks,
                                   .drops = io != STORE_PAGES};
    int rc = open_files(store, io, err);
    if (rc == 0)
        rc = open_hashes(store, err);
    if (rc != 0) {
        expert_store_close(store);
        return rc;
    }
    expect_random(store, true);
    *out = store;
    return 0;
}

void expert_store_close(struct expert_store *store)
{
    if (store == NULL)
        return;
    store->reader->ops->close(store->reader);
    if (store->files != NULL)
        expect_random(store, false);
    for (uint32_t i = 0; store->files != NULL && i < store->model->source->n_files; i++)
        if (store->files[i].is_direct)
            plat_close(store->files[i].fd);
    for (unsigned i = 0; i < N_HASHES; i++)
        (void)XXH3_freeState(store->hashes[i].state); /* accepts NULL */
    mem_free(store->files);
    mem_free(store);
}

const struct model *expert_store_model(const struct expert_store *store)
{
    return store->model;
}

bool expert_store_is_direct(const struct expert_store *store)
{
    return store->has_direct;
}

/* ---- reads ----------------------------------------------------------------------------------- */

static const struct expert_layer *layer_of(const struct expert_read *read)
{
    return &read->store->model->expert_layers[read->expert_layer];
}

static bool has_failed(const struct expert_read *read)
{
    return __atomic_load_n(&read->failed_op, __ATOMIC_RELAXED) >= 0;
}

/* Returns NULL when all are in use. */
static struct store_hash *hash_take(struct expert_store *store)
{
    for (unsigned i = 0; i < N_HASHES; i++)
        if (!__atomic_exchange_n(&store->hashes[i].is_taken, true, __ATOMIC_ACQUIRE)) {
            (void)XXH3_128bits_reset(store->hashes[i].state); /* fails only for NULL */
            return &store->hashes[i];
        }
    return NULL;
}

/* Hashes one piece of a packed expert, while it is still in the processor's cache and later pieces
 * are in flight. The pieces are contiguous in the expert's record. */
static void hash_piece(struct expert_read *read, unsigned i)
{
    if (!read->store->checks || layer_of(read)->sums == NULL || read->n_ops == 1 ||
        has_failed(read))
        return;
    if (i == 0)
        read->hash = hash_take(read->store);
    if (read->hash != NULL)
        packed_hash_add(read->hash->state, read->ops[i].dst, read->ops[i].bytes);
}

static bool has_checksum(const struct expert_read *read)
{
    const struct expert_layer *layer = layer_of(read);
    struct packed_sum sum;
    if (read->hash != NULL)
        packed_sum_of_hash(read->hash->state, &sum);
    else
        packed_sum_of(read->dst, layer->record.bytes, &sum);
    return packed_sum_equal(&sum, &layer->sums[read->expert]);
}

/* Without checksums it is only known whether a file was modified. */
static bool has_changed(const struct expert_read *read, unsigned *op)
{
    const struct source *source = read->store->model->source;
    const struct expert_layer *layer = layer_of(read);
    const struct extent *e = layer->extents + (size_t)read->expert * layer->n_extents;
    for (unsigned i = 0; i < layer->n_extents; i++)
        if (e[i].bytes > 0 && (i == 0 || e[i].file != e[i - 1].file) &&
            source_file_has_changed(&source->files[e[i].file])) {
            *op = 0;
            while ((uint64_t)((char *)read->ops[*op].dst - (char *)read->dst) != e[i].slot_offset)
                (*op)++;
            return true;
        }
    return false;
}

/* Verifies an expert whose bytes have all landed. */
static void check(struct expert_read *read)
{
    unsigned op = 0;
    if (!read->store->checks)
        return;
    if (layer_of(read)->sums != NULL ? has_checksum(read) : !has_changed(read, &op))
        return;
    read->failed_result = layer_of(read)->sums != NULL ? BAD_CHECKSUM : FILE_CHANGED;
    read->failed_op = (int)op;
    struct fm_error err;
    if (read->urgency != READ_GUESSED)
        return; /* the one who waits for it reports the error */
    (void)expert_store_explain(read->store, read, &err);
    const bool is_first = !__atomic_exchange_n(&read->store->has_warned, true, __ATOMIC_RELAXED);
    (is_first ? log_warn : log_info)("store", "%s; the prefetched expert is dropped", err.text);
}

/* Returns whether the bytes can be used before their checksum is known. */
static bool is_verified_late(const struct expert_read *read)
{
    bool is_late = read->store->checks && layer_of(read)->sums != NULL;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++)
        is_late &= !expert_layer_changes(read->store->model, layer_of(read), m);
    return is_late;
}

static void finish(struct expert_read *read)
{
    assert(__atomic_load_n(&read->n_left, __ATOMIC_RELAXED) == 0);
    if (!has_failed(read))
        check(read);
    if (read->hash != NULL)
        __atomic_store_n(&read->hash->is_taken, false, __ATOMIC_RELEASE);
    const bool ok = !has_failed(read);
    if (ok) /* on this thread, while other reads are in flight */
        expert_layer_prepare(read->store->model, layer_of(read), read->dst);
    read->done(read, ok);
}

/* Hashes the pieces that have landed, in order, until one is missing. The thread that hashes the
 * last piece finishes the read. Once IS_HASHING is cleared, `read` may be gone. */
static void hash_landed(struct expert_read *read)
{
    uint32_t landed = __atomic_load_n(&read->pieces, __ATOMIC_ACQUIRE);
    do {
        while (read->n_hashed < read->n_ops && (landed >> read->n_hashed & 1) != 0) {
            hash_piece(read, read->n_hashed);
            read->n_hashed++;
        }
        assert(read->n_hashed <= read->n_ops);
        if (read->n_hashed == read->n_ops) {
            finish(read);
            return;
        }
    } while (!__atomic_compare_exchange_n(&read->pieces, &landed, landed & ~IS_HASHING, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
}

/* Pieces land on several threads in any order. One thread at a time hashes them; a piece that lands
 * meanwhile is left to that thread. */
static void piece_done(struct read_op *op, int64_t result)
{
    struct expert_read *read = op->ctx;
    const int mine = (int)(op - read->ops);
    assert(mine >= 0 && (unsigned)mine < read->n_ops);
    if (read->store->drops && !op->is_direct)
        plat_drop_pages(op->fd, op->offset, op->bytes);
    if (result < 0 || (uint64_t)result != op->bytes) {
        int none = -1;
        if (__atomic_compare_exchange_n(&read->failed_op, &none, mine, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            read->failed_result = result;
    }
    /* No thread finishes the read before the bit of this piece is set. */
    const bool is_last = __atomic_sub_fetch(&read->n_left, 1, __ATOMIC_ACQ_REL) == 0;
    if (is_last && read->landed != NULL && !has_failed(read) && is_verified_late(read))
        read->landed(read);
    const uint32_t before =
        __atomic_fetch_or(&read->pieces, 1u << mine | IS_HASHING, __ATOMIC_ACQ_REL);
    assert((before >> mine & 1) == 0); /* a piece lands once */
    if ((before & IS_HASHING) == 0)
        hash_landed(read);
}

/* Splits extents into operations. All but the last operation of an extent have the same size. */
static unsigned make_ops(struct expert_read *read, const struct extent *extents, unsigned n,
                         uint64_t max)
{
    const struct expert_store *store = read->store;
    unsigned n_ops = 0;
    for (unsigned i = 0; i < n; i++) {
        const struct extent *e = &extents[i];
        const struct store_file *file = &store->files[e->file];
        assert(e->slot_offset + e->bytes <= store->model->expert_slot_bytes);
        const uint64_t n_pieces = e->bytes > 0 ? (e->bytes + max - 1) / max : 1;
        const uint64_t piece = mem_round_up((e->bytes + n_pieces - 1) / n_pieces, MEM_PAGE);
        for (uint64_t at = 0; at < e->bytes || at == 0; at += piece)
            read->ops[n_ops++] = (struct read_op){
                .fd = file->fd,
                .is_direct = file->is_direct,
                .offset = e->offset + at,
                .bytes = e->bytes - at < piece ? e->bytes - at : piece,
                .dst = (char *)read->dst + e->slot_offset + at,
                .urgency = read->urgency,
                .done = piece_done,
                .ctx = read,
            };
    }
    assert(n_ops <= EXPERT_MAX_OPS);
    return n_ops;
}

void expert_store_submit(struct expert_store *store, struct expert_read *read)
{
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    assert(read->expert_layer < store->model->n_expert_layers && read->expert < layer->n_experts);
    const struct extent *extents = layer->extents + (size_t)read->expert * layer->n_extents;
    /* An expert with fewer extents than others leaves its last extents empty. */
    unsigned n_extents = layer->n_extents;
    while (n_extents > 1 && extents[n_extents - 1].bytes == 0)
        n_extents--;
    read->store = store;
    const unsigned n = make_ops(read, extents, n_extents, op_bytes(layer->read_bytes));
    assert(layer->sums == NULL || n_extents == 1); /* its pieces are contiguous */
    read->failed_op = -1; /* submit's lock publishes these fields to the reader threads */
    read->n_ops = n;
    read->n_left = n;
    read->pieces = 0;
    read->n_hashed = 0;
    read->hash = NULL;
    /* After the last submit `read` may be gone. */
    for (unsigned i = 0; i < n; i++)
        store->reader->ops->submit(store->reader, &read->ops[i]);
}

/* Returns the path of the file that an operation reads. */
static const char *path_of(const struct expert_store *store, const struct expert_read *read,
                           const struct read_op *op)
{
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    const struct extent *e = layer->extents + (size_t)read->expert * layer->n_extents;
    const uint64_t at = (uint64_t)((const char *)op->dst - (const char *)read->dst);
    while (at < e->slot_offset || at >= e->slot_offset + (e->bytes > 0 ? e->bytes : 1))
        e++;
    return store->model->source->files[e->file].path;
}

int expert_store_explain(const struct expert_store *store, const struct expert_read *read,
                         struct fm_error *err)
{
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    assert(read->failed_op >= 0 && (unsigned)read->failed_op < read->n_ops);
    const struct read_op *op = &read->ops[read->failed_op];
    const char *path = path_of(store, read, op);
    if (read->failed_result == BAD_CHECKSUM)
        return err_set(err, FM_ERR_FORMAT,
                       "expert %u of layer %u is damaged: '%s', %llu bytes at byte %llu do not "
                       "match their checksum in model.json; 'flashmoe verify' lists all damage",
                       read->expert, layer->layer, path, (unsigned long long)layer->record.bytes,
                       (unsigned long long)op->offset);
    if (read->failed_result == FILE_CHANGED)
        return err_wrap(err, source_explain_change(path, err), "cannot use expert %u of layer %u",
                        read->expert, layer->layer);
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
