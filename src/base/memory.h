/* Memory that a backend computes in. It may be the host's own, as the processor's is, or a
 * device's, so nobody above a backend looks into it: addresses are passed on and added to, never
 * dereferenced. The host looks at a piece between memory_open and memory_close, or copies it.
 *
 * `struct memory` is handed down by whoever opened the backend and outlives all that was made in
 * it. Any thread may open, close and copy pieces that nobody else uses at that time; making and
 * freeing belong to the thread that drives the model. memory_host is the host's own. */
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
    /* As mem_new_bulk and mem_free; free accepts NULL. */
    void *(*make)(const struct memory *m, uint64_t bytes, const char *what, struct fm_error *err);
    void (*free)(const struct memory *m, void *at);
    /* Whole pages of such memory that hold nothing now: the system may have them until they are
     * written again. */
    void (*give_back)(const struct memory *m, void *at, uint64_t bytes);
    /* As mem_range_*. */
    int (*range_open)(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                      uint64_t bytes, const char *what, struct fm_error *err);
    int (*range_resize)(const struct memory *m, struct mem_range *range, uint64_t bytes,
                        const char *what, struct fm_error *err);
    void (*range_close)(const struct memory *m, struct mem_range *range);

    /* Where the host may read and write the piece until it is closed; what it wrote is there for
     * operations afterwards. Pieces of one block may be open at the same time. */
    void *(*open)(const struct memory *m, void *at, uint64_t bytes);
    void (*close)(const struct memory *m, void *at, uint64_t bytes);
    /* Within the memory; the pieces may overlap. */
    void (*copy)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    void (*clear)(const struct memory *m, void *at, uint64_t bytes);
};

struct memory {
    const struct memory_ops *ops;
    /* It is the host's own: operations may read a piece while it is open. */
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
