/* One rank's end of the transport: the ring's messages, and the control channel beside it. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

/* ---- waiting --------------------------------------------------------------------------------- */

/* A rank that waits for the next token looks often, an idle one seldom: it must not use a core. */
#define BRISK_NS 50000ull
#define PAUSE_NS 20000ull

void pause_a_little(struct pause *pause)
{
    const uint64_t now_ns = plat_now_ns();
    if (pause->begin_ns == 0)
        pause->begin_ns = now_ns;
    const uint64_t waited_ns = now_ns - pause->begin_ns;
    if (waited_ns < BRISK_NS)
        plat_sleep_ns(0);
    else if (waited_ns < 1000 * BRISK_NS) /* 50 ms */
        plat_sleep_ns(PAUSE_NS);
    else if (waited_ns < 40000 * BRISK_NS) /* 2 s */
        plat_sleep_ns(5 * PAUSE_NS);
    else
        plat_sleep_ns(50 * PAUSE_NS);
}

/* ---- losing a rank --------------------------------------------------------------------------- */

void cluster_lose(struct cluster *c, uint32_t rank, const char *why)
{
    if (c->is_lost)
        return;
    (void)err_set(&c->lost, FM_ERR_IO, "rank %u (%s): %s", rank, cluster_host(c, rank), why);
    c->is_lost = true;
    beat_set_lost(c);
    if (!c->is_process) /* what other threads have not taken is not waited for any more */
        c->t->ops->abandon(c->t);
}

int cluster_explain(const struct cluster *c, struct fm_error *err)
{
    assert(c->is_lost);
    return err_set(err, c->lost.code, "%s", c->lost.text);
}

const char *cluster_lost(const struct cluster *c)
{
    return c->is_lost ? c->lost.text : NULL;
}

/* ---- control --------------------------------------------------------------------------------- */

#define PING_NS 250000000ull
#define HERE UINT64_MAX /* the number of an answer that nobody has asked for */
#define JOIN_TIMEOUTS 16

/* Sends a control message if the one before has left. */
static bool send_control(struct cluster *c, uint32_t to, struct control_slot *slot,
                         enum control_kind kind, uint64_t number, uint32_t segment)
{
    struct fm_error err;
    if (!c->t->ops->is_sent(c->t, &slot->send))
        return false;
    slot->message.kind = kind;
    slot->message.number = number;
    slot->message.segment = segment;
    const uint64_t n = kind == CONTROL_FAIL ? sizeof slot->message
                                            : offsetof(struct control, text);
    if (c->t->ops->send(c->t, to, CHANNEL_CONTROL, &slot->message, n, &slot->send, &err) == 0)
        return true;
    if (c->rank == 0)
        cluster_lose(c, to, err.text);
    return false;
}

/* Receives a control message. Returns whether there was one. */
static bool take_control(struct cluster *c, uint32_t from, struct control *in)
{
    struct fm_error err;
    uint64_t n;
    if (c->t->ops->receive(c->t, from, CHANNEL_CONTROL, in, sizeof *in, &n, &err) != 0) {
        cluster_lose(c, from, err.text);
        return false;
    }
    if (n == 0)
        return false;
    if (n < offsetof(struct control, text)) {
        cluster_lose(c, from, "it has sent a control message that is too short");
        return false;
    }
    in->text[n == sizeof *in ? TEXT_BYTES - 1 : 0] = '\0';
    return true;
}

static void hear_peer(struct cluster *c, uint32_t rank, uint64_t now_ns, uint64_t step_ns)
{
    struct peer *peer = &c->peers[rank];
    char why[TEXT_BYTES];
    while (!c->is_lost && take_control(c, rank, &peer->in)) {
        peer->is_here |= peer->in.kind == CONTROL_PONG && peer->in.number == HERE;
        if (peer->in.kind == CONTROL_PONG && peer->in.number == peer->n_pings) {
            peer->is_asked = false;
            peer->heard_ns = now_ns;
        } else if (peer->in.kind == CONTROL_BEAT && c->step != STEP_OPEN) {
            peer->silent_ns = 0; /* it opens a model and answers later */
        } else if (peer->in.kind == CONTROL_FAIL) {
            cluster_lose(c, rank, peer->in.text);
        }
    }
    if (c->alarm != 0)
        return;
    if (!peer->is_asked) {
        if (now_ns - peer->heard_ns < PING_NS ||
            !send_control(c, rank, &peer->ping, CONTROL_PING, peer->n_pings + 1, 0))
            return;
        peer->n_pings++;
        peer->is_asked = true;
        peer->silent_ns = 0;
        return;
    }
    peer->silent_ns += step_ns;
    /* A thread that opens a model may be busy for long; a process gives signs of life. */
    const bool answers = c->step == STEP_OPEN || c->is_process;
    if (peer->silent_ns > c->timeout_ns * (answers ? 1 : JOIN_TIMEOUTS)) {
        (void)snprintf(why, sizeof why, "it has not answered for %.1f s: the process hangs, or "
                       "the machine or the network is gone", (double)peer->silent_ns / 1e9);
        cluster_lose(c, rank, why);
    }
}

/* mpirun tells all ranks to end when one has died, and kills them about a second later. The others
 * say at once that they are there; so long the first one waits for it. Meanwhile it sends nothing:
 * MPI may end a process that sends to one that is gone. */
#define ROLL_CALL_NS 400000000ull

/* A rank that was silent for so long before that is the one that is gone. */
#define SUSPECT_NS 600000000ull

