/* How messages travel between the ranks of a cluster: threads of one process, or the processes that
 * mpirun has started. A message goes from one rank to another on a channel; those of a channel
 * arrive in the order in which they were sent. Nothing here blocks: the caller asks again.
 *
 * A rank has one struct transport. The thread that drives the rank calls it, and for processes also
 * the thread that gives the first rank's signs of life (beat.c). Messages are not authenticated and
 * not encrypted: everyone who reaches the ports of the ranks is trusted. */
#ifndef FLASHMOE_CLUSTER_TRANSPORT_H
#define FLASHMOE_CLUSTER_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CLUSTER_RANKS 64 /* at most */

enum channel {
    CHANNEL_RING,    /* from each rank to the next: passes and requests */
    CHANNEL_CONTROL, /* from the first rank to each and back: pings, cancelling */
    CHANNEL_JOIN,    /* likewise, while a model opens */
    CHANNEL_NOTE,    /* to the first rank: what observers see */
    N_CHANNELS
};

/* A message on its way. The caller owns it, and the bytes, until it is sent. */
struct transport_send {
    bool is_busy;
    const void *bytes;
    uint64_t n_bytes;
    struct transport_send *next; /* of a queue */
    union {
        void *pointer;
        uint64_t number;
    } request; /* what the transport knows of it */
};

struct transport;

struct transport_ops {
    const char *name;
    /* Begins to send. The send is not busy. Fails with FM_ERR_IO. */
    int (*send)(struct transport *t, uint32_t to, enum channel channel, const void *bytes,
                uint64_t n, struct transport_send *send, struct fm_error *err);
    /* Returns whether a message has left: its bytes may change. */
    bool (*is_sent)(struct transport *t, struct transport_send *send);
    /* Receives the next message of a channel into `bytes`, which must be the same place in every
     * call until it is there. *n becomes its size, or 0: there is none yet. A message of more than
     * `max` bytes is FM_ERR_FORMAT. */
    int (*receive)(struct transport *t, uint32_t from, enum channel channel, void *bytes,
                   uint64_t max, uint64_t *n, struct fm_error *err);
    /* Ends all ranks at once, where that is possible; for a cluster that has lost one. */
    void (*abandon)(struct transport *t);
    void (*close)(struct transport *t);
};

struct transport {
    const struct transport_ops *ops;
    uint32_t rank, n_ranks;
};

/* What a module with a transport has: the one of Open MPI (mpi/transport_mpi.c). */
typedef int transport_open_fn(struct transport **out, struct fm_error *err);
typedef const char *transport_version_fn(void);

/* ---- threads of one process (transport_threads.c) */

struct thread_hub;
/* What the ranks share. Free it when all of them are closed. */
struct thread_hub *thread_hub_new(uint32_t n_ranks, struct fm_error *err);
void thread_hub_free(struct thread_hub *hub); /* accepts NULL */
int transport_open_thread(struct thread_hub *hub, uint32_t rank, struct transport **out,
                          struct fm_error *err);

/* ---- Open MPI (transport_load.c) */

/* Loads the module and joins the processes of mpirun. FM_ERR_UNSUPPORTED: it is not installed. */
int transport_open_mpi(struct transport **out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
