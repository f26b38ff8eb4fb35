/* Ranks that are threads: what travels, and that nothing does after one of them was given up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cluster/transport.h"

struct pair {
    struct thread_hub *hub;
    struct transport *ranks[2];
};

static int open_pair(void **state)
{
    static struct pair p;
    p.hub = thread_hub_new(2, NULL);
    assert_non_null(p.hub);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(transport_open_thread(p.hub, i, &p.ranks[i], NULL), 0);
    *state = &p;
    return 0;
}

static int close_pair(void **state)
{
    struct pair *p = *state;
    for (uint32_t i = 0; i < 2; i++)
        p->ranks[i]->ops->close(p->ranks[i]);
    thread_hub_free(p->hub);
    return 0;
}

static void test_order(void **state)
{
    struct transport *a = ((struct pair *)*state)->ranks[0], *b = ((struct pair *)*state)->ranks[1];
    struct transport_send sends[2];
    char got[8] = "";
    uint64_t n = 0;
    assert_int_equal(b->ops->receive(b, 0, CHANNEL_JOIN, got, sizeof got, &n, NULL), 0);
    assert_int_equal(n, 0);
    assert_int_equal(a->ops->send(a, 1, CHANNEL_JOIN, "one", 4, &sends[0], NULL), 0);
    assert_int_equal(a->ops->send(a, 1, CHANNEL_JOIN, "three", 6, &sends[1], NULL), 0);
    assert_false(a->ops->is_sent(a, &sends[0]));
    assert_int_equal(b->ops->receive(b, 0, CHANNEL_JOIN, got, sizeof got, &n, NULL), 0);
    assert_int_equal(n, 4);
    assert_string_equal(got, "one");
    assert_true(a->ops->is_sent(a, &sends[0]));
    assert_false(a->ops->is_sent(a, &sends[1]));
    assert_int_equal(b->ops->receive(b, 0, CHANNEL_JOIN, got, 3, &n, NULL), FM_ERR_FORMAT);
    assert_string_equal(got, "one");
}

/* Its sender has the memory of a message back, whoever gave up: no receiver may look at it. */
static void test_abandoned(void **state)
{
    struct transport *a = ((struct pair *)*state)->ranks[0], *b = ((struct pair *)*state)->ranks[1];
    struct transport_send send, late;
    struct fm_error err = {0};
    char got[8] = "";
    uint64_t n = 0;
    assert_int_equal(a->ops->send(a, 1, CHANNEL_JOIN, "one", 4, &send, NULL), 0);
    a->ops->abandon(a);
    assert_true(a->ops->is_sent(a, &send));
    memset(&send, 0xff, sizeof send);
    assert_int_equal(b->ops->receive(b, 0, CHANNEL_JOIN, got, sizeof got, &n, &err), FM_ERR_IO);
    assert_int_equal(n, 0);
    assert_string_equal(got, "");
    assert_non_null(strstr(err.text, "a rank is lost"));
    assert_int_equal(b->ops->send(b, 0, CHANNEL_JOIN, "two", 4, &late, &err), FM_ERR_IO);
    assert_true(b->ops->is_sent(b, &late));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(test_abandoned, open_pair, close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
