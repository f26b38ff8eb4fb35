/* fault_test MODEL: runs batches in which some experts cannot be read, or hold values that are not
 * finite. fault_test MODEL pack: the same with a packed copy, whose experts may also be damaged.
 * Checksums come late there, so a damaged expert has been computed with by then. fault_test MODEL
 * few: with a third of the random rounds.
 *
 * A session fails if its tokens chose such an expert, and each session gets its own reason. The
 * others give the same bits as alone. When the experts can be read again, the failed sessions
 * continue as if nothing had happened.
 *
 * Faults are injected where a reader turns the system's answer into the operation's result
 * (op_span_finish, replaced at link time). The operation identifies the expert. packed_sum_of is
 * replaced as well: checksums wait in it until the engine waits for them (landings.h). */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe_lab.h"
#include "landings.h"
#include "store/expert_store.h"
#include "store/reader_internal.h"

#define CONTEXT 256 /* one block of keys and values: the budget never changes */
#define N_TOGETHER 6
#define N_SESSIONS (N_TOGETHER + 1) /* the last one recomputes everything, alone */
#define CHUNK 64
#define MAX_LAYERS 16
#define MAX_EXPERTS 64

static const char *model_path;
static bool has_checksums, runs_few;

/* ---- faults ---------------------------------------------------------------------------------- */

enum fault { FAULT_NONE, FAULT_EIO, FAULT_SHORT, FAULT_DAMAGE, FAULT_NAN, FAULT_INFINITY };

static struct {
    pthread_mutex_t lock;
    enum fault broken[MAX_LAYERS][MAX_EXPERTS];
    bool breaks_guesses; /* every read that nothing waits for fails */
    unsigned n_hit, n_left; /* operations with a fault so far; still to come */
    unsigned n_begun;       /* layers begun, counted once per session of the batch */
    const void *damaged;    /* address of the last damaged expert */
    unsigned damaged_in;    /* n_begun when it was read */
    unsigned n_outlived;    /* damaged experts whose checksum came in a later layer */
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

int64_t __real_op_span_finish(const struct read_op *op, const struct op_span *span,
                              int64_t result);
int64_t __wrap_op_span_finish(const struct read_op *op, const struct op_span *span,
                              int64_t result);

static void fill(uint16_t *to, uint64_t bytes, uint16_t value)
{
    for (uint64_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = value;
}

int64_t __wrap_op_span_finish(const struct read_op *op, const struct op_span *span, int64_t result)
{
    const struct expert_read *read = op->ctx;
    pthread_mutex_lock(&faults.lock);
    enum fault fault = FAULT_NONE;
    if (faults.n_left > 0) { /* otherwise it may not be a read of an expert */
        const uint32_t layer =
            expert_store_model(read->store)->first_expert_layer + read->expert_layer;
        fault = faults.breaks_guesses && op->urgency == READ_GUESSED
                    ? FAULT_EIO : faults.broken[layer][read->expert];
    }
    faults.n_hit += fault != FAULT_NONE;
    faults.n_left -= fault != FAULT_NONE;
    if (fault == FAULT_DAMAGE) {
        faults.damaged = read->dst;
        faults.damaged_in = faults.n_begun;
    }
    pthread_mutex_unlock(&faults.lock);
    if (fault == FAULT_EIO)
        result = -EIO;
    if (fault == FAULT_SHORT)
        result /= 2;
    result = __real_op_span_finish(op, span, result);
    if (fault == FAULT_DAMAGE)
        ((char *)op->dst)[op->bytes / 2] ^= 0x40;
    if (fault == FAULT_NAN)
        fill(op->dst, op->bytes, 0x7fc0); /* bf16, the format of the checkpoints */
    if (fault == FAULT_INFINITY)
        fill(op->dst, op->bytes, 0x7f80);
    return result;
}

void __real_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);
void __wrap_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);

void __wrap_packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum)
{
    landings_wait();
    pthread_mutex_lock(&faults.lock);
    if (data == faults.damaged) {
        faults.n_outlived += faults.n_begun > faults.damaged_in;
        faults.damaged = NULL; /* the next read to this address is another expert */
    }
    pthread_mutex_unlock(&faults.lock);
    __real_packed_sum_of(data, bytes, sum);
}

