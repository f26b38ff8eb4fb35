/* What a round of the thread pool costs: with nothing to do, and with the ten microseconds of work
 * that a decoded token's rounds have; alone, and beside processes that want the same cores.
 *
 * Usage: pool_speed [SECONDS [THREADS BUSY]]
 *
 * SECONDS are those of one figure; without THREADS and BUSY there is a line for each of several. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plat.h"
#include "base/pool.h"

#define SAMPLES_MAX 2000000
#define WARM_ROUNDS 2000
#define BUSY_MAX 8
#define WORK_NS 10000

struct sample {
    double median_us, p99_us, mean_us;
};

/* Steps of `grind` that take WORK_NS; every part of a round does them. */
static uint64_t steps_of_work;

static uint64_t grind(uint64_t n_steps)
{
    uint64_t x = 1;
    for (uint64_t i = 0; i < n_steps; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        __asm__ __volatile__("" : "+r"(x));
    }
    return x;
}

static void calibrate(void)
{
    uint64_t best_ns = UINT64_MAX;
    for (int i = 0; i < 50; i++) {
        uint64_t begin_ns = plat_now_ns();
        (void)grind(100000);
        uint64_t ns = plat_now_ns() - begin_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    steps_of_work = 100000u * (uint64_t)WORK_NS / best_ns;
}

static void part(void *ctx, unsigned part_index, unsigned n_parts)
{
    const uint64_t *n_steps = ctx;
    (void)part_index, (void)n_parts;
    if (*n_steps > 0)
        (void)grind(*n_steps);
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int measure(unsigned n_threads, uint64_t n_steps, double seconds, struct sample *out)
{
    static uint32_t ns[SAMPLES_MAX];
    struct fm_error err;
    struct pool *pool;
    if (pool_open(n_threads, false, &pool, &err) != 0) {
        fprintf(stderr, "pool_speed: %s\n", err.text);
        return -1;
    }
    for (int i = 0; i < WARM_ROUNDS; i++)
        pool_run(pool, part, &n_steps);
    const uint64_t begin_ns = plat_now_ns();
    uint64_t now_ns = begin_ns;
    size_t n = 0;
    while (n < SAMPLES_MAX && (double)(now_ns - begin_ns) < seconds * 1e9) {
        pool_run(pool, part, &n_steps);
        uint64_t end_ns = plat_now_ns();
        ns[n++] = (uint32_t)(end_ns - now_ns);
        now_ns = end_ns;
    }
    pool_close(pool);
    qsort(ns, n, sizeof ns[0], compare);
    out->median_us = ns[n / 2] * 1e-3;
    out->p99_us = ns[n * 99 / 100] * 1e-3;
    out->mean_us = (double)(now_ns - begin_ns) * 1e-3 / (double)n;
    return 0;
}

static void start_busy(unsigned n, pid_t pids[])
{
    for (unsigned i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            (void)alarm(600); /* not for ever, should the parent be killed */
            for (;;)
                (void)grind(1000000);
        }
    }
}

static void stop_busy(unsigned n, const pid_t pids[])
{
    for (unsigned i = 0; i < n; i++)
        if (pids[i] > 0) {
            (void)kill(pids[i], SIGKILL);
            (void)waitpid(pids[i], NULL, 0);
        }
}

static int print_line(unsigned n_threads, unsigned n_busy, double seconds)
{
    pid_t pids[BUSY_MAX];
    struct sample empty, work;
    start_busy(n_busy, pids);
    int rc = measure(n_threads, 0, seconds, &empty);
    if (rc == 0)
        rc = measure(n_threads, steps_of_work, seconds, &work);
    stop_busy(n_busy, pids);
    if (rc != 0)
        return rc;
    printf("%-8u %-6u %8.2f %8.1f %10.2f %8.2f %8.1f %10.2f\n", n_threads, n_busy,
           empty.median_us, empty.p99_us, empty.mean_us, work.median_us, work.p99_us,
           work.mean_us);
    return fflush(stdout);
}

int main(int argc, char **argv)
{
    static const unsigned n_threads[] = {1, 2, 4};
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
    calibrate();
    if (argc > 3) {
        const unsigned long n_busy = strtoul(argv[3], NULL, 10);
        return print_line((unsigned)strtoul(argv[2], NULL, 10),
                          n_busy < BUSY_MAX ? (unsigned)n_busy : BUSY_MAX, seconds) != 0;
    }
    printf("%u processors, %u cores; microseconds per round: median, 99 %%, mean\n",
           plat_n_cpus(), plat_n_cores());
    printf("%-8s %-6s %28s %28s\n", "threads", "busy", "empty", "10 us of work");
    int rc = 0;
    for (unsigned n_busy = 0; n_busy <= 2; n_busy++)
        for (size_t i = 0; rc == 0 && i < sizeof n_threads / sizeof n_threads[0]; i++)
            rc = print_line(n_threads[i], n_busy, seconds);
    return rc != 0;
}
