/* The arithmetic of the limit, worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "apps/bench/as_asked.h"
#include "apps/bench/limit.h"

/* A = 100, D = 50, KV = 2 per position, state 5: 20 experts of 5 bytes. */
static const struct fm_model_info info = {
    .size = sizeof info,
    .n_experts_per_token = 4, .n_moe_layers = 5, .expert_token_bytes = 100,
    .dense_token_bytes = 50, .kv_position_bytes = 2, .state_bytes = 5,
    .mul_adds_per_position = 40,
};

static void same(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-12 * fabs(b));
}

static void test_bounds(void **state)
{
    (void)state;
    struct limit_load load = limit_load_of(&info, 10, 30);
    same(load.kv_bytes, 30);
    load.disk_per_s = 60;
    load.memory_per_s = 960;
    struct limit limit;
    limit_of(&load, 1, &limit);
    same(limit.memory_bytes, 100 + 50 + 30 + 60);
    same(limit.io_s, 0.5);
    same(limit.ram_s, 0.25);
    assert_int_equal(limit.bound, LIMIT_DISK);
    same(limit.max_per_s, 2);
    same(limit.min_per_s, 1 / 0.75);
    same(limit.percent, 50);
    load.memory_per_s = 240;
    limit_of(&load, 0, &limit);
    assert_int_equal(limit.bound, LIMIT_MEMORY);
    same(limit.max_per_s, 1);
    assert_true(limit.percent == 0);
}

static void test_unknown_speeds(void **state)
{
    (void)state;
    struct limit_load load = limit_load_of(&info, 0, 30);
    struct limit limit;
    load.memory_per_s = 100;
    limit_of(&load, 1, &limit);
    assert_true(limit.io_s < 0 && limit.max_per_s == 0 && limit.percent == 0);
    load.miss_bytes = 0; /* then the disk does not matter */
    limit_of(&load, 1, &limit);
    assert_true(limit.io_s == 0 && limit.bound == LIMIT_MEMORY);
    same(limit.max_per_s, 100.0 / 160);
    load.memory_per_s = 0;
    limit_of(&load, 1, &limit);
    assert_true(limit.max_per_s == 0);
}

/* Reads ahead that were never used are not in the limit; positions count from the first token's. */
static void test_between(void **state)
{
    (void)state;
    const struct fm_stats before = {.size = sizeof before,
                                    .n_decode_tokens = 10, .decode_ns = 1000, .bytes_read = 500,
                                    .n_guesses = 7, .n_guesses_used = 6};
    struct fm_stats after = {.size = sizeof after,
                             .n_decode_tokens = 15, .decode_ns = 2000001000, .bytes_read = 700,
                             .n_guesses = 19, .n_guesses_used = 8};
    const struct limit_speeds slow = {.disk = 15, .memory = 1000};
    struct limit limit;
    limit_between(&before, &after, &info, 8, &(struct limit_speeds){.disk = 150, .memory = 1000},
                  &limit);
    same(limit.load.miss_bytes, (200 - 10 * 5) / 5.0);
    same(limit.load.kv_bytes, 2 * 10 + 10);
    same(limit.tok_per_s, 2.5);
    same(limit.memory_bytes, 100 + 50 + 30 + 60);
    same(limit.io_s, 0.2);
    same(limit.ram_s, 0.24);
    same(limit.percent, 60);
    after.n_guesses_used = 100; /* guessed earlier, used now */
    limit_between(&before, &after, &info, 8, &slow, &limit);
    same(limit.load.miss_bytes, 40);
    after = before;
    limit_between(&before, &after, &info, 8, &slow, &limit);
    assert_true(limit.tok_per_s == 0 && limit.load.miss_bytes == 0);
    same(limit.load.kv_bytes, 2 * 8 + 10);
}

