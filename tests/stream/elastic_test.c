/* elastic_test MODEL: lowers and raises a budget during an answer. The memory is really freed,
 * stays within the budget, and no bit of the answer changes. A budget that is impossible is refused
 * and changes nothing. MODEL has several MiB of experts. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "base/plat.h"
#include "flashmoe_lab.h"

#define N_TOKENS 24
#define MIB (1ull << 20)

static const char *path;

static struct fm_model *open_model(uint64_t memory, enum fm_choice elastic, struct fm_session **s)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_error err = {0};
    options.memory_bytes = memory;
    options.elastic = elastic;
    options.n_context = 512;
    options.prefill_chunk = 64;
    options.n_threads = 2;
    if (fm_model_open(path, &options, &model, &err) != 0 || fm_session_open(model, s, &err) != 0)
        fail_msg("%s", err.text);
    return model;
}

static void set_memory(struct fm_model *model, uint64_t bytes)
{
    struct fm_error err = {0};
    if (fm_model_set_memory(model, bytes, &err) != 0)
        fail_msg("%s", err.text);
}

/* Evaluates a prompt that uses nearly all experts, so that every slot is filled, then greedy
 * tokens. */
static void answer(struct fm_model *model, struct fm_session *session, const uint64_t *budgets,
                   unsigned n_budgets, char hash[33])
{
    struct fm_error err = {0};
    struct fm_model_info info = {.size = sizeof info};
    int32_t ids[160];
    fm_model_info(model, &info);
    for (unsigned i = 0; i < 160; i++)
        ids[i] = (int32_t)((i * 2654435761u >> 7) % info.vocabulary);
    fm_session_reset(session);
    if (fm_session_eval(session, ids, 160, &err) != 0)
        fail_msg("%s", err.text);
    for (unsigned n = 0; n < N_TOKENS; n++) {
        const float *logits = fm_session_logits(session);
        int32_t best = 0;
        for (unsigned i = 1; i < info.vocabulary; i++)
            best = logits[i] > logits[best] ? (int32_t)i : best;
        if (n_budgets > 0)
            set_memory(model, budgets[n % n_budgets]);
        if (fm_session_eval(session, &best, 1, &err) != 0)
            fail_msg("%s", err.text);
    }
    fm_session_logits_hash(session, hash);
}

static void test_memory_is_given_back(void **state)
{
    (void)state;
    struct fm_session *session;
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_error err;
    char first[33], second[33];
    struct fm_model *model = open_model(0, FM_OFF, &session);
    answer(model, session, NULL, 0, first);
    fm_model_stats(model, &stats);
    const uint64_t slots = stats.n_cache_slots;
    const uint64_t full = plat_resident_bytes(), min = stats.memory_min_bytes;
    const uint64_t used = stats.memory_program_bytes + stats.memory_dense_bytes +
                          stats.memory_cache_bytes + stats.memory_kv_bytes +
                          stats.memory_scratch_bytes;
    for (unsigned i = 0; i < 8; i++) {
        const uint64_t budget = min + (used - min) * (7 - i) / 8;
        set_memory(model, budget);
        fm_model_stats(model, &stats);
        assert_int_equal(stats.memory_budget_bytes, budget);
        assert_true(stats.n_cache_slots < slots);
        /* Sanitizers use memory of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        assert_true(plat_resident_bytes() <= budget);
        answer(model, session, NULL, 0, second);
        assert_true(plat_resident_bytes() <= budget);
        assert_string_equal(first, second);
#endif
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(plat_resident_bytes() + (used - min) / 2 < full);
#endif
    assert_int_equal(fm_model_set_memory(model, min - 1, &err), FM_ERR_BUDGET);
    assert_non_null(strstr(err.text, "needs at least"));
    set_memory(model, UINT64_MAX);
    fm_model_stats(model, &stats);
    assert_int_equal(stats.n_cache_slots, slots);
    assert_int_equal(stats.memory_budget_bytes, stats.memory_max_bytes);
    answer(model, session, NULL, 0, second);
    assert_string_equal(first, second);
    fm_session_close(session);
    fm_model_close(model);
    printf("resident %.1f MiB with %llu experts, %.1f MiB is the least\n", (double)full / MIB,
           (unsigned long long)slots, (double)min / MIB);
}

/* The answer is the same with another budget before every token. */
static void test_in_mid_answer(void **state)
{
    (void)state;
    struct fm_session *session;
    struct fm_stats stats = {.size = sizeof stats};
    char first[33], second[33];
    struct fm_model *model = open_model(0, FM_ON, &session);
    answer(model, session, NULL, 0, first);
    fm_model_stats(model, &stats);
    const uint64_t min = stats.memory_min_bytes;
    const uint64_t budgets[] = {min, UINT64_MAX, min + 9 * MIB, min + 4 * MIB, UINT64_MAX};
    answer(model, session, budgets, 5, second);
    assert_string_equal(first, second);
    fm_model_stats(model, &stats);
    assert_true(stats.n_shrinks >= N_TOKENS / 5 && stats.n_grows >= N_TOKENS / 5);
    fm_session_close(session);
    fm_model_close(model);
}

/* The reported minimum is enough. Memory outside the model may grow by some pages meanwhile. */
static void test_min_is_enough(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fm_model *model;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_plan plan = {.size = sizeof plan};
    options.metadata_only = true; /* no threads, whose stacks would grow */
    options.n_context = 512;
    assert_int_equal(fm_model_open(path, &options, &model, &err), 0);
    int rc = FM_ERR_BUDGET;
    for (unsigned i = 0; i < 10 && rc == FM_ERR_BUDGET; i++) {
        options.memory_bytes = MIB;
        assert_int_equal(fm_model_plan(model, &options, &plan, &err), FM_ERR_BUDGET);
        options.memory_bytes = plan.min_bytes;
        rc = fm_model_plan(model, &options, &plan, &err);
    }
    if (rc != 0)
        fail_msg("%s", err.text);
    assert_int_equal(plan.memory_budget_bytes, options.memory_bytes);
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_given_back),
        cmocka_unit_test(test_in_mid_answer),
        cmocka_unit_test(test_min_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
