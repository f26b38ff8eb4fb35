/* Structs that a caller makes: wrong sizes, wrong enum values and wrong stages are refused with the
 * name of the struct, the field and the value. Every close accepts NULL. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define NANO FLASHMOE_TEST_DIR "/../models/nano.fmoe"
#define MISSING FLASHMOE_TEST_DIR "/no-such-model"

/* Checks that `rc` is FM_ERR_ARG and that the message has this text. */
static void refused(int rc, const struct fm_error *err, const char *format, ...)
{
    char expected[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(expected, sizeof expected, format, args);
    va_end(args);
    if (rc != FM_ERR_ARG || strstr(err->text, expected) == NULL)
        fail_msg("%d '%s': expected %d '%s'", rc, err->text, FM_ERR_ARG, expected);
}

static struct fm_model *open_metadata(void)
{
    const struct fm_model_options options = {.size = sizeof options, .metadata_only = true};
    struct fm_model *model = NULL;
    assert_int_equal(fm_model_open(NANO, &options, &model, NULL), 0);
    return model;
}

/* ---- enums and flags ------------------------------------------------------------------------- */

/* Checks that every function with model options refuses a value of an enum among them. */
static void refuses_value(const struct fm_model *nano, const struct fm_model_options *options,
                          const char *name, int value, int max)
{
    struct fm_model *model;
    struct fm_plan plan = {.size = sizeof plan};
    struct fm_disk_speeds disk = {.size = sizeof disk};
    struct fm_io_speeds io = {.size = sizeof io};
    struct fm_error err[4] = {{0}};
    const int rcs[] = {fm_model_open(MISSING, options, &model, &err[0]),
                       fm_model_plan(nano, options, &plan, &err[1]),
                       fm_disk_measure(MISSING, options, true, &disk, &err[2]),
                       fm_io_measure(MISSING, options, &io, &err[3])};
    for (size_t i = 0; i < sizeof rcs / sizeof rcs[0]; i++)
        refused(rcs[i], &err[i], "fm_model_options.%s is %d: expected 0 to %d", name, value, max);
}

static void test_enums(void **state)
{
    static const struct {
        const char *name;
        size_t offset;
        int max;
    } fields[] = {
        {"elastic", offsetof(struct fm_model_options, elastic), FM_OFF},
        {"check", offsetof(struct fm_model_options, check), FM_OFF},
        {"lookahead", offsetof(struct fm_model_options, lookahead), FM_OFF},
        {"io", offsetof(struct fm_model_options, io), FM_IO_PAGE},
        {"reader", offsetof(struct fm_model_options, reader), FM_READER_URING},
        {"policy", offsetof(struct fm_model_options, policy), FM_POLICY_LRU},
    };
    (void)state;
    struct fm_model *nano = open_metadata();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const int values[] = {-1, fields[i].max + 1, INT_MAX, INT_MIN};
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            struct fm_model_options options = {.size = sizeof options};
            memcpy((char *)&options + fields[i].offset, &values[v], sizeof values[v]);
            refuses_value(nano, &options, fields[i].name, values[v], fields[i].max);
        }
    }
    fm_model_close(nano);
}

static void test_flags(void **state)
{
    static const char text[] = "<|im_end|>";
    static const int wrong[] = {4, 5, 256, 257, -1, INT_MAX, INT_MIN, INT_MIN + 1};
    int32_t other;
    (void)state;
    struct fm_model *nano = open_metadata();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        int32_t *ids = &other;
        size_t n_ids = 7;
        struct fm_error err = {0};
        refused(fm_tokenize(nano, text, strlen(text), wrong[i], &ids, &n_ids, &err), &err,
                "the flags of fm_tokenize are %d: expected FM_TEXT_PLAIN (0) or a sum of "
                "FM_TEXT_WITH_SPECIAL (1) and FM_TEXT_WITH_PREFIX (2)", wrong[i]);
        assert_null(ids);
        assert_int_equal(n_ids, 0);
    }
    for (int flags = FM_TEXT_PLAIN; flags <= FM_TEXT_WITH_SPECIAL; flags++) {
        int32_t *ids;
        size_t n_ids;
        assert_int_equal(fm_tokenize(nano, text, strlen(text), flags, &ids, &n_ids, NULL), 0);
        assert_int_equal(n_ids == 1, flags == FM_TEXT_WITH_SPECIAL);
        fm_free(ids);
    }
    fm_model_close(nano);
}

