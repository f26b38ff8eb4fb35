/* kv_growth_test MODEL [few]: as positions are reached, keys and values take memory from the expert
 * cache, and give it back later. No bit changes, and the budget is never exceeded. What does not
 * fit is refused before anything is computed. MODEL has experts of several MiB and 4096 positions.
 * With `few` there is one answer in a tight budget instead of two, and the many rounds that show
 * that no memory leaks are left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/plat.h"
#include "flashmoe_lab.h"

#define BLOCK 256u
#define CONTEXT 4096u
#define MIB (1ull << 20)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_MEMORY true /* sanitizers use memory that is not counted */
#else
#define HAS_OWN_MEMORY false
#endif

static const char *path;
static bool runs_few;
static int32_t text[CONTEXT];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static struct fm_model_options options_for(unsigned n_sessions, unsigned n_context)
{
    struct fm_model_options options = {.size = sizeof options};
    options.n_sessions = n_sessions;
    options.n_context = n_context;
    options.n_marks = 2;
    options.prefill_chunk = 64;
    options.n_threads = 2;
    options.elastic = FM_OFF;
    return options;
}

static struct fm_stats stats_of(const struct fm_model *model)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(model, &stats);
    return stats;
}

/* Opens a model with the minimum budget plus `more`. Sanitizers' memory grows between planning and
 * opening, so with them the budget is lowered afterwards. */
static struct fm_model *open_tight(unsigned n_sessions, unsigned n_context, uint64_t more)
{
    struct fm_model_options options = options_for(n_sessions, n_context), headers = options;
    struct fm_model *model;
    struct fm_plan plan = {.size = sizeof plan};
    struct fm_error err = {0};
    headers.metadata_only = true;
    must(fm_model_open(path, &headers, &model, &err), &err);
    must(fm_model_plan(model, &options, &plan, &err), &err);
    fm_model_close(model);
    options.memory_bytes = HAS_OWN_MEMORY ? 4096 * MIB : plan.min_bytes + more;
    must(fm_model_open(path, &options, &model, &err), &err);
    if (HAS_OWN_MEMORY)
        must(fm_model_set_memory(model, stats_of(model).memory_min_bytes + more, &err), &err);
    for (unsigned i = 0; i < CONTEXT; i++)
        text[i] = (int32_t)((i * 2654435761u >> 9) % 16000);
    return model;
}

static struct fm_session *open_session(struct fm_model *model)
{
    struct fm_session *session;
    struct fm_error err = {0};
    must(fm_session_open(model, &session, &err), &err);
    return session;
}

static void within_budget(const struct fm_model *model)
{
    const struct fm_stats s = stats_of(model);
    const uint64_t sum = s.memory_program_bytes + s.memory_dense_bytes + s.memory_cache_bytes +
                         s.memory_kv_bytes + s.memory_scratch_bytes;
    assert_true(sum <= s.memory_budget_bytes);
    assert_true(HAS_OWN_MEMORY || plat_resident_bytes() <= s.memory_budget_bytes);
}

/* ---- growing in mid-answer ------------------------------------------------------------------ */

static void answer(struct fm_model *model, struct fm_session *s, char hash[33])
{
    struct fm_error err = {0};
    must(fm_session_eval(s, text, 500, &err), &err);
    within_budget(model);
    for (unsigned at = 500; at < 1100; at++) {
        must(fm_session_eval(s, text + at, 1, &err), &err);
        if (at % 50 == 0)
            within_budget(model);
    }
    must(fm_session_eval(s, text + 1100, 900, &err), &err);
    within_budget(model);
    fm_session_logits_hash(s, hash);
}

static void test_same_bits(void **state)
{
    (void)state;
    char whole[33], tight[33];
    struct fm_model *model = open_tight(1, CONTEXT, 512 * MIB);
    struct fm_session *s = open_session(model);
    answer(model, s, whole);
    fm_session_close(s);
    fm_model_close(model);
    model = open_tight(1, CONTEXT, 4 * MIB);
    s = open_session(model);
    const struct fm_stats before = stats_of(model);
    for (int round = 0; round < (runs_few ? 1 : 2); round++) {
        answer(model, s, tight);
        assert_string_equal(whole, tight);
        const struct fm_stats after = stats_of(model);
        assert_true(after.n_cache_slots + 15 < before.n_cache_slots);
        assert_true(after.memory_kv_bytes >= before.memory_kv_bytes + 7 * BLOCK * 1024);
        assert_int_equal(after.memory_budget_bytes, before.memory_budget_bytes);
        assert_int_equal(after.n_shrinks, before.n_shrinks); /* only budget changes count */
        fm_session_reset(s);
        assert_int_equal(stats_of(model).memory_kv_bytes, before.memory_kv_bytes);
        assert_true(stats_of(model).n_cache_slots + 1 >= before.n_cache_slots);
    }
    print_message("%llu experts at first\n", (unsigned long long)before.n_cache_slots);
    fm_session_close(s);
    fm_model_close(model);
}

