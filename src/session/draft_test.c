/* How drafts are looked up, and how many of them the gate lets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "session/draft.h"

static uint32_t look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t max, int32_t *drafts)
{
    return draft_look_up(ids, n, id, DRAFT_MATCH, drafts, max);
}

static void test_look_up(void **state)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 9, 1, 2};
    int32_t drafts[SEQUENCE_DRAFTS] = {0};
    (void)state;
    assert_int_equal(look_up(ids, 9, 3, 2, drafts), 2);
    assert_int_equal(drafts[0], 4);
    assert_int_equal(drafts[1], 5);
    assert_int_equal(look_up(ids, 9, 3, 8, drafts), 8);
    assert_int_equal(drafts[3], 9);
    assert_int_equal(drafts[6], 3); /* the token itself, */
    assert_int_equal(drafts[7], 4); /* and again what followed it */
    assert_int_equal(look_up(ids, 9, 4, 8, drafts), 0); /* not in this order */
    assert_int_equal(look_up(ids, 8, 2, 8, drafts), 0); /* only two tokens are the same */
    assert_int_equal(look_up(ids, 0, 2, 8, drafts), 0);
    assert_int_equal(look_up(ids, 9, 3, 0, drafts), 0);
}

/* The longest match counts; of equally long ones the latest. */
static void test_which_match(void **state)
{
    static const int32_t longer[] = {7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2};
    static const int32_t equal[] = {4, 1, 2, 3, 50, 5, 1, 2, 3, 60, 7, 1, 2};
    static const int32_t run[] = {5, 5, 5, 5};
    int32_t drafts[SEQUENCE_DRAFTS];
    (void)state;
    assert_true(look_up(longer, 13, 3, 1, drafts) == 1 && drafts[0] == 50);
    assert_true(look_up(equal, 13, 3, 1, drafts) == 1 && drafts[0] == 60);
    assert_true(look_up(run, 4, 5, 4, drafts) == 4 && drafts[3] == 5);
}

/* Teaches the gate the time of passes: one row takes `one`, each further row `more`. */
static void teach(struct draft_gate *gate, uint64_t one, uint64_t more)
{
    for (uint32_t n = 1; n <= 5; n++)
        draft_gate_time(gate, n, one + (n - 1) * more);
}

static void tell(struct draft_gate *gate, uint32_t at, bool is_right, unsigned times)
{
    while (times-- > 0)
        draft_gate_result(gate, at, is_right);
}

static void test_gate(void **state)
{
    struct draft_gate gate;
    (void)state;
    draft_gate_init(&gate, false);
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 0); /* first the time without drafts */
    draft_gate_time(&gate, 1, 1000);
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 4); /* then that with them */
    teach(&gate, 1000, 100);
    for (uint32_t at = 0; at < 4; at++)
        tell(&gate, at, true, 100);
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 4);
    assert_int_equal(draft_gate_choose(&gate, 1, 2), 2);
    tell(&gate, 2, false, 100); /* the third is never right */
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 2);
    tell(&gate, 0, false, 100);
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 0);
}

/* Where a further row takes as long as a pass, drafts are only tried now and then. */
static void test_gate_refuses(void **state)
{
    struct draft_gate gate;
    unsigned n_tried = 0;
    (void)state;
    draft_gate_init(&gate, false);
    teach(&gate, 1000, 1000);
    for (uint32_t at = 0; at < 4; at++)
        tell(&gate, at, true, 100);
    for (unsigned i = 0; i < 1000; i++)
        n_tried += draft_gate_choose(&gate, 1, 4) > 0;
    assert_in_range(n_tried, 1, 10);
    gate.is_open = true;
    assert_int_equal(draft_gate_choose(&gate, 1, 4), 4);
}

/* Times between known ones are estimated; passes with more rows than remembered have no drafts. */
static void test_gate_rows(void **state)
{
    struct draft_gate gate;
    (void)state;
    draft_gate_init(&gate, false);
    draft_gate_time(&gate, 1, 1000);
    draft_gate_time(&gate, 5, 1400);
    for (uint32_t at = 0; at < 4; at++)
        tell(&gate, at, true, 100);
    assert_int_equal(draft_gate_choose(&gate, 1, 2), 2);
    assert_int_equal(draft_gate_choose(&gate, 8, 4), 0); /* its time without drafts is unknown */
    assert_int_equal(draft_gate_choose(&gate, DRAFT_ROWS, 4), 0);
    draft_gate_time(&gate, DRAFT_ROWS + 1, 1); /* is not remembered */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look_up),      cmocka_unit_test(test_which_match),
        cmocka_unit_test(test_gate),         cmocka_unit_test(test_gate_refuses),
        cmocka_unit_test(test_gate_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
