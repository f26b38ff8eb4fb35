/* What the files of the engine share: jobs.c has the lock, jobs_run.c what the engine thread does
 * without it. */
#ifndef FLASHMOE_SERVER_JOBS_INTERNAL_H
#define FLASHMOE_SERVER_JOBS_INTERNAL_H

#include "flashmoe.h"
#include "server/answer.h"
#include "server/jobs.h"
#include "server/window.h"

#ifdef __cplusplus
extern "C" {
#endif

struct job {
    struct job_spec spec;
    void *owner;
    uint64_t spec_bytes; /* of the account, to be given back; the request's until it is disowned */
    uint64_t submitted_ns;

    /* Under the lock. */
    unsigned n_refs;
    bool is_cancelled; /* also read without it, as a hint */
    bool is_ready;     /* in the list of those with news */
    struct job *next_queued, *next_ready;
    struct job_event *first, *last;
    uint64_t event_bytes; /* of the account, in these events */
    struct job_usage usage;

    /* The engine thread's. */
    struct jobs *jobs;
    struct fm_session *session;
    struct answer *answer;
    unsigned prompt, choice; /* of the prompts; the answer's number among all */
    size_t n_at;             /* tokens of the prompt that are computed */
    size_t n_piece;          /* tokens in the pass at hand */
    int32_t id;              /* the token to compute next, behind the prompt */
    bool is_ending;          /* its session was cancelled */
    bool has_spoken;         /* something of an answer was told */
    uint64_t started_ns, answered_ns, progress_ns;
    uint64_t n_prompt, n_cached, n_answer, n_reasoning;
    struct fm_stats before;
};

/* The engine thread's own. */
struct engine {
    struct fm_model *model;
    struct session_pool *slots;
    struct fm_snapshots *snapshots;
    struct recall *recall;
    struct job **running; /* [n_parallel] */
    unsigned n_running, n_parallel;
    struct fm_batch_item *items; /* [n_parallel] */
    unsigned prefill_chunk;
    unsigned mixed_chunk; /* prompt tokens in a pass that answers wait for */
    bool is_mixed;        /* the pass at hand has both */
    uint64_t n_passes, pass_ns, n_prompt, n_answer;
    struct window window;
    uint64_t published_ns, pictured_ns, n_pictured; /* times; passes when the picture was taken */
    double position;
};

/* ---- jobs_run.c: without the lock -------------------------------------------------------- */

/* Begins a job: a session, and the first prompt. After a failure the job is over. */
int engine_begin(struct engine *e, struct job *job, struct fm_error *err);
/* One pass over all running jobs. Those that are over have left `running`. */
void engine_pass(struct engine *e);
/* Takes the job out of `running` and tells its end. */
void engine_end(struct engine *e, struct job *job, int code, const char *why);
bool engine_picture(const struct engine *e, struct text_buffer *out);

/* ---- jobs.c ------------------------------------------------------------------------------ */

/* Adds an event like this one. An answer_fn whose ctx is the job. */
int job_emit(void *job, const struct job_event *like, const char *text, size_t text_bytes,
             struct job_logprobs *logprobs);
bool job_is_cancelled(const struct job *job);
/* The engine has done with it: settles the usage, adds the last event, drops its reference. */
void job_leave(struct job *job, int code, const char *why);
/* Publishes statistics and the picture when it is time. Between passes, and before every layer. */
void jobs_publish(struct jobs *jobs, bool now);

#ifdef __cplusplus
}
#endif
#endif