/* Returns the error code that a session gets if its expert has this fault. */
static int code_of(enum fault fault)
{
    return fault == FAULT_EIO || fault == FAULT_SHORT ? FM_ERR_IO : FM_ERR_FORMAT;
}

static void repair(void)
{
    pthread_mutex_lock(&faults.lock);
    memset(faults.broken, 0, sizeof faults.broken);
    faults.breaks_guesses = false;
    faults.n_left = faults.n_hit = 0;
    faults.damaged = NULL;
    pthread_mutex_unlock(&faults.lock);
    landings_hold(false);
}

static void break_expert(unsigned layer, unsigned expert, enum fault fault, unsigned n_times)
{
    pthread_mutex_lock(&faults.lock);
    faults.broken[layer][expert] = fault;
    faults.n_left = n_times;
    pthread_mutex_unlock(&faults.lock);
}

/* ---- the model ------------------------------------------------------------------------------- */

struct text {
    int32_t ids[CONTEXT];
    unsigned n;
    /* The experts that its tokens from `from` on choose, by the model's layer numbers. */
    unsigned from;
    bool uses[MAX_LAYERS][MAX_EXPERTS];
};

struct fixture {
    struct fm_model *model;
    struct fm_model_info info;
    unsigned expert_layers[MAX_LAYERS]; /* [n_moe_layers]: their numbers among all layers */
    unsigned n_expert_layers;
    struct fm_session *sessions[N_SESSIONS];
    struct text texts[N_SESSIONS];
    uint32_t random_state;
};

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static uint32_t draw(struct fixture *f, uint32_t below)
{
    f->random_state = f->random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(f->random_state >> 8) * below) >> 24);
}

/* Returns a budget with hardly more than the minimum number of slots when all sessions are full. */
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

static void note_layer(void *ctx, unsigned layer, unsigned position, unsigned n,
                       const uint32_t *ids, const float *weights)
{
    struct fixture *f = ctx;
    (void)n, (void)ids, (void)weights;
    if (position == 0)
        f->expert_layers[f->n_expert_layers++] = layer;
}

/* is_roomy: no plan waits for a slot, and guesses find free ones. Otherwise there are as few slots
 * as possible. */
static struct fixture *set_up(unsigned n_marks, enum fm_choice lookahead, bool is_roomy)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    repair();
    options.n_threads = 2;
    options.n_sessions = N_SESSIONS;
    options.n_context = CONTEXT;
    options.n_marks = n_marks;
    options.prefill_chunk = CHUNK;
    options.elastic = FM_OFF;
    options.lookahead = lookahead;
    options.read_depth = 32; /* a reader that waits for a checksum delays no other */
    f->random_state = 1 + n_marks;
    int rc = FM_ERR_BUDGET;
    /* A sanitizer delays freeing memory, so the program may need more by now. */
    for (unsigned more_kib = 0; rc == FM_ERR_BUDGET; more_kib += 256) {
        options.memory_bytes = 0;
        options.memory_bytes = tight_budget(&options) + 1024 * more_kib;
        rc = fm_model_open(model_path, &options, &f->model, &err);
    }
    must(rc, &err);
    f->info.size = sizeof f->info;
    fm_model_info(f->model, &f->info);
    assert_true(f->info.n_layers <= MAX_LAYERS && f->info.n_experts <= MAX_EXPERTS);
    for (unsigned i = 0; i < N_SESSIONS; i++)
        must(fm_session_open(f->model, &f->sessions[i], &err), &err);
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(f->model, &stats);
    if (!is_roomy)
        must(fm_model_set_memory(f->model, stats.memory_min_bytes, &err), &err);
    struct fm_session *alone = f->sessions[N_SESSIONS - 1];
    fm_session_observe(alone, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                    .ctx = f, .route = note_layer});
    must(fm_session_eval(alone, &(int32_t){1}, 1, &err), &err);
    fm_session_observe(alone, NULL);
    assert_int_equal(f->n_expert_layers, f->info.n_moe_layers);
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