static void test_enums_of_instruments(void **state)
{
    static const int forms[] = {-1, FM_SYNTH_GGUF + 1, INT_MAX};
    static const unsigned whats[] = {16, 31, UINT_MAX};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct fm_synth_options synth = {.size = sizeof synth, .plan_only = true};
        struct fm_machine_options machine = {.size = sizeof machine, .what = whats[i]};
        struct fm_machine_speeds speeds = {.size = sizeof speeds};
        struct fm_error err = {0};
        memcpy(&synth.form, &forms[i], sizeof forms[i]);
        refused(fm_synth("coder-next", MISSING, &synth, NULL, &err), &err,
                "fm_synth_options.form is %d: expected 0 to %d", forms[i], FM_SYNTH_GGUF);
        refused(fm_machine_measure(&machine, &speeds, &err), &err,
                "fm_machine_options.what is %u: expected a sum of FM_MEASURE_* values, at most 15",
                whats[i]);
    }
}

static void test_numbers(void **state)
{
    uint32_t numbers[FM_SYNTH_NUMBERS + 2] = {0};
    struct fm_synth_options synth = {.size = sizeof synth, .plan_only = true, .numbers = numbers,
                                     .n_numbers = FM_SYNTH_NUMBERS + 2};
    struct fm_error err = {0};
    (void)state;
    assert_int_equal(fm_synth("coder-next", MISSING, &synth, NULL, NULL), 0);
    numbers[FM_SYNTH_NUMBERS + 1] = 5;
    refused(fm_synth("coder-next", MISSING, &synth, NULL, &err), &err,
            "fm_synth_options.numbers[%d] is 5, but this library knows only the first %d",
            FM_SYNTH_NUMBERS + 1, FM_SYNTH_NUMBERS);
    synth.numbers = NULL;
    refused(fm_synth("coder-next", MISSING, &synth, NULL, &err), &err,
            "fm_synth_options.numbers is NULL and n_numbers is %d", FM_SYNTH_NUMBERS + 2);
}

/* ---- stages ---------------------------------------------------------------------------------- */

static int open_cut(const struct fm_stage_options *stages, unsigned n, struct fm_error *err)
{
    const struct fm_model_options options = {.size = sizeof options, .stages = stages,
                                             .n_stages = n};
    struct fm_model *model;
    *err = (struct fm_error){0};
    return fm_model_open(MISSING, &options, &model, err);
}

static void test_stages(void **state)
{
    const size_t size = sizeof(struct fm_stage_options);
    static const size_t wrong[] = {0, 8, 48, 16384, SIZE_MAX};
    struct fm_error err;
    (void)state;
    refused(open_cut(NULL, 2, &err), &err,
            "fm_model_options.stages is NULL and n_stages is 2: give an element for each stage");
    assert_int_equal(open_cut(NULL, 1, &err), FM_ERR_IO); /* not used; there is no such model */
    /* memory of their own: a sanitizer notices what is read behind the last element */
    struct fm_stage_options *stages = calloc(2, size);
    assert_non_null(stages);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        stages[0] = (struct fm_stage_options){.size = size, .n_layers = 4, .memory_bytes = 1};
        stages[1] = (struct fm_stage_options){.size = wrong[i], .n_layers = 4, .memory_bytes = 1};
        refused(open_cut(stages, 2, &err), &err, "fm_stage_options.size is %zu in stage 1 and %zu "
                "in stage 0: give all stages the same size", wrong[i], size);
    }
    stages[1].size = size;
    assert_int_equal(open_cut(stages, 2, &err), FM_ERR_IO);
    stages[0].size = stages[1].size = 0;
    refused(open_cut(stages, 2, &err), &err,
            "fm_stage_options.size is 0: set it to sizeof(struct fm_stage_options)");
    refused(open_cut(stages, UINT_MAX, &err), &err, "4294967295 stages requested");
    free(stages);
}

