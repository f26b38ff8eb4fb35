/* Threads that prepare requests for the runner: they parse, render and tokenize, so that a large
 * request delays neither the HTTP thread nor other answers.
 *
 * The HTTP thread submits tasks and takes finished ones back; in between this module owns them. The
 * queue is bounded. One thread takes only small tasks, so that they do not wait behind large ones.
 * `notify` is called on a thread of this module when a task has finished. Any thread may call
 * preparers_give; only the HTTP thread may call the rest. */
#ifndef FLASHMOE_SERVER_JOBS_PREPARE_H
#define FLASHMOE_SERVER_JOBS_PREPARE_H

#include "base/lease.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Freed memory of at least this size is trimmed before it returns to the account. */
#define PREPARE_TRIM_BYTES (1u << 20)

struct prepare_task {
    /* Set by the caller. */
    void (*run)(struct prepare_task *task);   /* on a thread of this module, with the lease */
    void (*close)(struct prepare_task *task); /* frees a cancelled task */
    uint64_t bytes;                           /* request size; decides whether it is small */
    struct mem_lease lease;
    void *owner;

    /* Used by this module. */
    struct prepare_task *next;
    bool is_running;
    bool is_abandoned;
    int rc; /* 0: it ran; JOB_ERR_SHUTDOWN: it did not */
};

struct preparers_options {
    struct mem_account *account; /* borrowed */
    unsigned n_queue;            /* maximum waiting tasks */
    void (*notify)(void *ctx);
    void *ctx;
};

struct preparers;

int preparers_open(const struct preparers_options *options, struct preparers **out,
                   struct fm_error *err);
/* Cancels running tasks, waits for the threads and frees all tasks. */
void preparers_close(struct preparers *p); /* accepts NULL */

/* Submits a task. Fails with JOB_ERR_BUSY if the queue is full and with JOB_ERR_SHUTDOWN while
 * stopping; the caller then keeps the task. */
int preparers_submit(struct preparers *p, struct prepare_task *task, struct fm_error *err);
/* Returns a finished task, which the caller owns again, or NULL. */
struct prepare_task *preparers_next_done(struct preparers *p);
/* Cancels a task: its allocations fail, and this module frees it. */
void preparers_abandon(struct preparers *p, struct prepare_task *task);

/* Returns freed bytes to the account; large amounts after the system has the memory back. */
void preparers_give(struct preparers *p, uint64_t bytes);

/* Accepts no more tasks and fails waiting ones; with `now`, cancels running ones. */
void preparers_stop(struct preparers *p, bool now);

struct preparers_stats {
    unsigned n_queued, n_running;
};
void preparers_stats(struct preparers *p, struct preparers_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
