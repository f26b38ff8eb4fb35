/* A server of this process on a free port of the loopback interface, for `bench serve`. It runs on
 * a thread of its own, and the model belongs to it. Everything but that is the caller's thread. */
#ifndef FLASHMOE_APPS_BENCH_OWN_SERVER_H
#define FLASHMOE_APPS_BENCH_OWN_SERVER_H

#include "flashmoe.h"

struct own_server;

struct own_server_options {
    struct fm_model *model; /* with a session for each of n_sessions; closed with the server */
    const char *model_path;
    unsigned n_users, n_sessions, stall_ms;
};

/* Memory that requests may take: part of the model's budget (fm_model_options.caller_bytes). */
#define OWN_SERVER_REQUEST_BYTES (64ull << 20)

/* Takes the model over, also on failure. */
int own_server_open(const struct own_server_options *options, struct own_server **out,
                    struct fm_error *err);
unsigned own_server_port(const struct own_server *own);
/* Gives what was computed until a pass ended, and when that was. */
void own_server_counts(struct own_server *own, struct fm_stats *stats, uint64_t *passed_ns);
/* Ends running answers. Returns why the server itself has failed, or 0. Accepts NULL. */
int own_server_close(struct own_server *own, struct fm_error *err);

#endif
