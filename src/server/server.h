/* The HTTP server over one model: what `flashmoe serve` runs.
 *
 * server_run belongs to the calling thread, on which all of HTTP happens; a second thread, of the
 * server's own, drives the model (jobs.h). server_stop may be called from anywhere, signal handlers
 * included. The model and what else the options name are borrowed and outlive the server; the model
 * is nobody else's from open to close. */
#ifndef FLASHMOE_SERVER_SERVER_H
#define FLASHMOE_SERVER_SERVER_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct server;

struct server_options {
    struct fm_model *model;
    struct fm_snapshots *snapshots; /* NULL: none are kept */
    const char *model_name, *model_path;
    const char *host;   /* address to listen on */
    unsigned port;      /* 0: any that is free */
    unsigned n_parallel, n_sessions, n_queue, n_connections;
    const char *api_key; /* NULL: everybody may */
    const char *cors;    /* origins, separated by commas; "*": all; NULL: those of this machine */
    uint64_t request_bytes; /* of a body, at most */
    uint64_t request_memory; /* memory for connections, requests and their answers together */
    uint64_t n_answer;      /* tokens of an answer, at most; 0: as many as the context holds */
    /* Seconds: of a request, 0: any; of a connection without one; to finish when it is stopped. */
    unsigned request_s, idle_s, grace_s;
    /* How near decoding between the two came to what the machine allows, 0 to 1, or negative where
     * that is not known; NULL: never. */
    double (*limit_share)(void *ctx, const struct fm_stats *before, const struct fm_stats *after,
                          double position);
    void (*log)(void *ctx, const char *line); /* one for each request; NULL: none */
    void *ctx;                                /* of both */
};

int server_open(const struct server_options *options, struct server **out, struct fm_error *err);
unsigned server_port(const struct server *server);
/* Serves until it is stopped, and what runs is answered or has failed cleanly. */
int server_run(struct server *server, struct fm_error *err);
/* The first time, takes no more and lets what runs finish; the second time, ends that too. */
void server_stop(struct server *server);
void server_close(struct server *server); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
