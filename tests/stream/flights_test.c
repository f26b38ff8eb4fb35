/* flights_test MODEL: several evaluations of one model under way at a time, ended in any order,
 * some cancelled, some observed, while other sessions are used and the host rounds upwards. Every
 * session gives the same bits as alone. */
#include <fenv.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define CONTEXT 512
#define N_TOGETHER 7
#define OTHER N_TOGETHER       /* is used while the others are evaluated */
#define ALONE (N_TOGETHER + 1) /* recomputes everything */
#define N_SESSIONS (N_TOGETHER + 2)
#define MAX_GROUPS 5
#define N_ROUNDS 40

static const char *model_path;

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
    unsigned n_whole, n_cancelled, n_overlapping;
    unsigned n_seen[N_TOGETHER]; /* hidden states of the last layer, of the evaluation at hand */
};

static uint32_t draw(struct fixture *f, uint32_t below)
{
    f->random_state = f->random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(f->random_state >> 8) * below) >> 24);
}

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

/* Prompts take several passes each. */
static struct fixture *set_up(void)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    assert_non_null(f);
    f->random_state = 5;
    options.n_threads = 1;
    options.n_sessions = N_SESSIONS;
    options.n_context = CONTEXT;
    options.n_marks = 3;
    options.prefill_chunk = 24;
    options.elastic = FM_OFF;
    must(fm_model_open(model_path, &options, &f->model, &err), &err);
    f->info.size = sizeof f->info;
    fm_model_info(f->model, &f->info);
    for (unsigned i = 0; i < N_SESSIONS; i++)
        must(fm_session_open(f->model, &f->sessions[i], &err), &err);
    return f;
}

static void tear_down(struct fixture *f)
{
    for (unsigned i = 0; i < N_SESSIONS; i++)
        fm_session_close(f->sessions[i]);
    fm_model_close(f->model);
    free(f);
}

static void append(struct fixture *f, struct text *t, unsigned n)
{
    for (unsigned i = 0; i < n && t->n < CONTEXT; i++)
        t->ids[t->n++] = (int32_t)draw(f, f->info.vocabulary);
}

static void same_as_alone(struct fixture *f, unsigned i)
{
    struct fm_session *alone = f->sessions[ALONE];
    struct fm_error err = {0};
    fm_session_reset(alone);
    must(fm_session_eval(alone, f->texts[i].ids, f->texts[i].n, &err), &err);
    assert_int_equal(fm_session_position(f->sessions[i]), f->texts[i].n);
    assert_memory_equal(fm_session_ids(f->sessions[i]), f->texts[i].ids,
                        f->texts[i].n * sizeof f->texts[i].ids[0]);
    assert_memory_equal(fm_session_logits(f->sessions[i]), fm_session_logits(alone),
                        f->info.vocabulary * sizeof(float));
}

/* ---- observers ------------------------------------------------------------------------------- */

struct view {
    struct fixture *f;
    unsigned i, first; /* which session, and its position when the evaluation began */
};

static struct view views[N_TOGETHER];

static void see_hidden(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct view *v = ctx;
    (void)x, (void)n;
    if (layer + 1 != v->f->info.n_layers)
        return;
    assert_int_equal(position, v->first + v->f->n_seen[v->i]); /* one pass after the other */
    v->f->n_seen[v->i]++;
}

static void see_times(void *ctx, const struct fm_layer_profile *profile)
{
    (void)ctx, (void)profile;
}

/* Nobody, or somebody who sees what happens inside a pass. */
static void observe(struct fixture *f, unsigned i)
{
    struct fm_observer observer = {.size = sizeof observer, .ctx = &views[i]};
    const uint32_t what = draw(f, 6);
    views[i] = (struct view){f, i, fm_session_position(f->sessions[i])};
    f->n_seen[i] = 0;
    observer.hidden = what == 0 ? see_hidden : NULL;
    observer.profile = what == 1 ? see_times : NULL;
    fm_session_observe(f->sessions[i], &observer);
}

/* ---- groups under way ------------------------------------------------------------------------ */

struct group {
    struct fm_evaluation *evaluation;
    struct fm_batch_item items[N_TOGETHER];
    unsigned sessions[N_TOGETHER];
    size_t n;
};

/* Gives a session its next tokens: one, a few, or a prompt of several passes. */
static void add_item(struct fixture *f, struct group *g, unsigned i)
{
    struct text *t = &f->texts[i];
    if (draw(f, 8) == 0 || t->n > CONTEXT - 120) {
        t->n = 0;
        fm_session_reset(f->sessions[i]);
    }
    append(f, t, draw(f, 2) == 0 ? 1 : 1 + draw(f, draw(f, 2) == 0 ? 100 : 10));
    const unsigned at = fm_session_position(f->sessions[i]);
    observe(f, i);
    g->sessions[g->n] = i;
    g->items[g->n++] = (struct fm_batch_item){f->sessions[i], t->ids + at, t->n - at, 1};
}

