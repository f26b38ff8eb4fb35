#include "apps/bench/own_server.h"

#include <pthread.h>

#include "base/mem.h"
#include "base/plat.h"
#include "server/server.h"

struct own_server {
    struct fm_model *model;
    struct server *server;
    pthread_t thread;
    bool has_thread;
    struct fm_error err; /* of the thread */
    int rc;
};

static void *serve_main(void *ctx)
{
    struct own_server *own = ctx;
    own->rc = server_run(own->server, &own->err);
    return NULL;
}

int own_server_open(const struct own_server_options *o, struct own_server **out,
                    struct fm_error *err)
{
    struct own_server *own = mem_new(1, sizeof *own, "the server", err);
    *out = own;
    if (own == NULL) {
        fm_model_close(o->model);
        return FM_ERR_NOMEM;
    }
    own->model = o->model;
    const struct server_options options = {
        .model = o->model, .model_name = "bench", .model_path = o->model_path,
        .host = "127.0.0.1", .n_parallel = o->n_users, .n_sessions = o->n_sessions,
        .n_queue = o->n_users, .request_bytes = 32u << 20,
        .request_memory = OWN_SERVER_REQUEST_BYTES, .idle_s = 60, .stall_ms = o->stall_ms};
    const int rc = server_open(&options, &own->server, err);
    if (rc != 0)
        return rc;
    const int code = plat_thread_start(&own->thread, serve_main, own);
    own->has_thread = code == 0;
    return code == 0 ? 0 : err_set(err, FM_ERR_NOMEM, "cannot start the server's thread: errno %d",
                                   code);
}

unsigned own_server_port(const struct own_server *own)
{
    return server_port(own->server);
}

void own_server_counts(struct own_server *own, struct fm_stats *stats, uint64_t *passed_ns)
{
    struct server_counts counts;
    server_counts(own->server, &counts);
    *stats = counts.model;
    *passed_ns = counts.passed_ns;
}

int own_server_close(struct own_server *own, struct fm_error *err)
{
    if (own == NULL)
        return 0;
    if (own->has_thread) {
        server_stop(own->server);
        server_stop(own->server); /* at once: nobody waits for an answer any more */
        (void)pthread_join(own->thread, NULL);
    }
    server_close(own->server);
    fm_model_close(own->model);
    const int rc = own->rc == 0 ? 0 : err_set(err, own->rc, "%s", own->err.text);
    mem_free(own);
    return rc;
}
