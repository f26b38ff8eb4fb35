/* The engine and its queue: one thread drives the model and answers up to n_parallel jobs together,
 * running answers and the prompts of new ones in the same pass.
 *
 * The model belongs to the engine thread from jobs_open to jobs_close; everything here may be
 * called by one other thread, the HTTP one, and never waits for a pass. Events of a job are
 * handed over under the lock of this module. `notify` is called, without it, when a job has news
 * and jobs_next_ready will not be called soon: at once for an answer's first words and its end. */
#ifndef FLASHMOE_SERVER_JOBS_H
#define FLASHMOE_SERVER_JOBS_H

#include "flashmoe.h"
#include "server/job.h"
#include "server/jobs_prepare.h"
#include "server/recall.h"
#include "session/session_pool.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct jobs;
struct job;

struct jobs_options {
    struct fm_model *model;
    struct fm_snapshots *snapshots; /* borrowed; NULL: none are kept */
    struct recall *recall;          /* borrowed */
    struct mem_account *account;    /* what events take from; borrowed */
    struct preparers *preparers;    /* where memory is given back; borrowed */
    unsigned n_parallel, n_sessions; /* jobs together; sessions that stay in memory */
    unsigned n_queue;                /* jobs that may wait */
    void (*notify)(void *ctx);       /* on the engine thread */
    void *ctx;
};

int jobs_open(const struct jobs_options *options, struct jobs **out, struct fm_error *err);
/* Waits for the engine thread, which first fails what is left and keeps what is worth it. */
void jobs_close(struct jobs *jobs); /* accepts NULL */

/* Takes the specification over, also when it fails. JOB_ERR_BUSY: the queue is full;
 * JOB_ERR_SHUTDOWN: no more are taken. `owner` is the caller's. */
int jobs_submit(struct jobs *jobs, struct job_spec *spec, void *owner, struct job **out,
                struct fm_error *err);
/* A job that has news, with a reference to be released. NULL: none, and the caller looks again when
 * it is notified and, unless that is 0, at *look_ns on plat_now_ns's clock. */
struct job *jobs_next_ready(struct jobs *jobs, uint64_t *look_ns);
/* What jobs_submit was given, until it is disowned. Both are the HTTP thread's alone. A job that is
 * disowned takes over `bytes` of the account, which its specification has, to give them back when
 * it is freed. */
void *job_owner(const struct job *job);
void job_disown(struct job *job, uint64_t bytes);
const struct job_spec *job_spec(const struct job *job);
/* All its events so far, in order; free each with job_event_free. */
struct job_event *jobs_take_events(struct jobs *jobs, struct job *job);
void jobs_usage(struct jobs *jobs, struct job *job, struct job_usage *usage);
/* Nobody waits for it any more: it ends at the next layer. */
void jobs_cancel(struct jobs *jobs, struct job *job);
void jobs_release(struct jobs *jobs, struct job *job);

/* No new jobs; those that wait fail, and where `now` those that run. */
void jobs_stop(struct jobs *jobs, bool now);
bool jobs_is_idle(struct jobs *jobs); /* nothing waits or runs */
bool jobs_is_stopping_now(struct jobs *jobs);

#define JOBS_SLOTS_SHOWN 64

/* What happened since the start, and what is. */
struct jobs_stats {
    unsigned n_queued, n_running, n_queue, n_parallel;
    uint64_t n_submitted, n_refused, n_done, n_failed, n_cancelled;
    uint64_t n_prompt, n_cached, n_answer; /* tokens */
    uint64_t n_passes, pass_ns;
    struct fm_stats model;
    struct fm_snapshots_stats snapshots;
    unsigned n_slots;
    struct session_pool_info slots[JOBS_SLOTS_SHOWN];
    uint64_t slot_owners[JOBS_SLOTS_SHOWN]; /* job_spec.owner of their last jobs; 0: none */
    /* Over the last two seconds. */
    double answer_per_s, prompt_per_s, read_bytes_per_s;
    double hit_rate; /* negative: no expert was used */
    double window_s; /* 0: nothing was computed */
    struct fm_stats before; /* the model's at its beginning */
    bool is_decode_only; /* no prompt was computed in it */
    double position;     /* of the tokens computed last, a mean */
};
void jobs_stats(struct jobs *jobs, struct jobs_stats *stats);

/* The picture of the experts as JSON (docs/SERVER.md), at most a fifth of a second old while the
 * engine computes. False for want of memory. */
bool jobs_experts(struct jobs *jobs, struct text_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
