/* The budget under a simulated machine with a simulated clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/pressure.h"

#define MIB (1ull << 20)
#define STEP_NS 250000000ull

/* A machine whose memory is the program's budget, what others take of what they want, and the
 * rest. */
struct world {
    struct pressure p;
    struct plat_pressure seen;
    uint64_t now_ns, total, others;
    bool is_urgent;
};

static void open_world(struct world *w)
{
    *w = (struct world){.p = {.min = 1000 * MIB, .max = 8000 * MIB, .reserve = 400 * MIB,
                              .budget = 8000 * MIB},
                        .now_ns = 77, .total = 10000 * MIB, .others = 1000 * MIB};
}

static uint64_t look(struct world *w)
{
    const uint64_t left = w->total - w->p.budget;
    w->now_ns += STEP_NS;
    w->seen.own = w->p.budget;
    w->seen.available = left > w->others ? left - w->others : 0;
    return pressure_follow(&w->p, w->now_ns, &w->seen, &w->is_urgent);
}

static void look_for(struct world *w, unsigned seconds)
{
    for (unsigned i = 0; i < 4 * seconds; i++)
        (void)look(w);
}

static void test_nothing_changes_without_pressure(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    look_for(&w, 100);
    assert_int_equal(w.p.budget, 8000 * MIB);
    w.others = 1799 * MIB; /* more than half of the reserve is there */
    look_for(&w, 100);
    assert_int_equal(w.p.budget, 8000 * MIB);
}

static void test_shrinks_at_once_and_grows_slowly(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    (void)look(&w);
    w.others = 1850 * MIB;
    assert_int_equal(look(&w), 7750 * MIB); /* the reserve is there again */
    assert_false(w.is_urgent);
    w.others = 3000 * MIB;
    assert_int_equal(look(&w), 6950 * MIB);
    assert_true(w.is_urgent); /* nothing was left */
    assert_int_equal(look(&w), 6200 * MIB);
    look_for(&w, 60);
    assert_int_equal(w.p.budget, 6480 * MIB);
    assert_false(w.is_urgent);
    w.others = 1000 * MIB;
    look_for(&w, 1); /* 2 % of the most, and no more within a second */
    assert_int_equal(w.p.budget, 6480 * MIB + 160 * MIB);
    look_for(&w, 3);
    assert_int_equal(w.p.budget, 6480 * MIB + 4 * 160 * MIB);
    look_for(&w, 20);
    assert_int_equal(w.p.budget, 8000 * MIB); /* and never above */
}

static void test_calm_comes_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    (void)look(&w);
    w.others = 1900 * MIB;
    const uint64_t small = look(&w);
    assert_int_equal(small, 7700 * MIB);
    w.others = 500 * MIB;
    look_for(&w, 4);
    assert_int_equal(w.p.budget, small);
    look_for(&w, 2);
    assert_true(w.p.budget > small);
}

/* Between the marks it stays where it is: no growth that the next look would take back. */
static void test_no_swinging(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.others = 4000 * MIB;
    look_for(&w, 60);
    const uint64_t found = w.p.budget;
    assert_true(found <= 5600 * MIB && found > 5600 * MIB - 160 * MIB);
    for (unsigned i = 0; i < 100; i++) {
        w.others = i % 2 == 0 ? 4000 * MIB : 4150 * MIB;
        look_for(&w, 1);
        assert_int_equal(w.p.budget, found);
    }
}

static void test_floor(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    (void)look(&w);
    w.others = 9900 * MIB;
    look_for(&w, 3); /* two reserves at a time */
    assert_int_equal(w.p.budget, 1000 * MIB);
    assert_int_equal(look(&w), 1000 * MIB);
    w.p.budget = w.p.max = 900 * MIB; /* opened with less than it would shrink to */
    assert_int_equal(look(&w), 900 * MIB);
}

/* More was asked for than there is: known at the first look. */
static void test_fixed_budget_beyond_the_machine(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.p.budget = w.p.max = 20000 * MIB;
    w.seen = (struct plat_pressure){.own = 500 * MIB, .available = 8500 * MIB};
    assert_int_equal(pressure_follow(&w.p, 1, &w.seen, &w.is_urgent), 8600 * MIB);
    assert_false(w.is_urgent); /* nothing is taken yet */
}

/* A group whose limit comes down to a tenth: the reserve comes down with it. */
static void test_smaller_limit(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    (void)look(&w);
    w.p.min = 100 * MIB;
    w.seen = (struct plat_pressure){.own = 970 * MIB, .available = 30 * MIB};
    assert_int_equal(pressure_follow(&w.p, w.now_ns += STEP_NS, &w.seen, &w.is_urgent), 900 * MIB);
}

