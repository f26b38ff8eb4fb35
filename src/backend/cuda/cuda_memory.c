#include "backend/cuda/cuda_memory.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/link.h"
#include "base/mem.h"

/* A block of at least so many pages is made of pages, which can be given back. */
#define MIN_PAGES 2

struct cuda_block {
    struct cuda_block *next;
    char *at;
    uint64_t bytes; /* of all pages, with memory or without */
    uint64_t n_pages;
    bool has_memory[]; /* [n_pages] */
};

/* A piece that is open. */
struct cuda_piece {
    struct cuda_piece *next;
    void *at;
    uint64_t bytes;
    enum memory_use use;
    char *host;
    uint64_t room; /* bytes there */
    bool is_pinned;
};

static struct cuda_memory *owner_of(const struct memory *m)
{
    return (struct cuda_memory *)(uintptr_t)m;
}

static struct cuda_queue *queue_of(const struct memory *m)
{
    return owner_of(m)->queue;
}

static struct gpu_device *device_of(const struct memory *m)
{
    return owner_of(m)->queue->device;
}

/* ---- blocks and ranges ----------------------------------------------------------------------- */

static int out_of_memory(uint64_t bytes, const char *what, struct fm_error *err)
{
    return err_set(err, FM_ERR_NOMEM, "the GPU is out of memory: %s of %llu bytes", what,
                   (unsigned long long)bytes);
}

static void finish(const struct memory *m)
{
    cuda_queue_wait(queue_of(m), cuda_queue_fence(queue_of(m)));
}

static struct cuda_block **find_block(const struct memory *m, const void *at)
{
    struct cuda_block **link = &owner_of(m)->blocks;
    while (*link != NULL &&
           ((const char *)at < (*link)->at || (const char *)at >= (*link)->at + (*link)->bytes))
        link = &(*link)->next;
    return link;
}

static void unmap_pages(const struct memory *m, struct cuda_block *b, uint64_t first, uint64_t end)
{
    struct gpu_device *d = device_of(m);
    for (uint64_t i = first; i < end; i++) {
        if (b->has_memory[i])
            d->ops->unmap(d, b->at + i * d->page_bytes, d->page_bytes);
        b->has_memory[i] = false;
    }
}

/* Gives memory to the pages [first, end) that have none; all of them or none. */
static bool map_pages(const struct memory *m, struct cuda_block *b, uint64_t first, uint64_t end)
{
    struct gpu_device *d = device_of(m);
    while (first < end && b->has_memory[first])
        first++;
    uint64_t i = first; /* those behind have none either: a block loses its last pages first */
    while (i < end && !b->has_memory[i] &&
           d->ops->map(d, b->at + i * d->page_bytes, d->page_bytes))
        b->has_memory[i++] = true;
    if (i < end)
        unmap_pages(m, b, first, i);
    return i == end;
}

static void drop_block(const struct memory *m, struct cuda_block *b)
{
    unmap_pages(m, b, 0, b->n_pages);
    device_of(m)->ops->release(device_of(m), b->at, b->bytes);
    mem_free(b);
}

static void *make_pages(const struct memory *m, uint64_t bytes)
{
    struct cuda_memory *c = owner_of(m);
    struct gpu_device *d = device_of(m);
    const uint64_t n = (bytes - 1) / d->page_bytes + 1;
    struct cuda_block *b = mem_new(1, sizeof *b + n * sizeof b->has_memory[0], "a block", NULL);
    if (b == NULL)
        return NULL;
    b->n_pages = n;
    b->bytes = n * d->page_bytes;
    b->at = d->ops->reserve(d, b->bytes);
    if (b->at == NULL) {
        mem_free(b);
        return NULL;
    }
    if (!map_pages(m, b, 0, n)) {
        drop_block(m, b);
        return NULL;
    }
    b->next = c->blocks;
    c->blocks = b;
    return b->at;
}

static void *cuda_make(const struct memory *m, uint64_t bytes, const char *what,
                       struct fm_error *err)
{
    struct gpu_device *d = device_of(m);
    void *at = bytes >= MIN_PAGES * d->page_bytes ? make_pages(m, bytes) : d->ops->make(d, bytes);
    if (at == NULL)
        (void)out_of_memory(bytes, what, err);
    return at;
}