static void note_uses(void *ctx, unsigned layer, unsigned position, unsigned n,
                      const uint32_t *ids, const float *weights)
{
    struct text *t = ctx;
    (void)weights;
    for (unsigned i = 0; position >= t->from && i < n; i++)
        t->uses[layer][ids[i]] = true;
}

/* Computes a text alone from the beginning and records the experts of its tokens from `from` on. */
static const float *compute_alone(struct fixture *f, struct text *t, unsigned from)
{
    struct fm_session *alone = f->sessions[N_SESSIONS - 1];
    struct fm_error err = {0};
    memset(t->uses, 0, sizeof t->uses);
    t->from = from;
    fm_session_reset(alone);
    fm_session_observe(alone, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                    .ctx = t, .route = note_uses});
    must(fm_session_eval(alone, t->ids, t->n, &err), &err);
    fm_session_observe(alone, NULL);
    return fm_session_logits(alone);
}

static void same_as_alone(struct fixture *f, unsigned i)
{
    const float *logits = compute_alone(f, &f->texts[i], 0);
    assert_int_equal(fm_session_position(f->sessions[i]), f->texts[i].n);
    assert_memory_equal(fm_session_ids(f->sessions[i]), f->texts[i].ids,
                        f->texts[i].n * sizeof f->texts[i].ids[0]);
    assert_memory_equal(fm_session_logits(f->sessions[i]), logits,
                        f->info.vocabulary * sizeof(float));
    assert_int_equal(fm_session_failure(f->sessions[i])->code, 0);
}

/* Checks the state of a failed session that was at position `before`. */
static void has_gone_back(const struct fixture *f, const struct fm_session *s, unsigned before)
{
    const unsigned position = fm_session_position(s);
    assert_true(position <= before);
    if (f->info.state_bytes == 0)
        assert_int_equal(position, before);
    if (position < before || before == 0)
        assert_null(fm_session_logits(s));
}

static void go_on(struct fixture *f)
{
    struct fm_error err = {0};
    repair();
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        const unsigned at = fm_session_position(f->sessions[i]), n = f->texts[i].n;
        if (at < n)
            must(fm_session_eval(f->sessions[i], f->texts[i].ids + at, n - at, &err), &err);
        if (n > 0)
            same_as_alone(f, i);
    }
}

/* Returns the layer's index in the cache, for break_expert. */
static unsigned index_of(const struct fixture *f, unsigned layer)
{
    unsigned i = 0;
    while (f->expert_layers[i] != layer)
        i++;
    return i;
}

static bool is_resident(const struct fixture *f, unsigned layer, unsigned expert)
{
    bool resident[MAX_EXPERTS];
    assert_true(fm_model_experts(f->model, index_of(f, layer), resident, NULL));
    return resident[expert];
}

/* ---- what is expected ------------------------------------------------------------------------ */

static bool uses_broken(const struct fixture *f, const struct text *t)
{
    for (unsigned l = 0; l < f->n_expert_layers; l++)
        for (unsigned e = 0; e < f->info.n_experts; e++)
            if (faults.broken[l][e] != FAULT_NONE && t->uses[f->expert_layers[l]][e])
                return true;
    return false;
}

static void has_reason(const struct fixture *f, unsigned i, const struct fm_batch_item *item)
{
    const struct fm_failure *why = fm_session_failure(f->sessions[i]);
    char name[64];
    assert_int_equal(item->rc, why->code);
    assert_true(why->layer >= 0 && why->expert >= 0);
    const enum fault fault = faults.broken[index_of(f, (unsigned)why->layer)][why->expert];
    assert_true(fault != FAULT_NONE);
    assert_int_equal(why->code, code_of(fault));
    assert_true(f->texts[i].uses[why->layer][why->expert]);
    (void)snprintf(name, sizeof name, "expert %d of layer %d", why->expert, why->layer);
    assert_non_null(strstr(why->text, name));
    assert_non_null(strstr(why->text, model_path));
    assert_non_null(strstr(why->summary, name));
    assert_null(strstr(why->summary, "/"));
    assert_null(strstr(why->summary, "safetensors"));
}

/* Runs the batch and checks that each item fails or succeeds as its experts require. Returns the
 * number of failures. */
