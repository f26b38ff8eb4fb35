/* The gate in simulated worlds: passes take times that are given, with noise, and drafts are right
 * with given probabilities. The gate must come close to the best fixed number of drafts, and must
 * cost next to nothing where drafts are worth nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/splitmix.h"
#include "session/draft_gate.h"

#define N_DRAFTS 4
#define GATE UINT32_MAX /* as a number of drafts: what the gate chooses */

/* Times of passes with 1 to 5 rows, in ns, and how often a draft is right if those before it
 * are. */
struct world {
    double times[1 + N_DRAFTS], right[N_DRAFTS];
    double prediction; /* of one draft */
    double jitter;     /* a pass takes up to so many times as long, for no reason */
    double swing;      /* the whole machine is up to so many times as slow for some time */
    double spread;     /* half of the predicted drafts are sure, and so much more often right */
};

static const struct world resident = {{1e6, 1.36e6, 1.8e6, 2.1e6, 2.6e6}, {0.9, 0.75, 0.6, 0.5},
                                      0, 1.3, 1, 0};
static const struct world disk_bound = {{1e6, 1.95e6, 2.9e6, 3.8e6, 4.7e6}, {0.9, 0.75, 0.6, 0.5},
                                        0, 1.3, 1, 0};
static const struct world wrong = {{1e6, 1.4e6, 1.8e6, 2.2e6, 2.6e6}, {0.05, 0.05, 0.05, 0.05},
                                   0, 1.3, 1, 0};
static const struct world copying = {{1e6, 1.3e6, 1.5e6, 1.7e6, 1.9e6}, {0.98, 0.98, 0.98, 0.98},
                                     0, 1.3, 1, 0};

static double uniform(uint64_t *rng)
{
    return (double)(splitmix_next(rng) >> 11) * 0x1p-53;
}

struct run {
    struct draft_gate gate;
    uint64_t rng, n_passes;
    double ns;
    enum draft_source source;
    uint32_t sure[N_DRAFTS]; /* of the drafts at hand */
    uint32_t n_with[1 + N_DRAFTS]; /* passes by drafts */
};

/* Returns how often draft i is right: one of a source that is sure more often than the others. */
static double right_of(const struct run *run, const struct world *w, uint32_t i)
{
    const double right = w->right[i];
    return run->source != DRAFT_PREDICTED || w->spread == 0 ? right
           : run->sure[i] > 0                               ? right + w->spread : right - w->spread;
}

/* Has the gate choose. *n_made: drafts that the model's own block made. */
static uint32_t choose(struct run *run, const struct world *w, struct draft_pass *pass,
                       uint32_t *n_made)
{
    struct draft_chain chain = {.is_right = 1};
    const uint32_t n = draft_gate_choose(&run->gate, run->source, 0, pass, N_DRAFTS);
    if (run->source != DRAFT_PREDICTED)
        return n;
    enum draft_verdict verdict = DRAFT_GO_ON;
    while (chain.n < n && verdict == DRAFT_GO_ON) {
        const uint32_t at = chain.n;
        run->sure[at] = w->spread > 0 && uniform(&run->rng) < 0.5 ? DRAFT_SURE - 1 : 0;
        verdict = draft_gate_judge(&run->gate, &chain, run->sure[at], pass, n);
        ++*n_made;
    }
    return chain.n;
}

/* Runs passes until there are so many tokens. */
static void decode(struct run *run, const struct world *w, uint32_t n_drafts, uint32_t n_tokens)
{
    for (uint32_t done = 0; done < n_tokens; run->n_passes++) {
        struct draft_pass pass = {1, 1};
        uint32_t n_made = 0;
        const uint32_t n = n_drafts == GATE ? choose(run, w, &pass, &n_made) : n_drafts;
        const double made = w->prediction * (n_drafts == GATE ? n_made : n);
        const double noise = 1 + (w->jitter - 1) * uniform(&run->rng);
        const bool is_slow = run->n_passes / 50 % 2 != 0;
        const double ns = w->times[n] * noise * (is_slow ? w->swing : 1);
        if (made > 0)
            draft_gate_prediction(&run->gate, n_made, (uint64_t)made);
        draft_gate_time(&run->gate, 1 + n, (uint64_t)ns);
        run->n_with[n]++;
        run->ns += ns + made;
        done++;
        bool is_right = true;
        for (uint32_t i = 0; i < n && is_right; i++) {
            is_right = uniform(&run->rng) < right_of(run, w, i);
            draft_gate_result(&run->gate, run->source, run->sure[i], i, is_right);
            done += is_right;
        }
    }
}

