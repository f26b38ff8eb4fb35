/* draft_bits MODEL [mtp]: drafts change no bit. Sessions are given a text that repeats itself with
 * changes, so that drafts are right and wrong at every distance; with "mtp", a text of what the
 * model's own block drafts, with changes. The logits of every token must be those of a session
 * without drafts:
 * - for every number of drafts, with every level of kernels and with 1 and 2 threads
 * - from the smallest budget to all experts in memory
 * - with eight sessions in a batch, each with its own text
 * - after going back, after saving and loading, and after a cancelled token */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "flashmoe_lab.h"
#include "session/session_internal.h"

#define N_PROMPT 40
#define N_TEXT 320 /* the text ends in the second block of keys and values */
#define N_SESSIONS 8
#define CONTEXT 384
#define N_LAYERS 64

static const char *model_path;
static bool is_mtp;
static unsigned vocabulary;
static int32_t texts[N_SESSIONS][N_TEXT];
static char expected[N_SESSIONS][33];
static uint8_t expected_heat[N_LAYERS][LIMIT_EXPERTS]; /* after the first text */

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static uint32_t random_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Makes a text of pieces that were there before, and a new token behind each. */
static void make_text(int32_t *text, uint32_t seed)
{
    uint32_t n = N_PROMPT;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        text[i] = (int32_t)(random_number(&seed) % vocabulary);
    while (n < N_TEXT) {
        const uint32_t length = 4 + random_number(&seed) % 9;
        const uint32_t from = random_number(&seed) % (n - length);
        for (uint32_t i = 0; i < length && n < N_TEXT; i++)
            text[n++] = text[from + i];
        if (n < N_TEXT)
            text[n++] = (int32_t)(random_number(&seed) % vocabulary);
    }
}

static struct fm_model_options options_with(unsigned n_drafts, unsigned n_sessions)
{
    struct fm_model_options o = {.size = sizeof o, .n_context = CONTEXT, .n_threads = 1};
    o.n_sessions = n_sessions;
    o.n_drafts = n_drafts;
    o.n_marks = 2;
    o.draft = FM_ON;
    o.draft_source = is_mtp && n_drafts > 0 ? FM_DRAFT_MTP : FM_DRAFT_ANY;
    return o;
}

static struct fm_model *open_model(const struct fm_model_options *options)
{
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    must(fm_model_open(model_path, options, &model, &err), &err);
    return model;
}

static struct fm_session *open_session(struct fm_model *model)
{
    struct fm_error err = {0};
    struct fm_session *session = NULL;
    must(fm_session_open(model, &session, &err), &err);
    return session;
}

static struct fm_stats stats_of(const struct fm_model *model)
{
    struct fm_stats s = {.size = sizeof s};
    assert_int_equal(fm_model_stats(model, &s), 0);
    return s;
}

/* Evaluates text[from, to): a prompt in one call, the rest token by token. */
static void feed(struct fm_session *session, const int32_t *text, unsigned from, unsigned to)
{
    struct fm_error err = {0};
    if (from < N_PROMPT) {
        must(fm_session_eval(session, text + from, N_PROMPT - from, &err), &err);
        from = N_PROMPT;
    }
    for (unsigned i = from; i < to; i++) {
        must(fm_session_eval(session, text + i, 1, &err), &err);
        assert_int_equal(fm_session_position(session), i + 1);
    }
}

static void expect_hash(const struct fm_session *session, unsigned text)
{
    char hash[33];
    fm_session_logits_hash(session, hash);
    assert_string_equal(hash, expected[text]);
}

/* Makes a text of what the block drafts behind a prompt; every sixth token or so is another one. */
static void make_drafted_text(int32_t *text, uint32_t seed)
{
    struct fm_model_options o = options_with(FM_DRAFTS_MAX, 1);
    struct fm_error err = {0};
    struct fm_model *model = open_model(&o);
    struct fm_session *s = open_session(model);
    make_text(text, seed);
    feed(s, text, 0, N_PROMPT);
    for (unsigned i = N_PROMPT; i < N_TEXT; i++) {
        const struct draft *d = &s->draft;
        if (random_number(&seed) % 6 > 0 && d->n_taken < d->n)
            text[i] = d->tokens[1 + d->n_taken];
        must(fm_session_eval(s, text + i, 1, &err), &err);
    }
    fm_session_close(s);
    fm_model_close(model);
}

