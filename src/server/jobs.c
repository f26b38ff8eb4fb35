#include "server/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "server/jobs_internal.h"

#define PUBLISH_NS 100000000u
#define LOOK_NS 10000000u
#define PICTURE_NS 200000000u
#define PICTURE_WANTED_NS 3000000000u /* how long a requested map is kept up to date */
#define IDLE_BEFORE_KEEP_NS 3000000000u
#define COLLECT_BYTES (64u << 10)
#define KEEP_MIN 256 /* minimum tokens worth a snapshot */
#define HELD_NS 100000000u /* how often jobs that wait for their clients are checked */

struct jobs {
    struct runner runner;
    struct mem_account *account;
    struct preparers *preparers;
    void (*notify)(void *ctx);
    void *notify_ctx;
    uint64_t unsent_max;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t has_work; /* also signalled when a client has read */
    struct job *queue_first, *queue_last, *ready_first, *ready_last;
    bool is_notified; /* the HTTP thread was notified and has not checked since */
    bool has_found;   /* it found events in the current check */
    uint64_t look_ns; /* when it checks without a notification */
    bool is_stopping, is_stopping_now;
    uint64_t picture_wanted_ns;
    struct text_buffer picture;
    struct jobs_stats stats;
    struct fm_error lost; /* code 0: the model can be used */
};

static void lock(struct jobs *js)
{
    (void)pthread_mutex_lock(&js->lock); /* cannot fail: not recursive, always initialised */
}

static void unlock(struct jobs *js)
{
    (void)pthread_mutex_unlock(&js->lock);
}

/* ---- specifications and events ------------------------------------------------------------- */

void job_spec_clear(struct job_spec *spec)
{
    for (unsigned i = 0; i < spec->n_prompts; i++)
        fm_free(spec->prompts[i].ids);
    for (unsigned i = 0; i < spec->n_stops; i++)
        mem_free(spec->stops[i]);
    mem_free(spec->bias);
    fm_grammar_close(spec->grammar);
    json_decref(spec->tools);
    *spec = (struct job_spec){0};
}

void job_event_free(struct job_event *event)
{
    if (event->account != NULL)
        mem_account_give(event->account, event->bytes);
    mem_free(event->logprobs.at);
    mem_free(event);
}

/* The lock must be held. */
static void list_ready(struct jobs *js, struct job *job)
{
    if (job->is_ready)
        return;
    job->is_ready = true;
    job->n_refs++;
    job->next_ready = NULL;
    *(js->ready_first == NULL ? &js->ready_first : &js->ready_last->next_ready) = job;
    js->ready_last = job;
}

/* Returns whether to notify the HTTP thread. The lock must be held. When every core computes,
 * waking it for each token of a fast model costs a tenth of the speed, so less urgent events wait
 * for its next check. */
static bool must_tell(struct jobs *js, bool at_once)
{
    if (js->is_notified || (!at_once && plat_now_ns() < js->look_ns))
        return false;
    js->is_notified = true;
    return true;
}

/* Creates an event and charges its bytes to the account, all of which events may use. Returns NULL
 * when memory runs out. The last event of a job is free, so that a failure can always be
 * reported. */
static struct job_event *new_event(struct jobs *js, const struct job_event *like, const char *text,
                                   size_t bytes, struct job_logprobs *logprobs, bool is_last)
{
    const size_t n_logprobs = logprobs != NULL ? logprobs->capacity : 0;
    const uint64_t all = sizeof *like + bytes + 1 + n_logprobs * sizeof *logprobs->at;
    if (!is_last && !mem_account_take(js->account, all, 0))
        return NULL;
    struct job_event *event = mem_new(1, sizeof *event + bytes + 1, "an event", NULL);
    if (event == NULL) {
        if (!is_last)
            mem_account_give(js->account, all);
        return NULL;
    }
    *event = *like;
    event->account = is_last ? NULL : js->account;
    event->bytes = all;
    event->text_bytes = bytes;
    memcpy(event->text, text, bytes);
    if (logprobs != NULL) {
        event->logprobs = *logprobs;
        *logprobs = (struct job_logprobs){0};
    }
    return event;
}

