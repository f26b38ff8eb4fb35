/* Memory that a backend computes in: the host's own memory for the CPU backend, or a device's. Code
 * above a backend never dereferences an address in it; it only passes addresses on and adds
 * offsets. The host opens a piece, uses it where memory_open says, and closes it.
 *
 * The backend queues its operations and runs them in order, maybe later (backend/backend.h).
 * memory_copy and memory_clear are operations of that queue. Opening a piece to look at it waits
 * for the queue; so does everything that takes memory away: free, give_back, range_close and a
 * range_resize to fewer bytes. Opening a piece to fill it does not wait: the caller knows from
 * memory_finish, or from a fence that it has waited for, that no queued operation uses the piece.
 *
 * Whoever opened the backend owns `struct memory`, which outlives everything allocated from it. Any
 * thread may open a piece to fill it, and close it, while no other thread uses that piece.
 * Everything else belongs to the thread that drives the model. memory_host is the host's own
 * memory. */
#ifndef FLASHMOE_BASE_MEMORY_H
#define FLASHMOE_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct memory;

/* What a piece is opened for. */
enum memory_use {
    MEMORY_LOOK, /* to read it: has what the operations queued before have written */
    MEMORY_FILL, /* to write all of it: begins with any bytes, and closing it keeps those written */
};

struct memory_ops {
    /* Like mem_new_bulk and mem_free; free accepts NULL. */
    void *(*make)(const struct memory *m, uint64_t bytes, const char *what, struct fm_error *err);
    void (*free)(const struct memory *m, void *at);
    /* Gives whole pages of a block that hold nothing now back to the system. */
    void (*give_back)(const struct memory *m, void *at, uint64_t bytes);
    /* Takes such pages again, before they are written. Returns false when there are none. */
    bool (*take_back)(const struct memory *m, void *at, uint64_t bytes);
    /* Like mem_range_*. */
    int (*range_open)(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                      uint64_t bytes, const char *what, struct fm_error *err);
    int (*range_resize)(const struct memory *m, struct mem_range *range, uint64_t bytes,
                        const char *what, struct fm_error *err);
    void (*range_close)(const struct memory *m, struct mem_range *range);

    /* Makes sure that n more pieces of at most so many bytes can be open at the same time; they are
     * counted until the memory goes. FM_ERR_NOMEM. NULL: any number can be. */
    int (*reserve)(const struct memory *m, uint32_t n, uint64_t bytes, struct fm_error *err);
    /* Returns where the host may use the piece until it is closed. NULL if there is no memory for
     * it, which cannot happen within what was reserved. Operations queued after the
     * close see what the host filled in. Several pieces of one block may be open at the same
     * time. */
    void *(*open)(const struct memory *m, void *at, uint64_t bytes, enum memory_use use);
    void (*close)(const struct memory *m, void *at, uint64_t bytes);
    /* Copies a piece to the host's own memory: waits as opening it does. */
    void (*fetch)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    /* Copies within the memory; the pieces may overlap. */
    void (*copy)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    void (*clear)(const struct memory *m, void *at, uint64_t bytes);
    /* Returns a number for the operations queued so far; 0: all are done. */
    uint64_t (*fence)(const struct memory *m);
    /* Waits until the operations before that fence are done. */
    void (*wait)(const struct memory *m, uint64_t fence);
};

struct memory_link;

struct memory {
    const struct memory_ops *ops;
    const struct memory_link *link; /* from and to the host's memory (base/link.h); NULL: none */
    /* this is the host's own memory, so operations may read a piece while it is open */
    bool is_host;
    /* Bytes of a piece that the host opens at a time, where it can choose: more take long and much
     * of the host's memory. 0: any number. */
    uint64_t handy_bytes;
};

extern const struct memory memory_host;

static inline void *memory_make(const struct memory *m, uint64_t bytes, const char *what,
                                struct fm_error *err)
{
    return m->ops->make(m, bytes, what, err);
}

static inline void memory_free(const struct memory *m, void *at)
{
    m->ops->free(m, at);
}

static inline int memory_reserve(const struct memory *m, uint32_t n, uint64_t bytes,
                                 struct fm_error *err)
{
    return m->ops->reserve != NULL ? m->ops->reserve(m, n, bytes, err) : 0;
}

static inline void *memory_open(const struct memory *m, void *at, uint64_t bytes,
                                enum memory_use use)
{
    return m->ops->open(m, at, bytes, use);
}

/* Returns how many of `bytes` the host opens as one piece. */
static inline uint64_t memory_handy(const struct memory *m, uint64_t bytes)
{
    return m->handy_bytes > 0 && bytes > m->handy_bytes ? m->handy_bytes : bytes;
}

static inline void memory_close(const struct memory *m, void *at, uint64_t bytes)
{
    m->ops->close(m, at, bytes);
}

static inline void memory_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    m->ops->copy(m, to, from, bytes);
}

static inline void memory_clear(const struct memory *m, void *at, uint64_t bytes)
{
    m->ops->clear(m, at, bytes);
}

static inline uint64_t memory_fence(const struct memory *m)
{
    return m->ops->fence(m);
}

static inline void memory_wait(const struct memory *m, uint64_t fence)
{
    if (fence > 0)
        m->ops->wait(m, fence);
}

/* Waits until all queued operations are done. */
static inline void memory_finish(const struct memory *m)
{
    memory_wait(m, memory_fence(m));
}

static inline void memory_fetch(const struct memory *m, void *to, const void *from,
                                uint64_t bytes)
{
    m->ops->fetch(m, to, from, bytes);
}

#ifdef __cplusplus
}
#endif
#endif
