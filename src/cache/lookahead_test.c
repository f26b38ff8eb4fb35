/* Tests when lookahead is tried and when it stays, and how predictions are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cache/lookahead.h"

#define N_USED 3

static char memory[1024];

static struct lookahead open_mode(enum lookahead_mode mode)
{
    struct lookahead l;
    assert_true(lookahead_bytes(2, N_USED) <= sizeof memory);
    lookahead_init(&l, mode, NULL, 2, N_USED, memory);
    return l;
}

/* Runs n tokens that take with_ns or without_ns. Returns how many of them used lookahead. */
static unsigned run(struct lookahead *l, unsigned n, uint64_t with_ns, uint64_t without_ns,
                    uint64_t n_misses)
{
    unsigned n_on = 0;
    for (unsigned i = 0; i < n; i++) {
        lookahead_begin_token(l);
        n_on += l->is_on;
        lookahead_end_token(l, l->is_on ? with_ns : without_ns, n_misses);
    }
    return n_on;
}

static void test_forced(void **state)
{
    (void)state;
    struct lookahead on = open_mode(LOOKAHEAD_ON), off = open_mode(LOOKAHEAD_OFF);
    assert_int_equal(run(&on, 1000, 9, 1, 5), 1000);
    assert_int_equal(run(&off, 1000, 1, 9, 5), 0);
}

static void test_what_is_faster_stays(void **state)
{
    (void)state;
    struct lookahead good = open_mode(LOOKAHEAD_AUTO), bad = open_mode(LOOKAHEAD_AUTO);
    assert_true(run(&good, 4000, 90, 100, 5) > 3500);
    const unsigned n_bad = run(&bad, 4000, 110, 100, 5);
    assert_true(n_bad > 0 && n_bad < 100); /* it is tried again, less and less often */
}

static void test_a_gain_that_ends_is_noticed(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_AUTO);
    assert_true(run(&l, 1000, 90, 100, 5) > 800);
    assert_true(run(&l, 4000, 110, 100, 5) < 400);
    assert_true(run(&l, 40000, 90, 100, 5) > 20000);
}

static void test_not_without_reads(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_AUTO);
    assert_int_equal(run(&l, 4000, 90, 100, 0), 0);
}

static void test_recall(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_ON);
    const struct expert_use uses[N_USED] = {{.expert = 2}, {.expert = 5}, {.expert = 9}};
    l.layers[1] = (struct lookahead_layer){0};
    lookahead_begin_token(&l);
    lookahead_check(&l, 1, uses, N_USED); /* nothing was predicted yet */
    assert_int_equal(l.layers[1].n_needed, 0);
    l.predicted_layer = 1;
    l.predicted[0] = 1, l.predicted[1] = 5, l.predicted[2] = 9;
    lookahead_check(&l, 0, uses, N_USED); /* the prediction was for another layer */
    lookahead_check(&l, 1, uses, N_USED);
    assert_int_equal(l.layers[0].n_needed, 0);
    assert_int_equal(l.layers[1].n_needed, 3);
    assert_int_equal(l.layers[1].n_predicted, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_what_is_faster_stays),
        cmocka_unit_test(test_a_gain_that_ends_is_noticed),
        cmocka_unit_test(test_not_without_reads),
        cmocka_unit_test(test_recall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