static void cuda_free(const struct memory *m, void *at)
{
    struct cuda_block **link = find_block(m, at), *block = *link;
    finish(m);
    if (block == NULL) {
        device_of(m)->ops->free(device_of(m), at);
        return;
    }
    *link = block->next;
    drop_block(m, block);
}

/* Only pages that lie in the piece as a whole are given back. */
static void cuda_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    const uint64_t page = device_of(m)->page_bytes;
    struct cuda_block *b = *find_block(m, at);
    finish(m);
    if (b == NULL || bytes == 0)
        return;
    const uint64_t begin = (uint64_t)((char *)at - b->at), end = begin + bytes;
    const uint64_t first = (begin + page - 1) / page;
    /* what is behind the block's last byte belongs to nobody */
    const uint64_t last = b->bytes - end < page ? b->n_pages : end / page;
    if (first < last)
        unmap_pages(m, b, first, last);
}

static bool cuda_take_back(const struct memory *m, void *at, uint64_t bytes)
{
    const uint64_t page = device_of(m)->page_bytes;
    struct cuda_block *b = *find_block(m, at);
    if (b == NULL || bytes == 0)
        return true;
    const uint64_t begin = (uint64_t)((char *)at - b->at);
    return map_pages(m, b, begin / page, (begin + bytes - 1) / page + 1);
}

/* A range counts its bytes as the host's memory does, so that budgets agree. The GPU's pages are
 * larger. */
static uint64_t mapped(const struct memory *m, uint64_t bytes)
{
    return mem_round_up(bytes, device_of(m)->page_bytes);
}

static int cuda_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                           uint64_t bytes, const char *what, struct fm_error *err)
{
    struct gpu_device *d = device_of(m);
    *range = (struct mem_range){.page_bytes = mem_range_bytes(piece_bytes, 1)};
    if (bytes == 0)
        return 0;
    const uint64_t all = mem_range_bytes(piece_bytes, bytes);
    range->at = all > UINT64_MAX - d->page_bytes ? NULL : d->ops->reserve(d, mapped(m, all));
    if (range->at == NULL)
        return out_of_memory(bytes, what, err);
    range->all_bytes = all;
    return 0;
}

static int cuda_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                             const char *what, struct fm_error *err)
{
    struct gpu_device *d = device_of(m);
    const uint64_t used = mem_round_up(bytes, range->page_bytes), now = range->used_bytes;
    const uint64_t end = mapped(m, used), old_end = mapped(m, now);
    assert(used <= range->all_bytes);
    if (used < now)
        finish(m);
    if (end > old_end && !d->ops->map(d, range->at + old_end, end - old_end))
        return out_of_memory(end - old_end, what, err);
    if (end < old_end)
        d->ops->unmap(d, range->at + end, old_end - end);
    if (used > now)
        cuda_queue_clear(queue_of(m), range->at + now, used - now);
    range->used_bytes = used;
    return 0;
}

