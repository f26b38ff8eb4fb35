/* Passes of one session and of a crowd in a world where drafts are faster, slower, or change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "session/draft_trial.h"

#define CROWD 8

/* A pass with drafts takes so many times as long and gives so many times the tokens. */
struct world {
    double time, tokens;
    double noise; /* the machine is up to so many times as slow, for a while */
    double change; /* the first passes of another way take so many times as long; 0: as long */
};

struct run {
    struct draft_trials trials;
    uint32_t n_sessions;
    uint32_t random_state;
    double slow;       /* now */
    bool was_plain;
    unsigned n_since; /* passes since the way changed */
    double n_tokens, ns; /* of all */
    double plain_ns;   /* that the same tokens would have taken without drafts */
};

static double draw(struct run *r)
{
    r->random_state = r->random_state * 1664525u + 1013904223u;
    return (double)(r->random_state >> 8) / (1 << 24);
}

static void pass(struct run *r, const struct world *w)
{
    if (draw(r) < 0.02)
        r->slow = 1 + (w->noise - 1) * draw(r);
    const bool is_plain = draft_trials_begin(&r->trials, r->n_sessions);
    const double n = r->n_sessions * (is_plain ? 1 : w->tokens);
    r->n_since = is_plain == r->was_plain ? r->n_since + 1 : 0;
    r->was_plain = is_plain;
    const double change = w->change > 0 && r->n_since < 6 ? w->change : 1;
    const double ns = 1e6 * r->slow * change * (is_plain ? 1 : w->time) * (0.95 + 0.1 * draw(r));
    draft_trials_note(&r->trials, r->n_sessions, r->n_sessions, (uint64_t)ns, true);
    if (!is_plain) /* they are taken before the next pass */
        draft_trials_note(&r->trials, 0, (uint64_t)(n - r->n_sessions + draw(r)), 1000, true);
    r->n_tokens += n;
    r->ns += ns;
    r->plain_ns += 1e6 * r->slow * n / r->n_sessions;
}

/* Returns how many times as fast as without drafts so many passes are. */
static double speedup(struct run *r, const struct world *w, unsigned n_passes)
{
    r->ns = r->plain_ns = r->n_tokens = 0;
    for (unsigned i = 0; i < n_passes; i++)
        pass(r, w);
    return r->plain_ns / r->ns;
}

static void test_worlds_of(uint32_t n_sessions)
{
    static const struct world worlds[] = {
        {1.5, 1.2, 1, 0}, {1.2, 1.15, 1, 0}, {1.3, 1.8, 1, 0}, {1.5, 1.2, 1.5, 0},
        {1.3, 1.8, 1.5, 0}};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        const struct world *w = &worlds[i];
        const double always = w->tokens / w->time, best = always > 1 ? always : 1;
        struct run r = {.n_sessions = n_sessions, .random_state = 7, .slow = 1};
        const double got = speedup(&r, w, 6000);
        print_message("always %.3f, got %.3f\n", always, got);
        assert_true(got > (w->noise > 1 ? 0.95 : 0.97) * best);
    }
}

static void test_worlds(void **state)
{
    (void)state;
    test_worlds_of(1);
    test_worlds_of(CROWD);
}

static void test_change(void **state)
{
    (void)state;
    const struct world good = {1.3, 1.8, 1, 0}, bad = {1.5, 1.2, 1, 0};
    struct run r = {.n_sessions = CROWD, .random_state = 3, .slow = 1};
    (void)speedup(&r, &good, 3000);
    (void)speedup(&r, &bad, 1500);
    assert_true(speedup(&r, &bad, 3000) > 0.97);
    (void)speedup(&r, &good, 1500);
    assert_true(speedup(&r, &good, 3000) > 0.95 * 1.8 / 1.3);
}

/* Passes that read the experts of the other way first say nothing: drafts are a tenth slower. */
static void test_settling(void **state)
{
    (void)state;
    const struct world w = {.time = 1.3, .tokens = 1.18, .noise = 1, .change = 2};
    struct run r = {.n_sessions = 1, .random_state = 5, .slow = 1};
    (void)speedup(&r, &w, 3000);
    assert_true(r.trials.kinds[0].is_plain);
    (void)speedup(&r, &w, 3000);
    assert_true(r.trials.kinds[0].is_plain);
}

/* Numbers of sessions have trials of their own, and passes that both ways share count in none. */
static void test_kinds(void **state)
{
    (void)state;
    struct run r = {.n_sessions = CROWD, .random_state = 1, .slow = 1};
    (void)speedup(&r, &(struct world){2, 1, 1, 0}, 500);
    assert_true(r.trials.kinds[3].is_plain);
    assert_false(draft_trials_begin(&r.trials, 1));
    const double before = r.trials.kinds[3].n_tokens;
    draft_trials_note(&r.trials, 1, 1, 1000, true);
    draft_trials_note(&r.trials, 0, 3, 1000, true);
    assert_true(r.trials.kinds[3].n_tokens == before && r.trials.kinds[0].n_tokens == 4);
    draft_trials_note(&r.trials, 1, 1, 1000, false);
    draft_trials_note(&r.trials, 0, 3, 1000, true);
    assert_true(r.trials.kinds[0].n_tokens == 4 && r.trials.kinds[0].n_passes == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worlds),
                                       cmocka_unit_test(test_change),
                                       cmocka_unit_test(test_settling),
                                       cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
