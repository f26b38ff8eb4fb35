#include "store/expert_store.h"

#include <assert.h>
#include <pthread.h>
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
    struct reader *readers[SOURCE_MAX_DISKS]; /* one for each disk */
    pthread_mutex_t lock; /* covers share, n_reads and only_disk; not held across a call */
    pthread_cond_t is_idle;
    struct disk_share share;
    unsigned n_reads; /* in flight */
    int only_disk;    /* -1: all */
    bool is_mirrored; /* every disk has every expert */
    struct store_file *files; /* [model->source->n_files] */
    bool checks, has_direct;
    bool drops; /* drops the pages that were read through the page cache */
    bool has_warned; /* atomic: a damaged prefetched expert was logged as a warning */
    bool has_warned_copy; /* atomic: so was a damaged copy */
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

/* Opens the file of an extent for direct reads, and its copies. */
static int open_extent(struct expert_store *store, const struct extent *e, struct fm_error *err)
{
    const struct source *source = store->model->source;
    int rc = 0;
    for (unsigned d = 0; rc == 0 && d < (store->is_mirrored ? store->share.n : 1); d++) {
        const unsigned file = store->is_mirrored ? source_copy(source, e->file, d) : e->file;
        if (!store->files[file].is_direct && !source->disks[d].is_lost)
            rc = open_direct(store, file, err);
    }
    return rc;
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
                rc = open_extent(store, &layer->extents[i], err);
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

unsigned expert_store_n_disks(const struct model *model)
{
    return model->source->n_disks > 0 ? model->source->n_disks : 1;
}

static void close_readers(struct reader *const readers[], unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        readers[i]->ops->close(readers[i]);
}

int expert_store_open(const struct model *model, struct reader *const readers[], enum store_io io,
                      bool checks, struct expert_store **out, struct fm_error *err)
{
    *out = NULL;
    const unsigned n_disks = expert_store_n_disks(model);
    struct expert_store *store = mem_new(1, sizeof *store, "the expert store", err);
    if (store == NULL) {
        close_readers(readers, n_disks);
        return FM_ERR_NOMEM;
    }
    *store = (struct expert_store){.model = model, .checks = checks, .drops = io != STORE_PAGES,
                                   .share.n = n_disks, .only_disk = -1,
                                   .is_mirrored = model->source->is_mirrored};
    memcpy(store->readers, readers, n_disks * sizeof readers[0]);
    for (unsigned i = 0; i < n_disks; i++)
        store->share.disks[i].is_lost = model->source->disks[i].is_lost;
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->is_idle, NULL);
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
    /* A read that fails on one disk goes on to another one, so no reader closes before all reads
     * are done. */
    pthread_mutex_lock(&store->lock);
    while (store->n_reads > 0)
        pthread_cond_wait(&store->is_idle, &store->lock);
    pthread_mutex_unlock(&store->lock);
    close_readers(store->readers, store->share.n);
    if (store->files != NULL)
        expect_random(store, false);
    for (uint32_t i = 0; store->files != NULL && i < store->model->source->n_files; i++)
        if (store->files[i].is_direct)
            plat_close(store->files[i].fd);
    for (unsigned i = 0; i < N_HASHES; i++)
        (void)XXH3_freeState(store->hashes[i].state); /* accepts NULL */
    pthread_cond_destroy(&store->is_idle);
    pthread_mutex_destroy(&store->lock);
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
}

/* Reports a damaged expert that nobody waits for. Otherwise the one who waits reports it. */
static void tell_dropped(const struct expert_read *read)
{
    struct fm_error err;
    const bool is_damaged = read->failed_result == BAD_CHECKSUM ||
                            read->failed_result == FILE_CHANGED;
    if (read->urgency != READ_GUESSED || !is_damaged)
        return;
    (void)expert_store_explain(read->store, read, &err);
    const bool is_first = !__atomic_exchange_n(&read->store->has_warned, true, __ATOMIC_RELAXED);
    (is_first ? log_warn : log_info)("store", "%s; the prefetched expert is dropped", err.text);
}

/* Returns whether the bytes can be used before their checksum is known. A damaged copy is read
 * again from another disk, so it must not be in use by then. */
static bool is_verified_late(const struct expert_read *read)
{
    bool is_late = read->store->checks && layer_of(read)->sums != NULL &&
                   !read->store->is_mirrored;
    for (unsigned m = 0; m < EXPERT_MATRICES; m++)
        is_late &= !expert_layer_changes(read->store->model, layer_of(read), m);
    return is_late;
}

static void start(struct expert_store *store, struct expert_read *read, int disk);

/* Reads a damaged expert again from one disk after the other, when each has a copy. Returns false
 * when all were tried. */
static bool tries_copies(struct expert_read *read)
{
    struct expert_store *store = read->store;
    if (!store->is_mirrored || !has_failed(read) || read->failed_result != BAD_CHECKSUM)
        return false;
    pthread_mutex_lock(&store->lock);
    while (read->n_tries < store->share.n && store->share.disks[read->n_tries].is_lost)
        read->n_tries++;
    pthread_mutex_unlock(&store->lock);
    if (read->n_tries == store->share.n)
        return false;
    start(store, read, (int)read->n_tries++); /* `read` may be gone now */
    return true;
}

