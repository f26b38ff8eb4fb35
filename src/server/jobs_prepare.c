#include "server/jobs_prepare.h"

#include <assert.h>
#include <pthread.h>

#include "base/mem.h"
#include "base/plat.h"
#include "server/job.h"

#define N_THREADS 2
#define SMALL_BYTES (256u << 10)

struct preparers;

struct preparer {
    struct preparers *all;
    pthread_t thread;
    bool has_thread;
    bool is_for_small; /* takes small tasks only */
};

struct preparers {
    struct preparers_options o;
    struct preparer threads[N_THREADS];

    pthread_mutex_t lock;
    pthread_cond_t has_work;
    struct prepare_task *queue_first, *queue_last;
    struct prepare_task *done_first, *done_last;
    struct prepare_task *running[N_THREADS];
    struct preparers_stats stats;
    uint64_t trim_bytes; /* freed; returned to the account after a trim */
    bool is_trimming;    /* so much is freed that tasks wait for the trim */
    bool is_stopping, is_closing;
};

static void lock(struct preparers *p)
{
    (void)pthread_mutex_lock(&p->lock); /* cannot fail: not recursive, always initialised */
}

static void unlock(struct preparers *p)
{
    (void)pthread_mutex_unlock(&p->lock);
}

/* ---- lists, with the lock ------------------------------------------------------------------- */

static void append(struct prepare_task **first, struct prepare_task **last,
                   struct prepare_task *task)
{
    task->next = NULL;
    *(*first == NULL ? first : &(*last)->next) = task;
    *last = task;
}

/* Takes the first suitable task of the queue: `only`, or any small one, or any. */
static struct prepare_task *unqueue(struct preparers *p, const struct prepare_task *only,
                                    bool is_for_small)
{
    struct prepare_task *before = NULL;
    for (struct prepare_task *t = p->queue_first; t != NULL; before = t, t = t->next) {
        if ((only != NULL && t != only) || (is_for_small && t->bytes > SMALL_BYTES))
            continue;
        *(before == NULL ? &p->queue_first : &before->next) = t->next;
        if (p->queue_last == t)
            p->queue_last = before;
        assert(p->stats.n_queued > 0);
        p->stats.n_queued--;
        return t;
    }
    return NULL;
}

/* Removes a task from the list of finished ones; returns false if it is not there. */
static bool undo(struct preparers *p, const struct prepare_task *task)
{
    struct prepare_task *before = NULL;
    for (struct prepare_task *t = p->done_first; t != NULL; before = t, t = t->next) {
        if (t != task)
            continue;
        *(before == NULL ? &p->done_first : &before->next) = t->next;
        if (p->done_last == t)
            p->done_last = before;
        return true;
    }
    return false;
}

/* ---- the threads ---------------------------------------------------------------------------- */

static void close_task(struct prepare_task *task)
{
    struct mem_lease lease = task->lease; /* a copy: the task itself is freed */
    mem_lease_enter(&lease);
    task->close(task);
    mem_lease_leave();
    mem_lease_close(&lease);
}

static void run_task(struct preparers *p, struct preparer *own, struct prepare_task *task)
{
    task->is_running = true;
    p->running[own - p->threads] = task;
    p->stats.n_running++;
    unlock(p);
    mem_lease_enter(&task->lease);
    task->run(task);
    mem_lease_leave();
    if (task->lease.taken >= PREPARE_TRIM_BYTES)
        plat_memory_trim();
    mem_lease_settle(&task->lease);
    lock(p);
    task->is_running = false;
    p->running[own - p->threads] = NULL;
    p->stats.n_running--;
    const bool is_wanted = !task->is_abandoned;
    if (is_wanted)
        append(&p->done_first, &p->done_last, task);
    unlock(p);
    if (is_wanted)
        p->o.notify(p->o.ctx);
    else
        close_task(task);
    lock(p);
}

/* Returns whether so much was freed that tasks might be refused without a trim. */
static bool must_trim(const struct preparers *p)
{
    return p->trim_bytes > p->o.account->limit / 8;
}

static void trim(struct preparers *p)
{
    const uint64_t bytes = p->trim_bytes;
    const bool is_much = must_trim(p);
    p->is_trimming |= is_much;
    p->trim_bytes = 0;
    unlock(p);
    plat_memory_trim();
    mem_account_give(p->o.account, bytes);
    lock(p);
    if (is_much) {
        p->is_trimming = false;
        (void)pthread_cond_broadcast(&p->has_work);
    }
}

