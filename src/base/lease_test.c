#include "base/lease.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"

#define MIB (1u << 20)

static void test_account(void **state)
{
    (void)state;
    struct mem_account account = {.limit = 1000};
    assert_true(mem_account_take(&account, 600, 0));
    assert_false(mem_account_take(&account, 401, 0));
    assert_false(mem_account_take(&account, 400, 1));
    assert_false(mem_account_take(&account, UINT64_MAX, 0));
    assert_false(mem_account_take(&account, 1, 2000));
    assert_true(mem_account_take(&account, 400, 0));
    assert_int_equal(mem_account_used(&account), 1000);
    mem_account_give(&account, 1000);
    assert_int_equal(mem_account_used(&account), 0);
}

/* Counts everything allocated under a lease, by any function, until it is freed. */
static void test_counts(void **state)
{
    (void)state;
    struct mem_account account = {.limit = 64 * MIB};
    struct mem_lease lease = {.account = &account};
    void *array = NULL;
    size_t capacity = 0;
    void *outside = mem_new(1, MIB, "a test", NULL);
    assert_int_equal(lease.used, 0);
    mem_lease_enter(&lease);
    void *a = mem_new(1, MIB, "a test", NULL), *b = mem_new_aligned(64, MIB, "a test", NULL);
    void *c = mem_new_counted(MIB);
    assert_int_equal(mem_grow(&array, &capacity, MIB, 1, "a test", NULL), 0);
    assert_in_range(lease.used, 4 * MIB, 4 * MIB + 65536);
    assert_int_equal(mem_grow(&array, &capacity, 2 * MIB, 1, "a test", NULL), 0);
    assert_in_range(lease.used, 5 * MIB, 5 * MIB + 65536);
    assert_true(lease.taken >= (uint64_t)lease.used);
    assert_int_equal(mem_account_used(&account), lease.taken);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mem_free(array);
    assert_int_equal(lease.used, 0);
    mem_lease_leave();
    mem_free(outside);
    assert_int_equal(lease.used, 0);
    assert_true(mem_account_used(&account) > 0);
    mem_lease_settle(&lease);
    assert_int_equal(mem_account_used(&account), 0);
}

/* An allocation that would exceed the account fails and is reported. A large lease leaves an eighth
 * to small ones. */
static void test_refuses(void **state)
{
    (void)state;
    struct mem_account account = {.limit = 8 * MIB};
    struct mem_lease large = {.account = &account}, small = {.account = &account};
    void *p[16] = {NULL}, *array = NULL;
    size_t capacity = 0;
    unsigned n = 0;
    assert_int_equal(mem_lease_max(&large), 7 * MIB);
    mem_lease_enter(&large);
    while (n < 16 && (p[n] = mem_new(1, MIB / 2, "a test", NULL)) != NULL)
        n++;
    assert_in_range(n, 12, 14);
    assert_true(large.wanted > 0 && large.wanted <= mem_lease_max(&large) + MIB);
    assert_true(mem_lease_is_over());
    assert_false(mem_lease_reserve(1));
    void *counted = mem_new_counted(MIB); /* not refused, but counted */
    assert_non_null(counted);
    assert_true(large.used > (int64_t)large.taken);
    mem_free(counted);
    assert_null(mem_new_aligned(64, MIB, "a test", NULL));
    assert_int_equal(mem_grow(&array, &capacity, MIB, 1, "a test", NULL), FM_ERR_NOMEM);
    mem_lease_leave();
    assert_true(mem_account_used(&account) <= 7 * MIB);
    mem_lease_enter(&small);
    void *q = mem_new(1, 100000, "a test", NULL);
    assert_non_null(q);
    assert_int_equal(small.wanted, 0);
    mem_free(q);
    mem_lease_cancel(&small);
    assert_null(mem_new(1, 1, "a test", NULL));
    assert_int_equal(small.wanted, 0); /* it failed for another reason than lack of memory */
    mem_lease_leave();
    for (unsigned i = 0; i < n; i++)
        mem_free(p[i]);
    mem_lease_close(&large);
    mem_lease_close(&small);
    assert_int_equal(mem_account_used(&account), 0);
}

/* Small leases take little more than they use. */
static void test_steps(void **state)
{
    (void)state;
    struct mem_account account = {.limit = 64 * MIB};
    struct mem_lease lease = {.account = &account};
    void *p[2];
    mem_lease_enter(&lease);
    assert_non_null(p[0] = mem_new(1, 20000, "a test", NULL));
    assert_in_range(mem_account_used(&account), 20000, 24 << 10);
    assert_non_null(p[1] = mem_new(1, 60000, "a test", NULL));
    assert_in_range(mem_account_used(&account), 80000, 160 << 10);
    mem_free(p[0]);
    mem_free(p[1]);
    mem_lease_leave();
    mem_lease_close(&lease);
}

/* Allocates `bytes` at a time under the lease until it refuses. Returns the total. The allocations
 * are freed outside the lease, so the account keeps them. */
static uint64_t use_up(struct mem_lease *lease, uint64_t bytes)
{
    void *p;
    do {
        mem_lease_enter(lease);
        p = mem_new(1, bytes, "a test", NULL);
        mem_lease_leave();
        mem_free(p);
    } while (p != NULL);
    return lease->taken;
}

/* A request that is being answered may use memory that request bodies must leave free, up to 1/32
 * of the limit. */
static void test_reserve(void **state)
{
    (void)state;
    struct mem_account account = {.limit = 32 * MIB};
    struct mem_lease body[200], large = {.account = &account, .is_answered = true}, small = large;
    unsigned n = 0;
    do {
        body[n] = (struct mem_lease){.account = &account};
        (void)use_up(&body[n], 1000);
    } while (body[n].taken > 200 << 10 && ++n < 200);
    assert_in_range(mem_account_used(&account), 29 * MIB, 30 * MIB);
    assert_in_range(use_up(&large, 4000), MIB - (64 << 10), MIB + (64 << 10));
    assert_in_range(use_up(&small, 4000), MIB / 2, MIB + (64 << 10));
    for (unsigned i = 0; i <= n && i < 200; i++)
        mem_lease_close(&body[i]);
    large.wanted = 0;
    assert_in_range(use_up(&large, 4000), 20 * MIB, mem_lease_max(&large));
    assert_int_equal(mem_lease_max(&large), 28 * MIB);
    mem_lease_close(&large);
    mem_lease_close(&small);
    assert_int_equal(mem_account_used(&account), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
