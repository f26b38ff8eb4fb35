/* slots_test MODEL: conversations that share a pool of sessions compute only new tokens, and get
 * the same bits as alone. */
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

#include "flashmoe_lab.h"
#include "session/session_pool.h"

#define CONTEXT 600
#define N_TALKS 5
#define N_SHARED 40 /* tokens that all conversations begin with */
#define LIMIT (256u << 20)

static const char *model_path;
static char dir[64];
static uint32_t random_state = 7;

struct talk {
    int32_t ids[CONTEXT];
    unsigned n, n_computed; /* tokens; of them, those that a session has computed */
};

struct fixture {
    struct fm_model *model;
    struct fm_model_info info;
    struct fm_session *alone;
    struct fm_snapshots *snapshots;
    struct session_pool *slots;
    struct talk talks[N_TALKS];
};

static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

static void must(int rc, const struct fm_error *err)
{
    if (rc < 0)
        fail_msg("%s", err->text);
}

static void set_up(struct fixture *f, unsigned n_sessions, bool has_disk, unsigned keep_min)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    memset(f, 0, sizeof *f);
    options.n_threads = 2;
    options.n_sessions = n_sessions + 1;
    options.n_context = CONTEXT;
    options.n_marks = 4;
    must(fm_model_open(model_path, &options, &f->model, &err), &err);
    f->info.size = sizeof f->info;
    fm_model_info(f->model, &f->info);
    must(fm_session_open(f->model, &f->alone, &err), &err);
    if (has_disk)
        must(fm_snapshots_open(f->model, dir, LIMIT, &f->snapshots, &err), &err);
    const struct session_pool_options how = {.n_sessions = n_sessions, .snapshots = f->snapshots,
                                      .keep_min = keep_min};
    must(session_pool_open(f->model, &how, &f->slots, &err), &err);
    for (unsigned t = 0; t < N_TALKS; t++)
        for (unsigned i = 0; i < N_SHARED; i++)
            f->talks[t].ids[f->talks[t].n++] = (int32_t)(i * 7 % f->info.vocabulary);
}

static void tear_down(struct fixture *f)
{
    session_pool_close(f->slots);
    fm_snapshots_close(f->snapshots);
    fm_session_close(f->alone);
    fm_model_close(f->model);
}

static void append(const struct fixture *f, struct talk *t, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        t->ids[t->n++] = (int32_t)next_random(f->info.vocabulary);
}

static void check_alone(struct fixture *f, const struct talk *t, const struct fm_session *s)
{
    struct fm_error err = {0};
    fm_session_reset(f->alone);
    must(fm_session_eval(f->alone, t->ids, t->n, &err), &err);
    assert_memory_equal(fm_session_logits(f->alone), fm_session_logits(s),
                        f->info.vocabulary * sizeof(float));
}

/* Runs a question and an answer whose last token is not evaluated. Returns the number of tokens
 * that were recomputed. */
static unsigned turn(struct fixture *f, struct talk *t, uint64_t key)
{
    struct fm_error err = {0};
    unsigned from = 0;
    append(f, t, 12 + next_random(12));
    struct fm_session *s = session_pool_take(f->slots, t->ids, t->n, key, 0, &from);
    assert_non_null(s);
    assert_int_equal(fm_session_position(s), from);
    assert_true(from < t->n);
    const unsigned n_again = t->n_computed > from ? t->n_computed - from : 0;
    must(fm_session_eval(s, t->ids + from, t->n - from, &err), &err);
    check_alone(f, t, s);
    const unsigned n_answer = 1 + next_random(8);
    for (unsigned i = 0; i < n_answer; i++) {
        append(f, t, 1);
        if (i + 1 < n_answer)
            must(fm_session_eval(s, &t->ids[t->n - 1], 1, &err), &err);
    }
    t->n_computed = t->n - 1;
    session_pool_give(f->slots, s);
    return n_again;
}

/* With as many sessions as conversations, nothing is ever recomputed. */
static void test_enough(void **state)
{
    (void)state;
    static struct fixture f;
    set_up(&f, N_TALKS, false, 0);
    for (int round = 0; round < 30; round++)
        assert_int_equal(turn(&f, &f.talks[next_random(N_TALKS)], 0), 0);
    tear_down(&f);
}

/* With fewer sessions than conversations, the others are kept on disk. */
static void test_disk(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_snapshots_stats stats = {.size = sizeof stats};
    set_up(&f, 2, true, 1);
    for (int round = 0; round < 30; round++)
        assert_int_equal(turn(&f, &f.talks[next_random(N_TALKS)], 1 + next_random(2)), 0);
    fm_snapshots_stats(f.snapshots, &stats);
    assert_true(stats.n_written > 0 && stats.n_restored > 0);
    tear_down(&f);
}