static double time_with(const struct world *w, uint32_t n_drafts, uint32_t n_tokens)
{
    struct run run = {.rng = 7, .source = DRAFT_LOOKED_UP};
    draft_gate_init(&run.gate, false);
    decode(&run, w, n_drafts, n_tokens);
    return run.ns;
}

static double best_time(const struct world *w, uint32_t n_tokens)
{
    double best = 0;
    for (uint32_t n = 0; n <= N_DRAFTS; n++) {
        const double ns = time_with(w, n, n_tokens);
        best = best == 0 || ns < best ? ns : best;
    }
    return best;
}

static void expect_near_best(const struct world *w)
{
    const double best = best_time(w, 8000), gate = time_with(w, GATE, 8000);
    if (gate > 1.03 * best)
        fail_msg("%.3f times as long as the best number of drafts", gate / best);
}

static void expect_no_loss(const struct world *w)
{
    const double none = time_with(w, 0, 8000), gate = time_with(w, GATE, 8000);
    if (gate > 1.02 * none)
        fail_msg("%.3f times as long as without drafts", gate / none);
}

static void test_near_the_best(void **state)
{
    (void)state;
    expect_near_best(&resident);
    expect_near_best(&copying);
    expect_near_best(&disk_bound);
    expect_near_best(&wrong);
}

static void test_no_loss(void **state)
{
    (void)state;
    expect_no_loss(&disk_bound);
    expect_no_loss(&wrong);
    struct world dear = wrong; /* every row takes as long as a pass, and no draft is right */
    for (uint32_t i = 0; i < N_DRAFTS; i++) {
        dear.times[1 + i] = (2 + i) * 1e6;
        dear.right[i] = 0;
    }
    expect_no_loss(&dear);
}

/* Something else uses the machine for some time: every pass takes three times as long, or a pass
 * takes five times as long without a reason. */
static void test_noise(void **state)
{
    (void)state;
    struct world w = resident;
    w.swing = 3;
    expect_near_best(&w);
    w = wrong;
    w.swing = 3;
    expect_no_loss(&w);
    w.jitter = 5;
    expect_no_loss(&w);
}

/* Drafts of the model's own block take time before the pass. */
static void test_predicted(void **state)
{
    struct run run = {.rng = 3, .source = DRAFT_PREDICTED};
    struct world w = resident;
    (void)state;
    draft_gate_init(&run.gate, false);
    w.prediction = 0.9e6; /* so long that a draft is never worth it */
    decode(&run, &w, GATE, 4000);
    assert_true(run.n_with[0] > 0.97 * (double)run.n_passes);
    w.prediction = 0.05e6;
    decode(&run, &w, GATE, 4000); /* it notices */
    const struct run before = run;
    decode(&run, &w, GATE, 2000);
    assert_true(run.n_with[0] - before.n_with[0] < 200);
}

/* Of drafts that are right half of the time, those are computed that the block is sure of. Without
 * knowing that, none would be worth it. */
