/* fm_cluster: the ranks that share a model, and the ranks that are threads of this process. */
#include <fenv.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/sized.h"
#include "cluster/cluster.h"
#include "engine/options.h"
#include "flashmoe_lab.h"
#include "session/session_internal.h"

#define TIMEOUT_S 8

/* A rank that is a thread. */
struct thread_rank {
    struct fm_cluster *of;
    struct transport *transport;
    pthread_t thread;
    bool is_started;
};

struct fm_cluster {
    struct cluster *c;
    struct cluster_options options;
    struct thread_hub *hub; /* NULL: the ranks are processes */
    struct thread_rank ranks[CLUSTER_RANKS];
    /* What the threads open; set before they are told to. */
    const char *path;
    const struct fm_model_options *model_options;
};

/* ---- opening a model on all ranks ------------------------------------------------------------ */

static struct cluster_shared shared_of(const struct fm_model_options *o)
{
    struct cluster_shared s = {
        .n_sessions = o->n_sessions, .n_context = o->n_context, .n_marks = o->n_marks,
        .n_drafts = o->n_drafts, .prefill_chunk = o->prefill_chunk,
        .experts_per_token = o->experts_per_token, .draft = (uint32_t)o->draft,
        .draft_source = (uint32_t)o->draft_source, .check = (uint32_t)o->check,
        .policy = (uint32_t)o->policy, .lookahead = (uint32_t)o->lookahead,
        .cache_bias = o->cache_bias};
    (void)snprintf(s.kv, sizeof s.kv, "%s", o->kv != NULL ? o->kv : "");
    (void)snprintf(s.routes, sizeof s.routes, "%s", o->routes != NULL ? o->routes : "");
    return s;
}

/* What the first rank decides replaces this rank's own options. */
static void take_shared(struct fm_model_options *o, const struct cluster_shared *s)
{
    o->n_sessions = s->n_sessions;
    o->n_context = s->n_context;
    o->n_marks = s->n_marks;
    o->n_drafts = s->n_drafts;
    o->prefill_chunk = s->prefill_chunk;
    o->experts_per_token = s->experts_per_token;
    o->draft = (enum fm_choice)s->draft;
    o->draft_source = (enum fm_draft_source)s->draft_source;
    o->check = (enum fm_choice)s->check;
    o->policy = (enum fm_policy)s->policy;
    o->lookahead = (enum fm_choice)s->lookahead;
    o->cache_bias = s->cache_bias;
    o->kv = s->kv[0] != '\0' ? s->kv : NULL;
    o->routes = s->routes[0] != '\0' ? s->routes : NULL;
    o->caller_bytes = 0;
}

/* Every rank checks this: the options of GPUs may differ. */
static int check_gpu(const struct fm_model_options *o, struct fm_error *err)
{
    if (o->gpu != NULL && strcmp(o->gpu, "off") != 0 && strcmp(o->gpu, "auto") != 0)
        return err_set(err, FM_ERR_UNSUPPORTED, "GPU %s cannot be used with several ranks yet: "
                       "leave out --gpu, or use --gpu off", o->gpu);
    if (o->gpu_memory_bytes > 0)
        return err_set(err, FM_ERR_UNSUPPORTED, "GPUs cannot be used with several ranks yet: leave "
                       "out --gpu-memory");
    return 0;
}

static int check_options(const struct fm_cluster *cluster, const struct fm_model_options *o,
                         struct fm_error *err)
{
    const uint32_t n = cluster_n_ranks(cluster->c);
    if (o->n_stages > 1)
        return err_set(err, FM_ERR_ARG, "a model cannot be cut into stages and divided among "
                       "ranks");
    if (o->n_layers_of_ranks != 0 && o->n_layers_of_ranks != n)
        return err_set(err, FM_ERR_ARG, "the layers of %u ranks are given (--layers), and there "
                       "are %u ranks", o->n_layers_of_ranks, n);
    if (o->routes != NULL && strlen(o->routes) >= sizeof ((struct cluster_shared *)0)->routes)
        return err_set(err, FM_ERR_ARG, "the path or description of the routes is too long for a "
                       "cluster");
    return 0;
}

