/* Shared by the files of the runner: jobs.c owns the lock, jobs_run.c is what the runner thread
 * does without it. */
#ifndef FLASHMOE_SERVER_JOBS_INTERNAL_H
#define FLASHMOE_SERVER_JOBS_INTERNAL_H

#include "flashmoe_lab.h"
#include "flashmoe.h"
#include "server/answer.h"
#include "server/jobs.h"
#include "server/prompt_view.h"
#include "server/schedule.h"
#include "server/window.h"

#ifdef __cplusplus
extern "C" {
#endif

struct job {
    struct job_spec spec;
    void *owner;
    uint64_t spec_bytes; /* to return to the account; the request does it until it is disowned */
    uint64_t submitted_ns;

    /* Protected by the lock. */
    unsigned n_refs;
    bool is_cancelled; /* also read without the lock, as a hint */
    bool is_ready;     /* in the list of jobs with new events */
    struct job *next_queued, *next_ready;
    struct job_event *first, *last;
    uint64_t event_bytes; /* charged to the account for these events */
    uint64_t unsent_bytes; /* taken from here, and not sent yet */
    struct job_usage usage;

    /* Used by the runner thread only. */
    struct jobs *jobs;
    struct fm_session *session;
    struct answer *answer; /* NULL: none is wanted */
    struct prompt_view view;
    unsigned prompt, choice; /* index of the prompt; number of the answer over all prompts */
    size_t n_at;             /* prompt tokens computed */
    size_t n_piece;          /* tokens in the current pass */
    uint64_t due, order;     /* when its prompt is read (schedule.h) */
    uint64_t wanted_due;     /* the earliest due of those that wait for it; UINT64_MAX: nobody */
    bool waits;              /* for another job that computes the beginning of its prompt */
    size_t n_wait;           /* ... of so many tokens */
    /* Prompt tokens after which a piece ends, so that the session has a mark there; 0: nowhere.
     * Jobs that wait go on from n_stop; other prompts went on differently from n_fork. */
    size_t n_stop, n_fork;
    int32_t id;              /* next token to compute after the prompt */
    bool is_ending;          /* its session was cancelled */
    bool is_held;            /* waits for its client, as counted in n_held */
    bool is_under_way;       /* is in a group that is being computed */
    uint64_t held_since_ns, held_ns; /* since when it does, and for how long it did before */
    bool has_spoken;         /* part of an answer was sent */
    uint64_t started_ns, answered_ns, progress_ns;
    uint64_t token_ns, gap_ns; /* when the last token came, 0: none; the longest gap so far */
    uint64_t n_prompt, n_cached, n_answer, n_reasoning;
    struct fm_stats before;
    struct fm_draft_counts drafts_before; /* of its session */
    uint64_t n_drafted, n_accepted, n_draft_passes;
};

/* Jobs that are computed together. */
struct group {
    struct fm_evaluation *evaluation; /* NULL: it was refused */
    struct fm_batch_item *items;      /* [n_parallel] */
    struct job **jobs;                /* [n_parallel] */
    unsigned n;
    struct fm_error err;
    bool is_mixed;   /* answers wait for it */
    bool is_layered; /* only prompts: answers are computed between its layers */
    size_t n_prompt; /* tokens of prompts, without the last ones */
    uint64_t begin_ns;
    uint64_t between_ns; /* that the answers took */
};

/* State of the runner thread. */
struct runner {
    struct fm_model *model;
    struct session_pool *sessions;
    struct fm_snapshots *snapshots;
    struct call_texts *texts;
    struct job **running; /* [n_parallel] */
    unsigned n_running, n_parallel;
    unsigned n_held; /* of the running ones, those that wait for their clients */
    /* Several are under way at a time only if other ranks have layers of the model. */
    struct group *groups; /* [n_groups], a ring */
    unsigned n_groups, first_group, n_under_way;
    struct group between;  /* answers between the layers of a prompt */
    struct group *layered; /* the group with that prompt, while it is computed; else NULL */
    struct group computed; /* whose tokens are drafts that were right: no pass is needed */
    bool is_computing;    /* a pass is being computed here */
    uint64_t ended_ns;    /* when a group last was */
    unsigned prefill_chunk;
    struct pace pace;         /* of prompts in passes with running answers */
    bool can_pause;           /* answers can be computed between two layers (session/between.h) */
    struct pace layer_pace;   /* with answers between the layers: times are a layer's */
    struct turns turns;
    unsigned n_layers;
    struct schedule_entry *entries; /* [n_parallel], for one pass */
    uint64_t n_begun;               /* jobs so far */
    uint64_t n_passes, pass_ns, n_prompt, n_answer; /* tokens that were computed */
    struct window window;
    bool owes_picture;    /* it is to be made when the ranks can be asked */
    uint64_t published_ns, pictured_ns, n_pictured; /* times; passes at the last map */
    double position;
};

/* ---- jobs_run.c: without the lock -------------------------------------------------------- */

/* Starts a job: opens a session and its first prompt. After a failure the job is over. */
int runner_begin(struct runner *e, struct job *job, struct fm_error *err);
/* Has the running jobs whose clients keep up computed, in groups, and ends the group that began
 * first. Jobs that ended have left `running`. Returns false if all of them wait for their
 * clients. */
bool runner_pass(struct runner *e);
/* Ends all groups that are under way. */
void runner_land(struct runner *e);
/* Makes the groups and frees them, also if only some were made. */
int runner_open_groups(struct runner *e, struct fm_error *err);
void runner_close_groups(struct runner *e);
/* Prepares how prompts and answers share the time, with the model and its prefill_chunk. */
void runner_open_pace(struct runner *e, uint64_t stall_ns);
void runner_close_pace(struct runner *e); /* accepts one that was not opened */
/* Removes the job from `running` and reports its end. */
void runner_end(struct runner *e, struct job *job, int code, const char *why);
/* ... because the server stops; it may do so since a rank is lost. */
void runner_end_stopped(struct runner *e, struct job *job);
bool runner_picture(const struct runner *e, struct text_buffer *out);

/* ---- jobs.c ------------------------------------------------------------------------------ */

/* Adds an event with the fields of `like`. An answer_fn whose ctx is the job. */
int job_emit(void *job, const struct job_event *like, const char *text, size_t text_bytes,
             struct job_logprobs *logprobs);
bool job_is_cancelled(const struct job *job);
/* Returns whether the client of a stream has too many bytes to read before it gets more. */
bool job_is_held(const struct job *job);
/* Returns whether a job waits for its turn. */
bool jobs_has_waiting(struct jobs *jobs);
/* Finishes a job: settles its usage, adds the last event, drops the runner's reference. */
void job_leave(struct job *job, int code, const char *why);
/* Publishes statistics and the map when due. Called between passes and before every layer. */
void jobs_publish(struct jobs *jobs, bool now);

#ifdef __cplusplus
}
#endif
#endif
