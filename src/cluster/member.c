/* A rank that computes for the first one: it takes messages from the rank before, does what they
 * say to its part of the sequences, takes the rows through its layers and passes all of it on. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"

static struct stage *own_stage(const struct cluster *c)
{
    return &c->engine->stages[0];
}

static uint32_t n_own_experts(const struct cluster *c)
{
    const struct model *model = own_stage(c)->model;
    return model_n_own_expert_layers(model) * model->shape.n_experts_per_token;
}

/* ---- open and close -------------------------------------------------------------------------- */

int member_open(struct cluster *c, struct fm_error *err)
{
    struct member *m = &c->member;
    const uint32_t n = c->limits.max_segments;
    const uint64_t ids = c->engine->model->shape.n_experts_per_token * 8ull;
    const uint64_t row = c->limits.row_floats * sizeof(float);
    *m = (struct member){.note_bytes = sizeof(struct note) + (row > ids ? row : ids)};
    m->note_bytes = mem_round_up(m->note_bytes, MEM_CACHE_LINE);
    c->note_bytes = m->note_bytes;
    c->has_sequence = mem_new(n, sizeof *c->has_sequence, "the cluster", err);
    c->told = mem_new((size_t)CLUSTER_PASSES * n, sizeof *c->told, "the cluster", err);
    c->note = mem_new_aligned(MEM_CACHE_LINE, c->note_bytes, "the cluster", err);
    m->sequences = mem_new(n, sizeof *m->sequences, "the cluster", err);
    m->segments = mem_new(n, sizeof *m->segments, "the cluster", err);
    m->is_left = mem_new(n, sizeof *m->is_left, "the cluster", err);
    m->notes = mem_new_aligned(MEM_CACHE_LINE, NOTES_AHEAD * m->note_bytes, "the cluster", err);
    return c->has_sequence == NULL || c->told == NULL || c->note == NULL ||
                   m->sequences == NULL || m->segments == NULL || m->is_left == NULL ||
                   m->notes == NULL
               ? FM_ERR_NOMEM
               : 0;
}

static void forget_sequence(struct member_sequence *s)
{
    sequence_free(s->sequence);
    mem_free(s->ids);
    mem_free(s->drafts);
    *s = (struct member_sequence){0};
}

void member_close(struct cluster *c)
{
    struct member *m = &c->member;
    struct pause pause = {0};
    for (unsigned i = 0; m->notes != NULL && i < NOTES_AHEAD; i++)
        while (!c->is_lost && !c->t->ops->is_sent(c->t, &m->note_sends[i]))
            pause_a_little(&pause);
    for (uint32_t i = 0; m->sequences != NULL && i < c->limits.max_segments; i++)
        forget_sequence(&m->sequences[i]);
    mem_free(m->sequences);
    mem_free(m->segments);
    mem_free(m->is_left);
    mem_free(m->notes);
    mem_free(c->has_sequence);
    mem_free(c->told);
    mem_free(c->note);
    c->has_sequence = c->told = NULL;
    c->n_away = 0;
    c->note = NULL;
    *m = (struct member){0};
}

void member_stats(const struct cluster *c, struct cluster_rank_stats *stats)
{
    const struct stage *stage = own_stage(c);
    *stats = (struct cluster_rank_stats){
        .first_layer = stage->model->first_layer, .end_layer = stage->model->end_layer,
        .n_expert_layers = model_n_own_expert_layers(stage->model),
        .n_threads = stage->budget.n_threads, .budget = stage->budget.total,
        .cache = stage->budget.cache, .resident_peak = plat_resident_peak_bytes(),
        .busy_ns = c->rank == 0 ? c->engine->busy_ns : c->busy_ns,
        .bytes_sent = c->bytes_sent, .n_messages = c->n_messages};
    if (stage->cache != NULL)
        expert_cache_stats(stage->cache, &stats->experts);
    (void)snprintf(stats->cpu_level, sizeof stats->cpu_level, "%s", stage->be->level);
}

