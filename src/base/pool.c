#include "base/pool.h"

#include <assert.h>
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"

/* Maximum time that a thread spins before it sleeps. A decode step starts hundreds of rounds a few
 * microseconds apart; waking a sleeping thread takes about 5 us, in a virtual machine up to 50. */
#define USUAL_SPIN_NS 50000
#define SPIN_MIN_NS 1000
/* After this many sleeps, a thread whose spinning was useless tries the maximum again, because the
 * other load may have gone. */
#define SLEEPS_PER_TRY 64
/* Checks of the flag between two readings of the clock. */
#define LOOKS_PER_CLOCK 8

/* How long one thread spins. Halved when the spin was useless, since others then need the core;
 * doubled when it was not. Next to other load this is 25 to 50 % faster than always spinning for
 * the maximum (tests/bench/pool_speed.c). Owned by that thread. */
struct patience {
    uint32_t spin_ns, max_ns;
    uint32_t n_sleeps; /* in a row, since the last try */
};

/* The place where one thread sleeps. The flag says that it sleeps or is about to. The lock covers
 * only falling asleep and waking. */
struct bed {
    atomic_bool is_taken;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

/* Each on its own cache lines, because different threads write them all the time. */
struct worker {
    _Alignas(MEM_CACHE_LINE) atomic_uint state; /* of its part: started or done, and in which
                                                 * round */
    _Alignas(MEM_CACHE_LINE) struct bed bed;
    struct patience patience;
    struct pool *pool;
    unsigned part;
    pthread_t thread;
};

struct pool {
    unsigned n_threads;
    unsigned n_started;
    bool is_pinned;
    struct worker *workers; /* [n_threads - 1] */
    struct patience patience;

    /* One cache line that every worker reads; the store to `round` publishes fn and ctx. */
    _Alignas(MEM_CACHE_LINE) atomic_uint round;
    atomic_bool is_closing;
    pool_fn *fn;
    void *ctx;

    _Alignas(MEM_CACHE_LINE) atomic_size_t next_item; /* of this round */

    /* Written only by threads that go to sleep. */
    _Alignas(MEM_CACHE_LINE) atomic_uint n_sleeping; /* workers asleep or about to be */
    struct bed bed;                                  /* the caller's */
    atomic_uint awaited;                             /* the part whose end wakes the caller; 0 for
                                                      * none */
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Returns whether the wait is over: *flag equals `value` if `is_equal`, otherwise differs from
 * it. */
static inline bool has_come(const atomic_uint *flag, unsigned value, bool is_equal)
{
    return (atomic_load(flag) == value) == is_equal;
}

static void learn(struct patience *patience, bool is_try, bool has_helped)
{
    const uint32_t longer = is_try ? patience->max_ns : 2 * patience->spin_ns;
    const uint32_t shorter = patience->spin_ns / 2;
    if (has_helped)
        patience->spin_ns = longer < patience->max_ns ? longer : patience->max_ns;
    else
        patience->spin_ns = shorter > SPIN_MIN_NS ? shorter : SPIN_MIN_NS;
    patience->n_sleeps = has_helped || is_try ? 0 : patience->n_sleeps + 1;
}

/* Returns false if the spin time ends first. */
static bool spin_until(const atomic_uint *flag, unsigned value, bool is_equal,
                       struct patience *patience)
{
    if (has_come(flag, value, is_equal))
        return true;
    const bool is_try = patience->n_sleeps >= SLEEPS_PER_TRY;
    const uint64_t max_ns = is_try ? patience->max_ns : patience->spin_ns;
    uint64_t stop_ns = 0, now_ns;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            relax();
            if (has_come(flag, value, is_equal)) {
                learn(patience, is_try, true);
                return true;
            }
        }
        now_ns = plat_now_ns();
        stop_ns = stop_ns == 0 ? now_ns + max_ns : stop_ns;
    } while (now_ns < stop_ns);
    learn(patience, is_try, false);
    return false;
}

