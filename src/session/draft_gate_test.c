/* The gate in simulated worlds: passes take times that are given, with noise, and drafts are right
 * with given probabilities. The gate must come close to the best fixed number of drafts, and must
 * cost next to nothing where drafts are worth nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
    if (run->source != DRAFT_PREDICTED)
        return draft_gate_choose(&run->gate, run->source, 0, pass, N_DRAFTS);
    const uint32_t n = draft_gate_chains(&run->gate, pass, 1, N_DRAFTS);
    bool goes_on = n > 0;
    while (goes_on) {
        const uint32_t at = chain.n;
        run->sure[at] = w->spread > 0 && uniform(&run->rng) < 0.5 ? DRAFT_SURE - 1 : 0;
        (void)draft_gate_judge(&run->gate, &chain, run->sure[at], pass, n);
        goes_on = draft_gate_goes_on(&run->gate, pass);
        ++*n_made;
    }
    return chain.n;
}

/* Runs passes until there are so many tokens. */
static void decode(struct run *run, const struct world *w, uint32_t n_drafts, uint32_t n_tokens)
{
    for (uint32_t done = 0; done < n_tokens; run->n_passes++) {
        struct draft_pass pass;
        uint32_t n_made = 0;
        draft_gate_begin(&run->gate, &pass, 1);
        const uint32_t n = n_drafts == GATE ? choose(run, w, &pass, &n_made) : n_drafts;
        const double made = w->prediction * (n_drafts == GATE ? n_made : n);
        const double noise = 1 + (w->jitter - 1) * uniform(&run->rng);
        const bool is_slow = run->n_passes / 50 % 2 != 0;
        const double ns = w->times[n] * noise * (is_slow ? w->swing : 1);
        if (n_drafts == GATE)
            draft_gate_end(&run->gate, &pass);
        draft_gate_prediction(&run->gate, &pass, (uint64_t)made);
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
            struct draft_pass pass;
            struct draft_chain chain = {.is_right = 1};
            const double token = even ? uniform(&rng) : 0.25 * uniform(&rng);
            bool in_part[DRAFT_HEADS];
            for (uint32_t h = 0; h < DRAFT_HEADS; h++)
                in_part[h] = token < shares[h];
            draft_gate_token(&gate, in_part);
            draft_gate_begin(&gate, &pass, 1);
            const uint32_t n = draft_gate_chains(&gate, &pass, 1, N_DRAFTS);
            draft_gate_time(&gate, 1, 1000000);
            draft_gate_time(&gate, 2, 1200000);
            if (n > 0) {
                (void)draft_gate_judge(&gate, &chain, 5, &pass, n);
                (void)draft_gate_goes_on(&gate, &pass);
            }
            draft_gate_end(&gate, &pass);
            if (n == 0)
                continue;
            n_with[gate.head] += i > 200;
            draft_gate_prediction(&gate, &pass, (uint64_t)(100e3 + 200e3 * shares[gate.head]));
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
    struct draft_pass pass;
    (void)state;
    draft_gate_init(&gate, true);
    draft_gate_begin(&gate, &pass, 1);
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
    draft_gate_begin(&gate, &pass, 1);
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
    struct draft_pass pass;
    draft_gate_begin(&gate, &pass, 8);
    for (uint32_t i = 0; i < 8; i++)
        (void)draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS);
    assert_in_range(pass.n_rows, 12, 17); /* 17: a probe */
}

/* ---- a batch of sessions --------------------------------------------------------------------- */

#define N_SESSIONS 8

/* Each session has drafts of its source, of which so many are right. A pass takes `pass` and `row`
 * for each row; drafts of the block for all sessions take `prediction`. */
struct crowd {
    enum draft_source sources[N_SESSIONS];
    double right[N_SESSIONS];
    double pass, row, prediction;
    double jitter; /* a pass takes up to so many times as long, for no reason; 0: a little */
};

struct crowd_run {
    struct draft_gate gate;
    uint64_t rng;
    double ns;
    uint32_t n_tokens, n_passes, n_plain; /* passes; those without any draft */
    uint32_t n_drafts[N_SESSIONS];
};

