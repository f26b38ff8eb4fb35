/* Tests when lookahead is tried and when it stays, and how predictions are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cache/lookahead.h"

#define N_USED 3

static const struct lookahead_sizes sizes = {.n_layers = 2, .n_used = N_USED, .max_rows = 3};
static uint64_t memory[128];

static struct lookahead open_mode(enum lookahead_mode mode)
{
    struct lookahead l;
    assert_true(lookahead_bytes(&sizes) <= sizeof memory);
    lookahead_init(&l, mode, NULL, &sizes, memory);
    return l;
}

/* Runs n passes that take with_ns or without_ns. Returns how many of them used lookahead. */
static unsigned run_rows(struct lookahead *l, uint32_t n_rows, unsigned n, uint64_t with_ns,
                         uint64_t without_ns, uint64_t n_misses)
{
    unsigned n_on = 0;
    for (unsigned i = 0; i < n; i++) {
        lookahead_begin(l, n_rows);
        const bool is_on = l->is_on;
        n_on += is_on;
        lookahead_end(l, is_on ? with_ns : without_ns, n_misses);
    }
    return n_on;
}

static unsigned run(struct lookahead *l, unsigned n, uint64_t with_ns, uint64_t without_ns,
                    uint64_t n_misses)
{
    return run_rows(l, 1, n, with_ns, without_ns, n_misses);
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

/* Passes in turns: those of one row gain, those of three lose. */
static void test_numbers_of_rows_are_apart(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_AUTO);
    unsigned n_one = 0, n_three = 0;
    for (unsigned i = 0; i < 4000; i++) {
        n_one += run_rows(&l, 1, 1, 90, 100, 5);
        n_three += run_rows(&l, 3, 1, 330, 300, 15);
    }
    assert_true(n_one > 3500);
    assert_true(n_three > 0 && n_three < 100);
}

static void test_recall(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_ON);
    const struct expert_use uses[N_USED] = {{.expert = 2}, {.expert = 5}, {.expert = 9}};
    l.layers[1] = (struct lookahead_layer){0};
    lookahead_begin(&l, 1);
    lookahead_check(&l, 1, uses, N_USED); /* nothing was predicted yet */
    assert_int_equal(l.layers[1].n_needed, 0);
    l.predicted_layer = 1;
    l.n_predicted = 4;
    l.predicted[0] = 1, l.predicted[1] = 5, l.predicted[2] = 9, l.predicted[3] = 11;
    lookahead_check(&l, 0, uses, N_USED); /* the prediction was for another layer */
    lookahead_check(&l, 1, uses, N_USED);
    assert_int_equal(l.layers[0].n_needed, 0);
    assert_int_equal(l.layers[1].n_needed, 3);
    assert_int_equal(l.layers[1].n_predicted, 2);
    assert_int_equal(l.layers[1].n_wanted, 4);
}

/* Of several rows the union is predicted. */
static void test_rows(void **state)
{
    (void)state;
    struct lookahead l = open_mode(LOOKAHEAD_ON);
    static const uint32_t ids[2 * N_USED] = {2, 5, 9, 1, 5, 11}, both[] = {1, 2, 5, 9, 11};
    const struct expert_use uses[] = {{.expert = 1}, {.expert = 5}, {.expert = 6}, {.expert = 11}};
    l.layers[1] = (struct lookahead_layer){0};
    lookahead_begin(&l, 2);
    lookahead_predict(&l, 1, ids, 2);
    assert_int_equal(l.n_predicted, 5);
    assert_memory_equal(l.predicted, both, sizeof both);
    lookahead_check(&l, 1, uses, 4);
    assert_int_equal(l.layers[1].n_needed, 4);
    assert_int_equal(l.layers[1].n_predicted, 3);
    assert_int_equal(l.layers[1].n_wanted, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_what_is_faster_stays),
        cmocka_unit_test(test_a_gain_that_ends_is_noticed),
        cmocka_unit_test(test_not_without_reads),
        cmocka_unit_test(test_numbers_of_rows_are_apart),
        cmocka_unit_test(test_recall),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
