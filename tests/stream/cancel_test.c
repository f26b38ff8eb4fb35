/* cancel_test MODEL: cancels sessions of a batch, at any layer and from any thread. The other
 * sessions give the same bits as alone. The cancelled ones continue later as if nothing had
 * happened. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define CONTEXT 400
#define N_TOGETHER 8
#define N_SESSIONS (N_TOGETHER + 1) /* the last one recomputes everything, alone */
#define CHUNK 256

static const char *model_path;

static uint32_t next_random(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(*state >> 8) * below) >> 24);
}

struct text {
    int32_t ids[CONTEXT];
    unsigned n;
};

struct fixture {
    struct fm_model *model;
    struct fm_model_info info;
    struct fm_session *sessions[N_SESSIONS];
    struct text texts[N_SESSIONS];
    uint32_t random_state;
    /* What a progress function does: which session it cancels at which of its calls. */
    unsigned n_calls, moments[N_TOGETHER];
};

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static uint32_t draw(struct fixture *f, uint32_t below)
{
    return next_random(&f->random_state, below);
}

/* Returns a budget with hardly more than the minimum number of expert slots, even when all sessions
 * are full, so that experts are read all the time. */
static uint64_t tight_budget(const struct fm_model_options *options)
{
    struct fm_model_options headers = *options;
    struct fm_model *model;
    struct fm_plan plan = {.size = sizeof plan};
    struct fm_error err = {0};
    headers.metadata_only = true;
    must(fm_model_open(model_path, &headers, &model, &err), &err);
    must(fm_model_plan(model, options, &plan, &err), &err);
    fm_model_close(model);
    return plan.min_bytes + plan.memory_kv_max_bytes - plan.memory_kv_bytes + (1u << 20);
}

static void set_up(struct fixture *f, unsigned n_marks)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    options.n_threads = 2;
    options.n_sessions = N_SESSIONS;
    options.n_context = CONTEXT;
    options.n_marks = n_marks;
    options.prefill_chunk = CHUNK;
    options.elastic = FM_OFF;
    options.memory_bytes = tight_budget(&options);
    *f = (struct fixture){.random_state = 1 + n_marks};
    must(fm_model_open(model_path, &options, &f->model, &err), &err);
    f->info.size = sizeof f->info;
    fm_model_info(f->model, &f->info);
    for (unsigned i = 0; i < N_SESSIONS; i++)
        must(fm_session_open(f->model, &f->sessions[i], &err), &err);
}

static void tear_down(struct fixture *f)
{
    for (unsigned i = 0; i < N_SESSIONS; i++)
        fm_session_close(f->sessions[i]);
    fm_model_close(f->model);
    free(f);
}

static struct fixture *new_fixture(unsigned n_marks)
{
    struct fixture *f = malloc(sizeof *f);
    assert_non_null(f);
    set_up(f, n_marks);
    return f;
}

static void append(struct fixture *f, struct text *t, unsigned n)
{
    for (unsigned i = 0; i < n && t->n < CONTEXT; i++)
        t->ids[t->n++] = (int32_t)draw(f, f->info.vocabulary);
}

/* Checks that the session's tokens, computed alone from the beginning, give the same logits. */
static void same_as_alone(struct fixture *f, unsigned i)
{
    struct fm_session *alone = f->sessions[N_SESSIONS - 1];
    struct fm_error err = {0};
    fm_session_reset(alone);
    must(fm_session_eval(alone, f->texts[i].ids, f->texts[i].n, &err), &err);
    assert_int_equal(fm_session_position(f->sessions[i]), f->texts[i].n);
    assert_memory_equal(fm_session_ids(f->sessions[i]), f->texts[i].ids,
                        f->texts[i].n * sizeof f->texts[i].ids[0]);
    assert_memory_equal(fm_session_logits(f->sessions[i]), fm_session_logits(alone),
                        f->info.vocabulary * sizeof(float));
}

