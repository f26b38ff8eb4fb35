#include "base/pool.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"

/* A worker spins this many times for the next piece of work before it sleeps. One decode step
 * starts hundreds of pieces a few microseconds apart; a futex wake costs about 50. */
#define SPINS_BEFORE_SLEEP 4000

struct worker {
    struct pool *pool;
    unsigned part;
    pthread_t thread;
};

struct pool {
    unsigned n_threads;
    unsigned n_started;
    struct worker *workers; /* [n_threads - 1] */

    /* Published by the store to `round` (release), read after its load (acquire). */
    pool_fn *fn;
    void *ctx;
    bool is_closing;

    _Alignas(MEM_CACHE_LINE) atomic_uint round;     /* partner: wait_for_round */
    _Alignas(MEM_CACHE_LINE) atomic_uint n_running; /* partner: pool_run's final wait */

    /* The lock covers only going to sleep and waking. */
    pthread_mutex_t lock;
    pthread_cond_t work_ready;
    unsigned n_sleeping;
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static unsigned wait_for_round(struct pool *pool, unsigned seen)
{
    for (int i = 0; i < SPINS_BEFORE_SLEEP; i++) {
        unsigned now = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (now != seen)
            return now;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    pool->n_sleeping++;
    unsigned now;
    while ((now = atomic_load_explicit(&pool->round, memory_order_acquire)) == seen)
        pthread_cond_wait(&pool->work_ready, &pool->lock);
    pool->n_sleeping--;
    pthread_mutex_unlock(&pool->lock);
    return now;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *pool = w->pool;
    unsigned seen = 0;
    (void)fesetenv(FE_DFL_ENV); /* a thread inherits its maker's rounding: not with us */
    for (;;) {
        seen = wait_for_round(pool, seen);
        if (pool->is_closing)
            return NULL;
        pool->fn(pool->ctx, w->part, pool->n_threads);
        atomic_fetch_sub_explicit(&pool->n_running, 1, memory_order_release);
    }
}

static void start_round(struct pool *pool)
{
    atomic_store_explicit(&pool->n_running, pool->n_started, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->round, 1, memory_order_release);
    bool must_wake = pool->n_sleeping > 0;
    pthread_mutex_unlock(&pool->lock);
    if (must_wake)
        pthread_cond_broadcast(&pool->work_ready);
}

int pool_open(unsigned n_threads, struct pool **out, struct fm_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > LIMIT_THREADS)
        return err_set(err, FM_ERR_ARG, "%u threads asked for, expected 1 to %d", n_threads,
                       LIMIT_THREADS);
    struct pool *pool = mem_new_aligned(MEM_CACHE_LINE, sizeof *pool, "the thread pool", err);
    if (pool == NULL)
        return FM_ERR_NOMEM;
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work_ready, NULL);
    pool->workers = mem_new(n_threads, sizeof *pool->workers, "the thread pool", err);
    if (pool->workers == NULL) {
        pool_close(pool);
        return FM_ERR_NOMEM;
    }
    for (unsigned i = 0; i + 1 < n_threads; i++) {
        struct worker *w = &pool->workers[i];
        *w = (struct worker){.pool = pool, .part = i + 1};
        int why = plat_thread_start(&w->thread, worker_main, w);
        if (why != 0) {
            pool_close(pool);
            return err_set(err, FM_ERR_NOMEM, "cannot start thread %u of %u: %s", i + 2,
                           n_threads, strerror(why));
        }
        pool->n_started++;
    }
    *out = pool;
    return 0;
}

void pool_close(struct pool *pool)
{
    if (pool == NULL)
        return;
    pool->is_closing = true;
    start_round(pool);
    for (unsigned i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work_ready);
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool->workers);
    mem_free(pool);
}

unsigned pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

void pool_run(struct pool *pool, pool_fn *fn, void *ctx)
{
    if (pool->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    start_round(pool);
    fn(ctx, 0, pool->n_threads);
    /* With more threads than cores a part may not be running at all: let it. */
    int spins = 0;
    while (atomic_load_explicit(&pool->n_running, memory_order_acquire) != 0) {
        if (spins++ < SPINS_BEFORE_SLEEP)
            relax();
        else
            (void)sched_yield(); /* cannot fail on Linux and macOS */
    }
}
