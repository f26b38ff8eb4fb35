/* What the machines of a cluster can do: each rank measures its own, and neighbours of the ring
 * measure the way between them. The first rank gives the orders and collects the reports; no model
 * is open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

#define ROUNDS 100
#define ROUNDS_WARM 10
#define SMALL_BYTES 64
#define LARGE_BYTES (1u << 20)
#define LARGE_ROUNDS 10

enum order_kind {
    ORDER_MEASURE = 1,
    ORDER_PING, /* send messages to `peer`, which sends them back */
    ORDER_ECHO, /* be that peer */
    ORDER_STOP,
};

struct order {
    uint32_t kind, peer;
    uint64_t bytes; /* of the messages */
    uint32_t n_rounds, unused;
};

struct report {
    int32_t rc;
    uint32_t unused;
    double seconds; /* of ORDER_PING: one way */
    char text[CLUSTER_PROBE_BYTES];
};

struct prober {
    struct cluster *c;
    cluster_measure_fn *measure;
    void *ctx;
    char *buffer; /* [LARGE_BYTES] */
    struct report report;
};

/* ---- messages -------------------------------------------------------------------------------- */

static int give(struct cluster *c, uint32_t to, enum channel channel, const void *bytes, uint64_t n,
                struct fm_error *err)
{
    struct transport_send send;
    struct pause pause = {0};
    int rc = c->t->ops->send(c->t, to, channel, bytes, n, &send, err);
    while (rc == 0 && !c->t->ops->is_sent(c->t, &send))
        pause_a_little(&pause);
    return rc;
}

/* Waits for a message of n bytes. `tends`: answers, or asks, the other ranks meanwhile. */
static int take(struct cluster *c, uint32_t from, enum channel channel, void *bytes, uint64_t n,
                bool tends, struct fm_error *err)
{
    struct pause pause = {0};
    uint64_t got = 0;
    while (got == 0) {
        const int rc = c->t->ops->receive(c->t, from, channel, bytes, n, &got, err);
        if (rc != 0)
            return rc;
        if (tends && !link_tend(c))
            return cluster_explain(c, err);
        if (got == 0)
            pause_a_little(&pause);
    }
    return got == n ? 0 : err_set(err, FM_ERR_FORMAT, "rank %u has sent %llu bytes instead of %llu",
                                  from, (unsigned long long)got, (unsigned long long)n);
}

/* ---- one hop --------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int ping(const struct prober *p, const struct order *o, double *seconds,
                struct fm_error *err)
{
    uint64_t times[ROUNDS];
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < o->n_rounds + ROUNDS_WARM; i++) {
        const uint64_t begin_ns = plat_now_ns();
        rc = give(p->c, o->peer, CHANNEL_NOTE, p->buffer, o->bytes, err);
        if (rc == 0)
            rc = take(p->c, o->peer, CHANNEL_NOTE, p->buffer, o->bytes, false, err);
        if (i >= ROUNDS_WARM)
            times[i - ROUNDS_WARM] = plat_now_ns() - begin_ns;
    }
    if (rc != 0)
        return rc;
    qsort(times, o->n_rounds, sizeof times[0], compare);
    *seconds = (double)times[o->n_rounds / 2] / 2e9;
    return 0;
}

static int echo(const struct prober *p, const struct order *o, struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < o->n_rounds + ROUNDS_WARM; i++) {
        rc = take(p->c, o->peer, CHANNEL_NOTE, p->buffer, o->bytes, false, err);
        if (rc == 0)
            rc = give(p->c, o->peer, CHANNEL_NOTE, p->buffer, o->bytes, err);
    }
    return rc;
}

/* ---- the other ranks ------------------------------------------------------------------------- */

static bool is_order(const struct cluster *c, const struct order *o)
{
    return o->kind >= ORDER_MEASURE && o->kind <= ORDER_STOP && o->peer < c->n_ranks &&
           o->bytes <= LARGE_BYTES && o->n_rounds <= ROUNDS &&
           (o->kind == ORDER_MEASURE || o->kind == ORDER_STOP ||
            (o->bytes > 0 && o->n_rounds > 0));
}

/* Measures this machine. A rank that hangs meanwhile says so. */
static int measure_own(struct prober *p, char *text, size_t bytes, struct fm_error *err)
{
    beat_set_phase(p->c, BEAT_OPENING);
    const int rc = p->measure(p->ctx, text, bytes, err);
    beat_set_phase(p->c, BEAT_IDLE);
    return rc;
}

static int obey(struct prober *p, const struct order *o, struct fm_error *err)
{
    struct report *r = &p->report;
    struct fm_error why = {0};
    if (o->kind == ORDER_ECHO)
        return echo(p, o, err);
    memset(r, 0, sizeof *r);
    if (o->kind == ORDER_MEASURE) {
        r->rc = measure_own(p, r->text, sizeof r->text, &why);
        if (r->rc != 0)
            (void)snprintf(r->text, sizeof r->text, "%s", why.text);
    } else {
        const int rc = ping(p, o, &r->seconds, err);
        if (rc != 0)
            return rc;
    }
    return give(p->c, 0, CHANNEL_RING, r, sizeof *r, err);
}

static int assist(struct prober *p, struct fm_error *err)
{
    struct order o = {0};
    int rc = 0;
    while (rc == 0) {
        rc = take(p->c, 0, CHANNEL_RING, &o, sizeof o, true, err);
        if (rc == 0 && !is_order(p->c, &o))
            rc = err_set(err, FM_ERR_FORMAT, "rank 0 has sent an order that is damaged");
        if (rc != 0 || o.kind == ORDER_STOP)
            break;
        rc = obey(p, &o, err);
    }
    return rc;
}

