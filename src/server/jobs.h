/* The runner and its queue: one thread drives the model and answers up to n_parallel jobs together.
 * Running answers and the prompts of new ones share passes.
 *
 * The model belongs to the runner thread from jobs_open to jobs_close. One other thread, the HTTP
 * thread, may call everything here; no call waits for a pass. A lock of this module protects the
 * events of jobs. `notify` is called without the lock when a job has new events and jobs_next_ready
 * will not be called soon; at once for the first words of an answer and for its end. */
#ifndef FLASHMOE_SERVER_JOBS_H
#define FLASHMOE_SERVER_JOBS_H

#include "flashmoe.h"
#include "server/job.h"
#include "server/jobs_prepare.h"
#include "server/call_texts.h"
#include "session/session_pool.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct jobs;
struct job;

struct jobs_options {
    struct fm_model *model;
    struct fm_snapshots *snapshots; /* borrowed; NULL: none */
    struct call_texts *texts;          /* borrowed */
    struct mem_account *account;    /* charged for events; borrowed */
    struct preparers *preparers;    /* returns freed memory to the account; borrowed */
    unsigned n_parallel, n_sessions; /* parallel jobs; sessions kept in memory */
    unsigned n_queue;                /* maximum waiting jobs */
    uint64_t stall_ns;   /* for how long a prompt may hold up running answers at a time */
    uint64_t unsent_max; /* a stream with more unsent bytes waits for its client */
    void (*notify)(void *ctx);       /* called on the runner thread */
    void *ctx;
};

int jobs_open(const struct jobs_options *options, struct jobs **out, struct fm_error *err);
/* Fails the remaining jobs, saves sessions worth keeping, and waits for the runner thread. */
void jobs_close(struct jobs *jobs); /* accepts NULL */

/* Submits a job and takes over the specification, also on failure. Fails with JOB_ERR_BUSY if the
 * queue is full and with JOB_ERR_SHUTDOWN while stopping. `owner` is for the caller. */
int jobs_submit(struct jobs *jobs, struct job_spec *spec, void *owner, struct job **out,
                struct fm_error *err);
/* Returns a job with new events, and a reference to release. NULL: there is none; the caller checks
 * again when notified and, unless it is 0, at *look_ns on the clock of plat_now_ns. */
struct job *jobs_next_ready(struct jobs *jobs, uint64_t *look_ns);
/* Return the owner given to jobs_submit, until the job is disowned. HTTP thread only. A disowned
 * job takes over `bytes` of the account, used by its specification, and returns them when it is
 * freed. */
void *job_owner(const struct job *job);
void job_disown(struct job *job, uint64_t bytes);
const struct job_spec *job_spec(const struct job *job);
/* Takes all events so far, in order; free each with job_event_free. */
struct job_event *jobs_take_events(struct jobs *jobs, struct job *job);
/* Says how many bytes of a stream are unsent. Call it after taking events, which count as unsent
 * until then, and after sending. */
void jobs_note_unsent(struct jobs *jobs, struct job *job, uint64_t bytes);
void jobs_usage(struct jobs *jobs, struct job *job, struct job_usage *usage);
/* Cancels the job; it ends at the next layer. */
void jobs_cancel(struct jobs *jobs, struct job *job);
void jobs_release(struct jobs *jobs, struct job *job);

/* Accepts no new jobs and fails waiting ones; with `now`, running ones too. */
void jobs_stop(struct jobs *jobs, bool now);
bool jobs_is_idle(struct jobs *jobs); /* no job waits or runs */
bool jobs_is_stopping_now(struct jobs *jobs);

#define JOBS_SLOTS_SHOWN 64

/* Counters since the start, and the current state. */
#define JOBS_RANKS 64
struct jobs_stats {
    unsigned n_queued, n_running, n_queue, n_parallel;
    unsigned n_held; /* of the running ones, those that wait for their clients */
    uint64_t n_submitted, n_refused, n_done, n_failed, n_cancelled;
    uint64_t n_prompt, n_cached, n_answer; /* tokens */
    uint64_t n_passes, pass_ns;
    uint64_t passed_ns; /* when the last pass ended */
    struct fm_stats model;
    struct fm_snapshots_stats snapshots;
    unsigned n_slots;
    struct session_pool_info slots[JOBS_SLOTS_SHOWN];
    uint64_t slot_owners[JOBS_SLOTS_SHOWN]; /* job_spec.owner of the last job; 0: none */
    /* Over the last two seconds: */
    double answer_per_s, prompt_per_s, read_bytes_per_s;
    double hit_rate; /* negative: no expert was used */
    double window_s; /* 0: nothing was computed */
    struct fm_stats before; /* statistics of the model at the start of the window */
    bool is_decode_only; /* no prompt was computed in the window */
    double position;     /* mean position of the last tokens */
    unsigned n_ranks;    /* of a model on several machines; 0: it is on one */
    struct fm_rank_stats ranks[JOBS_RANKS];
};
void jobs_stats(struct jobs *jobs, struct jobs_stats *stats);

/* Copies why the model cannot be used any more, since a rank is lost. False: it can. */
bool jobs_lost(struct jobs *jobs, struct fm_error *why);

/* Writes the map of experts as JSON (docs/SERVER.md). It is at most 0.2 s old while the runner
 * computes. Returns false when memory runs out. */
bool jobs_experts(struct jobs *jobs, struct text_buffer *out);

#ifdef __cplusplus
}
#endif
#endif
