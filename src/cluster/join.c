/* How ranks find together: they compare what they are, agree on the sizes that all have room for,
 * and open their layers. Every step is one message from each rank to the first one, and its answer;
 * a rank that fails says so in its next message, and the first rank's answer fails for all. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

#define JOIN_MAGIC 0x314a4d46u /* "FMJ1" */

enum join_kind { JOIN_HELLO = 1, JOIN_BEGIN, JOIN_END, JOIN_STEP };

/* The first fields never change their places, so that other versions are recognised. */
struct join_message {
    uint32_t magic, kind;
    char version[32], host[HOST_BYTES];
    int32_t rc;
    uint32_t step;
    char text[TEXT_BYTES]; /* of an error; or the words of JOIN_HELLO, which may be cut */
    uint64_t words;        /* hash of all of them */
    uint64_t identity, memory_bytes;
    uint32_t n_layers, first_layer, end_layer, n_context, max_rows, unused;
    struct cluster_shared shared;
    struct cluster_rank_stats stats;
};

static struct join_message message_of(enum join_kind kind, int rc, const struct fm_error *err)
{
    struct join_message m = {.magic = JOIN_MAGIC, .kind = kind, .rc = rc};
    (void)snprintf(m.version, sizeof m.version, "%s", FLASHMOE_VERSION);
    plat_host_name(m.host, sizeof m.host);
    if (rc != 0)
        (void)snprintf(m.text, sizeof m.text, "%s", err != NULL ? err->text : "it failed");
    return m;
}

/* Sends and waits until the message has left: a rank that hangs does not take it. */
static int send_now(struct cluster *c, uint32_t to, const struct join_message *m,
                    struct fm_error *err)
{
    struct transport_send send;
    struct pause pause = {0};
    if (c->is_lost)
        return cluster_explain(c, err);
    int rc = c->t->ops->send(c->t, to, CHANNEL_JOIN, m, sizeof *m, &send, err);
    while (rc == 0 && !c->t->ops->is_sent(c->t, &send)) {
        if (!link_tend(c))
            return cluster_explain(c, err);
        pause_a_little(&pause);
    }
    return rc;
}

static bool is_terminated(const char *text, size_t bytes)
{
    return memchr(text, '\0', bytes) != NULL;
}

static int check_message(const struct join_message *m, uint64_t n, uint32_t from,
                         struct fm_error *err)
{
    const size_t known = offsetof(struct join_message, rc);
    if (n < known || m->magic != JOIN_MAGIC || !is_terminated(m->version, sizeof m->version) ||
        !is_terminated(m->host, sizeof m->host))
        return err_set(err, FM_ERR_FORMAT, "rank %u has sent something that is no message of "
                       "flashmoe", from);
    if (strcmp(m->version, FLASHMOE_VERSION) != 0)
        return err_set(err, FM_ERR_ARG, "rank %u (%s) runs flashmoe %s, and this rank runs %s",
                       from, m->host, m->version, FLASHMOE_VERSION);
    if (n != sizeof *m || !is_terminated(m->text, sizeof m->text) ||
        !is_terminated(m->shared.kv, sizeof m->shared.kv) ||
        !is_terminated(m->shared.routes, sizeof m->shared.routes) ||
        !is_terminated(m->stats.cpu_level, sizeof m->stats.cpu_level))
        return err_set(err, FM_ERR_FORMAT, "rank %u (%s) has sent a message that is damaged: %llu "
                       "bytes", from, m->host, (unsigned long long)n);
    return 0;
}

/* Waits for a message. Another rank waits for the first one as long as it takes. */
static int receive(struct cluster *c, uint32_t from, struct join_message *m, struct fm_error *err)
{
    struct pause pause = {0};
    uint64_t n = 0;
    while (n == 0) {
        const int rc =
            c->t->ops->receive(c->t, from, CHANNEL_JOIN, m, sizeof *m, &n, err);
        if (rc != 0)
            return err_wrap(err, rc, "rank %u (%s)", from, cluster_host(c, from));
        if (!link_tend(c))
            return cluster_explain(c, err);
        if (n == 0)
            pause_a_little(&pause);
    }
    const int rc = check_message(m, n, from, err);
    if (rc == 0)
        (void)snprintf(c->peers[from].host, HOST_BYTES, "%s", m->host);
    return rc;
}

