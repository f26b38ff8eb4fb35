/* A crew runs a job on several threads. The job hands out pieces of work until none is left. The
 * crew calls the job's `next`, `done` and `label` with its lock held, so the job needs no lock of
 * its own; `run` is called without the lock. The first failure, or a progress function that returns
 * false, stops the crew: no further piece is handed out, and crew_run returns when the running
 * pieces have returned. crew_run blocks; any thread may call it. The caller owns the job. */
#ifndef FLASHMOE_PACK_CREW_H
#define FLASHMOE_PACK_CREW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

struct crew;

/* A piece of work. The job decides what the numbers mean. */
struct crew_work {
    unsigned kind;
    uint64_t first, second;
    bool is_bad; /* set by `run`, read by `done`; false at first */
};

enum crew_next { CREW_WORK, CREW_WAIT, CREW_END };

struct crew_job {
    void *ctx;
    /* Chooses the next piece, with the lock held. May return CREW_WAIT only while a piece is
     * running. */
    enum crew_next (*next)(void *ctx, struct crew_work *work);
    /* Does the work, without the lock, on the thread of this worker (from 0). */
    int (*run)(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
               struct fm_error *err);
    /* Called with the lock held after a successful run. */
    void (*done)(void *ctx, const struct crew_work *work);
    /* Describes the current work in a few words, with the lock held. */
    void (*label)(void *ctx, char *text, size_t bytes);
};

struct crew_options {
    unsigned n_threads;
    fm_work_fn *progress; /* called on the caller's thread about ten times a second; may be NULL */
    void *progress_ctx;
    uint64_t done_bytes, total_bytes; /* initial values for progress */
};

int crew_run(const struct crew_job *job, const struct crew_options *options,
             struct fm_error *err);

/* Counts bytes as done; called by `run`. Fails with FM_ERR_CANCELLED when the crew stops. */
int crew_advance(struct crew *crew, uint64_t bytes, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