/* ---- the first rank -------------------------------------------------------------------------- */

static int take_report(struct prober *p, uint32_t rank, struct fm_error *err)
{
    struct report *r = &p->report;
    const int rc = take(p->c, rank, CHANNEL_RING, r, sizeof *r, true, err);
    r->text[sizeof r->text - 1] = '\0';
    return rc;
}

/* Ranks of one host measure one after the other: returns how many come before. */
static uint32_t turn_of(const struct cluster *c, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < rank; i++)
        n += strcmp(c->peers[i].host, c->peers[rank].host) == 0;
    return n;
}

static int measure_turn(struct prober *p, uint32_t turn, struct cluster_probe *probes,
                        struct fm_error *err)
{
    struct cluster *c = p->c;
    const struct order o = {.kind = ORDER_MEASURE};
    int rc = 0, failed = 0;
    for (uint32_t i = 1; rc == 0 && i < c->n_ranks; i++)
        if (turn_of(c, i) == turn)
            rc = give(c, i, CHANNEL_RING, &o, sizeof o, err);
    if (rc == 0 && turn == 0)
        failed = measure_own(p, probes[0].text, sizeof probes[0].text, err);
    for (uint32_t i = 1; rc == 0 && i < c->n_ranks; i++) {
        if (turn_of(c, i) != turn)
            continue;
        struct fm_error why = {0};
        rc = take_report(p, i, &why);
        if (rc != 0) {
            (void)err_set(err, rc, "%s", why.text);
        } else if (p->report.rc != 0 && failed == 0) {
            failed = err_set(err, p->report.rc, "rank %u (%s): %s", i, cluster_host(c, i),
                             p->report.text);
        } else if (p->report.rc == 0) {
            memcpy(probes[i].text, p->report.text, sizeof probes[i].text);
        }
    }
    return rc != 0 ? rc : failed;
}

static int measure_all(struct prober *p, struct cluster_probe *probes, struct fm_error *err)
{
    uint32_t n_turns = 0;
    int rc = 0;
    for (uint32_t i = 0; i < p->c->n_ranks; i++)
        n_turns = turn_of(p->c, i) >= n_turns ? turn_of(p->c, i) + 1 : n_turns;
    for (uint32_t turn = 0; rc == 0 && turn < n_turns; turn++)
        rc = measure_turn(p, turn, probes, err);
    return rc;
}

/* Has rank `from` send messages to its neighbour; *seconds is one way. */
static int measure_way(struct prober *p, uint32_t from, uint64_t bytes, uint32_t n_rounds,
                       double *seconds, struct fm_error *err)
{
    struct cluster *c = p->c;
    const uint32_t to = (from + 1) % c->n_ranks;
    const struct order o = {.kind = ORDER_PING, .peer = to, .bytes = bytes, .n_rounds = n_rounds};
    const struct order answer = {.kind = ORDER_ECHO, .peer = from, .bytes = bytes,
                                 .n_rounds = n_rounds};
    int rc = to != 0 ? give(c, to, CHANNEL_RING, &answer, sizeof answer, err) : 0;
    if (rc == 0 && from == 0)
        return ping(p, &o, seconds, err);
    if (rc == 0)
        rc = give(c, from, CHANNEL_RING, &o, sizeof o, err);
    if (rc == 0 && to == 0)
        rc = echo(p, &answer, err);
    if (rc == 0)
        rc = take_report(p, from, err);
    *seconds = p->report.seconds;
    return rc;
}

static int measure_hops(struct prober *p, uint64_t message_bytes, struct cluster_probe *probes,
                        struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < p->c->n_ranks; i++) {
        struct cluster_probe *one = &probes[i];
        double large_s = 0;
        rc = measure_way(p, i, SMALL_BYTES, ROUNDS, &one->latency_s, err);
        if (rc == 0)
            rc = measure_way(p, i, message_bytes, ROUNDS, &one->message_s, err);
        if (rc == 0)
            rc = measure_way(p, i, LARGE_BYTES, LARGE_ROUNDS, &large_s, err);
        /* On a busy machine a short message may take as long: then this is a lower bound. */
        const double own_s = large_s > one->latency_s ? large_s - one->latency_s : large_s;
        one->bytes_per_s = rc == 0 && own_s > 0 ? LARGE_BYTES / own_s : 0;
    }
    return rc;
}

int cluster_probe(struct cluster *c, cluster_measure_fn *measure, void *ctx,
                  uint64_t message_bytes, struct cluster_probe *probes, struct fm_error *err)
{
    struct prober *p = mem_new(1, sizeof *p, "the measurement", err);
    char *buffer = mem_new(LARGE_BYTES, 1, "the measurement", err);
    int rc = p == NULL || buffer == NULL ? FM_ERR_NOMEM : 0;
    if (rc == 0)
        *p = (struct prober){.c = c, .measure = measure, .ctx = ctx, .buffer = buffer};
    if (rc == 0 && c->rank > 0) {
        rc = assist(p, err);
    } else if (rc == 0) {
        const struct order stop = {.kind = ORDER_STOP};
        message_bytes = message_bytes < LARGE_BYTES ? message_bytes : LARGE_BYTES;
        rc = measure_all(p, probes, err);
        if (rc == 0)
            rc = measure_hops(p, message_bytes, probes, err);
        for (uint32_t i = 1; i < c->n_ranks && !c->is_lost; i++)
            (void)give(c, i, CHANNEL_RING, &stop, sizeof stop, NULL);
    }
    mem_free(buffer);
    mem_free(p);
    return rc;
}
