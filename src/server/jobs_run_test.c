/* The runner: which prompts are read when, and what they share. Events are taken on the runner
 * thread itself, inside its notification, so that their order does not depend on time. */
#include "server/jobs.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "flashmoe_lab.h"

#define VOCABULARY 512
#define N_JOBS 12 /* more than the rows of the head that a small server computes together */
#define CHUNK 64
#define PREFIX 600
#define OWN 40
#define N_ANSWER 24
#define PROMPT_MAX 1000

static char folder[64];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static const char *model_path(void)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/model.fmoe", folder);
    return path;
}

static int make_model(void **state)
{
    (void)state;
    const uint32_t numbers[FM_SYNTH_NUMBERS] = {
        [FM_SYNTH_LAYERS] = 4,        [FM_SYNTH_HIDDEN] = 64,
        [FM_SYNTH_HEADS] = 2,         [FM_SYNTH_KV_HEADS] = 1,
        [FM_SYNTH_HEAD_DIM] = 64,     [FM_SYNTH_EXPERTS] = 8,
        [FM_SYNTH_USED] = 2,          [FM_SYNTH_EXPERT_WIDTH] = 64,
        [FM_SYNTH_SHARED_WIDTH] = 64, [FM_SYNTH_KEY_HEADS] = 1,
        [FM_SYNTH_VALUE_HEADS] = 2,   [FM_SYNTH_KEY_DIM] = 64,
        [FM_SYNTH_VALUE_DIM] = 64,    [FM_SYNTH_VOCAB] = VOCABULARY,
    };
    const struct fm_synth_options options = {.size = sizeof options, .form = FM_SYNTH_PACKED,
                                             .numbers = numbers, .n_numbers = FM_SYNTH_NUMBERS,
                                             .seed = 5};
    struct fm_error err = {0};
    (void)snprintf(folder, sizeof folder, "/tmp/jobs_run_test.XXXXXX");
    assert_non_null(mkdtemp(folder));
    must(fm_synth("coder-next", model_path(), &options, NULL, &err), &err);
    return 0;
}

