#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "engine/budget.h"

#define GIB (1ull << 30)

/* A budget above the limit of the cgroup is refused with the arithmetic. */
static void test_limit(void **state)
{
    (void)state;
    struct fm_error err = {0};
    assert_int_equal(budget_check_limit(0, UINT64_MAX, "", UINT64_MAX, 5, &err), 0);
    assert_int_equal(budget_check_limit(64 * GIB, UINT64_MAX, "", UINT64_MAX, 5, &err), 0);
    assert_int_equal(budget_check_limit(8 * GIB, 8 * GIB, "f", 7 * GIB, 0, &err), 0);
    assert_int_equal(budget_check_limit(8 * GIB + 1, 8 * GIB, "/g/memory.max", 5 * GIB, GIB, &err),
                     FM_ERR_BUDGET);
    assert_non_null(strstr(err.text, "8.00 GiB (/g/memory.max)"));
    assert_non_null(strstr(err.text, "8.00 GiB limit - 2.00 GiB held by others in it = 6.00 GiB"));
    assert_non_null(strstr(err.text, "--memory"));
    /* What is its own may be more than the group has counted so far. */
    assert_int_equal(budget_check_limit(9 * GIB, 8 * GIB, "f", 8 * GIB, GIB, &err), FM_ERR_BUDGET);
    assert_non_null(strstr(err.text, "0.0 MiB held by others in it = 8.00 GiB"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
