/* stage_budget_test MODEL: the budgets and threads of an engine cut into three stages, one of which
 * has no experts. MODEL has four layers, and layer 1 is dense. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/plat.h"
#include "engine/streaming.h"
#include "flashmoe_lab.h"

#define MIB ((uint64_t)1 << 20)
#define N_STAGES 3
#define CONTEXT 2048

static const char *model_path;

/* ---- the machine's memory, as the engine sees it --------------------------------------------- */

static struct {
    bool is_faked;
    uint64_t own, available;
} machine;

bool __real_plat_memory_pressure(struct plat_pressure *out);
bool __wrap_plat_memory_pressure(struct plat_pressure *out);

bool __wrap_plat_memory_pressure(struct plat_pressure *out)
{
    if (!machine.is_faked)
        return __real_plat_memory_pressure(out);
    *out = (struct plat_pressure){.own = machine.own, .available = machine.available};
    return true;
}

/* ---- helpers --------------------------------------------------------------------------------- */

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static struct fm_model *open_cut(const uint64_t memory[N_STAGES],
                                 const unsigned n_threads[N_STAGES], unsigned n_context,
                                 enum fm_choice elastic)
{
    static const unsigned n_layers[N_STAGES] = {1, 1, 2};
    struct fm_stage_options stages[N_STAGES];
    const struct fm_model_options options = {.size = sizeof options, .n_context = n_context,
                                             .elastic = elastic, .stages = stages,
                                             .n_stages = N_STAGES};
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    for (unsigned i = 0; i < N_STAGES; i++)
        stages[i] = (struct fm_stage_options){.size = sizeof stages[i], .n_layers = n_layers[i],
                                              .memory_bytes = memory[i],
                                              .n_threads = n_threads[i]};
    must(fm_model_open(model_path, &options, &model, &err), &err);
    return model;
}

static struct fm_stats stats_of(const struct fm_model *model)
{
    struct fm_stats s = {.size = sizeof s};
    assert_int_equal(fm_model_stats(model, &s), 0);
    return s;
}

static uint64_t sum_of(const struct fm_stats *s)
{
    return s->memory_program_bytes + s->memory_dense_bytes + s->memory_cache_bytes +
           s->memory_kv_bytes + s->memory_scratch_bytes;
}

static const uint64_t ample[N_STAGES] = {256 * MIB, 256 * MIB, 256 * MIB};
static const unsigned one_thread[N_STAGES] = {1, 1, 1};

/* ---- tests ----------------------------------------------------------------------------------- */

