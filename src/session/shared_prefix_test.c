/* Sessions with the same beginning use the same memory for its keys and values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes_text.h"
#include "flashmoe_lab.h"
#include "session/session_internal.h"
#include "session/session_pool.h"

#define VOCABULARY 512
#define N_SESSIONS 4
#define BLOCK 256
#define PREFIX 900 /* three blocks and a part of the fourth */
#define ALL 1000
#define BACK 600 /* in the third block */
#define WHOLE (3 * BLOCK)

static char folder[64];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static const char *path_of(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Recurrent ones have a shared expert, and heads of the delta rule. */
static void make(const char *shape, const char *name, bool is_recurrent)
{
    const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = 4,
        [FM_SYNTH_HIDDEN] = 64,
        [FM_SYNTH_HEADS] = 2,
        [FM_SYNTH_KV_HEADS] = 1,
        [FM_SYNTH_HEAD_DIM] = 64,
        [FM_SYNTH_EXPERTS] = 8,
        [FM_SYNTH_USED] = 2,
        [FM_SYNTH_EXPERT_WIDTH] = 64,
        [FM_SYNTH_SHARED_WIDTH] = is_recurrent ? 64 : 0,
        [FM_SYNTH_KEY_HEADS] = is_recurrent ? 1 : 0,
        [FM_SYNTH_VALUE_HEADS] = is_recurrent ? 2 : 0,
        [FM_SYNTH_KEY_DIM] = is_recurrent ? 64 : 0,
        [FM_SYNTH_VALUE_DIM] = is_recurrent ? 64 : 0,
        [FM_SYNTH_VOCAB] = VOCABULARY,
    };
    const struct fm_synth_options options = {.size = sizeof options, .form = FM_SYNTH_PACKED,
                                             .numbers = numbers, .n_numbers = FM_SYNTH_NUMBERS,
                                             .seed = 3};
    struct fm_error err = {0};
    must(fm_synth(shape, path_of(name), &options, NULL, &err), &err);
}

static int make_models(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/shared_prefix_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    make("30b-a3b", "attention.fmoe", false);
    make("coder-next", "recurrent.fmoe", true);
    return 0;
}

static int remove_models(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

struct fixture {
    const char *name;
    struct fm_model *model;
    struct session_pool *pool;
};

static struct fm_model *open_model(const char *name)
{
    struct fm_error err = {0};
    struct fm_model *model;
    const struct fm_model_options how = {.size = sizeof how, .n_threads = 2,
                                         .n_sessions = N_SESSIONS, .n_context = 2048, .n_marks = 4,
                                         .prefill_chunk = 128, .elastic = FM_OFF};
    must(fm_model_open(path_of(name), &how, &model, &err), &err);
    return model;
}

static void open_fixture(struct fixture *f, const char *name)
{
    struct fm_error err = {0};
    const struct session_pool_options how = {.n_sessions = N_SESSIONS};
    *f = (struct fixture){.name = name, .model = open_model(name)};
    must(session_pool_open(f->model, &how, &f->pool, &err), &err);
}

static uint64_t kv_bytes(const struct fixture *f)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(f->model, &stats);
    return stats.memory_kv_bytes;
}

/* Closes all; the sessions have given their memory back before. */
static void close_fixture(struct fixture *f, uint64_t kv_before)
{
    while (session_pool_drop_idle(f->pool))
        ;
    assert_int_equal(kv_bytes(f), kv_before);
    session_pool_close(f->pool);
    fm_model_close(f->model);
}

/* The tokens of user `user`: own ones from n_alike on. */
static void make_prompt(int32_t *ids, size_t n_alike, unsigned user)
{
    for (size_t i = 0; i < ALL + BLOCK; i++)
        ids[i] = (int32_t)((i * 37 + i * i * 11 + (i < n_alike ? 0 : user * 101u)) % VOCABULARY);
    ids[n_alike] = (int32_t)(user + 1);
}

/* Evaluates tokens up to n; those before are there. */
static void eval_to(struct fm_session *s, const int32_t *ids, size_t n)
{
    struct fm_error err = {0};
    const unsigned at = fm_session_position(s);
    assert_memory_equal(fm_session_ids(s), ids, at * sizeof *ids);
    must(fm_session_eval(s, ids + at, n - at, &err), &err);
}