/* The lock must be held. */
static bool is_behind(const struct jobs *js, const struct job *job)
{
    return job->spec.is_stream && job->event_bytes + job->unsent_bytes > js->unsent_max;
}

bool job_is_held(const struct job *job)
{
    lock(job->jobs);
    const bool is_held = is_behind(job->jobs, job);
    unlock(job->jobs);
    return is_held;
}

bool jobs_has_waiting(struct jobs *js)
{
    lock(js);
    const bool has_waiting = js->queue_first != NULL;
    unlock(js);
    return has_waiting;
}

int job_emit(void *ctx, const struct job_event *like, const char *text, size_t bytes,
             struct job_logprobs *logprobs)
{
    struct job *job = ctx;
    struct jobs *js = job->jobs;
    const bool is_last = like->kind == JOB_DONE || like->kind == JOB_FAILED;
    struct job_event *event = new_event(js, like, text, bytes, logprobs, is_last);
    if (event == NULL)
        return JOB_ERR_MEMORY;
    const bool is_said = like->kind != JOB_STARTED && like->kind != JOB_PROGRESS;
    const bool at_once = is_last || (is_said && !job->has_spoken);
    job->has_spoken |= is_said;
    lock(js);
    *(job->first == NULL ? &job->first : &job->last->next) = event;
    job->last = event;
    job->event_bytes += event->bytes;
    /* The HTTP thread collects unstreamed events now and then, into a smaller form. */
    if (job->spec.is_stream || is_last || job->event_bytes > COLLECT_BYTES)
        list_ready(js, job);
    const bool tells = job->is_ready && must_tell(js, at_once || is_behind(js, job));
    unlock(js);
    if (tells)
        js->notify(js->notify_ctx);
    return 0;
}

bool job_is_cancelled(const struct job *job)
{
    return __atomic_load_n(&job->is_cancelled, __ATOMIC_RELAXED);
}

/* ---- the other thread ----------------------------------------------------------------------- */

static void job_free(struct job *job)
{
    for (struct job_event *event = job->first, *next; event != NULL; event = next) {
        next = event->next;
        job_event_free(event);
    }
    job_spec_clear(&job->spec);
    if (job->spec_bytes > 0)
        preparers_give(job->jobs->preparers, job->spec_bytes);
    mem_free(job);
}

int jobs_submit(struct jobs *js, struct job_spec *spec, void *owner, struct job **out,
                struct fm_error *err)
{
    struct job *job = mem_new(1, sizeof *job, "a request", err);
    int rc = job == NULL ? FM_ERR_NOMEM : 0;
    *out = NULL;
    if (rc == 0) {
        job->spec = *spec;
        *spec = (struct job_spec){0};
        job->jobs = js;
        job->owner = owner;
        job->n_refs = 2; /* the caller's and the runner's */
        job->submitted_ns = plat_now_ns();
    }
    job_spec_clear(spec);
    if (rc != 0)
        return rc;
    lock(js);
    if (js->is_stopping)
        rc = err_set(err, JOB_ERR_SHUTDOWN, "the server is shutting down");
    else if (js->stats.n_queued >= js->stats.n_queue &&
             js->stats.n_running + js->stats.n_queued >= js->stats.n_parallel + js->stats.n_queue)
        rc = err_set(err, JOB_ERR_BUSY, "%u requests run and %u wait: the queue is full",
                     js->stats.n_running, js->stats.n_queued);
    js->stats.n_submitted++;
    js->stats.n_refused += rc != 0;
    if (rc == 0) {
        *(js->queue_first == NULL ? &js->queue_first : &js->queue_last->next_queued) = job;
        js->queue_last = job;
        js->stats.n_queued++;
        (void)pthread_cond_signal(&js->has_work);
    }
    unlock(js);
    if (rc != 0)
        job_free(job);
    else
        *out = job;
    return rc;
}

struct job *jobs_next_ready(struct jobs *js, uint64_t *look_ns)
{
    lock(js);
    struct job *job = js->ready_first;
    js->is_notified = false;
    if (job != NULL) {
        js->ready_first = job->next_ready;
        job->is_ready = false;
        js->has_found = true;
    } else {
        js->look_ns = js->has_found ? plat_now_ns() + LOOK_NS : 0;
        js->has_found = false;
    }
    *look_ns = js->look_ns;
    unlock(js);
    return job; /* passes on the list's reference */
}

