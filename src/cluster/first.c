/* The first rank: what its engine asks of the others. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

uint32_t cluster_rank(const struct cluster *c)
{
    return c->rank;
}

uint32_t cluster_n_ranks(const struct cluster *c)
{
    return c->n_ranks;
}

const char *cluster_host(const struct cluster *c, uint32_t rank)
{
    return rank < c->n_ranks && c->peers[rank].host[0] != '\0' ? c->peers[rank].host : "unknown";
}

/* ---- messages around the ring ---------------------------------------------------------------- */

/* Begins a message with the operations that wait. Returns NULL: lost. */
static char *begin_message(struct cluster *c, struct wire *w, const struct wire_head *sizes)
{
    char *bytes = link_buffer(c);
    if (bytes == NULL)
        return NULL;
    struct wire_head *h = (struct wire_head *)(void *)bytes;
    *h = *sizes;
    h->magic = WIRE_MAGIC;
    h->number = ++c->number;
    h->n_ops = c->n_ops;
    h->stray_position = c->engine->stray_position;
    wire_begin(w, bytes);
    memcpy(w->ops, c->ops, c->n_ops * sizeof *c->ops);
    c->n_ops = 0;
    return bytes;
}

static bool send_message(struct cluster *c, char *bytes, uint64_t n)
{
    struct fm_error err;
    if (link_send(c, bytes, n, &err) == 0)
        return true;
    cluster_lose(c, 1, err.text);
    return false;
}

/* Receives the message that has been around, if it is there; it has this number. Returns false:
 * lost. */
static bool receive_message(struct cluster *c, uint64_t number, struct wire *w, bool *is_there)
{
    struct fm_error err;
    uint64_t n = 0;
    *is_there = false;
    int rc = link_receive(c, &n, &err);
    if (rc == 0 && n > 0)
        rc = wire_read(w, c->in, n, &c->limits, &err);
    if (rc == 0 && n > 0 && w->head->number != number)
        rc = err_set(&err, FM_ERR_FORMAT, "message %llu came back, %llu was expected",
                     (unsigned long long)w->head->number, (unsigned long long)number);
    if (rc != 0)
        cluster_lose(c, c->n_ranks - 1, err.text);
    *is_there = rc == 0 && n > 0;
    return rc == 0;
}