static void test_stalls(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.others = 500 * MIB; /* 1500 MiB are left, less than four reserves */
    (void)look(&w);
    w.seen.stall_us += 20000; /* of 250 ms: not yet a tenth */
    assert_int_equal(look(&w), 8000 * MIB);
    w.seen.stall_us += 200000;
    const uint64_t once = look(&w);
    assert_true(once < 8000 * MIB && once > 7500 * MIB);
    for (unsigned i = 0; i < 400; i++) {
        w.others = 9400 * MIB - w.p.budget; /* what it gives, others take */
        w.seen.stall_us += 200000;
        (void)look(&w);
    }
    assert_true(w.p.budget >= 1000 * MIB && w.p.budget < 1100 * MIB);
}

/* Where there is plenty the stalls are not for want of this memory. */
static void test_stalls_of_others(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.total = 20000 * MIB;
    (void)look(&w);
    w.seen.stall_us += 200000;
    w.seen.machine_stall_us += 200000;
    w.seen.n_limit_hits += 5;
    assert_int_equal(look(&w), 8000 * MIB);
}

/* A budget of all that was free but the reserve. */
static void open_automatic(struct world *w)
{
    open_world(w);
    w->p.reserve = 1000 * MIB;
    w->p.max = 9000 * MIB; /* may grow into what others have now */
    w->p.budget = w->total - w->others - w->p.reserve;
    (void)look(w);
    assert_int_equal(w->p.budget, 8000 * MIB);
}

/* Somebody stalls for a minute: behind a limit of their own while the reserve is whole, for want of
 * this memory when it is touched. */
static void test_stalls_of_the_machine(void **state)
{
    (void)state;
    struct world w;
    open_automatic(&w);
    for (unsigned i = 0; i < 240; i++) {
        w.seen.machine_stall_us += 200000;
        assert_int_equal(look(&w), 8000 * MIB);
    }
    w.others += 200 * MIB; /* more than half of the reserve is there */
    assert_int_equal(look(&w), 8000 * MIB);
    w.seen.machine_stall_us += 20000; /* not yet a tenth of the time */
    assert_int_equal(look(&w), 8000 * MIB);
    w.seen.machine_stall_us += 200000;
    const uint64_t once = look(&w);
    assert_true(once < 8000 * MIB && once > 7500 * MIB);
}

static void test_stalls_of_the_group(void **state)
{
    (void)state;
    struct world w;
    open_automatic(&w);
    w.seen.stall_us += 200000;
    assert_true(look(&w) < 8000 * MIB);
}

/* Read through the page cache, experts make their own readers wait for memory. */
static void test_stalls_behind_the_page_cache(void **state)
{
    (void)state;
    struct world w;
    open_automatic(&w);
    w.p.ignores_stalls = true;
    w.others += 200 * MIB;
    for (unsigned i = 0; i < 40; i++) {
        w.seen.stall_us += 200000;
        w.seen.machine_stall_us += 200000;
        assert_int_equal(look(&w), 8000 * MIB);
    }
    w.others += 400 * MIB; /* less than half of the reserve */
    assert_true(look(&w) < 8000 * MIB);
}

static void test_events(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.others = 1700 * MIB; /* 300 are left: more than half of the reserve */
    w.seen.n_limit_hits = w.seen.n_kills = 1000; /* what was before does not count */
    assert_int_equal(look(&w), 8000 * MIB);
    w.seen.n_limit_hits++;
    assert_int_equal(look(&w), 7900 * MIB);
    assert_int_equal(look(&w), 7900 * MIB);
    w.seen.n_kills++;
    assert_true(look(&w) < 7600 * MIB);
}

/* Keys and values that the least budget has no room for. */
static void test_raised(void **state)
{
    (void)state;
    struct world w;
    open_world(&w);
    w.p.budget = w.p.min;
    w.seen.available = 20000 * MIB; /* as much as it may ever be */
    assert_int_equal(pressure_raised(&w.p, &w.seen), 8000 * MIB);
    w.seen.available = 600 * MIB; /* half of what is free, and no more */
    assert_int_equal(pressure_raised(&w.p, &w.seen), 1300 * MIB);
    w.seen.available = 0;
    assert_int_equal(pressure_raised(&w.p, &w.seen), 1000 * MIB);
    w.p.budget = w.p.max + 1; /* never less than it is */
    assert_int_equal(pressure_raised(&w.p, &w.seen), w.p.max + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_changes_without_pressure),
        cmocka_unit_test(test_shrinks_at_once_and_grows_slowly),
        cmocka_unit_test(test_calm_comes_first),
        cmocka_unit_test(test_no_swinging),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_fixed_budget_beyond_the_machine),
        cmocka_unit_test(test_smaller_limit),
        cmocka_unit_test(test_stalls),
        cmocka_unit_test(test_stalls_of_others),
        cmocka_unit_test(test_stalls_of_the_machine),
        cmocka_unit_test(test_stalls_of_the_group),
        cmocka_unit_test(test_stalls_behind_the_page_cache),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_raised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
