#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/jdoc.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/plat_reads.h"

static void test_err_set_and_wrap(void **state)
{
    (void)state;
    struct fm_error err;
    assert_int_equal(err_set(&err, FM_ERR_IO, "bad byte %d\n", 7), FM_ERR_IO);
    assert_string_equal(err.text, "bad byte 7?");
    assert_int_equal(err_wrap(&err, FM_ERR_FORMAT, "file '%s'", "x"), FM_ERR_FORMAT);
    assert_string_equal(err.text, "file 'x': bad byte 7?");
    assert_int_equal(err.code, FM_ERR_FORMAT);
    assert_int_equal(err_set(NULL, FM_ERR_ARG, "nobody listens"), FM_ERR_ARG);
}

static void test_err_wrap_long_text_is_truncated(void **state)
{
    (void)state;
    struct fm_error err;
    char filler[2 * FM_ERROR_BYTES];
    memset(filler, 'a', sizeof filler - 1);
    filler[sizeof filler - 1] = '\0';
    (void)err_set(&err, FM_ERR_IO, "%s", filler);
    (void)err_wrap(&err, FM_ERR_IO, "%s", filler);
    assert_int_equal(strlen(err.text), FM_ERROR_BYTES - 1);
}

static void test_checked_sizes(void **state)
{
    (void)state;
    uint64_t n;
    assert_true(mem_mul(1u << 20, 1u << 20, &n));
    assert_false(mem_mul(UINT64_MAX, 2, &n));
    assert_false(mem_add(UINT64_MAX, 1, &n));
    assert_int_equal(mem_round_up(4097, 4096), 8192);
    struct fm_error err;
    assert_null(mem_new(UINT64_MAX, 16, "nothing", &err));
    assert_int_equal(err.code, FM_ERR_NOMEM);
    assert_null(mem_new_aligned(64, UINT64_MAX, "nothing", &err));
}

/* Returns whether /proc/self/smaps lists the flag for the mapping that contains `at`. */
static bool has_flag(const void *at, const char *flag)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[4096];
    bool is_here = false, has = false;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        unsigned long long begin, end;
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
            is_here = (uintptr_t)at >= begin && (uintptr_t)at < end;
        else if (is_here && strncmp(line, "VmFlags:", 8) == 0)
            has = strstr(line, flag) != NULL;
    }
    if (f != NULL)
        (void)fclose(f);
    return has;
}

static void test_bulk_memory_ends_in_small_pages(void **state)
{
    (void)state;
    char setting[16];
    plat_huge_pages(setting, sizeof setting);
    if (setting[0] == '\0')
        skip();
    const uint64_t large = MEM_LARGE_PAGE;
    struct fm_error err;
    char *p = mem_new_bulk(3 * large + 5000, "a test", &err);
    assert_non_null(p);
    assert_true(has_flag(p, " hg"));
    assert_true(has_flag(p + 3 * large - 1, " hg"));
    assert_true(has_flag(p + 3 * large, " nh"));
    assert_true(has_flag(p + 3 * large + 4999, " nh"));
    mem_free(p);
    p = mem_new_bulk(2 * large, "a test", &err);
    assert_non_null(p);
    assert_true(has_flag(p + 2 * large - 1, " hg"));
    mem_free(p);
}

static void test_nth_allocation_fails(void **state)
{
    (void)state;
    struct fm_error err;
    mem_fail_at(2);
    void *first = mem_new(1, 8, "one", &err);
    void *second = mem_new(1, 8, "two", &err);
    void *third = mem_new(1, 8, "three", &err);
    mem_fail_at(0);
    assert_non_null(first);
    assert_null(second);
    assert_non_null(third);
    assert_non_null(strstr(err.text, "two"));
    mem_free(first);
    mem_free(third);
}

/* transformers writes a number for "no limit" that no 64-bit integer can hold; the other fields are
 * still read as integers. */