static void *preparer_main(void *ctx)
{
    struct preparer *own = ctx;
    struct preparers *p = own->all;
    lock(p);
    while (!p->is_closing) {
        struct prepare_task *task;
        if (p->is_trimming) /* the other thread does it */
            (void)pthread_cond_wait(&p->has_work, &p->lock);
        else if (must_trim(p))
            trim(p);
        else if ((task = unqueue(p, NULL, own->is_for_small)) != NULL)
            run_task(p, own, task);
        else if (p->trim_bytes > 0)
            trim(p);
        else
            (void)pthread_cond_wait(&p->has_work, &p->lock);
    }
    unlock(p);
    return NULL;
}

/* ---- the HTTP thread ------------------------------------------------------------------------ */

int preparers_submit(struct preparers *p, struct prepare_task *task, struct fm_error *err)
{
    int rc = 0;
    lock(p);
    if (p->is_stopping)
        rc = err_set(err, JOB_ERR_SHUTDOWN, "the server is shutting down");
    else if (p->stats.n_queued >= p->o.n_queue)
        rc = err_set(err, JOB_ERR_BUSY, "%u requests wait to be read: the queue is full",
                     p->stats.n_queued);
    if (rc == 0) {
        append(&p->queue_first, &p->queue_last, task);
        p->stats.n_queued++;
        (void)pthread_cond_broadcast(&p->has_work); /* some threads take only small tasks */
    }
    unlock(p);
    return rc;
}

struct prepare_task *preparers_next_done(struct preparers *p)
{
    lock(p);
    struct prepare_task *task = p->done_first;
    if (task != NULL)
        p->done_first = task->next;
    unlock(p);
    return task;
}

void preparers_abandon(struct preparers *p, struct prepare_task *task)
{
    lock(p);
    const bool is_running = task->is_running;
    if (is_running) {
        task->is_abandoned = true;
        mem_lease_cancel(&task->lease);
    } else if (!undo(p, task)) {
        (void)unqueue(p, task, false);
    }
    unlock(p);
    if (!is_running)
        close_task(task);
}

void preparers_give(struct preparers *p, uint64_t bytes)
{
    if (bytes < PREPARE_TRIM_BYTES) {
        mem_account_give(p->o.account, bytes);
        return;
    }
    lock(p);
    p->trim_bytes += bytes;
    (void)pthread_cond_signal(&p->has_work);
    unlock(p);
}

void preparers_stop(struct preparers *p, bool now)
{
    lock(p);
    p->is_stopping = true;
    for (struct prepare_task *task; (task = unqueue(p, NULL, false)) != NULL;) {
        task->rc = JOB_ERR_SHUTDOWN;
        append(&p->done_first, &p->done_last, task);
    }
    for (unsigned i = 0; now && i < N_THREADS; i++)
        if (p->running[i] != NULL)
            mem_lease_cancel(&p->running[i]->lease);
    unlock(p);
}

void preparers_stats(struct preparers *p, struct preparers_stats *stats)
{
    lock(p);
    *stats = p->stats;
    unlock(p);
}

/* ---- open and close ------------------------------------------------------------------------- */

int preparers_open(const struct preparers_options *options, struct preparers **out,
                   struct fm_error *err)
{
    *out = NULL;
    struct preparers *p = mem_new(1, sizeof *p, "the threads that read requests", err);
    if (p == NULL)
        return FM_ERR_NOMEM;
    p->o = *options;
    (void)pthread_mutex_init(&p->lock, NULL); /* neither can fail with default attributes */
    (void)pthread_cond_init(&p->has_work, NULL);
    for (unsigned i = 0; i < N_THREADS; i++) {
        struct preparer *own = &p->threads[i];
        *own = (struct preparer){.all = p, .is_for_small = i > 0};
        const int code = plat_thread_start(&own->thread, preparer_main, own);
        own->has_thread = code == 0;
        if (code != 0) {
            preparers_close(p);
            return err_set(err, FM_ERR_NOMEM, "cannot start a thread that reads requests: errno %d",
                           code);
        }
    }
    *out = p;
    return 0;
}

void preparers_close(struct preparers *p)
{
    if (p == NULL)
        return;
    preparers_stop(p, true);
    lock(p);
    p->is_closing = true;
    (void)pthread_cond_broadcast(&p->has_work);
    unlock(p);
    for (unsigned i = 0; i < N_THREADS; i++)
        if (p->threads[i].has_thread)
            (void)pthread_join(p->threads[i].thread, NULL);
    for (struct prepare_task *task; (task = preparers_next_done(p)) != NULL;)
        close_task(task);
    if (p->trim_bytes > 0)
        mem_account_give(p->o.account, p->trim_bytes);
    (void)pthread_cond_destroy(&p->has_work);
    (void)pthread_mutex_destroy(&p->lock);
    mem_free(p);
}