static void take_stats(struct cluster *c, const struct wire_result *r)
{
    if (r->bytes == sizeof c->peers[0].stats && r->rank > 0)
        memcpy(&c->peers[r->rank].stats, r + 1, sizeof c->peers[0].stats);
    c->peers[r->rank].stats.cpu_level[sizeof c->peers[0].stats.cpu_level - 1] = '\0';
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Asks all ranks and waits for their answers, which stay in `w` until the next message. The first
 * error of a rank is the result. Passes that are away come back before. */
static int ask(struct cluster *c, const struct question *q, const void *bytes, struct wire *w,
               struct fm_error *err)
{
    const struct wire_head sizes = {.kind = WIRE_ASK,
                                    .question_bytes = (uint32_t)sizeof *q + q->bytes};
    struct pause pause = {0};
    bool is_there = false;
    int rc = 0;
    if (c->n_away > 0 && c->engine->is_computing)
        return err_set(err, FM_ERR_ARG, "a pass is being computed: the ranks cannot be asked");
    engine_land(c->engine);
    if (c->is_lost)
        return cluster_explain(c, err);
    char *message = begin_message(c, w, &sizes);
    if (message != NULL) {
        memcpy(w->question, q, sizeof *q);
        if (q->bytes > 0)
            memcpy(w->question + sizeof *q, bytes, q->bytes);
        (void)send_message(c, message, wire_end(w, 0, c->limits.row_floats));
    }
    while (!c->is_lost && !is_there)
        if (receive_message(c, c->number, w, &is_there) && !is_there && link_hear(c))
            pause_a_little(&pause);
    if (c->is_lost)
        return cluster_explain(c, err);
    const struct wire_result *r;
    for (uint32_t at = 0; (r = wire_next(w, &at)) != NULL;) {
        if (r->kind == RESULT_STATS)
            take_stats(c, r);
        if (r->kind == RESULT_ANSWER && r->code != 0 && rc == 0)
            rc = err_set(err, r->code, "rank %u (%s): %.*s", r->rank, cluster_host(c, r->rank),
                         (int)r->bytes, (const char *)(r + 1));
    }
    return rc;
}

static int ask_simply(struct cluster *c, enum question_kind kind, uint32_t a, uint32_t b,
                      struct fm_error *err)
{
    const struct question q = {.kind = kind, .a = a, .b = b};
    struct wire w;
    return ask(c, &q, NULL, &w, err);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static void add_op(struct cluster *c, const struct wire_op *op)
{
    if (c->n_ops == WIRE_OPS)
        (void)ask_simply(c, ASK_NOTHING, 0, 0, NULL);
    if (c->n_ops == WIRE_OPS && !c->is_lost)
        cluster_lose(c, 0, "too many operations on sessions while a pass is computed");
    if (c->is_lost)
        return;
    c->ops[c->n_ops++] = *op;
}

static void far_clear(void *ctx, uint32_t id, uint32_t state)
{
    add_op(ctx, &(struct wire_op){WIRE_CLEAR, id, state, 0, 0});
}

static void far_copy_state(void *ctx, uint32_t to, uint32_t to_state, uint32_t from,
                           uint32_t from_state)
{
    add_op(ctx, &(struct wire_op){WIRE_COPY_STATE, to, to_state, from, from_state});
}

static void far_copy_kv(void *ctx, uint32_t to, uint32_t from, uint32_t n_positions)
{
    add_op(ctx, &(struct wire_op){WIRE_COPY_KV, to, from, n_positions, 0});
}

static void far_repeat(void *ctx, uint32_t id, uint32_t position, uint32_t n_positions)
{
    add_op(ctx, &(struct wire_op){WIRE_REPEAT, id, position, n_positions, 0});
}

static void far_free(void *ctx, uint32_t id)
{
    struct cluster *c = ctx;
    c->has_sequence[id] = false;
    add_op(c, &(struct wire_op){WIRE_FREE, id, 0, 0, 0});
}

static void accept(void *ctx, uint32_t sequence, uint32_t draft)
{
    add_op(ctx, &(struct wire_op){WIRE_ACCEPT, sequence, draft, 0, 0});
}

static int new_sequence(void *ctx, uint32_t *id, struct fm_error *err)
{
    struct cluster *c = ctx;
    uint32_t i = 0;
    while (i < c->limits.max_segments && c->has_sequence[i])
        i++;
    assert(i < c->limits.max_segments); /* as many as sessions */
    const int rc = ask_simply(c, ASK_NEW, i, 0, err);
    if (rc != 0 && !c->is_lost)
        add_op(c, &(struct wire_op){WIRE_FREE, i, 0, 0, 0}); /* some may have it */
    c->has_sequence[i] = rc == 0;
    *id = i;
    return rc;
}

/* Positions that memory is asked for together: a block of them has a multiple of this. */
#define REACH_POSITIONS 256

static int reach(void *ctx, struct sequence *s, uint32_t n_positions, struct fm_error *err)
{
    struct cluster *c = ctx;
    const uint32_t needed = n_positions > s->position ? n_positions : s->position;
    const uint64_t rounded =
        ((uint64_t)needed + REACH_POSITIONS - 1) / REACH_POSITIONS * REACH_POSITIONS;
    const uint32_t n = rounded < c->limits.n_context ? (uint32_t)rounded : c->limits.n_context;
    if (n == s->far_positions)
        return 0;
    if (n < s->far_positions) {
        add_op(c, &(struct wire_op){WIRE_REACH, s->far_id, n, s->position, 0});
        s->far_positions = n;
        return 0;
    }
    const struct question q = {.kind = ASK_REACH, .a = s->far_id, .b = n, .c = s->position};
    struct wire w;
    const int rc = ask(c, &q, NULL, &w, err);
    if (rc == 0)
        s->far_positions = n;
    else if (!c->is_lost) /* those that have made room give it back */
        add_op(c, &(struct wire_op){WIRE_REACH, s->far_id, s->far_positions, s->position, 0});
    return rc;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

static void write_segment(struct wire_segment *to, const struct batch_segment *from, bool is_left)
{
    const struct sequence *s = from->sequence;
    *to = (struct wire_segment){
        .sequence = s->far_id, .position = s->position, .n_tokens = from->n_tokens,
        .n_drafts = from->n_drafts, .slot = s->slot, .next_position = s->next_position,
        .next_mark = s->next_mark,
        .flags = (is_left ? SEGMENT_LEFT : 0) | (s->trail.is_there ? SEGMENT_TRAIL : 0) |
                 (from->wants_hidden ? SEGMENT_HIDDEN : 0) |
                 (from->wants_routes ? SEGMENT_ROUTES : 0) |
                 (from->wants_last_logits || from->wants_all_logits ? SEGMENT_LAST : 0) |
                 (from->is_first ? SEGMENT_FIRST : 0)};
}

/* Writes what the other ranks need of a pass. Returns the bytes of the message. */
static uint64_t write_pass(struct cluster *c, struct wire *w, const struct pass *pass)
{
    const struct batch *batch = pass->batch;
    uint32_t token = 0, in_pass = 0;
    for (uint32_t i = 0; i < batch->n_segments; i++) {
        const struct batch_segment *s = &batch->segments[i];
        const bool is_left = in_pass == pass->n_segments || pass->in_batch[in_pass] != i;
        in_pass += !is_left;
        write_segment(&w->segments[i], s, is_left);
        memcpy(w->tokens + token, s->tokens, s->n_tokens * sizeof *s->tokens);
        token += s->n_tokens;
    }
    const uint64_t n = wire_end(w, pass->n_rows, c->limits.row_floats);
    memcpy(w->rows, pass->rows, (size_t)pass->n_rows * c->limits.row_floats * sizeof(float));
    return n;
}

/* Gives up all segments: a rank is lost. */
static void fail_all(struct cluster *c, struct pass *pass)
{
    const struct batch_fault fault = {.layer = -1, .expert = -1, .err = c->lost};
    for (uint32_t s = 0; s < pass->n_segments; s++)
        pass->batch->hooks.fault(pass->batch->hooks.ctx, pass->in_batch[s], &fault);
    pass_keep(pass, pass->in_batch, 0);
}

static void tell_fault(const struct cluster *c, const struct pass *pass,
                       const struct wire_result *r)
{
    struct wire_fault f;
    if (r->bytes <= sizeof f)
        return;
    memcpy(&f, r + 1, sizeof f);
    struct batch_fault fault = {.layer = f.layer, .expert = f.expert};
    if (f.segment >= pass->batch->n_segments)
        return;
    (void)err_set(&fault.err, r->code < 0 ? r->code : FM_ERR_IO, "%.*s",
                  (int)(r->bytes - sizeof f), (const char *)(r + 1) + sizeof f);
    (void)snprintf(fault.where, sizeof fault.where, "rank %u (%s)", r->rank,
                   cluster_host(c, r->rank));
    pass->batch->hooks.fault(pass->batch->hooks.ctx, f.segment, &fault);
}

/* A rank leaves a segment out because it has failed or was cancelled, and nothing else. */
static void tell_left(const struct cluster *c, const struct pass *pass, uint32_t segment)
{
    const struct batch_hooks *hooks = &pass->batch->hooks;
    struct batch_fault fault = {.layer = -1, .expert = -1};
    if (hooks->is_given_up(hooks->ctx, segment))
        return;
    (void)err_set(&fault.err, FM_ERR_FORMAT, "a rank has left tokens out, for no reason");
    (void)snprintf(fault.where, sizeof fault.where, "one of %u ranks", c->n_ranks);
    hooks->fault(hooks->ctx, segment, &fault);
}

/* Reads what came back. Segments that the other ranks have left leave the pass. */
static void read_pass(struct cluster *c, const struct wire *w, struct pass *pass)
{
    uint32_t n = 0, in_pass = 0;
    const struct wire_result *r;
    const struct batch *batch = pass->batch;
    if (w->head->kind != WIRE_RUN || w->head->n_segments != batch->n_segments) {
        cluster_lose(c, c->n_ranks - 1, "it has sent another batch");
        fail_all(c, pass);
        return;
    }
    for (uint32_t at = 0; (r = wire_next(w, &at)) != NULL;) {
        if (r->kind == RESULT_FAULT)
            tell_fault(c, pass, r);
        else if (r->kind == RESULT_STATS)
            take_stats(c, r);
    }
    uint32_t *kept = pass->kept;
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < batch->n_segments; i++) {
        const bool was_there = in_pass < pass->n_segments && pass->in_batch[in_pass] == i;
        const bool is_there = (w->segments[i].flags & SEGMENT_LEFT) == 0;
        in_pass += was_there;
        if (was_there && !is_there)
            tell_left(c, pass, i);
        if (!was_there || !is_there)
            continue;
        kept[n++] = i;
        n_rows += batch->segments[i].n_tokens;
    }
    if (n_rows != w->head->n_rows) {
        cluster_lose(c, c->n_ranks - 1, "it has sent another number of rows");
        fail_all(c, pass);
        return;
    }
    pass_keep(pass, kept, n);
    memcpy(pass->rows, w->rows, n_rows * c->limits.row_floats * sizeof(float));
}

/* Tells the others which segments of a pass that is away are given up meanwhile. */
static void tell_cancels(struct cluster *c, const struct away *away)
{
    const struct pass *pass = away->pass;
    for (uint32_t s = 0; s < pass->n_segments; s++) {
        const uint32_t i = pass->in_batch[s];
        if (!away->was_told[i] && pass_is_given_up(pass, s))
            away->was_told[i] = link_cancel(c, away->number, i);
    }
}

/* Shows a note to the observers of the first rank. */
static void show_note(struct cluster *c, const struct away *away, uint64_t n)
{
    const struct pass *pass = away->pass;
    const struct note *note = (const struct note *)(const void *)c->note;
    const struct batch_hooks *hooks = &pass->batch->hooks;
    const void *bytes = note + 1;
    const uint32_t k = c->engine->model->shape.n_experts_per_token;
    const uint64_t floats = c->limits.row_floats * sizeof(float);
    if (n < sizeof *note || note->number != away->number ||
        note->segment >= pass->batch->n_segments)
        return;
    if (note->kind == NOTE_HIDDEN && n == sizeof *note + floats)
        hooks->hidden(hooks->ctx, note->segment, note->row, note->layer, bytes);
    else if (note->kind == NOTE_ROUTE && n == sizeof *note + k * 8ull)
        hooks->route(hooks->ctx, note->segment, note->row, note->layer, bytes,
                     (const float *)bytes + k);
    else if (note->kind == NOTE_TIMES && n == sizeof *note && hooks->times != NULL)
        hooks->times(hooks->ctx, note->layer, &note->times);
}

/* Receives the notes that are there. Returns how many. A pass with notes is the only one that is
 * away. */
static uint64_t take_notes(struct cluster *c, const struct away *away)
{
    uint64_t n, n_notes = 0;
    struct fm_error err;
    for (uint32_t i = 1; i < c->n_ranks && !c->is_lost; i++) {
        do {
            if (c->t->ops->receive(c->t, i, CHANNEL_NOTE, c->note, c->note_bytes, &n, &err) != 0)
                cluster_lose(c, i, err.text);
            else if (n > 0)
                show_note(c, away, n);
            n_notes += n > 0;
        } while (!c->is_lost && n > 0);
    }
    return n_notes;
}

static bool wants_notes(const struct pass *pass)
{
    bool wants = pass->batch->hooks.times != NULL;
    for (uint32_t i = 0; i < pass->batch->n_segments; i++)
        wants |= pass->batch->segments[i].wants_hidden || pass->batch->segments[i].wants_routes;
    return wants;
}

static uint64_t count_notes(const struct wire *w)
{
    uint64_t sum = 0, n;
    const struct wire_result *r;
    for (uint32_t at = 0; (r = wire_next(w, &at)) != NULL;)
        if (r->kind == RESULT_NOTES && r->bytes == sizeof n) {
            memcpy(&n, r + 1, sizeof n);
            sum += n;
        }
    return sum;
}

static void send_pass(void *ctx, const struct pass *pass)
{
    struct cluster *c = ctx;
    const struct batch *batch = pass->batch;
    struct wire w;
    struct wire_head sizes = {.kind = WIRE_RUN, .n_segments = batch->n_segments,
                              .flags = batch->hooks.times != NULL ? WIRE_TIMED : 0};
    for (uint32_t i = 0; i < batch->n_segments; i++)
        sizes.n_tokens += batch->segments[i].n_tokens;
    char *message = c->is_lost ? NULL : begin_message(c, &w, &sizes);
    if (message != NULL)
        (void)send_message(c, message, write_pass(c, &w, pass));
    assert(c->n_away < CLUSTER_PASSES);
    struct away *away = &c->away[c->n_away++];
    const uint64_t slot = c->number % CLUSTER_PASSES; /* the numbers of those away follow */
    *away = (struct away){.pass = pass, .number = c->number, .sent_ns = plat_now_ns(),
                          .is_alone = c->n_away == 1,
                          .was_told = c->told + slot * c->limits.max_segments};
    memset(away->was_told, 0, c->limits.max_segments * sizeof *away->was_told);
    c->away[0].is_alone &= c->n_away == 1;
    if (c->n_away == 1)
        c->landed_ns = away->sent_ns;
}

/* Waits for the first pass that is away. Returns false: lost. */
static bool await_pass(struct cluster *c, struct wire *w)
{
    const struct away *away = &c->away[0];
    const bool has_notes = wants_notes(away->pass);
    uint64_t n_notes = 0, n_expected = 0;
    bool is_there = false;
    struct pause pause = {0};
    while (!c->is_lost) {
        if (has_notes)
            n_notes += take_notes(c, away);
        if (!is_there && receive_message(c, away->number, w, &is_there) && is_there)
            n_expected = count_notes(w);
        if (is_there && n_notes >= n_expected)
            return true;
        for (uint32_t i = 0; i < c->n_away; i++)
            tell_cancels(c, &c->away[i]);
        if (link_hear(c))
            pause_a_little(&pause);
    }
    return false;
}

static void receive_pass(void *ctx, struct pass *pass)
{
    struct cluster *c = ctx;
    struct wire w;
    assert(c->n_away > 0 && c->away[0].pass == pass);
    const bool is_there = await_pass(c, &w);
    const uint64_t now_ns = plat_now_ns();
    const uint64_t away_ns = now_ns - c->away[0].sent_ns;
    c->away_ns += now_ns - c->landed_ns;
    c->landed_ns = now_ns;
    if (is_there && c->away[0].is_alone && away_ns >= w.head->busy_ns) {
        c->network_ns += away_ns - w.head->busy_ns;
        c->n_lone++;
    }
    memmove(c->away, c->away + 1, --c->n_away * sizeof c->away[0]);
    if (is_there)
        read_pass(c, &w, pass);
    else
        fail_all(c, pass);
}

/* ---- knowing --------------------------------------------------------------------------------- */

/* How often messages get time while layers are computed. */
#define LOOK_NS 200000ull

void cluster_look(struct cluster *c)
{
    const uint64_t now_ns = plat_now_ns();
    if (c->n_away == 0 || c->is_lost || now_ns - c->looked_ns < LOOK_NS)
        return;
    c->looked_ns = now_ns;
    for (unsigned i = 0; i < 2; i++)
        (void)c->t->ops->is_sent(c->t, &c->out_sends[i]);
}

bool cluster_is_resident(const struct cluster *c)
{
    const uint32_t n_experts = c->engine->model->shape.n_experts;
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        struct cluster_rank_stats s;
        if (i == c->rank)
            member_stats(c, &s);
        else
            s = c->peers[i].stats;
        if (s.experts.n_slots < (uint64_t)s.n_expert_layers * n_experts)
            return false;
    }
    return true;
}

/* A server asks after every pass: not all of these go around the ring. */
#define REFRESH_NS 20000000ull

void cluster_refresh(struct cluster *c)
{
    const uint64_t now_ns = plat_now_ns();
    if (c->step != STEP_OPEN || c->is_lost || now_ns - c->refreshed_ns < REFRESH_NS ||
        c->n_away > 0) /* passes tell it, too, and need not wait for it */
        return;
    (void)ask_simply(c, ASK_STATS, 0, 0, NULL);
    c->refreshed_ns = plat_now_ns();
}

void cluster_stats(struct cluster *c, uint32_t rank, struct cluster_rank_stats *stats)
{
    if (rank == c->rank)
        member_stats(c, stats);
    else
        *stats = c->peers[rank].stats;
}

void cluster_times(const struct cluster *c, uint64_t *away_ns, uint64_t *network_ns,
                   uint64_t *n_lone)
{
    *away_ns = c->away_ns;
    *network_ns = c->network_ns;
    *n_lone = c->n_lone;
}

static void add_cache_stats(void *ctx, struct expert_cache_stats *sum)
{
    const struct cluster *c = ctx;
    for (uint32_t i = 1; i < c->n_ranks; i++) {
        const struct expert_cache_stats *s = &c->peers[i].stats.experts;
        sum->n_slots += s->n_slots;
        sum->n_hits += s->n_hits;
        sum->n_misses += s->n_misses;
        sum->n_plans_read += s->n_plans_read;
        sum->n_late += s->n_late;
        sum->n_guesses += s->n_guesses;
        sum->n_guesses_used += s->n_guesses_used;
        sum->n_warmed += s->n_warmed;
        sum->bytes_read += s->bytes_read;
        sum->wait_ns += s->wait_ns;
    }
}

bool cluster_experts(struct cluster *c, uint32_t expert_layer, bool *resident, uint8_t *levels,
                     uint8_t *tiers, double *recall)
{
    const struct question q = {.kind = ASK_EXPERTS, .a = expert_layer};
    const uint32_t n = c->engine->model->shape.n_experts;
    const struct wire_result *r;
    struct wire w;
    if (c->step != STEP_OPEN || ask(c, &q, NULL, &w, NULL) != 0)
        return false;
    for (uint32_t at = 0; (r = wire_next(&w, &at)) != NULL;) {
        const char *bytes = (const char *)(r + 1);
        if (r->kind != RESULT_ANSWER || r->bytes != 3ull * n + sizeof *recall)
            continue;
        for (uint32_t i = 0; resident != NULL && i < n; i++)
            resident[i] = bytes[i] != 0;
        if (levels != NULL)
            memcpy(levels, bytes + n, n);
        if (tiers != NULL)
            memcpy(tiers, bytes + 2ull * n, n);
        if (recall != NULL)
            memcpy(recall, bytes + 3ull * n, sizeof *recall);
        return true;
    }
    return false;
}

int cluster_set_memory(struct cluster *c, uint32_t rank, uint64_t bytes, struct fm_error *err)
{
    const struct question q = {.kind = ASK_MEMORY, .a = rank, .c = bytes};
    struct wire w;
    return ask(c, &q, NULL, &w, err);
}

/* ---- snapshots ------------------------------------------------------------------------------- */

int cluster_identity(struct cluster *c, uint64_t *identity, struct fm_error *err)
{
    const struct question q = {.kind = ASK_IDENTITY};
    const struct wire_result *r;
    struct wire w;
    const int rc = ask(c, &q, NULL, &w, err);
    if (rc != 0)
        return rc;
    for (uint32_t at = 0; (r = wire_next(&w, &at)) != NULL;) {
        uint64_t facts[3] = {*identity, r->rank, 0};
        if (r->kind != RESULT_ANSWER || r->bytes != sizeof facts[2])
            continue;
        memcpy(&facts[2], r + 1, sizeof facts[2]);
        *identity = XXH3_64bits(facts, sizeof facts);
    }
    return 0;
}

/* Asks for a part of a snapshot: the request, tokens and the path. */
static int ask_for_part(struct cluster *c, enum question_kind kind, const struct sequence *s,
                        const struct part_request *request, uint32_t n_positions,
                        const int32_t *ids, const char *path, struct fm_error *err)
{
    const uint32_t ids_bytes = ids != NULL ? (uint32_t)(n_positions * sizeof *ids) : 0;
    const uint32_t path_bytes = (uint32_t)strlen(path) + 1;
    const struct question q = {.kind = kind, .a = s->far_id, .b = n_positions,
                               .bytes = (uint32_t)sizeof *request + ids_bytes + path_bytes};
    struct wire w;
    if (path_bytes > LIMIT_PATH_BYTES)
        return err_set(err, FM_ERR_ARG, "the path '%s' is too long", path);
    char *bytes = mem_new(q.bytes, 1, "a question", err);
    if (bytes == NULL)
        return FM_ERR_NOMEM;
    memcpy(bytes, request, sizeof *request);
    if (ids_bytes > 0)
        memcpy(bytes + sizeof *request, ids, ids_bytes);
    memcpy(bytes + sizeof *request + ids_bytes, path, path_bytes);
    const int rc = ask(c, &q, bytes, &w, err);
    mem_free(bytes);
    return rc;
}

int cluster_save(struct cluster *c, const struct sequence *s, uint64_t identity, uint64_t stamp,
                 const char *path, struct fm_error *err)
{
    struct part_request request = {.identity = identity, .stamp = stamp, .slot = s->slot};
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] > 0)
            request.marks[request.n_marks++] = i;
    return ask_for_part(c, ASK_SAVE, s, &request, s->position, NULL, path, err);
}