static void call_the_roll(struct cluster *c, uint64_t now_ns)
{
    uint32_t silent = 0, n_silent = 0;
    uint64_t longest_ns = 0;
    if (c->roll_ns == 0)
        c->roll_ns = now_ns;
    beat_set_roll(c, true);
    for (uint32_t i = c->n_ranks - 1; i > 0; i--) {
        const struct peer *peer = &c->peers[i];
        const uint64_t silent_ns = peer->is_asked ? peer->silent_ns : 0;
        if (peer->is_here)
            continue;
        n_silent++;
        silent = silent_ns >= longest_ns ? i : silent;
        longest_ns = silent_ns >= longest_ns ? silent_ns : longest_ns;
    }
    if (n_silent > 0 && now_ns - c->roll_ns < ROLL_CALL_NS)
        return;
    if (n_silent > 0 &&
        (n_silent + 1 < c->n_ranks || c->n_ranks == 2 || longest_ns > SUSPECT_NS))
        cluster_lose(c, silent, "it has died or is not answering, and the job is told to end "
                     "(SIGTERM)");
    else if (n_silent > 0)
        cluster_lose(c, 0, "the job is told to end (SIGTERM), and no other rank answers");
    else if (c->alarm == CLUSTER_ENDS)
        cluster_lose(c, 0, "the job is told to end (SIGTERM)");
    c->alarm = 0;
    c->roll_ns = 0;
    beat_set_roll(c, false);
}

bool link_hear(struct cluster *c)
{
    const uint64_t now_ns = plat_now_ns(), step_ns = now_ns - c->heard_ns;
    c->heard_ns = now_ns;
    beat_looked(c);
    if (c->alarm != 0)
        call_the_roll(c, now_ns);
    for (uint32_t i = 1; i < c->n_ranks && !c->is_lost; i++)
        hear_peer(c, i, now_ns, step_ns < MAX_STEP_NS ? step_ns : MAX_STEP_NS);
    return !c->is_lost;
}

void cluster_alarm(struct cluster *c, int alarm)
{
    if (c->is_process) /* threads die with this one, and would not answer the roll */
        c->alarm = alarm;
}

static void note_cancel(struct member *m, uint64_t number, uint32_t segment)
{
    const uint32_t at = m->n_cancels++ % RECENT_CANCELS;
    m->cancels[at].number = number;
    m->cancels[at].segment = segment;
}

void link_answer(struct cluster *c)
{
    struct member *m = &c->member;
    const struct control *in = &c->control_in;
    bool was_heard = false;
    beat_looked(c);
    if (c->alarm != 0 && send_control(c, 0, &c->pong, CONTROL_PONG, HERE, 0))
        c->alarm = 0;
    while (!c->is_lost && take_control(c, 0, &c->control_in)) {
        was_heard = true;
        if (in->kind == CONTROL_PING)
            (void)send_control(c, 0, &c->pong, CONTROL_PONG, in->number, 0);
        else if (in->kind == CONTROL_CANCEL)
            note_cancel(m, in->number, in->segment);
        else if (in->kind == CONTROL_FAIL)
            cluster_lose(c, 0, in->text);
    }
    beat_watch(c, was_heard);
}

bool link_tend(struct cluster *c)
{
    if (c->rank == 0)
        return link_hear(c);
    link_answer(c);
    return !c->is_lost;
}

bool link_cancel(struct cluster *c, uint64_t number, uint32_t segment)
{
    for (uint32_t i = 1; i < c->n_ranks; i++)
        if (!c->t->ops->is_sent(c->t, &c->peers[i].cancel.send))
            return false;
    for (uint32_t i = 1; i < c->n_ranks; i++)
        (void)send_control(c, i, &c->peers[i].cancel, CONTROL_CANCEL, number, segment);
    return true;
}

/* ---- the ring -------------------------------------------------------------------------------- */

int link_open(struct cluster *c, struct fm_error *err)
{
    c->max_bytes = wire_max_bytes(&c->limits);
    c->in = mem_new_aligned(MEM_CACHE_LINE, c->max_bytes, "messages of the cluster", err);
    for (unsigned i = 0; i < 2; i++) {
        c->out[i] = mem_new_aligned(MEM_CACHE_LINE, c->max_bytes, "messages of the cluster", err);
        c->out_sends[i] = (struct transport_send){0};
    }
    c->next_out = 0;
    return c->in == NULL || c->out[0] == NULL || c->out[1] == NULL ? FM_ERR_NOMEM : 0;
}

void link_close(struct cluster *c)
{
    struct pause pause = {0};
    /* What is on its way is still read from here. */
    for (unsigned i = 0; i < 2; i++)
        while (!c->is_lost && c->out[i] != NULL && !c->t->ops->is_sent(c->t, &c->out_sends[i]) &&
               link_tend(c))
            pause_a_little(&pause);
    mem_free(c->in);
    mem_free(c->out[0]);
    mem_free(c->out[1]);
    c->in = c->out[0] = c->out[1] = NULL;
}

char *link_buffer(struct cluster *c)
{
    struct pause pause = {0};
    const unsigned at = c->next_out;
    while (!c->t->ops->is_sent(c->t, &c->out_sends[at])) {
        if (!link_tend(c))
            return NULL;
        pause_a_little(&pause);
    }
    return c->out[at];
}

int link_send(struct cluster *c, char *bytes, uint64_t n, struct fm_error *err)
{
    const unsigned at = c->next_out;
    assert(bytes == c->out[at] && n <= c->max_bytes);
    c->next_out = 1 - at;
    c->bytes_sent += n;
    c->n_messages++;
    return c->t->ops->send(c->t, (c->rank + 1) % c->n_ranks, CHANNEL_RING, bytes, n,
                           &c->out_sends[at], err);
}

int link_receive(struct cluster *c, uint64_t *n, struct fm_error *err)
{
    return c->t->ops->receive(c->t, (c->rank + c->n_ranks - 1) % c->n_ranks, CHANNEL_RING, c->in,
                              c->max_bytes, n, err);
}