/* A sleeping thread marks the bed, checks once more and only then sleeps. A waking thread changes
 * the flag first and then checks the bed. All are seq_cst operations, which have one order, so one
 * of the two always sees the other. */
static void sleep_until(struct bed *bed, const atomic_uint *flag, unsigned value, bool is_equal)
{
    pthread_mutex_lock(&bed->lock);
    for (;;) {
        atomic_store(&bed->is_taken, true); /* repeated, because a late wake-up for an earlier sleep
                                             * may arrive */
        if (has_come(flag, value, is_equal))
            break;
        pthread_cond_wait(&bed->wake, &bed->lock);
    }
    atomic_store_explicit(&bed->is_taken, false, memory_order_relaxed);
    pthread_mutex_unlock(&bed->lock);
}

static void wake_up(struct bed *bed)
{
    if (!atomic_load(&bed->is_taken) || !atomic_exchange(&bed->is_taken, false))
        return;
    /* The sleeper holds the lock until it waits, so after this it can be signalled. */
    pthread_mutex_lock(&bed->lock);
    pthread_mutex_unlock(&bed->lock);
    pthread_cond_signal(&bed->wake);
}

static void bed_init(struct bed *bed)
{
    pthread_mutex_init(&bed->lock, NULL);
    pthread_cond_init(&bed->wake, NULL);
}

static void bed_clear(struct bed *bed)
{
    pthread_cond_destroy(&bed->wake);
    pthread_mutex_destroy(&bed->lock);
}

/* ---- parts ---------------------------------------------------------------------------------- */

static inline unsigned begun_in(unsigned round)
{
    return 2 * round;
}

static inline unsigned done_in(unsigned round)
{
    return 2 * round + 1;
}

/* Runs a worker's part of this round on the calling thread, unless a thread has already started it.
 * The split is fixed, but any thread may compute a part, so that nobody waits for a thread that is
 * not running. A thread that arrives with an old round finds the part done and takes nothing. Only
 * a thread that has started a part may read fn and ctx, because the round cannot end before that
 * part does. */
static bool run_part(struct pool *pool, struct worker *w, unsigned round)
{
    unsigned before = done_in(round - 1);
    if (atomic_load_explicit(&w->state, memory_order_relaxed) != before ||
        !atomic_compare_exchange_strong(&w->state, &before, begun_in(round)))
        return false;
    pool->fn(pool->ctx, w->part, pool->n_threads);
    atomic_store(&w->state, done_in(round));
    if (atomic_load(&pool->awaited) == w->part)
        wake_up(&pool->bed);
    return true;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *pool = w->pool;
    const struct worker *end = pool->workers + pool->n_threads - 1;
    unsigned round = 0;
    (void)fesetenv(FE_DFL_ENV); /* a thread inherits its creator's rounding mode: reset it */
    if (pool->is_pinned)
        (void)plat_thread_pin(w->part); /* a hint: otherwise the thread runs on any core */
    for (;;) {
        if (!spin_until(&pool->round, round, false, &w->patience)) {
            atomic_fetch_add(&pool->n_sleeping, 1);
            sleep_until(&w->bed, &pool->round, round, false);
            atomic_fetch_sub(&pool->n_sleeping, 1);
        }
        round = atomic_load_explicit(&pool->round, memory_order_acquire);
        if (atomic_load_explicit(&pool->is_closing, memory_order_relaxed))
            return NULL;
        (void)run_part(pool, w, round);
        for (struct worker *next = w + 1; next < end && run_part(pool, next, round); next++)
            ;
    }
}

static void wait_for_part(struct pool *pool, struct worker *w, unsigned round)
{
    if (spin_until(&w->state, done_in(round), true, &pool->patience))
        return;
    atomic_store(&pool->awaited, w->part);
    sleep_until(&pool->bed, &w->state, done_in(round), true);
    atomic_store_explicit(&pool->awaited, 0, memory_order_relaxed);
}

static void start_round(struct pool *pool)
{
    const unsigned round = atomic_load_explicit(&pool->round, memory_order_relaxed) + 1;
    atomic_store(&pool->round, round);
    if (atomic_load(&pool->n_sleeping) > 0)
        for (unsigned i = 0; i < pool->n_started; i++)
            wake_up(&pool->workers[i].bed);
}