static int receive_from_first(struct cluster *c, struct join_message *m, struct fm_error *err)
{
    int rc = receive(c, 0, m, err);
    if (rc == 0 && m->rc != 0)
        rc = err_set(err, m->rc, "%s", m->text);
    return rc;
}

/* ---- the beginning --------------------------------------------------------------------------- */

/* Finds the first word in which two texts differ. */
static void find_difference(const char *a, const char *b, char *mine, char *other, size_t bytes)
{
    while (*a != '\0' || *b != '\0') {
        const size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        (void)snprintf(mine, bytes, "%.*s", (int)n, a);
        (void)snprintf(other, bytes, "%.*s", (int)m, b);
        if (n != m || memcmp(a, b, n) != 0)
            return;
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
}

static int compare_words(struct cluster *c, uint32_t rank, const char *words, uint64_t hash,
                         const struct join_message *m, struct fm_error *err)
{
    char mine[200] = "", other[200] = "";
    if (m->words == hash)
        return 0;
    find_difference(words, m->text, mine, other, sizeof mine);
    return err_set(err, FM_ERR_ARG, "rank %u (%s) was started with '%s', and rank 0 (%s) with "
                   "'%s': give all ranks the same options", rank, m->host,
                   other[0] != '\0' ? other : "fewer options", c->peers[0].host,
                   mine[0] != '\0' ? mine : "fewer options");
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a */
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    return hash;
}

/* The first rank hears all others before it answers any of them. */
static int greet_all(struct cluster *c, const char *words, struct fm_error *err)
{
    struct join_message m;
    int rc = 0;
    for (uint32_t i = 1; i < c->n_ranks; i++) {
        struct fm_error why;
        int own = receive(c, i, &m, &why);
        if (own == 0)
            own = compare_words(c, i, words, hash_of(words), &m, &why);
        if (own != 0 && rc == 0) {
            rc = own;
            (void)err_set(err, rc, "%s", why.text);
        }
    }
    m = message_of(JOIN_HELLO, rc, err);
    for (uint32_t i = 1; i < c->n_ranks && !c->is_lost; i++)
        if (send_now(c, i, &m, NULL) != 0)
            break;
    return rc;
}

static int greet_first(struct cluster *c, const char *words, struct fm_error *err)
{
    struct join_message m = message_of(JOIN_HELLO, 0, NULL);
    (void)snprintf(m.text, sizeof m.text, "%s", words);
    m.words = hash_of(words);
    const int rc = send_now(c, 0, &m, err);
    return rc != 0 ? rc : receive_from_first(c, &m, err);
}

int cluster_join(struct transport *transport, const struct cluster_options *options,
                 struct cluster **out, struct fm_error *err)
{
    const char *words = options->words != NULL ? options->words : "";
    struct cluster *c = mem_new(1, sizeof *c, "the cluster", err);
    *out = NULL;
    if (c == NULL) {
        transport->ops->close(transport);
        return FM_ERR_NOMEM;
    }
    c->t = transport;
    c->rank = transport->rank;
    c->n_ranks = transport->n_ranks;
    c->is_process = options->is_process;
    c->timeout_ns = options->timeout_ns;
    plat_host_name(c->peers[c->rank].host, HOST_BYTES);
    plat_sleep_sharply();
    int rc = c->is_process ? beat_begin(c, err) : 0;
    if (rc == 0)
        rc = c->rank == 0 ? greet_all(c, words, err) : greet_first(c, words, err);
    if (rc != 0) {
        beat_end(c);
        transport->ops->close(transport);
        mem_free(c);
        return rc;
    }
    *out = c;
    return 0;
}

void cluster_leave(struct cluster *c)
{
    if (c == NULL)
        return;
    const struct join_message m = message_of(JOIN_END, 0, NULL);
    for (uint32_t i = 1; c->rank == 0 && i < c->n_ranks && !c->is_lost; i++)
        (void)send_now(c, i, &m, NULL);
    beat_end(c);
    if (c->is_lost)
        c->t->ops->abandon(c->t);
    c->t->ops->close(c->t);
    mem_free(c);
}

int cluster_begin(struct cluster *c, const struct cluster_shared *shared, struct fm_error *err)
{
    struct join_message m = message_of(JOIN_BEGIN, 0, NULL);
    m.shared = *shared;
    if (c->is_lost)
        return cluster_explain(c, err);
    for (uint32_t i = 1; i < c->n_ranks; i++) {
        const int rc = send_now(c, i, &m, err);
        if (rc != 0)
            return rc;
    }
    c->step = STEP_MODEL;
    beat_set_phase(c, BEAT_OPENING);
    return 0;
}

int cluster_await(struct cluster *c, struct cluster_shared *shared, bool *has_one,
                  struct fm_error *err)
{
    struct join_message m;
    *has_one = false;
    const int rc = receive_from_first(c, &m, err);
    if (rc != 0 || m.kind == JOIN_END)
        return rc;
    if (m.kind != JOIN_BEGIN)
        return err_set(err, FM_ERR_FORMAT, "rank 0 has sent a message of kind %u where a model "
                       "begins", m.kind);
    *shared = m.shared;
    *has_one = true;
    c->step = STEP_MODEL;
    beat_set_phase(c, BEAT_OPENING);
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The first rank receives a step of all other ranks. The first error counts. */
static int collect(struct cluster *c, struct join_message *all, struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 1; i < c->n_ranks; i++) {
        struct fm_error why;
        int own = receive(c, i, &all[i], &why);
        if (c->is_lost)
            return cluster_explain(c, err);
        if (own == 0 && (all[i].kind != JOIN_STEP || all[i].step != (uint32_t)c->step))
            own = err_set(&why, FM_ERR_FORMAT, "rank %u (%s) is in step %u, and rank 0 in step %u",
                          i, cluster_host(c, i), all[i].step, (unsigned)c->step);
        if (own == 0 && all[i].rc != 0)
            own = err_set(&why, all[i].rc, "rank %u (%s): %s", i, cluster_host(c, i),
                          all[i].text);
        if (own != 0 && rc == 0)
            rc = err_set(err, own, "%s", why.text);
    }
    return rc;
}

/* ... and answers it: `answers` [n_ranks], or an error for all. */
static int answer_all(struct cluster *c, struct join_message *answers, int rc,
                      struct fm_error *err)
{
    const struct join_message failure = message_of(JOIN_STEP, rc, err);
    int sent = 0;
    for (uint32_t i = 1; i < c->n_ranks && sent == 0; i++)
        sent = send_now(c, i, rc != 0 ? &failure : &answers[i], rc != 0 ? NULL : err);
    c->step = rc == 0 ? (enum join_step)(c->step + 1) : STEP_NONE;
    return rc != 0 ? rc : sent;
}

/* Another rank says how far it is and gets the answer. */
static int report(struct cluster *c, struct join_message *m, int rc, struct fm_error *err)
{
    const int own = m->rc;
    m->step = (uint32_t)c->step;
    int sent = send_now(c, 0, m, err);
    if (sent == 0)
        sent = receive_from_first(c, m, own != 0 ? NULL : err);
    c->step = sent == 0 && own == 0 ? (enum join_step)(c->step + 1) : STEP_NONE;
    return own != 0 ? rc : sent;
}

static struct join_message *new_messages(const struct cluster *c, struct fm_error *err)
{
    struct join_message *all = mem_new(c->n_ranks, sizeof *all, "the cluster", err);
    for (uint32_t i = 0; all != NULL && i < c->n_ranks; i++)
        all[i] = message_of(JOIN_STEP, 0, NULL);
    return all;
}

/* ---- the cut --------------------------------------------------------------------------------- */

/* Bytes of a layer, so that ranks get what fits their memory: its experts and its share of the
 * dense weights. */
static void weigh_layers(const struct model *model, double *bytes)
{
    for (uint32_t i = 0; i < model->shape.n_layers; i++)
        bytes[i] = 1 + (double)model->dense_bytes / model->shape.n_layers;
    for (uint32_t i = 0; i < model_n_own_expert_layers(model); i++)
        bytes[model->expert_layers[i].layer] +=
            (double)model->expert_layers[i].n_experts * (double)model->expert_layers[i].read_bytes;
}

/* Gives each rank layers in proportion to its memory, at least one. */
static void divide(const double *bytes, uint32_t n_layers, const double *memory, uint32_t n_ranks,
                   uint32_t *ends)
{
    double all = 0, room = 0, done = 0, target = 0;
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_layers; i++)
        all += bytes[i];
    for (uint32_t r = 0; r < n_ranks; r++)
        room += memory[r];
    for (uint32_t r = 0; r < n_ranks; r++) {
        const uint32_t first = at, last = n_layers - (n_ranks - 1 - r);
        target += all * memory[r] / room;
        while (at < last && (at == first || done + bytes[at] / 2 <= target))
            done += bytes[at++];
        ends[r] = r + 1 == n_ranks ? n_layers : at;
    }
}