void *job_owner(const struct job *job)
{
    return job->owner;
}

void job_disown(struct job *job, uint64_t bytes)
{
    job->owner = NULL;
    job->spec_bytes = bytes;
}

const struct job_spec *job_spec(const struct job *job)
{
    return &job->spec;
}

struct job_event *jobs_take_events(struct jobs *js, struct job *job)
{
    lock(js);
    struct job_event *first = job->first;
    job->first = job->last = NULL;
    job->unsent_bytes += job->event_bytes;
    job->event_bytes = 0;
    unlock(js);
    return first;
}

void jobs_note_unsent(struct jobs *js, struct job *job, uint64_t bytes)
{
    lock(js);
    const bool was_behind = is_behind(js, job);
    job->unsent_bytes = bytes;
    if (was_behind && !is_behind(js, job))
        (void)pthread_cond_signal(&js->has_work);
    unlock(js);
}

void jobs_usage(struct jobs *js, struct job *job, struct job_usage *usage)
{
    lock(js);
    *usage = job->usage;
    unlock(js);
}

void jobs_cancel(struct jobs *js, struct job *job)
{
    lock(js);
    __atomic_store_n(&job->is_cancelled, true, __ATOMIC_RELAXED);
    (void)pthread_cond_signal(&js->has_work); /* a waiting job leaves the queue */
    unlock(js);
}

void jobs_release(struct jobs *js, struct job *job)
{
    lock(js);
    const bool is_last = --job->n_refs == 0;
    unlock(js);
    if (is_last)
        job_free(job);
}

void jobs_stop(struct jobs *js, bool now)
{
    lock(js);
    js->is_stopping = true;
    js->is_stopping_now |= now;
    (void)pthread_cond_signal(&js->has_work);
    unlock(js);
}

bool jobs_is_stopping_now(struct jobs *js)
{
    lock(js);
    const bool now = js->is_stopping_now;
    unlock(js);
    return now;
}

bool jobs_is_idle(struct jobs *js)
{
    lock(js);
    const bool is_idle = js->stats.n_queued + js->stats.n_running == 0;
    unlock(js);
    return is_idle;
}

bool jobs_experts(struct jobs *js, struct text_buffer *out)
{
    lock(js);
    js->picture_wanted_ns = plat_now_ns();
    const bool is_good = text_buffer_add(out, text_buffer_text(&js->picture), js->picture.n);
    unlock(js);
    return is_good;
}

static void add_rates(const struct window *w, struct jobs_stats *stats)
{
    const struct window_sample *a, *b;
    stats->answer_per_s = stats->prompt_per_s = stats->read_bytes_per_s = stats->window_s = 0;
    stats->hit_rate = -1;
    if (!window_ends(w, plat_now_ns(), &a, &b))
        return;
    const double s = (double)(b->ns - a->ns) * 1e-9;
    const uint64_t n_hits = b->model.n_expert_hits - a->model.n_expert_hits;
    const uint64_t n_misses = b->model.n_expert_misses - a->model.n_expert_misses;
    stats->answer_per_s = (double)(b->n_answer - a->n_answer) / s;
    stats->prompt_per_s = (double)(b->n_prompt - a->n_prompt) / s;
    stats->read_bytes_per_s = (double)(b->model.bytes_read - a->model.bytes_read) / s;
    if (n_hits + n_misses > 0)
        stats->hit_rate = (double)n_hits / (double)(n_hits + n_misses);
    stats->window_s = s;
    stats->before = a->model;
    stats->is_decode_only = a->model.n_prefill_tokens == b->model.n_prefill_tokens &&
                            b->model.n_decode_tokens > a->model.n_decode_tokens;
}

void jobs_stats(struct jobs *js, struct jobs_stats *stats)
{
    lock(js);
    *stats = js->stats;
    add_rates(&js->runner.window, stats);
    unlock(js);
}

/* ---- what the runner publishes -------------------------------------------------------------- */

