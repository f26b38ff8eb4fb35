/* The evaluation of one or several sessions: in passes, of which several may be under way when
 * other ranks have layers. */
#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "session/draft_mtp.h"
#include "session/session_internal.h"

static int check_item(const struct fm_model *m, const struct fm_batch_item *item,
                      struct fm_error *err)
{
    const struct fm_session *s = item->session;
    const uint32_t position = s->sequence->position;
    if (s->owner != m)
        return err_set(err, FM_ERR_ARG, "a session of another model is in the batch");
    if (item->n_ids == 0)
        return err_set(err, FM_ERR_ARG, "there are no tokens to evaluate");
    if (item->n_ids > engine_limits(&m->engine)->n_context - position)
        return err_set(err, FM_ERR_ARG,
                       "%zu tokens at position %u do not fit into a context of %u positions",
                       item->n_ids, position, engine_limits(&m->engine)->n_context);
    for (size_t i = 0; i < item->n_ids; i++)
        if (item->ids[i] < 0 || (uint32_t)item->ids[i] >= m->engine.model->shape.vocabulary)
            return err_set(err, FM_ERR_ARG, "token %zu has id %d, expected 0 to %u", i,
                           item->ids[i], m->engine.model->shape.vocabulary - 1);
    return 0;
}

static int check_items(struct fm_evaluation *e, struct fm_error *err)
{
    int rc = 0;
    const unsigned max = e->m->is_metadata_only ? 0 : engine_limits(&e->m->engine)->n_sessions;
    if (e->n_items == 0 || e->n_items > max)
        return err_set(err, FM_ERR_ARG, "%zu sessions in the batch, expected 1 to %u", e->n_items,
                       max);
    size_t n = 0;
    for (; n < e->n_items && rc == 0; n++) {
        struct fm_session *s = e->items[n].session;
        rc = check_item(e->m, &e->items[n], err);
        if (rc == 0 && s->evaluation == e)
            rc = err_set(err, FM_ERR_ARG, "a session is in the batch twice");
        else if (rc == 0 && s->evaluation != NULL)
            rc = err_set(err, FM_ERR_ARG, "a session in the batch is being evaluated already");
        if (rc != 0)
            break;
        s->evaluation = e;
        s->begin_position = s->sequence->position;
        s->n_done = 0;
        s->has_new_logits = false;
    }
    for (size_t i = 0; rc != 0 && i < n; i++)
        e->items[i].session->evaluation = NULL;
    return rc;
}

/* Reading an expert takes as long as computing so many rows with it: six were measured with one
 * thread, 1.2 with four on another machine. With three, neither loses more than 5 %, by
 * arithmetic. */
#define EXPERT_ROWS 3
#define PIECE_MIN 128

static struct fm_batch_item *item_of(const struct flight *f, uint32_t segment)
{
    assert(segment < f->batch.n_segments && f->items[segment] < f->of->n_items);
    return &f->of->items[f->items[segment]];
}

static struct fm_session *session_of(const struct flight *f, uint32_t segment)
{
    return item_of(f, segment)->session;
}

/* Ends the evaluation of one item. The first reason is kept. */
static void fail_item(struct fm_batch_item *item, const struct fm_failure *why)
{
    if (item->rc != 0)
        return;
    item->rc = why->code;
    item->session->failure = *why;
}

/* Returns whether an item has failed or was cancelled. Consumes the cancel request. */
static bool is_item_given_up(struct fm_batch_item *item)
{
    if (item->rc == 0 && session_take_cancel(item->session)) {
        const struct fm_failure why = session_failure(FM_ERR_CANCELLED, "cancelled");
        fail_item(item, &why);
    }
    return item->rc != 0;
}