/* ---- hooks of a pass ------------------------------------------------------------------------- */

/* How often the control channel is looked at while layers are computed. */
#define LOOK_NS 200000ull

static bool is_given_up(void *ctx, uint32_t segment)
{
    struct cluster *c = ctx;
    struct member *m = &c->member;
    const uint64_t now_ns = plat_now_ns();
    if (now_ns - m->looked_ns > LOOK_NS) {
        m->looked_ns = now_ns;
        link_answer(c);
        (void)c->t->ops->is_sent(c->t, &c->out_sends[1 - c->next_out]); /* lets it go on */
    }
    for (uint32_t i = 0; i < m->n_cancels && i < RECENT_CANCELS; i++)
        if (m->cancels[i].number == m->number && m->cancels[i].segment == segment)
            m->is_left[segment] = true;
    return m->is_left[segment];
}

static void before_layer(void *ctx, uint32_t layer)
{
    struct cluster *c = ctx;
    (void)layer;
    elastic_step(c->engine);
}

static void take_fault(void *ctx, uint32_t segment, const struct batch_fault *fault)
{
    struct cluster *c = ctx;
    struct member *m = &c->member;
    const struct wire_fault facts = {segment, fault->layer, fault->expert};
    const struct wire_result result = {
        .kind = RESULT_FAULT, .rank = c->rank, .code = fault->err.code,
        .bytes = (uint32_t)(sizeof facts + strlen(fault->err.text))};
    if (m->is_left[segment])
        return;
    m->is_left[segment] = true;
    (void)wire_add(&m->out, &c->limits, &result, &facts, sizeof facts, fault->err.text);
}

/* Sends a note to the first rank. `a` and `b` follow it. */
static void send_note(struct cluster *c, const struct note *note, const void *a, uint64_t a_bytes,
                      const void *b, uint64_t b_bytes)
{
    struct member *m = &c->member;
    struct fm_error err;
    struct pause pause = {0};
    const uint32_t at = m->next_note++ % NOTES_AHEAD;
    char *bytes = m->notes + at * m->note_bytes;
    while (!c->t->ops->is_sent(c->t, &m->note_sends[at])) {
        link_answer(c);
        if (c->is_lost)
            return;
        pause_a_little(&pause);
    }
    memcpy(bytes, note, sizeof *note);
    if (a_bytes > 0)
        memcpy(bytes + sizeof *note, a, a_bytes);
    if (b_bytes > 0)
        memcpy(bytes + sizeof *note + a_bytes, b, b_bytes);
    if (c->t->ops->send(c->t, 0, CHANNEL_NOTE, bytes, sizeof *note + a_bytes + b_bytes,
                        &m->note_sends[at], &err) == 0)
        m->n_notes++;
}

static void show_hidden(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const float *x)
{
    struct cluster *c = ctx;
    const struct note note = {.kind = NOTE_HIDDEN, .segment = segment, .row = row, .layer = layer,
                              .number = c->member.number};
    send_note(c, &note, x, c->limits.row_floats * sizeof *x, NULL, 0);
}

static void show_route(void *ctx, uint32_t segment, uint32_t row, uint32_t layer,
                       const uint32_t *ids, const float *weights)
{
    struct cluster *c = ctx;
    const uint64_t bytes = c->engine->model->shape.n_experts_per_token * sizeof *ids;
    const struct note note = {.kind = NOTE_ROUTE, .segment = segment, .row = row, .layer = layer,
                              .number = c->member.number};
    send_note(c, &note, ids, bytes, weights, bytes);
}

static void show_times(void *ctx, uint32_t layer, const struct batch_times *times)
{
    struct cluster *c = ctx;
    const struct note note = {.kind = NOTE_TIMES, .layer = layer, .number = c->member.number,
                              .times = *times};
    send_note(c, &note, NULL, 0, NULL, 0);
}