static void publish_picture(struct jobs *js)
{
    struct text_buffer picture = {0}, old;
    if (!runner_picture(&js->runner, &picture)) {
        text_buffer_clear(&picture);
        return;
    }
    lock(js);
    old = js->picture;
    js->picture = picture;
    unlock(js);
    text_buffer_clear(&old);
}

void jobs_publish(struct jobs *js, bool now)
{
    struct runner *e = &js->runner;
    struct window_sample sample = {.ns = plat_now_ns()};
    const bool can_ask = !e->is_computing || e->n_groups == 1;
    if (!now && sample.ns - e->published_ns < PUBLISH_NS && !(e->owes_picture && can_ask))
        return;
    e->published_ns = sample.ns;
    sample.n_prompt = e->n_prompt;
    sample.n_answer = e->n_answer;
    sample.model.size = sizeof sample.model;
    fm_model_stats(e->model, &sample.model);
    lock(js);
    struct jobs_stats *s = &js->stats;
    window_note(&e->window, &sample);
    s->n_running = e->n_running;
    s->n_held = e->n_held;
    s->n_passes = e->n_passes;
    s->pass_ns = e->pass_ns;
    s->passed_ns = e->ended_ns;
    s->n_answer = e->n_answer;
    s->model = sample.model;
    s->position = e->position;
    for (s->n_ranks = 0; s->n_ranks < JOBS_RANKS; s->n_ranks++) {
        s->ranks[s->n_ranks].size = sizeof s->ranks[0];
        if (!fm_model_rank(e->model, s->n_ranks, &s->ranks[s->n_ranks]))
            break;
    }
    for (s->n_slots = 0; s->n_slots < JOBS_SLOTS_SHOWN; s->n_slots++) {
        struct session_pool_info *slot = &s->slots[s->n_slots];
        if (!session_pool_info(e->sessions, s->n_slots, slot))
            break;
        s->slot_owners[s->n_slots] = session_pool_owner(e->sessions, s->n_slots);
    }
    s->snapshots.size = sizeof s->snapshots;
    if (e->snapshots != NULL)
        fm_snapshots_stats(e->snapshots, &s->snapshots);
    const bool is_wanted = sample.ns - js->picture_wanted_ns < PICTURE_WANTED_NS &&
                           sample.ns - e->pictured_ns >= PICTURE_NS * (e->n_groups > 1 ? 10 : 1);
    const bool is_old = js->picture.n == 0 || (now && e->n_pictured != e->n_passes);
    unlock(js);
    /* Other ranks cannot be asked for it while some of their work is under way. */
    e->owes_picture = (is_wanted || is_old) && !can_ask;
    if ((is_wanted || is_old) && can_ask) {
        e->pictured_ns = sample.ns;
        e->n_pictured = e->n_passes;
        publish_picture(js);
    }
}

void job_leave(struct job *job, int code, const char *why)
{
    struct jobs *js = job->jobs;
    const uint64_t now_ns = plat_now_ns();
    const uint64_t started_ns = job->started_ns > 0 ? job->started_ns : now_ns;
    const uint64_t answered_ns = job->answered_ns > 0 ? job->answered_ns : now_ns;
    struct fm_stats after = job->before;
    after.size = sizeof after;
    if (job->started_ns > 0)
        fm_model_stats(js->runner.model, &after);
    lock(js);
    job->usage = (struct job_usage){
        .n_prompt = job->n_prompt, .n_cached = job->n_cached, .n_answer = job->n_answer,
        .n_reasoning = job->n_reasoning, .queue_ns = started_ns - job->submitted_ns,
        .prefill_ns = answered_ns - started_ns, .decode_ns = now_ns - answered_ns,
        .gap_ns = job->gap_ns,
        .n_hits = after.n_expert_hits - job->before.n_expert_hits,
        .n_misses = after.n_expert_misses - job->before.n_expert_misses,
        .bytes_read = after.bytes_read - job->before.bytes_read,
        .n_drafted = job->n_drafted, .n_accepted = job->n_accepted,
        .n_draft_passes = job->n_draft_passes};
    js->stats.n_prompt += job->n_prompt;
    js->stats.n_cached += job->n_cached;
    js->stats.n_done += code == 0;
    js->stats.n_cancelled += code == FM_ERR_CANCELLED;
    js->stats.n_failed += code != 0 && code != FM_ERR_CANCELLED;
    js->stats.n_running = js->runner.n_running;
    js->stats.n_held = js->runner.n_held;
    unlock(js);
    const struct job_event like = {.kind = code == 0 ? JOB_DONE : JOB_FAILED, .code = code};
    if (code == JOB_ERR_MEMORY && why[0] == '\0')
        why = JOB_MEMORY_TEXT;
    (void)job_emit(job, &like, why, strlen(why), NULL); /* on failure the connection just ends */
    jobs_release(js, job);
}