static unsigned run_batch(struct fixture *f, struct fm_batch_item *items, unsigned n)
{
    unsigned before[N_TOGETHER], n_failed = 0, first = n;
    bool fails[N_TOGETHER];
    struct fm_error err = {0};
    for (unsigned i = 0; i < n; i++) {
        before[i] = fm_session_position(f->sessions[i]);
        fails[i] = uses_broken(f, &f->texts[i]);
    }
    const int rc = fm_eval_batch(f->model, items, n, &err);
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(items[i].rc != 0, fails[i]);
        if (fails[i]) {
            has_reason(f, i, &items[i]);
            has_gone_back(f, f->sessions[i], before[i]);
            first = first == n ? i : first;
            n_failed++;
        }
    }
    assert_int_equal(rc, n_failed > 0 ? items[first].rc : 0);
    if (n_failed > 0)
        assert_string_equal(err.text, fm_session_failure(f->sessions[first])->text);
    return n_failed;
}

/* Appends n_new[i] tokens to each session i of the batch, fills the items and records their
 * experts. */
static void next_items(struct fixture *f, struct fm_batch_item *items, const unsigned *n_new)
{
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        struct text *t = &f->texts[i];
        const unsigned at = fm_session_position(f->sessions[i]);
        append(f, t, n_new[i]);
        items[i] = (struct fm_batch_item){f->sessions[i], t->ids + at, t->n - at, 1};
        (void)compute_alone(f, t, at);
    }
}