static void take_fault(void *ctx, uint32_t segment, const struct batch_fault *fault)
{
    const struct flight *f = ctx;
    const struct fm_model *m = f->of->m;
    struct fm_error full = fault->err;
    struct fm_failure why = session_failure(fault->err.code, fault->err.text);
    why.layer = fault->layer;
    why.expert = fault->expert;
    if (fault->expert >= 0) /* the full text names the file */
        (void)snprintf(why.summary, sizeof why.summary, "expert %d of layer %d %s", fault->expert,
                       fault->layer, why.code == FM_ERR_IO ? "cannot be read" : "is damaged");
    else if (fm_model_lost(m) == NULL)
        (void)err_wrap(&full, why.code, "'%s'", m->engine.model->source->path);
    char where[sizeof fault->where];
    if (session_cluster_where(m, fault, where, sizeof where)) {
        const size_t used = strlen(why.summary);
        (void)snprintf(why.summary + used, sizeof why.summary - used, ", on %s", where);
        (void)err_wrap(&full, why.code, "%s", where);
    }
    memcpy(why.text, full.text, sizeof why.text);
    fail_item(item_of(f, segment), &why);
}

static bool is_given_up(void *ctx, uint32_t segment)
{
    const struct flight *f = ctx;
    session_cluster_look(f->of->m);
    return is_item_given_up(item_of(f, segment));
}

static void before_layer(void *ctx, uint32_t layer)
{
    const struct flight *f = ctx;
    struct fm_evaluation *e = f->of;
    const long n_before = mem_count();
    const uint32_t n_layers = e->m->engine.model->shape.n_layers;
    for (size_t i = 0; i < e->n_items; i++) {
        const struct fm_session *s = e->items[i].session;
        if (e->items[i].rc == 0 && s->observer.progress != NULL)
            s->observer.progress(s->observer.ctx,
                                 e->n_done * n_layers +
                                     (uint64_t)(f->n_rows - f->n_draft_rows) * layer,
                                 e->n_tokens * n_layers);
    }
    e->m->n_foreign += mem_count() - n_before;
    elastic_step(&e->m->engine);
}

static void show_hidden(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const float *x)
{
    const struct flight *f = ctx;
    const struct fm_session *s = session_of(f, segment);
    const long n_before = mem_count();
    const struct model_shape *shape = &f->of->m->engine.model->shape;
    s->observer.hidden(s->observer.ctx, layer, f->segments[segment].position + row, x,
                       layer == shape->n_layers ? shape->hidden : shape->row_floats);
    f->of->m->n_foreign += mem_count() - n_before;
}

static void show_route(void *ctx, uint32_t segment, uint32_t row, uint32_t layer,
                       const uint32_t *ids, const float *weights)
{
    const struct flight *f = ctx;
    const struct fm_session *s = session_of(f, segment);
    const long n_before = mem_count();
    s->observer.route(s->observer.ctx, layer, f->segments[segment].position + row,
                      f->of->m->engine.model->shape.n_experts_per_token, ids, weights);
    f->of->m->n_foreign += mem_count() - n_before;
}

/* Shows the logits behind a token of the session. Its own are counted later, when there is time. */
static void show_logits(struct fm_evaluation *e, struct fm_session *s, uint32_t position,
                        const float *logits)
{
    const uint32_t n = e->m->engine.model->shape.vocabulary;
    if (logits == s->logits) {
        s->is_counted = false;
    } else {
        session_count_logits(s); /* of the token before */
        (void)XXH3_128bits_update(s->hash, logits, n * sizeof *logits); /* fails for NULL only */
    }
    const long n_before = mem_count();
    if (s->observer.logits != NULL)
        s->observer.logits(s->observer.ctx, position, logits, n);
    e->m->n_foreign += mem_count() - n_before;
}

/* The last row of a segment leaves the session's logits, and a draft's go to the draft. */
static float *place_logits(void *ctx, uint32_t segment, uint32_t row)
{
    const struct flight *f = ctx;
    const struct fm_session *s = session_of(f, segment);
    const struct batch_segment *done = &f->segments[segment];
    if (done->n_drafts > 0 && row > 0)
        return s->draft.logits + (size_t)(row - 1) * f->of->m->engine.model->shape.vocabulary;
    return done->n_drafts > 0 || row + 1 == done->n_tokens ? s->next_logits : NULL;
}

