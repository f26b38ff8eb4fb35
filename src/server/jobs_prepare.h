/* The threads that prepare requests before the engine gets them: they parse, render and tokenize,
 * so that a large request delays neither the HTTP thread nor the answers of others.
 *
 * The HTTP thread submits tasks and takes them back when they are done; a task belongs to this
 * module in between. The queue is bounded. One thread takes small tasks only, so that they do not
 * wait behind large ones. `notify` is called on a thread of this module when a task is done.
 * preparers_give may be called by any thread, everything else by the HTTP thread alone. */
#ifndef FLASHMOE_SERVER_JOBS_PREPARE_H
#define FLASHMOE_SERVER_JOBS_PREPARE_H

#include "base/lease.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Freed memory of this size is returned to the system before the account gets it back. */
#define PREPARE_TRIM_BYTES (1u << 20)

struct prepare_task {
    /* The caller's. */
    void (*run)(struct prepare_task *task);   /* on a thread of this module, under the lease */
    void (*close)(struct prepare_task *task); /* frees a task that nobody waits for */
    uint64_t bytes;                           /* of the request: whether it is small */
    struct mem_lease lease;
    void *owner;

    /* This module's. */
    struct prepare_task *next;
    bool is_running;
    bool is_abandoned;
    int rc; /* 0: it ran; JOB_ERR_SHUTDOWN: it did not */
};

struct preparers_options {
    struct mem_account *account; /* borrowed */
    unsigned n_queue;            /* tasks that may wait */
    void (*notify)(void *ctx);
    void *ctx;
};

struct preparers;

int preparers_open(const struct preparers_options *options, struct preparers **out,
                   struct fm_error *err);
/* Cancels what runs, waits for the threads and frees the tasks. */
void preparers_close(struct preparers *p); /* accepts NULL */

/* JOB_ERR_BUSY: the queue is full; JOB_ERR_SHUTDOWN: no more are taken. The task then stays the
 * caller's. */
int preparers_submit(struct preparers *p, struct prepare_task *task, struct fm_error *err);
/* A task that is done, which is the caller's again; NULL: none. */
struct prepare_task *preparers_next_done(struct preparers *p);
/* Nobody waits for the task any more: its allocations fail, and this module closes it. */
void preparers_abandon(struct preparers *p, struct prepare_task *task);

/* Gives bytes of freed memory back to the account, large ones once the system has the memory. */
void preparers_give(struct preparers *p, uint64_t bytes);

/* Takes no more tasks and fails those that wait; where `now`, cancels those that run. */
void preparers_stop(struct preparers *p, bool now);

struct preparers_stats {
    unsigned n_queued, n_running;
};
void preparers_stats(struct preparers *p, struct preparers_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
