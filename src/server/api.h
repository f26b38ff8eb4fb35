/* One call of an endpoint that generates text, independent of HTTP: the request's JSON becomes a
 * job specification, and the job's events become the bytes of a stream or one JSON object.
 *
 * A call belongs to the HTTP thread and owns its memory; the context is borrowed and outlives it. A
 * reader that fails fills call->error; api_call_clear frees everything. Writers return false only
 * when memory runs out. */
#ifndef FLASHMOE_SERVER_API_H
#define FLASHMOE_SERVER_API_H

#include "flashmoe.h"
#include "server/api_error.h"
#include "server/job.h"
#include "server/call_texts.h"
#include "text/text_buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct api_context {
    const struct fm_model *model;
    struct call_texts *texts;
    char model_name[128];
    unsigned n_context;
    uint64_t n_answer; /* maximum tokens per answer; 0: limited by the context only */
    uint64_t limit_ns; /* maximum time per request; 0: none */
    int64_t began_s;   /* when the server started */
};

/* One answer so far. */
struct api_call_made {
    char id[64], name[256];
    struct text_buffer arguments;
    bool is_broken; /* they are incomplete */
};

struct api_choice {
    struct text_buffer reasoning, content;
    struct api_call_made *calls;
    size_t n_calls, cap_calls;
    struct job_logprobs logprobs;
    enum job_end end;
    unsigned stop;
    uint64_t n_prompt, n_answer; /* tokens; known at its end */
    struct {
        size_t prompt_chars; /* of the prompt's text */
        size_t n_prompt;     /* prompt tokens that are still to be listed before the answer's */
        size_t chars, bytes; /* of the text before the next token; bytes: of the prompt */
    } offsets;
};

/* Lists of log probabilities, one item per token. */
enum api_list {
    API_LIST_ENTRIES, /* {token, logprob, bytes, top_logprobs} */
    API_LIST_TOKENS,  /* the token's text */
    API_LIST_VALUES,  /* its log probability */
    API_LIST_TOPS,    /* {text of an alternative: its log probability} */
    API_LIST_IDS,     /* the token's id */
    API_LIST_OFFSETS, /* characters of prompt and answer before the token */
};

/* An answer that is written in pieces. A log probability takes eight bytes in memory, ten times as
 * much as text and a hundred times as a JSON value, so each token is converted only when it is
 * sent. */
struct api_pieces {
    struct text_buffer text; /* the answer with marks in place of the lists, and a NUL */
    size_t at, mark;         /* offsets of the next byte and of the next mark, or the NUL */
    const struct job_logprobs *source; /* of the current list; NULL: none */
    enum api_list list;
    unsigned choice; /* whose list it is */
    size_t token; /* index in it */
};

struct api_call {
    const struct api_context *context;
    const struct api *api;
    struct api_error error;
    bool is_stream;
    struct text_buffer *out; /* the bytes of the stream; borrowed */
    const struct text_buffer *body; /* the request; NULL after it was read */
    struct text_buffer schema;      /* JSON schema of the answer */
    char schema_field[40];          /* the request field it came from; empty: none */
    bool is_gbnf;                   /* it is a grammar in GBNF */
    struct job_usage usage;  /* complete when the job has ended */

    char id[40];
    int64_t created_s;
    char model[128]; /* as named in the request */
    bool wants_usage, wants_progress, has_logprobs;
    bool has_functions; /* chat: a call is a 'function_call', the form before 'tool_calls' */
    bool wants_tokens; /* llama-server: the ids of the answer's tokens */
    bool is_base64;    /* embeddings: the form of a vector */
    json_t *echo;      /* completions: texts of the prompts, repeated before the answers; or NULL */
    uint64_t echo_bytes; /* JSON size of the parts of the request that the response repeats */
    json_t *request;   /* responses: fields that the response repeats */
    json_t *items;     /* responses: finished items of a stream */
    size_t text_at;    /* responses: offset of the open item in the answer's text */
    char stops[JOB_STOPS_MAX][128]; /* the stop strings, for dialects that report them */
    const char *idle_reason; /* why there is nothing to compute; NULL: there is a prompt */

    struct api_choice *choices;
    unsigned n_choices;

    /* State of a stream. */
    uint64_t n_events;
    unsigned n_blocks;
    enum job_event_kind block; /* kind of the open block */
    bool has_block, has_begun;
};

#define SSE_HELLO ": queued\n\n" /* a comment of server-sent events */

struct api {
    const char *path;
    enum api_dialect dialect;
    enum {
        API_COLLECTS_NOTHING,
        API_COLLECTS_CALLS,
        API_COLLECTS_ALL
    } collects; /* what of an answer a stream needs as a whole */
    bool is_lines; /* a stream is one JSON object per line, and not server-sent events */
    bool streams;  /* an answer is a stream unless the request says otherwise */
    int (*read)(struct api_call *call, const json_t *body, struct job_spec *spec);
    /* Writes one event of a stream. JOB_DONE ends it; JOB_FAILED has its error in call->error. */
    bool (*write)(struct api_call *call, const struct job_event *event);
    /* Returns the whole answer; NULL when memory runs out. */
    json_t *(*whole)(const struct api_call *call);
    const char *hello; /* begins a stream, so that its headers are sent at once */
    const char *ping;  /* keeps it alive */
};

/* ---- the endpoints -------------------------------------------------------------------------- */