/* What was computed becomes the session's logits. */
static void turn_logits(struct fm_session *s)
{
    float *before = s->logits;
    session_count_logits(s);
    s->logits = s->next_logits;
    s->next_logits = before;
    peaks_set(&s->owner->peaks, before, s->logits, s->next_peak);
    s->next_peak = -1;
}

static void take_peak(void *ctx, uint32_t segment, uint32_t row, uint32_t token)
{
    struct fm_session *s = session_of(ctx, segment);
    if (place_logits(ctx, segment, row) == s->next_logits)
        s->next_peak = token;
}

static void take_logits(void *ctx, uint32_t segment, uint32_t row, const float *logits)
{
    const struct flight *f = ctx;
    struct fm_session *s = session_of(f, segment);
    if (item_of(f, segment)->rc != 0)
        return; /* an earlier row failed */
    const struct batch_segment *done = &f->segments[segment];
    float *place = place_logits(ctx, segment, row);
    assert(row < done->n_tokens);
    s->has_new_logits = true;
    if (place != NULL && place != logits)
        memcpy(place, logits, session_logits_bytes(f->of->m));
    if (place == s->next_logits)
        turn_logits(s);
    if (done->n_drafts > 0)
        return; /* nobody sees them before the whole segment is computed */
    show_logits(f->of, s, done->position + row, place != NULL ? s->logits : logits);
    s->has_logits |= row + 1 == done->n_tokens;
}

/* The device computes: time for the logits of the token before. */
static void use_idle(void *ctx)
{
    const struct fm_evaluation *e = ((const struct flight *)ctx)->of;
    for (size_t i = 0; i < e->n_items; i++)
        session_count_logits(e->items[i].session);
}

static void take_draft_experts(void *ctx, uint32_t segment, uint32_t draft, uint32_t expert_layer,
                               const uint32_t *ids)
{
    const struct flight *f = ctx;
    const struct fm_model *m = f->of->m;
    const size_t k = m->engine.model->shape.n_experts_per_token;
    uint32_t *to = session_of(f, segment)->draft.experts + draft * session_draft_experts(m);
    memcpy(to + expert_layer * k, ids, k * sizeof *ids);
}

static void show_times(void *ctx, uint32_t layer, const struct batch_times *t)
{
    const struct flight *f = ctx;
    const long n_before = mem_count();
    for (uint32_t i = 0; i < f->batch.n_segments; i++) {
        const struct fm_session *s = session_of(f, i);
        const struct fm_layer_profile profile = {
            .layer = layer, .position = f->segments[i].position, .n_tokens = f->n_rows,
            .mix_ns = t->mix_ns, .route_ns = t->route_ns, .wait_ns = t->wait_ns,
            .compute_ns = t->compute_ns, .read_ns = t->read_ns, .n_hits = t->n_hits,
            .n_misses = t->n_misses, .bytes_read = t->bytes_read};
        if (item_of(f, i)->rc == 0 && s->observer.profile != NULL)
            s->observer.profile(s->observer.ctx, &profile);
    }
    f->of->m->n_foreign += mem_count() - n_before;
}

static bool is_profiled(const struct fm_evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++)
        if (e->items[i].session->observer.profile != NULL)
            return true;
    return false;
}

/* The rows of the pass before are known: what drafts need of them. */
static void follow(void *ctx)
{
    const struct flight *f = ctx;
    for (uint32_t i = 0; i < f->batch.n_segments; i++)
        draft_mtp_follow(session_of(f, i), &f->segments[i]);
}

/* Puts the guesses behind the one token of a segment. */
static void add_drafts(struct batch_segment *segment, const struct fm_session *s)
{
    assert(segment->n_tokens == 1 && segment->tokens[0] == s->draft.tokens[0]);
    segment->tokens = s->draft.tokens;
    segment->n_tokens += s->draft.n;
    segment->n_drafts = s->draft.n;
}