static int check_given(const struct cluster *c, const struct model *model,
                       const unsigned *n_layers, uint32_t *ends, struct fm_error *err)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < c->n_ranks; r++) {
        sum += n_layers[r];
        ends[r] = (uint32_t)sum;
        if (n_layers[r] == 0 || sum > model->shape.n_layers)
            break;
    }
    if (sum != model->shape.n_layers || ends[c->n_ranks - 1] != sum)
        return err_set(err, FM_ERR_ARG, "the layers of the ranks (--layers) do not add up: every "
                       "rank needs one, and all together the %u layers of the model",
                       model->shape.n_layers);
    return 0;
}

static int choose_cut(const struct cluster *c, const struct model *model,
                      const struct join_message *all, uint64_t memory_bytes,
                      const unsigned *n_layers, uint32_t *ends, struct fm_error *err)
{
    double bytes[LIMIT_LAYERS], memory[CLUSTER_RANKS];
    if (c->n_ranks > model->shape.n_layers)
        return err_set(err, FM_ERR_ARG, "%u ranks are too many for the %u layers of the model",
                       c->n_ranks, model->shape.n_layers);
    if (n_layers != NULL)
        return check_given(c, model, n_layers, ends, err);
    for (uint32_t r = 0; r < c->n_ranks; r++)
        memory[r] = 1 + (double)(r == 0 ? memory_bytes : all[r].memory_bytes);
    weigh_layers(model, bytes);
    divide(bytes, model->shape.n_layers, memory, c->n_ranks, ends);
    return 0;
}