static void tell_good_copy(const struct expert_read *read)
{
    const bool is_first =
        !__atomic_exchange_n(&read->store->has_warned_copy, true, __ATOMIC_RELAXED);
    (is_first ? log_warn : log_info)(
        "store", "a copy of expert %u of layer %u is damaged; the one in '%s' is used. 'flashmoe "
        "verify' lists all damage of a folder", read->expert, layer_of(read)->layer,
        read->store->model->source->disks[read->n_tries - 1].folder);
}

static void finish(struct expert_read *read)
{
    struct expert_store *store = read->store;
    assert(__atomic_load_n(&read->n_left, __ATOMIC_RELAXED) == 0);
    if (!has_failed(read))
        check(read);
    if (read->hash != NULL)
        __atomic_store_n(&read->hash->is_taken, false, __ATOMIC_RELEASE);
    if (tries_copies(read))
        return;
    const bool ok = !has_failed(read);
    if (!ok)
        tell_dropped(read);
    if (ok && read->n_tries > 0)
        tell_good_copy(read);
    if (ok) /* on this thread, while other reads are in flight */
        expert_layer_prepare(store->model, layer_of(read), read->dst);
    read->done(read, ok);
    pthread_mutex_lock(&store->lock);
    if (--store->n_reads == 0)
        pthread_cond_signal(&store->is_idle);
    pthread_mutex_unlock(&store->lock);
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

/* ---- disks --------------------------------------------------------------------------------- */

static void submit_piece(struct expert_store *store, struct expert_read *read, unsigned i)
{
    struct reader *reader = store->readers[read->disks[i]];
    reader->ops->submit(reader, &read->ops[i]);
}

/* Points a piece of a mirrored expert at the copy on its disk. */
static void point_at_copy(struct expert_read *read, unsigned i, unsigned file)
{
    const struct expert_store *store = read->store;
    const struct store_file *copy =
        &store->files[source_copy(store->model->source, file, read->disks[i])];
    read->ops[i].fd = copy->fd;
    read->ops[i].is_direct = copy->is_direct;
}

static void tell_lost(const struct expert_store *store, unsigned lost, unsigned next,
                      int64_t result)
{
    const struct source_disk *disks = store->model->source->disks;
    log_warn("store", "'%s' cannot be read any more: %s. Going on with its mirror '%s'; start "
             "again when the disk is back", disks[lost].folder,
             result < 0 ? strerror((int)-result) : "a file ends early", disks[next].folder);
}

/* Gives up the disk of a piece that could not be read, and reads the piece from a mirror. Returns
 * false when there is none left. */
static bool goes_on_elsewhere(struct expert_read *read, unsigned i, int64_t result)
{
    struct expert_store *store = read->store;
    const struct read_op *op = &read->ops[i];
    if (!store->is_mirrored)
        return false;
    const unsigned disk = read->disks[i];
    pthread_mutex_lock(&store->lock);
    const bool is_first = !store->share.disks[disk].is_lost;
    store->share.disks[disk].is_lost = true;
    const unsigned next = disk_share_pick(&store->share, op->bytes, op->urgency);
    const bool has_next = !store->share.disks[next].is_lost;
    if (has_next)
        disk_share_begin(&store->share, next, op->bytes, op->urgency, plat_now_ns());
    pthread_mutex_unlock(&store->lock);
    if (!has_next)
        return false;
    if (is_first)
        tell_lost(store, disk, next, result);
    read->disks[i] = (uint8_t)next;
    point_at_copy(read, i, layer_of(read)->extents[0].file);
    submit_piece(store, read, i);
    return true;
}

static void count_piece(struct expert_read *read, unsigned i, bool ok)
{
    struct expert_store *store = read->store;
    const uint64_t now_ns = plat_now_ns();
    pthread_mutex_lock(&store->lock);
    disk_share_end(&store->share, read->disks[i], read->ops[i].bytes, read->ops[i].urgency, ok,
                   now_ns);
    pthread_mutex_unlock(&store->lock);
}

/* ---- pieces -------------------------------------------------------------------------------- */

/* Pieces land on several threads in any order. One thread at a time hashes them; a piece that lands
 * meanwhile is left to that thread. */
static void piece_done(struct read_op *op, int64_t result)
{
    struct expert_read *read = op->ctx;
    const int mine = (int)(op - read->ops);
    assert(mine >= 0 && (unsigned)mine < read->n_ops);
    if (read->store->drops && !op->is_direct)
        plat_drop_pages(op->fd, op->offset, op->bytes);
    const bool ok = result >= 0 && (uint64_t)result == op->bytes;
    count_piece(read, (unsigned)mine, ok);
    if (!ok && goes_on_elsewhere(read, (unsigned)mine, result))
        return;
    if (!ok) {
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

/* Splits an extent into operations. All but the last one have the same size. */
static void add_ops(struct expert_read *read, const struct extent *e, uint64_t max)
{
    const struct store_file *file = &read->store->files[e->file];
    assert(e->slot_offset + e->bytes <= read->store->model->expert_slot_bytes);
    const uint64_t n_pieces = e->bytes > 0 ? (e->bytes + max - 1) / max : 1;
    const uint64_t piece = mem_round_up((e->bytes + n_pieces - 1) / n_pieces, MEM_PAGE);
    for (uint64_t at = 0; at < e->bytes || at == 0; at += piece) {
        assert(read->n_ops < EXPERT_MAX_OPS);
        read->disks[read->n_ops] = (uint8_t)read->store->model->source->files[e->file].disk;
        read->ops[read->n_ops++] = (struct read_op){
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
}

static void make_ops(struct expert_read *read, int disk)
{
    const struct expert_store *store = read->store;
    const struct expert_layer *layer = layer_of(read);
    const struct extent *extents = layer->extents + (size_t)read->expert * layer->n_extents;
    const uint64_t max = op_bytes(layer->read_bytes);
    /* An expert with fewer extents than others leaves its last extents empty. */
    unsigned n = layer->n_extents;
    while (n > 1 && extents[n - 1].bytes == 0)
        n--;
    read->n_ops = 0;
    for (unsigned i = 0; i < n; i++)
        if (disk < 0 || store->is_mirrored ||
            store->model->source->files[extents[i].file].disk == (unsigned)disk)
            add_ops(read, &extents[i], max);
    for (unsigned i = 0; i < n && read->n_ops == 0; i++) /* nothing of it is on that disk */
        add_ops(read, &extents[i], max);
}

/* Distributes the pieces of a mirrored expert over the disks, or gives all of them to one. Counts
 * the pieces as in flight. */
static void choose_disks(struct expert_read *read, int disk)
{
    struct expert_store *store = read->store;
    const uint64_t now_ns = plat_now_ns();
    pthread_mutex_lock(&store->lock);
    for (unsigned i = 0; i < read->n_ops; i++) {
        const struct read_op *op = &read->ops[i];
        if (store->is_mirrored)
            read->disks[i] = (uint8_t)(disk >= 0 ? (unsigned)disk
                                                 : disk_share_pick(&store->share, op->bytes,
                                                                   op->urgency));
        disk_share_begin(&store->share, read->disks[i], op->bytes, op->urgency, now_ns);
    }
    pthread_mutex_unlock(&store->lock);
    for (unsigned i = 0; store->is_mirrored && i < read->n_ops; i++)
        point_at_copy(read, i, layer_of(read)->extents[0].file);
}

/* Starts a read; from one disk alone if `disk` is not -1. */
static void start(struct expert_store *store, struct expert_read *read, int disk)
{
    make_ops(read, disk);
    choose_disks(read, disk);
    const unsigned n = read->n_ops;
    read->failed_op = -1; /* submit's lock publishes these fields to the reader threads */
    read->n_left = n;
    read->pieces = 0;
    read->n_hashed = 0;
    read->hash = NULL;
    /* After the last submit `read` may be gone. */
    for (unsigned i = 0; i < n; i++)
        submit_piece(store, read, i);
}

void expert_store_submit(struct expert_store *store, struct expert_read *read)
{
    assert(read->expert_layer < store->model->n_expert_layers &&
           read->expert < store->model->expert_layers[read->expert_layer].n_experts);
    read->store = store;
    read->n_tries = 0;
    pthread_mutex_lock(&store->lock);
    store->n_reads++;
    const int disk = store->only_disk;
    pthread_mutex_unlock(&store->lock);
    start(store, read, disk);
}

void expert_store_read_only(struct expert_store *store, int disk)
{
    pthread_mutex_lock(&store->lock);
    store->only_disk = disk;
    pthread_mutex_unlock(&store->lock);
}

struct disk_load expert_store_disk(struct expert_store *store, unsigned disk)
{
    assert(disk < store->share.n);
    pthread_mutex_lock(&store->lock);
    const struct disk_load load = store->share.disks[disk];
    pthread_mutex_unlock(&store->lock);
    return load;
}

/* Returns the path of the file that an operation reads. */
static const char *path_of(const struct expert_store *store, const struct expert_read *read,
                           const struct read_op *op)
{
    const struct source *source = store->model->source;
    const struct expert_layer *layer = &store->model->expert_layers[read->expert_layer];
    const struct extent *e = layer->extents + (size_t)read->expert * layer->n_extents;
    const uint64_t at = (uint64_t)((const char *)op->dst - (const char *)read->dst);
    while (at < e->slot_offset || at >= e->slot_offset + (e->bytes > 0 ? e->bytes : 1))
        e++;
    const unsigned file =
        store->is_mirrored ? source_copy(source, e->file, read->disks[op - read->ops]) : e->file;
    return source->files[file].path;
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
