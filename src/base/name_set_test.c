#include "base/name_set.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void add(struct name_set *set, const char *name)
{
    name_set_add(set, name, strlen(name));
}

static void test_numbers(void **state)
{
    (void)state;
    struct name_set set = {0};
    char text[256];
    add(&set, "model.layers.3.norm.weight");
    add(&set, "model.layers.12.norm.weight");
    add(&set, "blk.0");
    add(&set, "w1.v2b.3x"); /* no whole numbers */
    assert_string_equal(name_set_text(&set, 9, text, sizeof text),
                        "model.layers.N.norm.weight, blk.N, w1.v2b.3x");
    assert_string_equal(name_set_text(&set, 1, text, sizeof text),
                        "model.layers.N.norm.weight and 2 more");
    assert_true(name_set_has(&set, "blk.77", 6));
    assert_false(name_set_has(&set, "blk.77.", 7));
}

static void test_full(void **state)
{
    (void)state;
    struct name_set set = {0};
    char name[2 * NAME_SET_BYTES], text[64];
    for (unsigned i = 0; i < NAME_SET_MAX + 5; i++) {
        (void)snprintf(name, sizeof name, "a%u", i);
        add(&set, name);
    }
    assert_int_equal(set.n, NAME_SET_MAX);
    assert_string_equal(name_set_text(&set, 1, text, sizeof text), "a0 and at least 47 more");
    memset(name, 'x', sizeof name);
    struct name_set one = {0};
    name_set_add(&one, name, sizeof name); /* cut */
    assert_int_equal(strlen(one.names[0]), NAME_SET_BYTES - 1);
    assert_string_equal(name_set_text(&one, 1, text, 8), "xxxxxxx");
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(name_distance("", ""), 0);
    assert_int_equal(name_distance("kitten", "sitting"), 3);
    assert_int_equal(name_distance("abc", ""), 3);
    assert_int_equal(name_distance("", "abc"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_full),
                                       cmocka_unit_test(test_distance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
