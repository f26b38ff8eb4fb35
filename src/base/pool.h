/* A fixed set of threads that run one function in parts. The caller's thread is part 0, so a
 * pool of one starts no thread. The split of the work depends only on the number of parts and
 * never on timing; results must not depend on the split either.
 *
 * Whoever has to wait, a thread for work or the caller for the last part, spins for some
 * microseconds and then sleeps, so that a machine with other things to do gives its cores to those
 * who have work.
 *
 * pool_run may be called by one thread at a time and does not allocate. */
#ifndef FLASHMOE_BASE_POOL_H
#define FLASHMOE_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pool;

typedef void pool_fn(void *ctx, unsigned part, unsigned n_parts);

/* With `is_pinned` each started thread stays on a physical core of its own where there are enough
 * and the system can; the first core is left to the caller's thread, which belongs to the host and
 * is not touched. */
int pool_open(unsigned n_threads, bool is_pinned, struct pool **out, struct fm_error *err);
void pool_close(struct pool *pool); /* accepts NULL */
unsigned pool_n_threads(const struct pool *pool);

/* Runs fn once for every part and returns when all are done. */
void pool_run(struct pool *pool, pool_fn *fn, void *ctx);
/* Runs fn as the one part of one, here. */
void pool_run_alone(struct pool *pool, pool_fn *fn, void *ctx);

/* Only inside fn: the next of the numbers 0, 1, ... that this run's parts take in turn, each number
 * once. Items numbered so keep every thread at work until the last is taken, where a fixed share
 * would wait for a thread that the system holds up. */
size_t pool_take(struct pool *pool);

/* The half-open range of `n` items that belongs to `part`. */
static inline void pool_range(size_t n, unsigned part, unsigned n_parts, size_t *begin,
                              size_t *end)
{
    *begin = n * part / n_parts;
    *end = n * (part + 1) / n_parts;
}

#ifdef __cplusplus
}
#endif
#endif