static void take_draft_experts(void *ctx, uint32_t segment, uint32_t draft, uint32_t expert_layer,
                               const uint32_t *ids)
{
    struct cluster *c = ctx;
    const struct model *model = own_stage(c)->model;
    const uint32_t k = model->shape.n_experts_per_token;
    const struct wire_segment *s = &c->member.out.segments[segment];
    uint32_t *to = c->member.sequences[s->sequence].drafts;
    const uint32_t within = expert_layer - model->first_expert_layer;
    assert(draft < c->limits.n_drafts && within < model_n_own_expert_layers(model));
    memcpy(to + (size_t)draft * n_own_experts(c) + (size_t)within * k, ids, k * sizeof *ids);
}

static void use_idle(void *ctx)
{
    (void)ctx;
}

/* ---- operations on sequences ----------------------------------------------------------------- */

static int damaged(const struct wire_op *op, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT, "an operation on sequences is damaged: %u (%u, %u, %u, %u)",
                   op->kind, op->a, op->b, op->c, op->d);
}

static struct sequence *find_sequence(const struct cluster *c, uint32_t id)
{
    return id < c->limits.max_segments ? c->member.sequences[id].sequence : NULL;
}

static void accept_draft(struct cluster *c, uint32_t id, uint32_t draft)
{
    struct stage *stage = own_stage(c);
    const uint32_t k = stage->model->shape.n_experts_per_token;
    const uint32_t *ids = c->member.sequences[id].drafts + (size_t)draft * n_own_experts(c);
    struct expert_use uses[LIMIT_TOP_K];
    for (uint32_t l = 0; l < model_n_own_expert_layers(stage->model); l++) {
        for (uint32_t i = 0; i < k; i++)
            uses[i] = (struct expert_use){.expert = ids[l * k + i], .n_uses = 1};
        expert_cache_accept(stage->cache, l, uses, k);
    }
}

static int reach(struct cluster *c, struct sequence *s, uint32_t n_positions, uint32_t position,
                 struct fm_error *err)
{
    if (n_positions > c->limits.n_context || position > n_positions)
        return err_set(err, FM_ERR_FORMAT, "%u positions are asked for at %u, the context has %u",
                       n_positions, position, c->limits.n_context);
    s->position = position;
    return engine_reach(c->engine, s, n_positions, err);
}

static void copy_ids(struct cluster *c, uint32_t to, uint32_t from, uint32_t n)
{
    memcpy(c->member.sequences[to].ids, c->member.sequences[from].ids, n * sizeof(int32_t));
}