/* ---- the runner thread ---------------------------------------------------------------------- */

/* Takes the first job, or a cancelled one, out of the queue. The lock must be held. */
static struct job *unqueue(struct jobs *js, bool any)
{
    struct job *before = NULL;
    for (struct job *job = js->queue_first; job != NULL; before = job, job = job->next_queued) {
        if (!any && !job->is_cancelled)
            continue;
        *(before == NULL ? &js->queue_first : &before->next_queued) = job->next_queued;
        if (js->queue_last == job)
            js->queue_last = before;
        js->stats.n_queued--;
        return job;
    }
    return NULL;
}

/* Ends waiting jobs that were cancelled. */
static void sweep_queue(struct jobs *js)
{
    for (;;) {
        lock(js);
        const bool stops = js->is_stopping;
        struct job *job = unqueue(js, stops);
        unlock(js);
        if (job == NULL)
            return;
        if (job_is_cancelled(job))
            runner_end(&js->runner, job, FM_ERR_CANCELLED, "cancelled");
        else
            runner_end_stopped(&js->runner, job);
    }
}

static void admit(struct jobs *js)
{
    struct runner *e = &js->runner;
    while (e->n_running < e->n_parallel) {
        struct fm_error err = {0};
        lock(js);
        struct job *job = unqueue(js, true);
        js->stats.n_running += job != NULL;
        unlock(js);
        if (job == NULL)
            return;
        const int rc = runner_begin(e, job, &err);
        if (rc != 0)
            runner_end(e, job, rc, err.text);
    }
}

/* Waits for work; returns false after an idle period. The lock must be held. */
static bool wait_for_work(struct jobs *js)
{
    const uint64_t until_ns = plat_now_ns() + IDLE_BEFORE_KEEP_NS;
    int rc = 0;
    while (rc == 0 && js->queue_first == NULL && !js->is_stopping)
        rc = plat_cond_wait(&js->has_work, &js->lock, until_ns);
    return rc != ETIMEDOUT;
}

/* Waits until a client has read or a job can be admitted, stopped or cancelled. */
static void wait_for_clients(struct jobs *js)
{
    const struct runner *e = &js->runner;
    lock(js);
    bool is_held = !js->is_stopping_now &&
                   (js->queue_first == NULL || e->n_running == e->n_parallel);
    for (unsigned i = 0; is_held && i < e->n_running; i++)
        is_held = is_behind(js, e->running[i]) && !e->running[i]->is_cancelled;
    if (is_held)
        (void)plat_cond_wait(&js->has_work, &js->lock, plat_now_ns() + HELD_NS);
    unlock(js);
}

/* When idle, saves one session at a time. */
static bool keep_one(struct jobs *js, unsigned n_new)
{
    struct fm_error err = {0};
    if (fm_model_lost(js->runner.model) != NULL)
        return false;
    const int rc = session_pool_keep(js->runner.sessions, n_new, &err);
    if (rc < 0)
        log_warn("server", "a session was not saved: %s", err.text);
    return rc != 0;
}

static void fail_running(struct jobs *js)
{
    struct runner *e = &js->runner;
    const bool now = jobs_is_stopping_now(js);
    if (now)
        runner_land(e);
    while (now && e->n_running > 0)
        runner_end_stopped(e, e->running[0]);
}