static int remove_model(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* ---- a server without HTTP ---------------------------------------------------------------- */

struct client {
    struct job *job;
    int32_t prompt[PROMPT_MAX];
    size_t n_prompt;
    int32_t ids[N_ANSWER]; /* the answer */
    unsigned n_ids;
    bool is_over;
    int code;
    struct job_usage usage;
};

struct fixture {
    struct fm_model *model;
    struct call_texts *texts;
    struct mem_account account;
    struct jobs *jobs;
    struct fm_logit_bias bias[VOCABULARY];
    unsigned n_bias;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_held; /* the runner waits in its first notification until all jobs are there */
    struct client clients[N_JOBS];
    unsigned n_clients, n_over;
    /* Jobs by their first text, and how many tokens job 0 had when the last one began. */
    unsigned order[N_JOBS], n_order, n_first_before_last;
};

static void take_event(struct fixture *f, struct client *c, const struct job_event *event)
{
    if (event->kind == JOB_CONTENT && c->n_ids == 0) {
        f->order[f->n_order++] = (unsigned)(c - f->clients);
        f->n_first_before_last = f->clients[0].n_ids;
    }
    for (size_t i = 0; i < event->logprobs.n; i += event->logprobs.n_each)
        if (c->n_ids < N_ANSWER)
            c->ids[c->n_ids++] = event->logprobs.at[i].id;
    if (event->kind == JOB_DONE || event->kind == JOB_FAILED) {
        c->is_over = true;
        c->code = event->code;
        f->n_over++;
    }
}

/* Called on the runner thread. */
static void notified(void *ctx)
{
    struct fixture *f = ctx;
    uint64_t look_ns;
    (void)pthread_mutex_lock(&f->lock);
    while (f->is_held)
        (void)pthread_cond_wait(&f->changed, &f->lock);
    for (struct job *job; (job = jobs_next_ready(f->jobs, &look_ns)) != NULL;) {
        struct client *c = job_owner(job);
        for (struct job_event *e = jobs_take_events(f->jobs, job), *next; e != NULL; e = next) {
            next = e->next;
            take_event(f, c, e);
            job_event_free(e);
        }
        jobs_note_unsent(f->jobs, job, 0);
        if (c->is_over)
            jobs_usage(f->jobs, job, &c->usage);
        jobs_release(f->jobs, job);
    }
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

/* Allows letters only: each of them is a text at once. */
static void allow_letters(struct fixture *f)
{
    bool is_letter[VOCABULARY] = {false};
    for (char c = 'a'; c <= 'z'; c++) {
        int32_t *ids = NULL;
        size_t n = 0;
        struct fm_error err = {0};
        must(fm_tokenize(f->model, &c, 1, FM_TEXT_PLAIN, &ids, &n, &err), &err);
        assert_int_equal(n, 1);
        is_letter[ids[0]] = true;
        fm_free(ids);
    }
    for (int32_t id = 0; id < VOCABULARY; id++)
        if (!is_letter[id])
            f->bias[f->n_bias++] = (struct fm_logit_bias){id, -__builtin_inff()};
}

static void open_with_stall(struct fixture *f, unsigned n_parallel, uint64_t stall_ns)
{
    struct fm_error err = {0};
    const struct fm_model_options how = {.size = sizeof how, .n_threads = 2,
                                         .n_sessions = N_JOBS + 2, .n_context = 2048, .n_marks = 4,
                                         .prefill_chunk = CHUNK};
    *f = (struct fixture){.account = {.limit = 64u << 20}};
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->changed, NULL);
    must(fm_model_open(model_path(), &how, &f->model, &err), &err);
    must(call_texts_open(1 << 16, 16, &f->texts, &err), &err);
    allow_letters(f);
    const struct jobs_options options = {
        .model = f->model, .texts = f->texts, .account = &f->account, .n_parallel = n_parallel,
        .n_sessions = N_JOBS + 2, .n_queue = N_JOBS, .stall_ns = stall_ns,
        .unsent_max = 1u << 20, .notify = notified, .ctx = f};
    (void)pthread_mutex_lock(&f->lock); /* a notification must find f->jobs */
    must(jobs_open(&options, &f->jobs, &err), &err);
    (void)pthread_mutex_unlock(&f->lock);
}

static void open_fixture(struct fixture *f, unsigned n_parallel)
{
    open_with_stall(f, n_parallel, 200000000u);
}

static void close_fixture(struct fixture *f)
{
    jobs_close(f->jobs);
    call_texts_close(f->texts);
    fm_model_close(f->model);
    assert_int_equal(mem_account_used(&f->account), 0);
    (void)pthread_cond_destroy(&f->changed);
    (void)pthread_mutex_destroy(&f->lock);
}

/* Begins new clients: the runner does nothing before `release`, and then has all jobs. */
static void hold(struct fixture *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->is_held = true;
    f->n_clients = f->n_over = f->n_order = 0;
    memset(f->clients, 0, sizeof f->clients);
    (void)pthread_mutex_unlock(&f->lock);
}

static void release(struct fixture *f)
{
    (void)pthread_mutex_lock(&f->lock);
    f->is_held = false;
    (void)pthread_cond_broadcast(&f->changed);
    (void)pthread_mutex_unlock(&f->lock);
}

static void wait_for_all(struct fixture *f)
{
    (void)pthread_mutex_lock(&f->lock);
    while (f->n_over < f->n_clients)
        (void)pthread_cond_wait(&f->changed, &f->lock);
    for (unsigned i = 0; i < f->n_clients; i++)
        jobs_release(f->jobs, f->clients[i].job);
    (void)pthread_mutex_unlock(&f->lock);
}

/* Submits a prompt of `n_prefix` shared tokens and n_own tokens of this client. */
static struct client *submit(struct fixture *f, size_t n_prefix, size_t n_own, unsigned seed)
{
    struct client *c = &f->clients[f->n_clients++];
    struct fm_error err = {0};
    struct job_spec spec = {.n_prompts = 1, .n_choices = 1, .n_max = N_ANSWER, .is_stream = true,
                            .wants_logprobs = true, .sampling = {.size = sizeof spec.sampling,
                                                                 .top_p = 1}};
    c->n_prompt = n_prefix + n_own;
    assert_true(c->n_prompt <= PROMPT_MAX);
    for (size_t i = 0; i < c->n_prompt; i++)
        c->prompt[i] = (int32_t)((i * 37 + i * i * 11 + (i < n_prefix ? 0 : seed * 101)) % 256);
    c->prompt[n_prefix] = (int32_t)seed; /* the first one that differs */
    spec.prompts[0].ids = mem_new(c->n_prompt, sizeof *c->prompt, "a prompt", &err);
    spec.prompts[0].n_ids = c->n_prompt;
    spec.bias = mem_new(f->n_bias, sizeof *spec.bias, "a bias", &err);
    assert_true(spec.prompts[0].ids != NULL && spec.bias != NULL);
    memcpy(spec.prompts[0].ids, c->prompt, c->n_prompt * sizeof *c->prompt);
    memcpy(spec.bias, f->bias, f->n_bias * sizeof *spec.bias);
    spec.sampling.logit_bias = spec.bias;
    spec.sampling.n_logit_bias = f->n_bias;
    must(jobs_submit(f->jobs, &spec, c, &c->job, &err), &err);
    return c;
}

/* Asks one client alone and returns it. */
static const struct client *ask(struct fixture *f, size_t n_prefix, size_t n_own, unsigned seed)
{
    hold(f);
    const struct client *c = submit(f, n_prefix, n_own, seed);
    release(f);
    wait_for_all(f);
    assert_int_equal(c->code, 0);
    assert_int_equal(c->n_ids, N_ANSWER);
    return c;
}

/* The clients' answers are those that each gets from a server of its own. */
static void check_answers(const struct client *clients, unsigned n, size_t n_prefix, size_t n_own)
{
    for (unsigned i = 0; i < n; i++) {
        struct fixture alone;
        open_fixture(&alone, 1);
        const struct client *c = ask(&alone, n_prefix, n_own, i + 1);
        assert_memory_equal(c->prompt, clients[i].prompt, c->n_prompt * sizeof *c->prompt);
        assert_memory_equal(c->ids, clients[i].ids, sizeof c->ids);
        close_fixture(&alone);
    }
}

/* ---- tests -------------------------------------------------------------------------------- */

static void test_user_by_user(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    hold(&f);
    for (unsigned i = 0; i < N_JOBS; i++)
        (void)submit(&f, 0, 300, i + 1);
    release(&f);
    wait_for_all(&f);
    assert_int_equal(f.n_order, N_JOBS);
    for (unsigned i = 0; i < N_JOBS; i++) {
        assert_int_equal(f.order[i], i);
        assert_int_equal(f.clients[i].usage.n_cached, 0);
    }
    /* The other prompts take at least so many passes, each with a token of the first answer. */
    const unsigned n_min = (N_JOBS - 1) * 300 / CHUNK - 1;
    assert_true(f.n_first_before_last >= (n_min < N_ANSWER ? n_min : N_ANSWER));
    check_answers(f.clients, N_JOBS, 0, 300);
    close_fixture(&f);
}

static void test_prefix_once(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    hold(&f);
    for (unsigned i = 0; i < N_JOBS; i++)
        (void)submit(&f, PREFIX, OWN, i + 1);
    release(&f);
    wait_for_all(&f);
    for (unsigned i = 0; i < N_JOBS; i++) {
        assert_int_equal(f.clients[i].code, 0);
        assert_int_equal(f.clients[i].usage.n_cached, i == 0 ? 0 : PREFIX);
    }
    check_answers(f.clients, N_JOBS, PREFIX, OWN);
    /* One that comes later goes on from there, too. */
    assert_int_equal(ask(&f, PREFIX, OWN, 99)->usage.n_cached, PREFIX);
    close_fixture(&f);
}

static void test_same_prompt(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    hold(&f);
    for (unsigned i = 0; i < N_JOBS; i++)
        (void)submit(&f, 0, 300, 1);
    release(&f);
    wait_for_all(&f);
    for (unsigned i = 1; i < N_JOBS; i++) {
        assert_int_equal(f.clients[i].usage.n_cached, 299);
        assert_memory_equal(f.clients[i].ids, f.clients[0].ids, sizeof f.clients[0].ids);
    }
    check_answers(f.clients, 1, 0, 300);
    close_fixture(&f);
}

/* Nobody knew of the second prompt when the first was read: there may be no mark where they part.
 * The third one finds one. */
static void test_mark_at_fork(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    (void)ask(&f, PREFIX, 300, 1);
    const uint64_t n_second = ask(&f, PREFIX, 300, 2)->usage.n_cached;
    const uint64_t n_third = ask(&f, PREFIX, 300, 3)->usage.n_cached;
    assert_true(n_second + 64 <= PREFIX); /* or this tests nothing */
    assert_int_equal(n_third, PREFIX);
    close_fixture(&f);
}

/* A prefix whose job is cancelled is computed by the next one, for all others. */
static void test_source_leaves(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    hold(&f);
    for (unsigned i = 0; i < N_JOBS; i++)
        (void)submit(&f, PREFIX, OWN, i + 1);
    jobs_cancel(f.jobs, f.clients[0].job);
    release(&f);
    wait_for_all(&f);
    assert_int_equal(f.clients[0].code, FM_ERR_CANCELLED);
    for (unsigned i = 1; i < N_JOBS; i++) {
        assert_int_equal(f.clients[i].code, 0);
        assert_int_equal(f.clients[i].usage.n_cached, i == 1 ? 0 : PREFIX);
    }
    close_fixture(&f);
}

/* A short prompt waits for the beginning of a long one. What is due between the two is read after
 * the short one. */
static void test_wanted_prefix_is_early(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, N_JOBS);
    hold(&f);
    (void)submit(&f, 100, 850, 1);
    (void)submit(&f, 0, 500, 2);
    (void)submit(&f, 100, 50, 3);
    release(&f);
    wait_for_all(&f);
    const unsigned order[] = {2, 1, 0};
    assert_int_equal(f.n_order, 3);
    assert_memory_equal(f.order, order, sizeof order);
    assert_int_equal(f.clients[2].usage.n_cached, 100);
    close_fixture(&f);
}