/* Returns into how many pieces to cut a prompt for the ranks. m pieces of R rows take as long as
 * m + ranks - 1 of them take one rank. Each reads nearly all experts, which takes as long as
 * `sweep` rows: so the time is (m + ranks - 1) (sweep + R / m), and least for this m. */
static uint32_t n_pieces(const struct fm_evaluation *e)
{
    const struct model_shape *shape = &e->m->engine.model->shape;
    const double k = shape->n_experts_per_token > 0 ? shape->n_experts_per_token : 1;
    const double sweep = EXPERT_ROWS * (shape->n_experts > 0 ? shape->n_experts : 1) / k;
    const double best = (e->m->n_ranks - 1) * (double)e->n_tokens / sweep; /* squared */
    uint32_t m = 1;
    while ((m + 0.5) * (m + 0.5) < best)
        m++;
    return m;
}

/* Returns how many rows a pass gets. Ranks that have all their experts in memory take a long prompt
 * in several pieces, so that all of them have one at a time. */
static uint32_t max_pass_rows(const struct fm_evaluation *e)
{
    const uint32_t max = engine_max_rows(&e->m->engine);
    if (e->is_decode || e->n_flights < 2 || !session_cluster_is_resident(e->m))
        return max;
    const uint32_t m = n_pieces(e);
    const uint64_t share = (e->n_tokens + m - 1) / m;
    const uint64_t rows = share > PIECE_MIN ? share : PIECE_MIN;
    return rows < max ? (uint32_t)rows : max;
}

static void fill_segment(struct flight *f, uint32_t item, uint32_t n, bool is_last)
{
    struct fm_session *s = f->of->items[item].session;
    const uint32_t at = f->batch.n_segments++;
    assert(at < engine_limits(&f->of->m->engine)->n_sessions);
    f->items[at] = item;
    f->segments[at] = (struct batch_segment){
        .sequence = s->sequence,
        .tokens = f->of->items[item].ids + s->n_done,
        .before = s->ids,
        .position = s->sequence->position,
        .n_tokens = n,
        .wants_last_logits = is_last,
        .wants_all_logits = s->observer.logits != NULL,
        .wants_hidden = s->observer.hidden != NULL,
        .wants_routes = s->observer.route != NULL,
        .is_first = s->n_done == 0,
        .mtp = draft_mtp_follows(s) ? &s->mtp : NULL,
    };
    if (s->draft.n > 0)
        add_drafts(&f->segments[at], s);
    else /* the next pass may begin before this one has ended */
        memmove(s->ids + s->sequence->position, f->segments[at].tokens, n * sizeof *s->ids);
    s->n_done += n;
    f->n_rows += n + s->draft.n;
    f->n_draft_rows += s->draft.n;
}

/* Fills one batch with the next tokens of each item, up to the maximum number of rows. Returns
 * whether there are any. */
static bool fill_batch(struct fm_evaluation *e, struct flight *f)
{
    const uint32_t max = max_pass_rows(e);
    f->of = e;
    f->n_rows = f->n_draft_rows = f->batch.n_segments = 0;
    for (uint32_t i = 0; i < e->n_items && f->n_rows < max; i++) {
        const struct fm_session *s = e->items[i].session;
        const size_t left = e->items[i].n_ids - s->n_done;
        if (left == 0 || is_item_given_up(&e->items[i]))
            continue;
        const uint32_t n = left < max - f->n_rows ? (uint32_t)left : max - f->n_rows;
        fill_segment(f, i, n, n == left);
    }
    return f->batch.n_segments > 0;
}

/* Goes back to the one token that is known to belong to the session. Drafts that fail do not
 * concern it: then it is computed once more, alone. */
