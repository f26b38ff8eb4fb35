/* How drafts are looked up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "session/draft.h"

static uint32_t look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t max, int32_t *drafts)
{
    uint32_t match;
    const uint32_t found = draft_look_up(ids, n, id, DRAFT_MATCH, drafts, max, &match);
    assert_true(found == 0 || match >= DRAFT_MATCH);
    return found;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look_up), cmocka_unit_test(test_which_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