static void cuda_range_close(const struct memory *m, struct mem_range *range)
{
    struct gpu_device *d = device_of(m);
    if (range->at != NULL) {
        finish(m);
        if (range->used_bytes > 0)
            d->ops->unmap(d, range->at, mapped(m, range->used_bytes));
        d->ops->release(d, range->at, mapped(m, range->all_bytes));
    }
    *range = (struct mem_range){0};
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Pieces up to this size, 16 MiB, and those that were reserved, keep their memory on the host,
 * which is pinned, for the next one. Larger ones are rare: a tensor that is larger. */
#define KEPT_PAGES 8
/* So many are kept beside those that were reserved. */
#define KEPT_PIECES 1

/* Takes the smallest kept piece with room out; NULL: there is none. The caller holds the lock. */
static struct cuda_piece *take_smallest(struct cuda_memory *c, uint64_t room)
{
    struct cuda_piece **best = NULL;
    for (struct cuda_piece **link = &c->kept; *link != NULL; link = &(*link)->next)
        if ((*link)->room >= room && (best == NULL || (*link)->room < (*best)->room))
            best = link;
    if (best == NULL)
        return NULL;
    struct cuda_piece *piece = *best;
    *best = piece->next;
    c->n_kept--;
    return piece;
}

static struct cuda_piece *take_kept(struct cuda_memory *c, uint64_t bytes)
{
    pthread_mutex_lock(&c->lock);
    struct cuda_piece *piece = take_smallest(c, bytes);
    pthread_mutex_unlock(&c->lock);
    return piece;
}

static void free_piece(struct cuda_memory *c, struct cuda_piece *piece)
{
    struct gpu_device *d = c->queue->device;
    if (piece->is_pinned)
        d->ops->host_free(d, piece->host);
    else
        mem_free(piece->host);
    mem_free(piece);
}

static struct cuda_piece *make_piece(struct cuda_memory *c, uint64_t bytes, bool pins)
{
    struct gpu_device *d = c->queue->device;
    struct fm_error err;
    const uint64_t room = mem_round_up(bytes + 1, MEM_PAGE);
    struct cuda_piece *piece = mem_new(1, sizeof *piece, "a piece of the GPU's memory", &err);
    if (piece == NULL)
        return NULL;
    piece->room = room;
    piece->host = pins ? d->ops->host_make(d, room) : NULL;
    piece->is_pinned = piece->host != NULL;
    if (piece->host == NULL)
        piece->host = mem_new_aligned(MEM_PAGE, room, "a piece of the GPU's memory", &err);
    if (piece->host != NULL)
        return piece;
    mem_free(piece);
    return NULL;
}

/* Keeps the piece for the next one, in the place of the smallest if there are enough. One that is
 * larger than those of usual size and those that were reserved is not kept. */
static void keep_piece(struct cuda_memory *c, struct cuda_piece *piece)
{
    struct cuda_piece *extra = piece;
    pthread_mutex_lock(&c->lock);
    if (piece->room <= c->max_kept) {
        piece->next = c->kept;
        c->kept = piece;
        extra = ++c->n_kept > KEPT_PIECES + c->n_reserved ? take_smallest(c, 0) : NULL;
    }
    pthread_mutex_unlock(&c->lock);
    if (extra != NULL)
        free_piece(c, extra);
}

static void count_reserved(struct cuda_memory *c, uint64_t room)
{
    pthread_mutex_lock(&c->lock);
    c->n_reserved++;
    c->max_kept = room > c->max_kept ? room : c->max_kept;
    pthread_mutex_unlock(&c->lock);
}

static int cuda_reserve(const struct memory *m, uint32_t n, uint64_t bytes, struct fm_error *err)
{
    struct cuda_memory *c = owner_of(m);
    for (uint32_t i = 0; i < n; i++) {
        struct cuda_piece *piece = make_piece(c, bytes, true);
        if (piece == NULL)
            return err_set(err, FM_ERR_NOMEM, "out of memory: pieces of %llu bytes for the GPU",
                           (unsigned long long)bytes);
        count_reserved(c, piece->room);
        keep_piece(c, piece);
    }
    return 0;
}

static void *cuda_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use)
{
    struct cuda_memory *c = owner_of(m);
    struct cuda_piece *piece = take_kept(c, bytes);
    if (piece == NULL)
        piece = make_piece(c, bytes, bytes <= c->base.handy_bytes);
    if (piece == NULL)
        return NULL;
    piece->at = at;
    piece->bytes = bytes;
    piece->use = use;
    if (use == MEMORY_LOOK)
        cuda_queue_fetch(c->queue, piece->host, at, bytes);
    pthread_mutex_lock(&c->lock);
    piece->next = c->pieces;
    c->pieces = piece;
    pthread_mutex_unlock(&c->lock);
    return piece->host;
}

static struct cuda_piece *take_piece(struct cuda_memory *c, const void *at, uint64_t bytes)
{
    pthread_mutex_lock(&c->lock);
    struct cuda_piece **link = &c->pieces;
    while (*link != NULL && ((*link)->at != at || (*link)->bytes != bytes))
        link = &(*link)->next;
    struct cuda_piece *piece = *link;
    assert(piece != NULL);
    *link = piece->next;
    pthread_mutex_unlock(&c->lock);
    return piece;
}

static void cuda_close(const struct memory *m, void *at, uint64_t bytes)
{
    struct cuda_memory *c = owner_of(m);
    struct cuda_piece *piece = take_piece(c, at, bytes);
    if (piece->use == MEMORY_FILL)
        device_of(m)->ops->fill(device_of(m), at, piece->host, bytes);
    keep_piece(c, piece);
}

static void cuda_fetch(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_fetch(queue_of(m), to, from, bytes);
}

/* ---- the link -------------------------------------------------------------------------------- */

static void cuda_start(const struct memory *m)
{
    cuda_queue_submit(queue_of(m));
}

