#include "base/memory.h"

#include <string.h>

#include "base/plat.h"

static void *host_make(const struct memory *m, uint64_t bytes, const char *what,
                       struct fm_error *err)
{
    (void)m;
    return mem_new_bulk(bytes, what, err);
}

static void host_free(const struct memory *m, void *at)
{
    (void)m;
    mem_free(at);
}

static void host_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    plat_give_back(at, bytes);
}

static bool host_take_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m, (void)at, (void)bytes;
    return true; /* the system gives pages when they are written */
}

static void host_fetch(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    (void)m;
    if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static int host_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                           uint64_t bytes, const char *what, struct fm_error *err)
{
    (void)m;
    return mem_range_open(range, piece_bytes, bytes, what, err);
}

static int host_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                             const char *what, struct fm_error *err)
{
    (void)m;
    return mem_range_resize(range, bytes, what, err);
}

static void host_range_close(const struct memory *m, struct mem_range *range)
{
    (void)m;
    mem_range_close(range);
}

static void *host_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use)
{
    (void)m, (void)bytes, (void)use;
    return at;
}

static void host_close(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m, (void)at, (void)bytes;
}

static void host_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    (void)m;
    if (bytes > 0) /* an empty piece may have no address */
        memmove(to, from, (size_t)bytes);
}

static void host_clear(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    if (bytes > 0)
        memset(at, 0, (size_t)bytes);
}

/* The processor's operations are done when they return. */
static uint64_t host_fence(const struct memory *m)
{
    (void)m;
    return 0;
}

static void host_wait(const struct memory *m, uint64_t fence)
{
    (void)m, (void)fence;
}

static const struct memory_ops host_ops = {
    .make = host_make,
    .free = host_free,
    .give_back = host_give_back,
    .take_back = host_take_back,
    .range_open = host_range_open,
    .range_resize = host_range_resize,
    .range_close = host_range_close,
    .open = host_open,
    .close = host_close,
    .fetch = host_fetch,
    .copy = host_copy,
    .clear = host_clear,
    .fence = host_fence,
    .wait = host_wait,
};

const struct memory memory_host = {.ops = &host_ops, .is_host = true};
