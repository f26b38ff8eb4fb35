/* Tests apps/bench/quiet.h with files that say what a machine has done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "apps/bench/quiet.h"

static char folder[] = "/tmp/quiet-test-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* The counters are user, nice, system, idle, wait, irq, softirq, stolen. */
static void test_counters(void **state)
{
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    struct quiet_sample s;
    (void)state;
    write_file("stat", "cpu  100 20 3 40000 500 6000 70000 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n");
    quiet_take(folder, &s);
    assert_true(s.is_known);
    assert_true(s.busy_s > 123 * tick - 1e-9 && s.busy_s < 123 * tick + 1e-9);
    assert_true(s.stolen_s > 8 * tick - 1e-9 && s.stolen_s < 8 * tick + 1e-9);
    write_file("stat", "something else\n");
    quiet_take(folder, &s);
    assert_false(s.is_known);
    quiet_take("/nowhere", &s);
    assert_false(s.is_known);
}

static struct quiet_view view_of(double busy_s, double own_s, double stolen_s, unsigned n_cpus)
{
    const struct quiet_sample before = {.is_known = true, .ns = 5000000000u, .busy_s = 70,
                                        .own_s = 3, .stolen_s = 9};
    struct quiet_sample after = before;
    struct quiet_view view;
    after.ns += 10000000000u;
    after.busy_s += busy_s;
    after.own_s += own_s;
    after.stolen_s += stolen_s;
    quiet_between(&before, &after, n_cpus, &view);
    return view;
}

/* What this program and its children compute is not others' work. */
static void test_between(void **state)
{
    struct quiet_view v = view_of(20, 19.5, 0, 2);
    char text[QUIET_TEXT_BYTES];
    (void)state;
    assert_true(v.is_known && v.is_quiet);
    assert_true(v.others > 0.0499 && v.others < 0.0501);
    assert_non_null(strstr(quiet_text(&v, text), "quiet: other programs use 0.05 of 2"));
    v = view_of(20, 10, 0, 2);
    assert_false(v.is_quiet);
    assert_non_null(strstr(quiet_text(&v, text), "not quiet: other programs use 1.00 of 2"));
    v = view_of(20, 19.5, 0.5, 2); /* 0.05 of two processors are taken away: more than 2 % */
    assert_false(v.is_quiet);
    v = view_of(20, 19.5, 0.3, 2);
    assert_true(v.is_quiet);
    v = view_of(3, 0, 0, 2); /* 0.3 processors are much of two, and little of 16 */
    assert_false(v.is_quiet);
    v = view_of(3, 0, 0, 16);
    assert_true(v.is_quiet);
    v = view_of(10, 11, 0, 2); /* clocks are coarse */
    assert_true(v.is_quiet && v.others == 0);
}

static void test_unknown(void **state)
{
    struct quiet_view v;
    const struct quiet_sample none = {.ns = 1}, later = {.ns = 2};
    char text[QUIET_TEXT_BYTES];
    (void)state;
    quiet_between(&none, &later, 2, &v);
    assert_false(v.is_known);
    assert_false(v.is_quiet); /* it is no proof of quiet that nothing is known */
    assert_non_null(strstr(quiet_text(&v, text), "unknown"));
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    char path[256];
    (void)state;
    (void)snprintf(path, sizeof path, "%s/stat", folder);
    (void)unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