static uint64_t cuda_mark(const struct memory *m)
{
    cuda_queue_submit(queue_of(m));
    return device_of(m)->ops->mark(device_of(m));
}

static void cuda_transfer(const struct memory *m, void *to, const void *from, uint64_t bytes,
                          uint64_t mark)
{
    device_of(m)->ops->transfer(device_of(m), to, from, bytes, mark);
}

static void cuda_send(const struct memory *m, void *to, const void *from, uint64_t bytes,
                      uint64_t mark)
{
    device_of(m)->ops->send(device_of(m), to, from, bytes, mark);
}

static void cuda_join(const struct memory *m)
{
    cuda_queue_submit(queue_of(m)); /* what was asked for before does not wait */
    device_of(m)->ops->join(device_of(m));
}

static void cuda_settle(const struct memory *m)
{
    device_of(m)->ops->settle(device_of(m));
}

static bool cuda_is_settled(const struct memory *m)
{
    return device_of(m)->ops->is_settled(device_of(m));
}

static bool cuda_sees(const struct memory *m, const void *at, uint64_t bytes)
{
    return device_of(m)->ops->is_seen(device_of(m), at, bytes);
}

static void cuda_upload(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_upload(queue_of(m), to, from, bytes);
}

static void cuda_bring(const struct memory *m, void *to, const struct link_pieces *pieces)
{
    assert(pieces->gate == NULL || device_of(m)->has_patience);
    cuda_queue_bring(queue_of(m), to, pieces);
}

static bool cuda_has_gates(const struct memory *m)
{
    return device_of(m)->has_patience;
}

static void cuda_download(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_download(queue_of(m), to, from, bytes);
}

static bool cuda_pin(const struct memory *m, void *at, uint64_t bytes)
{
    return device_of(m)->ops->pin(device_of(m), at, bytes);
}

static void cuda_unpin(const struct memory *m, void *at, uint64_t bytes)
{
    device_of(m)->ops->unpin(device_of(m), at, bytes);
}

static const struct memory_link cuda_link = {
    .start = cuda_start,
    .mark = cuda_mark,
    .transfer = cuda_transfer,
    .send = cuda_send,
    .join = cuda_join,
    .settle = cuda_settle,
    .is_settled = cuda_is_settled,
    .sees = cuda_sees,
    .upload = cuda_upload,
    .bring = cuda_bring,
    .has_gates = cuda_has_gates,
    .download = cuda_download,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
};

/* ---- the queue ------------------------------------------------------------------------------- */

static void cuda_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_copy(queue_of(m), to, from, bytes);
}

static void cuda_clear(const struct memory *m, void *at, uint64_t bytes)
{
    cuda_queue_clear(queue_of(m), at, bytes);
}

static uint64_t cuda_fence(const struct memory *m)
{
    return cuda_queue_fence(queue_of(m));
}

static void cuda_wait(const struct memory *m, uint64_t fence)
{
    cuda_queue_wait(queue_of(m), fence);
}

static const struct memory_ops cuda_memory_ops = {
    .make = cuda_make,
    .free = cuda_free,
    .give_back = cuda_give_back,
    .take_back = cuda_take_back,
    .range_open = cuda_range_open,
    .range_resize = cuda_range_resize,
    .range_close = cuda_range_close,
    .reserve = cuda_reserve,
    .open = cuda_open,
    .close = cuda_close,
    .fetch = cuda_fetch,
    .copy = cuda_copy,
    .clear = cuda_clear,
    .fence = cuda_fence,
    .wait = cuda_wait,
};

void cuda_memory_init(struct cuda_memory *m, struct cuda_queue *queue)
{
    *m = (struct cuda_memory){.base = {.ops = &cuda_memory_ops, .link = &cuda_link},
                              .queue = queue};
    m->base.handy_bytes = KEPT_PAGES * queue->device->page_bytes;
    m->max_kept = m->base.handy_bytes + MEM_PAGE;
    pthread_mutex_init(&m->lock, NULL);
}

void cuda_memory_clear(struct cuda_memory *m)
{
    assert(m->pieces == NULL && m->blocks == NULL);
    while (m->kept != NULL) {
        struct cuda_piece *piece = m->kept;
        m->kept = piece->next;
        free_piece(m, piece);
    }
    pthread_mutex_destroy(&m->lock);
}
