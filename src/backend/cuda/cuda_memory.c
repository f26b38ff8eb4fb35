#include "backend/cuda/cuda_memory.h"

#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* A piece that is open. */
struct cuda_piece {
    struct cuda_piece *next;
    void *at;
    uint64_t bytes;
    enum memory_use use;
    char *host;
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

static void *cuda_make(const struct memory *m, uint64_t bytes, const char *what,
                       struct fm_error *err)
{
    void *at = device_of(m)->ops->make(device_of(m), bytes);
    if (at == NULL)
        (void)out_of_memory(bytes, what, err);
    return at;
}

static void cuda_free(const struct memory *m, void *at)
{
    finish(m);
    device_of(m)->ops->free(device_of(m), at);
}

/* Blocks keep their memory: only ranges shrink. */
static void cuda_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)at, (void)bytes;
    finish(m);
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

static void *cuda_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use)
{
    struct cuda_memory *c = owner_of(m);
    struct fm_error err;
    struct cuda_piece *piece = mem_new(1, sizeof *piece, "a piece of the GPU's memory", &err);
    char *host = piece == NULL ? NULL
                               : mem_new_aligned(MEM_PAGE, mem_round_up(bytes + 1, MEM_PAGE),
                                                 "a piece of the GPU's memory", &err);
    if (host == NULL) {
        mem_free(piece);
        return NULL;
    }
    *piece = (struct cuda_piece){.at = at, .bytes = bytes, .use = use, .host = host};
    if (use == MEMORY_LOOK)
        cuda_queue_fetch(c->queue, host, at, bytes);
    pthread_mutex_lock(&c->lock);
    piece->next = c->pieces;
    c->pieces = piece;
    pthread_mutex_unlock(&c->lock);
    return host;
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
    mem_free(piece->host);
    mem_free(piece);
}

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
    .range_open = cuda_range_open,
    .range_resize = cuda_range_resize,
    .range_close = cuda_range_close,
    .open = cuda_open,
    .close = cuda_close,
    .copy = cuda_copy,
    .clear = cuda_clear,
    .fence = cuda_fence,
    .wait = cuda_wait,
};

void cuda_memory_init(struct cuda_memory *m, struct cuda_queue *queue)
{
    *m = (struct cuda_memory){.base = {.ops = &cuda_memory_ops}, .queue = queue};
    pthread_mutex_init(&m->lock, NULL);
}

void cuda_memory_clear(struct cuda_memory *m)
{
    assert(m->pieces == NULL);
    pthread_mutex_destroy(&m->lock);
}
