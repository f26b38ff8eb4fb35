/* Evaluations between the layers of another one: every session has the logits that it has alone. */
#include "session/between.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/plat.h"
#include "flashmoe_lab.h"

#define VOCABULARY 512
#define N_LAYERS 8
#define CHUNK 64
#define PIECE 50 /* leaves rows for others */
#define LONG 150
#define N_EXPERTS 32
#define N_OTHERS 3
#define N_TOKENS 40

static char folder[64];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static const char *model_path(void)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/model.fmoe", folder);
    return path;
}

static int make_model(void **state)
{
    (void)state;
    const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = N_LAYERS, [FM_SYNTH_HIDDEN] = 64,
        [FM_SYNTH_HEADS] = 2,         [FM_SYNTH_KV_HEADS] = 1,
        [FM_SYNTH_HEAD_DIM] = 64,     [FM_SYNTH_EXPERTS] = N_EXPERTS,
        [FM_SYNTH_USED] = 2,          [FM_SYNTH_EXPERT_WIDTH] = 64,
        [FM_SYNTH_SHARED_WIDTH] = 64, [FM_SYNTH_KEY_HEADS] = 1,
        [FM_SYNTH_VALUE_HEADS] = 2,   [FM_SYNTH_KEY_DIM] = 64,
        [FM_SYNTH_VALUE_DIM] = 64,    [FM_SYNTH_VOCAB] = VOCABULARY,
    };
    const struct fm_synth_options options = {.size = sizeof options, .form = FM_SYNTH_PACKED,
                                             .numbers = numbers, .n_numbers = FM_SYNTH_NUMBERS,
                                             .seed = 7};
    struct fm_error err = {0};
    (void)snprintf(folder, sizeof folder, "/tmp/between_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    must(fm_synth("coder-next", model_path(), &options, NULL, &err), &err);
    return 0;
}