static void test_points(void **state)
{
    struct fm_routes_stats stats = {.size = sizeof stats};
    struct fm_error err = {0};
    (void)state;
    struct fm_replay_point *points = calloc(2, sizeof *points);
    assert_non_null(points);
    points[0] = (struct fm_replay_point){.size = sizeof *points, .share = 0.5};
    points[1] = (struct fm_replay_point){.size = 16384, .share = 0.5};
    refused(fm_routes_replay("gen", &stats, points, 2, &err), &err,
            "fm_replay_point.size is 16384 in point 1 and %zu in point 0: give all points the same "
            "size", sizeof *points);
    free(points);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

struct fixture {
    struct fm_model *model;
    struct fm_session *session;
    struct fm_snapshots *snapshots;
};

/* Calls a function with the struct `given`, whose size is wrong. */
typedef int call_fn(struct fixture *f, void *given, struct fm_error *err);

#define CALL(name, expression)                                                                     \
    static int call_##name(struct fixture *f, void *given, struct fm_error *err)                   \
    {                                                                                              \
        (void)f, (void)given, (void)err;                                                           \
        return expression;                                                                         \
    }

static struct fm_model *no_model;
static struct fm_machine_speeds own_speeds;
static struct fm_answer *no_answer;
static struct fm_sampler *no_sampler;
static int32_t *no_ids;
static size_t n_no_ids;

CALL(model_options, fm_model_open(NANO, given, &no_model, err))
CALL(plan, fm_model_plan(f->model, NULL, given, err))
CALL(chat_options, fm_chat_tokenize_turn(f->model, NULL, "x", 1, given, &no_ids, &n_no_ids, err))
CALL(sampling, fm_sampler_open(f->model, given, &no_sampler, err))
CALL(answer_options, fm_answer_open(f->model, given, &no_answer, err))
CALL(machine_options, fm_machine_measure(given, &own_speeds, err))
CALL(machine_speeds, fm_machine_measure(NULL, given, err))
CALL(disk_speeds, fm_disk_measure(NANO, NULL, true, given, err))
CALL(io_speeds, fm_io_measure(NANO, NULL, given, err))
CALL(routes_stats, fm_routes_measure("gen", given, err))
CALL(pack_options, fm_pack(NANO, MISSING, given, NULL, err))
CALL(pack_result, fm_pack(NANO, MISSING, NULL, given, err))
CALL(verify_options, fm_verify(NANO, given, NULL, err))
CALL(verify_result, fm_verify(NANO, NULL, given, err))
CALL(synth_options, fm_synth("coder-next", MISSING, given, NULL, err))
CALL(synth_result, fm_synth("coder-next", MISSING, NULL, given, err))
/* without a message */
CALL(model_info, fm_model_info(f->model, given))
CALL(stats, fm_model_stats(f->model, given))
CALL(snapshots_stats, fm_snapshots_stats(f->snapshots, given))
CALL(default_sampling, fm_sampling_default(f->model, given))
CALL(machine_info, fm_machine_info(given))
CALL(observer, fm_session_observe(f->session, given))
/* false instead of a code */
CALL(format_info, fm_model_format(f->model, 0, given) ? 0 : FM_ERR_ARG)
CALL(number_format, fm_number_format(0, given) ? 0 : FM_ERR_ARG)
CALL(level_info, fm_machine_level(0, given) ? 0 : FM_ERR_ARG)

static const struct {
    const char *name; /* NULL: the function has no struct fm_error */
    size_t size;
    call_fn *call;
} calls[] = {
    {"fm_model_options", sizeof(struct fm_model_options), call_model_options},
    {"fm_plan", sizeof(struct fm_plan), call_plan},
    {"fm_chat_options", sizeof(struct fm_chat_options), call_chat_options},
    {"fm_sampling", sizeof(struct fm_sampling), call_sampling},
    {"fm_answer_options", sizeof(struct fm_answer_options), call_answer_options},
    {"fm_machine_options", sizeof(struct fm_machine_options), call_machine_options},
    {"fm_machine_speeds", sizeof(struct fm_machine_speeds), call_machine_speeds},
    {"fm_disk_speeds", sizeof(struct fm_disk_speeds), call_disk_speeds},
    {"fm_io_speeds", sizeof(struct fm_io_speeds), call_io_speeds},
    {"fm_routes_stats", sizeof(struct fm_routes_stats), call_routes_stats},
    {"fm_pack_options", sizeof(struct fm_pack_options), call_pack_options},
    {"fm_pack_result", sizeof(struct fm_pack_result), call_pack_result},
    {"fm_verify_options", sizeof(struct fm_verify_options), call_verify_options},
    {"fm_verify_result", sizeof(struct fm_verify_result), call_verify_result},
    {"fm_synth_options", sizeof(struct fm_synth_options), call_synth_options},
    {"fm_synth_result", sizeof(struct fm_synth_result), call_synth_result},
    {NULL, sizeof(struct fm_model_info), call_model_info},
    {NULL, sizeof(struct fm_stats), call_stats},
    {NULL, sizeof(struct fm_snapshots_stats), call_snapshots_stats},
    {NULL, sizeof(struct fm_sampling), call_default_sampling},
    {NULL, sizeof(struct fm_machine_info), call_machine_info},
    {NULL, sizeof(struct fm_observer), call_observer},
    {NULL, sizeof(struct fm_format_info), call_format_info},
    {NULL, sizeof(struct fm_number_format), call_number_format},
    {NULL, sizeof(struct fm_level_info), call_level_info},
};

static void test_sizes(void **state)
{
    static const size_t wrong[] = {0, 1, 7, 12, 16392, (size_t)1 << 40, SIZE_MAX};
    char dir[] = "/tmp/flashmoe-options-XXXXXX";
    const struct fm_model_options options = {.size = sizeof options, .n_threads = 1,
                                             .n_context = 64};
    struct fixture f = {0};
    struct fm_error err = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(fm_model_open(NANO, &options, &f.model, &err), 0);
    assert_int_equal(fm_session_open(f.model, &f.session, &err), 0);
    assert_int_equal(fm_snapshots_open(f.model, dir, 1 << 20, &f.snapshots, &err), 0);
    own_speeds.size = sizeof own_speeds;
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++)
        for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            unsigned char *given = calloc(1, calls[c].size), *before = calloc(1, calls[c].size);
            assert_true(given != NULL && before != NULL);
            memcpy(given, &wrong[i], sizeof wrong[i]);
            memcpy(before, given, calls[c].size);
            err = (struct fm_error){0};
            const int rc = calls[c].call(&f, given, &err);
            if (calls[c].name != NULL)
                refused(rc, &err, "%s.size is %zu: set it to sizeof(struct %s)", calls[c].name,
                        wrong[i], calls[c].name);
            else if (rc != FM_ERR_ARG)
                fail_msg("call %zu accepts a size of %zu", c, wrong[i]);
            assert_memory_equal(given, before, calls[c].size);
            free(given);
            free(before);
        }
    fm_snapshots_close(f.snapshots);
    fm_session_close(f.session);
    fm_model_close(f.model);
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void test_close_accepts_null(void **state)
{
    (void)state;
    fm_model_close(NULL);
    fm_session_close(NULL);
    fm_snapshots_close(NULL);
    fm_grammar_close(NULL);
    fm_answer_close(NULL);
    fm_decoder_close(NULL);
    fm_sampler_close(NULL);
    fm_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enums),
        cmocka_unit_test(test_enums_of_instruments),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_close_accepts_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