static unsigned make_groups(struct fixture *f, struct group *groups)
{
    const unsigned n = 1 + draw(f, MAX_GROUPS);
    unsigned n_filled = 0;
    for (unsigned g = 0; g < n; g++)
        groups[g].n = 0;
    for (unsigned i = 0; i < N_TOGETHER; i++)
        add_item(f, &groups[draw(f, n)], i);
    for (unsigned g = 0; g < n; g++)
        if (groups[g].n > 0)
            groups[n_filled++] = groups[g];
    return n_filled;
}

/* What a server does meanwhile: another prompt, a rewind, a look at the numbers. */
static void use_another(struct fixture *f)
{
    struct fm_session *s = f->sessions[OTHER];
    struct text *t = &f->texts[OTHER];
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_error err = {0};
    double recall;
    if (draw(f, 2) == 0)
        (void)fm_model_recall(f->model, f->info.n_moe_layers - 1, &recall); /* passes come back */
    if (t->n > CONTEXT - 80 || draw(f, 3) == 0) {
        t->n = draw(f, t->n + 1);
        t->n = t->n > 0 ? fm_session_rewind(s, t->ids, t->n) : 0;
        if (t->n == 0)
            fm_session_reset(s);
    }
    append(f, t, 1 + draw(f, 60));
    const unsigned at = fm_session_position(s);
    must(fm_session_eval(s, t->ids + at, t->n - at, &err), &err);
    fm_model_stats(f->model, &stats);
}

static void end_group(struct fixture *f, struct group *g)
{
    struct fm_error err = {0};
    unsigned n_cancelled = 0;
    const int rc = fm_eval_end(g->evaluation, &err);
    for (size_t i = 0; i < g->n; i++) {
        struct text *t = &f->texts[g->sessions[i]];
        const unsigned n_seen = f->n_seen[g->sessions[i]];
        if (g->items[i].rc == 0) {
            assert_true(n_seen == 0 || n_seen == g->items[i].n_ids);
            f->n_whole++;
            if (draw(f, 3) == 0) /* while others are under way */
                same_as_alone(f, g->sessions[i]);
            continue;
        }
        assert_int_equal(g->items[i].rc, FM_ERR_CANCELLED);
        t->n = fm_session_position(g->items[i].session);
        n_cancelled++;
    }
    f->n_cancelled += n_cancelled;
    assert_int_equal(rc, n_cancelled > 0 ? FM_ERR_CANCELLED : 0);
}

static void run_round(struct fixture *f)
{
    struct group groups[MAX_GROUPS], *left[MAX_GROUPS];
    struct fm_evaluation *again;
    struct fm_error err = {0};
    unsigned n = make_groups(f, groups);
    f->n_overlapping += n > 1;
    for (unsigned g = 0; g < n; g++) {
        must(fm_eval_begin(f->model, groups[g].items, groups[g].n, &groups[g].evaluation, &err),
             &err);
        if (draw(f, 4) == 0)
            fm_session_cancel(groups[g].items[draw(f, (uint32_t)groups[g].n)].session);
        if (draw(f, 4) == 0)
            use_another(f);
    }
    struct fm_batch_item taken = groups[0].items[0];
    assert_int_equal(fm_eval_begin(f->model, &taken, 1, &again, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "already"));
    for (unsigned g = 0; g < n; g++)
        left[g] = &groups[g];
    while (n > 0) {
        const unsigned g = draw(f, n);
        end_group(f, left[g]);
        left[g] = left[--n];
    }
}

/* A cancellation that came too late for its evaluation, or a text that went back, leaves no
 * logits: the next token brings them. */
static void check_all(struct fixture *f)
{
    struct fm_error err = {0};
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        append(f, &f->texts[i], 1);
        fm_session_observe(f->sessions[i], NULL);
        const int32_t *last = &f->texts[i].ids[f->texts[i].n - 1];
        int rc = fm_session_eval(f->sessions[i], last, 1, &err);
        if (rc == FM_ERR_CANCELLED) {
            const unsigned at = fm_session_position(f->sessions[i]);
            rc = fm_session_eval(f->sessions[i], f->texts[i].ids + at, f->texts[i].n - at, &err);
        }
        must(rc, &err);
        same_as_alone(f, i);
    }
}

static void test_flights(void **state)
{
    (void)state;
    struct fixture *f = set_up();
    (void)fesetround(FE_UPWARD);
    for (int round = 0; round < N_ROUNDS; round++) {
        run_round(f);
        if (round % 4 == 3)
            check_all(f);
    }
    (void)fesetround(FE_TONEAREST);
    print_message("%u evaluations whole, %u cancelled, %u rounds with several\n", f->n_whole,
                  f->n_cancelled, f->n_overlapping);
    assert_true(f->n_whole > 100 && f->n_cancelled > 0 && f->n_overlapping > 20);
    tear_down(f);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    model_path = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
