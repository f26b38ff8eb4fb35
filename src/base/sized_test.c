/* Structs of callers that were compiled with an older or a newer header. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/sized.h"

struct first {
    size_t size;
    uint64_t a;
};

struct second {
    size_t size;
    uint64_t a;
    uint32_t b, c;
};

static void test_take(void **state)
{
    (void)state;
    struct second own;
    struct fm_error err = {0};

    /* an older caller: what lies behind its struct is not read */
    struct second memory = {.size = sizeof(struct first), .a = 7, .b = 8, .c = 9};
    assert_int_equal(sized_take(&own, sizeof own, &memory, "x", &err), 0);
    assert_int_equal(own.size, sizeof own);
    assert_int_equal(own.a, 7);
    assert_int_equal(own.b, 0);
    assert_int_equal(own.c, 0);

    /* a newer one: what it sets behind the known fields is refused, zeros are not */
    struct first old;
    memory.size = sizeof memory;
    assert_int_equal(sized_take(&old, sizeof old, &memory, "fm_thing", &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "fm_thing has 24 bytes and this library knows the first 16"));
    memory.b = memory.c = 0;
    assert_int_equal(sized_take(&old, sizeof old, &memory, "fm_thing", &err), 0);
    assert_int_equal(old.size, sizeof old);
    assert_int_equal(old.a, 7);

    /* none at all */
    assert_int_equal(sized_take(&own, sizeof own, NULL, "x", &err), 0);
    assert_int_equal(own.size, sizeof own);
    assert_int_equal(own.a, 0);
}

static void test_sizes_that_are_none(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 7, 12, 17, 1 << 20, (size_t)-8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct second given = {.size = sizes[i], .a = 1}, own = {.size = sizeof own, .a = 2};
        struct fm_error err = {0};
        assert_int_equal(sized_take(&own, sizeof own, &given, "fm_thing", &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "fm_thing.size is "));
        assert_non_null(strstr(err.text, "set it to sizeof(struct fm_thing)"));
        assert_int_equal(sized_check(&given, "fm_thing", NULL), FM_ERR_ARG);
        assert_int_equal(sized_give(&given, &own, sizeof own), FM_ERR_ARG);
        assert_int_equal(given.a, 1);
    }
}

static void test_give(void **state)
{
    (void)state;
    const struct second own = {.size = sizeof own, .a = 1, .b = 2, .c = 3};

    /* an older caller: what lies behind its struct is not written */
    struct second memory = {.size = sizeof(struct first), .b = 8, .c = 9};
    assert_int_equal(sized_give(&memory, &own, sizeof own), 0);
    assert_int_equal(memory.size, sizeof(struct first));
    assert_int_equal(memory.a, 1);
    assert_int_equal(memory.b, 8);
    assert_int_equal(memory.c, 9);

    /* a newer one: what this library does not know is 0 */
    const struct first old = {.size = sizeof old, .a = 1};
    memory = (struct second){.size = sizeof memory, .b = 8, .c = 9};
    assert_int_equal(sized_give(&memory, &old, sizeof old), 0);
    assert_int_equal(memory.size, sizeof memory);
    assert_int_equal(memory.a, 1);
    assert_int_equal(memory.b, 0);
    assert_int_equal(memory.c, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_sizes_that_are_none),
        cmocka_unit_test(test_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