static void remember_drafted(const struct flight *f, uint32_t segment)
{
    struct fm_session *s = session_of(f, segment);
    struct fm_batch_item *item = item_of(f, segment);
    if (item->rc == FM_ERR_CANCELLED)
        return;
    if (item->rc != 0) {
        sequence_rewind(s->sequence, s->begin_position);
        s->draft.n = s->n_done = 0;
        f->of->n_done--; /* has_new_logits stays: its logits may have been taken */
        item->rc = 0;
        s->failure = session_failure(0, "");
        return;
    }
    const bool is_there = sequence_go(s->sequence, s->begin_position + 1);
    assert(is_there);
    (void)is_there;
    s->ids[s->begin_position] = s->draft.tokens[0];
    s->has_logits = true;
    s->draft.n_taken = 0;
    draft_count_made(s);
    show_logits(f->of, s, s->begin_position, s->logits);
}

/* Marks the end of a prompt, because the next request often differs from there on. */
static void remember(const struct flight *f, uint32_t segment)
{
    struct fm_session *s = session_of(f, segment);
    const struct batch_segment *done = &f->segments[segment];
    if (done->n_drafts > 0) {
        remember_drafted(f, segment);
        return;
    }
    if (item_of(f, segment)->rc != 0)
        return;
    assert(s->sequence->position >= done->position + done->n_tokens);
    assert(s->sequence->position <= engine_limits(&f->of->m->engine)->n_context);
    if (done->n_tokens > 1 && done->wants_last_logits)
        sequence_mark(s->sequence);
}

/* ---- passes ---------------------------------------------------------------------------------- */

/* Ends the pass that has been under way for longest, whoever it belongs to. */
static void end_flight(struct fm_model *m)
{
    struct flight *f = m->in_flight[0];
    struct fm_evaluation *e = f->of;
    engine_end(&m->engine, f->pass);
    memmove(m->in_flight, m->in_flight + 1, --m->n_in_flight * sizeof m->in_flight[0]);
    f->pass = NULL;
    for (uint32_t i = 0; i < f->batch.n_segments; i++)
        remember(f, i);
    e->n_under_way--;
    e->n_passes++;
    e->n_pass_rows = f->n_rows;
    e->n_sessions = f->batch.n_segments;
}

/* Returns whether somebody sees what happens inside the passes of an evaluation. */
static bool is_observed(const struct fm_evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        const struct fm_observer *o = &e->items[i].session->observer;
        if (o->hidden != NULL || o->route != NULL || o->profile != NULL)
            return true;
    }
    return false;
}

/* Observers see one pass after the other: such a pass is under way alone, because what other ranks
 * tell of it comes beside the ring. */
static void make_way(struct fm_model *m, const struct fm_evaluation *e)
{
    bool waits = e->is_observed;
    for (uint32_t i = 0; i < m->n_in_flight; i++)
        waits |= m->in_flight[i]->of->is_observed;
    while (waits && m->n_in_flight > 0)
        end_flight(m);
}

/* Returns a place for a pass, which may have to wait for another one's end. */
static struct flight *free_flight(struct fm_model *m)
{
    struct flight *f = m->flights;
    if (m->is_paused)
        return &m->between_flight; /* the one that was left is not in_flight yet */
    if (m->n_in_flight == m->n_flights)
        end_flight(m);
    while (f->pass != NULL)
        f++;
    return f;
}

static bool wants_pause(void *ctx)
{
    const struct fm_model *m = ((const struct flight *)ctx)->of->m;
    return m->between.wants(m->between.ctx);
}

/* Lets other sessions be evaluated before the next layer. */
static void pause_flight(void *ctx)
{
    struct fm_evaluation *e = ((const struct flight *)ctx)->of;
    struct fm_model *m = e->m;
    const uint64_t begin_ns = plat_now_ns();
    const uint32_t stray_position = m->engine.stray_position;
    const long n_own = mem_count() - m->n_foreign;
    assert(!m->is_paused && m->n_in_flight == 0);
    m->is_paused = true;
    m->between.run(m->between.ctx);
    m->is_paused = false;
    assert(m->n_in_flight == 0);
    m->n_foreign = mem_count() - n_own;
    m->engine.stray_position = stray_position;
    e->paused_ns += plat_now_ns() - begin_ns;
}

