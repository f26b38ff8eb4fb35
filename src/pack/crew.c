#include "pack/crew.h"

#include <fenv.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"

#define TICK_NS 100000000
#define LABEL_BYTES 128

struct worker {
    struct crew *crew;
    unsigned index;
    pthread_t thread;
};

struct crew {
    const struct crew_job *job;
    struct worker *workers;
    unsigned n_started;

    pthread_mutex_t lock; /* covers everything below and the job; never held during work */
    pthread_cond_t changed;
    unsigned n_running; /* threads that have not ended */
    uint64_t done_bytes;
    bool is_stopping;
    int rc; /* of the first failure */
    struct fm_error err;
};

/* Stops the crew with the first failure. The caller holds the lock. */
static void stop(struct crew *crew, int rc, const struct fm_error *err)
{
    if (crew->rc == 0) {
        crew->rc = rc;
        crew->err = *err;
    }
    crew->is_stopping = true;
    pthread_cond_broadcast(&crew->changed);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct crew *crew = w->crew;
    const struct crew_job *job = crew->job;
    (void)fesetenv(FE_DFL_ENV); /* a thread inherits its creator's rounding mode */
    pthread_mutex_lock(&crew->lock);
    while (!crew->is_stopping) {
        struct crew_work work = {0};
        enum crew_next next = job->next(job->ctx, &work);
        if (next == CREW_END)
            break;
        if (next == CREW_WAIT) {
            pthread_cond_wait(&crew->changed, &crew->lock);
            continue;
        }
        pthread_mutex_unlock(&crew->lock);
        struct fm_error err = {0};
        int rc = job->run(job->ctx, crew, w->index, &work, &err);
        pthread_mutex_lock(&crew->lock);
        if (rc != 0)
            stop(crew, rc, &err);
        else
            job->done(job->ctx, &work);
        pthread_cond_broadcast(&crew->changed);
    }
    crew->n_running--;
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

int crew_advance(struct crew *crew, uint64_t bytes, struct fm_error *err)
{
    pthread_mutex_lock(&crew->lock);
    crew->done_bytes += bytes;
    bool is_stopping = crew->is_stopping;
    pthread_mutex_unlock(&crew->lock);
    return is_stopping ? err_set(err, FM_ERR_CANCELLED, "stopped") : 0;
}

/* Waits for the threads and reports progress. */
static void watch(struct crew *crew, const struct crew_options *options)
{
    pthread_mutex_lock(&crew->lock);
    while (crew->n_running > 0) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until); /* cannot fail for this clock */
        until.tv_nsec += TICK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        /* a late wake-up is harmless */
        (void)pthread_cond_timedwait(&crew->changed, &crew->lock, &until);
        if (options->progress == NULL || crew->is_stopping)
            continue;
        char label[LABEL_BYTES] = "";
        crew->job->label(crew->job->ctx, label, sizeof label);
        const uint64_t done = crew->done_bytes;
        pthread_mutex_unlock(&crew->lock);
        bool goes_on = options->progress(options->progress_ctx, label, done, options->total_bytes);
        pthread_mutex_lock(&crew->lock);
        if (!goes_on) {
            struct fm_error err = {.code = FM_ERR_CANCELLED, .text = "stopped"};
            stop(crew, FM_ERR_CANCELLED, &err);
        }
    }
    pthread_mutex_unlock(&crew->lock);
}

static void start(struct crew *crew, unsigned n_threads)
{
    pthread_mutex_lock(&crew->lock);
    for (unsigned i = 0; i < n_threads; i++) {
        struct worker *w = &crew->workers[i];
        *w = (struct worker){.crew = crew, .index = i};
        int why = plat_thread_start(&w->thread, worker_main, w);
        if (why != 0 && i > 0)
            break; /* fewer threads are enough */
        if (why != 0) {
            struct fm_error err;
            stop(crew, err_set(&err, FM_ERR_NOMEM, "cannot start a thread: %s", strerror(why)),
                 &err);
            break;
        }
        crew->n_started++;
        crew->n_running++;
    }
    pthread_mutex_unlock(&crew->lock);
}

int crew_run(const struct crew_job *job, const struct crew_options *options,
             struct fm_error *err)
{
    struct crew crew = {.job = job, .done_bytes = options->done_bytes};
    crew.workers = mem_new(options->n_threads, sizeof *crew.workers, "threads", err);
    if (crew.workers == NULL)
        return FM_ERR_NOMEM;
    pthread_mutex_init(&crew.lock, NULL);
    pthread_cond_init(&crew.changed, NULL);
    start(&crew, options->n_threads);
    watch(&crew, options);
    for (unsigned i = 0; i < crew.n_started; i++)
        pthread_join(crew.workers[i].thread, NULL);
    pthread_cond_destroy(&crew.changed);
    pthread_mutex_destroy(&crew.lock);
    mem_free(crew.workers);
    return crew.rc != 0 ? err_set(err, crew.rc, "%s", crew.err.text) : 0;
}
