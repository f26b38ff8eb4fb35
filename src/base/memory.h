/* Memory that a backend computes in: the host's own memory for the CPU backend, or a device's. Code
 * above a backend never dereferences an address in it; it only passes addresses on and adds
 * offsets. The host accesses a piece between memory_open and memory_close, or copies it.
 *
 * Whoever opened the backend owns `struct memory`, which outlives everything allocated from it. Any
 * thread may open, close and copy pieces that no other thread uses at that time. Only the thread
 * that drives the model may allocate and free. memory_host is the host's own memory. */
#ifndef FLASHMOE_BASE_MEMORY_H
#define FLASHMOE_BASE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct memory;

struct memory_ops {
    /* Like mem_new_bulk and mem_free; free accepts NULL. */
    void *(*make)(const struct memory *m, uint64_t bytes, const char *what, struct fm_error *err);
    void (*free)(const struct memory *m, void *at);
    /* Gives whole pages that hold nothing now back to the system until they are written again. */
    void (*give_back)(const struct memory *m, void *at, uint64_t bytes);
    /* Like mem_range_*. */
    int (*range_open)(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                      uint64_t bytes, const char *what, struct fm_error *err);
    int (*range_resize)(const struct memory *m, struct mem_range *range, uint64_t bytes,
                        const char *what, struct fm_error *err);
    void (*range_close)(const struct memory *m, struct mem_range *range);

    /* Returns where the host may read and write the piece until it is closed. Operations started
     * after the close see what the host wrote. Several pieces of one block may be open at the same
     * time. */
    void *(*open)(const struct memory *m, void *at, uint64_t bytes);
    void (*close)(const struct memory *m, void *at, uint64_t bytes);
    /* Copies within the memory; the pieces may overlap. */
    void (*copy)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    void (*clear)(const struct memory *m, void *at, uint64_t bytes);
};

struct memory {
    const struct memory_ops *ops;
    /* this is the host's own memory, so operations may read a piece while it is open */
    bool is_host;
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

static inline void *memory_open(const struct memory *m, void *at, uint64_t bytes)
{
    return m->ops->open(m, at, bytes);
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

/* Copies a piece to the host's own memory. */
void memory_fetch(const struct memory *m, void *to, const void *from, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
