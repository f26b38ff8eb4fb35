/* Ranks that are threads of one process, for tests. A message stays where its sender has it until
 * the receiver copies it. When a rank gives the others up, nothing travels any more: nobody looks
 * at the memory of another rank from then on, and all of them end. */
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/transport.h"

struct queue {
    struct transport_send *first, *last;
};

struct thread_hub {
    pthread_mutex_t lock;
    uint32_t n_ranks;
    bool is_abandoned;
    struct queue *queues; /* [to, from, channel] */
};

struct thread_transport {
    struct transport t;
    struct thread_hub *hub;
};

static struct thread_hub *hub_of(const struct transport *t)
{
    return ((const struct thread_transport *)t)->hub;
}

static struct queue *queue_of(struct thread_hub *hub, uint32_t to, uint32_t from,
                              enum channel channel)
{
    return &hub->queues[((size_t)to * hub->n_ranks + from) * N_CHANNELS + channel];
}

struct thread_hub *thread_hub_new(uint32_t n_ranks, struct fm_error *err)
{
    struct thread_hub *hub = mem_new(1, sizeof *hub, "the cluster", err);
    if (hub == NULL)
        return NULL;
    hub->n_ranks = n_ranks;
    hub->queues = mem_new((size_t)n_ranks * n_ranks * N_CHANNELS, sizeof *hub->queues,
                          "the cluster", err);
    if (hub->queues == NULL || pthread_mutex_init(&hub->lock, NULL) != 0) {
        mem_free(hub->queues);
        mem_free(hub);
        return NULL;
    }
    return hub;
}

void thread_hub_free(struct thread_hub *hub)
{
    if (hub == NULL)
        return;
    (void)pthread_mutex_destroy(&hub->lock);
    mem_free(hub->queues);
    mem_free(hub);
}

static int refuse(struct fm_error *err)
{
    return err_set(err, FM_ERR_IO, "a rank is lost, and the threads of this process end");
}

static int threads_send(struct transport *t, uint32_t to, enum channel channel, const void *bytes,
                        uint64_t n, struct transport_send *send, struct fm_error *err)
{
    struct thread_hub *hub = hub_of(t);
    *send = (struct transport_send){.is_busy = true, .bytes = bytes, .n_bytes = n};
    pthread_mutex_lock(&hub->lock);
    struct queue *queue = queue_of(hub, to, t->rank, channel);
    const bool is_refused = hub->is_abandoned;
    if (is_refused)
        send->is_busy = false;
    else if (queue->last != NULL)
        queue->last->next = send;
    else
        queue->first = send;
    queue->last = is_refused ? queue->last : send;
    pthread_mutex_unlock(&hub->lock);
    return is_refused ? refuse(err) : 0;
}

static bool threads_is_sent(struct transport *t, struct transport_send *send)
{
    struct thread_hub *hub = hub_of(t);
    pthread_mutex_lock(&hub->lock);
    const bool is_sent = !send->is_busy || hub->is_abandoned;
    pthread_mutex_unlock(&hub->lock);
    return is_sent;
}

static int threads_receive(struct transport *t, uint32_t from, enum channel channel, void *bytes,
                           uint64_t max, uint64_t *n, struct fm_error *err)
{
    struct thread_hub *hub = hub_of(t);
    *n = 0;
    pthread_mutex_lock(&hub->lock);
    struct queue *queue = queue_of(hub, t->rank, from, channel);
    const bool is_refused = hub->is_abandoned;
    struct transport_send *send = is_refused ? NULL : queue->first;
    const uint64_t got = send != NULL ? send->n_bytes : 0;
    if (send != NULL) {
        queue->first = send->next;
        queue->last = send->next != NULL ? queue->last : NULL;
        if (got <= max)
            memcpy(bytes, send->bytes, got);
        send->is_busy = false; /* the sender may change it when the lock is open */
    }
    pthread_mutex_unlock(&hub->lock);
    if (is_refused)
        return refuse(err);
    *n = got;
    return got <= max
               ? 0
               : err_set(err, FM_ERR_FORMAT,
                         "rank %u has sent a message of %llu bytes, at most %llu are expected",
                         from, (unsigned long long)got, (unsigned long long)max);
}

static void threads_abandon(struct transport *t)
{
    struct thread_hub *hub = hub_of(t);
    pthread_mutex_lock(&hub->lock);
    hub->is_abandoned = true; /* a thread cannot be ended by another: it ends at its next message */
    pthread_mutex_unlock(&hub->lock);
}

/* What was sent and not received goes with its sender. */
static void threads_close(struct transport *t)
{
    struct thread_hub *hub = hub_of(t);
    pthread_mutex_lock(&hub->lock);
    for (uint32_t to = 0; to < hub->n_ranks; to++)
        for (int channel = 0; channel < N_CHANNELS; channel++)
            *queue_of(hub, to, t->rank, (enum channel)channel) = (struct queue){0};
    pthread_mutex_unlock(&hub->lock);
    mem_free(t);
}

static const struct transport_ops ops_threads = {
    .name = "threads", .send = threads_send, .is_sent = threads_is_sent,
    .receive = threads_receive, .abandon = threads_abandon, .close = threads_close};

int transport_open_thread(struct thread_hub *hub, uint32_t rank, struct transport **out,
                          struct fm_error *err)
{
    struct thread_transport *t = mem_new(1, sizeof *t, "the cluster", err);
    *out = NULL;
    if (t == NULL)
        return FM_ERR_NOMEM;
    t->t = (struct transport){&ops_threads, rank, hub->n_ranks};
    t->hub = hub;
    *out = &t->t;
    return 0;
}
