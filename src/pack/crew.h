/* A crew: threads that take pieces of work from a plan until it is done. The plan decides under
 * the crew's lock what comes next, so it needs no lock of its own; the work runs without it. The
 * first failure, or a progress function that returns false, ends it all: no further piece is handed
 * out, and crew_run returns when the last one at work has returned. */
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

/* A piece of work; what the numbers mean is the plan's affair. */
struct crew_work {
    unsigned kind;
    uint64_t first, second;
    bool is_bad; /* false at first: what `run` has to say to `done` */
};

enum crew_next { CREW_WORK, CREW_WAIT, CREW_END };

struct crew_plan {
    void *ctx;
    /* Under the lock: the next piece. CREW_WAIT only while a piece is at work. */
    enum crew_next (*next)(void *ctx, struct crew_work *work);
    /* Without it, on the thread of worker `worker` (from 0). */
    int (*run)(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
               struct fm_error *err);
    /* Under the lock, after a run that succeeded. */
    void (*done)(void *ctx, const struct crew_work *work);
    /* Under the lock: a few words about what is going on. */
    void (*label)(void *ctx, char *text, size_t bytes);
};

struct crew_options {
    unsigned n_threads;
    fm_work_fn *progress; /* on the caller's thread, about ten times a second; may be NULL */
    void *progress_ctx;
    uint64_t done_bytes, total_bytes; /* for it */
};

int crew_run(const struct crew_plan *plan, const struct crew_options *options,
             struct fm_error *err);

/* For `run`: counts bytes done; FM_ERR_CANCELLED when the work is to end. */
int crew_advance(struct crew *crew, uint64_t bytes, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