/* Finds an expert that some session uses and that is not in memory. */
static bool find_expert(struct fixture *f, unsigned *layer, unsigned *expert)
{
    for (unsigned n_tries = 0; n_tries < 1000; n_tries++) {
        const unsigned l = f->expert_layers[draw(f, f->n_expert_layers)];
        const unsigned e = draw(f, f->info.n_experts), i = draw(f, N_TOGETHER);
        if (f->texts[i].uses[l][e] && !is_resident(f, l, e)) {
            *layer = l;
            *expert = e;
            return true;
        }
    }
    return false;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Mixes prompts of several chunks, short ones and single tokens, with one to three broken
 * experts. */
static void test_random_experts(void **state)
{
    (void)state;
    static const enum fault kinds[] = {FAULT_EIO, FAULT_SHORT, FAULT_DAMAGE, FAULT_NAN};
    unsigned n_seen[2] = {0, 0};
    const unsigned n_rounds = runs_few ? 4 : 12;
    for (unsigned n_marks = 0; n_marks <= 4; n_marks += 2) {
        /* an expert that a guess has read would not fail later */
        struct fixture *f = set_up(n_marks, FM_OFF, false);
        for (unsigned round = 0; round < n_rounds; round++) {
            struct fm_batch_item items[N_TOGETHER];
            unsigned n_new[N_TOGETHER], layer, expert;
            for (unsigned i = 0; i < N_TOGETHER; i++) {
                n_new[i] = draw(f, 8) == 0 ? 1 + draw(f, 150) : 1 + draw(f, 2);
                if (draw(f, 4) == 0 || f->texts[i].n + n_new[i] > CONTEXT) {
                    f->texts[i].n = 0;
                    fm_session_reset(f->sessions[i]);
                }
            }
            next_items(f, items, n_new);
            for (unsigned n = 1 + draw(f, 3); n > 0 && find_expert(f, &layer, &expert); n--)
                break_expert(index_of(f, layer), expert, kinds[draw(f, has_checksums ? 4 : 2)],
                             UINT32_MAX);
            landings_hold(round % 3 != 0);
            const unsigned n_failed = run_batch(f, items, N_TOGETHER);
            n_seen[0] += N_TOGETHER - n_failed;
            n_seen[1] += n_failed;
            repair();
            for (unsigned i = 0; i < N_TOGETHER; i++)
                if (items[i].rc == 0)
                    same_as_alone(f, i);
            go_on(f);
        }
        tear_down(f);
    }
    print_message("%u evaluations whole, %u failed\n", n_seen[0], n_seen[1]);
    assert_true(n_seen[0] > n_rounds * 10 / 3 && n_seen[1] > n_rounds * 10 / 3);
}

/* Single tokens. Finds two experts of one layer: one that only session 0 uses, one that only
 * session 1 uses. Each session must get the error of its own expert. */
static bool find_two(const struct fixture *f, unsigned *layer, unsigned experts[2])
{
    for (unsigned l = 0; l < f->info.n_layers; l++) {
        unsigned n_found[2] = {0, 0};
        for (unsigned e = 0; e < f->info.n_experts; e++) {
            unsigned user = N_TOGETHER, n_users = 0;
            for (unsigned i = 0; i < N_TOGETHER; i++)
                if (f->texts[i].uses[l][e]) {
                    user = i;
                    n_users++;
                }
            if (n_users == 1 && user < 2 && !is_resident(f, l, e)) {
                experts[user] = e;
                n_found[user]++;
            }
        }
        *layer = l;
        if (n_found[0] > 0 && n_found[1] > 0)
            return true;
    }
    return false;
}

static void test_two_experts_of_a_layer(void **state)
{
    (void)state;
    static const unsigned ones[N_TOGETHER] = {1, 1, 1, 1, 1, 1};
    unsigned n_found = 0;
    struct fixture *f = set_up(2, FM_OFF, false);
    for (int round = 0; round < 200 && n_found < 5; round++) {
        struct fm_batch_item items[N_TOGETHER];
        unsigned layer, experts[2];
        for (unsigned i = 0; i < N_TOGETHER; i++) {
            f->texts[i].n = 0;
            fm_session_reset(f->sessions[i]);
        }
        next_items(f, items, ones);
        if (!find_two(f, &layer, experts))
            continue;
        n_found++;
        for (int i = 0; i < 2; i++)
            break_expert(index_of(f, layer), experts[i],
                         has_checksums ? FAULT_DAMAGE : FAULT_EIO, UINT32_MAX);
        landings_hold(n_found % 2 == 1);
        assert_int_equal(run_batch(f, items, N_TOGETHER), 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(fm_session_failure(f->sessions[i])->layer, (int)layer);
            assert_int_equal(fm_session_failure(f->sessions[i])->expert, (int)experts[i]);
        }
        go_on(f);
    }
    assert_true(n_found > 0);
    tear_down(f);
}

/* Sessions with the same tokens share one read, so one transient fault makes all of them fail.
 * Another session, cancelled at the same time, keeps its own reason. */
static void test_all_share_the_read(void **state)
{
    (void)state;
    struct fixture *f = set_up(2, FM_OFF, false);
    struct fm_batch_item items[N_TOGETHER];
    struct fm_error err = {0};
    unsigned layer, expert;
    append(f, &f->texts[0], 3);
    for (unsigned i = 0; i < N_TOGETHER; i++) {
        f->texts[i] = f->texts[0];
        items[i] = (struct fm_batch_item){f->sessions[i], f->texts[i].ids, 3, 1};
        (void)compute_alone(f, &f->texts[i], 0);
    }
    assert_true(find_expert(f, &layer, &expert));
    break_expert(index_of(f, layer), expert, FAULT_EIO, 1);
    assert_int_equal(run_batch(f, items, N_TOGETHER), N_TOGETHER);
    assert_int_equal(faults.n_hit, 1);
    must(fm_eval_batch(f->model, items, N_TOGETHER, &err), &err); /* it was transient */
    go_on(f);
    for (unsigned i = 0; i < N_TOGETHER; i++)
        fm_session_reset(f->sessions[i]);
    assert_true(find_expert(f, &layer, &expert));
    break_expert(index_of(f, layer), expert, FAULT_EIO, UINT32_MAX);
    fm_session_cancel(f->sessions[0]);
    assert_int_equal(fm_eval_batch(f->model, items, N_TOGETHER, &err), FM_ERR_IO);
    assert_int_equal(items[0].rc, FM_ERR_CANCELLED);
    assert_int_equal(fm_session_failure(f->sessions[0])->code, FM_ERR_CANCELLED);
    for (unsigned i = 1; i < N_TOGETHER; i++)
        has_reason(f, i, &items[i]);
    go_on(f);
    tear_down(f);
}

/* A read that nothing waits for may fail without effect. */
static void test_failed_guesses(void **state)
{
    (void)state;
    struct fixture *f = set_up(2, FM_ON, true);
    struct fm_error err = {0};
    struct text *t = &f->texts[0];
    append(f, t, 120);
    faults.breaks_guesses = true;
    faults.n_left = UINT32_MAX;
    bool was_hit = false;
    while (!was_hit) { /* guesses are read once nothing else is to be read */
        fm_session_reset(f->sessions[0]);
        must(fm_session_eval(f->sessions[0], t->ids, 80, &err), &err);
        for (unsigned i = 80; i < t->n; i++)
            must(fm_session_eval(f->sessions[0], t->ids + i, 1, &err), &err);
        pthread_mutex_lock(&faults.lock);
        was_hit = faults.n_hit > 0;
        pthread_mutex_unlock(&faults.lock);
    }
    repair();
    same_as_alone(f, 0);
    tear_down(f);
}

/* An expert of NaN or of infinities: the sessions that chose it fail with the layer's number, the
 * others give their bits. The damaged expert stays in memory, so each round has a model of its
 * own. */
static void test_values_that_are_not_finite(void **state)
{
    (void)state;
    static const unsigned n_new[N_TOGETHER] = {1, 2, 1, 1, 3, 1};
    unsigned n_seen[2] = {0, 0};
    for (uint32_t round = 0; round < 10; round++) {
        struct fixture *f = set_up(2, FM_OFF, false);
        struct fm_batch_item items[N_TOGETHER];
        unsigned layer, expert, position;
        struct fm_error err = {0};
        float *logits[N_TOGETHER];
        f->random_state = round;
        next_items(f, items, n_new);
        for (unsigned i = 0; i < N_TOGETHER; i++) {
            const size_t bytes = f->info.vocabulary * sizeof(float);
            logits[i] = malloc(bytes);
            assert_non_null(logits[i]);
            memcpy(logits[i], compute_alone(f, &f->texts[i], 0), bytes);
        }
        assert_true(find_expert(f, &layer, &expert));
        break_expert(index_of(f, layer), expert, round % 2 == 0 ? FAULT_NAN : FAULT_INFINITY,
                     UINT32_MAX);
        (void)fm_eval_batch(f->model, items, N_TOGETHER, &err);
        for (unsigned i = 0; i < N_TOGETHER; i++) {
            const struct fm_failure *why = fm_session_failure(f->sessions[i]);
            const bool fails = f->texts[i].uses[layer][expert];
            n_seen[fails]++;
            assert_int_equal(items[i].rc, fails ? FM_ERR_FORMAT : 0);
            if (!fails) {
                assert_memory_equal(fm_session_logits(f->sessions[i]), logits[i],
                                    f->info.vocabulary * sizeof(float));
            } else {
                int at = -1;
                has_gone_back(f, f->sessions[i], 0);
                assert_int_equal(why->layer, (int)layer);
                assert_int_equal(why->expert, -1);
                assert_int_equal(sscanf(why->summary, "layer %d gives values that are", &at), 1);
                assert_int_equal(at, (int)layer);
                assert_non_null(strstr(why->text, model_path));
                assert_null(strstr(why->summary, "/"));
                const char *place = strstr(why->summary, "position ");
                assert_true(place != NULL && sscanf(place, "position %u", &position) == 1);
                assert_true(position < n_new[i]);
            }
            free(logits[i]);
        }
        tear_down(f);
    }
    print_message("%u evaluations whole, %u not finite\n", n_seen[0], n_seen[1]);
    assert_true(n_seen[0] > 0 && n_seen[1] > 0);
}

static void begin_layer(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx, (void)done, (void)total;
    pthread_mutex_lock(&faults.lock);
    faults.n_begun++;
    pthread_mutex_unlock(&faults.lock);
}

struct seen {
    int hidden, route; /* the last layer that was shown; -1: none */
};

static void see_hidden(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct seen *seen = ctx;
    (void)position, (void)x, (void)n;
    seen->hidden = (int)layer;
}

static void see_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                      const uint32_t *ids, const float *weights)
{
    struct seen *seen = ctx;
    (void)position, (void)n, (void)ids, (void)weights;
    seen->route = (int)layer;
}

