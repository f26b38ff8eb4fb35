/* budget_use_test MODEL: checks that the parts of a budget, including the slots of the expert
 * cache, never add up to more than the budget, and that the rest is smaller than one slot. Tries
 * many budgets: when a model is opened, when its budget changes, and while keys and values take
 * more of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define MIB ((uint64_t)1 << 20)
#define CONTEXT 1024

static const char *model_path;

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static uint64_t sum_of(const struct fm_stats *s)
{
    return s->memory_program_bytes + s->memory_dense_bytes + s->memory_cache_bytes +
           s->memory_kv_bytes + s->memory_scratch_bytes;
}

/* The pool of slots grows and shrinks in pages of 2 MiB if slots are large. */
static void adds_up(const struct fm_model *model)
{
    struct fm_model_info info = {.size = sizeof info};
    struct fm_stats s = {.size = sizeof s};
    fm_model_info(model, &info);
    fm_model_stats(model, &s);
    const uint64_t n_all = (uint64_t)info.n_experts * info.n_moe_layers;
    if (sum_of(&s) > s.memory_budget_bytes)
        fail_msg("%llu slots: %llu bytes in a budget of %llu", (unsigned long long)s.n_cache_slots,
                 (unsigned long long)sum_of(&s), (unsigned long long)s.memory_budget_bytes);
    assert_true(s.n_cache_slots * info.expert_bytes <= s.memory_cache_bytes);
    assert_true(s.n_cache_slots >= (uint64_t)info.n_experts_per_token * info.n_moe_layers);
    assert_true(s.n_cache_slots <= n_all);
    if (s.n_cache_slots < n_all)
        assert_true(s.memory_budget_bytes - sum_of(&s) < info.expert_bytes + 2 * MIB);
}

static struct fm_model_options options_with(unsigned n_sessions, enum fm_choice elastic)
{
    struct fm_model_options options = {.size = sizeof options};
    options.n_threads = 2;
    options.n_sessions = n_sessions;
    options.n_context = CONTEXT;
    options.elastic = elastic;
    return options;
}

static uint64_t min_of(const struct fm_model_options *options)
{
    struct fm_model_options headers = *options;
    struct fm_error err = {0};
    struct fm_model *model;
    struct fm_plan plan = {.size = sizeof plan};
    headers.metadata_only = true;
    must(fm_model_open(model_path, &headers, &model, &err), &err);
    must(fm_model_plan(model, options, &plan, &err), &err);
    fm_model_close(model);
    return plan.min_bytes;
}

static void test_opened(void **state)
{
    (void)state;
    static const uint64_t more_kib[] = {512, 1024, 1100, 3000, 5000, 9000, 14000, 30000, 100000};
    struct fm_error err = {0};
    for (unsigned i = 0; i < 4 * sizeof more_kib / sizeof more_kib[0]; i++) {
        struct fm_model_options options = options_with(i % 2 == 0 ? 1 : 5,
                                                       i % 4 < 2 ? FM_OFF : FM_ON);
        struct fm_model *model;
        int rc = FM_ERR_BUDGET;
        /* A sanitizer delays freeing memory, so the program may need more by now. */
        for (uint64_t more = 0; rc == FM_ERR_BUDGET; more += 1024) {
            options.memory_bytes = 0;
            options.memory_bytes = min_of(&options) + 1024 * (more_kib[i / 4] + more);
            rc = fm_model_open(model_path, &options, &model, &err);
        }
        must(rc, &err);
        adds_up(model);
        fm_model_close(model);
    }
}

/* Keys and values take memory from the slots, and give it back. */
static void test_changed(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fm_model_options options = options_with(1, FM_OFF);
    struct fm_model *model;
    struct fm_session *session;
    struct fm_stats s = {.size = sizeof s};
    static int32_t ids[CONTEXT - 1];
    options.memory_bytes = min_of(&options) + 30 * MIB;
    must(fm_model_open(model_path, &options, &model, &err), &err);
    must(fm_session_open(model, &session, &err), &err);
    fm_model_stats(model, &s);
    for (uint64_t bytes = s.memory_max_bytes; bytes > s.memory_min_bytes; bytes -= 3 * MIB) {
        must(fm_model_set_memory(model, bytes, &err), &err);
        adds_up(model);
        if (bytes < s.memory_min_bytes + 3 * MIB)
            break;
    }
    must(fm_model_set_memory(model, s.memory_min_bytes + 8 * MIB, &err), &err);
    for (unsigned n = 1; n < CONTEXT; n *= 4) {
        const unsigned at = fm_session_position(session);
        must(fm_session_eval(session, ids, n - at, &err), &err);
        adds_up(model);
    }
    fm_session_reset(session);
    adds_up(model);
    fm_session_close(session);
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opened),
        cmocka_unit_test(test_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