/* Drafts at every distance were right, and some were wrong; right ones cost no pass. */
static void check_stats(const struct fm_stats *s, unsigned n_drafts, unsigned n_tokens)
{
    uint64_t n_accepted = 0;
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++) {
        if (i < n_drafts)
            assert_in_range(s->n_drafts_accepted[i], 1, s->n_drafted[i] - 1);
        else
            assert_int_equal(s->n_drafted[i], 0);
        n_accepted += s->n_drafts_accepted[i];
    }
    assert_int_equal(s->n_decode_tokens, n_tokens);
    if (n_tokens == N_TEXT - N_PROMPT) /* one session: a pass has one of its tokens */
        assert_int_equal(s->n_decode_passes + n_accepted, n_tokens);
}

static void look_at_heat(const struct fm_model *model, uint8_t heat[N_LAYERS][LIMIT_EXPERTS])
{
    for (unsigned l = 0; l < N_LAYERS && fm_model_experts(model, l, NULL, heat[l]); l++)
        ;
}

/* Only accepted tokens count as uses of their experts, in the order of the text. */
static void expect_heat(const struct fm_model *model)
{
    static uint8_t heat[N_LAYERS][LIMIT_EXPERTS];
    look_at_heat(model, heat);
    assert_memory_equal(heat, expected_heat, sizeof heat);
}

static void run_alone(const struct fm_model_options *options)
{
    struct fm_model *model = open_model(options);
    struct fm_session *session = open_session(model);
    feed(session, texts[0], 0, N_TEXT);
    expect_hash(session, 0);
    const struct fm_stats s = stats_of(model);
    check_stats(&s, options->n_drafts, N_TEXT - N_PROMPT);
    expect_heat(model);
    fm_session_close(session);
    fm_model_close(model);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_every_number(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= FM_DRAFTS_MAX; n++) {
        struct fm_model_options o = options_with(n, 1);
        o.n_threads = 1 + n % 2;
        run_alone(&o);
    }
}

static void test_every_level(void **state)
{
    struct fm_level_info info = {.size = sizeof info};
    (void)state;
    for (unsigned k = 0; fm_machine_level(k, &info); k++) {
        struct fm_model_options o = options_with(4, 1);
        o.cpu = info.name;
        o.draft_source = FM_DRAFT_ANY;
        if (info.is_usable)
            run_alone(&o);
    }
}

/* The smallest budget that works, and others above it. The cache changes size at every token. */
static void test_budgets(void **state)
{
    struct fm_model_options o = options_with(3, 1);
    struct fm_error err = {0};
    (void)state;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    const struct fm_stats open = stats_of(model);
    const uint64_t kv = open.memory_kv_max_bytes - open.memory_kv_bytes;
    const uint64_t least = open.memory_min_bytes + kv, more = open.memory_budget_bytes - least;
    feed(session, texts[0], 0, N_PROMPT);
    for (unsigned i = N_PROMPT; i < N_TEXT; i++) {
        const uint64_t now = stats_of(model).memory_min_bytes + kv;
        must(fm_model_set_memory(model, i % 3 == 0 ? now : now + more / (1 + i % 7), &err), &err);
        must(fm_session_eval(session, texts[0] + i, 1, &err), &err);
    }
    expect_hash(session, 0);
    fm_session_close(session);
    fm_model_close(model);
}

static void test_batch(void **state)
{
    struct fm_model_options o = options_with(4, N_SESSIONS);
    struct fm_batch_item items[N_SESSIONS];
    struct fm_session *sessions[N_SESSIONS];
    struct fm_error err = {0};
    (void)state;
    struct fm_model *model = open_model(&o);
    for (unsigned s = 0; s < N_SESSIONS; s++) {
        sessions[s] = open_session(model);
        feed(sessions[s], texts[s], 0, N_PROMPT);
    }
    for (unsigned i = N_PROMPT; i < N_TEXT; i++) {
        for (unsigned s = 0; s < N_SESSIONS; s++)
            items[s] = (struct fm_batch_item){sessions[s], texts[s] + i, 1, 0};
        must(fm_eval_batch(model, items, N_SESSIONS, &err), &err);
    }
    const struct fm_stats stats = stats_of(model);
    check_stats(&stats, 4, N_SESSIONS * (N_TEXT - N_PROMPT));
    for (unsigned s = 0; s < N_SESSIONS; s++) {
        expect_hash(sessions[s], s);
        fm_session_close(sessions[s]);
    }
    fm_model_close(model);
}