/* No callback shows a result of a damaged expert, with and without hidden states. Its checksum
 * comes after the next layer has begun, except for the last layer of a stage. */
static void test_nothing_is_shown(void **state)
{
    (void)state;
    static const unsigned ones[N_TOGETHER] = {1, 1, 1, 1, 1, 1};
    /* A roomy stage holds all its experts; so does a rank. */
    const bool is_cut = getenv("CUT_STAGES") != NULL || getenv("RANKS") != NULL;
    struct fixture *f = set_up(2, FM_OFF, !is_cut);
    unsigned n_outlived[2] = {0, 0}, n_failed = 0;
    for (int round = 0; round < 40; round++) {
        struct fm_batch_item items[N_TOGETHER];
        struct seen seen[N_TOGETHER];
        struct fm_error err = {0};
        unsigned layer, expert;
        next_items(f, items, ones);
        if (!find_expert(f, &layer, &expert))
            continue;
        break_expert(index_of(f, layer), expert, FAULT_DAMAGE, UINT32_MAX);
        for (unsigned i = 0; i < N_TOGETHER; i++) {
            seen[i] = (struct seen){-1, -1};
            fm_session_observe(f->sessions[i],
                               &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                     .ctx = &seen[i], .route = see_route,
                                                     .hidden = round % 2 == 0 ? see_hidden : NULL,
                                                     .progress = begin_layer});
        }
        landings_hold(true);
        (void)fm_eval_batch(f->model, items, N_TOGETHER, &err);
        for (unsigned i = 0; i < N_TOGETHER; i++) {
            fm_session_observe(f->sessions[i], NULL);
            if (items[i].rc == 0)
                continue;
            n_failed++;
            assert_true(seen[i].hidden <= (int)layer);
            assert_int_equal(seen[i].route, layer);
        }
        pthread_mutex_lock(&faults.lock);
        n_outlived[round % 2] += faults.n_outlived;
        faults.n_outlived = 0;
        pthread_mutex_unlock(&faults.lock);
        go_on(f);
    }
    print_message("%u and %u checksums came in the next layer\n", n_outlived[0], n_outlived[1]);
    assert_true(n_failed > 10);
    assert_true(is_cut || (n_outlived[0] > 0 && n_outlived[1] > 0));
    tear_down(f);
}

