/* Signs of life, from a thread of its own, because a rank may do nothing for hours, or open a model
 * and answer nobody meanwhile.
 *
 * The first rank gives them always. The others end when they miss them for too long: otherwise a
 * rank whose first one has lost its machine, or its network, would keep its memory for ever.
 *
 * The other ranks give them while no model is open. When one is, they answer pings themselves
 * (link.c).
 *
 * A thread lives on when its rank hangs. So while a rank opens a model, the thread looks at what
 * the process does: one that neither computes nor reads nor looks for messages hangs, such as one
 * whose disk does not answer. The thread says so to those that wait for the rank. Some time later
 * it ends the job itself, because all ranks may hang at one disk.
 *
 * The thread also ends a job that is told to end while its first rank does not look for messages,
 * because it reads a file or waits for a line of its user. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

#define BEAT_NS 250000000ull
/* After a rank has said that it hangs, the others have so long to end the job with a reason. */
#define LAST_NS 1500000000ull
/* mpirun kills a rank one second after it has told it to end. */
#define ALARM_NS 100000000ull
#define WHY_IT_HANGS "its disk or file system does not answer, or the process hangs (if single " \
                     "reads take longer than that, raise --rank-timeout)"

/* What the process had done when it was last seen to work. */
struct work {
    uint64_t cpu_ns, n_reads, n_looks;
    uint64_t idle_ns; /* since then */
};

struct beat {
    struct cluster *c;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool is_stopping;
    _Atomic(enum beat_phase) phase;
    atomic_uint_fast64_t n_looks; /* for messages, by the thread that drives the rank */
    struct work work;
    uint64_t said_ns; /* that the rank hangs; 0: not yet */
    uint64_t alarm_ns; /* when the job was seen to be told to end; 0: it is not */
    struct control_slot slots[CLUSTER_RANKS];
};

void beat_looked(struct cluster *c)
{
    if (c->beat != NULL)
        atomic_fetch_add_explicit(&c->beat->n_looks, 1, memory_order_relaxed);
}

void beat_set_phase(struct cluster *c, enum beat_phase phase)
{
    if (c->beat != NULL)
        atomic_store(&c->beat->phase, phase);
}

/* Sends to all that listen to this rank. Nothing is sent after an alarm: MPI may end a process that
 * sends to one that is gone. */
static void send_all(struct beat *b, enum control_kind kind, const char *text)
{
    struct cluster *c = b->c;
    const uint32_t end = c->rank == 0 ? c->n_ranks : 1;
    const uint64_t n = text != NULL ? sizeof(struct control) : offsetof(struct control, text);
    for (uint32_t i = c->rank == 0; i < end && c->alarm == 0; i++) {
        struct control_slot *slot = &b->slots[i];
        if (!c->t->ops->is_sent(c->t, &slot->send))
            continue;
        slot->message.kind = kind;
        if (text != NULL)
            (void)snprintf(slot->message.text, TEXT_BYTES, "%s", text);
        (void)c->t->ops->send(c->t, i, CHANNEL_CONTROL, &slot->message, n, &slot->send, NULL);
    }
}

/* Counts how long the process has done nothing. A process that hangs still uses a little processor
 * time in threads that wait, so less than a hundredth is nothing. */
static void watch_work(struct beat *b, uint64_t step_ns)
{
    struct work now = {.n_looks = atomic_load_explicit(&b->n_looks, memory_order_relaxed)};
    plat_work_done(&now.cpu_ns, &now.n_reads);
    if (atomic_load(&b->phase) != BEAT_OPENING || now.n_looks != b->work.n_looks ||
        now.n_reads != b->work.n_reads ||
        now.cpu_ns > b->work.cpu_ns + b->c->timeout_ns / 100)
        b->work = now;
    else
        b->work.idle_ns += step_ns < 2 * BEAT_NS ? step_ns : 2 * BEAT_NS;
}

static void say_that_it_hangs(struct beat *b)
{
    char why[TEXT_BYTES];
    (void)snprintf(why, sizeof why, "it has read and computed nothing for %.1f s: " WHY_IT_HANGS,
                   (double)b->work.idle_ns / 1e9);
    send_all(b, CONTROL_FAIL, why);
}

/* Returns whether the job is told to end and the first rank, which should say so, does not look. */
static bool is_alarm_missed(struct beat *b)
{
    const struct cluster *c = b->c;
    if (c->rank > 0 || c->alarm != CLUSTER_ENDS)
        b->alarm_ns = 0;
    else if (b->alarm_ns == 0)
        b->alarm_ns = plat_now_ns();
    else if (plat_now_ns() - b->alarm_ns > ALARM_NS)
        return c->roll_ns == 0;
    return false;
}

/* Returns false: nobody has ended the job, so this thread does. */
static bool beat_once(struct beat *b, uint64_t step_ns)
{
    struct cluster *c = b->c;
    watch_work(b, step_ns);
    if (is_alarm_missed(b)) {
        log_warn("cluster", "rank 0 (%s): the job is told to end (SIGTERM)", c->peers[0].host);
        return false;
    }
    if (b->work.idle_ns > c->timeout_ns) {
        b->said_ns = b->said_ns == 0 ? plat_now_ns() : b->said_ns;
        say_that_it_hangs(b);
        if (plat_now_ns() - b->said_ns < LAST_NS || c->alarm != 0)
            return true;
        log_warn("cluster", "rank %u (%s) has read and computed nothing for %.1f s and ends the "
                 "job: " WHY_IT_HANGS,
                 c->rank, c->peers[c->rank].host, (double)b->work.idle_ns / 1e9);
        return false;
    }
    b->said_ns = 0;
    if (c->rank == 0 || atomic_load(&b->phase) != BEAT_OPEN)
        send_all(b, CONTROL_BEAT, NULL);
    return true;
}

static void *beat_main(void *arg)
{
    struct beat *b = arg;
    const struct cluster *c = b->c;
    uint64_t looked_ns = plat_now_ns();
    pthread_mutex_lock(&b->lock);
    while (!b->is_stopping) {
        pthread_mutex_unlock(&b->lock);
        const uint64_t now_ns = plat_now_ns();
        const bool goes_on = beat_once(b, now_ns - looked_ns);
        looked_ns = now_ns;
        if (!goes_on) {
            c->t->ops->abandon(c->t);
            return NULL;
        }
        pthread_mutex_lock(&b->lock);
        if (!b->is_stopping)
            (void)plat_cond_wait(&b->stop, &b->lock, now_ns + BEAT_NS);
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
    plat_work_done(&b->work.cpu_ns, &b->work.n_reads);
    (void)pthread_mutex_init(&b->lock, NULL); /* cannot fail with these arguments */
    plat_cond_open(&b->stop);
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
    for (uint32_t i = 0; i < c->n_ranks; i++)
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