/* A session that goes back, or is saved, has only tokens that it was given: at every position of a
 * trail. The state is compared with the logits that come of it. */
static void test_going_back_and_saving(void **state)
{
    struct fm_model_options o = options_with(4, 2);
    struct fm_error err = {0};
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "draft_bits-%ld.snapshot", (long)getpid());
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model), *other = open_session(model);
    const size_t bytes = vocabulary * sizeof(float);
    for (unsigned at = N_PROMPT + 1; at < N_PROMPT + 24; at++) {
        static float logits[1 << 18];
        assert_true(vocabulary <= 1 << 18);
        fm_session_reset(session);
        feed(session, texts[0], 0, at);
        must(fm_session_save(session, path, &err), &err);
        must(fm_session_eval(session, texts[0] + at, 1, &err), &err);
        memcpy(logits, fm_session_logits(session), bytes);
        must(fm_session_load(other, path, &err), &err);
        assert_int_equal(fm_session_position(other), at);
        must(fm_session_eval(other, texts[0] + at, 1, &err), &err);
        assert_memory_equal(fm_session_logits(other), logits, bytes);
        const unsigned kept = fm_session_rewind(session, texts[0], at + 1);
        must(fm_session_eval(session, texts[0] + kept, at + 1 - kept, &err), &err);
        assert_memory_equal(fm_session_logits(session), logits, bytes);
        (void)remove(path);
    }
    fm_session_close(other);
    fm_session_close(session);
    fm_model_close(model);
}

struct canceller {
    struct fm_session *session;
    uint64_t at, n;
};

static void cancel_in_time(void *ctx, uint64_t done, uint64_t total)
{
    struct canceller *c = ctx;
    (void)done, (void)total;
    if (c->n++ == c->at)
        fm_session_cancel(c->session);
}

/* Cancels tokens in every layer. A pass with drafts keeps the state before it, so the session is
 * where it was, and the same token can be evaluated again. */
static void test_cancel(void **state)
{
    struct fm_model_options o = options_with(4, 1);
    struct fm_error err = {0};
    unsigned n_kept = 0;
    (void)state;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    struct canceller c = {.session = session};
    const struct fm_observer observer = {.size = sizeof observer, .ctx = &c,
                                         .progress = cancel_in_time};
    feed(session, texts[0], 0, N_PROMPT);
    fm_session_observe(session, &observer);
    for (unsigned i = N_PROMPT; i < N_PROMPT + 60; i++) {
        c.n = 0;
        c.at = i % 3;
        const struct fm_stats before = stats_of(model);
        const int rc = fm_session_eval(session, texts[0] + i, 1, &err);
        const struct fm_stats after = stats_of(model);
        const unsigned position = fm_session_position(session);
        if (rc == 0) { /* a draft that was computed before: no layer ran */
            assert_int_equal(after.n_decode_passes, before.n_decode_passes);
            continue;
        }
        assert_int_equal(rc, FM_ERR_CANCELLED);
        n_kept += position == i;
        c.at = UINT64_MAX;
        must(fm_session_eval(session, texts[0] + position, i + 1 - position, &err), &err);
    }
    assert_in_range(n_kept, 1, 60);
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer)});
    float *logits = test_malloc(vocabulary * sizeof *logits);
    memcpy(logits, fm_session_logits(session), vocabulary * sizeof *logits);
    fm_session_reset(session);
    feed(session, texts[0], 0, N_PROMPT + 60);
    assert_memory_equal(fm_session_logits(session), logits, vocabulary * sizeof *logits);
    test_free(logits);
    fm_session_close(session);
    fm_model_close(model);
}

/* With FM_AUTO the times that passes take decide. Some drafts are computed in any case, to learn
 * what they take. */