static int remove_model(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

struct fixture {
    struct fm_model *model;
    struct fm_session *first, *others[N_OTHERS];
    unsigned n_looks, n_turns, every; /* answers run before each `every`th layer */
    size_t n_at[N_OTHERS];
    size_t piece; /* tokens of each at a time */
    bool cancels;
};

static int32_t token(unsigned session, size_t i)
{
    return (int32_t)((i * 37 + i * i * 11 + session * 101u) % VOCABULARY);
}

static void eval(struct fm_model *m, struct fm_session *s, unsigned number, size_t from, size_t n)
{
    int32_t ids[LONG];
    struct fm_error err = {0};
    struct fm_batch_item item = {.session = s, .ids = ids, .n_ids = n};
    for (size_t i = 0; i < n; i++)
        ids[i] = token(number, from + i);
    must(fm_eval_batch(m, &item, 1, &err), &err);
}

static bool wants(void *ctx)
{
    struct fixture *f = ctx;
    return f->n_looks++ % f->every == 0;
}

/* Evaluates the next tokens of the other sessions, in one batch. */
static void run(void *ctx)
{
    struct fixture *f = ctx;
    int32_t ids[N_OTHERS][N_TOKENS];
    struct fm_batch_item items[N_OTHERS];
    struct fm_error err = {0};
    size_t n = 0;
    for (unsigned s = 0; s < N_OTHERS; s++) {
        const size_t left = N_TOKENS - f->n_at[s], n_ids = left < f->piece ? left : f->piece;
        for (size_t i = 0; i < n_ids; i++)
            ids[n][i] = token(s + 1, f->n_at[s] + i);
        if (n_ids > 0)
            items[n] = (struct fm_batch_item){.session = f->others[s], .ids = ids[n],
                                              .n_ids = n_ids};
        f->n_at[s] += n_ids;
        n += n_ids > 0;
    }
    f->n_turns++;
    if (n > 0)
        must(fm_eval_batch(f->model, items, n, &err), &err);
    if (f->cancels && f->n_turns == 3)
        fm_session_cancel(f->first);
}

static struct fm_model_options options_with(uint64_t memory_bytes)
{
    return (struct fm_model_options){.size = sizeof(struct fm_model_options), .n_threads = 2,
                                     .n_sessions = 1 + N_OTHERS, .n_context = 512, .n_marks = 4,
                                     .prefill_chunk = CHUNK, .memory_bytes = memory_bytes,
                                     .elastic = FM_OFF};
}

static bool can_open(uint64_t memory_bytes)
{
    const struct fm_model_options how = options_with(memory_bytes);
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    const int rc = fm_model_open(model_path(), &how, &model, &err);
    fm_model_close(model);
    return rc == 0;
}

static void open_fixture(struct fixture *f, uint64_t memory_bytes)
{
    const struct fm_model_options how = options_with(memory_bytes);
    struct fm_error err = {0};
    *f = (struct fixture){.every = 1, .piece = 1};
    must(fm_model_open(model_path(), &how, &f->model, &err), &err);
    assert_true(session_can_pause(f->model));
    must(fm_session_open(f->model, &f->first, &err), &err);
    for (unsigned s = 0; s < N_OTHERS; s++)
        must(fm_session_open(f->model, &f->others[s], &err), &err);
    session_set_between(f->model, &(struct session_between){.ctx = f, .wants = wants, .run = run});
}

static void close_fixture(struct fixture *f)
{
    fm_session_close(f->first);
    for (unsigned s = 0; s < N_OTHERS; s++)
        fm_session_close(f->others[s]);
    fm_model_close(f->model);
}

/* Evaluates one more token of a session. Its logits are those of a session that was alone, with n
 * tokens before it. */
static void check(struct fixture *f, struct fm_session *s, unsigned number, size_t n)
{
    const struct fm_model_options how = {.size = sizeof how, .n_threads = 1, .n_context = 512,
                                         .prefill_chunk = CHUNK};
    struct fm_error err = {0};
    struct fm_model *model;
    struct fm_session *alone;
    session_set_between(f->model, NULL);
    assert_int_equal(fm_session_position(s), n);
    eval(f->model, s, number, n, 1);
    must(fm_model_open(model_path(), &how, &model, &err), &err);
    must(fm_session_open(model, &alone, &err), &err);
    eval(model, alone, number, 0, n);
    eval(model, alone, number, n, 1);
    assert_memory_equal(fm_session_logits(s), fm_session_logits(alone), VOCABULARY * sizeof(float));
    fm_session_close(alone);
    fm_model_close(model);
}

static void check_all(struct fixture *f, size_t n_first)
{
    check(f, f->first, 0, n_first);
    for (unsigned s = 0; s < N_OTHERS; s++)
        check(f, f->others[s], s + 1, f->n_at[s]);
}

/* ---- tests -------------------------------------------------------------------------------- */

static void test_every_layer(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 0);
    for (size_t at = 0; at < LONG; at += PIECE)
        eval(f.model, f.first, 0, at, PIECE);
    assert_int_equal(f.n_looks, N_LAYERS * LONG / PIECE);
    assert_int_equal(f.n_turns, f.n_looks);
    assert_int_equal(f.n_at[0], N_LAYERS * LONG / PIECE);
    check_all(&f, LONG);
    close_fixture(&f);
}

/* The others have 60 rows, where 14 are left: several passes between two layers. */
static void test_more_rows_than_left(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 0);
    f.every = 3;
    f.piece = 20;
    eval(f.model, f.first, 0, 0, PIECE);
    assert_int_equal(f.n_turns, 3);
    assert_int_equal(f.n_at[0], N_TOKENS);
    check_all(&f, PIECE);
    close_fixture(&f);
}

/* A pass that has all rows cannot be left. */
static void test_no_rows_left(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, 0);
    eval(f.model, f.first, 0, 0, CHUNK);
    assert_int_equal(f.n_looks, 0);
    check(&f, f.first, 0, CHUNK);
    close_fixture(&f);
}