/* ---- the pool ------------------------------------------------------------------------------- */

static int start_workers(struct pool *pool, struct fm_error *err)
{
    for (unsigned i = 0; i + 1 < pool->n_threads; i++) {
        struct worker *w = &pool->workers[i];
        memset(w, 0, sizeof *w);
        w->pool = pool;
        w->part = i + 1;
        atomic_init(&w->state, done_in(0));
        w->patience = pool->patience;
        bed_init(&w->bed);
        int why = plat_thread_start(&w->thread, worker_main, w);
        if (why != 0) {
            bed_clear(&w->bed);
            return err_set(err, FM_ERR_NOMEM, "cannot start thread %u of %u: %s", i + 2,
                           pool->n_threads, strerror(why));
        }
        pool->n_started++;
    }
    return 0;
}

int pool_open(unsigned n_threads, bool is_pinned, struct pool **out, struct fm_error *err)
{
    return pool_open_patient(n_threads, is_pinned, USUAL_SPIN_NS, out, err);
}

int pool_open_patient(unsigned n_threads, bool is_pinned, uint32_t spin_ns, struct pool **out,
                      struct fm_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > LIMIT_THREADS)
        return err_set(err, FM_ERR_ARG, "%u threads requested, expected 1 to %d", n_threads,
                       LIMIT_THREADS);
    struct pool *pool = mem_new_aligned(MEM_CACHE_LINE, sizeof *pool, "the thread pool", err);
    if (pool == NULL)
        return FM_ERR_NOMEM;
    memset(pool, 0, sizeof *pool);
    pool->n_threads = n_threads;
    pool->is_pinned = is_pinned;
    pool->patience = (struct patience){.spin_ns = spin_ns, .max_ns = spin_ns};
    bed_init(&pool->bed);
    pool->workers = mem_new_aligned(MEM_CACHE_LINE, n_threads * sizeof *pool->workers,
                                    "the thread pool", err);
    int rc = pool->workers != NULL ? start_workers(pool, err) : FM_ERR_NOMEM;
    if (rc != 0) {
        pool_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

void pool_close(struct pool *pool)
{
    if (pool == NULL)
        return;
    atomic_store_explicit(&pool->is_closing, true, memory_order_relaxed);
    start_round(pool);
    for (unsigned i = 0; i < pool->n_started; i++) {
        pthread_join(pool->workers[i].thread, NULL);
        bed_clear(&pool->workers[i].bed);
    }
    bed_clear(&pool->bed);
    mem_free(pool->workers);
    mem_free(pool);
}

unsigned pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

void pool_run_alone(struct pool *pool, pool_fn *fn, void *ctx)
{
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    fn(ctx, 0, 1);
}

void pool_start(struct pool *pool, pool_fn *fn, void *ctx)
{
    assert(pool->n_threads > 1);
    pool->fn = fn;
    pool->ctx = ctx;
    atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
    start_round(pool);
}

void pool_run(struct pool *pool, pool_fn *fn, void *ctx)
{
    if (pool->n_threads == 1) {
        pool_run_alone(pool, fn, ctx);
        return;
    }
    pool_start(pool, fn, ctx);
    fn(ctx, 0, pool->n_threads);
    pool_wait(pool);
}

void pool_wait(struct pool *pool)
{
    const unsigned round = atomic_load_explicit(&pool->round, memory_order_relaxed);
    for (unsigned i = 0; i < pool->n_started; i++)
        (void)run_part(pool, &pool->workers[i], round);
    for (unsigned i = 0; i < pool->n_started; i++)
        wait_for_part(pool, &pool->workers[i], round);
}

size_t pool_take(struct pool *pool)
{
    return atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);
}

/* The header is also for C++, which has no atomic_size_t: the builtin works on plain numbers. */
size_t pool_take_of(struct pool_list *list)
{
    return __atomic_fetch_add(&list->next, 1, __ATOMIC_RELAXED);
}
