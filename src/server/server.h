/* The HTTP server over one model, as run by `flashmoe serve`.
 *
 * server_run handles all HTTP on the calling thread; a second thread, owned by the server, drives
 * the model (jobs.h). server_stop and server_hang_up may be called from any thread and from signal
 * handlers. The options' pointers are borrowed and must outlive the server. Nobody else may use the
 * model from server_open to server_close. */
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
    struct fm_snapshots *snapshots; /* NULL: none */
    const char *model_name, *model_path;
    const char *host;   /* address to listen on */
    unsigned port;      /* 0: any free one */
    unsigned n_parallel, n_sessions, n_queue;
    unsigned n_connections; /* 0: 2048, or what half of request_memory holds */
    const char *hosts;   /* additional host names (access_rules.hosts) */
    const char *cors;    /* allowed origins (access_rules.cors) */
    bool shares_prefixes; /* API keys share cached prefixes */
    uint64_t request_bytes; /* maximum body size */
    uint64_t request_memory; /* for connections, requests and their answers together */
    uint64_t n_answer;      /* maximum tokens per answer; 0: limited by the context only */
    /* Seconds: per request (0: no limit), per idle connection, and to finish after a stop. */
    unsigned request_s, idle_s, grace_s;
    unsigned stall_ms; /* for how long a prompt may hold up running answers at a time */
    /* Returns the share of the hardware limit that decoding between two statistics reached, 0 to 1,
     * or negative if unknown; NULL: not available. */
    double (*limit_share)(void *ctx, const struct fm_stats *before, const struct fm_stats *after,
                          double position);
    void (*log)(void *ctx, const char *line); /* one line per request; NULL: none */
    void (*hung_up)(void *ctx); /* called on the thread of server_run after server_hang_up */
    void *ctx;                  /* for all callbacks */
};

int server_open(const struct server_options *options, struct server **out, struct fm_error *err);
unsigned server_port(const struct server *server);
/* Returns whether other machines can reach it. */
bool server_is_exposed(const struct server *server);
/* Replaces the API keys and takes them over. With an empty list no key is required. Call it before
 * server_run, or on its thread. */
void server_set_keys(struct server *server, struct access_keys *keys);
/* Serves until stopped; running answers have then finished or failed cleanly. */
int server_run(struct server *server, struct fm_error *err);
/* Stops accepting requests and lets running ones finish; a second call ends those too. */
void server_stop(struct server *server);
/* What was computed until a pass ended; at most 0.1 s old while the server computes. */
struct server_counts {
    struct fm_stats model;
    uint64_t passed_ns; /* when that pass ended, on the clock of plat_now_ns */
};
void server_counts(struct server *server, struct server_counts *counts); /* any thread */
/* Schedules a call of options.hung_up. */
void server_hang_up(struct server *server);
void server_close(struct server *server); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