/* Experts are read from the disk for both. */
static void test_few_experts_in_memory(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_stats stats = {.size = sizeof stats};
    uint64_t low = 0, high = 1u << 30; /* the smallest budget that it opens with lies between */
    while (high - low > 64u << 10) {
        const uint64_t bytes = (low + high) / 2;
        *(can_open(bytes) ? &high : &low) = bytes;
    }
    open_fixture(&f, high + (64u << 10));
    fm_model_stats(f.model, &stats);
    assert_true(stats.n_cache_slots < N_LAYERS * N_EXPERTS / 2);
    for (size_t at = 0; at < LONG; at += PIECE)
        eval(f.model, f.first, 0, at, PIECE);
    fm_model_stats(f.model, &stats);
    assert_true(stats.n_expert_misses > 0 && f.n_turns > 0);
    check_all(&f, LONG);
    close_fixture(&f);
}

/* One that is cancelled meanwhile goes back, and the others do not notice. */
static void test_cancelled_between(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[PIECE];
    struct fm_error err = {0};
    open_fixture(&f, 0);
    for (size_t i = 0; i < PIECE; i++)
        ids[i] = token(0, i);
    struct fm_batch_item item = {.session = f.first, .ids = ids, .n_ids = PIECE};
    f.cancels = true;
    assert_int_equal(fm_eval_batch(f.model, &item, 1, &err), FM_ERR_CANCELLED);
    assert_int_equal(f.n_turns, 3);
    assert_int_equal(fm_session_position(f.first), 0);
    eval(f.model, f.first, 0, 0, PIECE);
    check_all(&f, PIECE);
    close_fixture(&f);
}

/* Two are under way, and the one that began first was left for longer than it took after the other
 * one's end. */
static void test_times_of_two(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[2][PIECE];
    struct fm_evaluation *both[2];
    struct fm_error err = {0};
    struct fm_stats stats = {.size = sizeof stats};
    open_fixture(&f, 0);
    struct fm_batch_item items[2] = {{.session = f.first, .ids = ids[0], .n_ids = PIECE},
                                     {.session = f.others[0], .ids = ids[1], .n_ids = 2}};
    for (unsigned s = 0; s < 2; s++)
        for (size_t i = 0; i < PIECE; i++)
            ids[s][i] = token(s, i);
    f.n_at[0] = N_TOKENS; /* only the other ones run between */
    must(fm_eval_begin(f.model, &items[0], 1, &both[0], &err), &err);
    assert_true(f.n_turns > 0);
    session_set_between(f.model, NULL);
    must(fm_eval_begin(f.model, &items[1], 1, &both[1], &err), &err);
    must(fm_eval_end(both[1], &err), &err);
    fm_model_stats(f.model, &stats);
    const double before_ns = (double)stats.prefill_ns;
    must(fm_eval_end(both[0], &err), &err);
    fm_model_stats(f.model, &stats);
    assert_true((double)stats.prefill_ns >= before_ns && (double)stats.prefill_ns < 1e15);
    close_fixture(&f);
}

/* Time is counted once. */
static void test_times(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_stats stats = {.size = sizeof stats};
    open_fixture(&f, 0);
    f.every = UINT_MAX;
    f.n_looks = 1; /* not now */
    for (unsigned s = 0; s < N_OTHERS; s++) {
        eval(f.model, f.others[s], s + 1, 0, 1);
        f.n_at[s] = 1;
    }
    f.every = 1;
    fm_model_stats(f.model, &stats);
    const uint64_t begin_ns = plat_now_ns();
    const double before_ns = (double)(stats.prefill_ns + stats.decode_ns);
    eval(f.model, f.first, 0, 0, PIECE);
    fm_model_stats(f.model, &stats);
    assert_true((double)(stats.prefill_ns + stats.decode_ns) - before_ns <=
                (double)(plat_now_ns() - begin_ns));
    assert_int_equal(stats.n_prefill_tokens, N_OTHERS + PIECE);
    assert_int_equal(stats.n_decode_tokens, N_OTHERS * N_LAYERS);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layer),
        cmocka_unit_test(test_more_rows_than_left),
        cmocka_unit_test(test_no_rows_left),
        cmocka_unit_test(test_few_experts_in_memory),
        cmocka_unit_test(test_cancelled_between),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_times_of_two),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