/* A layer waits for its own experts: 4 layers per token miss 1.5 experts of 10 bytes each. */
static void test_as_asked(void **state)
{
    (void)state;
    const struct fm_stats before = {.size = sizeof before};
    struct fm_stats after = {.size = sizeof after, .n_decode_tokens = 10,
                             .decode_ns = 50000000000, .bytes_read = 600, .n_expert_misses = 60,
                             .n_layers_read = 40};
    struct fm_disk_speeds disk = {.size = sizeof disk, .expert_bytes = 10,
                                  .read = {.median = 1000},
                                  .one = {.median = 200}, .two = {.median = 250}};
    struct limit limit;
    struct as_asked asked;
    char text[AS_ASKED_BYTES];
    limit_between(&before, &after, &info, 8, &(struct limit_speeds){.disk = 1000, .memory = 6000},
                  &limit);
    as_asked_of(&before, &after, &disk, &limit, &asked);
    same(asked.n_layers, 4);
    same(asked.n_experts, 1.5);
    same(asked.io_s, 4 * (0.05 + 0.5 * (0.08 - 0.05)));
    same(asked.disk_per_s, 60 / asked.io_s);
    same(asked.max_per_s, 1 / asked.io_s);
    same(asked.percent, 100 * 0.2 * asked.io_s);
    assert_non_null(strstr(as_asked_text(&asked, text), "4.0 layers per token read 1.5 experts"));
    after.n_expert_misses = 160; /* four, two of them at full speed */
    as_asked_of(&before, &after, &disk, &limit, &asked);
    same(asked.io_s, 4 * (2 * 10 / 250.0 + 2 * 10 / 1000.0));
    limit_between(&before, &after, &info, 8, &(struct limit_speeds){.disk = 1000, .memory = 60},
                  &limit); /* memory binds */
    as_asked_of(&before, &after, &disk, &limit, &asked);
    same(asked.max_per_s, limit.max_per_s);
    after.n_guesses = 1;
    as_asked_of(&before, &after, &disk, &limit, &asked);
    assert_true(asked.max_per_s == 0);
    after.n_guesses = 0;
    disk.one.median = 0;
    as_asked_of(&before, &after, &disk, &limit, &asked);
    assert_true(asked.max_per_s == 0);
    json_t *json = as_asked_json(&asked);
    assert_true(json_is_null(json));
    json_decref(json);
}

/* Attention's arithmetic overlaps with memory, but may take longer. It is not the processor's if
 * there is a GPU, and takes no time if its speed was not measured. */
static void test_arithmetic(void **state)
{
    (void)state;
    struct limit_load load = limit_load_of(&info, 10, 30);
    struct limit limit;
    char text[LIMIT_TEXT_BYTES];
    limit_set_speeds(&load, &(struct limit_speeds){.disk = 60, .memory = 960, .mul_adds = 500});
    limit_of(&load, 0.5, &limit);
    same(limit.load.mul_adds, 400);
    same(limit.fma_s, 0.8);
    same(limit.ram_s, 0.25);
    assert_int_equal(limit.bound, LIMIT_ARITHMETIC);
    same(limit.max_per_s, 1 / 0.8);
    same(limit.min_per_s, 1 / 1.3);
    same(limit.percent, 40);
    same(limit.memory_percent, 12.5);
    assert_non_null(strstr(limit_text(&limit, text), "bound by arithmetic: 500 ms of disk (30 B), "
                           "250 ms of memory (240 B) and 800 ms of arithmetic"));
    json_t *json = limit_json(&limit);
    assert_string_equal(json_string_value(json_object_get(json, "bound_by")), "arithmetic");
    same(json_real_value(json_object_get(json, "t_fma_s")), 0.8);
    same(json_real_value(json_object_get(json, "memory_percent")), 12.5);
    json_decref(json);
    load.mul_adds_per_s = 2000;
    limit_of(&load, 0.5, &limit);
    assert_int_equal(limit.bound, LIMIT_DISK);
    same(limit.min_per_s, 1 / 0.75);
    load.mul_adds_per_s = 0;
    limit_of(&load, 0.5, &limit);
    assert_true(limit.fma_s == 0 && limit.bound == LIMIT_DISK);
    json = limit_json(&limit);
    assert_true(json_is_null(json_object_get(json, "t_fma_s")));
    json_decref(json);
}

