/* The expert store and the expert cache on a reader that fails on demand. Every slot handed out is
 * compared with the file byte by byte. A failed read is named by expert and layer, a retry after it
 * gives the right bytes, and every submit is answered exactly once. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "base/plat.h"
#include "cache/expert_cache.h"
#include "cache/lookahead.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/"
#define MAX_EXPERTS 16
#define N_THREADS 3

static uint32_t next_random(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(*state >> 8) * below) >> 24);
}

/* ---- a reader that fails on demand ---------------------------------------------------------- */

enum fault { FAULT_EIO, FAULT_SHORT, FAULT_EMPTY, N_FAULTS };

/* With threads, operations are served in random order; without, inside submit. */
struct faulty_reader {
    struct reader base;
    pthread_mutex_t lock;
    pthread_cond_t work_ready;
    struct read_op *queue;
    uint32_t n_queued, random;
    bool is_closing, is_held; /* held: the threads serve nothing */
    unsigned n_threads;
    pthread_t threads[N_THREADS];
    long n_submitted, n_done, n_failed;
    long fail_at;   /* the operation that fails, counted down to 1; 0 for none */
    long fail_span; /* number of failing operations */
    enum fault fault;
};

/* A failing read leaves half of the buffer overwritten, as a real one may. */
static int64_t serve(const struct read_op *op, bool fails, enum fault fault)
{
    if (!fails)
        return plat_read_some(op->fd, op->dst, op->bytes, op->offset);
    memset(op->dst, 0xab, (size_t)(op->bytes / 2));
    return fault == FAULT_EIO ? -EIO : fault == FAULT_SHORT ? (int64_t)(op->bytes / 2) : 0;
}

/* Called with the lock held. */
static bool must_fail(struct faulty_reader *r)
{
    if (r->fail_at == 0 || r->fail_span == 0 || --r->fail_at > 0)
        return false;
    r->fail_at = --r->fail_span > 0 ? 1 : 0;
    r->n_failed++;
    return true;
}

static void finish(struct faulty_reader *r, struct read_op *op, bool fails)
{
    pthread_mutex_lock(&r->lock);
    const enum fault fault = r->fault;
    pthread_mutex_unlock(&r->lock);
    int64_t result = serve(op, fails, fault);
    pthread_mutex_lock(&r->lock);
    r->n_done++;
    pthread_mutex_unlock(&r->lock);
    op->done(op, result);
}

