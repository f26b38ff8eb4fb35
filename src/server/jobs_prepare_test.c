#include "server/jobs_prepare.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)

static struct mem_account account;

struct test_task {
    struct prepare_task base;
    int began[2], may_end[2]; /* pipes; a byte is the signal */
    uint64_t n_used; /* of the account, at the start */
};

static void tell(const int fds[2])
{
    assert_int_equal(write(fds[1], "", 1), 1);
}

static void wait_for(const int fds[2])
{
    char byte;
    assert_int_equal(read(fds[0], &byte, 1), 1);
}

static void notify(void *ctx)
{
    (void)ctx;
}

static void run(struct prepare_task *base)
{
    struct test_task *t = (struct test_task *)base;
    t->n_used = mem_account_used(&account);
    tell(t->began);
    wait_for(t->may_end);
}

static void close_nothing(struct prepare_task *base)
{
    (void)base;
}

static void submit(struct preparers *p, struct test_task *t, uint64_t bytes)
{
    *t = (struct test_task){.base = {.run = run, .close = close_nothing, .bytes = bytes,
                                     .lease = {.account = &account}}};
    assert_int_equal(pipe(t->began), 0);
    assert_int_equal(pipe(t->may_end), 0);
    assert_int_equal(preparers_submit(p, &t->base, NULL), 0);
}

static void close_pipes(const struct test_task *t)
{
    for (unsigned i = 0; i < 2; i++) {
        (void)close(t->began[i]);
        (void)close(t->may_end[i]);
    }
}

/* Trims much freed memory before the next task, not only when none is left. */
static void test_trims_between_tasks(void **state)
{
    (void)state;
    const struct preparers_options options = {.account = &account, .n_queue = 8, .notify = notify};
    const uint64_t freed[] = {3 * MIB, 5 * MIB / 4}; /* beyond an eighth of it, and within */
    for (unsigned i = 0; i < 2; i++) {
        struct preparers *p;
        struct test_task large, small, next;
        account = (struct mem_account){.limit = 16 * MIB, .used = freed[i]};
        assert_int_equal(preparers_open(&options, &p, NULL), 0);
        submit(p, &large, MIB); /* only one thread takes it: the other is left for the small one */
        wait_for(large.began);
        submit(p, &small, 1);
        wait_for(small.began);
        submit(p, &next, MIB);
        preparers_give(p, freed[i]);
        tell(large.may_end);
        wait_for(next.began);
        assert_int_equal(next.n_used, i == 0 ? 0 : freed[i]);
        tell(small.may_end);
        tell(next.may_end);
        preparers_close(p);
        close_pipes(&large);
        close_pipes(&small);
        close_pipes(&next);
        assert_int_equal(account.used, 0);
    }
}

/* Starts no task during a trim on another thread: it might be refused for memory that nobody
 * uses. */
static void test_waits_for_trim(void **state)
{
    (void)state;
    const struct preparers_options options = {.account = &account, .n_queue = 8, .notify = notify};
    struct preparers *p;
    account = (struct mem_account){.limit = 16 * MIB};
    assert_int_equal(preparers_open(&options, &p, NULL), 0);
    for (unsigned i = 0; i < 1000; i++) {
        struct test_task task;
        assert_true(mem_account_take(&account, 3 * MIB, 0));
        preparers_give(p, 3 * MIB);
        submit(p, &task, 1);
        wait_for(task.began);
        assert_int_equal(task.n_used, 0);
        tell(task.may_end);
        while (preparers_next_done(p) == NULL)
            (void)sched_yield();
        close_pipes(&task);
    }
    preparers_close(p);
    assert_int_equal(account.used, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trims_between_tasks),
        cmocka_unit_test(test_waits_for_trim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
