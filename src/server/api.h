/* One call of an endpoint that answers with a model's text, apart from HTTP: the request's JSON
 * becomes a job's specification, and the job's events become the bytes of a stream or one JSON
 * object.
 *
 * A call belongs to the HTTP thread. Its memory is its own; the context is borrowed and outlives
 * it. A reader that fails has filled call->error and leaves nothing behind that api_call_clear
 * does not free. Writers return false for want of memory alone. */
#ifndef FLASHMOE_SERVER_API_H
#define FLASHMOE_SERVER_API_H

#include "flashmoe.h"
#include "server/api_error.h"
#include "server/job.h"
#include "server/recall.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct api_context {
    const struct fm_model *model;
    struct recall *recall;
    char model_name[128];
    unsigned n_context;
    uint64_t n_answer; /* tokens of an answer at most; 0: as many as the context holds */
    uint64_t limit_ns; /* of a request; 0: none */
};

/* What an answer has come to so far. */
struct api_call_made {
    char id[32], name[256];
    struct text_buffer arguments;
    bool is_broken; /* they are not whole */
};

struct api_choice {
    struct text_buffer reasoning, content;
    struct api_call_made *calls;
    size_t n_calls, cap_calls;
    struct job_logprobs logprobs;
    enum job_end end;
    unsigned stop;
};

/* Lists of log probabilities, an item for each token. */
enum api_list {
    API_LIST_ENTRIES, /* {token, logprob, bytes, top_logprobs} */
    API_LIST_TOKENS,  /* the token's text */
    API_LIST_VALUES,  /* its logarithm */
    API_LIST_TOPS,    /* {text of an alternative: its logarithm} */
};

/* An answer that is written in pieces. Log probabilities are kept in eight bytes each; as text they
 * take ten times as much, and as JSON values a hundred times, so they become that one token at a
 * time, as the answer is sent. */
struct api_pieces {
    struct text_buffer text; /* the answer, with marks in place of the lists, and a NUL */
    size_t at, mark;         /* in the text: what comes next; the next mark, or the NUL */
    const struct job_logprobs *source; /* of the list at hand; NULL: none */
    enum api_list list;
    size_t token; /* in it */
};

struct api_call {
    const struct api_context *context;
    const struct api *api;
    struct api_error error;
    bool is_stream;
    struct text_buffer *out; /* the stream's bytes; borrowed */
    const struct text_buffer *body; /* the request's; NULL once it has been read */
    struct text_buffer schema;      /* what the answer must fit, as JSON, ... */
    char schema_field[40];          /* and the field that says so; empty: none */
    struct job_usage usage;  /* whole once the job is over */

    char id[40];
    int64_t created_s;
    char model[128]; /* as it was asked for */
    bool wants_usage, wants_progress, has_logprobs;
    json_t *echo;      /* completions: the prompts' text before the answers; NULL: none */
    uint64_t echo_bytes; /* JSON of what the whole answer repeats of its request */
    json_t *request;   /* responses: what is repeated in the answer */
    json_t *items;     /* responses: the items that a stream has closed */
    size_t text_at;    /* responses: where in the answer's text the open item begins */
    char stops[JOB_STOPS_MAX][128]; /* the stop strings, for those that name them */

    struct api_choice *choices;
    unsigned n_choices;

    /* Where a stream is. */
    uint64_t n_events;
    unsigned n_blocks;
    enum job_event_kind block; /* the kind of what is open */
    bool has_block, has_begun;
};

struct api {
    const char *path;
    enum api_dialect dialect;
    bool collects; /* a stream needs the whole, too */
    int (*read)(struct api_call *call, const json_t *body, struct job_spec *spec);
    /* One event of a stream. JOB_DONE closes it; JOB_FAILED has its error in call->error. */
    bool (*write)(struct api_call *call, const struct job_event *event);
    /* The answer in one piece; NULL for want of memory. */
    json_t *(*whole)(const struct api_call *call);
    const char *ping; /* what keeps a stream alive */
};

/* ---- the endpoints -------------------------------------------------------------------------- */

extern const struct api api_chat, api_completions, api_messages, api_responses;

/* Begins a call: reads the request, whose body has that text, and makes its prompt. 0, or -1 and
 * call->error. */
int api_call_read(struct api_call *call, const struct api *api, const struct api_context *context,
                  const json_t *body, const struct text_buffer *text, struct job_spec *spec);
void api_call_clear(struct api_call *call);
/* An event: to the stream, and to the whole where that is wanted. */
bool api_call_take(struct api_call *call, const struct job_event *event);

/* ---- for the dialects --------------------------------------------------------------------- */

struct fields;

/* "chatcmpl-" and 24 letters and digits. */
void api_new_id(const char *prefix, char id[40]);
/* Temperature and its like, seed, penalties, logit_bias. */
void api_read_sampling(struct api_call *call, const struct fields *f, struct job_spec *spec);
/* A string or an array of strings. */
void api_read_stops(struct api_call *call, const struct fields *f, const char *name,
                    struct job_spec *spec);
/* Whose conversation: a number that follows from the text. */
uint64_t api_key_of(const char *text);
/* A prompt of these ids, which are taken over: checks that the context holds it. */
int api_add_prompt(struct api_call *call, struct job_spec *spec, int32_t *ids, size_t n_ids);

/* "data: JSON\n\n", with "event: NAME" before it where there is one. Takes the reference. */
bool api_frame(struct api_call *call, const char *event, json_t *value);
/* The same, for a value with marks that stand for lists of these log probabilities. */
bool api_frame_logprobs(struct api_call *call, json_t *value, const struct job_logprobs *logprobs);
/* What stands for a list of the choice's log probabilities until it is written. */
json_t *api_logprobs_mark(unsigned choice, enum api_list list);
json_t *api_buffer_json(const struct text_buffer *buffer);

/* ---- an answer in pieces -------------------------------------------------------------------- */

/* Begins with the value, which stays the caller's. False for want of memory. */
bool api_pieces_begin(struct api_pieces *p, const json_t *value);
void api_pieces_clear(struct api_pieces *p);
bool api_pieces_is_over(const struct api_pieces *p);
/* Adds some kilobytes to `out`. The lists are of the call's choices, or of an event of a stream
 * where that is not NULL. False for want of memory. */
bool api_pieces_add(struct api_pieces *p, const struct api_call *call,
                    const struct job_logprobs *streamed, struct text_buffer *out);
/* The most that the end of a call which is not streamed allocates, for what there is so far. */
uint64_t api_whole_bytes(const struct api_call *call);

/* Endpoints that only look: api_misc.c. Each adds JSON to the answer and
 * returns 0, or -1 and the error. */
int api_tokenize(const struct api_context *context, const json_t *body,
                 struct text_buffer *answer, struct api_error *error);
int api_detokenize(const struct api_context *context, const json_t *body,
                   struct text_buffer *answer, struct api_error *error);
int api_apply_template(const struct api_context *context, const json_t *body,
                       struct text_buffer *answer, struct api_error *error);
int api_count_tokens(const struct api_context *context, const json_t *body,
                     struct text_buffer *answer, struct api_error *error);

#ifdef __cplusplus
}
#endif
#endif
