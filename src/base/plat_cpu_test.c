#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/plat.h"

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static void remove_tree(const char *root)
{
    char command[256];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void put_siblings(const char *root, unsigned cpu, const char *list)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/cpu%u", root, cpu);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/cpu%u/topology", root, cpu);
    assert_int_equal(mkdir(path, 0700), 0);
    put(path, "thread_siblings_list", list);
}

static void allow(bool is_allowed[PLAT_CPUS_MAX], const char *cpus)
{
    memset(is_allowed, 0, PLAT_CPUS_MAX * sizeof is_allowed[0]);
    for (; *cpus != '\0'; cpus++)
        is_allowed[*cpus - '0'] = true;
}

/* Four cores with two threads each, with the two common ways of numbering them. */
static void test_cores_of_a_made_up_machine(void **state)
{
    (void)state;
    char root[] = "/tmp/flashmoe-cpu-XXXXXX";
    assert_non_null(mkdtemp(root));
    static const char *const lists[] = {"0,4\n", "1,5\n", "2-3\n", "2-3\n",
                                        "0,4\n", "1,5\n", "6,7\n", "6,7\n"};
    for (unsigned cpu = 0; cpu < 8; cpu++)
        put_siblings(root, cpu, lists[cpu]);
    bool is_allowed[PLAT_CPUS_MAX];
    unsigned firsts[PLAT_CPUS_MAX];
    allow(is_allowed, "01234567");
    assert_int_equal(plat_find_cores(root, is_allowed, firsts), 4);
    assert_int_equal(firsts[0], 0);
    assert_int_equal(firsts[1], 1);
    assert_int_equal(firsts[2], 2);
    assert_int_equal(firsts[3], 6);
    allow(is_allowed, "347"); /* one thread of each core */
    assert_int_equal(plat_find_cores(root, is_allowed, firsts), 3);
    assert_int_equal(firsts[0], 3);
    assert_int_equal(firsts[2], 7);
    allow(is_allowed, "45"); /* two cores, each without its first thread */
    assert_int_equal(plat_find_cores(root, is_allowed, NULL), 2);
    allow(is_allowed, "1589"); /* two of them have no topology files */
    assert_int_equal(plat_find_cores(root, is_allowed, NULL), 3);
    remove_tree(root);
}

static void put_cache(const char *root, unsigned cpu, unsigned i, const char *level,
                      const char *size, const char *list)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/cpu%u", root, cpu);
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof path, "%s/cpu%u/cache", root, cpu);
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof path, "%s/cpu%u/cache/index%u", root, cpu, i);
    assert_int_equal(mkdir(path, 0700), 0);
    put(path, "level", level);
    put(path, "size", size);
    put(path, "shared_cpu_list", list);
}

/* Two sockets of four processors with one cache each, and one processor without a third level. */
static void test_caches_of_a_made_up_machine(void **state)
{
    (void)state;
    char root[] = "/tmp/flashmoe-cache-XXXXXX";
    assert_non_null(mkdtemp(root));
    for (unsigned cpu = 0; cpu < 8; cpu++) {
        char own[16];
        (void)snprintf(own, sizeof own, "%u\n", cpu);
        put_cache(root, cpu, 0, "1\n", "48K\n", own);
        put_cache(root, cpu, 1, "2\n", "2048K\n", own);
        put_cache(root, cpu, 2, "3\n", "32M\n", cpu % 2 == 0 ? "0,2,4,6\n" : "1,3,5,7\n");
    }
    put_cache(root, 8, 0, "2\n", "1024K\n", "8\n");
    bool is_allowed[PLAT_CPUS_MAX];
    allow(is_allowed, "01234567");
    assert_int_equal(plat_find_caches(root, is_allowed), 64 << 20);
    allow(is_allowed, "246"); /* one of the two */
    assert_int_equal(plat_find_caches(root, is_allowed), 32 << 20);
    allow(is_allowed, "678");
    assert_int_equal(plat_find_caches(root, is_allowed), 65 << 20);
    allow(is_allowed, "9");
    assert_int_equal(plat_find_caches(root, is_allowed), 0);
    remove_tree(root);
}

static void test_quota_of_made_up_groups(void **state)
{
    (void)state;
    char root[] = "/tmp/flashmoe-quota-XXXXXX", inner[64], own[64];
    assert_non_null(mkdtemp(root));
    (void)snprintf(inner, sizeof inner, "%s/inner", root);
    (void)snprintf(own, sizeof own, "%s/own", root);
    assert_int_equal(mkdir(inner, 0700), 0);
    put(root, "own", "0::/inner\n");
    assert_true(plat_cgroup_cpus(own, root) == 0);
    put(inner, "cpu.max", "max 100000\n");
    assert_true(plat_cgroup_cpus(own, root) == 0);
    put(root, "cpu.max", "250000 100000\n"); /* the parent's quota */
    assert_true(plat_cgroup_cpus(own, root) == 2.5);
    put(inner, "cpu.max", "150000 100000\n");
    assert_true(plat_cgroup_cpus(own, root) == 1.5);
    put(root, "own", "4:memory:/\n3:cpuset:/\n2:cpuacct,cpu:/inner\n");
    assert_true(plat_cgroup_cpus(own, root) == 0);
    put(inner, "cpu.cfs_quota_us", "-1\n");
    put(inner, "cpu.cfs_period_us", "100000\n");
    assert_true(plat_cgroup_cpus(own, root) == 0);
    put(inner, "cpu.cfs_quota_us", "50000\n");
    assert_true(plat_cgroup_cpus(own, root) == 0.5);
    assert_true(plat_cgroup_cpus("no/such/file", root) == 0);
    remove_tree(root);
}

static void test_this_machine(void **state)
{
    (void)state;
    assert_in_range(plat_n_cores(), 1, plat_n_cpus());
    assert_in_range(plat_n_cpus(), 1, plat_n_cpus_of_machine());
    assert_true(plat_cpu_quota() >= 0);
    char text[128] = "x";
    plat_cpu_name(text, sizeof text);
    assert_true(strlen(text) < sizeof text);
    plat_huge_pages(text, sizeof text);
    assert_true(text[0] == '\0' || strcmp(text, "always") == 0 || strcmp(text, "madvise") == 0 ||
                strcmp(text, "never") == 0);
    assert_false(plat_thread_pin(PLAT_CPUS_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cores_of_a_made_up_machine),
        cmocka_unit_test(test_caches_of_a_made_up_machine),
        cmocka_unit_test(test_quota_of_made_up_groups),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
