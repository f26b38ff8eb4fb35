#include "backend/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/pool.h"
#include "flashmoe_lab.h"

#define READ_BYTES (1ull << 30)
/* The buffer is this many times the size of the caches. A cache that does not always evict the
 * oldest line gives some hits even then. */
#define CACHES_PER_BUFFER 4
/* The share of the free memory that a measurement may take. */
#define MEMORY_SHARE 8
/* A thread reads several streams side by side, two lines of each in turn. That keeps more lines in
 * flight than the prefetcher fetches for a single stream. GB/s of one thread, medians of 31
 * interleaved runs: 14.3. One stream: 9.2, with prefetch instructions 10.3 to 11.6, with 64-byte
 * vectors and prefetch 13.0. Eight streams with vectors of 32 and 64 bytes: 14.6 and 13.8. */
#define STREAMS 8
#define STREAM_BYTES (2 * MEM_CACHE_LINE)
#define STEP_BYTES (STREAMS * STREAM_BYTES)
/* One pass of a loop of multiply-adds takes about this long. */
#define PEAK_PASS_NS 40000000

/* ---- passes --------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times `fn` over all threads. Stores run->n_passes values of amount(ctx) per second. */
static void run_passes(const struct machine_run *run, struct pool *pool, pool_fn *fn, void *ctx,
                       uint64_t (*amount)(const void *ctx), struct fm_speed *speed)
{
    double figures[MACHINE_PASSES_MAX];
    const unsigned n = run->n_passes < MACHINE_PASSES_MAX ? run->n_passes : MACHINE_PASSES_MAX;
    pool_run(pool, fn, ctx);
    for (unsigned i = 0; i < n; i++) {
        const uint64_t begin_ns = plat_now_ns();
        pool_run(pool, fn, ctx);
        const uint64_t ns = plat_now_ns() - begin_ns;
        figures[i] = (double)amount(ctx) * 1e9 / (double)(ns > 0 ? ns : 1);
        if (run->pass_done != NULL)
            run->pass_done(run->ctx);
    }
    qsort(figures, n, sizeof figures[0], compare);
    *speed = (struct fm_speed){.median = (figures[(n - 1) / 2] + figures[n / 2]) / 2,
                                    .min = figures[0], .max = figures[n - 1]};
}

/* ---- memory --------------------------------------------------------------------------------- */

struct read_job {
    char *buffer;
    uint64_t bytes; /* a multiple of STEP_BYTES */
    uint64_t sums[LIMIT_THREADS * (MEM_CACHE_LINE / sizeof(uint64_t))]; /* a line each */
};

/* The widest vector every processor of the architecture has. */
typedef uint64_t wide __attribute__((vector_size(16), may_alias));

static void fill_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct read_job *job = ctx;
    size_t begin, end;
    pool_range(job->bytes / STEP_BYTES, part, n_parts, &begin, &end);
    memset(job->buffer + begin * STEP_BYTES, (int)part + 1, (end - begin) * STEP_BYTES);
}

/* Otherwise a sanitizer's checks would be measured. */
#define UNCHECKED __attribute__((no_sanitize("address", "thread")))

/* Reads every byte, as a kernel does. */
UNCHECKED static void read_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct read_job *job = ctx;
    size_t begin, end;
    pool_range(job->bytes / STEP_BYTES, part, n_parts, &begin, &end);
    const size_t stream = (end - begin) * STREAM_BYTES;
    const char *first = job->buffer + begin * STEP_BYTES;
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t at = 0; at < stream; at += STREAM_BYTES)
        for (const char *s = first + at; s < first + STREAMS * stream; s += stream) {
            const wide *w = (const void *)s;
            a += w[0] + w[4];
            b += w[1] + w[5];
            c += w[2] + w[6];
            d += w[3] + w[7];
        }
    a += b + c + d;
    job->sums[part * (MEM_CACHE_LINE / sizeof(uint64_t))] = a[0] + a[1];
}

static uint64_t read_amount(const void *ctx)
{
    return ((const struct read_job *)ctx)->bytes;
}

uint64_t machine_buffer_bytes(uint64_t cache_bytes, uint64_t available_bytes, bool is_quick)
{
    const uint64_t beyond = cache_bytes * CACHES_PER_BUFFER;
    const uint64_t min = READ_BYTES / (is_quick ? 2 : 1);
    const uint64_t max = available_bytes / MEMORY_SHARE / STEP_BYTES * STEP_BYTES;
    const uint64_t want = mem_round_up(beyond > min ? beyond : min, STEP_BYTES);
    return max > 0 && max < want ? max : want;
}

uint64_t machine_read_bytes(bool is_quick)
{
    return machine_buffer_bytes(plat_cache_bytes(), plat_memory_available(), is_quick);
}

int machine_measure_read(const struct machine_run *run, uint64_t bytes,
                         struct fm_speed *speed, struct fm_error *err)
{
    *speed = (struct fm_speed){0};
    struct pool *pool = NULL;
    struct read_job *job = mem_new(1, sizeof *job, "the measurement", err);
    int rc = job == NULL ? FM_ERR_NOMEM : pool_open(run->n_threads, run->is_pinned, &pool, err);
    if (rc == 0) {
        job->bytes = mem_round_up(bytes, STEP_BYTES);
        job->buffer = mem_new_bulk(job->bytes, "the measured memory", err);
        rc = job->buffer == NULL ? FM_ERR_NOMEM : 0;
    }
    if (rc == 0) {
        pool_run(pool, fill_part, job); /* so that each thread's pages are on its own node */
        run_passes(run, pool, read_part, job, read_amount, speed);
    }
    pool_close(pool);
    if (job != NULL)
        mem_free(job->buffer);
    mem_free(job);
    return rc;
}

/* ---- multiply-adds -------------------------------------------------------------------------- */

struct peak_job {
    machine_peak_fn *peak;
    uint64_t n_rounds;
    uint64_t n_operations[LIMIT_THREADS];
};

static void peak_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct peak_job *job = ctx;
    (void)n_parts;
    job->n_operations[part] = job->peak(job->n_rounds);
}

static uint64_t peak_amount(const void *ctx)
{
    const struct peak_job *job = ctx;
    uint64_t sum = 0;
    for (unsigned i = 0; i < LIMIT_THREADS; i++)
        sum += job->n_operations[i];
    return sum;
}

/* Returns the number of rounds that take one thread PEAK_PASS_NS. */
static uint64_t rounds_of_a_pass(machine_peak_fn *peak)
{
    uint64_t n_rounds = 1;
    for (;;) {
        const uint64_t begin_ns = plat_now_ns();
        (void)peak(n_rounds);
        const uint64_t ns = plat_now_ns() - begin_ns;
        if (ns >= PEAK_PASS_NS / 8 || n_rounds >= UINT64_MAX / 16)
            return (uint64_t)((double)n_rounds * PEAK_PASS_NS / (double)(ns > 0 ? ns : 1)) + 1;
        n_rounds *= 2;
    }
}

int machine_measure_peak(const struct machine_run *run, machine_peak_fn *peak,
                         struct fm_speed *speed, struct fm_error *err)
{
    *speed = (struct fm_speed){0};
    struct pool *pool;
    int rc = pool_open(run->n_threads, run->is_pinned, &pool, err);
    if (rc != 0)
        return rc;
    struct peak_job job = {.peak = peak, .n_rounds = rounds_of_a_pass(peak)};
    run_passes(run, pool, peak_part, &job, peak_amount, speed);
    pool_close(pool);
    return 0;
}
