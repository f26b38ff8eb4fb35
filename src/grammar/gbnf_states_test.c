#include "grammar/gbnf_states.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct gbnf_view state_of(const uint32_t *nodes, uint32_t n)
{
    return (struct gbnf_view){.nodes = nodes, .n = n};
}

/* Equal states have one number. Every part of a state counts, and the order of its stacks. */
static void test_find(void **state)
{
    (void)state;
    static const uint32_t a[] = {7, 8, 9}, b[] = {7, 9, 8};
    struct gbnf_states s;
    assert_int_equal(gbnf_states_init(&s, NULL), 0);
    struct gbnf_view views[6] = {state_of(a, 3), state_of(b, 3), state_of(a, 2), state_of(a, 3),
                                 state_of(a, 3), state_of(a, 3)};
    views[3].partial = 5;
    views[4].n_bytes = 2;
    views[5].n_left = 1;
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(gbnf_states_find(&s, &views[i]), i);
    const struct gbnf_view got = gbnf_states_get(&s, 3);
    assert_int_equal(got.n, 3);
    assert_memory_equal(got.nodes, a, sizeof a);
    assert_int_equal(got.partial, 5);
    gbnf_states_free(&s);
}

/* A new state knows nothing, also one that takes the place of another. */
static void test_next(void **state)
{
    (void)state;
    const uint32_t a = 1, b = 2;
    struct gbnf_view first = state_of(&a, 1), second = state_of(&b, 1);
    struct gbnf_states s;
    assert_int_equal(gbnf_states_init(&s, NULL), 0);
    assert_int_equal(gbnf_states_find(&s, &first), 0);
    assert_int_equal(*gbnf_states_next(&s, 0, 255), GBNF_STEP_UNKNOWN);
    *gbnf_states_next(&s, 0, 255) = GBNF_STEP_NONE;
    assert_int_equal(gbnf_states_find(&s, &first), 0);
    assert_int_equal(*gbnf_states_next(&s, 0, 255), GBNF_STEP_NONE);
    gbnf_states_clear(&s);
    assert_int_equal(gbnf_states_find(&s, &second), 0);
    assert_int_equal(*gbnf_states_next(&s, 0, 255), GBNF_STEP_UNKNOWN);
    gbnf_states_free(&s);
}

/* A full table refuses new states, for their number or their size, and still finds the others. */
static void test_full(void **state)
{
    (void)state;
    static uint32_t nodes[4096];
    const uint32_t sizes[] = {1, 512};
    struct gbnf_states s;
    assert_int_equal(gbnf_states_init(&s, NULL), 0);
    for (unsigned k = 0; k < 2; k++) {
        uint32_t n = 0;
        for (;; n++) {
            nodes[0] = n;
            const struct gbnf_view view = state_of(nodes, sizes[k]);
            const uint32_t got = gbnf_states_find(&s, &view);
            if (got == GBNF_NO_STATE)
                break;
            assert_int_equal(got, n);
            assert_false(s.is_full);
        }
        assert_in_range(n, 100, 1u << 16);
        nodes[0] = n / 2;
        const struct gbnf_view known = state_of(nodes, sizes[k]);
        assert_int_equal(gbnf_states_find(&s, &known), n / 2);
        assert_true(s.is_full);
        gbnf_states_clear(&s);
        assert_false(s.is_full);
    }
    gbnf_states_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find), cmocka_unit_test(test_next),
                                       cmocka_unit_test(test_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