/* Checks the state of a cancelled session that was at position `before`. */
static void has_gone_back(const struct fixture *f, const struct fm_session *s, unsigned before)
{
    const unsigned position = fm_session_position(s);
    assert_true(position <= before);
    if (f->info.state_bytes == 0)
        assert_int_equal(position, before);
    if (position < before || before == 0)
        assert_null(fm_session_logits(s));
}

/* Progress is called for layers of the first rank only. */
#ifdef CANCEL_TAKES_TIME
#define MIN_CANCELLED 20
#else
#define MIN_CANCELLED 50
#endif

/* ---- several together ----------------------------------------------------------------------- */

/* Appends the next tokens of all sequences: a long prompt, a few tokens, or one. Some start
 * over. */
static size_t next_batch(struct fixture *f, struct fm_batch_item *items, unsigned *before)
{
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        struct text *t = &f->texts[i];
        if (draw(f, 6) == 0 || t->n > CONTEXT - 10) {
            t->n = 0;
            fm_session_reset(f->sessions[i]);
        }
        append(f, t, draw(f, 3) == 0 ? 1 : 1 + draw(f, draw(f, 3) == 0 ? 300 : 40));
        before[i] = fm_session_position(f->sessions[i]);
        items[i] = (struct fm_batch_item){f->sessions[i], t->ids + before[i], t->n - before[i], 1};
    }
    return N_TOGETHER;
}

static void cancel_when_it_is_time(void *ctx, uint64_t done, uint64_t total)
{
    struct fixture *f = ctx;
    (void)done, (void)total;
    for (unsigned i = 0; i < N_TOGETHER; i++)
        if (f->moments[i] == f->n_calls)
            fm_session_cancel(f->sessions[i]);
    f->n_calls++;
}

static void check_batch(struct fixture *f, int rc, const struct fm_batch_item *items,
                        const unsigned *before, unsigned n_seen[2])
{
    unsigned n_cancelled = 0;
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        if (items[i].rc == 0) {
            same_as_alone(f, i);
        } else {
            assert_int_equal(items[i].rc, FM_ERR_CANCELLED);
            has_gone_back(f, f->sessions[i], before[i]);
            n_cancelled++;
        }
        n_seen[items[i].rc != 0]++;
    }
    assert_int_equal(rc, n_cancelled > 0 ? FM_ERR_CANCELLED : 0);
}

/* A cancellation that comes too late for one evaluation cancels the next one. */
static void finish_all(struct fixture *f)
{
    struct fm_error err = {0};
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        struct text *t = &f->texts[i];
        fm_session_observe(f->sessions[i], NULL);
        for (int n_tries = 0; fm_session_position(f->sessions[i]) < t->n; n_tries++) {
            const unsigned at = fm_session_position(f->sessions[i]);
            const int rc = fm_session_eval(f->sessions[i], t->ids + at, t->n - at, &err);
            assert_true(rc == 0 || (rc == FM_ERR_CANCELLED && n_tries == 0));
        }
        if (t->n > 0)
            same_as_alone(f, i);
    }
}

static void test_random_layers(void **state)
{
    (void)state;
    struct fm_error err = {0};
    unsigned n_seen[2] = {0, 0};
    for (unsigned n_marks = 0; n_marks <= 4; n_marks += 2) {
        struct fixture *f = new_fixture(n_marks);
        const struct fm_observer observer = {.size = sizeof observer,
                                             .ctx = f, .progress = cancel_when_it_is_time};
        for (unsigned i = 0; i < N_TOGETHER; i++)
            fm_session_observe(f->sessions[i], &observer);
        for (int round = 0; round < 12; round++) {
            struct fm_batch_item items[N_TOGETHER];
            unsigned before[N_TOGETHER];
            const size_t n = next_batch(f, items, before);
            f->n_calls = 0;
            for (unsigned i = 0; i < N_TOGETHER; i++)
                f->moments[i] = draw(f, 2) == 0 ? UINT32_MAX
                                                : draw(f, 3 * N_TOGETHER * f->info.n_layers);
            const int rc = fm_eval_batch(f->model, items, n, &err);
            check_batch(f, rc, items, before, n_seen);
        }
        finish_all(f);
        tear_down(f);
    }
    print_message("%u evaluations whole, %u cancelled\n", n_seen[0], n_seen[1]);
    assert_true(n_seen[0] > 50 && n_seen[1] > MIN_CANCELLED);
}