/* ---- no more room --------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    char hash[33], expected[33];
    struct fm_error err = {0};
    struct fm_model *model = open_tight(2, CONTEXT, 3 * MIB);
    struct fm_session *s = open_session(model), *other = open_session(model);
    must(fm_session_eval(s, text, 300, &err), &err);
    must(fm_session_eval(other, text, 300, &err), &err);
    fm_session_logits_hash(s, expected);
    const struct fm_stats before = stats_of(model);
    assert_int_equal(fm_session_eval(s, text + 300, 3000, &err), FM_ERR_BUDGET);
    print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, "3300 positions take 3.2 MiB"));
    assert_non_null(strstr(err.text, "--memory"));
    assert_non_null(strstr(err.text, "--context"));
    assert_int_equal(err.code, FM_ERR_BUDGET);
    assert_int_equal(fm_session_position(s), 300);
    assert_non_null(fm_session_logits(s));
    fm_session_logits_hash(s, hash);
    assert_string_equal(hash, expected);
    assert_int_equal(stats_of(model).memory_kv_bytes, before.memory_kv_bytes);
    assert_int_equal(stats_of(model).n_cache_slots, before.n_cache_slots);
    /* Another session in the same batch continues. */
    struct fm_batch_item both[] = {{s, text + 300, 3000, 0}, {other, text + 300, 5, 0}};
    assert_int_equal(fm_eval_batch(model, both, 2, &err), FM_ERR_BUDGET);
    assert_non_null(strstr(err.text, "3300 positions"));
    assert_int_equal(both[0].rc, FM_ERR_BUDGET);
    assert_int_equal(both[1].rc, 0);
    assert_int_equal(fm_session_position(s), 300);
    assert_int_equal(fm_session_position(other), 305);
    must(fm_session_eval(s, text + 300, 5, &err), &err);
    fm_session_logits_hash(s, hash);
    fm_session_logits_hash(other, expected);
    assert_string_equal(hash, expected);
    within_budget(model);
    fm_session_close(s);
    fm_session_close(other);
    fm_model_close(model);
}

/* A smaller budget without room for the sessions is refused as well. */
static void test_set_memory(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fm_model *model = open_tight(1, CONTEXT, 8 * MIB);
    struct fm_session *s = open_session(model);
    const uint64_t min = stats_of(model).memory_min_bytes;
    must(fm_session_eval(s, text, 1000, &err), &err);
    assert_int_equal(stats_of(model).memory_min_bytes, min + 3 * BLOCK * 1024);
    assert_int_equal(fm_model_set_memory(model, min, &err), FM_ERR_BUDGET);
    must(fm_model_set_memory(model, stats_of(model).memory_min_bytes, &err), &err);
    within_budget(model);
    must(fm_session_eval(s, text + 1000, 24, &err), &err); /* to the end of its block */
    assert_int_equal(fm_session_eval(s, text + 1024, 1, &err), FM_ERR_BUDGET);
    fm_session_reset(s);
    must(fm_session_eval(s, text, 1000, &err), &err);
    must(fm_model_set_memory(model, UINT64_MAX, &err), &err);
    must(fm_session_eval(s, text + 1000, 2000, &err), &err);
    within_budget(model);
    fm_session_close(s);
    fm_model_close(model);
}

/* The longest context that fits is chosen, and it does fit. */
static void test_default_context(void **state)
{
    (void)state;
    struct fm_error err = {0};
    if (HAS_OWN_MEMORY)
        return; /* the budget must be known when the model opens */
    struct fm_model *model = open_tight(1, 0, 3 * MIB);
    struct fm_session *s = open_session(model);
    const unsigned n = stats_of(model).n_context;
    print_message("%u positions\n", n);
    assert_true(n % BLOCK == 0 && n > 2 * BLOCK && n < 12 * BLOCK);
    must(fm_session_eval(s, text, n, &err), &err);
    within_budget(model);
    assert_int_equal(fm_session_eval(s, text, 1, &err), FM_ERR_ARG);
    fm_session_close(s);
    fm_model_close(model);
    model = open_tight(1, 0, 64 * MIB);
    assert_int_equal(stats_of(model).n_context, CONTEXT);
    fm_model_close(model);
}