/* The session's logits are those of a model of its own. */
static void check(const struct fixture *f, struct fm_session *s, const int32_t *ids, size_t n)
{
    struct fm_error err = {0};
    struct fm_session *alone;
    struct fm_model *model = open_model(f->name);
    eval_to(s, ids, n);
    must(fm_session_open(model, &alone, &err), &err);
    eval_to(alone, ids, n);
    assert_memory_equal(fm_session_logits(s), fm_session_logits(alone), VOCABULARY * sizeof(float));
    fm_session_close(alone);
    fm_model_close(model);
}

static struct fm_session *take(const struct fixture *f, const int32_t *ids, unsigned n_expected)
{
    unsigned n_found;
    struct fm_session *s = session_pool_take(f->pool, ids, ALL, 0, 0, &n_found);
    assert_non_null(s);
    assert_int_equal(n_found, n_expected);
    return s;
}

/* ---- tests -------------------------------------------------------------------------------- */

/* Two more sessions with the prefix take no more memory than the one block that each has. */
static void test_memory_once(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[3][ALL + BLOCK];
    struct fm_session *s[3];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    for (unsigned u = 0; u < 3; u++)
        make_prompt(ids[u], PREFIX, u);
    s[0] = take(&f, ids[0], 0);
    eval_to(s[0], ids[0], ALL);
    const uint64_t one = kv_bytes(&f), block = (one - empty) / 3;
    for (unsigned u = 1; u < 3; u++) {
        s[u] = take(&f, ids[u], PREFIX);
        assert_int_equal(kv_bytes(&f), one);
        check(&f, s[u], ids[u], ALL);
        assert_int_equal(kv_bytes(&f), one); /* the fourth block has the rest */
    }
    check(&f, s[0], ids[0], ALL + 30);
    assert_int_equal(kv_bytes(&f), one + block);
    for (unsigned u = 0; u < 3; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

/* A session that goes back into a shared block gets one of its own when it goes on, whichever of
 * them it is, and the others keep theirs. */
static void test_going_back(void **state)
{
    (void)state;
    for (unsigned who = 0; who < 3; who++) {
        struct fixture f;
        int32_t ids[3][ALL + BLOCK], other[ALL + BLOCK];
        struct fm_session *s[3];
        open_fixture(&f, "attention.fmoe");
        const uint64_t empty = kv_bytes(&f);
        for (unsigned u = 0; u < 3; u++) {
            make_prompt(ids[u], PREFIX, u);
            s[u] = take(&f, ids[u], u == 0 ? 0 : PREFIX);
            eval_to(s[u], ids[u], ALL);
        }
        const uint64_t before = kv_bytes(&f);
        make_prompt(other, BACK, 9);
        assert_int_equal(fm_session_rewind(s[who], other, ALL), BACK);
        assert_int_equal(kv_bytes(&f), before); /* its own block counts even while it is empty */
        check(&f, s[who], other, ALL);
        for (unsigned u = 0; u < 3; u++)
            if (u != who)
                check(&f, s[u], ids[u], ALL + 10);
        assert_true(kv_bytes(&f) > before);
        for (unsigned u = 0; u < 3; u++)
            session_pool_give(f.pool, s[u]);
        close_fixture(&f, empty);
    }
}

/* The first one leaves, and its blocks stay for the others. The last one that uses them may write
 * them. */
static void test_source_goes(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[2][ALL + BLOCK], other[ALL + BLOCK];
    struct fm_session *s[2];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    for (unsigned u = 0; u < 2; u++) {
        make_prompt(ids[u], PREFIX, u);
        s[u] = take(&f, ids[u], u == 0 ? 0 : PREFIX);
        eval_to(s[u], ids[u], ALL);
    }
    fm_session_reset(s[0]);
    make_prompt(other, 10, 7);
    check(&f, s[0], other, ALL);
    check(&f, s[1], ids[1], ALL + 5);
    make_prompt(other, BACK, 9);
    assert_int_equal(fm_session_rewind(s[1], other, ALL), BACK);
    check(&f, s[1], other, ALL);
    for (unsigned u = 0; u < 2; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

/* A snapshot of a session that shares has all its state, and one that shared can load it. */
static void test_snapshots(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    char path[160];
    int32_t ids[2][ALL + BLOCK];
    struct fm_session *s[2];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    (void)snprintf(path, sizeof path, "%s/snapshot", folder);
    for (unsigned u = 0; u < 2; u++) {
        make_prompt(ids[u], PREFIX, u);
        s[u] = take(&f, ids[u], u == 0 ? 0 : PREFIX);
        eval_to(s[u], ids[u], ALL);
    }
    must(fm_session_save(s[1], path, &err), &err);
    must(fm_session_load(s[0], path, &err), &err);
    check(&f, s[0], ids[1], ALL + 3);
    check(&f, s[1], ids[1], ALL + 3);
    for (unsigned u = 0; u < 2; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

/* Recurrent layers have a state of their own in each session. */
static void test_recurrent(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[2][ALL + BLOCK];
    struct fm_session *s[2];
    open_fixture(&f, "recurrent.fmoe");
    const uint64_t empty = kv_bytes(&f);
    make_prompt(ids[0], PREFIX, 0);
    make_prompt(ids[1], PREFIX, 1);
    s[0] = take(&f, ids[0], 0);
    session_pool_keep_mark(s[0], PREFIX);
    eval_to(s[0], ids[0], PREFIX);
    eval_to(s[0], ids[0], ALL);
    const uint64_t one = kv_bytes(&f);
    s[1] = take(&f, ids[1], PREFIX);
    assert_int_equal(kv_bytes(&f), one);
    check(&f, s[1], ids[1], ALL);
    check(&f, s[0], ids[0], ALL + 40);
    for (unsigned u = 0; u < 2; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

static uint64_t block_bytes(const struct fm_session *s)
{
    return s->sequence->parts[0].blocks.bytes;
}

/* Sets the memory budget to what is needed now, with the fewest experts. */
static void fill_budget(const struct fixture *f)
{
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_error err = {0};
    fm_model_stats(f->model, &stats);
    must(fm_model_set_memory(f->model, stats.memory_min_bytes, &err), &err);
}

/* Evaluates tokens of a new conversation and expects that the budget has no room for them. */
static void expect_full(struct fm_session *s, const int32_t *ids, size_t n, struct fm_error *err)
{
    const unsigned at = fm_session_position(s);
    assert_int_equal(fm_session_eval(s, ids + at, n - at, err), FM_ERR_BUDGET);
    assert_int_equal(fm_session_position(s), at);
}

/* A session with no block of its own can be emptied in a full budget, and has no block of the old
 * conversation in a new one. */
static void test_reset_when_full(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    int32_t ids[N_SESSIONS][ALL + BLOCK];
    struct fm_session *s[N_SESSIONS];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    make_prompt(ids[0], WHOLE, 0);
    make_prompt(ids[1], WHOLE, 1);
    make_prompt(ids[2], 0, 2);
    make_prompt(ids[3], 0, 3);
    s[0] = take(&f, ids[0], 0);
    eval_to(s[0], ids[0], ALL);
    s[2] = take(&f, ids[2], 0);
    eval_to(s[2], ids[2], ALL);
    s[3] = take(&f, ids[3], 0);
    s[1] = take(&f, ids[1], WHOLE); /* and it shares all that it has */
    const uint64_t full = kv_bytes(&f);
    fill_budget(&f);
    expect_full(s[2], ids[2], ALL + BLOCK, &err);
    fm_session_reset(s[1]);
    assert_int_equal(s[1]->sequence->parts[0].n_shared, 0);
    assert_int_equal(kv_bytes(&f), full); /* others use its blocks */
    session_pool_give(f.pool, s[1]);
    ids[2][WHOLE] = (ids[2][WHOLE] + 1) % VOCABULARY;
    assert_ptr_equal(take(&f, ids[2], WHOLE), s[1]);
    check(&f, s[1], ids[2], ALL);
    assert_int_equal(kv_bytes(&f), full);
    for (unsigned u = 0; u < N_SESSIONS; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

/* One that still shares is refused, in every build. */
static void test_not_twice(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    int32_t ids[2][ALL + BLOCK];
    struct fm_session *s[2];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    for (unsigned u = 0; u < 2; u++) {
        make_prompt(ids[u], WHOLE, u);
        s[u] = take(&f, ids[u], u == 0 ? 0 : WHOLE);
        eval_to(s[u], ids[u], ALL);
    }
    sequence_reset(s[1]->sequence); /* as if its memory had not been given back */
    assert_int_equal(sequence_share(s[1]->sequence, s[0]->sequence, WHOLE, &err), FM_ERR_ARG);
    assert_int_equal(s[1]->sequence->parts[0].n_shared, 3);
    for (unsigned u = 0; u < 2; u++)
        session_pool_give(f.pool, s[u]);
    fm_session_reset(s[1]);
    close_fixture(&f, empty);
}

/* A source that ends with its last block counts for one block more, as if it were empty: if there
 * is no room for that, nothing is shared. */
static void test_source_without_rest(void **state)
{
    (void)state;
    for (int is_full = 0; is_full < 2; is_full++) {
        struct fixture f;
        int32_t ids[2][ALL + BLOCK];
        struct fm_session *s[2];
        open_fixture(&f, "attention.fmoe");
        const uint64_t empty = kv_bytes(&f);
        make_prompt(ids[0], WHOLE, 0);
        make_prompt(ids[1], WHOLE, 1);
        s[0] = take(&f, ids[0], 0);
        const uint64_t block = block_bytes(s[0]);
        eval_to(s[0], ids[0], WHOLE);
        assert_int_equal(kv_bytes(&f), empty + 2 * block);
        if (is_full)
            fill_budget(&f);
        s[1] = take(&f, ids[1], is_full ? 0 : WHOLE);
        assert_int_equal(kv_bytes(&f), empty + (is_full ? 2 : 3) * block);
        fm_session_reset(s[0]);
        assert_int_equal(kv_bytes(&f), empty + (is_full ? 0 : 3) * block);
        check(&f, s[1], ids[1], BLOCK + (is_full ? 0 : WHOLE));
        for (unsigned u = 0; u < 2; u++)
            session_pool_give(f.pool, s[u]);
        close_fixture(&f, empty);
    }
}

/* A session that was used before holds nothing where its shared blocks would be. */
static void test_used_before(void **state)
{
    (void)state;
    struct fixture f;
    int32_t ids[3][ALL + BLOCK];
    struct fm_session *s[N_SESSIONS];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    make_prompt(ids[0], PREFIX, 0);
    make_prompt(ids[1], PREFIX, 1);
    make_prompt(ids[2], 0, 2);
    s[0] = take(&f, ids[0], 0);
    eval_to(s[0], ids[0], ALL);
    for (unsigned u = 1; u < N_SESSIONS; u++) {
        s[u] = take(&f, ids[2], 0);
        eval_to(s[u], ids[2], BLOCK / 2);
        fm_session_reset(s[u]);
    }
    for (unsigned u = 1; u < N_SESSIONS; u++)
        session_pool_give(f.pool, s[u]);
    s[1] = take(&f, ids[1], PREFIX);
    const struct sequence_part *part = &s[1]->sequence->parts[0];
    assert_int_equal(part->n_shared, 3);
#ifdef __linux__ /* pages that are given back are empty at once */
    for (uint64_t i = 0; i < 3 * part->blocks.bytes; i++)
        if (((const char *)part->kv.at)[i] != 0)
            fail_msg("byte %llu of a shared block's place is in memory", (unsigned long long)i);
#endif
    check(&f, s[1], ids[1], ALL);
    session_pool_give(f.pool, s[0]);
    session_pool_give(f.pool, s[1]);
    close_fixture(&f, empty);
}

/* The message says what a session that shares lacks. */
static void test_message(void **state)
{
    (void)state;
    struct fixture f;
    struct fm_error err = {0};
    char lacks[BYTES_TEXT + 64], text[BYTES_TEXT];
    int32_t ids[2][ALL + BLOCK];
    struct fm_session *s[2];
    open_fixture(&f, "attention.fmoe");
    const uint64_t empty = kv_bytes(&f);
    for (unsigned u = 0; u < 2; u++) {
        make_prompt(ids[u], WHOLE, u);
        s[u] = take(&f, ids[u], u == 0 ? 0 : WHOLE);
        if (u == 0)
            eval_to(s[u], ids[u], ALL);
    }
    fill_budget(&f);
    expect_full(s[1], ids[1], ALL + BLOCK, &err); /* it wants two blocks and has one */
    (void)snprintf(lacks, sizeof lacks, "which is %s more than the session has",
                   bytes_text(block_bytes(s[1]), text));
    if (strstr(err.text, lacks) == NULL)
        fail_msg("'%s' is not in: %s", lacks, err.text);
    for (unsigned u = 0; u < 2; u++)
        session_pool_give(f.pool, s[u]);
    close_fixture(&f, empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_once),
        cmocka_unit_test(test_going_back),
        cmocka_unit_test(test_source_goes),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_recurrent),
        cmocka_unit_test(test_reset_when_full),
        cmocka_unit_test(test_not_twice),
        cmocka_unit_test(test_source_without_rest),
        cmocka_unit_test(test_used_before),
        cmocka_unit_test(test_message),
    };
    return cmocka_run_group_tests(tests, make_models, remove_models);
}