extern const struct api api_chat, api_completions, api_messages, api_responses;
extern const struct api api_ollama_chat, api_ollama_generate;
extern const struct api api_ollama_embed, api_ollama_embeddings;
extern const struct api api_llama_completion, api_llama_infill, api_embeddings;

/* Starts a call: parses the request and builds its prompt. Returns 0, or -1 with call->error. */
int api_call_read(struct api_call *call, const struct api *api, const struct api_context *context,
                  const json_t *body, const struct text_buffer *text, struct job_spec *spec);
void api_call_clear(struct api_call *call);
/* Handles an event: writes it to the stream, and collects it if the whole answer is needed. */
bool api_call_take(struct api_call *call, const struct job_event *event);

/* ---- for the dialects --------------------------------------------------------------------- */

struct fields;

/* Writes an id: "chatcmpl-" and 24 letters and digits. */
void api_new_id(const char *prefix, char id[40]);
/* Reads the maximum number of tokens of an answer. `names` ends with NULL; a later field outweighs
 * an earlier one. -1 is no limit, and 0, if min is 0, no answer. Returns whether one is given. */
bool api_read_limit(const struct fields *f, const char *const *names, uint64_t min,
                    struct job_spec *spec);
/* Reads temperature and the other sampling fields, seed, penalties, logit_bias and ignore_eos. */
void api_read_sampling(struct api_call *call, const struct fields *f, struct job_spec *spec);
/* Reads a string or an array of strings. */
void api_read_stops(struct api_call *call, const struct fields *f, const char *name,
                    struct job_spec *spec);
/* Returns a conversation key: a hash of the text. */
uint64_t api_key_of(const char *text);
/* Adds a prompt and takes over its ids. Fails if it is empty or the context cannot hold it. `field`
 * is its name in errors, here and below. */
int api_add_prompt(struct api_call *call, struct job_spec *spec, int32_t *ids, size_t n_ids,
                   const char *field);

/* Refuses a text of so many bytes that certainly has too many tokens. */
int api_check_bytes(struct api_call *call, size_t bytes, const char *field);
/* Reads a text, a list of texts, a list of tokens, or a list of token lists. Keeps the texts if
 * call->echo is an array. */
int api_read_prompts(struct api_call *call, const json_t *prompt, const char *field,
                     struct job_spec *spec);
/* Returns the text of the prompt that the choice answers; borrowed. NULL: it is not repeated. */
json_t *api_echo_of(const struct api_call *call, unsigned choice);
/* Returns how many characters begin in the text. */
size_t api_count_chars(const char *text, size_t bytes);
/* Keeps the text of these tokens in call->echo. */
void api_echo_tokens(struct api_call *call, const int32_t *ids, size_t n);
/* Tokenizes a prompt and adds it. */
int api_add_text(struct api_call *call, struct job_spec *spec, const json_t *text,
                 const char *field);

/* Writes "data: JSON\n\n", after "event: NAME" if there is one; or a line, if the dialect has
 * lines. Takes the reference. */
bool api_frame(struct api_call *call, const char *event, json_t *value);
/* The same for a value with marks for lists of these log probabilities. */
bool api_frame_logprobs(struct api_call *call, json_t *value, const struct job_logprobs *logprobs);
/* Returns a mark that stands for a list of the choice's log probabilities. */
json_t *api_logprobs_mark(unsigned choice, enum api_list list);
json_t *api_buffer_json(const struct text_buffer *buffer);
/* Returns what llama-server's clients know as timings. */
json_t *api_timings_json(const struct job_usage *usage);
/* Keeps how an answer ended, from JOB_CHOICE_END. */
void api_choice_end(struct api_choice *choice, const struct job_event *event);

/* ---- an answer in pieces -------------------------------------------------------------------- */

/* Starts with the value, which the caller keeps. Returns false when memory runs out. */
bool api_pieces_begin(struct api_pieces *p, const json_t *value);
void api_pieces_clear(struct api_pieces *p);
bool api_pieces_is_over(const struct api_pieces *p);
/* Adds some kilobytes to `out`. The lists belong to the call's choices, or to `event` if it is not
 * NULL. Returns false when memory runs out. */
bool api_pieces_add(struct api_pieces *p, const struct api_call *call,
                    const struct job_logprobs *streamed, struct text_buffer *out);
/* Returns the maximum that finishing an unstreamed call allocates, given what it has so far. */
uint64_t api_whole_bytes(const struct api_call *call);

/* Endpoints that generate no text (api_misc.c). Each adds JSON to the answer and returns 0, or -1
 * with the error. */
int api_tokenize(const struct api_context *context, const json_t *body,
                 struct text_buffer *answer, struct api_error *error);
int api_detokenize(const struct api_context *context, const json_t *body,
                   struct text_buffer *answer, struct api_error *error);
int api_apply_template(const struct api_context *context, const json_t *body,
                       struct text_buffer *answer, struct api_error *error);
int api_count_tokens(const struct api_context *context, const json_t *body,
                     struct text_buffer *answer, struct api_error *error);
/* status_ollama.c: describes the model; says whether a model to be pulled is this one. */
int api_ollama_show(const struct api_context *context, const json_t *body,
                    struct text_buffer *answer, struct api_error *error);
int api_ollama_pull(const struct api_context *context, const json_t *body,
                    struct text_buffer *answer, struct api_error *error);
struct fields;
/* Reads 'keep_alive' of Ollama's requests. Returns whether it asks to unload the model. */
bool api_ollama_keep_alive(const struct fields *f);

#ifdef __cplusplus
}
#endif
#endif