/* The common beginning is found on disk after a restart, and new sessions are saved in idle
 * time. */
static void test_keep(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    set_up(&f, 3, true, 20);
    (void)turn(&f, &f.talks[0], 0);
    (void)turn(&f, &f.talks[1], 0);
    int n_kept = 0, rc;
    while ((rc = session_pool_keep(f.slots, 1, &err)) == 1)
        n_kept++;
    must(rc, &err);
    assert_true(n_kept >= 1 && n_kept <= 2); /* one may have been saved when the other began */
    const struct talk before = f.talks[0];
    tear_down(&f);
    set_up(&f, 3, true, 20);
    f.talks[0] = before;
    assert_int_equal(turn(&f, &f.talks[0], 0), 0);
    unsigned found = 0;
    append(&f, &f.talks[2], 60);
    struct fm_session *s = session_pool_take(f.slots, f.talks[2].ids, f.talks[2].n, 0, 0, &found);
    struct session_pool_info info;
    unsigned n_taken = 0;
    for (unsigned i = 0; session_pool_info(f.slots, i, &info); i++)
        n_taken += info.is_taken;
    assert_int_equal(n_taken, 1);
    session_pool_give(f.slots, s);
    tear_down(&f);
}

static unsigned take_for(struct fixture *f, const struct talk *t, uint64_t owner)
{
    struct fm_error err = {0};
    unsigned from = 0;
    struct fm_session *s = session_pool_take(f->slots, t->ids, t->n, 9, owner, &from);
    assert_int_equal(fm_session_position(s), from);
    must(fm_session_eval(s, t->ids + from, t->n - from, &err), &err);
    check_alone(f, t, s);
    session_pool_give(f->slots, s);
    return from;
}

static uint64_t n_files(const struct fixture *f)
{
    struct fm_snapshots_stats stats = {.size = sizeof stats};
    fm_snapshots_stats(f->snapshots, &stats);
    return stats.n_files;
}

/* What one owner has computed is never used for another: not for a conversation that begins alike,
 * not in a session that is reused, not from disk. */
static void test_owners(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    for (unsigned n_sessions = 1; n_sessions <= 3; n_sessions++) {
        const uint64_t first = 10 * n_sessions;
        set_up(&f, n_sessions, true, 1);
        append(&f, &f.talks[0], 40);
        const struct talk talk = f.talks[0];
        const uint64_t n_before = n_files(&f);
        for (uint64_t i = 0; i < 4; i++)
            assert_int_equal(take_for(&f, &talk, first + i), 0);
        while (session_pool_keep(f.slots, 1, &err) == 1)
            ;
        assert_int_equal(n_files(&f), n_before + 4); /* the same tokens, once per owner */
        for (uint64_t i = 0; i < 4; i++)
            assert_true(take_for(&f, &talk, first + i) > N_SHARED);
        assert_int_equal(take_for(&f, &talk, first + 4), 0);
        struct talk branch = talk; /* another conversation that begins alike */
        branch.n = N_SHARED / 2;
        append(&f, &branch, 30);
        assert_int_equal(take_for(&f, &branch, first + 6), 0);
        tear_down(&f);
        set_up(&f, n_sessions, true, 1); /* another process finds them by their names */
        assert_true(n_files(&f) >= n_before + 4);
        assert_true(take_for(&f, &talk, first + 2) > N_SHARED);
        assert_int_equal(take_for(&f, &talk, first + 5), 0);
        tear_down(&f);
    }
}

/* A conversation that begins like one in memory gets a copy of that beginning, even while the other
 * is in use. Both continue from there. */
static void test_branch(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    set_up(&f, 3, false, 0);
    append(&f, &f.talks[0], 200);
    (void)turn(&f, &f.talks[0], 0);
    for (unsigned t = 1; t < 3; t++) {
        unsigned from, others;
        struct talk *branch = &f.talks[t];
        memcpy(branch->ids, f.talks[0].ids, sizeof branch->ids);
        branch->n = 200 + 10 * t; /* within the prompt, after its mark at 192 or before it */
        append(&f, branch, 30);
        struct fm_session *taken = t == 1 ? NULL
            : session_pool_take(f.slots, f.talks[0].ids, f.talks[0].n, 0, 0, &others);
        struct fm_session *s = session_pool_take(f.slots, branch->ids, branch->n, 0, 0, &from);
        assert_true(s != NULL && s != taken && from >= 192);
        must(fm_session_eval(s, branch->ids + from, branch->n - from, &err), &err);
        check_alone(&f, branch, s);
        branch->n_computed = branch->n;
        session_pool_give(f.slots, s);
        if (taken != NULL)
            session_pool_give(f.slots, taken);
    }
    for (unsigned t = 0; t < 3; t++)
        assert_int_equal(turn(&f, &f.talks[t], 0), 0);
    tear_down(&f);
}

