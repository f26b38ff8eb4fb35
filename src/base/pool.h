/* A fixed set of threads that run one function in parts. The calling thread runs part 0, so a pool
 * of one starts no thread. The split depends only on the number of parts, never on timing. Results
 * must not depend on the split.
 *
 * A thread that waits for work, and the caller that waits for the last part, spin for some
 * microseconds and then sleep. A busy machine can thus give its cores to threads that have work.
 *
 * One thread at a time may call pool_run; it does not allocate. pool_open fails with FM_ERR_NOMEM
 * or when a thread cannot be started; the caller owns the pool. */
#ifndef FLASHMOE_BASE_POOL_H
#define FLASHMOE_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pool;

typedef void pool_fn(void *ctx, unsigned part, unsigned n_parts);

/* With `is_pinned`, each started thread stays on its own physical core if there are enough cores
 * and the system allows it. The first core is left to the calling thread, which is never pinned
 * because it belongs to the host program. */
int pool_open(unsigned n_threads, bool is_pinned, struct pool **out, struct fm_error *err);
/* The same with the longest time that a thread spins before it sleeps. */
int pool_open_patient(unsigned n_threads, bool is_pinned, uint32_t spin_ns, struct pool **out,
                      struct fm_error *err);
void pool_close(struct pool *pool); /* accepts NULL */
unsigned pool_n_threads(const struct pool *pool);

/* Runs fn once for every part and returns when all parts are done. */
void pool_run(struct pool *pool, pool_fn *fn, void *ctx);
/* The same in two calls, for parts that go on beside the caller. pool_start begins all parts but
 * the first, which nobody runs, and pool_wait returns when they are done; it runs those itself that
 * no thread has begun. The pool has at least two threads. */
void pool_start(struct pool *pool, pool_fn *fn, void *ctx);
void pool_wait(struct pool *pool);
/* Runs fn on the calling thread as the only part. */
void pool_run_alone(struct pool *pool, pool_fn *fn, void *ctx);

/* Returns the next of the numbers 0, 1, ... of this pool_run; each number is returned once. Call it
 * only inside fn. Taking items this way keeps every thread busy to the end, while a fixed share
 * would wait for a thread that the system delays. */
size_t pool_take(struct pool *pool);

/* A list of items of its own, {0} before pool_run. Threads may begin with different lists, so each
 * has a cache line of its own. */
struct pool_list {
    size_t next;
    char unused[MEM_CACHE_LINE - sizeof(size_t)];
};
/* Returns the next of the numbers 0, 1, ... of this list, as pool_take does. */
size_t pool_take_of(struct pool_list *list);

/* Computes the half-open range of `n` items that belongs to `part`. */
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