/* Makes the chains of a pass. Returns how many depths were made. */
static uint32_t make_chains(struct crowd_run *run, const struct crowd *c, struct draft_pass *pass,
                            struct draft_chain chains[N_SESSIONS])
{
    uint32_t n_can = 0, n_left, n_made = 0;
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        n_can += c->sources[i] == DRAFT_PREDICTED;
    const uint32_t n = draft_gate_chains(&run->gate, pass, n_can, N_DRAFTS);
    bool goes_on[N_SESSIONS] = {false};
    n_left = pass->n_chains;
    for (uint32_t i = 0; i < N_SESSIONS && n > 0; i++) {
        goes_on[i] = c->sources[i] == DRAFT_PREDICTED && n_left > 0;
        n_left -= goes_on[i];
    }
    for (bool more = pass->n_chains > 0; more; n_made++) {
        for (uint32_t i = 0; i < N_SESSIONS; i++)
            if (goes_on[i])
                goes_on[i] = draft_gate_judge(&run->gate, &chains[i], 2, pass, n) == DRAFT_GO_ON;
        more = draft_gate_goes_on(&run->gate, pass);
    }
    return n_made;
}

static void crowd_pass(struct crowd_run *run, const struct crowd *c)
{
    struct draft_pass pass;
    struct draft_chain chains[N_SESSIONS];
    draft_gate_begin(&run->gate, &pass, N_SESSIONS);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        chains[i] = (struct draft_chain){.is_right = 1};
        if (c->sources[i] != DRAFT_PREDICTED)
            chains[i].n = draft_gate_choose(&run->gate, c->sources[i], 2, &pass, N_DRAFTS);
    }
    const uint32_t n_made = make_chains(run, c, &pass, chains);
    draft_gate_end(&run->gate, &pass);
    draft_gate_prediction(&run->gate, &pass, (uint64_t)(n_made * c->prediction));
    const double jitter = c->jitter > 0 ? c->jitter : 1.05;
    const double noise = 1 + (jitter - 1) * uniform(&run->rng);
    const double ns = (c->pass + c->row * pass.n_rows) * noise;
    draft_gate_time(&run->gate, pass.n_rows, (uint64_t)ns);
    run->ns += ns + n_made * c->prediction;
    run->n_passes++;
    run->n_plain += pass.n_rows == N_SESSIONS;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        bool is_right = true;
        run->n_tokens++;
        run->n_drafts[i] += chains[i].n;
        for (uint32_t at = 0; at < chains[i].n && is_right; at++) {
            is_right = uniform(&run->rng) < c->right[i];
            draft_gate_result(&run->gate, c->sources[i], 2, at, is_right);
            run->n_tokens += is_right;
        }
    }
}

static void crowd_decode(struct crowd_run *run, const struct crowd *c, uint32_t n_passes)
{
    for (uint32_t i = 0; i < n_passes; i++)
        crowd_pass(run, c);
}

/* Where drafts are worth it, a pass without any shows now and then what drafts cost. In a batch,
 * that is a pass in which no session has one. */
static void test_plain_passes(void **state)
{
    static const struct crowd all_right = {
        .sources = {DRAFT_LOOKED_UP, DRAFT_LOOKED_UP, DRAFT_LOOKED_UP, DRAFT_LOOKED_UP,
                    DRAFT_LOOKED_UP, DRAFT_LOOKED_UP, DRAFT_LOOKED_UP, DRAFT_LOOKED_UP},
        .right = {0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}, .pass = 1e6, .row = 2e4};
    struct crowd_run run = {.rng = 1};
    (void)state;
    draft_gate_init(&run.gate, false);
    crowd_decode(&run, &all_right, 100);
    const uint32_t before = run.n_plain;
    crowd_decode(&run, &all_right, 3200);
    assert_in_range(run.n_plain - before, 90, 110); /* one of 32 */
}

/* The block drafts for all sessions at once. What that takes is paid once: it may be more than one
 * session gains, if it is less than all of them do. */
