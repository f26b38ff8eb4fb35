/* The first rank's sign of life. The other ranks end when they miss it for too long: otherwise a
 * rank whose first one has lost its machine, or its network, would keep its memory for ever. It
 * comes from a thread of its own, because the first rank may do nothing for hours. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

#define BEAT_NS 250000000ull

struct beat {
    struct cluster *c;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool is_stopping;
    struct control_slot slots[CLUSTER_RANKS];
};

/* Nothing is sent after an alarm: MPI may end a process that sends to one that is gone. */
static void beat_once(struct beat *b)
{
    struct cluster *c = b->c;
    for (uint32_t i = 1; i < c->n_ranks && c->alarm == 0; i++)
        if (c->t->ops->is_sent(c->t, &b->slots[i].send)) {
            b->slots[i].message.kind = CONTROL_BEAT;
            (void)c->t->ops->send(c->t, i, CHANNEL_CONTROL, &b->slots[i].message,
                                  offsetof(struct control, text), &b->slots[i].send, NULL);
        }
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    struct timespec until;
    pthread_mutex_lock(&b->lock);
    while (!b->is_stopping) {
        pthread_mutex_unlock(&b->lock);
        beat_once(b);
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)BEAT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&b->lock);
        if (!b->is_stopping)
            (void)pthread_cond_timedwait(&b->stop, &b->lock, &until);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

int beat_begin(struct cluster *c, struct fm_error *err)
{
    struct beat *b = mem_new(1, sizeof *b, "the cluster", err);
    if (b == NULL)
        return FM_ERR_NOMEM;
    b->c = c;
    (void)pthread_mutex_init(&b->lock, NULL); /* cannot fail with these arguments */
    (void)pthread_cond_init(&b->stop, NULL);
    const int rc = plat_thread_start(&b->thread, beat_main, b);
    if (rc != 0) {
        mem_free(b);
        return err_set(err, FM_ERR_NOMEM, "cannot start a thread: %s", strerror(rc));
    }
    c->beat = b;
    return 0;
}

/* Waits for what is on its way, so that its memory can go; not if a rank is lost. */
void beat_end(struct cluster *c)
{
    struct beat *b = c->beat;
    struct pause pause = {0};
    if (b == NULL)
        return;
    pthread_mutex_lock(&b->lock);
    b->is_stopping = true;
    (void)pthread_cond_signal(&b->stop);
    pthread_mutex_unlock(&b->lock);
    (void)pthread_join(b->thread, NULL);
    for (uint32_t i = 1; i < c->n_ranks; i++)
        while (!c->is_lost && !c->t->ops->is_sent(c->t, &b->slots[i].send))
            pause_a_little(&pause);
    (void)pthread_cond_destroy(&b->stop);
    (void)pthread_mutex_destroy(&b->lock);
    c->beat = NULL;
    mem_free(b);
}

/* The first rank waits for the whole timeout, since a rank that computes answers late. Its signs of
 * life are not late, and mpirun needs two seconds to end a job. */
void beat_watch(struct cluster *c, bool was_heard)
{
    char why[TEXT_BYTES];
    const uint64_t now_ns = plat_now_ns(), step_ns = now_ns - c->heard_ns;
    c->heard_ns = now_ns;
    if (was_heard || !c->is_process)
        c->silent_ns = 0;
    else
        c->silent_ns += step_ns < MAX_STEP_NS ? step_ns : MAX_STEP_NS;
    if (c->silent_ns <= c->timeout_ns / 4 * 3)
        return;
    (void)snprintf(why, sizeof why, "it has given no sign of life for %.1f s: the process hangs, "
                   "or the machine or the network is gone", (double)c->silent_ns / 1e9);
    cluster_lose(c, 0, why);
}