static void test_jdoc_numbers_beyond_integers(void **state)
{
    (void)state;
    const char *text = "{\"most\": 1000000000000000019884624838656, "
                       "\"ids\": [7, 0.5, {\"n\": -3}]}";
    struct jdoc doc;
    struct fm_error err = {0};
    double max;
    assert_int_equal(jdoc_parse(&doc, "c.json", text, strlen(text), &err), 0);
    assert_int_equal(jdoc_number_or(doc.root, doc.file, "most", 0, 1e31, 0, &max, &err), 0);
    assert_true(max > 0.9e30);
    const json_t *ids = jdoc_find(doc.root, "ids");
    assert_true(json_is_integer(json_array_get(ids, 0)));
    assert_int_equal(json_integer_value(json_array_get(ids, 0)), 7);
    assert_true(json_is_real(json_array_get(ids, 1)));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(ids, 2), "n")), -3);
    jdoc_clear(&doc);
}

static void test_jdoc_messages_name_file_field_value(void **state)
{
    (void)state;
    struct jdoc doc;
    struct fm_error err;
    const char *text = "{\"n\": -3, \"s\": \"x\", \"b\": true, \"z\": null, \"f\": 1.5}";
    assert_int_equal(jdoc_parse(&doc, "c.json", text, strlen(text), &err), 0);
    uint64_t n;
    assert_int_equal(jdoc_uint(doc.root, doc.file, "n", 0, 9, &n, &err), FM_ERR_FORMAT);
    assert_string_equal(err.text, "c.json: field 'n' is -3, expected a whole number from 0 to 9");
    assert_int_equal(jdoc_uint(doc.root, doc.file, "q", 0, 9, &n, &err), FM_ERR_FORMAT);
    assert_string_equal(err.text, "c.json: field 'q' is missing");
    assert_int_equal(jdoc_uint_or(doc.root, doc.file, "z", 0, 9, 5, &n, &err), 0);
    assert_int_equal(n, 5);
    double x;
    assert_int_equal(jdoc_number_or(doc.root, doc.file, "f", 0, 2, 0, &x, &err), 0);
    assert_true(x == 1.5);
    bool b;
    assert_int_equal(jdoc_bool_or(doc.root, doc.file, "s", false, &b, &err), FM_ERR_FORMAT);
    jdoc_clear(&doc);
    assert_int_equal(jdoc_parse(&doc, "c.json", "{\"a\":1,\"a\":2}", 13, &err), FM_ERR_FORMAT);
    assert_int_equal(jdoc_parse(&doc, "c.json", "[1]", 3, &err), FM_ERR_FORMAT);
}

static void test_plat_reads_and_knows_the_machine(void **state)
{
    (void)state;
    struct fm_error err;
    int fd;
    uint64_t bytes;
    assert_int_equal(plat_open("no/such/file", &fd, &bytes, &err), FM_ERR_IO);
    assert_non_null(strstr(err.text, "no/such/file"));
    assert_int_equal(plat_open(".", &fd, &bytes, &err), FM_ERR_IO);
    assert_true(plat_memory_available() > 0);
    assert_true(plat_memory_total() > plat_resident_bytes());
    assert_true(plat_resident_bytes() > 0);
    assert_true(plat_now_ns() > 0);
}

/* Every finished piece of a read counts as work, and looks at files of the system do not. */
static void test_reads_are_work(void **state)
{
    (void)state;
    char path[] = "/tmp/flashmoe-reads-XXXXXX";
    const size_t bytes = 3u << 19; /* three pieces */
    char *text = mem_new(bytes, 1, "a text", NULL);
    uint64_t cpu_ns, before, after;
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && text != NULL);
    assert_int_equal(write(fd, text, bytes), (ssize_t)bytes);
    plat_work_done(&cpu_ns, &before);
    assert_int_equal(plat_read_at(fd, path, text, bytes, 0, NULL), 0);
    plat_work_done(&cpu_ns, &after);
    assert_true(after >= before + 3);
    const uint64_t n_reads = plat_reads_done();
    assert_int_equal(plat_read_device(fd, text, bytes, 0), (int64_t)bytes);
    assert_int_equal(plat_reads_done(), n_reads + 1);
    assert_true(plat_resident_bytes() > 0 && plat_memory_available() > 0);
    assert_int_equal(plat_read_some(fd, text, 10, bytes), 0); /* nothing is there */
    assert_int_equal(plat_reads_done(), n_reads + 1);
    (void)close(fd);
    (void)unlink(path);
    mem_free(text);
}