static void test_shared_prediction(void **state)
{
    static const enum draft_source block[N_SESSIONS] = {
        DRAFT_PREDICTED, DRAFT_PREDICTED, DRAFT_PREDICTED, DRAFT_PREDICTED,
        DRAFT_PREDICTED, DRAFT_PREDICTED, DRAFT_PREDICTED, DRAFT_PREDICTED};
    struct crowd c = {.right = {0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8},
                      .pass = 1e6, .row = 2e4, .prediction = 0.25e6};
    (void)state;
    memcpy(c.sources, block, sizeof block);
    const double plain = (c.pass + N_SESSIONS * c.row) * 1.025 / N_SESSIONS; /* of one token */
    struct crowd_run run = {.rng = 5};
    draft_gate_init(&run.gate, false);
    crowd_decode(&run, &c, 200);
    run.ns = run.n_tokens = 0;
    crowd_decode(&run, &c, 2000);
    /* One draft for each: (1.16 + 0.16 + 0.25) / 1.8 instead of 1.16, three quarters. */
    if (run.ns / run.n_tokens > 0.85 * plain)
        fail_msg("%.3f times as long as without drafts", run.ns / run.n_tokens / plain);
    c.prediction = 1.2e6; /* more than all of them gain */
    crowd_decode(&run, &c, 500);
    run.ns = run.n_tokens = 0;
    crowd_decode(&run, &c, 2000);
    if (run.ns / run.n_tokens > 1.02 * plain)
        fail_msg("%.3f times as long as without drafts", run.ns / run.n_tokens / plain);
}

/* A row costs a little more than a draft is worth, and passes take as long as they like: chance
 * must not make rows look cheap. */
static void test_noisy_crowd(void **state)
{
    struct crowd c = {.pass = 0.4e6, .row = 0.2e6, .prediction = 0.1e6, .jitter = 1.6};
    double worst = 0;
    (void)state;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        c.sources[i] = DRAFT_PREDICTED;
        c.right[i] = 0.75;
    }
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const double plain = (c.pass + N_SESSIONS * c.row) * (1 + (c.jitter - 1) / 2) / N_SESSIONS;
        struct crowd_run run = {.rng = seed};
        draft_gate_init(&run.gate, false);
        crowd_decode(&run, &c, 3000);
        const double times = run.ns / run.n_tokens / plain;
        worst = times > worst ? times : worst;
    }
    if (worst > 1.03)
        fail_msg("%.3f times as long as without drafts", worst);
}

/* One session copies a text while the drafts of the others are wrong. When they become right, the
 * gate notices, although the pass had drafts all the time. */
static void test_mixed_crowd(void **state)
{
    struct crowd c = {.sources = {DRAFT_LOOKED_UP, DRAFT_PREDICTED, DRAFT_PREDICTED,
                                  DRAFT_PREDICTED, DRAFT_PREDICTED, DRAFT_PREDICTED,
                                  DRAFT_PREDICTED, DRAFT_PREDICTED},
                      .right = {0.95}, .pass = 1e6, .row = 5e4, .prediction = 0.1e6};
    struct crowd_run run = {.rng = 3};
    (void)state;
    draft_gate_init(&run.gate, false);
    crowd_decode(&run, &c, 1000);
    memset(run.n_drafts, 0, sizeof run.n_drafts);
    crowd_decode(&run, &c, 1000);
    assert_true(run.n_drafts[0] > 2000); /* goes on, */
    assert_true(run.n_drafts[1] < 50);   /* and the others cost next to nothing */
    for (uint32_t i = 1; i < N_SESSIONS; i++)
        c.right[i] = 0.95;
    crowd_decode(&run, &c, 4000);
    memset(run.n_drafts, 0, sizeof run.n_drafts);
    crowd_decode(&run, &c, 500);
    for (uint32_t i = 0; i < N_SESSIONS; i++)
        if (run.n_drafts[i] < 400)
            fail_msg("session %u has %u drafts in 500 passes", i, run.n_drafts[i]);
}

/* Passes whose time is remembered have DRAFT_ROWS rows at most. */
static void test_many_rows(void **state)
{
    struct draft_gate gate;
    (void)state;
    draft_gate_init(&gate, false);
    for (uint32_t i = 0; i < 2000; i++) {
        struct draft_pass pass;
        draft_gate_begin(&gate, &pass, 62);
        const uint32_t n = draft_gate_choose(&gate, DRAFT_LOOKED_UP, 0, &pass, N_DRAFTS);
        draft_gate_end(&gate, &pass);
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
        cmocka_unit_test(test_many_rows),     cmocka_unit_test(test_plain_passes),
        cmocka_unit_test(test_shared_prediction), cmocka_unit_test(test_mixed_crowd),
        cmocka_unit_test(test_noisy_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