/* ---- from another thread -------------------------------------------------------------------- */

struct canceller {
    struct fm_session *const *sessions;
    atomic_bool has_begun, is_over;
};

/* Cancels the first session at once, others at any time, and the last one never. So some are
 * cancelled and some are not, on a machine of any speed. */
static void *cancel_at_random(void *arg)
{
    struct canceller *c = arg;
    uint32_t random_state = 7;
    fm_session_cancel(c->sessions[0]);
    atomic_store(&c->has_begun, true);
    while (!atomic_load(&c->is_over)) {
        (void)usleep(next_random(&random_state, 3000));
        fm_session_cancel(c->sessions[next_random(&random_state, N_TOGETHER - 1)]);
    }
    return NULL;
}

static void test_another_thread(void **state)
{
    (void)state;
    struct fm_error err = {0};
    unsigned n_seen[2] = {0, 0};
    struct fixture *f = new_fixture(2);
    for (int round = 0; round < 30; round++) {
        struct fm_batch_item items[N_TOGETHER];
        unsigned before[N_TOGETHER];
        pthread_t thread;
        struct canceller c = {.sessions = f->sessions};
        const size_t n = next_batch(f, items, before);
        assert_int_equal(pthread_create(&thread, NULL, cancel_at_random, &c), 0);
        while (!atomic_load(&c.has_begun))
            (void)sched_yield();
        const int rc = fm_eval_batch(f->model, items, n, &err);
        atomic_store(&c.is_over, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        check_batch(f, rc, items, before, n_seen);
    }
    finish_all(f);
    print_message("%u evaluations whole, %u cancelled\n", n_seen[0], n_seen[1]);
    assert_true(n_seen[0] > 0 && n_seen[1] > 0);
    tear_down(f);
}

/* ---- how soon ------------------------------------------------------------------------------- */

struct watch {
    struct fm_session *session;
    unsigned cancels_at, last_layer, last_route;
};

#ifndef CANCEL_TAKES_TIME

static void note_hidden(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct watch *w = ctx;
    (void)position, (void)x, (void)n;
    w->last_layer = layer;
}

static void cancel_at_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                            const uint32_t *ids, const float *weights)
{
    struct watch *w = ctx;
    (void)position, (void)n, (void)ids, (void)weights;
    w->last_route = layer;
    if (layer == w->cancels_at)
        fm_session_cancel(w->session);
}

/* If a session is cancelled when a layer's experts are chosen, not even all of them are read. (A
 * cache that has room for all experts reads them in the background whatever sessions do.) */
static void test_within_a_layer(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fm_stats stats = {.size = sizeof stats}, after = {.size = sizeof after};
    unsigned n_dense = 0;
    struct fixture *f = new_fixture(0);
    append(f, &f->texts[0], CHUNK);
    for (unsigned layer = 0; layer < f->info.n_layers; layer++) {
        struct watch w = {.session = f->sessions[0], .cancels_at = layer};
        const struct fm_observer observer = {.size = sizeof observer,
                                             .ctx = &w, .hidden = note_hidden,
                                             .route = cancel_at_route};
        fm_session_observe(f->sessions[0], &observer);
        fm_model_stats(f->model, &stats);
        const int rc = fm_session_eval(f->sessions[0], f->texts[0].ids, CHUNK, &err);
        if (rc == 0) { /* a dense layer chooses no experts */
            assert_true(f->info.n_moe_layers < f->info.n_layers);
            fm_session_reset(f->sessions[0]);
            n_dense++;
            continue;
        }
        assert_int_equal(rc, FM_ERR_CANCELLED);
        fm_model_stats(f->model, &after);
        assert_int_equal(w.last_layer, layer);
        assert_int_equal(w.last_route, layer);
        const uint64_t n_read = (after.bytes_read - stats.bytes_read) / f->info.expert_bytes;
        assert_true(n_read < (layer + 1ull) * f->info.n_experts ||
                    after.n_cache_slots == (uint64_t)f->info.n_moe_layers * f->info.n_experts);
        has_gone_back(f, f->sessions[0], 0);
    }
    assert_int_equal(n_dense, f->info.n_layers - f->info.n_moe_layers);
    finish_all(f);
    tear_down(f);
}