static void test_sure(void **state)
{
    static const struct world w = {.times = {1e6, 1.3e6, 1.6e6, 1.9e6, 2.2e6},
                                   .right = {0.5, 0.5, 0.3, 0.3},
                                   .prediction = 0.1e6, .jitter = 1.2, .swing = 1, .spread = 0.45};
    struct run run = {.rng = 11, .source = DRAFT_PREDICTED};
    (void)state;
    draft_gate_init(&run.gate, false);
    decode(&run, &w, GATE, 500);
    const double before = run.ns;
    decode(&run, &w, GATE, 8000);
    const double plain = 8000 * 1e6 * (1 + (w.jitter - 1) / 2);
    if (run.ns - before > 0.93 * plain)
        fail_msg("%.3f times as long as without drafts", (run.ns - before) / plain);
    struct world even = w;
    even.spread = 0;
    even.right[0] = 0.35;
    struct run same = {.rng = 11, .source = DRAFT_PREDICTED};
    draft_gate_init(&same.gate, false);
    decode(&same, &even, GATE, 8000);
    if (same.ns > 1.02 * plain)
        fail_msg("%.3f times as long as without drafts", same.ns / plain);
}

/* A head over a part of the vocabulary takes less time and misses drafts. */
static void test_heads(void **state)
{
    static const double shares[DRAFT_HEADS] = {0.125, 0.25, 0.5, 1};
    uint64_t rng = 1;
    (void)state;
    /* Tokens of the last half never come, and those of the second eighth often do; then all come
     * as often. */
    for (unsigned even = 0; even < 2; even++) {
        struct draft_gate gate;
        uint32_t n_with[DRAFT_HEADS] = {0};
        draft_gate_init(&gate, false);
        draft_gate_time(&gate, 1, 1000000);
        for (uint32_t i = 0; i < 4000; i++) {
            struct draft_pass pass = {1, 1};
            struct draft_chain chain = {.is_right = 1};
            const double token = even ? uniform(&rng) : 0.25 * uniform(&rng);
            bool in_part[DRAFT_HEADS];
            for (uint32_t h = 0; h < DRAFT_HEADS; h++)
                in_part[h] = token < shares[h];
            draft_gate_token(&gate, in_part);
            const uint32_t n = draft_gate_choose(&gate, DRAFT_PREDICTED, 0, &pass, N_DRAFTS);
            draft_gate_time(&gate, 1, 1000000);
            draft_gate_time(&gate, 2, 1200000);
            if (n == 0)
                continue;
            n_with[gate.head] += i > 200;
            (void)draft_gate_judge(&gate, &chain, 5, &pass, n);
            draft_gate_prediction(&gate, 1, (uint64_t)(100e3 + 200e3 * shares[gate.head]));
            draft_gate_result(&gate, DRAFT_PREDICTED, 5, 0, uniform(&rng) < 0.9);
        }
        const uint32_t best = even ? DRAFT_HEADS - 1 : 1;
        for (uint32_t h = 0; h < DRAFT_HEADS; h++)
            if (h != best)
                assert_true(20 * n_with[h] < n_with[best]);
    }
}

/* What drafts are worth changes: the gate follows within a few hundred tokens. */
static void test_change(void **state)
{
    static const struct world *const worlds[] = {&copying, &wrong, &resident, &disk_bound,
                                                 &copying};
    struct run run = {.rng = 5, .source = DRAFT_LOOKED_UP};
    (void)state;
    draft_gate_init(&run.gate, false);
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        decode(&run, worlds[i], GATE, 600);
        const double before = run.ns;
        decode(&run, worlds[i], GATE, 4000);
        const double best = best_time(worlds[i], 4000);
        if (run.ns - before > 1.05 * best)
            fail_msg("world %zu: %.3f times as long as the best number", i,
                     (run.ns - before) / best);
    }
}

/* Predicted drafts that were wrong for some time, or a first pass with them that was slow for no
 * reason, do not shut the gate for long. */