static void *faulty_main(void *arg)
{
    struct faulty_reader *r = arg;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        if (r->n_queued == 0 && r->is_closing)
            break;
        if (r->n_queued == 0 || r->is_held) {
            pthread_cond_wait(&r->work_ready, &r->lock);
            continue;
        }
        struct read_op **at = &r->queue;
        for (uint32_t skip = next_random(&r->random, r->n_queued); skip > 0; skip--)
            at = &(*at)->next;
        struct read_op *op = *at;
        *at = op->next;
        r->n_queued--;
        bool fails = must_fail(r), waits = next_random(&r->random, 4) == 0;
        pthread_mutex_unlock(&r->lock);
        if (waits)
            (void)sched_yield();
        finish(r, op, fails);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void faulty_submit(struct reader *reader, struct read_op *op)
{
    struct faulty_reader *r = (struct faulty_reader *)reader;
    pthread_mutex_lock(&r->lock);
    r->n_submitted++;
    bool fails = r->n_threads == 0 && must_fail(r);
    if (r->n_threads > 0) {
        op->next = r->queue;
        r->queue = op;
        r->n_queued++;
    }
    pthread_mutex_unlock(&r->lock);
    pthread_cond_signal(&r->work_ready);
    if (r->n_threads == 0)
        finish(r, op, fails);
}

static void faulty_close(struct reader *reader)
{
    struct faulty_reader *r = (struct faulty_reader *)reader;
    pthread_mutex_lock(&r->lock);
    r->is_closing = true;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_broadcast(&r->work_ready);
    for (unsigned i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    assert_int_equal(r->n_submitted, r->n_done);
    pthread_cond_destroy(&r->work_ready);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static const struct reader_ops faulty_ops = {"faulty", faulty_submit, faulty_close};

static struct faulty_reader *faulty_open(bool is_threaded)
{
    struct faulty_reader *r = mem_new(1, sizeof *r, "the reader", NULL);
    assert_non_null(r);
    r->base.ops = &faulty_ops;
    r->random = 1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work_ready, NULL);
    for (; is_threaded && r->n_threads < N_THREADS; r->n_threads++)
        assert_int_equal(pthread_create(&r->threads[r->n_threads], NULL, faulty_main, r), 0);
    return r;
}

static void set_fault(struct faulty_reader *r, long at, long span, enum fault fault)
{
    pthread_mutex_lock(&r->lock);
    r->fail_at = at;
    r->fail_span = span;
    r->fault = fault;
    r->n_failed = 0;
    pthread_mutex_unlock(&r->lock);
}

static long n_failed(struct faulty_reader *r)
{
    pthread_mutex_lock(&r->lock);
    long n = r->n_failed;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* ---- what a slot must hold ------------------------------------------------------------------ */

/* A model, and all its experts as stored in the file. */
struct fixture {
    struct model *model;
    char *bytes; /* [n_expert_layers, MAX_EXPERTS, expert_slot_bytes] */
    struct faulty_reader *reader;
    struct expert_store *store;
    struct expert_cache *cache;
};

static const char *expected(const struct fixture *f, uint32_t layer, uint32_t expert)
{
    return f->bytes + ((size_t)layer * MAX_EXPERTS + expert) * f->model->expert_slot_bytes;
}

static void open_model(struct fixture *f, const char *path)
{
    struct fm_error err;
    const struct model_options options = {.families = arch_families()};
    *f = (struct fixture){0};
    if (model_open(path, &options, &f->model, &err) != 0)
        fail_msg("%s", err.text);
    const struct model *m = f->model;
    f->bytes = mem_new((uint64_t)m->n_expert_layers * MAX_EXPERTS, m->expert_slot_bytes,
                       "the experts", NULL);
    assert_non_null(f->bytes);
    for (uint32_t l = 0; l < m->n_expert_layers; l++) {
        const struct expert_layer *layer = &m->expert_layers[l];
        assert_true(layer->n_experts <= MAX_EXPERTS);
        for (uint32_t i = 0; i < layer->n_experts * layer->n_extents; i++) {
            const struct extent *e = &layer->extents[i];
            const struct source_file *file = &m->source->files[e->file];
            char *dst = f->bytes + ((size_t)l * MAX_EXPERTS + i / layer->n_extents) *
                                       m->expert_slot_bytes + e->slot_offset;
            assert_int_equal(plat_read_at(file->fd, file->path, dst, e->bytes, e->offset, NULL),
                             0);
        }
    }
}

static void close_model(struct fixture *f)
{
    mem_free(f->bytes);
    model_close(f->model);
}

/* Gaps between the pieces of an expert are undefined and not compared. */
static bool is_right(const struct fixture *f, uint32_t l, uint32_t expert, const void *slot)
{
    const struct expert_layer *layer = &f->model->expert_layers[l];
    const char *want = expected(f, l, expert);
    for (uint32_t i = 0; i < layer->n_extents; i++) {
        const struct extent *e = &layer->extents[(size_t)expert * layer->n_extents + i];
        if (memcmp((const char *)slot + e->slot_offset, want + e->slot_offset, e->bytes) != 0)
            return false;
    }
    return true;
}

static void open_cache(struct fixture *f, uint32_t n_slots, bool is_threaded)
{
    f->reader = faulty_open(is_threaded);
    assert_int_equal(expert_store_open(f->model, &(struct reader *){&f->reader->base}, STORE_PAGES,
                                       false, &f->store, NULL), 0);
    const enum heat_policy policy = n_slots % 2 == 0 ? HEAT_LCP : HEAT_LRU;
    const struct cache_tier tier = {&memory_host, n_slots};
    assert_int_equal(expert_cache_open(f->model, f->store, &tier, 1, policy,
                                       &f->cache, NULL), 0);
}

static void close_cache(struct fixture *f)
{
    expert_store_close(f->store);
    expert_cache_close(f->cache);
}

/* ---- plans ---------------------------------------------------------------------------------- */

struct plan {
    uint32_t layer, n;
    uint32_t ids[MAX_EXPERTS];
};

static void random_plan(const struct fixture *f, uint32_t *random, struct plan *plan)
{
    const struct model *m = f->model;
    plan->layer = next_random(random, m->n_expert_layers);
    const uint32_t n_experts = m->expert_layers[plan->layer].n_experts;
    plan->n = next_random(random, n_experts + 1);
    for (uint32_t i = 0; i < n_experts; i++)
        plan->ids[i] = i;
    for (uint32_t i = 0; i < plan->n; i++) {
        uint32_t j = i + next_random(random, n_experts - i), swap = plan->ids[i];
        plan->ids[i] = plan->ids[j];
        plan->ids[j] = swap;
    }
}

static void check_message(const struct fixture *f, const struct plan *plan,
                          const struct fm_error *err)
{
    unsigned expert = 0, layer = 0;
    const struct expert_layer *l = &f->model->expert_layers[plan->layer];
    bool is_named = sscanf(err->text, "cannot read expert %u of layer %u: ", &expert, &layer) == 2;
    bool is_planned = false;
    for (uint32_t i = 0; i < plan->n; i++)
        is_planned |= plan->ids[i] == expert;
    const char *why = f->reader->fault == FAULT_EIO ? strerror(EIO) : "ends early";
    if (err->code != FM_ERR_IO || !is_named || !is_planned || layer != l->layer ||
        strstr(err->text, f->model->source->files[0].path) == NULL ||
        strstr(err->text, " at byte ") == NULL || strstr(err->text, why) == NULL)
        fail_msg("layer %u: '%s'", l->layer, err->text);
}

/* Runs a plan and ends it after at most `max` experts. Every expert comes once; its slot holds its
 * bytes and keeps them until the next call. Returns the result of the last `next`. */
static int run_plan_beside(struct fixture *f, const struct plan *plan, uint32_t max)
{
    struct fm_error err = {0};
    struct expert_item item;
    bool seen[MAX_EXPERTS] = {false};
    uint32_t n = 0, got;
    int rc = 1;
    struct expert_use uses[MAX_EXPERTS];
    for (uint32_t i = 0; i < plan->n; i++)
        uses[i] = (struct expert_use){.expert = plan->ids[i], .n_uses = plan->ids[i] % 3};
    expert_cache_begin(f->cache, plan->layer, 1, uses, plan->n);
    while (n < max && (rc = expert_cache_next(f->cache, false, &item, 1, &got, &err)) == 1) {
        assert_true(item.index < plan->n && !seen[item.index]);
        seen[item.index] = true;
        for (int look = 0; look < 2; look++) {
            if (!is_right(f, plan->layer, plan->ids[item.index], item.slot))
                fail_msg("wrong bytes for expert %u of plan layer %u", plan->ids[item.index],
                         plan->layer);
            (void)sched_yield();
        }
        n++;
    }
    if (rc < 0)
        check_message(f, plan, &err);
    assert_true(rc != 0 || n == plan->n);
    expert_cache_end(f->cache);
    assert_int_equal(expert_cache_verify(f->cache, &got, &err), 0);
    return rc;
}

/* Does the same where nothing is read except for the plan. */
static int run_plan(struct fixture *f, const struct plan *plan, uint32_t max)
{
    int rc = run_plan_beside(f, plan, max);
    assert_int_equal(f->reader->n_submitted, f->reader->n_done);
    return rc;
}

static void run_whole(struct fixture *f, const struct plan *plan)
{
    assert_int_equal(run_plan(f, plan, UINT32_MAX), 0);
}

/* ---- tests ---------------------------------------------------------------------------------- */

#define N_PLANS 5

/* Makes `span` reads fail from the nth on. Returns false if the plans end before that. */
static bool fail_nth(struct fixture *f, const struct plan *plans, uint32_t n_slots,
                     bool is_threaded, long n, long span, enum fault fault)
{
    open_cache(f, n_slots, is_threaded);
    set_fault(f->reader, n, span, fault);
    bool was_reached = false;
    for (int p = 0; p < N_PLANS; p++) {
        int rc = run_plan(f, &plans[p], UINT32_MAX);
        assert_true(rc <= 0 && (rc < 0) == (n_failed(f->reader) > 0));
        if (rc == 0)
            continue;
        was_reached = true;
        set_fault(f->reader, 0, 0, fault);
        run_whole(f, &plans[p]);
    }
    set_fault(f->reader, 0, 0, fault);
    for (int p = 0; p < N_PLANS; p++)
        run_whole(f, &plans[p]);
    close_cache(f);
    return was_reached;
}

static void test_every_read_fails_once(void **state)
{
    static const uint32_t slots[] = {1, 2, 5, 16, 64};
    struct fixture f;
    struct plan plans[N_PLANS];
    uint32_t random = 42;
    long n_cases = 0;
    open_model(&f, *state);
    for (int p = 0; p < N_PLANS; p++)
        random_plan(&f, &random, &plans[p]);
    plans[1] = (struct plan){.layer = 1, .n = MAX_EXPERTS};
    for (uint32_t i = 0; i < MAX_EXPERTS; i++)
        plans[1].ids[i] = MAX_EXPERTS - 1 - i;
    for (unsigned i = 0; i < 2 * sizeof slots / sizeof slots[0]; i++) {
        enum fault fault = FAULT_EIO;
        long n = 1;
        for (; fail_nth(&f, plans, slots[i / 2], i % 2, n, n % 5 == 0 ? 1000 : 1 + n % 3, fault);
             n++)
            fault = (fault + 1) % N_FAULTS;
        assert_true(n > MAX_EXPERTS);
        n_cases += n;
    }
    print_message("%s: %ld cases\n", (const char *)*state, n_cases);
    close_model(&f);
}

static void test_random_plans(void **state)
{
    static const uint32_t slots[] = {1, 2, 7, 20, 48};
    struct fixture f;
    uint32_t random = 7;
    long n_faults = 0;
    open_model(&f, *state);
    for (unsigned i = 0; i < 2 * sizeof slots / sizeof slots[0]; i++) {
        uint64_t n_asked = 0;
        open_cache(&f, slots[i / 2], i % 2);
        for (int round = 0; round < 600; round++) {
            struct plan plan;
            random_plan(&f, &random, &plan);
            if (next_random(&random, 8) == 0)
                set_fault(f.reader, 1 + next_random(&random, 9), 1 + next_random(&random, 3),
                          (enum fault)next_random(&random, N_FAULTS));
            uint32_t max = next_random(&random, 6) == 0 ? next_random(&random, plan.n + 1)
                                                         : UINT32_MAX;
            n_faults += run_plan(&f, &plan, max) < 0;
            set_fault(f.reader, 0, 0, FAULT_EIO);
            n_asked += plan.n;
        }
        struct expert_cache_stats stats;
        expert_cache_stats(f.cache, &stats);
        assert_int_equal(stats.n_slots, slots[i / 2]);
        assert_int_equal(stats.n_hits + stats.n_misses, n_asked);
        close_cache(&f);
    }
    assert_true(n_faults > 100);
    close_model(&f);
}

/* Resident experts are not read again, whether the plan before failed or not. */
static void test_resident_experts_are_not_read(void **state)
{
    struct fixture f;
    struct plan plan = {.layer = 0, .n = 4, .ids = {3, 9, 0, 15}};
    open_model(&f, *state);
    for (int is_threaded = 0; is_threaded < 2; is_threaded++) {
        open_cache(&f, 4, is_threaded);
        run_whole(&f, &plan);
        const long n = f.reader->n_submitted;
        for (int round = 0; round < 3; round++)
            run_whole(&f, &plan);
        assert_int_equal(run_plan(&f, &plan, 1), 1);
        assert_int_equal(f.reader->n_submitted, n);
        struct plan next = {.layer = 0, .n = 2, .ids = {3, 4}};
        set_fault(f.reader, 1, 1000, FAULT_EIO);
        assert_true(run_plan(&f, &next, UINT32_MAX) < 0);
        assert_true(run_plan(&f, &next, UINT32_MAX) < 0); /* still not considered resident */
        set_fault(f.reader, 0, 0, FAULT_EIO);
        run_whole(&f, &next);
        run_whole(&f, &plan);
        close_cache(&f);
    }
    close_model(&f);
}

/* Warmed and guessed experts have the right bytes, whatever fails and whatever the plans need in
 * the meantime. Failed reads are repeated when the expert is needed. */
static void test_warm_and_guessed(void **state)
{
    static const uint32_t slots[] = {1, 2, 7, 20, 48};
    struct fixture f;
    uint32_t random = 11;
    open_model(&f, *state);
    for (unsigned i = 0; i < 6 * sizeof slots / sizeof slots[0]; i++) {
        open_cache(&f, slots[i / 6], true);
        struct heat *heat = expert_cache_heat(f.cache);
        for (uint32_t l = 0; l < f.model->n_expert_layers; l++)
            for (uint32_t e = 0; e < f.model->expert_layers[l].n_experts; e++)
                heat_restore(heat, l, e, next_random(&random, 4), next_random(&random, 50));
        set_fault(f.reader, 1 + next_random(&random, 20), next_random(&random, 12), FAULT_EIO);
        expert_cache_warm(f.cache);
        for (int round = 0; round < 60; round++) {
            struct plan plan;
            random_plan(&f, &random, &plan);
            for (uint32_t k = 0; k < 3; k++)
                (void)expert_cache_guess(f.cache, next_random(&random, f.model->n_expert_layers),
                                         next_random(&random, MAX_EXPERTS), 0.5);
            if (i % 2 == 0 && round == 10)
                expert_cache_stop_warming(f.cache);
            if (round % 3 == 1)
                expert_cache_sweep(f.cache, plan.layer);
            (void)run_plan_beside(&f, &plan, UINT32_MAX);
        }
        expert_cache_stop_warming(f.cache);
        close_cache(&f);
    }
    close_model(&f);
}

/* Changes the size at any time, during guesses, warming and failing reads: plans get the right
 * bytes, and the slots of a settled cache lie within its size. */
static void test_size_changes(void **state)
{
    static const uint32_t slots[] = {2, 7, 20, 48};
    struct fixture f;
    uint32_t random = 5;
    open_model(&f, *state);
    for (unsigned i = 0; i < 2 * sizeof slots / sizeof slots[0]; i++) {
        const uint32_t max = slots[i / 2];
        uint32_t wanted = max;
        open_cache(&f, max, i % 2);
        struct heat *heat = expert_cache_heat(f.cache);
        for (uint32_t e = 0; e < MAX_EXPERTS; e++)
            heat_restore(heat, e % f.model->n_expert_layers, e, 1 + e, e);
        expert_cache_warm(f.cache);
        for (int round = 0; round < 400; round++) {
            struct plan plan;
            struct expert_cache_stats stats;
            random_plan(&f, &random, &plan);
            if (next_random(&random, 3) == 0) {
                wanted = 1 + next_random(&random, max);
                expert_cache_resize(f.cache, 0, wanted);
            }
            if (next_random(&random, 2) == 0)
                (void)expert_cache_shrink(f.cache, next_random(&random, 4) *
                                                       f.model->expert_slot_bytes);
            if (next_random(&random, 4) == 0)
                expert_cache_sweep(f.cache, plan.layer);
            if (next_random(&random, 8) == 0)
                expert_cache_settle(f.cache);
            if (next_random(&random, 8) == 0)
                set_fault(f.reader, 1 + next_random(&random, 9), 1, FAULT_EIO);
            (void)expert_cache_guess(f.cache, plan.layer, next_random(&random, MAX_EXPERTS),
                                     0.5);
            (void)run_plan_beside(&f, &plan, UINT32_MAX);
            set_fault(f.reader, 0, 0, FAULT_EIO);
            expert_cache_stats(f.cache, &stats);
            assert_int_equal(stats.n_slots, wanted);
        }
        expert_cache_stop_warming(f.cache);
        close_cache(&f);
    }
    close_model(&f);
}

static uint64_t n_read(struct fixture *f)
{
    pthread_mutex_lock(&f->reader->lock);
    const long n = f->reader->n_submitted;
    pthread_mutex_unlock(&f->reader->lock);
    return (uint64_t)n;
}

/* A smaller cache keeps the hottest experts, wherever their slots were, and every layer keeps its
 * floor. None of them is read again. */
static void test_the_hottest_stay(void **state)
{
    struct fixture f;
    struct plan all = {.n = MAX_EXPERTS}, some = {.n = 0}, other = {.layer = 1, .n = 4};
    open_model(&f, *state);
    const uint32_t k = f.model->shape.n_experts_per_token;
    const uint32_t n_layers = f.model->n_expert_layers;
    assert_true(k <= 4 && n_layers >= 2);
    for (uint32_t i = 0; i < MAX_EXPERTS; i++)
        all.ids[i] = i;
    for (uint32_t i = 0; i < 4; i++)
        other.ids[i] = i;
    /* run_plan gives an expert id % 3 uses: those with 2 are hot, in slots all over the pool. */
    for (uint32_t i = 2; i < MAX_EXPERTS; i += 3)
        some.ids[some.n++] = i;
    open_cache(&f, 2 * MAX_EXPERTS, false);
    run_whole(&f, &other);
    run_whole(&f, &all);
    for (int round = 0; round < 5; round++)
        run_whole(&f, &some);
    const uint32_t floors = k * n_layers, wanted = some.n + floors;
    expert_cache_resize(f.cache, 0, wanted);
    expert_cache_settle(f.cache);
    assert_true(expert_cache_shrink(f.cache, 0)); /* nothing left to do */
    const uint64_t before = n_read(&f);
    run_whole(&f, &some);
    assert_int_equal(n_read(&f), before);
    /* Layer 1 was colder than all of layer 0, and keeps as many experts as a token needs. */
    struct expert_cache_stats was, is;
    expert_cache_stats(f.cache, &was);
    run_whole(&f, &other);
    expert_cache_stats(f.cache, &is);
    assert_int_equal(is.n_hits - was.n_hits, k < 4 ? k : 4);
    /* Larger again: everything fits and stays. */
    expert_cache_resize(f.cache, 0, UINT32_MAX);
    run_whole(&f, &all);
    run_whole(&f, &other);
    const uint64_t filled = n_read(&f);
    run_whole(&f, &all);
    run_whole(&f, &other);
    assert_int_equal(n_read(&f), filled);
    close_cache(&f);
    close_model(&f);
}

static void hold(struct faulty_reader *r, bool is_held)
{
    pthread_mutex_lock(&r->lock);
    r->is_held = is_held;
    pthread_mutex_unlock(&r->lock);
    pthread_cond_broadcast(&r->work_ready);
}

/* A slot with a pending read is freed when the read lands. Only settling waits for that. */
static void test_reads_under_way(void **state)
{
    struct fixture f;
    const struct plan plan = {.layer = 0, .n = 1, .ids = {0}};
    open_model(&f, *state);
    open_cache(&f, 4, true);
    assert_int_equal(run_plan_beside(&f, &plan, 1), 1);
    hold(f.reader, true);
    for (uint32_t i = 1; i < 4; i++)
        assert_true(expert_cache_guess(f.cache, 0, i, 0.5));
    expert_cache_resize(f.cache, 0, 1);
    assert_false(expert_cache_shrink(f.cache, UINT64_MAX));
    hold(f.reader, false);
    expert_cache_settle(f.cache);
    assert_true(expert_cache_shrink(f.cache, 0));
    assert_int_equal(run_plan_beside(&f, &plan, UINT32_MAX), 0);
    close_cache(&f);
    close_model(&f);
}

/* The plan needs a guess that fails, in a slot that is being removed; the only slot that stays is
 * being read by another guess. Whichever lands first, the expert comes. */
static void test_a_guess_fails_in_a_slot_that_goes(void **state)
{
    struct fixture f;
    const struct expert_use use = {.expert = 1, .n_uses = 1};
    long n_wanted_failed = 0;
    open_model(&f, *state);
    for (uint32_t n, round = 0; round < 200; round++) {
        struct expert_item item = {0};
        open_cache(&f, 2, true);
        f.reader->random = round * 2654435761u;
        hold(f.reader, true);
        set_fault(f.reader, 1, 1, FAULT_EIO);
        assert_true(expert_cache_guess(f.cache, 0, 0, 0.5));
        assert_true(expert_cache_guess(f.cache, 0, 1, 0.5));
        expert_cache_resize(f.cache, 0, 1);
        expert_cache_begin(f.cache, 0, 1, &use, 1);
        const uint64_t n_before = n_read(&f);
        hold(f.reader, false);
        assert_int_equal(expert_cache_next(f.cache, false, &item, 1, &n, NULL), 1);
        assert_true(n == 1 && is_right(&f, 0, 1, item.slot));
        assert_int_equal(expert_cache_next(f.cache, false, &item, 1, &n, NULL), 0);
        expert_cache_end(f.cache);
        assert_int_equal(expert_cache_verify(f.cache, &n, NULL), 0);
        n_wanted_failed += n_read(&f) > n_before;
        close_cache(&f);
    }
    print_message("%ld of 200 failed\n", n_wanted_failed);
    assert_true(n_wanted_failed > 20 && n_wanted_failed < 180);
    close_model(&f);
}

/* In a full cache, a guess evicts only an expert that is colder than the guess is likely. */
static void test_guesses_are_as_warm_as_likely(void **state)
{
    struct fixture f;
    struct expert_cache_stats stats;
    const struct plan cold = {.layer = 0, .n = 1, .ids = {4}};
    const struct plan hot = {.layer = 0, .n = 1, .ids = {1}};
    const struct plan guessed = {.layer = 0, .n = 1, .ids = {2}};
    open_model(&f, *state);
    open_cache(&f, 2, true);
    run_whole(&f, &cold);
    run_whole(&f, &hot);
    assert_false(expert_cache_guess(f.cache, 0, 2, 0.32)); /* 0.36, after decay */
    for (int token = 0; token < 24; token++)
        run_whole(&f, &hot);
    assert_false(expert_cache_guess(f.cache, 0, 2, 0.03)); /* an eighth of its heat is left */
    assert_true(expert_cache_guess(f.cache, 0, 2, 0.06));
    assert_false(expert_cache_guess(f.cache, 0, 3, 0.5)); /* only the hot one is left */
    const uint64_t n_before = n_read(&f);
    assert_int_equal(run_plan_beside(&f, &guessed, UINT32_MAX), 0);
    assert_int_equal(n_read(&f), n_before);
    expert_cache_stats(f.cache, &stats);
    assert_true(stats.n_guesses == 1 && stats.n_guesses_used == 1);
    close_cache(&f);
    close_model(&f);
}

/* Of the predicted experts that are missing, those with the largest weight are read first, two at a
 * time. When the layer has chosen, pending reads that are not needed are dropped. */
static void test_the_likeliest_are_read_ahead(void **state)
{
    static const uint32_t ids[] = {0, 1, 2, 3, 4, 5, 6};
    static const float weights[] = {.1f, .3f, .2f, .05f, .15f, .12f, .08f};
    static const struct expert_use uses[] = {{2, .n_uses = 1}, {3, .n_uses = 1}};
    static char memory[1024]; /* zeros */
    struct fixture f;
    struct expert_cache_stats stats;
    struct lookahead ahead;
    struct expert_item item;
    const struct plan resident = {.layer = 0, .n = 1, .ids = {1}};
    open_model(&f, *state);
    const struct lookahead_sizes sizes = {f.model->n_expert_layers, 7, 1};
    assert_true(lookahead_bytes(&sizes) <= sizeof memory);
    open_cache(&f, MAX_EXPERTS, true);
    run_whole(&f, &resident);
    lookahead_init(&ahead, LOOKAHEAD_ON, f.cache, &sizes, memory);
    lookahead_begin(&ahead, 1);
    const uint64_t n_before = n_read(&f);
    hold(f.reader, true);
    lookahead_guess(&ahead, 0, ids, weights, 1);
    expert_cache_begin(f.cache, 0, 1, uses, 2);
    hold(f.reader, false);
    for (uint32_t n; expert_cache_next(f.cache, false, &item, 1, &n, NULL) == 1;)
        assert_true(n == 1 && is_right(&f, 0, uses[item.index].expert, item.slot));
    expert_cache_end(f.cache);
    assert_int_equal(expert_cache_verify(f.cache, &item.index, NULL), 0);
    assert_int_equal(n_read(&f), 4 * n_before); /* before, it was one */
    close_cache(&f);
    open_cache(&f, 16, true); /* a prompt's layer: the first go into an eighth of the slots */
    expert_cache_sweep(f.cache, 0);
    assert_int_equal(run_plan_beside(&f, &resident, UINT32_MAX), 0);
    expert_cache_stats(f.cache, &stats);
    assert_true(stats.n_guesses <= 2 && stats.n_guesses_used == 1);
    close_cache(&f);
    close_model(&f);
}

/* ---- the store alone ------------------------------------------------------------------------ */

struct answer {
    struct expert_read read;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_done;
    bool ok;
};

static void answered(struct expert_read *read, bool ok)
{
    struct answer *a = read->ctx;
    pthread_mutex_lock(&a->lock);
    a->n_done++;
    a->ok = ok;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void read_one(struct fixture *f, struct answer *a, void *slot, uint32_t layer,
                     uint32_t expert)
{
    a->n_done = 0;
    a->read = (struct expert_read){.expert_layer = layer, .expert = expert, .dst = slot,
                                   .urgency = expert % 2 == 0 ? READ_NEEDED : READ_GUESSED,
                                   .done = answered, .ctx = a};
    expert_store_submit(f->store, &a->read);
    pthread_mutex_lock(&a->lock);
    while (a->n_done == 0)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

static void test_store_answers_once(void **state)
{
    struct fixture f;
    open_model(&f, *state);
    void *slot = mem_new_aligned(MEM_PAGE, f.model->expert_slot_bytes, "a slot", NULL);
    assert_non_null(slot);
    for (int is_threaded = 0; is_threaded < 2; is_threaded++) {
        struct answer a = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
        f.reader = faulty_open(is_threaded);
        assert_int_equal(expert_store_open(f.model, &(struct reader *){&f.reader->base},
                                           STORE_PAGES, false, &f.store, NULL),
                         0);
        for (uint32_t i = 0; i < f.model->n_expert_layers * MAX_EXPERTS * 8; i++) {
            uint32_t layer = i / 8 / MAX_EXPERTS, expert = i / 8 % MAX_EXPERTS;
            struct plan plan = {.layer = layer, .n = 1, .ids = {expert}};
            struct fm_error err = {0};
            set_fault(f.reader, i % 4, 1 + i % 8 / 4, (enum fault)(i % N_FAULTS));
            read_one(&f, &a, slot, layer, expert);
            assert_int_equal(a.ok, n_failed(f.reader) == 0);
            if (a.ok) {
                assert_true(is_right(&f, layer, expert, slot));
            } else {
                assert_int_equal(expert_store_explain(f.store, &a.read, &err), FM_ERR_IO);
                check_message(&f, &plan, &err);
            }
            assert_int_equal(a.n_done, 1);
        }
        expert_store_close(f.store);
        assert_int_equal(a.n_done, 1);
    }
    mem_free(slot);
    close_model(&f);
}

int main(void)
{
    static char next[] = GOLDEN "qwen3_next", moe[] = GOLDEN "qwen3_moe";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_warm_and_guessed, next),
        cmocka_unit_test_prestate(test_warm_and_guessed, moe),
        cmocka_unit_test_prestate(test_size_changes, next),
        cmocka_unit_test_prestate(test_size_changes, moe),
        cmocka_unit_test_prestate(test_the_hottest_stay, moe),
        cmocka_unit_test_prestate(test_reads_under_way, next),
        cmocka_unit_test_prestate(test_a_guess_fails_in_a_slot_that_goes, next),
        cmocka_unit_test_prestate(test_guesses_are_as_warm_as_likely, moe),
        cmocka_unit_test_prestate(test_the_likeliest_are_read_ahead, moe),
        cmocka_unit_test_prestate(test_store_answers_once, next),
        cmocka_unit_test_prestate(test_store_answers_once, moe),
        cmocka_unit_test_prestate(test_resident_experts_are_not_read, moe),
        cmocka_unit_test_prestate(test_every_read_fails_once, next),
        cmocka_unit_test_prestate(test_every_read_fails_once, moe),
        cmocka_unit_test_prestate(test_random_plans, next),
        cmocka_unit_test_prestate(test_random_plans, moe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
