#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "base/pool.h"

#define PARTS_MAX 64

struct job {
    size_t n;
    unsigned n_runs[PARTS_MAX]; /* of each part */
    uint64_t sums[PARTS_MAX];
    unsigned late_part, late_us; /* this part sleeps first */
};

static void add_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct job *job = ctx;
    size_t begin, end;
    if (job->late_us > 0 && part == job->late_part)
        (void)usleep(job->late_us);
    pool_range(job->n, part, n_parts, &begin, &end);
    job->n_runs[part]++;
    for (size_t i = begin; i < end; i++)
        job->sums[part] += i;
}

/* Checks that every part runs once and that all are done when pool_run returns. */
static void check_round(struct pool *pool, const struct job *given)
{
    struct job job = *given;
    pool_run(pool, add_part, &job);
    uint64_t sum = 0;
    for (unsigned i = 0; i < PARTS_MAX; i++) {
        assert_int_equal(job.n_runs[i], i < pool_n_threads(pool));
        sum += job.sums[i];
    }
    assert_int_equal(sum, job.n * (job.n - 1) / 2);
}

static void check_pool(unsigned n_threads, bool is_pinned, unsigned n_rounds)
{
    struct pool *pool;
    assert_int_equal(pool_open(n_threads, is_pinned, &pool, NULL), 0);
    for (unsigned round = 0; round < n_rounds; round++)
        check_round(pool, &(struct job){.n = 1000});
    pool_close(pool);
}

static void test_every_part_once(void **state)
{
    (void)state;
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++)
        check_pool(n_threads, false, 500);
}

static void test_many_rounds(void **state)
{
    (void)state;
    check_pool(2, false, 50000);
}

static void test_more_threads_than_cores(void **state)
{
    (void)state;
    unsigned n = 4 * plat_n_cpus();
    check_pool(n < PARTS_MAX ? n : PARTS_MAX, false, 2000);
}

static void test_pinned(void **state)
{
    (void)state;
    const unsigned n_before = plat_n_cpus();
    check_pool(plat_n_cores() < PARTS_MAX ? plat_n_cores() : PARTS_MAX, true, 500);
    check_pool(4, true, 500);
    assert_int_equal(plat_n_cpus(), n_before); /* the calling thread is not pinned */
}

/* Both sides fall asleep: the caller while it waits for a late part, the threads between two
 * rounds. */
static void test_sleepers_wake(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_open(4, false, &pool, NULL), 0);
    for (unsigned i = 0; i < 100; i++) {
        check_round(pool, &(struct job){.n = 100, .late_part = i % 4, .late_us = 500});
        (void)usleep(i % 3 * 300);
    }
    pool_close(pool);
}

/* The other parts run beside the caller, or by the caller if their threads are late. */
static void test_parts_beside_the_caller(void **state)
{
    (void)state;
    for (unsigned n_threads = 2; n_threads <= 3; n_threads++) {
        struct pool *pool;
        assert_int_equal(pool_open_patient(n_threads, false, 100000, &pool, NULL), 0);
        for (unsigned i = 0; i < 300; i++) {
            struct job job = {.n = 100, .late_part = 1, .late_us = i % 50 == 0 ? 500 : 0};
            pool_start(pool, add_part, &job);
            if (i % 3 == 0)
                (void)usleep(i % 5 * 100);
            pool_wait(pool);
            for (unsigned p = 0; p < PARTS_MAX; p++)
                assert_int_equal(job.n_runs[p], p > 0 && p < n_threads);
            check_round(pool, &(struct job){.n = 100});
        }
        pool_close(pool);
    }
}

struct items {
    struct pool *pool;
    unsigned n_taken[1000];
};

/* The first item keeps its thread busy, so the others take the rest. */
static void take_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct items *items = ctx;
    (void)part, (void)n_parts;
    for (size_t i; (i = pool_take(items->pool)) < 1000;) {
        items->n_taken[i]++;
        if (i == 0)
            (void)usleep(2000);
    }
}

static void check_all_taken(struct items *items)
{
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(items->n_taken[i], 1);
        items->n_taken[i] = 0;
    }
}

static void test_items_are_taken_once(void **state)
{
    (void)state;
    static struct items items;
    for (unsigned n_threads = 1; n_threads <= 5; n_threads++) {
        assert_int_equal(pool_open(n_threads, false, &items.pool, NULL), 0);
        for (unsigned round = 0; round < 20; round++) {
            pool_run(items.pool, take_part, &items);
            check_all_taken(&items);
            pool_run_alone(items.pool, take_part, &items);
            check_all_taken(&items);
        }
        pool_close(items.pool);
    }
}

struct lists {
    struct pool_list lists[3];
    unsigned n_taken[3][1000];
};

/* Every thread begins with another list. */
static void take_part_of(void *ctx, unsigned part, unsigned n_parts)
{
    struct lists *all = ctx;
    (void)n_parts;
    for (unsigned i = 0; i < 3; i++) {
        const unsigned list = (part + i) % 3;
        for (size_t at; (at = pool_take_of(&all->lists[list])) < 1000;)
            all->n_taken[list][at]++;
    }
}

static void test_items_of_lists_are_taken_once(void **state)
{
    (void)state;
    static struct lists all;
    struct pool *pool;
    assert_int_equal(pool_open(4, false, &pool, NULL), 0);
    for (unsigned round = 1; round <= 20; round++) {
        memset(all.lists, 0, sizeof all.lists);
        pool_run(pool, take_part_of, &all);
        for (unsigned list = 0; list < 3; list++)
            for (unsigned i = 0; i < 1000; i++)
                assert_int_equal(all.n_taken[list][i], round);
    }
    pool_close(pool);
}

static void test_opens_and_closes(void **state)
{
    (void)state;
    struct fm_error err;
    struct pool *pool;
    for (unsigned i = 0; i < 50; i++)
        check_pool(3, false, i % 2);
    pool_close(NULL);
    assert_int_equal(pool_open(0, false, &pool, &err), FM_ERR_ARG);
    assert_null(pool);
    for (long nth = 1; nth <= 2; nth++) {
        mem_fail_at(nth);
        assert_int_equal(pool_open(2, false, &pool, &err), FM_ERR_NOMEM);
        mem_fail_at(0);
        assert_null(pool);
    }
}

static void test_a_round_allocates_nothing(void **state)
{
    (void)state;
    struct pool *pool;
    assert_int_equal(pool_open(2, false, &pool, NULL), 0);
    const long n_before = mem_count();
    for (unsigned i = 0; i < 10; i++)
        check_round(pool, &(struct job){.n = 10});
    assert_int_equal(mem_count(), n_before);
    pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_once),
        cmocka_unit_test(test_many_rounds),
        cmocka_unit_test(test_more_threads_than_cores),
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_sleepers_wake),
        cmocka_unit_test(test_parts_beside_the_caller),
        cmocka_unit_test(test_items_are_taken_once),
        cmocka_unit_test(test_items_of_lists_are_taken_once),
        cmocka_unit_test(test_opens_and_closes),
        cmocka_unit_test(test_a_round_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