bool session_can_pause(const struct fm_model *m)
{
    return !m->is_metadata_only && engine_can_pause(&m->engine);
}

void session_set_between(struct fm_model *m, const struct session_between *between)
{
    assert(session_can_pause(m));
    m->between = between != NULL ? *between : (struct session_between){0};
}

/* Begins the next pass of an evaluation. Returns false if all of its tokens are under way. */
static bool begin_flight(struct fm_evaluation *e)
{
    struct fm_model *m = e->m;
    make_way(m, e);
    struct flight *f = free_flight(m);
    if (!fill_batch(e, f))
        return false;
    m->engine.stray_position = e->stray_position;
    f->batch.segments = f->segments;
    f->batch.hooks = (struct batch_hooks){
        .ctx = f, .before_layer = before_layer, .is_given_up = is_given_up, .fault = take_fault,
        .hidden = show_hidden, .route = show_route, .draft_experts = take_draft_experts,
        .logits_place = place_logits, .peak = take_peak, .logits = take_logits,
        .idle = use_idle, .before_head = follow,
        .wants_pause = m->between.wants != NULL ? wants_pause : NULL, .pause = pause_flight,
        .times = is_profiled(e) ? show_times : NULL};
    if (m->cluster == NULL)
        follow(f);
    f->pass = engine_begin(&m->engine, &f->batch);
    m->in_flight[m->n_in_flight++] = f;
    e->n_under_way++;
    e->n_done += f->n_rows - f->n_draft_rows;
    return true;
}

/* Returns whether some tokens are not under way yet. */
static bool has_more(const struct fm_evaluation *e)
{
    size_t i = 0;
    while (i < e->n_items &&
           (e->items[i].rc != 0 || e->items[i].session->n_done == e->items[i].n_ids))
        i++;
    return i < e->n_items;
}

/* Begins as many passes as may be under way. Returns whether any are. */
static bool begin_flights(struct fm_evaluation *e)
{
    const long n_before = mem_count() - e->m->n_foreign;
    while (e->n_under_way < e->n_flights && has_more(e) && begin_flight(e))
        ;
    assert(mem_count() == n_before + e->m->n_foreign); /* the token path allocates nothing */
    (void)n_before;
    return e->n_under_way > 0;
}

/* Of evaluations that were under way together, each is given the time since the one before. */
static void count_tokens(const struct fm_evaluation *e)
{
    struct fm_model *m = e->m;
    const uint64_t now_ns = plat_now_ns();
    const bool is_first = e->is_between || e->begin_ns > m->counted_ns;
    const uint64_t since_ns = now_ns - (is_first ? e->begin_ns : m->counted_ns);
    /* pauses before counted_ns are in no time that is left */
    const uint64_t elapsed_ns = since_ns > e->paused_ns ? since_ns - e->paused_ns : 0;
    uint64_t n = 0;
    if (!e->is_between)
        m->counted_ns = now_ns;
    for (size_t i = 0; i < e->n_items; i++)
        n += e->items[i].rc == 0 ? e->items[i].n_ids : 0;
    if (n == 0)
        return;
    *(e->is_decode ? &m->n_decode_tokens : &m->n_prefill_tokens) += n;
    *(e->is_decode ? &m->decode_ns : &m->prefill_ns) += elapsed_ns;
    m->n_decode_passes += e->is_decode ? e->n_passes : 0;
    if (e->is_decode)
        draft_gate_spent(&m->gate, e->n_sessions, n, elapsed_ns,
                         e->is_on_trial && e->n_passes == 1);
    if (e->is_decode && e->n_passes == 1 && e->is_alone && elapsed_ns > e->predict_ns)
        draft_gate_time(&m->gate, e->n_pass_rows, elapsed_ns - e->predict_ns);
}