int cluster_load(struct cluster *c, const struct sequence *s, uint64_t identity, uint64_t stamp,
                 const char *path, uint32_t n_positions, const int32_t *ids, uint32_t n_marks,
                 struct fm_error *err)
{
    const struct part_request request = {.identity = identity, .stamp = stamp,
                                         .n_marks = n_marks, .slot = s->slot};
    return ask_for_part(c, ASK_LOAD, s, &request, n_positions, ids, path, err);
}

static void ask_about(struct cluster *c, enum question_kind kind, const char *path)
{
    const struct question q = {.kind = kind, .bytes = (uint32_t)strlen(path) + 1};
    struct wire w;
    if (q.bytes <= LIMIT_PATH_BYTES)
        (void)ask(c, &q, path, &w, NULL);
}

void cluster_drop(struct cluster *c, const char *path)
{
    ask_about(c, ASK_DROP, path);
}

void cluster_tidy(struct cluster *c, const char *folder)
{
    ask_about(c, ASK_TIDY, folder);
}

/* ---- open and close -------------------------------------------------------------------------- */

void first_init(struct cluster *c)
{
    c->far = (struct sequence_far){.ctx = c, .clear = far_clear, .copy_state = far_copy_state,
                                   .copy_kv = far_copy_kv, .repeat = far_repeat, .free = far_free};
    c->remote.send = send_pass;
    c->remote.receive = receive_pass;
    c->remote.far = &c->far;
    c->remote.new_sequence = new_sequence;
    c->remote.reach = reach;
    c->remote.accept = accept;
    c->remote.add_cache_stats = add_cache_stats;
    c->n_ops = 0;
    c->number = 0;
}

void cluster_end(struct cluster *c)
{
    struct wire w;
    const struct wire_head quit = {.kind = WIRE_QUIT};
    if (c->rank == 0 && c->step == STEP_OPEN && !c->is_lost) {
        bool is_there = false;
        struct pause pause = {0};
        char *message = begin_message(c, &w, &quit);
        if (message != NULL)
            (void)send_message(c, message, wire_end(&w, 0, c->limits.row_floats));
        while (!c->is_lost && !is_there)
            if (receive_message(c, c->number, &w, &is_there) && !is_there && link_hear(c))
                pause_a_little(&pause);
    }
    beat_set_phase(c, BEAT_IDLE);
    link_close(c);
    member_close(c);
    c->step = STEP_NONE;
    c->engine = NULL;
    c->n_ops = 0;
}
