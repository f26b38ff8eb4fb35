/* What the files of the HTTP side share. All of it belongs to the thread of server_run. */
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
    struct request *request; /* NULL: none has begun */
    int fd;
    bool is_dropping;  /* what it sends is not read any more */
    bool was_closed;   /* at the last look, by the other side */
    uint64_t since_ns; /* opened, or the last request was over */
};

/* One exchange on it. */
struct request {
    struct server *server;
    struct client *client; /* NULL once it is closed */
    struct MHD_Connection *connection;
    const struct route *route; /* NULL: there is none, and the error is known */
    enum api_dialect dialect;
    char method[12], path[160];
    uint64_t began_ns;
    bool is_read;      /* its body is whole */
    bool is_suspended; /* it waits for its job */
    bool is_over;      /* the answer is whole */
    bool is_gone;      /* the client went away */
    uint64_t length; /* announced for the body; 0: none was */
    bool must_close;   /* nothing more is taken from its connection */
    uint64_t owner;    /* of the API key it came with; 0: none, or keys share what is cached */
    struct text_buffer body;
    uint64_t n_dropped;     /* bytes of the body that came after it was refused */
    struct mem_lease lease; /* of everything here; the task's while there is one */
    struct prepare_task *task; /* NULL: the body is not read, or it has been */
    bool is_prepared;          /* the task is done */
    struct api_error error;
    unsigned status;
    uint64_t n_sent;

    /* Of a call that has a job. */
    struct job *job;
    bool has_call;
    struct api_call call;
    struct text_buffer out; /* of a stream: what was sent is cut off; or the whole answer */
    size_t out_at;
    struct api_pieces pieces; /* of a whole answer that is written as it is sent */
    uint64_t written_ns; /* when something was last added to it */
    struct job_usage usage;
};

struct server {
    struct server_options options;
    struct access_rules rules;
    char machine[1024]; /* names of this machine, where others can reach it */
    struct access_keys keys;
    struct api_context context;
    struct mem_account account; /* memory of requests: bodies, what is made of them, answers */
    struct preparers *preparers;
    struct jobs *jobs;
    struct recall *recall;
    struct MHD_Daemon *daemon;
    int listen_fd, epoll_fd; /* epoll_fd -1: where the system has none */
    int wake[2];             /* a pipe: the engine has news, or somebody wants it to stop */
    volatile int n_stops, n_hang_ups; /* counted by the signal handlers */
    unsigned port;
    int64_t began_s;
    uint64_t begin_ns, stop_ns;
    uint64_t look_ns; /* when to ask for news; 0: when the engine calls */
    struct client *clients;
    unsigned n_clients, n_requests; /* now */
    uint64_t n_served, n_errors, n_bytes; /* requests answered, with a fault of ours; bytes */
    uint64_t peek_turn;
};

struct route {
    const char *path; /* without /v1 */
    const char *method;
    bool is_open; /* without the key */
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
/* Its job has news. */
void http_take_events(struct request *request);
void http_resume(struct request *request);
/* The client went away. */
void http_give_up(struct request *request);

/* ---- http_prepare.c ---- */

/* Why a lease has refused memory: too large for any request, or try again. Returns -1. */
int http_refuse_memory(const struct mem_lease *lease, struct api_error *error);
/* Refuses an announced length that the memory for requests cannot hold now. */
void http_check_length(struct request *r);
/* Takes a part of the body. After a refusal, which is r->error, it only counts what is dropped;
 * false: that is too much. */
bool http_add_body(struct request *r, const char *bytes, size_t n);
/* Gives back what the lease has taken and no longer uses. */
void http_give_memory(struct request *r);
/* Has the body read by another thread; the connection waits. */
enum MHD_Result http_prepare(struct request *r);
/* The task is done: the connection goes on. */
void http_prepared(struct prepare_task *task);
/* Nobody waits for it. */
void http_drop_task(struct request *r);
/* Takes what the task made. Replies, unless it is a call without an error: then r->call and the
 * specification are set. */
enum MHD_Result http_answer_prepared(struct request *r, struct job_spec *spec);

/* ---- http_reply.c ---- */

/* A header of the request; NULL: it has none. */
const char *http_header(const struct request *r, const char *name);
/* A file of the page, or 304 where the browser has it. */
enum MHD_Result reply_page(struct request *r, const struct web_file *file);
/* Answers of GET, with status 200: they are counted in the memory for requests until they are sent,
 * and refused where it has no room. reply_json takes the value. */
enum MHD_Result reply_bytes(struct request *r, const char *type, const char *bytes, size_t n);
enum MHD_Result reply_json(struct request *r, json_t *value);
/* Some hundred bytes, which are never refused: errors, and whether the server lives. Takes it. */
enum MHD_Result reply_small(struct request *r, unsigned status, json_t *value);
enum MHD_Result reply_kept(struct request *r, unsigned status); /* r->out, which is JSON */
enum MHD_Result reply_error(struct request *r); /* r->error */
enum MHD_Result reply_stream(struct request *r);
enum MHD_Result reply_pieces(struct request *r); /* r->pieces, which are JSON */
enum MHD_Result reply_preflight(struct request *r);
/* reply_error past the library, while a body still comes; then nothing more is sent. */
void reply_error_at_once(struct request *r);

/* ---- http_access.c ---- */

/* Fills in r->error where the request may not be answered, and r->owner. `method` is the library's,
 * where the request begins in its memory. */
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

#ifdef __cplusplus
}
#endif
#endif