static int compare_models(const struct cluster *c, const struct model *model, uint64_t identity,
                          const struct join_message *all, struct fm_error *err)
{
    for (uint32_t i = 1; i < c->n_ranks; i++) {
        if (all[i].n_layers != model->shape.n_layers)
            return err_set(err, FM_ERR_ARG, "rank %u (%s) has another model: it has %u layers, "
                           "and that of rank 0 has %u", i, cluster_host(c, i), all[i].n_layers,
                           model->shape.n_layers);
        if (all[i].identity != identity)
            return err_set(err, FM_ERR_ARG, "rank %u (%s) has another model than rank 0: its "
                           "%s differ; copy the model's files to all ranks, or pack it for them",
                           i, cluster_host(c, i), model->source->packed != NULL
                               ? "checksums or configuration"
                               : "configuration, sizes or weights");
    }
    return 0;
}

static void set_cut(struct cluster *c, struct engine *e, uint32_t first, uint32_t end)
{
    e->cut = (struct engine_cut){.is_on = true, .first_layer = first, .end_layer = end,
                                 .with_head = c->rank == 0, .is_process = c->is_process,
                                 .n_row_copies = 3,
                                 .n_passes = c->rank == 0 ? 2 * c->n_ranks : 1};
    e->remote = &c->remote;
    c->engine = e;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static bool goes_on(void *ctx)
{
    return link_tend(ctx);
}

static int agree(void *ctx, uint32_t *n_context, uint32_t *max_rows, struct fm_error *err)
{
    struct cluster *c = ctx;
    struct join_message *all = new_messages(c, err);
    int rc = all == NULL ? FM_ERR_NOMEM : 0;
    if (c->rank > 0) {
        struct join_message m = message_of(JOIN_STEP, rc, err);
        m.n_context = *n_context;
        m.max_rows = *max_rows;
        rc = report(c, &m, rc, err);
        if (rc == 0 && (m.n_context == 0 || m.n_context > *n_context || m.max_rows == 0 ||
                        m.max_rows > *max_rows))
            rc = err_set(err, FM_ERR_FORMAT, "rank 0 has decided on a context of %u and %u rows, "
                         "and this rank has room for %u and %u", m.n_context, m.max_rows,
                         *n_context, *max_rows);
        *n_context = m.n_context;
        *max_rows = m.max_rows;
    } else {
        rc = rc != 0 ? rc : collect(c, all, err);
        for (uint32_t i = 1; rc == 0 && i < c->n_ranks; i++) {
            *n_context = all[i].n_context < *n_context ? all[i].n_context : *n_context;
            *max_rows = all[i].max_rows < *max_rows ? all[i].max_rows : *max_rows;
        }
        for (uint32_t i = 1; all != NULL && i < c->n_ranks; i++) {
            all[i].n_context = *n_context;
            all[i].max_rows = *max_rows;
        }
        rc = answer_all(c, all, rc, err);
    }
    mem_free(all);
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int cluster_meet(struct cluster *c, struct engine *e, uint64_t memory_bytes,
                 const unsigned *n_layers, struct fm_error *err)
{
    uint64_t identity = 0;
    uint32_t ends[CLUSTER_RANKS];
    c->remote = (struct engine_remote){.ctx = c, .agree = agree, .goes_on = goes_on};
    int rc = identity_of_model(e->model, &identity, err);
    if (rc != 0)
        return rc; /* cluster_ready tells the others */
    if (c->rank > 0) {
        struct join_message m = message_of(JOIN_STEP, 0, NULL);
        m.identity = identity;
        m.n_layers = e->model->shape.n_layers;
        m.memory_bytes = memory_bytes;
        rc = report(c, &m, rc, err);
        if (rc == 0)
            set_cut(c, e, m.first_layer, m.end_layer);
        return rc;
    }
    struct join_message *all = new_messages(c, err);
    rc = all == NULL ? FM_ERR_NOMEM : collect(c, all, err);
    if (rc == 0)
        rc = compare_models(c, e->model, identity, all, err);
    if (rc == 0)
        rc = choose_cut(c, e->model, all, memory_bytes, n_layers, ends, err);
    for (uint32_t i = 1; rc == 0 && i < c->n_ranks; i++) {
        all[i].first_layer = ends[i - 1];
        all[i].end_layer = ends[i];
    }
    rc = answer_all(c, all, rc, err);
    mem_free(all);
    if (rc != 0)
        return rc;
    first_init(c);
    set_cut(c, e, 0, ends[0]);
    return 0;
}

static void set_limits(struct cluster *c)
{
    const struct budget *b = engine_limits(c->engine);
    const struct model_shape *shape = &c->engine->model->shape;
    c->limits = (struct wire_limits){
        .max_rows = b->max_rows, .max_segments = b->n_sessions, .n_context = b->n_context,
        .n_marks = b->n_marks, .n_drafts = b->n_drafts, .n_ranks = c->n_ranks,
        .row_floats = shape->row_floats, .vocabulary = shape->vocabulary};
}

/* Opens what a model needs on this rank. */
static int open_buffers(struct cluster *c, struct fm_error *err)
{
    set_limits(c);
    const int rc = link_open(c, err);
    return rc != 0 ? rc : member_open(c, err);
}

static int tell_ready(struct cluster *c, int rc, struct fm_error *why)
{
    if (c->step == STEP_NONE || c->step == STEP_OPEN)
        return rc; /* the others know already */
    if (c->is_lost)
        return cluster_explain(c, why);
    if (rc == 0 && c->step == STEP_READY)
        rc = open_buffers(c, why);
    if (c->rank > 0) {
        struct join_message m = message_of(JOIN_STEP, rc, why);
        if (rc == 0)
            member_stats(c, &m.stats);
        rc = report(c, &m, rc, why);
    } else {
        struct join_message *all = new_messages(c, NULL);
        int others = all == NULL ? FM_ERR_NOMEM : collect(c, all, rc != 0 ? NULL : why);
        for (uint32_t i = 1; others == 0 && i < c->n_ranks; i++)
            c->peers[i].stats = all[i].stats;
        rc = answer_all(c, all, rc != 0 ? rc : others, why);
        mem_free(all);
    }
    return rc;
}

int cluster_ready(struct cluster *c, int rc, struct fm_error *err)
{
    struct fm_error own = {0};
    const bool was_told = c->step == STEP_NONE || c->step == STEP_OPEN;
    rc = tell_ready(c, rc, err != NULL ? err : &own);
    beat_set_phase(c, rc == 0 ? BEAT_OPEN : BEAT_IDLE);
    if (rc != 0 && !was_told)
        cluster_end(c);
    return rc;
}