/* Tells the server that nothing more can be computed. */
static void see_loss(struct jobs *js)
{
    const char *why = fm_model_lost(js->runner.model);
    if (why == NULL || js->lost.code != 0)
        return;
    lock(js);
    (void)err_set(&js->lost, FM_ERR_IO, "%s", why);
    unlock(js);
    js->notify(js->notify_ctx);
}

bool jobs_lost(struct jobs *js, struct fm_error *why)
{
    lock(js);
    *why = js->lost;
    unlock(js);
    return why->code != 0;
}

static void *runner_main(void *ctx)
{
    struct jobs *js = ctx;
    struct runner *e = &js->runner;
    bool stops = false;
    while (!stops || e->n_running > 0) {
        sweep_queue(js);
        admit(js);
        fail_running(js);
        if (e->n_running > 0) {
            const bool has_passed = runner_pass(e);
            see_loss(js);
            jobs_publish(js, false);
            if (!has_passed)
                wait_for_clients(js);
        }
        if (e->n_running == 0) {
            jobs_publish(js, true); /* asks the ranks */
            see_loss(js);
            lock(js);
            const bool has_work = wait_for_work(js);
            unlock(js);
            if (!has_work)
                while (keep_one(js, KEEP_MIN) && jobs_is_idle(js))
                    ;
        }
        lock(js);
        stops = js->is_stopping;
        unlock(js);
    }
    sweep_queue(js);
    while (keep_one(js, KEEP_MIN / 4))
        ;
    jobs_publish(js, true);
    js->notify(js->notify_ctx);
    return NULL;
}

/* ---- open and close ------------------------------------------------------------------------- */

static int open_runner(struct runner *e, const struct jobs_options *o, struct fm_error *err)
{
    const struct session_pool_options how = {
        .n_sessions = o->n_sessions, .snapshots = o->snapshots, .keep_min = KEEP_MIN};
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(o->model, &stats);
    e->model = o->model;
    e->snapshots = o->snapshots;
    e->texts = o->texts;
    e->n_parallel = o->n_parallel;
    e->prefill_chunk = stats.prefill_chunk;
    runner_open_pace(e, o->stall_ns);
    e->running = mem_new(o->n_parallel, sizeof *e->running, "the requests", err);
    if (e->running == NULL || runner_open_groups(e, err) != 0)
        return FM_ERR_NOMEM;
    return session_pool_open(o->model, &how, &e->sessions, err);
}

int jobs_open(const struct jobs_options *options, struct jobs **out, struct fm_error *err)
{
    *out = NULL;
    struct jobs *js = mem_new(1, sizeof *js, "the requests", err);
    if (js == NULL)
        return FM_ERR_NOMEM;
    (void)pthread_mutex_init(&js->lock, NULL); /* cannot fail with default attributes */
    plat_cond_open(&js->has_work);
    js->notify = options->notify;
    js->notify_ctx = options->ctx;
    js->account = options->account;
    js->preparers = options->preparers;
    js->unsent_max = options->unsent_max;
    js->stats.n_queue = options->n_queue;
    js->stats.n_parallel = options->n_parallel;
    int rc = open_runner(&js->runner, options, err);
    if (rc == 0) {
        jobs_publish(js, true);
        const int code = plat_thread_start(&js->thread, runner_main, js);
        js->has_thread = code == 0;
        if (code != 0)
            rc = err_set(err, FM_ERR_NOMEM, "cannot start the runner thread: errno %d", code);
    }
    if (rc != 0) {
        jobs_close(js);
        return rc;
    }
    *out = js;
    return 0;
}

void jobs_close(struct jobs *js)
{
    if (js == NULL)
        return;
    if (js->has_thread) {
        jobs_stop(js, true);
        (void)pthread_join(js->thread, NULL);
    }
    uint64_t look_ns;
    for (struct job *job; (job = jobs_next_ready(js, &look_ns)) != NULL;)
        jobs_release(js, job);
    runner_close_pace(&js->runner);
    session_pool_close(js->runner.sessions);
    mem_free(js->runner.running);
    runner_close_groups(&js->runner);
    text_buffer_clear(&js->picture);
    (void)pthread_cond_destroy(&js->has_work);
    (void)pthread_mutex_destroy(&js->lock);
    mem_free(js);
}