static unsigned n_names(const char *dir)
{
    unsigned n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    assert_int_equal(closedir(d), 0);
    return n - 2; /* "." and ".." */
}

static void test_replaced_file(void **state)
{
    (void)state;
    char root[] = "/tmp/flashmoe-replace-XXXXXX", path[64], *text;
    size_t n;
    struct fm_error err;
    assert_non_null(mkdtemp(root));
    (void)snprintf(path, sizeof path, "%s/kept", root);
    for (const char *want = "first"; want != NULL; want = *want == 'f' ? "the other" : NULL) {
        assert_int_equal(plat_replace_file(path, want, strlen(want), &err), 0);
        assert_int_equal(plat_read_file(path, 100, &text, &n, &err), 0);
        assert_string_equal(text, want);
        mem_free(text);
        assert_int_equal(n_names(root), 1);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0); /* blocks the name */
    assert_int_equal(plat_replace_file(path, "x", 1, &err), FM_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(n_names(root), 1);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(root), 0);
    assert_int_equal(plat_replace_file(path, "x", 1, &err), FM_ERR_IO);
}

#ifdef __linux__

static void put(const char *dir, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A made-up cgroup tree: the tighter limit of an ancestor counts, page cache does not. */
static void test_cgroup_limits(void **state)
{
    (void)state;
    char root[] = "/tmp/flashmoe-cgroup-XXXXXX", inner[64], own[64], file[LIMIT_PATH_BYTES];
    assert_non_null(mkdtemp(root));
    (void)snprintf(inner, sizeof inner, "%s/inner", root);
    (void)snprintf(own, sizeof own, "%s/own", root);
    assert_int_equal(mkdir(inner, 0700), 0);
    put(root, "own", "0::/inner\n");
    put(inner, "memory.max", "max\n");
    put(inner, "memory.current", "123\n");
    assert_true(plat_cgroup_left(own, root) == UINT64_MAX - 123);
    assert_true(plat_cgroup_limit(own, root, file) == UINT64_MAX && file[0] == '\0');
    put(root, "memory.max", "1000\n");
    put(root, "memory.current", "900\n");
    put(root, "memory.stat", "anon 100\nactive_file 300\ninactive_file 400\n");
    assert_int_equal(plat_cgroup_left(own, root), 1000 - (900 - 700));
    assert_int_equal(plat_cgroup_limit(own, root, file), 1000); /* the parent's limit */
    assert_non_null(strstr(file, "/memory.max"));
    assert_null(strstr(file, "/inner/"));
    put(root, "memory.current", "1800\n");
    assert_int_equal(plat_cgroup_left(own, root), 0);
    put(root, "own", "5:memory:/inner\n4:cpu:/\n");
    put(root, "memory.limit_in_bytes", "5000\n");
    put(root, "memory.usage_in_bytes", "4000\n");
    put(root, "memory.stat", "total_active_file 1000\ntotal_inactive_file 500\n");
    assert_int_equal(plat_cgroup_left(own, root), 5000 - 2500);
    /* version 1 writes this when there is no limit */
    put(inner, "memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(plat_cgroup_limit(own, root, file), 5000);
    assert_non_null(strstr(file, "/memory.limit_in_bytes"));
    put(root, "memory.limit_in_bytes", "9223372036854771712\n");
    assert_true(plat_cgroup_limit(own, root, file) == UINT64_MAX && file[0] == '\0');
    assert_true(plat_cgroup_left("no/such/file", root) == UINT64_MAX);
    put(root, "own", "0::/inner\n");
    put(inner, "memory.max", "9000\n");
    put(inner, "memory.high", "700\n");
    put(root, "memory.max", "max\n");
    assert_int_equal(plat_cgroup_left(own, root), 700 - 123);
    assert_int_equal(plat_cgroup_limit(own, root, file), 700);
    assert_non_null(strstr(file, "/inner/memory.high"));
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_memory_pressure(void **state)
{
    (void)state;
    static const char some[] = "some avg10=0.12 avg60=1.00 avg300=0.00 total=17338540\n"
                               "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
    static const char *const none[] = {"", "some", "some avg10=0.00\nfull total=5\n",
                                       "full total=5\n", "some total=\n", "some total=-3\n"};
    uint64_t us = 7;
    assert_true(plat_parse_stall(some, &us));
    assert_int_equal(us, 17338540);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_false(plat_parse_stall(none[i], &us));
    assert_int_equal(us, 17338540);

    char root[] = "/tmp/flashmoe-pressure-XXXXXX", inner[64], own[64], machine[64];
    assert_non_null(mkdtemp(root));
    (void)snprintf(inner, sizeof inner, "%s/inner", root);
    (void)snprintf(own, sizeof own, "%s/own", root);
    (void)snprintf(machine, sizeof machine, "%s/machine", root);
    assert_int_equal(mkdir(inner, 0700), 0);
    struct plat_pressure p;
    plat_group_pressure(own, root, machine, &p); /* no files exist */
    assert_true(p.stall_us == 0 && p.machine_stall_us == 0 && p.n_kills == 0 &&
                p.n_limit_hits == 0);
    put(root, "machine", some);
    put(root, "own", "0::/inner\n");
    put(inner, "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n");
    plat_group_pressure(own, root, machine, &p); /* a group without events is the root of all
                                                  * groups */
    assert_true(p.stall_us == 0 && p.machine_stall_us == 17338540);
    put(inner, "memory.events", "low 9\nhigh 1\nmax 20\noom 4\noom_kill 3\n");
    plat_group_pressure(own, root, machine, &p);
    assert_true(p.stall_us == 11 && p.machine_stall_us == 17338540);
    assert_true(p.n_kills == 3 && p.n_limit_hits == 21);
    put(root, "own", "6:memory_like:/\n5:hugetlb,memory:/inner\n4:cpu:/\n");
    put(inner, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    put(inner, "memory.failcnt", "77\n");
    plat_group_pressure(own, root, machine, &p);
    assert_true(p.stall_us == 0 && p.n_kills == 2 && p.n_limit_hits == 77);
    put(root, "own", "5:memory,hugetlb:/inner\n");
    plat_group_pressure(own, root, machine, &p);
    assert_int_equal(p.n_limit_hits, 77);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);

    const long n_before = mem_count();
    assert_true(plat_memory_pressure(&p));
    assert_true(p.own > 0 && p.own < plat_resident_bytes() && p.available > 0);
    assert_int_equal(mem_count(), n_before);
}

static void test_memory_is_given_back(void **state)
{
    (void)state;
    const uint64_t bytes = 64u << 20, half = bytes / 2;
    char *p = mem_new_bulk(bytes, "a test", NULL);
    assert_non_null(p);
    memset(p, 1, bytes);
    const uint64_t before = plat_resident_bytes();
    plat_give_back(p + half, half);
    assert_true(plat_resident_bytes() + half - (4u << 20) <= before);
    assert_int_equal(p[half - 1], 1);
    mem_free(p);
}

#else

static void test_cgroup_limits(void **state)
{
    (void)state;
    skip();
}

static void test_memory_pressure(void **state)
{
    (void)state;
    skip();
}

static void test_memory_is_given_back(void **state)
{
    (void)state;
    skip();
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_set_and_wrap),
        cmocka_unit_test(test_err_wrap_long_text_is_truncated),
        cmocka_unit_test(test_checked_sizes),
        cmocka_unit_test(test_nth_allocation_fails),
        cmocka_unit_test(test_bulk_memory_ends_in_small_pages),
        cmocka_unit_test(test_jdoc_messages_name_file_field_value),
        cmocka_unit_test(test_jdoc_numbers_beyond_integers),
        cmocka_unit_test(test_plat_reads_and_knows_the_machine),
        cmocka_unit_test(test_reads_are_work),
        cmocka_unit_test(test_replaced_file),
        cmocka_unit_test(test_cgroup_limits),
        cmocka_unit_test(test_memory_pressure),
        cmocka_unit_test(test_memory_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