static int apply(struct cluster *c, const struct wire_op *op, struct fm_error *err)
{
    struct sequence *s = find_sequence(c, op->a), *from;
    const uint32_t n_states = s != NULL ? s->n_slots + s->n_marks : 0;
    if (op->kind == WIRE_FREE && op->a < c->limits.max_segments) {
        if (s != NULL)
            (void)engine_reach(c->engine, s, s->position = 0, NULL);
        forget_sequence(&c->member.sequences[op->a]);
        return 0;
    }
    if (s == NULL)
        return damaged(op, err);
    switch ((enum wire_op_kind)op->kind) {
    case WIRE_CLEAR:
        if (op->b >= n_states)
            return damaged(op, err);
        sequence_clear_state(s, op->b);
        return 0;
    case WIRE_COPY_STATE:
        from = find_sequence(c, op->c);
        if (from == NULL || op->b >= n_states || op->d >= n_states)
            return damaged(op, err);
        sequence_copy_state(s, op->b, from, op->d);
        return 0;
    case WIRE_COPY_KV:
        from = find_sequence(c, op->b);
        if (from == NULL || !sequence_holds(s, op->c) || !sequence_holds(from, op->c) ||
            op->c > c->limits.n_context)
            return damaged(op, err);
        sequence_copy_kv(s, from, op->c);
        copy_ids(c, op->a, op->b, op->c);
        return 0;
    case WIRE_REPEAT:
        if (op->b < s->parts[0].blocks.n_positions || op->c < op->b || !sequence_holds(s, op->c))
            return damaged(op, err);
        s->position = op->b;
        s->is_torn = false;
        sequence_repeat(s, op->c);
        return 0;
    case WIRE_REACH:
        return reach(c, s, op->b, op->c, err);
    case WIRE_ACCEPT:
        if (op->b >= c->limits.n_drafts)
            return damaged(op, err);
        accept_draft(c, op->a, op->b);
        return 0;
    case WIRE_FREE:
        break;
    }
    return damaged(op, err);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Prepares the sequences of a message for a pass, as the first rank has prepared its own. */
static int take_segments(struct cluster *c, const struct wire *w, struct fm_error *err)
{
    struct member *m = &c->member;
    uint32_t token = 0;
    for (uint32_t i = 0; i < w->head->n_segments; i++) {
        const struct wire_segment *from = &w->segments[i];
        struct sequence *s = find_sequence(c, from->sequence);
        if (s == NULL || from->slot >= s->n_slots ||
            !sequence_holds(s, from->position + from->n_tokens))
            return err_set(err, FM_ERR_FORMAT, "segment %u is of sequence %u at %u, which is not "
                           "here or has no room", i, from->sequence, from->position);
        struct member_sequence *own = &m->sequences[from->sequence];
        s->position = from->position;
        s->slot = from->slot;
        s->next_position = from->next_position;
        s->next_mark = from->next_mark;
        s->trail.is_there = (from->flags & SEGMENT_TRAIL) != 0;
        own->is_broken &= (from->flags & SEGMENT_FIRST) == 0;
        m->is_left[i] = (from->flags & SEGMENT_LEFT) != 0 || own->is_broken;
        memcpy(own->ids + from->position, w->tokens + token, from->n_tokens * sizeof(int32_t));
        m->segments[i] = (struct batch_segment){
            .sequence = s, .tokens = w->tokens + token, .before = own->ids,
            .n_tokens = from->n_tokens, .n_drafts = from->n_drafts,
            .wants_last_logits = (from->flags & SEGMENT_LAST) != 0,
            .wants_hidden = (from->flags & SEGMENT_HIDDEN) != 0,
            .wants_routes = (from->flags & SEGMENT_ROUTES) != 0};
        token += from->n_tokens;
    }
    return 0;
}

/* Copies the message up to its rows into the buffer that is passed on. */
static bool begin_reply(struct cluster *c, const struct wire *w)
{
    char *bytes = link_buffer(c);
    if (bytes == NULL)
        return false;
    const uint64_t n = (uint64_t)(w->results - (const char *)w->head) + w->head->result_bytes;
    memcpy(bytes, w->head, n);
    const uint32_t result_bytes = w->head->result_bytes;
    wire_begin(&c->member.out, bytes);
    c->member.out.head->result_bytes = result_bytes;
    return true;
}

/* Rows of segments that were broken here before are not computed: leaves them out. */
static void take_rows(struct cluster *c, const struct wire *w, struct pass *pass)
{
    const struct member *m = &c->member;
    const size_t floats = c->limits.row_floats;
    uint32_t n = 0, row = 0, kept_rows = 0;
    for (uint32_t i = 0; i < w->head->n_segments; i++) {
        const uint32_t n_rows = (w->segments[i].flags & SEGMENT_LEFT) != 0
                                    ? 0 : w->segments[i].n_tokens;
        if (!m->is_left[i]) {
            memcpy(pass->rows + kept_rows * floats, w->rows + row * floats,
                   n_rows * floats * sizeof(float));
            kept_rows += n_rows;
            pass->kept[n++] = i;
        }
        row += n_rows;
    }
    pass_keep(pass, pass->kept, n);
}

/* How often a rank tells its numbers with a pass. */
#define TELL_NS 50000000ull

static void add_stats(struct cluster *c)
{
    struct cluster_rank_stats stats;
    const struct wire_result result = {.kind = RESULT_STATS, .rank = c->rank,
                                       .bytes = sizeof stats};
    member_stats(c, &stats);
    (void)wire_add(&c->member.out, &c->limits, &result, &stats, sizeof stats, NULL);
}

static void add_results(struct cluster *c)
{
    struct member *m = &c->member;
    const uint64_t now_ns = plat_now_ns();
    const struct wire_result notes = {.kind = RESULT_NOTES, .rank = c->rank,
                                      .bytes = sizeof m->n_notes};
    if (m->n_notes > 0)
        (void)wire_add(&m->out, &c->limits, &notes, &m->n_notes, sizeof m->n_notes, NULL);
    if (now_ns - m->told_ns < TELL_NS)
        return;
    m->told_ns = now_ns;
    add_stats(c);
}

static int run_pass(struct cluster *c, struct wire *w, struct fm_error *err)
{
    struct member *m = &c->member;
    struct pass *pass = &c->engine->passes[0];
    const uint64_t begin_ns = plat_now_ns();
    int rc = take_segments(c, w, err);
    if (rc != 0 || !begin_reply(c, w))
        return rc != 0 ? rc : cluster_explain(c, err);
    const struct batch batch = {
        .segments = m->segments, .n_segments = w->head->n_segments,
        .hooks = {.ctx = c, .before_layer = before_layer, .is_given_up = is_given_up,
                  .fault = take_fault, .hidden = show_hidden, .route = show_route,
                  .draft_experts = take_draft_experts, .idle = use_idle,
                  .times = (w->head->flags & WIRE_TIMED) != 0 ? show_times : NULL}};
    m->number = w->head->number;
    m->n_notes = 0;
    pass_lay_out(pass, &batch);
    take_rows(c, w, pass);
    if (pass->n_segments > 0)
        forward_run(own_stage(c)->forward, pass);
    for (uint32_t i = 0, in_pass = 0; i < batch.n_segments; i++) {
        const bool is_there = in_pass < pass->n_segments && pass->in_batch[in_pass] == i;
        in_pass += is_there;
        if (is_there)
            continue;
        m->out.segments[i].flags |= SEGMENT_LEFT;
        m->sequences[m->out.segments[i].sequence].is_broken = true;
    }
    add_results(c);
    const uint64_t n = wire_end(&m->out, pass->n_rows, c->limits.row_floats);
    memcpy(m->out.rows, pass->rows, (size_t)pass->n_rows * c->limits.row_floats * sizeof(float));
    m->out.head->busy_ns += plat_now_ns() - begin_ns;
    return link_send(c, (char *)m->out.head, n, err);
}

/* ---- questions ------------------------------------------------------------------------------- */

static int make_sequence(struct cluster *c, uint32_t id, struct fm_error *err)
{
    const size_t n_drafts = (size_t)c->limits.n_drafts * n_own_experts(c);
    if (id >= c->limits.max_segments)
        return err_set(err, FM_ERR_FORMAT, "there is no sequence %u", id);
    struct member_sequence *s = &c->member.sequences[id];
    forget_sequence(s);
    s->ids = mem_new(c->limits.n_context, sizeof *s->ids, "a sequence's tokens", err);
    s->drafts = mem_new(n_drafts > 0 ? n_drafts : 1, sizeof *s->drafts, "a sequence's drafts",
                        err);
    int rc = s->ids == NULL || s->drafts == NULL ? FM_ERR_NOMEM : 0;
    if (rc == 0)
        rc = engine_new_sequence(c->engine, &s->sequence, err);
    if (rc != 0)
        forget_sequence(s);
    return rc;
}

#define TOLD_BYTES 16384 /* of an answer, at most: layers with more experts are not told */

/* Writes what is known of the experts of a layer, if this rank has it. Returns the bytes. */
static uint32_t tell_experts(struct cluster *c, uint32_t expert_layer, char *bytes)
{
    uint32_t within;
    const struct stage *stage = engine_find_expert_layer(c->engine, expert_layer, &within);
    const uint32_t n = c->engine->model->shape.n_experts;
    struct lookahead_layer layer;
    double recall = -1;
    if (stage == NULL || 3ull * n + sizeof recall > TOLD_BYTES)
        return 0;
    const struct heat *heat = expert_cache_heat(stage->cache);
    expert_cache_resident(stage->cache, within, (bool *)bytes);
    for (uint32_t i = 0; i < n; i++)
        bytes[n + i] = (char)(uint8_t)(heat_level(heat, within, i) * 255 + 0.5);
    expert_cache_tiers(stage->cache, within, (uint8_t *)bytes + 2ull * n);
    if (forward_recall(stage->forward, within, &layer) && layer.n_needed > 0)
        recall = (double)layer.n_predicted / (double)layer.n_needed;
    memcpy(bytes + 3ull * n, &recall, sizeof recall);
    return 3 * n + (uint32_t)sizeof recall;
}

static int answer_part(struct cluster *c, const struct question *q, const char *bytes,
                       struct fm_error *err)
{
    struct part_request request;
    struct sequence *s = find_sequence(c, q->a);
    const bool loads = q->kind == ASK_LOAD;
    const uint64_t ids = loads ? q->b * sizeof(int32_t) : 0;
    if (s == NULL || q->b > c->limits.n_context || !sequence_holds(s, q->b) ||
        q->bytes <= sizeof request + ids || bytes[q->bytes - 1] != '\0')
        return err_set(err, FM_ERR_FORMAT, "a request for a snapshot of sequence %u is damaged",
                       q->a);
    memcpy(&request, bytes, sizeof request);
    if (request.n_marks > SEQUENCE_MARKS || request.slot >= s->n_slots)
        return err_set(err, FM_ERR_FORMAT, "a request for a snapshot has %u marks",
                       request.n_marks);
    for (uint32_t i = 0; i < request.n_marks; i++)
        if (request.marks[i] >= s->n_marks && !loads)
            return err_set(err, FM_ERR_FORMAT, "a request for a snapshot has mark %u",
                           request.marks[i]);
    const char *path = bytes + sizeof request + ids;
    s->slot = request.slot;
    if (!loads)
        return part_save(c, s, &request, q->b, path, err);
    memcpy(c->member.sequences[q->a].ids, bytes + sizeof request, ids);
    return part_load(c, s, &request, q->b, path, err);
}

static int answer(struct cluster *c, const struct question *q, const char *bytes, char *told,
                  uint32_t *n_told, struct fm_error *err)
{
    uint64_t hash = 0;
    int rc = 0;
    switch ((enum question_kind)q->kind) {
    case ASK_NOTHING:
    case ASK_STATS:
        return 0;
    case ASK_NEW:
        return make_sequence(c, q->a, err);
    case ASK_REACH:
        if (find_sequence(c, q->a) == NULL || q->c > UINT32_MAX)
            break;
        return reach(c, find_sequence(c, q->a), q->b, (uint32_t)q->c, err);
    case ASK_EXPERTS:
        *n_told = tell_experts(c, q->a, told);
        return 0;
    case ASK_MEMORY:
        return q->a == c->rank ? elastic_set(c->engine, q->c, err) : 0;
    case ASK_IDENTITY:
        rc = identity_add_dense(own_stage(c)->model, &hash, err);
        if (rc == 0)
            rc = identity_add_samples(own_stage(c)->model, &hash, err);
        memcpy(told, &hash, sizeof hash);
        *n_told = sizeof hash;
        return rc;
    case ASK_SAVE:
    case ASK_LOAD:
        return answer_part(c, q, bytes, err);
    case ASK_DROP:
    case ASK_TIDY:
        if (q->bytes == 0 || bytes[q->bytes - 1] != '\0')
            break;
        if (q->kind == ASK_DROP)
            part_drop(c, bytes);
        else
            part_tidy(c, bytes);
        return 0;
    }
    return err_set(err, FM_ERR_FORMAT, "question %u of the cluster is damaged", q->kind);
}

static int answer_question(struct cluster *c, struct wire *w, struct fm_error *err)
{
    static const struct question none = {0};
    struct question q = none;
    char told[TOLD_BYTES];
    uint32_t n_told = 0;
    struct fm_error why = {0};
    const bool is_whole = w->head->question_bytes >= sizeof q;
    if (is_whole)
        memcpy(&q, w->question, sizeof q);
    if (!is_whole || q.bytes != w->head->question_bytes - sizeof q)
        return err_set(err, FM_ERR_FORMAT, "a question of the cluster is damaged");
    if (!begin_reply(c, w))
        return cluster_explain(c, err);
    struct wire *out = &c->member.out;
    struct wire_result result = {.kind = RESULT_ANSWER, .rank = c->rank};
    result.code = answer(c, &q, w->question + sizeof q, told, &n_told, &why);
    result.bytes = result.code != 0 ? (uint32_t)strlen(why.text) : n_told;
    if (!wire_add(out, &c->limits, &result, NULL, 0, result.code != 0 ? why.text : told))
        return err_set(err, FM_ERR_FORMAT, "the answers of the ranks are too long");
    if (q.kind == ASK_STATS)
        add_stats(c);
    return link_send(c, (char *)out->head, wire_end(out, 0, c->limits.row_floats), err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Takes one message. *is_over: the model is closed. */
static int handle(struct cluster *c, uint64_t n, bool *is_over, struct fm_error *err)
{
    struct wire w;
    int rc = wire_read(&w, c->in, n, &c->limits, err);
    for (uint32_t i = 0; rc == 0 && i < w.head->n_ops; i++)
        rc = apply(c, &w.ops[i], err);
    if (rc != 0)
        return rc;
    c->engine->stray_position = w.head->stray_position;
    if (w.head->kind == WIRE_RUN)
        return run_pass(c, &w, err);
    if (w.head->kind == WIRE_ASK)
        return answer_question(c, &w, err);
    *is_over = true;
    if (!begin_reply(c, &w))
        return cluster_explain(c, err);
    return link_send(c, (char *)c->member.out.head,
                     wire_end(&c->member.out, 0, c->limits.row_floats), err);
}

/* Tells the first rank why this one ends. It may be the one that is gone. */
#define TELL_FAILURE_NS 500000000ull

static void tell_failure(struct cluster *c, const struct fm_error *err)
{
    struct control_slot *slot = &c->fail;
    struct pause pause = {0};
    const uint64_t begin_ns = plat_now_ns();
    slot->message = (struct control){.kind = CONTROL_FAIL};
    (void)snprintf(slot->message.text, TEXT_BYTES, "%s", err->text);
    if (c->t->ops->send(c->t, 0, CHANNEL_CONTROL, &slot->message, sizeof slot->message,
                        &slot->send, NULL) != 0)
        return;
    while (!c->t->ops->is_sent(c->t, &slot->send) && plat_now_ns() - begin_ns < TELL_FAILURE_NS)
        pause_a_little(&pause);
}

int cluster_serve(struct cluster *c, struct fm_error *err)
{
    bool is_over = false;
    int rc = 0;
    assert(c->rank > 0 && c->step == STEP_OPEN);
    struct pause pause = {0};
    while (rc == 0 && !is_over) {
        uint64_t n = 0;
        rc = link_receive(c, &n, err);
        const uint64_t begin_ns = plat_now_ns();
        if (rc == 0 && n > 0) {
            rc = handle(c, n, &is_over, err);
            c->busy_ns += plat_now_ns() - begin_ns;
            pause = (struct pause){0};
            continue;
        }
        link_answer(c);
        if (rc == 0 && c->is_lost)
            rc = cluster_explain(c, err);
        if (rc == 0)
            pause_a_little(&pause);
    }
    if (rc != 0)
        tell_failure(c, err);
    return rc;
}