/* Returns the passes of a runner whose jobs are over. It publishes them when it has none left. */
static uint64_t count_passes(struct fixture *f)
{
    struct jobs_stats stats = {0};
    do
        jobs_stats(f->jobs, &stats);
    while (stats.n_running > 0 || stats.n_passes == 0);
    return stats.n_passes;
}

/* After the prefix, the prompts have 0 to 5 more tokens in common. Those are not worth a pass each:
 * all go on together. */
static void test_short_tails_go_together(void **state)
{
    (void)state;
    struct fixture f, alone;
    open_fixture(&f, N_JOBS);
    hold(&f);
    for (unsigned i = 0; i < 6; i++)
        (void)submit(&f, PREFIX + i, 8 - i, i + 1);
    release(&f);
    wait_for_all(&f);
    for (unsigned i = 1; i < 6; i++)
        assert_int_equal(f.clients[i].usage.n_cached, PREFIX);
    open_fixture(&alone, 1);
    (void)ask(&alone, PREFIX, 8, 1);
    /* The piece that ends after the prefix is the only one more. */
    assert_int_equal(count_passes(&f), count_passes(&alone) + 1);
    close_fixture(&alone);
    close_fixture(&f);
}

/* Answers run before every layer of a prompt if they may not wait at all. The second prompt takes 5
 * to 18 pieces of 16 to 52 tokens, each with four layers. */
static void test_answers_between_layers(void **state)
{
    (void)state;
    struct fixture f;
    open_with_stall(&f, N_JOBS, 1);
    hold(&f);
    (void)submit(&f, 0, 40, 1);
    (void)submit(&f, 0, 300, 2);
    release(&f);
    wait_for_all(&f);
    assert_int_equal(f.order[1], 1);
    assert_true(f.n_first_before_last >= 20);
    check_answers(f.clients, 1, 0, 40);
    struct fixture alone;
    open_fixture(&alone, 1);
    assert_memory_equal(ask(&alone, 0, 300, 2)->ids, f.clients[1].ids, sizeof f.clients[1].ids);
    close_fixture(&alone);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_user_by_user),
        cmocka_unit_test(test_prefix_once),
        cmocka_unit_test(test_same_prompt),
        cmocka_unit_test(test_mark_at_fork),
        cmocka_unit_test(test_source_leaves),
        cmocka_unit_test(test_wanted_prefix_is_early),
        cmocka_unit_test(test_short_tails_go_together),
        cmocka_unit_test(test_answers_between_layers),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
