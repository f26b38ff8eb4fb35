/* The HTTP server over one model: what `flashmoe serve` runs.
 *
 * server_run belongs to the calling thread, on which all of HTTP happens; a second thread, of the
 * server's own, drives the model (jobs.h). server_stop may be called from anywhere, signal handlers
 * included. The model and what else the options name are borrowed and outlive the server; the model
 * is nobody else's from open to close. */
#ifndef FLASHMOE_SERVER_SERVER_H
#define FLASHMOE_SERVER_SERVER_H

#include "flashmoe.h"
#include "server/access.h"

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
    unsigned n_parallel, n_sessions, n_queue;
    unsigned n_connections; /* 0: 2048, or as many as half of request_memory holds */
    const char *hosts;   /* host names it answers to besides its own (access_rules.hosts) */
    const char *cors;    /* origins that may use it (access_rules.cors) */
    bool shares_prefixes; /* requests with different API keys use each other's cached prefixes */
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
    void (*hung_up)(void *ctx); /* on the thread of server_run, after server_hang_up */
    void *ctx;                  /* of all of them */
};

int server_open(const struct server_options *options, struct server **out, struct fm_error *err);
unsigned server_port(const struct server *server);
/* Whether other machines can reach it. */
bool server_is_exposed(const struct server *server);
/* Takes the keys over: from now on requests need one of them, or none where there are none. Before
 * server_run, or on its thread. */
void server_set_keys(struct server *server, struct access_keys *keys);
/* Serves until it is stopped, and what runs is answered or has failed cleanly. */
int server_run(struct server *server, struct fm_error *err);
/* The first time, takes no more and lets what runs finish; the second time, ends that too. */
void server_stop(struct server *server);
/* Has options.hung_up called. Like server_stop, it may be called from anywhere. */
void server_hang_up(struct server *server);
void server_close(struct server *server); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
