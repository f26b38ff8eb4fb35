/* Shared by the files of the HTTP side. Everything belongs to the thread of server_run. */
#ifndef FLASHMOE_SERVER_HTTP_INTERNAL_H
#define FLASHMOE_SERVER_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "server/access.h"
#include "server/api.h"
#include "server/jobs.h"
#include "server/jobs_prepare.h"
#include "server/server.h"
#include "server/web.h"

#ifdef __cplusplus
extern "C" {
#endif

struct request;

/* A connection, from accept to close. */
struct client {
    struct client *before, *after;
    struct request *request; /* NULL: none has started */
    int fd;
    bool is_dropping;  /* input is discarded */
    bool was_closed;   /* the peer had closed it at the last check */
    uint64_t since_ns; /* time of opening, or of the end of the last request */
};

/* One request and its response. */
struct request {
    struct server *server;
    struct client *client; /* NULL after the connection closed */
    struct MHD_Connection *connection;
    const struct endpoint *endpoint; /* NULL: none matches, and the error is set */
    enum api_dialect dialect;
    char method[12], path[160];
    uint64_t began_ns;
    bool is_read;      /* the body is complete */
    bool is_suspended; /* waits for its job */
    bool is_over;      /* the answer is complete */
    bool is_gone;      /* the client disconnected */
    uint64_t length; /* announced body length; 0: none */
    bool must_close;   /* the connection accepts no further request */
    uint64_t owner;    /* of its API key; 0: no key, or keys share prefixes */
    struct text_buffer body;
    uint64_t n_dropped;     /* body bytes discarded after a refusal */
    struct mem_lease lease; /* covers all memory here; lent to the task while there is one */
    struct prepare_task *task; /* NULL: not started, or already taken back */
    bool is_prepared;          /* the task has finished */
    struct api_error error;
    unsigned status;
    uint64_t n_sent;

    /* For a call with a job. */
    struct job *job;
    bool has_call;
    struct api_call call;
    struct text_buffer out; /* unsent bytes of a stream, or the whole answer */
    size_t out_at;
    struct api_pieces pieces; /* a whole answer that is written while it is sent */
    uint64_t written_ns; /* time when bytes were last added */
    struct job_usage usage;
};

struct server {
    struct server_options options;
    struct access_rules rules;
    char machine[1024]; /* names of this machine, if others can reach it */
    struct access_keys keys;
    struct api_context context;
    struct mem_account account; /* memory of requests: bodies, parsed requests, answers */
    struct preparers *preparers;
    struct jobs *jobs;
    struct call_texts *texts;
    struct MHD_Daemon *daemon;
    int listen_fd, epoll_fd; /* epoll_fd -1: the system has no epoll */
    int wake[2];             /* a pipe that signals events of jobs, or a stop */
    volatile int n_stops, n_hang_ups; /* counted by the signal handlers */
    unsigned port;
    int64_t began_s;
    uint64_t begin_ns, stop_ns;
    uint64_t look_ns; /* time of the next check for events; 0: wait for a notification */
    struct client *clients;
    unsigned n_clients, n_requests; /* current */
    uint64_t n_served, n_errors, n_bytes; /* responses, those with a 5xx status, bytes sent */
    uint64_t peek_turn;
};

struct endpoint {
    const char *path; /* without /v1 */
    const char *method;
    bool is_open; /* needs no key */
    const struct api *api; /* or: */
    int (*look)(const struct api_context *context, const json_t *body, struct text_buffer *answer,
                struct api_error *error);
    enum MHD_Result (*get)(struct request *request);
};

/* ---- http.c ---- */

enum MHD_Result http_handle(void *server, struct MHD_Connection *connection, const char *url,
                            const char *method, const char *version, const char *upload,
                            size_t *upload_bytes, void **request);
void http_completed(void *server, struct MHD_Connection *connection, void **request,
                    enum MHD_RequestTerminationCode code);
/* Takes the new events of its job and writes them. */
void http_take_events(struct request *request);
/* Tells the runner how much of a stream is unsent. */
void http_note_unsent(struct request *request);
void http_resume(struct request *request);
/* Handles a disconnected client. */
void http_give_up(struct request *request);

/* ---- http_prepare.c ---- */

/* Explains why a lease refused memory: too large for any request, or busy. Returns -1. */
int http_refuse_memory(const struct mem_lease *lease, struct api_error *error);
/* Refuses an announced length that does not fit into the memory for requests now. */
void http_check_length(struct request *r);
/* Adds a part of the body. After a refusal (r->error) it only counts discarded bytes. Returns false
 * when there are too many. */
bool http_add_body(struct request *r, const char *bytes, size_t n);
/* Returns unused memory of the lease to the account. */
void http_give_memory(struct request *r);
/* Lets another thread parse the body; suspends the connection. */
enum MHD_Result http_prepare(struct request *r);
/* Resumes the connection when the task has finished. */
void http_prepared(struct prepare_task *task);
/* Cancels the task because the client disconnected. */
void http_drop_task(struct request *r);
/* Takes the results of the task. Replies, unless it is a call without an error: then r->call and
 * the specification are set. */
enum MHD_Result http_answer_prepared(struct request *r, struct job_spec *spec);

/* ---- http_reply.c ---- */

/* Returns a header of the request, or NULL. */
const char *http_header(const struct request *r, const char *name);
/* Sends a file of the page, or 304 if the browser has it. */
enum MHD_Result reply_page(struct request *r, const struct web_file *file);
/* Send the response of a GET with status 200. It counts as request memory until it is sent, and is
 * refused if there is no room. reply_json takes the reference. */
enum MHD_Result reply_bytes(struct request *r, const char *type, const char *bytes, size_t n);
enum MHD_Result reply_json(struct request *r, json_t *value);
/* Sends a few hundred bytes, which are never refused: errors and /health. Takes the reference. */
enum MHD_Result reply_small(struct request *r, unsigned status, json_t *value);
enum MHD_Result reply_kept(struct request *r, unsigned status); /* r->out, which is JSON */
enum MHD_Result reply_error(struct request *r); /* r->error */
enum MHD_Result reply_stream(struct request *r);
enum MHD_Result reply_pieces(struct request *r); /* r->pieces, which are JSON */
enum MHD_Result reply_preflight(struct request *r);
/* Sends r->error directly on the socket while a body is still arriving; nothing more is sent. */
void reply_error_at_once(struct request *r);

/* ---- http_access.c ---- */

/* Sets r->owner, and r->error if the request must be refused. `method` points to the start of the
 * request in the library's buffer. */
void http_check_access(struct request *r, const char *method, const char *version);

/* ---- status.c: what the server knows of itself ---- */

enum MHD_Result get_page(struct request *r);
enum MHD_Result get_health(struct request *r);
enum MHD_Result get_models(struct request *r);
enum MHD_Result get_metrics(struct request *r);
enum MHD_Result get_props(struct request *r);
enum MHD_Result get_slots(struct request *r);
enum MHD_Result get_stats(struct request *r);
enum MHD_Result get_experts(struct request *r);

/* ---- status_ollama.c: the same in Ollama's form ---- */

enum MHD_Result get_ollama_version(struct request *r);
enum MHD_Result get_ollama_tags(struct request *r);
enum MHD_Result get_ollama_ps(struct request *r);

#ifdef __cplusplus
}
#endif
#endif