#define N_ROUNDS 24u
#define LARGE_PAGE (2 * MIB)

/* ---- again and again ------------------------------------------------------------------------ */

static void go_round(struct fm_model *model, unsigned round, const char *file)
{
    struct fm_error err = {0};
    struct fm_session *s[3];
    const unsigned n = 1 + round * 613 % 1200;
    for (unsigned i = 0; i < 3; i++) {
        s[i] = open_session(model);
        const int rc = fm_session_eval(s[i], text, n / (i + 1) + 1, &err);
        assert_true(rc == 0 || rc == FM_ERR_BUDGET);
        within_budget(model);
        if (rc == 0 && i == 0)
            must(fm_session_save(s[0], file, &err), &err);
    }
    fm_session_reset(s[0]);
    const int rc = fm_session_load(s[0], file, &err); /* takes blocks too */
    assert_true(rc == 0 || rc == FM_ERR_BUDGET);
    assert_true((rc == 0) == (fm_session_position(s[0]) > 0));
    within_budget(model);
    (void)fm_session_rewind(s[1], text, 40);
    within_budget(model);
    for (unsigned i = 0; i < 3; i++)
        fm_session_close(s[i]);
}

static void test_many_rounds(void **state)
{
    (void)state;
    char file[64];
    /* Maximum resident memory, in the first quarter of the rounds and later. The system may turn
     * small pages into a large one at any time. A block leaked in every round is more than that. */
    uint64_t max[2] = {0, 0};
    struct fm_model *model = open_tight(3, CONTEXT, 4 * MIB);
    const struct fm_stats before = stats_of(model);
    (void)snprintf(file, sizeof file, "kv-test-%d.fmsnap", (int)getpid());
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        go_round(model, round, file);
        const struct fm_stats after = stats_of(model);
        assert_int_equal(after.memory_kv_bytes, before.memory_kv_bytes);
        assert_true(after.n_cache_slots + 1 >= before.n_cache_slots);
        const uint64_t resident = plat_resident_bytes();
        uint64_t *part = &max[round >= N_ROUNDS / 4];
        *part = resident > *part ? resident : *part;
    }
    print_message("%llu KiB resident at first, %llu later\n", (unsigned long long)max[0] / 1024,
                  (unsigned long long)max[1] / 1024);
    assert_true(HAS_OWN_MEMORY || max[1] <= max[0] + LARGE_PAGE + MIB / 2);
    (void)unlink(file);
    fm_model_close(model);
}

/* A snapshot that does not fit is refused, and its file stays. */
static void test_snapshot(void **state)
{
    (void)state;
    char file[64];
    struct fm_error err = {0};
    (void)snprintf(file, sizeof file, "kv-test-%d.fmsnap", (int)getpid());
    struct fm_model *model = open_tight(1, CONTEXT, 8 * MIB);
    struct fm_session *s = open_session(model);
    must(fm_session_eval(s, text, 2000, &err), &err);
    must(fm_session_save(s, file, &err), &err);
    fm_session_close(s);
    fm_model_close(model);
    model = open_tight(1, CONTEXT, MIB);
    s = open_session(model);
    const uint64_t before = stats_of(model).memory_kv_bytes;
    assert_int_equal(fm_session_load(s, file, &err), FM_ERR_BUDGET);
    assert_non_null(strstr(err.text, "2000 positions"));
    assert_int_equal(fm_session_position(s), 0);
    assert_int_equal(stats_of(model).memory_kv_bytes, before);
    must(fm_session_eval(s, text, 200, &err), &err);
    fm_session_close(s);
    fm_model_close(model);
    assert_int_equal(unlink(file), 0);
}

int main(int argc, char **argv)
{
    runs_few = argc == 3 && strcmp(argv[2], "few") == 0;
    if (argc != 2 && !runs_few)
        return 2;
    path = argv[1];
    const struct CMUnitTest few[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_set_memory),      cmocka_unit_test(test_default_context),
        cmocka_unit_test(test_snapshot),
    };
    const struct CMUnitTest rounds[] = {cmocka_unit_test(test_many_rounds)};
    const int n_failed = cmocka_run_group_tests(few, NULL, NULL);
    return n_failed + (runs_few ? 0 : cmocka_run_group_tests(rounds, NULL, NULL));
}