/* Rewinds sessions that were not finished to where they began, or to the nearest earlier
 * position. */
static void finish_items(const struct fm_evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        struct fm_session *s = e->items[i].session;
        s->evaluation = NULL;
        assert(e->items[i].rc != 0 ||
               s->sequence->position == s->begin_position + e->items[i].n_ids);
        if (e->items[i].rc == 0)
            continue;
        if (e->items[i].rc == FM_ERR_CANCELLED) /* also by requests that came since */
            session_forget_cancel(s);
        sequence_rewind(s->sequence, s->begin_position);
        s->draft.n = 0;
        assert(s->sequence->position <= s->begin_position && !s->sequence->is_torn);
        session_give_back(s);
        if (s->sequence->position < s->begin_position || s->has_new_logits)
            session_drop_logits(s);
    }
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* The one token of an item is a draft that was computed before: moves on to it. */
static void accept_draft(struct fm_evaluation *e, struct fm_batch_item *item)
{
    struct fm_model *m = e->m;
    struct fm_session *s = item->session;
    const uint32_t at = s->draft.n_taken++;
    const uint32_t *experts = s->draft.experts + at * session_draft_experts(m);
    const size_t vocabulary = m->engine.model->shape.vocabulary;
    s->ids[s->begin_position] = item->ids[0];
    session_count_logits(s);
    peaks_forget(&m->peaks, s->logits);
    memcpy(s->logits, s->draft.logits + at * vocabulary, vocabulary * sizeof *s->logits);
    engine_accept_draft(&m->engine, s->sequence, at, experts);
    s->n_done = 1;
    draft_count_accepted(s, at);
    show_logits(e, s, s->begin_position, s->logits);
}

/* Looks whether the tokens of items are drafts that were computed before, and forgets drafts that
 * were wrong. */
static void take_drafts(struct fm_evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        struct fm_session *s = e->items[i].session;
        const uint32_t at = s->draft.n_taken;
        if (s->draft.n == 0 || is_item_given_up(&e->items[i]))
            continue;
        const bool is_right = at < s->draft.n && e->items[i].n_ids == 1 &&
                              e->items[i].ids[0] == s->draft.tokens[1 + at];
        if (at < s->draft.n)
            draft_gate_result(&e->m->gate, s->draft.source, s->draft.sure[at], at, is_right);
        if (is_right && sequence_go(s->sequence, s->begin_position + 1))
            accept_draft(e, &e->items[i]);
        else
            s->draft.n = 0;
    }
}

/* Guesses what follows the tokens of the items that have to be computed. */
static void make_drafts(struct fm_evaluation *e)
{
    e->m->engine.stray_position = UINT32_MAX;
    if (e->is_decode && engine_limits(&e->m->engine)->n_drafts > 0)
        e->predict_ns = draft_make(e->m, e->items, e->n_items, &e->is_on_trial);
    e->stray_position = e->m->engine.stray_position;
}

/* Reserves memory for all tokens before any is computed. An item that gets none fails alone. */
static void reach_all(const struct fm_evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        struct fm_batch_item *item = &e->items[i];
        struct fm_error err = {0};
        struct draft *draft = &item->session->draft;
        const uint32_t end = item->session->sequence->position + (uint32_t)item->n_ids;
        if (item->session->n_done > 0)
            continue; /* computed before */
        if (draft->n > 0 && session_reach(item->session, end + draft->n, NULL) == 0)
            continue;
        draft->n = 0;
        const int rc = session_reach(item->session, end, &err);
        const struct fm_failure why = session_failure(rc, err.text);
        if (rc != 0)
            fail_item(item, &why);
    }
}