/* Runs the tests with a packed copy of the same bits, in a folder that is removed at the end. */
static int run_packed(const struct CMUnitTest *tests, size_t n)
{
    char folder[] = "fault-test-XXXXXX", packed[64], command[96];
    struct fm_pack_options options = {.size = sizeof options};
    struct fm_error err = {0};
    if (mkdtemp(folder) == NULL)
        return 2;
    (void)snprintf(packed, sizeof packed, "%s/model.fmoe", folder);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    options.experts = "keep";
    int rc = fm_pack(model_path, packed, &options, NULL, &err);
    if (rc != 0)
        (void)fprintf(stderr, "%s\n", err.text);
    model_path = packed;
    has_checksums = true;
    if (rc == 0)
        rc = _cmocka_run_group_tests("fault_test", tests, n, NULL, NULL);
    return system(command) != 0 || rc != 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_experts),
        cmocka_unit_test(test_two_experts_of_a_layer),
        cmocka_unit_test(test_all_share_the_read),
        cmocka_unit_test(test_failed_guesses),
        cmocka_unit_test(test_values_that_are_not_finite),
    };
    const struct CMUnitTest packed[] = {
        cmocka_unit_test(test_random_experts),
        cmocka_unit_test(test_two_experts_of_a_layer),
        cmocka_unit_test(test_all_share_the_read),
        cmocka_unit_test(test_nothing_is_shown),
    };
    const bool is_packed = argc == 3 && strcmp(argv[2], "pack") == 0;
    runs_few = argc == 3 && strcmp(argv[2], "few") == 0;
    if (argc != 2 && !is_packed && !runs_few)
        return 2;
    model_path = argv[1];
    return is_packed ? run_packed(packed, sizeof packed / sizeof packed[0])
                     : cmocka_run_group_tests(tests, NULL, NULL);
}
