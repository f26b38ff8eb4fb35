#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cmocka.h>

#include "backend/machine.h"
#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe_lab.h"

static void count_pass(void *ctx)
{
    (*(unsigned *)ctx)++;
}

static void assert_speed(const struct fm_speed *speed)
{
    assert_true(speed->min > 0);
    assert_true(speed->min <= speed->median && speed->median <= speed->max);
}

static void test_read(void **state)
{
    (void)state;
    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        unsigned n_passes = 0;
        const struct machine_run run = {.n_threads = n_threads, .n_passes = 5,
                                        .pass_done = count_pass, .ctx = &n_passes};
        struct fm_speed speed;
        assert_int_equal(machine_measure_read(&run, 1000001, &speed, NULL), 0);
        assert_speed(&speed);
        assert_int_equal(n_passes, 5);
    }
    assert_true(machine_read_bytes(true) > 0);
    assert_true(machine_read_bytes(false) < plat_memory_total());
}

static void test_buffer(void **state)
{
    (void)state;
    const uint64_t mib = 1 << 20, much = 1ull << 40;
    assert_int_equal(machine_buffer_bytes(32 * mib, much, false), 1024 * mib);
    assert_int_equal(machine_buffer_bytes(32 * mib, much, true), 512 * mib);
    assert_int_equal(machine_buffer_bytes(300 * mib, much, false), 1200 * mib);
    assert_int_equal(machine_buffer_bytes(300 * mib, much, true), 1200 * mib);
    assert_int_equal(machine_buffer_bytes(300 * mib, 800 * mib, true), 100 * mib);
    assert_int_equal(machine_buffer_bytes(0, 0, false), 1024 * mib); /* sizes unknown */
}

/* A round is a thousand operations and takes a few microseconds. */
static uint64_t slow_peak(uint64_t n_rounds)
{
    for (uint64_t i = 0; i < n_rounds; i++)
        for (unsigned j = 0; j < 1000; j++)
            __asm__ __volatile__("" ::: "memory");
    return 1000 * n_rounds;
}

static void test_int8(void **state)
{
    (void)state;
    struct fm_speed speed;
    assert_int_equal(machine_measure_peak(&(struct machine_run){.n_threads = 2, .n_passes = 3},
                                          slow_peak, &speed, NULL), 0);
    assert_speed(&speed);
    assert_true(speed.median > 1e6);
}

static void test_faults(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_speed speed = {.median = 1};
    const struct machine_run none = {.n_passes = 5}, two = {.n_threads = 2, .n_passes = 5};
    assert_int_equal(machine_measure_read(&none, 4096, &speed, &err), FM_ERR_ARG);
    assert_true(speed.median == 0);
    assert_int_equal(machine_measure_peak(&none, slow_peak, &speed, &err), FM_ERR_ARG);
    for (long nth = 1; nth <= 4; nth++) {
        mem_fail_at(nth);
        assert_int_equal(machine_measure_read(&two, 4096, &speed, &err), FM_ERR_NOMEM);
        mem_fail_at(0);
    }
}

static void test_levels(void **state)
{
    (void)state;
    struct machine_level level, found;
    struct fm_error err;
    unsigned n_default = 0, n = 0;
    for (; machine_level(n, &level); n++) {
        n_default += level.is_default;
        assert_true(strlen(level.name) > 0 && strlen(level.needs) > 0);
        assert_int_equal(machine_level_find(level.name, &found, &err),
                         level.is_usable ? 0 : FM_ERR_UNSUPPORTED);
        assert_string_equal(found.name, level.name);
    }
    assert_true(n >= 1);
    assert_int_equal(n_default, 1);
    assert_int_equal(machine_level_find(NULL, &found, &err), 0);
    assert_true(found.is_default);
    assert_int_equal(machine_level_find("zzz", &found, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "'zzz'"));
    assert_non_null(strstr(err.text, "reference"));
}

#if defined(__x86_64__) && defined(__linux__)
static bool may_use_tiles(void)
{
    enum { ARCH_GET_XCOMP_PERM = 0x1022, XFEATURE_XTILEDATA = 18 };
    uint64_t permitted = 0;
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &permitted) == 0 &&
           (permitted >> XFEATURE_XTILEDATA & 1) != 0;
}

/* Must run first: a permission cannot be given back. */
static void test_only_use_asks_for_tiles(void **state)
{
    (void)state;
    struct machine_level level;
    struct fm_speed speed;
    for (unsigned i = 0; machine_level(i, &level); i++)
        ;
    (void)machine_level_find("amx", &level, NULL);
    assert_false(may_use_tiles());
    assert_int_equal(machine_level_use("amx", &level, NULL),
                     level.is_usable ? 0 : FM_ERR_UNSUPPORTED);
    assert_true(may_use_tiles() == level.is_usable);
    if (level.is_usable)
        assert_int_equal(machine_measure_peak(&(struct machine_run){.n_threads = 2, .n_passes = 1},
                                              level.int8_peak, &speed, NULL), 0);
}
#endif

/* Through the public interface, as `flashmoe doctor` does. */
static void test_public(void **state)
{
    (void)state;
    struct fm_machine_info info = {.size = sizeof info};
    struct fm_level_info level = {.size = sizeof level};
    struct fm_machine_speeds speeds = {.size = sizeof speeds};
    struct fm_error err;
    fm_machine_info(&info);
    assert_true(info.n_cores >= 1 && info.n_cores <= info.n_cpus);
    assert_true(info.memory_bytes > info.memory_available_bytes);
    assert_true(fm_machine_level(0, &level));
    assert_false(fm_machine_level(1000, &level));
    struct fm_machine_options options = {.size = sizeof options, .cpu = "zzz"};
    assert_int_equal(fm_machine_measure(&options, &speeds, &err), FM_ERR_ARG);
    options = (struct fm_machine_options){.size = sizeof options, .n_threads = 100000};
    assert_int_equal(fm_machine_measure(&options, &speeds, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "100000"));
    struct fm_model *model; /* the level is checked before the model is opened */
    const struct fm_model_options wrong = {.size = sizeof wrong, .cpu = "zzz"};
    assert_int_equal(fm_model_open("no/such", &wrong, &model, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "'zzz'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__) && defined(__linux__)
        cmocka_unit_test(test_only_use_asks_for_tiles),
#endif
        cmocka_unit_test(test_read),   cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_int8),   cmocka_unit_test(test_faults),
        cmocka_unit_test(test_levels), cmocka_unit_test(test_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