/* Returns the result of the whole call from the outcomes of its items. */
static int batch_result(const struct fm_evaluation *e, struct fm_error *err)
{
    size_t n_cancelled = 0;
    for (size_t i = 0; i < e->n_items; i++) {
        if (e->items[i].rc != 0 && e->items[i].rc != FM_ERR_CANCELLED)
            return err_set(err, e->items[i].rc, "%s", e->items[i].session->failure.text);
        n_cancelled += e->items[i].rc != 0;
    }
    return n_cancelled == 0 ? 0 : err_set(err, FM_ERR_CANCELLED, "cancelled: %zu of %zu session(s)",
                                          n_cancelled, e->n_items);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Returns an evaluation that nobody uses. There are as many as sessions. */
static struct fm_evaluation *free_evaluation(const struct fm_model *m)
{
    struct fm_evaluation *e = m->evaluations;
    const uint32_t n = m->is_metadata_only ? 0 : engine_limits(&m->engine)->n_sessions;
    while (e < m->evaluations + n && e->m != NULL)
        e++;
    return e < m->evaluations + n ? e : NULL;
}

/* Prepares the items and begins their passes. */
static void begin_items(struct fm_evaluation *e)
{
    take_drafts(e);
    for (size_t i = 0; i < e->n_items; i++)
        if (e->items[i].session->n_done == 0)
            mtp_state_go(&e->items[i].session->mtp, e->items[i].session->sequence->position);
    make_drafts(e);
    reach_all(e);
    e->is_observed = is_observed(e);
    e->n_flights = e->is_observed ? 1 : e->m->n_flights;
    (void)begin_flights(e);
}

/* What passes take together says nothing about one of them. */
static void note_company(struct fm_evaluation *e)
{
    const struct fm_model *m = e->m;
    e->is_alone = true;
    for (uint32_t i = 0; i < engine_limits(&m->engine)->n_sessions; i++) {
        struct fm_evaluation *other = &m->evaluations[i];
        if (other->m != NULL && other != e)
            other->is_alone = e->is_alone = false;
    }
}

/* The host may have set another rounding mode; the results must not depend on it. */
static void enter(fenv_t *host)
{
    (void)feholdexcept(host);
    (void)fesetenv(FE_DFL_ENV);
}

int fm_eval_begin(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                  struct fm_evaluation **out, struct fm_error *err)
{
    struct fm_evaluation *e = free_evaluation(m), none = {0};
    struct fm_evaluation *checked = e != NULL ? e : &none;
    fenv_t host;
    *out = NULL;
    *checked = (struct fm_evaluation){.m = m, .items = items, .n_items = n_items,
                                      .is_decode = true, .is_between = m->is_paused,
                                      .begin_ns = plat_now_ns()};
    int rc = check_items(checked, err);
    for (size_t i = 0; i < n_items; i++)
        items[i].rc = rc;
    if (rc != 0) {
        checked->m = NULL;
        return rc;
    }
    assert(e != NULL); /* every other one has a session that these are not */
    for (size_t i = 0; i < n_items; i++) {
        e->n_tokens += items[i].n_ids;
        e->is_decode &= items[i].n_ids == 1 && items[i].session->sequence->position > 0;
        items[i].session->failure = session_failure(0, "");
    }
    note_company(e);
    enter(&host);
    begin_items(e);
    (void)fesetenv(&host);
    *out = e;
    return 0;
}

int fm_eval_end(struct fm_evaluation *e, struct fm_error *err)
{
    fenv_t host;
    enter(&host);
    while (begin_flights(e))
        end_flight(e->m);
    finish_items(e);
    (void)fesetenv(&host);
    count_tokens(e);
    const int rc = batch_result(e, err);
    e->m = NULL;
    return rc;
}

int fm_eval_batch(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                  struct fm_error *err)
{
    struct fm_evaluation *e;
    const int rc = fm_eval_begin(m, items, n_items, &e, err);
    return rc != 0 ? rc : fm_eval_end(e, err);
}

unsigned fm_model_evaluations(const struct fm_model *m)
{
    return m->n_ranks > 1 ? m->n_ranks : 1;
}
