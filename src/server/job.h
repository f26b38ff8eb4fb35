/* A job: the prompts of one request, how to answer them, and the resulting list of events. It knows
 * no protocol.
 *
 * The HTTP thread creates a job, submits it (jobs.h) and takes its events; the runner thread adds
 * them. Jobs are reference-counted; release a reference with jobs_release. The job owns its
 * specification, which does not change after submission. */
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
#define JOB_PROMPTS_MAX 256
#define JOB_CHOICES_MAX 64
#define JOB_STOP_TOKENS_MAX 16

struct job_prompt {
    int32_t *ids; /* freed with fm_free */
    size_t n_ids;
    size_t n_chars; /* of the text it was; 0 for conversations */
};

struct job_spec {
    struct job_prompt prompts[JOB_PROMPTS_MAX];
    unsigned n_prompts, n_choices; /* n_choices: answers per prompt, generated in turn */
    struct fm_sampling sampling;   /* answer k uses seed + k */
    struct fm_logit_bias *bias;    /* [sampling.n_logit_bias]; freed with mem_free */
    char *stops[JOB_STOPS_MAX];    /* freed with mem_free */
    unsigned n_stops;
    int32_t stop_tokens[JOB_STOP_TOKENS_MAX]; /* end the answer, besides the model's own */
    unsigned n_stop_tokens;
    bool ignores_stops;    /* the bias forbids the tokens that end an answer */
    uint64_t n_max;        /* maximum tokens per answer; 0: limited by the context only */
    bool is_prompt_only;   /* the prompts are computed and not answered */
    bool wants_embedding;  /* of each prompt (JOB_EMBEDDING) */
    bool wants_logprobs;
    bool wants_prompt_logprobs; /* of the prompt's tokens too, and of the answer's last one */
    unsigned n_top_logprobs;
    bool is_chat;           /* separates reasoning and tool calls from content */
    bool is_continued;      /* the prompt ends inside the answer, or inside its reasoning */
    bool is_thinking;       /* the prompt has opened the reasoning */
    bool is_stream;         /* notifies about every event, not only the last */
    json_t *tools;          /* tools that may be called; NULL: calls are not parsed */
    bool is_one_call;       /* the answer ends after its first call */
    bool holds_calls;       /* calls are reported when they are whole, in streams too */
    struct fm_grammar *grammar; /* constrains the answer; NULL: unconstrained */
    /* For a forced call: text at the end of the prompt, and text that the answer lacks at its
     * end. */
    struct forced_call forced;
    bool is_forced;
    uint64_t key;           /* identifies the conversation; 0: unknown */
    uint64_t owner;         /* may use, and owns, the cached prefixes */
    uint64_t id_seed;       /* for the ids of tool calls */
    uint64_t limit_ns;      /* time limit from submission to the end; 0: none */
};

enum job_event_kind {
    JOB_STARTED,        /* n_prompt and n_cached of the job's prompts so far */
    JOB_PROGRESS,       /* n_done of n_prompt tokens */
    JOB_PROMPT,         /* logprobs of tokens of the prompt */
    JOB_EMBEDDING,      /* text: the floats of a prompt's vector */
    JOB_REASONING,      /* text */
    JOB_CONTENT,        /* text */
    JOB_CALL_BEGIN,     /* call, id, name */
    JOB_CALL_ARGUMENTS, /* call, text */
    JOB_CALL_END,       /* call, is_broken */
    JOB_CHOICE_END,     /* end, stop, n_prompt, and n_done tokens of the answer */
    JOB_DONE,           /* success; the last event */
    JOB_FAILED,         /* code, text; the last event */
};

/* Why an answer ended. */
enum job_end { JOB_END_STOP, JOB_END_STRING, JOB_END_LENGTH, JOB_END_CALLS };

/* Log probabilities of tokens, n_each entries per token: the chosen one and its alternatives. An
 * entry takes eight bytes here but over a kilobyte as JSON, so it is converted when it is sent. */
struct job_logprobs {
    struct fm_logprob *at; /* freed with mem_free */
    size_t n, capacity;
    unsigned n_each;
};

struct job_event {
    struct job_event *next;
    enum job_event_kind kind;
    unsigned choice; /* number of the answer: prompt * n_choices + k */
    unsigned call;
    bool is_broken; /* the call's arguments are incomplete */
    int code; /* FM_ERR_*, or JOB_ERR_* */
    enum job_end end;
    unsigned stop; /* index of the stop string, for JOB_END_STRING */
    uint64_t n_prompt, n_cached, n_done;
    struct job_logprobs logprobs; /* of the tokens since the last event that had some */
    struct mem_account *account;  /* gets `bytes` back; NULL: none were taken */
    uint64_t bytes;
    char id[64], name[256];
    size_t text_bytes;
    char text[];
};

enum { JOB_ERR_TIME = -100, JOB_ERR_SHUTDOWN = -101, JOB_ERR_BUSY = -102 };
/* Error code and message of job_emit when the memory for requests is used up. */
#define JOB_ERR_MEMORY JOB_ERR_BUSY
#define JOB_MEMORY_TEXT "the memory for requests is in use (--request-memory); try again later"

/* Totals of a job. */
struct job_usage {
    uint64_t n_prompt, n_cached, n_answer, n_reasoning; /* tokens */
    uint64_t queue_ns, prefill_ns, decode_ns;
    uint64_t gap_ns; /* longest time between two tokens of an answer */
    uint64_t n_hits, n_misses, bytes_read; /* of everything computed during the job */
    /* Of its own tokens: drafts that were computed, those that were right, and the passes that
     * could have had some. */
    uint64_t n_drafted, n_accepted, n_draft_passes;
};

void job_spec_clear(struct job_spec *spec);
void job_event_free(struct job_event *event);

#ifdef __cplusplus
}
#endif
#endif
