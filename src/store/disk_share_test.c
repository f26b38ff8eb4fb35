/* Which disk reads what, on disks that are simulated: each serves its operations in order, at its
 * own speed, on a clock of the test. Shares are counted, so no machine is too slow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "store/disk_share.h"

#define PIECE (512u << 10)
#define MAX_OPS 64

struct simulated_disk {
    double bytes_per_ns;
    uint64_t free_ns;                  /* when everything in its queue is done */
    uint64_t done_ns[MAX_OPS], n_ops; /* of this round */
    uint64_t bytes;
};

struct simulation {
    struct disk_share share;
    struct simulated_disk disks[3];
    uint64_t now_ns;
};

static void add_op(struct simulation *s, enum read_urgency urgency)
{
    const unsigned d = disk_share_pick(&s->share, PIECE, urgency);
    struct simulated_disk *disk = &s->disks[d];
    assert_false(s->share.disks[d].is_lost);
    disk_share_begin(&s->share, d, PIECE, urgency, s->now_ns);
    const uint64_t begin = disk->free_ns > s->now_ns ? disk->free_ns : s->now_ns;
    disk->free_ns = begin + (uint64_t)(PIECE / disk->bytes_per_ns);
    disk->done_ns[disk->n_ops++] = disk->free_ns;
    disk->bytes += PIECE;
}

/* Submits the operations of one layer at once and lets them finish in the order of time. Returns
 * how long that takes. */
static uint64_t run_layer(struct simulation *s, unsigned n_ops)
{
    const uint64_t begin_ns = s->now_ns;
    unsigned at[3] = {0};
    for (unsigned i = 0; i < n_ops; i++)
        add_op(s, READ_NEEDED);
    for (unsigned left = n_ops; left > 0; left--) {
        unsigned first = 3;
        for (unsigned d = 0; d < s->share.n; d++)
            if (at[d] < s->disks[d].n_ops &&
                (first == 3 || s->disks[d].done_ns[at[d]] < s->disks[first].done_ns[at[first]]))
                first = d;
        s->now_ns = s->disks[first].done_ns[at[first]++];
        disk_share_end(&s->share, first, PIECE, READ_NEEDED, true, s->now_ns);
    }
    for (unsigned d = 0; d < s->share.n; d++)
        s->disks[d].n_ops = 0;
    return s->now_ns - begin_ns;
}

static void run_layers(struct simulation *s, unsigned n, unsigned n_ops)
{
    for (unsigned i = 0; i < n; i++)
        (void)run_layer(s, n_ops);
}

static double share_of(const struct simulation *s, unsigned d)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < s->share.n; i++)
        all += s->disks[i].bytes;
    return (double)s->disks[d].bytes / (double)all;
}

static void forget_bytes(struct simulation *s)
{
    for (unsigned i = 0; i < 3; i++)
        s->disks[i].bytes = 0;
}

static struct simulation two_disks(double first, double second)
{
    return (struct simulation){.share.n = 2, .disks = {{.bytes_per_ns = first},
                                                       {.bytes_per_ns = second}}, .now_ns = 1};
}

static void assert_near(double is, double expected, double by)
{
    if (is < expected - by || is > expected + by)
        fail_msg("%.3f, expected %.3f", is, expected);
}

static void test_equal_disks_get_half(void **state)
{
    (void)state;
    struct simulation s = two_disks(2, 2);
    run_layers(&s, 200, 28);
    assert_near(share_of(&s, 0), 0.5, 0.001);
}

static void test_shares_follow_speed(void **state)
{
    (void)state;
    struct simulation s = two_disks(3, 1);
    run_layers(&s, 20, 28); /* nothing is known at first */
    forget_bytes(&s);
    run_layers(&s, 500, 28);
    assert_near(share_of(&s, 0), 0.75, 0.01);
    struct simulation three = {.share.n = 3, .disks = {{.bytes_per_ns = 1}, {.bytes_per_ns = 4},
                                                       {.bytes_per_ns = 2}}, .now_ns = 1};
    run_layers(&three, 20, 56);
    forget_bytes(&three);
    run_layers(&three, 500, 56);
    assert_near(share_of(&three, 0), 1.0 / 7, 0.01);
    assert_near(share_of(&three, 1), 4.0 / 7, 0.01);
}

/* A layer takes as long as both disks need together, within one piece of the slow one. */
static void test_no_disk_is_waited_for(void **state)
{
    (void)state;
    struct simulation s = two_disks(3, 1);
    run_layers(&s, 50, 28);
    const uint64_t ns = run_layer(&s, 28);
    assert_true(ns < (uint64_t)(28.0 * PIECE / 4 + PIECE / 1.0));
}

/* One piece alone goes to the faster disk. */
static void test_single_pieces(void **state)
{
    (void)state;
    struct simulation s = two_disks(1, 3);
    run_layers(&s, 20, 28);
    forget_bytes(&s);
    run_layers(&s, 500, 1);
    assert_true(share_of(&s, 1) > 0.96);
    assert_true(share_of(&s, 0) > 0); /* the other one is tried now and then */
}

/* A disk that was very slow for a while gets its share back, and trying it costs little. */
static void test_a_slow_disk_recovers(void **state)
{
    (void)state;
    struct simulation s = two_disks(2, 0.002);
    run_layers(&s, 20, 28);
    forget_bytes(&s);
    uint64_t begin = s.now_ns;
    run_layers(&s, 5000, 28);
    assert_true(share_of(&s, 1) < 0.002);
    assert_true((double)(s.now_ns - begin) < 1.2 * 5000 * 28 * (double)PIECE / 2);
    s.disks[1].bytes_per_ns = 2;
    run_layers(&s, 20000, 28);
    forget_bytes(&s);
    run_layers(&s, 100, 28);
    assert_near(share_of(&s, 1), 0.5, 0.05);
}

static void test_a_lost_disk_gets_nothing(void **state)
{
    (void)state;
    struct simulation s = two_disks(1, 1);
    run_layers(&s, 5, 28);
    forget_bytes(&s);
    s.share.disks[0].is_lost = true;
    run_layers(&s, 50, 28);
    assert_int_equal(s.disks[0].bytes, 0);
}

/* Needed operations overtake guesses, so guesses that wait for a disk do not count for them. */
static void test_guesses_do_not_count(void **state)
{
    (void)state;
    struct disk_share share = {.n = 2};
    disk_share_begin(&share, 0, 8 * PIECE, READ_GUESSED, 1);
    disk_share_begin(&share, 1, PIECE, READ_NEEDED, 1);
    assert_int_equal(disk_share_pick(&share, PIECE, READ_NEEDED), 0);
    assert_int_equal(disk_share_pick(&share, PIECE, READ_GUESSED), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_disks_get_half), cmocka_unit_test(test_shares_follow_speed),
        cmocka_unit_test(test_no_disk_is_waited_for), cmocka_unit_test(test_single_pieces),
        cmocka_unit_test(test_a_slow_disk_recovers),
        cmocka_unit_test(test_a_lost_disk_gets_nothing),
        cmocka_unit_test(test_guesses_do_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
