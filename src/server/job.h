/* A job: one request's prompts and how they are to be answered, and what becomes of it as a list of
 * events. It knows no protocol.
 *
 * The HTTP thread makes a job, gives it to the engine (jobs.h) and takes its events; the engine
 * thread adds them. A job is counted: whoever holds a reference ends it with jobs_release. The
 * specification belongs to the job and does not change once it was submitted. */
#ifndef FLASHMOE_SERVER_JOB_H
#define FLASHMOE_SERVER_JOB_H

#include <jansson.h>

#include "base/lease.h"
#include "flashmoe.h"
#include "session/answer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define JOB_STOPS_MAX 16
#define JOB_PROMPTS_MAX 64
#define JOB_CHOICES_MAX 64

struct job_prompt {
    int32_t *ids; /* freed with fm_free */
    size_t n_ids;
};

struct job_spec {
    struct job_prompt prompts[JOB_PROMPTS_MAX];
    unsigned n_prompts, n_choices; /* answers to each prompt, one after the other */
    struct fm_sampling sampling;   /* the k-th answer has seed + k */
    struct fm_logit_bias *bias;    /* [sampling.n_logit_bias]; freed with mem_free */
    char *stops[JOB_STOPS_MAX];    /* freed with mem_free */
    unsigned n_stops;
    uint64_t n_max;        /* tokens of an answer; 0: as many as the context holds */
    bool wants_logprobs;
    unsigned n_top_logprobs;
    bool is_chat;           /* reasoning and tool calls are told from content */
    bool is_thinking;       /* the prompt has opened the reasoning */
    bool is_stream;         /* every event is news; otherwise only the last */
    json_t *tools;          /* the calls that may come; NULL: none are looked for */
    bool is_one_call;       /* the answer ends with its first call */
    struct fm_grammar *grammar; /* what the answer is held to; NULL: nothing */
    /* Text that the prompt ends with and the answer lacks at its end, for a call that must come. */
    struct forced_call forced;
    bool is_forced;
    uint64_t key;           /* whose conversation it is; 0: unknown */
    uint64_t owner;         /* whose cached prefixes it may use, and whose its own becomes */
    uint64_t id_seed;       /* of the ids of tool calls */
    uint64_t limit_ns;      /* time from submission to the end; 0: none */
};

enum job_event_kind {
    JOB_STARTED,        /* n_prompt and n_cached of the job's prompts so far */
    JOB_PROGRESS,       /* n_done of n_prompt tokens */
    JOB_REASONING,      /* text */
    JOB_CONTENT,        /* text */
    JOB_CALL_BEGIN,     /* call, id, name */
    JOB_CALL_ARGUMENTS, /* call, text */
    JOB_CALL_END,       /* call, is_broken */
    JOB_CHOICE_END,     /* end, stop */
    JOB_DONE,           /* all is written; the last */
    JOB_FAILED,         /* code, text; the last */
};

/* Why an answer ended. */
enum job_end { JOB_END_STOP, JOB_END_STRING, JOB_END_LENGTH, JOB_END_CALLS };

/* Log probabilities of tokens, n_each entries for each: the chosen one and its alternatives. Eight
 * bytes an entry: as JSON each takes more than a kilobyte, so it becomes that when it is sent. */
struct job_logprobs {
    struct fm_logprob *at; /* freed with mem_free */
    size_t n, capacity;
    unsigned n_each;
};

struct job_event {
    struct job_event *next;
    enum job_event_kind kind;
    unsigned choice; /* the answer's number: prompt times n_choices plus k */
    unsigned call;
    bool is_broken; /* the call's arguments are not whole */
    int code; /* FM_ERR_*, or JOB_ERR_* */
    enum job_end end;
    unsigned stop; /* the stop string, of JOB_END_STRING */
    uint64_t n_prompt, n_cached, n_done;
    struct job_logprobs logprobs; /* of the tokens since the last event that had some */
    struct mem_account *account;  /* to which `bytes` are given back; NULL: none were taken */
    uint64_t bytes;
    char id[32], name[256];
    size_t text_bytes;
    char text[];
};

enum { JOB_ERR_TIME = -100, JOB_ERR_SHUTDOWN = -101, JOB_ERR_BUSY = -102 };
/* What job_emit fails with when the memory for requests is in use; its sentence. */
#define JOB_ERR_MEMORY JOB_ERR_BUSY
#define JOB_MEMORY_TEXT "the memory for requests is in use (--request-memory): try again later"

/* What a job came to. */
struct job_usage {
    uint64_t n_prompt, n_cached, n_answer, n_reasoning; /* tokens */
    uint64_t queue_ns, prefill_ns, decode_ns;
    uint64_t n_hits, n_misses, bytes_read; /* of all that was computed meanwhile */
};

void job_spec_clear(struct job_spec *spec);
void job_event_free(struct job_event *event);

#ifdef __cplusplus
}
#endif
#endif