int session_cluster_adapt(struct fm_model_options *o, struct fm_error *err)
{
    if (o->cluster == NULL)
        return 0;
    const int rc = check_gpu(o, err);
    if (rc != 0)
        return rc;
    o->gpu = "off"; /* it may be "auto" */
    if (o->cluster->hub == NULL || cluster_rank(o->cluster->c) > 0)
        return 0; /* a process has its own; a thread has a share of the first one's */
    /* Threads share the memory of a process, and none of them can tell how much is its own. */
    const uint64_t all = o->memory_bytes > 0 ? o->memory_bytes : plat_memory_available() / 10 * 8;
    o->memory_bytes = all / cluster_n_ranks(o->cluster->c);
    o->elastic = FM_OFF;
    return 0;
}

int session_cluster_begin(struct fm_model *m, const char *path,
                          const struct fm_model_options *options, struct fm_error *err)
{
    struct fm_cluster *cluster = options->cluster;
    if (cluster == NULL || options->metadata_only)
        return 0;
    if (cluster_rank(cluster->c) == 0) {
        const struct cluster_shared shared = shared_of(options);
        int rc = check_options(cluster, options, err);
        cluster->path = path;
        cluster->model_options = options;
        if (rc == 0)
            rc = cluster_begin(cluster->c, &shared, err);
        if (rc != 0)
            return rc;
    }
    m->cluster = cluster->c;
    m->n_ranks = cluster_n_ranks(cluster->c);
    return 0;
}

int session_cluster_meet(struct fm_model *m, const struct fm_model_options *options,
                         struct fm_error *err)
{
    const uint64_t memory = options->memory_bytes > 0
                                ? options->memory_bytes
                                : plat_resident_bytes() + plat_memory_available() / 10 * 9;
    return cluster_meet(m->cluster, &m->engine, memory,
                        options->n_layers_of_ranks > 0 ? options->layers_of_ranks : NULL, err);
}

int session_cluster_ready(struct fm_model *m, int rc, struct fm_error *err)
{
    return m->cluster != NULL ? cluster_ready(m->cluster, rc, err) : rc;
}

void session_cluster_end(struct fm_model *m)
{
    if (m->cluster != NULL)
        cluster_end(m->cluster);
}

bool session_cluster_where(const struct fm_model *m, const struct batch_fault *fault, char *where,
                           size_t bytes)
{
    (void)snprintf(where, bytes, "%s", fault->where);
    if (where[0] == '\0' && m->cluster != NULL && fault->layer >= 0)
        (void)snprintf(where, bytes, "rank 0 (%s)", cluster_host(m->cluster, 0));
    return where[0] != '\0';
}

void session_cluster_refresh(const struct fm_model *m)
{
    if (m->cluster != NULL)
        cluster_refresh(m->cluster);
}

void session_cluster_look(const struct fm_model *m)
{
    if (m->cluster != NULL)
        cluster_look(m->cluster);
}

bool session_cluster_is_resident(const struct fm_model *m)
{
    return m->cluster != NULL && cluster_is_resident(m->cluster);
}

/* ---- ranks that work for the first one ------------------------------------------------------- */

/* Opens one model and computes until the first rank closes it. That it cannot be opened is the
 * first rank's to tell. */
static int work_once(struct fm_cluster *cluster, const char *path,
                     const struct fm_model_options *given, const struct cluster_shared *shared,
                     struct fm_error *err)
{
    struct fm_model_options options = *given;
    struct fm_model *m = NULL;
    struct fm_error why = {0};
    fenv_t host;
    take_shared(&options, shared);
    options.cluster = cluster;
    options.n_layers_of_ranks = 0;
    options.progress = NULL; /* one line of progress is enough: the first rank's */
    int rc = fm_model_open(path, &options, &m, &why);
    if (rc != 0) {
        rc = cluster_ready(cluster->c, rc, &why); /* if it does not know yet */
        return cluster_lost(cluster->c) != NULL ? err_set(err, rc, "%s", why.text) : 0;
    }
    (void)feholdexcept(&host); /* as in fm_eval_batch */
    (void)fesetenv(FE_DFL_ENV);
    rc = cluster_serve(cluster->c, err);
    (void)fesetenv(&host);
    fm_model_close(m);
    return rc;
}