/* The GPU computes what the processor does not; what is sent passes both memories and the link. */
static void test_gpu(void **state)
{
    (void)state;
    const struct fm_stats before = {.size = sizeof before, .gpu_budget_bytes = 1,
                                    .n_experts_computed = 3, .n_experts_sent = 5,
                                    .n_experts_moved_up = 2, .n_experts_moved_down = 2};
    struct fm_stats after = {.size = sizeof after, .gpu_budget_bytes = 1, .n_decode_tokens = 5,
                             .decode_ns = 5000000000, .bytes_read = 50,
                             .n_experts_computed = 13, .n_experts_sent = 16,
                             .n_experts_moved_up = 4, .n_experts_moved_down = 4};
    const struct limit_speeds speeds = {.disk = 100, .memory = 90, .gpu = 1000, .link = 50};
    struct limit limit;
    char text[LIMIT_TEXT_BYTES];
    limit_between(&before, &after, &info, 8, &speeds, &limit);
    same(limit.load.host_bytes, 10 * 5 / 5.0);
    same(limit.load.link_bytes, (11 + 2 + 2) * 5 / 5.0);
    same(limit.memory_bytes, 10 + 15 + 2 * 10);
    same(limit.gpu_bytes, 100 + 50 + 30 - 10 + 15);
    same(limit.io_s, 0.1);
    same(limit.ram_s, 0.5);
    same(limit.gpu_s, 0.185);
    same(limit.link_s, 0.3);
    assert_int_equal(limit.bound, LIMIT_MEMORY);
    same(limit.max_per_s, 2);
    same(limit.min_per_s, 1 / 1.085);
    assert_non_null(strstr(limit_text(&limit, text), "300 ms of the link to it (15 B), 500 ms of"));
    assert_non_null(strstr(text, "without overlap")); /* the whole sentence fits */
    json_t *json = limit_json(&limit);
    same(json_real_value(json_object_get(json, "t_link_s")), 0.3);
    json_decref(json);
    struct limit_load load = limit.load;
    load.link_per_s = 10;
    limit_of(&load, 1, &limit);
    assert_int_equal(limit.bound, LIMIT_LINK);
    load.gpu_per_s = 0; /* not measured */
    limit_of(&load, 1, &limit);
    assert_true(limit.max_per_s == 0);
    assert_non_null(strstr(limit_text(&limit, text), "unknown: "));
    after.n_experts_computed = 1000;
    limit_between(&before, &after, &info, 8, &speeds, &limit);
    same(limit.load.host_bytes, 100);
}

static void test_shown(void **state)
{
    (void)state;
    struct limit_load load = limit_load_of(&info, 0, 30);
    struct limit limit;
    char text[LIMIT_TEXT_BYTES];
    limit_of(&load, 1, &limit);
    assert_non_null(strstr(limit_text(&limit, text), "unknown: "));
    json_t *json = limit_json(&limit);
    assert_true(json_is_null(json_object_get(json, "percent")));
    assert_true(json_is_null(json_object_get(json, "bound_by")));
    json_decref(json);
    load.disk_per_s = 60;
    load.memory_per_s = 960;
    limit_of(&load, 1, &limit);
    assert_non_null(strstr(limit_text(&limit, text), "50.0% of 2.00 tok/s, bound by the disk"));
    json = limit_json(&limit);
    assert_string_equal(json_string_value(json_object_get(json, "bound_by")), "disk");
    same(json_real_value(json_object_get(json, "t_io_s")), 0.5);
    json_decref(json);
}

/* Measurements vary by a few percent. A larger excess is not a share of anything. */
static void test_exceeded(void **state)
{
    (void)state;
    static const double speeds[] = {2.1, 2.11, 4.38, 2000};
    struct limit_load load = limit_load_of(&info, 0, 30);
    struct limit limit;
    char text[LIMIT_TEXT_BYTES];
    load.disk_per_s = 60;
    load.memory_per_s = 960;
    for (unsigned i = 0; i < 4; i++) {
        limit_of(&load, speeds[i], &limit);
        assert_int_equal(limit.is_exceeded, i > 0);
        assert_true(i == 0 ? limit.percent > 104.9 : limit.percent == 0);
        same(limit.max_per_s, 2);
        (void)limit_text(&limit, text);
        assert_int_equal(strstr(text, "busy") != NULL, i > 0);
        assert_int_equal(strstr(text, "105.0% of") != NULL, i == 0);
        assert_int_equal(strchr(text, '%') != NULL, i == 0);
        assert_non_null(strstr(text, "2.00 tok/s, bound by the disk"));
        assert_non_null(strstr(text, "without overlap")); /* the whole sentence fits */
        json_t *json = limit_json(&limit);
        assert_int_equal(json_is_null(json_object_get(json, "percent")), i > 0);
        assert_int_equal(json_is_true(json_object_get(json, "was_busy")), i > 0);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_unknown_speeds),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_as_asked), cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_shown),
        cmocka_unit_test(test_exceeded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