static void test_auto(void **state)
{
    struct fm_model_options o = options_with(4, 1);
    (void)state;
    o.draft = FM_AUTO;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    feed(session, texts[0], 0, N_TEXT);
    expect_hash(session, 0);
    assert_true(stats_of(model).n_drafted[0] > 0);
    fm_session_close(session);
    fm_model_close(model);
    o.draft = FM_OFF;
    model = open_model(&o);
    session = open_session(model);
    feed(session, texts[0], 0, N_TEXT);
    expect_hash(session, 0);
    assert_int_equal(stats_of(model).n_drafted[0], 0);
    fm_session_close(session);
    fm_model_close(model);
}

/* Returns how many experts were predicted so far, by all stages. */
static uint64_t n_predicted(const struct fm_model *model)
{
    const struct engine *e = &model->engine;
    struct lookahead_layer layer;
    uint64_t n = 0;
    for (uint32_t i = 0; i < e->n_stages; i++)
        for (uint32_t l = 0; forward_recall(e->stages[i].forward, l, &layer); l++)
            n += layer.n_wanted;
    return n;
}

/* Passes with drafts look ahead: what their rows will use in the next layer is read early. Reads by
 * guess change no heat, and neither do rows that are not accepted. */
static void test_lookahead(void **state)
{
    struct fm_model_options o = options_with(4, 1);
    struct fm_error err = {0};
    uint64_t n_ahead = 0;
    (void)state;
    o.lookahead = FM_ON;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    const struct fm_stats open = stats_of(model);
    const uint64_t kv = open.memory_kv_max_bytes - open.memory_kv_bytes;
    must(fm_model_set_memory(model, open.memory_min_bytes + kv, &err), &err);
    feed(session, texts[0], 0, N_PROMPT);
    for (unsigned i = N_PROMPT; i < N_TEXT; i++) {
        const uint64_t n_drafted = stats_of(model).n_drafted[0], n_before = n_predicted(model);
        must(fm_session_eval(session, texts[0] + i, 1, &err), &err);
        if (stats_of(model).n_drafted[0] > n_drafted)
            n_ahead += n_predicted(model) - n_before;
    }
    expect_hash(session, 0);
    expect_heat(model);
    assert_true(n_ahead > 0);
    fm_session_close(session);
    fm_model_close(model);
}

static void ignore_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                         const uint32_t *ids, const float *weights)
{
    (void)layer, (void)position, (void)n, (void)ids, (void)weights;
    ++*(unsigned *)ctx;
}

/* Whoever watches rows sees every row, also of a token that was drafted before. */
static void test_observer(void **state)
{
    struct fm_model_options o = options_with(4, 1);
    struct fm_error err = {0};
    unsigned n_seen = 0;
    (void)state;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    const struct fm_observer observer = {.size = sizeof observer, .ctx = &n_seen,
                                         .route = ignore_route};
    unsigned at = N_PROMPT;
    feed(session, texts[0], 0, N_PROMPT);
    while (stats_of(model).n_drafted[0] == 0) {
        must(fm_session_eval(session, texts[0] + at++, 1, &err), &err);
        assert_true(at < N_TEXT);
    }
    fm_session_observe(session, &observer);
    must(fm_session_eval(session, texts[0] + at, 1, &err), &err);
    assert_true(n_seen > 0);
    fm_session_close(session);
    fm_model_close(model);
}

/* The gate never lets a pass grow that is slower per token, and never more than a few drafts for
 * nothing: in a text of new tokens no draft is computed. */
static void test_no_drafts(void **state)
{
    struct fm_model_options o = options_with(4, 1);
    struct fm_error err = {0};
    uint32_t seed = 99;
    (void)state;
    o.draft_source = FM_DRAFT_LOOKUP;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    for (unsigned i = 0; i < 50; i++) {
        const int32_t id = (int32_t)(i * 6 + random_number(&seed) % 6);
        must(fm_session_eval(session, &id, 1, &err), &err);
    }
    assert_int_equal(stats_of(model).n_drafted[0], 0);
    fm_session_close(session);
    fm_model_close(model);
}