/* Stages compute one after the other, so the number is that of the stage with the most threads. */
static void test_threads(void **state)
{
    static const unsigned n_threads[][N_STAGES] = {{1, 1, 1}, {3, 1, 2}, {1, 3, 2}, {1, 2, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof n_threads / sizeof n_threads[0]; i++) {
        struct fm_model *model = open_cut(ample, n_threads[i], 256, FM_OFF);
        assert_int_equal(stats_of(model).n_threads, i == 0 ? 1 : 3);
        fm_model_close(model);
    }
}

/* A stage whose budget exceeds what it can use takes nothing that another stage needs: a budget
 * with room for every expert holds every expert, whichever stage was given too much. */
static void test_idle_memory(void **state)
{
    (void)state;
    for (unsigned large = 0; large < N_STAGES; large++) {
        uint64_t memory[N_STAGES] = {64 * MIB, 64 * MIB, 64 * MIB};
        struct fm_error err = {0};
        memory[large] = 2048 * MIB;
        struct fm_model *model = open_cut(memory, one_thread, 256, FM_OFF);
        const struct fm_stats all = stats_of(model);
        assert_int_equal(all.n_cache_slots, 3 * 16);
        must(fm_model_set_memory(model, all.memory_min_bytes, &err), &err);
        const struct fm_stats few = stats_of(model);
        assert_int_equal(few.n_cache_slots, 3 * 4);
        const uint64_t room = all.memory_cache_bytes - few.memory_cache_bytes;
        must(fm_model_set_memory(model, all.memory_min_bytes + room, &err), &err);
        const struct fm_stats now = stats_of(model);
        assert_int_equal(now.n_cache_slots, 3 * 16);
        assert_int_equal(now.memory_budget_bytes, all.memory_min_bytes + room);
        assert_true(sum_of(&now) <= now.memory_budget_bytes);
        must(fm_model_set_memory(model, all.memory_max_bytes, &err), &err);
        assert_int_equal(stats_of(model).memory_budget_bytes, all.memory_budget_bytes);
        fm_model_close(model);
    }
}

/* The budget that remains can hold keys and values of every stage, also of one without experts. */
static void test_keys_and_values(void **state)
{
    static const uint64_t memory[N_STAGES] = {2048 * MIB, 64 * MIB, 64 * MIB};
    static int32_t ids[CONTEXT - 1];
    struct fm_error err = {0};
    (void)state;
    struct fm_model *model = open_cut(memory, one_thread, CONTEXT, FM_OFF);
    const struct fm_stats open = stats_of(model);
    const uint64_t more = open.memory_kv_max_bytes - open.memory_kv_bytes;
    const uint64_t slots = open.memory_cache_bytes;
    struct fm_session *session;
    must(fm_session_open(model, &session, &err), &err);
    must(fm_model_set_memory(model, open.memory_min_bytes + slots + more, &err), &err);
    assert_int_equal(stats_of(model).n_cache_slots, 3 * 16);
    must(fm_session_eval(session, ids, CONTEXT - 1, &err), &err);
    const struct fm_stats full = stats_of(model);
    assert_int_equal(full.memory_kv_bytes, open.memory_kv_max_bytes);
    assert_true(sum_of(&full) <= full.memory_budget_bytes);
    fm_session_close(session);
    fm_model_close(model);
}

/* A budget with the fewest experts and full sessions has room for them in every stage, however
 * unequal the stages' shares are: those that have more give it to one that needs it. */
static void test_keys_and_values_take_from_others(void **state)
{
    static int32_t ids[CONTEXT - 1];
    (void)state;
    for (unsigned large = 0; large < N_STAGES; large++) {
        uint64_t memory[N_STAGES] = {64 * MIB, 64 * MIB, 64 * MIB};
        struct fm_error err = {0};
        struct fm_session *session;
        memory[large] = 2048 * MIB;
        struct fm_model *model = open_cut(memory, one_thread, CONTEXT, FM_OFF);
        must(fm_session_open(model, &session, &err), &err);
        const struct fm_stats open = stats_of(model);
        const uint64_t least =
            open.memory_min_bytes + open.memory_kv_max_bytes - open.memory_kv_bytes;
        must(fm_model_set_memory(model, least, &err), &err);
        must(fm_session_eval(session, ids, CONTEXT - 1, &err), &err);
        const struct fm_stats full = stats_of(model);
        assert_int_equal(full.memory_kv_bytes, open.memory_kv_max_bytes);
        assert_int_equal(full.memory_budget_bytes, least);
        assert_true(sum_of(&full) <= least);
        fm_session_close(session);
        fm_model_close(model);
    }
}

/* Under memory pressure every stage shrinks to its minimum. When memory is free again, keys and
 * values raise the budget in every stage, also in one without experts. */
static void test_keys_and_values_after_pressure(void **state)
{
    static int32_t ids[CONTEXT - 1];
    struct fm_error err = {0};
    struct fm_session *session;
    (void)state;
    machine.is_faked = true;
    machine.own = 64 * MIB;
    machine.available = 64 * 1024 * MIB;
    struct fm_model *model = open_cut(ample, one_thread, CONTEXT, FM_ON);
    must(fm_session_open(model, &session, &err), &err);
    machine.available = 0;
    must(fm_session_eval(session, ids, 1, &err), &err);
    const struct fm_stats shrunk = stats_of(model);
    assert_int_equal(shrunk.memory_budget_bytes, shrunk.memory_min_bytes);
    machine.available = 64 * 1024 * MIB;
    must(fm_session_eval(session, ids, CONTEXT - 2, &err), &err);
    const struct fm_stats grown = stats_of(model);
    assert_true(grown.memory_kv_bytes > shrunk.memory_kv_bytes);
    assert_true(grown.memory_min_bytes <= grown.memory_budget_bytes);
    assert_true(sum_of(&grown) <= grown.memory_budget_bytes);
    fm_session_close(session);
    fm_model_close(model);
    machine.is_faked = false;
}

/* A stage without experts opens no reader and reserves no memory for one. */
static void test_reader(void **state)
{
    const struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    struct streaming streaming;
    (void)state;
    must(streaming_choose(&streaming, &options, &err), &err);
    for (uint32_t layer = 0; layer < 2; layer++) {
        const struct model_options layers = {.families = arch_families(), .first_layer = layer,
                                             .end_layer = layer + 1};
        struct model *model;
        must(model_open(model_path, &layers, &model, &err), &err);
        if (layer == 0) /* the engine fits the readers of all stages to the whole model */
            streaming_fit(&streaming, model);
        assert_int_equal(streaming_bytes(&streaming, model) > 0, layer == 0);
        model_close(model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_idle_memory),
        cmocka_unit_test(test_keys_and_values),
        cmocka_unit_test(test_keys_and_values_take_from_others),
        cmocka_unit_test(test_keys_and_values_after_pressure),
        cmocka_unit_test(test_reader),
    };
    model_path = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