/* A session in use is not given to anyone else, and one that failed starts over. */
static void test_taken(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    unsigned from;
    set_up(&f, 2, false, 0);
    struct fm_session *a = session_pool_take(f.slots, f.talks[0].ids, N_SHARED, 0, 0, &from);
    struct fm_session *b = session_pool_take(f.slots, f.talks[0].ids, N_SHARED, 0, 0, &from);
    assert_true(a != NULL && b != NULL && a != b);
    assert_null(session_pool_take(f.slots, f.talks[0].ids, N_SHARED, 0, 0, &from));
    fm_session_cancel(a);
    assert_true(fm_session_eval(a, f.talks[0].ids, N_SHARED, &err) != 0);
    session_pool_give(f.slots, a);
    assert_ptr_equal(session_pool_take(f.slots, f.talks[0].ids, N_SHARED, 0, 0, &from), a);
    must(fm_session_eval(a, f.talks[0].ids + from, N_SHARED - from, &err), &err);
    session_pool_give(f.slots, a);
    session_pool_give(f.slots, b);
    tear_down(&f);
}

/* A prompt that was cut short is recognised again. Idle sessions can be emptied, oldest first. */
static void test_cut_short(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    struct session_pool_info info;
    unsigned from;
    set_up(&f, 2, false, 0);
    (void)turn(&f, &f.talks[1], 0);
    append(&f, &f.talks[0], 300);
    struct fm_session *s = session_pool_take(f.slots, f.talks[0].ids, f.talks[0].n, 0, 0, &from);
    must(fm_session_eval(s, f.talks[0].ids + from, 150 - from, &err), &err);
    fm_session_cancel(s); /* too late for that evaluation */
    session_pool_give(f.slots, s);
    assert_ptr_equal(session_pool_take(f.slots, f.talks[0].ids, f.talks[0].n, 0, 0, &from), s);
    assert_int_equal(from, 150);
    must(fm_session_eval(s, f.talks[0].ids + from, f.talks[0].n - from, &err), &err);
    check_alone(&f, &f.talks[0], s);
    assert_true(session_pool_drop_idle(f.slots)); /* the other one */
    assert_false(session_pool_drop_idle(f.slots));
    assert_int_equal(fm_session_position(s), f.talks[0].n);
    session_pool_give(f.slots, s);
    assert_true(session_pool_drop_idle(f.slots));
    for (unsigned i = 0; session_pool_info(f.slots, i, &info); i++)
        assert_int_equal(info.position, 0);
    tear_down(&f);
}

/* The map of experts shows all of them, and the hot ones where tokens went. */
static void test_experts(void **state)
{
    (void)state;
    static struct fixture f;
    struct fm_error err = {0};
    set_up(&f, 1, false, 0);
    bool *resident = calloc(f.info.n_experts, 1);
    uint8_t *heat = calloc(f.info.n_experts, 1);
    assert_true(resident != NULL && heat != NULL);
    must(fm_session_eval(f.alone, f.talks[0].ids, N_SHARED, &err), &err);
    unsigned n_layers = 0;
    for (; fm_model_experts(f.model, n_layers, resident, heat); n_layers++) {
        unsigned n_resident = 0, n_hot = 0, hottest = 0;
        for (unsigned e = 0; e < f.info.n_experts; e++) {
            n_resident += resident[e];
            n_hot += heat[e] > 0;
            hottest = heat[e] > hottest ? heat[e] : hottest;
        }
        assert_true(n_resident >= 1 && n_hot >= f.info.n_experts_per_token && hottest > 20);
    }
    assert_int_equal(n_layers, f.info.n_moe_layers);
    free(resident);
    free(heat);
    tear_down(&f);
}

static void clear_dir(void)
{
    DIR *d = opendir(dir);
    char path[512];
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        (void)unlink(path);
    }
    if (d != NULL)
        (void)closedir(d);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    snprintf(dir, sizeof dir, "slots-test-%d", (int)getpid());
    (void)mkdir(dir, 0700);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enough), cmocka_unit_test(test_disk), cmocka_unit_test(test_keep),
        cmocka_unit_test(test_branch), cmocka_unit_test(test_taken), cmocka_unit_test(test_owners),
        cmocka_unit_test(test_cut_short), cmocka_unit_test(test_experts),
    };
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    clear_dir();
    (void)rmdir(dir);
    return rc;
}