static void test_recovery(void **state)
{
    static const struct world bad = {{1e6, 1.3e6, 1.5e6, 1.7e6, 1.9e6}, {0, 0, 0, 0}, 1e5, 1, 1, 0};
    static const struct world good = {{1e6, 1.3e6, 1.5e6, 1.7e6, 1.9e6}, {1, 1, 1, 1}, 1e5, 1, 1,
                                      0};
    static const struct world slow = {{1e6, 1e7, 1e7, 1e7, 1e7}, {1, 1, 1, 1}, 1e5, 1, 1, 0};
    static const struct world *const first[] = {&bad, &slow};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct run run = {.rng = 11, .source = DRAFT_PREDICTED};
        draft_gate_init(&run.gate, false);
        decode(&run, first[i], GATE, i == 0 ? 400 : 6);
        decode(&run, &good, GATE, 1500);
        const uint64_t n_before = run.n_passes;
        decode(&run, &good, GATE, 400);
        if (run.n_passes - n_before > 250)
            fail_msg("%u passes for 400 tokens after a bad beginning",
                     (unsigned)(run.n_passes - n_before));
    }
}

/* Sources are known apart. */
static void test_sources(void **state)
{
    struct run run = {.rng = 9, .source = DRAFT_LOOKED_UP};
    (void)state;
    draft_gate_init(&run.gate, false);
    decode(&run, &wrong, GATE, 2000);
    run.source = DRAFT_GIVEN;
    const struct run before = run;
    decode(&run, &copying, GATE, 200);
    assert_true(run.n_with[N_DRAFTS] > before.n_with[N_DRAFTS] + 20);
}

/* An open gate lets all through; rows that are not remembered are never added. */
static void test_open_and_rows(void **state)
{
    struct draft_gate gate;
    struct draft_pass pass = {1, 1};
    (void)state;
    draft_gate_init(&gate, true);
    assert_int_equal(draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS), N_DRAFTS);
    assert_int_equal(pass.n_rows, 1 + N_DRAFTS);
    assert_true(pass.n_tokens > 1 && pass.n_tokens < 1 + N_DRAFTS);
    pass.n_rows = DRAFT_ROWS - 1;
    assert_int_equal(draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS), 1);
    assert_int_equal(draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS), 0);
    pass.n_rows = DRAFT_ROWS + 100;
    assert_int_equal(draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS), 0);
    draft_gate_time(&gate, DRAFT_ROWS + 1, 1); /* is not remembered */
    draft_gate_init(&gate, false);
    pass = (struct draft_pass){1, 1};
    assert_int_equal(draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS), 0); /* first
                                                                   the time without drafts */
    assert_int_equal(pass.n_rows, 1);
}

/* In a batch, drafts of one session count for what the next one may add. */
static void test_batch(void **state)
{
    struct draft_gate gate;
    (void)state;
    draft_gate_init(&gate, false);
    for (uint32_t i = 0; i < 50; i++) {
        draft_gate_time(&gate, 8, 4000000);
        draft_gate_time(&gate, 16, 4400000); /* rows cost little up to here, */
        draft_gate_time(&gate, 17, 9000000); /* and much from here on */
        for (uint32_t at = 0; at < N_DRAFTS; at++)
            draft_gate_result(&gate, DRAFT_LOOKED_UP, 0, at, true);
    }
    struct draft_pass pass = {8, 8};
    for (uint32_t i = 0; i < 8; i++)
        (void)draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS);
    assert_in_range(pass.n_rows, 12, 17); /* 17: a probe */
}

/* Passes whose time is remembered have DRAFT_ROWS rows at most. */
static void test_many_rows(void **state)
{
    struct draft_gate gate;
    (void)state;
    draft_gate_init(&gate, false);
    for (uint32_t i = 0; i < 2000; i++) {
        struct draft_pass pass = {62, 62};
        const uint32_t n = draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS);
        assert_in_range(n, 0, DRAFT_ROWS - 62);
        assert_int_equal(pass.n_rows, 62 + n);
        draft_gate_time(&gate, pass.n_rows, 1000000);
        draft_gate_result(&gate, DRAFT_LOOKED_UP, 0, 0, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_the_best), cmocka_unit_test(test_no_loss),
        cmocka_unit_test(test_noise),         cmocka_unit_test(test_predicted),
        cmocka_unit_test(test_sure),          cmocka_unit_test(test_heads),
        cmocka_unit_test(test_change),        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_recovery),
        cmocka_unit_test(test_open_and_rows), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