#endif

/* ---- what is left --------------------------------------------------------------------------- */

static void cancel_at_layer(void *ctx, unsigned layer, unsigned position, const float *x,
                            unsigned n)
{
    const struct watch *w = ctx;
    (void)position, (void)x, (void)n;
    if (layer == w->cancels_at)
        fm_session_cancel(w->session);
}

/* Decodes token by token after a prompt. With attention alone, and from a mark at the end of the
 * prompt, a session keeps its position, its logits and their hash. */
static void test_nothing_is_lost(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fixture *f = new_fixture(2);
    struct fm_session *s = f->sessions[0], *twin = f->sessions[1];
    struct text *t = &f->texts[0];
    char hash[33], expected[33];
    append(f, t, 80);
    must(fm_session_eval(s, t->ids, t->n, &err), &err);
    must(fm_session_eval(twin, t->ids, t->n, &err), &err);
    for (unsigned layer = 0; layer < f->info.n_layers; layer++) {
        struct watch w = {.session = s, .cancels_at = layer};
        fm_session_observe(s, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                    .ctx = &w, .hidden = cancel_at_layer});
        assert_int_equal(fm_session_eval(s, t->ids, 1 + layer, &err), FM_ERR_CANCELLED);
        assert_int_equal(fm_session_position(s), 80);
        assert_memory_equal(fm_session_logits(s), fm_session_logits(twin),
                            f->info.vocabulary * sizeof(float));
        fm_session_logits_hash(s, hash);
        fm_session_logits_hash(twin, expected);
        assert_string_equal(hash, expected);
    }
    fm_session_observe(s, NULL);
    for (int i = 0; i < 3; i++) {
        must(fm_session_eval(s, t->ids + i, 1, &err), &err);
        must(fm_session_eval(twin, t->ids + i, 1, &err), &err);
    }
    fm_session_logits_hash(s, hash);
    fm_session_logits_hash(twin, expected);
    assert_string_equal(hash, expected);
    tear_down(f);
}

/* ---- twice ---------------------------------------------------------------------------------- */

static void cancel_always(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    fm_session_cancel(ctx);
}

/* A second request for the same evaluation, which another session goes on with, is answered by its
 * end, too. */
static void test_twice(void **state)
{
    (void)state;
    struct fm_error err = {0};
    struct fixture *f = new_fixture(0);
    struct fm_batch_item items[2];
    for (unsigned i = 0; i < 2; i++) {
        append(f, &f->texts[i], 20);
        items[i] = (struct fm_batch_item){f->sessions[i], f->texts[i].ids, 20, 1};
    }
    fm_session_observe(f->sessions[1], &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                             .ctx = f->sessions[0],
                                                             .progress = cancel_always});
    assert_int_equal(fm_eval_batch(f->model, items, 2, &err), FM_ERR_CANCELLED);
    assert_int_equal(items[0].rc, FM_ERR_CANCELLED);
    assert_int_equal(items[1].rc, 0);
    must(fm_session_eval(f->sessions[0], f->texts[0].ids, 20, &err), &err);
    same_as_alone(f, 0);
    same_as_alone(f, 1);
    tear_down(f);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_layers),
        cmocka_unit_test(test_another_thread),
#ifndef CANCEL_TAKES_TIME
        cmocka_unit_test(test_within_a_layer),
#endif
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