/* A session whose drafts are off keeps nothing for them and drafts again afterwards. */
static void test_off_and_on(void **state)
{
    struct fm_model_options o = options_with(3, 1);
    (void)state;
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    struct fm_draft_control control = {.size = sizeof control, .is_off = true};
    assert_int_equal(fm_session_control_drafts(session, &control), 0);
    feed(session, texts[0], 0, 120); /* more tokens than hidden states are kept */
    assert_int_equal(session->mtp.n_hidden + session->mtp.n_rows, 0);
    assert_int_equal(stats_of(model).n_drafted[0], 0);
    control.is_off = false;
    assert_int_equal(fm_session_control_drafts(session, &control), 0);
    feed(session, texts[0], 120, N_TEXT);
    assert_int_not_equal(stats_of(model).n_drafts_accepted[0], 0);
    expect_hash(session, 0);
    fm_session_close(session);
    fm_model_close(model);
}

/* A session that was saved without drafts goes on with them, and the other way round. The block
 * knows nothing of the tokens before and drafts from the next ones on. */
static void test_saving_without(void **state)
{
    struct fm_model_options with = options_with(4, 1), without = options_with(0, 1);
    const struct fm_model_options *from[] = {&without, &with}, *to[] = {&with, &without};
    struct fm_error err = {0};
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "draft_bits-%ld.snapshot", (long)getpid());
    for (unsigned i = 0; i < 2; i++) {
        struct fm_model *model = open_model(from[i]);
        struct fm_session *session = open_session(model);
        feed(session, texts[0], 0, 100);
        must(fm_session_save(session, path, &err), &err);
        feed(session, texts[0], 100, N_TEXT);
        float *logits = test_malloc(vocabulary * sizeof *logits);
        memcpy(logits, fm_session_logits(session), vocabulary * sizeof *logits);
        fm_session_close(session);
        fm_model_close(model);
        model = open_model(to[i]);
        session = open_session(model);
        must(fm_session_load(session, path, &err), &err);
        feed(session, texts[0], 100, N_TEXT);
        assert_memory_equal(fm_session_logits(session), logits, vocabulary * sizeof *logits);
        assert_true((stats_of(model).n_drafts_accepted[0] > 0) == (i == 0));
        test_free(logits);
        fm_session_close(session);
        fm_model_close(model);
        (void)remove(path);
    }
}

static void make_expected(void)
{
    struct fm_model_options o = options_with(0, 1);
    struct fm_model *model = open_model(&o);
    struct fm_session *session = open_session(model);
    for (unsigned s = 0; s < N_SESSIONS; s++) {
        if (is_mtp)
            make_drafted_text(texts[s], 7 + s);
        else
            make_text(texts[s], 7 + s);
        fm_session_reset(session);
        feed(session, texts[s], 0, N_TEXT);
        fm_session_logits_hash(session, expected[s]);
        if (s == 0)
            look_at_heat(model, expected_heat);
    }
    const struct fm_stats stats = stats_of(model);
    assert_int_equal(stats.n_drafted[0], 0);
    assert_int_equal(stats.n_decode_passes, stats.n_decode_tokens);
    fm_session_close(session);
    fm_model_close(model);
}

static int set_up(void **state)
{
    struct fm_model_options o = {.size = sizeof o, .metadata_only = true};
    struct fm_model_info info = {.size = sizeof info};
    (void)state;
    struct fm_model *model = open_model(&o);
    fm_model_info(model, &info);
    vocabulary = info.vocabulary;
    fm_model_close(model);
    make_expected();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_number), cmocka_unit_test(test_every_level),
        cmocka_unit_test(test_budgets),      cmocka_unit_test(test_batch),
        cmocka_unit_test(test_cancel),       cmocka_unit_test(test_going_back_and_saving),
        cmocka_unit_test(test_no_drafts),    cmocka_unit_test(test_auto),
        cmocka_unit_test(test_off_and_on),
        cmocka_unit_test(test_lookahead),
        cmocka_unit_test(test_observer),     cmocka_unit_test(test_saving_without),
    };
    model_path = argc > 1 ? argv[1] : "";
    is_mtp = argc > 2 && strcmp(argv[2], "mtp") == 0;
    return cmocka_run_group_tests(tests, set_up, NULL);
}