int fm_cluster_work(struct fm_cluster *cluster, const char *path,
                    const struct fm_model_options *options, struct fm_error *err)
{
    struct own_options own;
    bool has_one = true;
    int rc = own_options_take(&own, options, err);
    while (rc == 0) {
        struct cluster_shared shared;
        rc = cluster_await(cluster->c, &shared, &has_one, err);
        if (rc != 0 || !has_one)
            break;
        rc = work_once(cluster, path, &own.o, &shared, err);
    }
    return rc;
}

static void *run_thread(void *arg)
{
    struct thread_rank *rank = arg;
    struct fm_cluster *first = rank->of;
    const uint32_t number = rank->transport->rank;
    struct fm_cluster own = {.hub = first->hub, .options = first->options};
    struct fm_error err = {0};
    bool has_one = true;
    int rc = cluster_join(rank->transport, &own.options, &own.c, &err);
    while (rc == 0) {
        struct cluster_shared shared;
        rc = cluster_await(own.c, &shared, &has_one, &err);
        if (rc != 0 || !has_one)
            break;
        rc = work_once(&own, first->path, first->model_options, &shared, &err);
    }
    if (rc != 0)
        log_warn("cluster", "rank %u ends: %s", number, err.text);
    cluster_leave(own.c);
    return NULL;
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Waits for the threads: the first rank has left or never came. */
static void join_threads(struct fm_cluster *cluster)
{
    for (unsigned i = 1; i < CLUSTER_RANKS; i++)
        if (cluster->ranks[i].is_started)
            (void)pthread_join(cluster->ranks[i].thread, NULL);
}

static int start_threads(struct fm_cluster *cluster, unsigned n, struct transport **first,
                         struct fm_error *err)
{
    int rc = 0;
    cluster->hub = thread_hub_new(n, err);
    if (cluster->hub == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct thread_rank *rank = &cluster->ranks[i];
        rank->of = cluster;
        rc = transport_open_thread(cluster->hub, i, &rank->transport, err);
        if (rc != 0 || i == 0)
            continue;
        const int why = plat_thread_start(&rank->thread, run_thread, rank);
        rank->is_started = why == 0;
        if (why == 0)
            continue;
        rank->transport->ops->close(rank->transport);
        rc = err_set(err, FM_ERR_NOMEM, "cannot start a thread: %s", strerror(why));
    }
    *first = cluster->ranks[0].transport;
    return rc;
}

static int join(struct fm_cluster *cluster, const struct fm_cluster_options *o,
                struct fm_error *err)
{
    struct transport *transport = NULL;
    int rc;
    if (o->n_threads > CLUSTER_RANKS || o->n_threads == 1)
        return err_set(err, FM_ERR_ARG, "a cluster of %u threads is asked for: 2 to %d are "
                       "possible", o->n_threads, CLUSTER_RANKS);
    cluster->options = (struct cluster_options){
        .words = o->words,
        .timeout_ns = (o->timeout_s > 0 ? o->timeout_s : TIMEOUT_S) * 1000000000ull,
        .is_process = o->n_threads == 0};
    rc = o->n_threads > 0 ? start_threads(cluster, o->n_threads, &transport, err)
                          : transport_open_mpi(&transport, err);
    if (rc == 0)
        return cluster_join(transport, &cluster->options, &cluster->c, err);
    if (transport != NULL) { /* threads that have begun wait for it */
        transport->ops->abandon(transport);
        transport->ops->close(transport);
    }
    return rc;
}

int fm_cluster_join(const struct fm_cluster_options *options, struct fm_cluster **out,
                    struct fm_error *err)
{
    struct fm_cluster_options own;
    *out = NULL;
    int rc = sized_take(&own, sizeof own, options, "fm_cluster_options", err);
    if (rc != 0)
        return rc;
    struct fm_cluster *cluster = mem_new(1, sizeof *cluster, "the cluster", err);
    if (cluster == NULL)
        return FM_ERR_NOMEM;
    rc = join(cluster, &own, err);
    cluster->options.words = NULL; /* borrowed until here */
    if (rc != 0)
        fm_cluster_close(cluster);
    else
        *out = cluster;
    return rc;
}

void fm_cluster_close(struct fm_cluster *cluster)
{
    if (cluster == NULL)
        return;
    cluster_leave(cluster->c);
    join_threads(cluster);
    thread_hub_free(cluster->hub);
    mem_free(cluster);
}

void fm_cluster_alarm(struct fm_cluster *cluster, bool ends)
{
    cluster_alarm(cluster->c, ends ? CLUSTER_ENDS : CLUSTER_LOOKS);
}

unsigned fm_cluster_rank(const struct fm_cluster *cluster)
{
    return cluster_rank(cluster->c);
}

unsigned fm_cluster_n_ranks(const struct fm_cluster *cluster)
{
    return cluster_n_ranks(cluster->c);
}

/* ---- measuring ------------------------------------------------------------------------------- */

_Static_assert(FM_PROBE_BYTES == CLUSTER_PROBE_BYTES, "one length of a text");

static int probe_others(struct fm_cluster *cluster, fm_probe_fn *measure, void *ctx,
                        uint64_t message_bytes, struct fm_probe *probes, struct fm_error *err)
{
    const uint32_t n = cluster_n_ranks(cluster->c);
    struct cluster_probe *found = mem_new(n, sizeof *found, "the measurement", err);
    if (found == NULL)
        return FM_ERR_NOMEM;
    int rc = cluster_probe(cluster->c, measure, ctx, message_bytes, found, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        struct fm_probe one = {.host = cluster_host(cluster->c, i),
                               .latency_s = found[i].latency_s, .message_s = found[i].message_s,
                               .bytes_per_s = found[i].bytes_per_s};
        memcpy(one.text, found[i].text, sizeof one.text);
        (void)sized_give((char *)probes + i * probes->size, &one, sizeof one);
    }
    mem_free(found);
    return rc;
}

int fm_cluster_probe(struct fm_cluster *cluster, fm_probe_fn *measure, void *ctx,
                     uint64_t message_bytes, struct fm_probe *probes, struct fm_error *err)
{
    struct cluster_shared unused;
    bool has_one;
    if (cluster->hub != NULL)
        return err_set(err, FM_ERR_ARG, "ranks that are threads are not measured");
    if (cluster_rank(cluster->c) == 0) {
        const int rc = sized_check(probes, "fm_probe", err);
        return rc != 0 ? rc : probe_others(cluster, measure, ctx, message_bytes, probes, err);
    }
    const int rc = cluster_probe(cluster->c, measure, ctx, 0, NULL, err);
    /* The first rank lets it go. */
    return rc != 0 ? rc : cluster_await(cluster->c, &unused, &has_one, err);
}

/* ---- knowing --------------------------------------------------------------------------------- */

bool fm_model_rank(const struct fm_model *m, unsigned rank, struct fm_rank_stats *out)
{
    struct cluster_rank_stats s;
    if (m->cluster == NULL || rank >= cluster_n_ranks(m->cluster))
        return false;
    cluster_stats(m->cluster, rank, &s);
    struct fm_rank_stats stats = {
        .host = cluster_host(m->cluster, rank),
        .first_layer = s.first_layer, .n_layers = s.end_layer - s.first_layer,
        .n_threads = s.n_threads, .memory_budget_bytes = s.budget, .memory_cache_bytes = s.cache,
        .memory_resident_peak_bytes = s.resident_peak, .n_cache_slots = s.experts.n_slots,
        .n_expert_hits = s.experts.n_hits, .n_expert_misses = s.experts.n_misses,
        .bytes_read = s.experts.bytes_read, .read_wait_ns = s.experts.wait_ns,
        .busy_ns = s.busy_ns, .bytes_sent = s.bytes_sent, .n_messages = s.n_messages};
    (void)snprintf(stats.cpu_level, sizeof stats.cpu_level, "%s", s.cpu_level);
    if (rank == 0)
        cluster_times(m->cluster, &stats.away_ns, &stats.network_ns, &stats.n_lone_passes);
    return sized_give(out, &stats, sizeof stats) == 0;
}

const char *fm_model_lost(const struct fm_model *m)
{
    return m->cluster != NULL ? cluster_lost(m->cluster) : NULL;
}
