/* fm_session: one sequence, and the evaluation of one or several sequences. */
#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "base/sized.h"
#include "session/draft_mtp.h"
#include "session/session_internal.h"

/* Makes a failure that names no file. */
static struct fm_failure failure_of(int code, const char *text)
{
    struct fm_failure why = {.code = code, .layer = -1, .expert = -1};
    (void)snprintf(why.text, sizeof why.text, "%s", text);
    memcpy(why.summary, why.text, sizeof why.summary);
    return why;
}

static uint64_t logits_bytes(const struct fm_model *m)
{
    return m->engine.model->shape.vocabulary * sizeof(float);
}

static size_t draft_experts_of(const struct fm_model *m)
{
    return (size_t)model_n_own_expert_layers(m->engine.model) *
           m->engine.model->shape.n_experts_per_token;
}

static bool open_logits(struct fm_session *s, struct fm_error *err)
{
    for (unsigned i = 0; i < 2; i++)
        if (engine_make_pages(&s->owner->engine, logits_bytes(s->owner), "the logits",
                              &s->logits_pages[i], err) != 0)
            return false;
    s->logits = s->logits_pages[0].at;
    s->next_logits = s->logits_pages[1].at;
    return true;
}

/* Makes room for the results of drafts. Returns false if there is none. */
static bool open_draft(struct fm_session *s, struct fm_error *err)
{
    const struct fm_model *m = s->owner;
    const uint64_t n = engine_limits(&m->engine)->n_drafts;
    if (n == 0)
        return true;
    s->draft.logits = mem_new(n * m->engine.model->shape.vocabulary, sizeof *s->draft.logits,
                              "the logits of drafts", err);
    s->draft.experts = mem_new(n * draft_experts_of(m), sizeof *s->draft.experts,
                               "the experts of drafts", err);
    s->draft.offer = mem_new(1, sizeof *s->draft.offer, "the drafts of a grammar", err);
    return s->draft.logits != NULL && s->draft.experts != NULL && s->draft.offer != NULL &&
           draft_mtp_open(s, err) == 0;
}

int fm_session_open(struct fm_model *m, struct fm_session **out, struct fm_error *err)
{
    *out = NULL;
    if (m->is_metadata_only)
        return err_set(err, FM_ERR_ARG, "the model was opened for its metadata only");
    if (m->n_open_sessions == engine_limits(&m->engine)->n_sessions)
        return err_set(err, FM_ERR_BUDGET,
                       "%u session(s) are open, which is the maximum; open the model with a "
                       "larger n_sessions", m->n_open_sessions);
    struct fm_session *s = mem_new(1, sizeof *s, "the session", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->owner = m;
    m->n_open_sessions++;
    s->ids = mem_new(engine_limits(&m->engine)->n_context, sizeof *s->ids, "the session's tokens",
                     err);
    s->hash = XXH3_createState();
    int rc = !open_logits(s, err) || s->ids == NULL || s->hash == NULL || !open_draft(s, err)
                 ? err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a session")
                 : engine_new_sequence(&m->engine, &s->sequence, err);
    if (rc != 0) {
        fm_session_close(s);
        return rc;
    }
    fm_session_reset(s);
    s->failure = failure_of(0, "");
    *out = s;
    return 0;
}

void fm_session_close(struct fm_session *s)
{
    if (s == NULL)
        return;
    if (s->sequence != NULL)
        fm_session_reset(s);
    assert(s->owner->n_open_sessions > 0);
    s->owner->n_open_sessions--;
    sequence_free(s->sequence);
    (void)XXH3_freeState(s->hash); /* always succeeds */
    for (unsigned i = 0; i < 2; i++)
        engine_free_pages(&s->owner->engine, &s->logits_pages[i]);
    mem_free(s->draft.logits);
    mem_free(s->draft.experts);
    mem_free(s->draft.offer);
    mtp_state_close(&s->mtp);
    mem_free(s->ids);
    mem_free(s);
}

int session_reach(struct fm_session *s, uint32_t n_positions, struct fm_error *err)
{
    return engine_reach(&s->owner->engine, s->sequence, n_positions, err);
}

/* Frees the memory of positions after the current one. */
static void give_back(struct fm_session *s)
{
    const int rc = session_reach(s, s->sequence->position, NULL);
    assert(rc == 0); /* fewer positions always fit */
    (void)rc;
}

static void drop_logits(struct fm_session *s)
{
    s->has_logits = false;
    s->next_peak = -1;
    peaks_forget(&s->owner->peaks, s->logits);
    s->is_counted = true;
    s->draft.n = 0;
    (void)XXH3_128bits_reset(s->hash); /* fails for NULL only */
}

void fm_session_reset(struct fm_session *s)
{
    sequence_reset(s->sequence);
    mtp_state_reset(&s->mtp);
    give_back(s);
    __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
    drop_logits(s);
}

unsigned fm_session_position(const struct fm_session *s)
{
    return s->sequence->position;
}

const int32_t *fm_session_ids(const struct fm_session *s)
{
    return s->ids;
}

unsigned fm_session_nearest(const struct fm_session *s, const int32_t *ids, size_t n_ids)
{
    const uint32_t position = s->sequence->position;
    uint32_t n_common = 0;
    if (n_ids == 0)
        return 0;
    while (n_common < position && n_common < n_ids && s->ids[n_common] == ids[n_common])
        n_common++;
    if (n_common == n_ids)
        n_common--; /* the last token is computed again for its logits */
    return sequence_nearest(s->sequence, n_common);
}

unsigned fm_session_rewind(struct fm_session *s, const int32_t *ids, size_t n_ids)
{
    const unsigned to = fm_session_nearest(s, ids, n_ids);
    if (to == 0) {
        fm_session_reset(s);
    } else if (to < s->sequence->position) {
        sequence_rewind(s->sequence, to);
        give_back(s);
        __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
    }
    drop_logits(s);
    return to;
}

void session_forget_cancel(struct fm_session *s)
{
    __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
}

int fm_session_repeat(struct fm_session *s, unsigned n_positions, struct fm_error *err)
{
    const uint32_t had = s->sequence->position, block = s->sequence->parts[0].blocks.n_positions;
    const uint32_t n = had / block * block, end = engine_limits(&s->owner->engine)->n_context;
    if (n == 0 || n_positions < had || n_positions > end)
        return err_set(err, FM_ERR_ARG, "a session of %u tokens cannot be repeated up to %u: it "
                       "needs %u to begin with, and the context ends at %u", had, n_positions,
                       block, end);
    const int rc = session_reach(s, n_positions, err);
    if (rc != 0)
        return rc;
    for (uint32_t i = n; i < n_positions; i++)
        s->ids[i] = s->ids[i - n];
    sequence_repeat(s->sequence, n_positions);
    mtp_state_reset(&s->mtp);
    s->draft.n = 0;
    return 0;
}

const float *fm_session_logits(const struct fm_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

/* Has the hash see the logits, if it has not. */
static void count_logits(struct fm_session *s)
{
    if (!s->is_counted) /* fails for NULL only */
        (void)XXH3_128bits_update(s->hash, s->logits, logits_bytes(s->owner));
    s->is_counted = true;
}

void fm_session_logits_hash(const struct fm_session *s, char hex[33])
{
    count_logits((struct fm_session *)(uintptr_t)s); /* only its hash changes */
    XXH128_hash_t h = XXH3_128bits_digest(s->hash);
    (void)snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
}

int fm_session_observe(struct fm_session *s, const struct fm_observer *observer)
{
    struct fm_observer own;
    const int rc = sized_take(&own, sizeof own, observer, "fm_observer", NULL);
    if (rc != 0)
        return rc;
    s->observer = own;
    if (own.hidden != NULL || own.route != NULL)
        s->draft.n = 0; /* their rows were not shown */
    return 0;
}

void fm_session_cancel(struct fm_session *s)
{
    __atomic_store_n(&s->is_cancelled, 1, __ATOMIC_RELAXED);
}

/* ---- evaluation ----------------------------------------------------------------------------- */

struct evaluation {
    struct fm_model *m;
    struct fm_batch_item *items; /* an item whose rc is set is not computed any further */
    size_t n_items;
    uint64_t n_tokens, n_done; /* of all items; before the current batch */
    uint32_t n_rows;           /* in the current batch */
    uint32_t n_draft_rows;     /* of these: drafts */
    uint32_t n_passes, n_pass_rows; /* so far; rows of the last one */
    uint64_t predict_ns;       /* that predicting drafts took */
    bool is_decode;            /* one token per item, after earlier tokens */
    long n_foreign;            /* allocations made by observers */
};

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

static int check_items(const struct evaluation *e, struct fm_error *err)
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
        if (rc == 0 && s->batch_item != 0)
            rc = err_set(err, FM_ERR_ARG, "a session is in the batch twice");
        if (rc != 0)
            break;
        s->batch_item = (uint32_t)n + 1;
        s->begin_position = s->sequence->position;
        s->n_done = 0;
        s->has_new_logits = false;
    }
    for (size_t i = 0; i < n; i++)
        e->items[i].session->batch_item = 0;
    return rc;
}

static struct fm_session *session_of(const struct evaluation *e, uint32_t segment)
{
    assert(e->m->segment_sessions[segment] < e->n_items);
    return e->items[e->m->segment_sessions[segment]].session;
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
    if (item->rc == 0 && __atomic_exchange_n(&item->session->is_cancelled, 0, __ATOMIC_RELAXED)) {
        const struct fm_failure why = failure_of(FM_ERR_CANCELLED, "cancelled");
        fail_item(item, &why);
    }
    return item->rc != 0;
}

static void take_fault(void *ctx, uint32_t segment, const struct batch_fault *fault)
{
    const struct evaluation *e = ctx;
    struct fm_error full = fault->err;
    struct fm_failure why = failure_of(fault->err.code, fault->err.text);
    why.layer = fault->layer;
    why.expert = fault->expert;
    if (fault->expert >= 0) /* the full text names the file */
        (void)snprintf(why.summary, sizeof why.summary, "expert %d of layer %d %s", fault->expert,
                       fault->layer, why.code == FM_ERR_IO ? "cannot be read" : "is damaged");
    else if (fm_model_lost(e->m) == NULL)
        (void)err_wrap(&full, why.code, "'%s'", e->m->engine.model->source->path);
    if (fault->where[0] != '\0') {
        const size_t used = strlen(why.summary);
        (void)snprintf(why.summary + used, sizeof why.summary - used, ", on %s", fault->where);
        (void)err_wrap(&full, why.code, "%s", fault->where);
    }
    memcpy(why.text, full.text, sizeof why.text);
    fail_item(&e->items[e->m->segment_sessions[segment]], &why);
}

static bool is_given_up(void *ctx, uint32_t segment)
{
    const struct evaluation *e = ctx;
    return is_item_given_up(&e->items[e->m->segment_sessions[segment]]);
}

static void before_layer(void *ctx, uint32_t layer)
{
    struct evaluation *e = ctx;
    const long n_before = mem_count();
    const uint32_t n_layers = e->m->engine.model->shape.n_layers;
    for (size_t i = 0; i < e->n_items; i++) {
        const struct fm_session *s = e->items[i].session;
        if (e->items[i].rc == 0 && s->observer.progress != NULL)
            s->observer.progress(s->observer.ctx,
                                 e->n_done * n_layers +
                                     (uint64_t)(e->n_rows - e->n_draft_rows) * layer,
                                 e->n_tokens * n_layers);
    }
    e->n_foreign += mem_count() - n_before;
    elastic_step(&e->m->engine);
}

static void show_hidden(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const float *x)
{
    struct evaluation *e = ctx;
    const struct fm_session *s = session_of(e, segment);
    const long n_before = mem_count();
    const struct model_shape *shape = &e->m->engine.model->shape;
    s->observer.hidden(s->observer.ctx, layer, s->sequence->position + row, x,
                       layer == shape->n_layers ? shape->hidden : shape->row_floats);
    e->n_foreign += mem_count() - n_before;
}

static void show_route(void *ctx, uint32_t segment, uint32_t row, uint32_t layer,
                       const uint32_t *ids, const float *weights)
{
    struct evaluation *e = ctx;
    const struct fm_session *s = session_of(e, segment);
    const long n_before = mem_count();
    s->observer.route(s->observer.ctx, layer, s->sequence->position + row,
                      e->m->engine.model->shape.n_experts_per_token, ids, weights);
    e->n_foreign += mem_count() - n_before;
}

/* Shows the logits behind a token of the session. Its own are counted later, when there is time. */
static void show_logits(struct evaluation *e, struct fm_session *s, uint32_t position,
                        const float *logits)
{
    const uint32_t n = e->m->engine.model->shape.vocabulary;
    if (logits == s->logits) {
        s->is_counted = false;
    } else {
        count_logits(s); /* of the token before */
        (void)XXH3_128bits_update(s->hash, logits, n * sizeof *logits); /* fails for NULL only */
    }
    const long n_before = mem_count();
    if (s->observer.logits != NULL)
        s->observer.logits(s->observer.ctx, position, logits, n);
    e->n_foreign += mem_count() - n_before;
}

/* The last row of a segment leaves the session's logits, and a draft's go to the draft. */
static float *place_logits(void *ctx, uint32_t segment, uint32_t row)
{
    const struct evaluation *e = ctx;
    const struct fm_session *s = session_of(e, segment);
    const struct batch_segment *done = &e->m->segments[segment];
    if (done->n_drafts > 0 && row > 0)
        return s->draft.logits + (size_t)(row - 1) * e->m->engine.model->shape.vocabulary;
    return done->n_drafts > 0 || row + 1 == done->n_tokens ? s->next_logits : NULL;
}

/* What was computed becomes the session's logits. */
static void turn_logits(struct fm_session *s)
{
    float *before = s->logits;
    count_logits(s);
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
    struct evaluation *e = ctx;
    struct fm_session *s = session_of(e, segment);
    if (e->items[e->m->segment_sessions[segment]].rc != 0)
        return; /* an earlier row failed */
    const struct batch_segment *done = &e->m->segments[segment];
    float *place = place_logits(ctx, segment, row);
    assert(row < done->n_tokens);
    s->has_new_logits = true;
    if (place != NULL && place != logits)
        memcpy(place, logits, logits_bytes(e->m));
    if (place == s->next_logits)
        turn_logits(s);
    if (done->n_drafts > 0)
        return; /* nobody sees them before the whole segment is computed */
    show_logits(e, s, s->sequence->position + row, place != NULL ? s->logits : logits);
    s->has_logits |= row + 1 == done->n_tokens;
}

/* The device computes: time for the logits of the token before. */
static void use_idle(void *ctx)
{
    const struct evaluation *e = ctx;
    for (size_t i = 0; i < e->n_items; i++)
        count_logits(e->items[i].session);
}

static void take_draft_experts(void *ctx, uint32_t segment, uint32_t draft, uint32_t expert_layer,
                               const uint32_t *ids)
{
    const struct evaluation *e = ctx;
    const size_t k = e->m->engine.model->shape.n_experts_per_token;
    uint32_t *to = session_of(e, segment)->draft.experts + draft * draft_experts_of(e->m);
    memcpy(to + expert_layer * k, ids, k * sizeof *ids);
}

static void show_times(void *ctx, uint32_t layer, const struct batch_times *t)
{
    struct evaluation *e = ctx;
    const long n_before = mem_count();
    for (size_t i = 0; i < e->n_items; i++) {
        const struct fm_session *s = e->items[i].session;
        const struct fm_layer_profile profile = {
            .layer = layer, .position = s->sequence->position, .n_tokens = e->n_rows,
            .mix_ns = t->mix_ns, .route_ns = t->route_ns, .wait_ns = t->wait_ns,
            .compute_ns = t->compute_ns, .read_ns = t->read_ns, .n_hits = t->n_hits,
            .n_misses = t->n_misses, .bytes_read = t->bytes_read};
        if (e->items[i].rc == 0 && s->observer.profile != NULL)
            s->observer.profile(s->observer.ctx, &profile);
    }
    e->n_foreign += mem_count() - n_before;
}

static bool is_profiled(const struct evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++)
        if (e->items[i].session->observer.profile != NULL)
            return true;
    return false;
}

/* Puts the guesses behind the one token of a segment. */
static void add_drafts(struct batch_segment *segment, const struct fm_session *s)
{
    assert(segment->n_tokens == 1 && segment->tokens[0] == s->draft.tokens[0]);
    segment->tokens = s->draft.tokens;
    segment->n_tokens += s->draft.n;
    segment->n_drafts = s->draft.n;
}

/* Fills one batch with the next tokens of each item, up to the maximum number of rows. Returns the
 * number of segments. */
static uint32_t fill_batch(struct evaluation *e)
{
    struct fm_model *m = e->m;
    uint32_t n_segments = 0, rows_left = engine_limits(&m->engine)->max_rows;
    e->n_draft_rows = 0;
    for (uint32_t i = 0; i < e->n_items && rows_left > 0; i++) {
        struct fm_session *s = e->items[i].session;
        size_t left = e->items[i].n_ids - s->n_done;
        if (left == 0 || is_item_given_up(&e->items[i]))
            continue;
        uint32_t n = left < rows_left ? (uint32_t)left : rows_left;
        assert(n_segments < engine_limits(&m->engine)->n_sessions);
        m->segments[n_segments] = (struct batch_segment){
            .sequence = s->sequence,
            .tokens = e->items[i].ids + s->n_done,
            .before = s->ids,
            .n_tokens = n,
            .wants_last_logits = n == left,
            .wants_all_logits = s->observer.logits != NULL,
            .wants_hidden = s->observer.hidden != NULL,
            .wants_routes = s->observer.route != NULL,
            .mtp = m->mtp_rows != NULL ? &s->mtp : NULL,
        };
        if (s->draft.n > 0)
            add_drafts(&m->segments[n_segments], s);
        e->n_draft_rows += s->draft.n;
        m->segment_sessions[n_segments++] = i;
        s->n_done += n;
        rows_left -= n + s->draft.n;
    }
    e->n_rows = engine_limits(&m->engine)->max_rows - rows_left;
    return n_segments;
}

/* Goes back to the one token that is known to belong to the session. Drafts that fail do not
 * concern it: then it is computed once more, alone. */
static void remember_drafted(struct evaluation *e, uint32_t segment)
{
    struct fm_session *s = session_of(e, segment);
    struct fm_batch_item *item = &e->items[e->m->segment_sessions[segment]];
    if (item->rc == FM_ERR_CANCELLED)
        return;
    if (item->rc != 0) {
        sequence_rewind(s->sequence, s->begin_position);
        s->draft.n = s->n_done = 0;
        e->n_done--; /* has_new_logits stays: its logits may have been taken */
        item->rc = 0;
        s->failure = failure_of(0, "");
        return;
    }
    const bool is_there = sequence_go(s->sequence, s->begin_position + 1);
    assert(is_there);
    (void)is_there;
    s->ids[s->begin_position] = s->draft.tokens[0];
    s->has_logits = true;
    s->draft.n_taken = 0;
    draft_count_made(s);
    show_logits(e, s, s->begin_position, s->logits);
}

/* Stores the tokens that a segment has computed. Marks the end of a prompt, because the next
 * request often differs from there on. */
static void remember(struct evaluation *e, uint32_t segment)
{
    struct fm_session *s = session_of(e, segment);
    const struct batch_segment *done = &e->m->segments[segment];
    if (done->n_drafts > 0) {
        remember_drafted(e, segment);
        return;
    }
    if (e->items[e->m->segment_sessions[segment]].rc != 0)
        return;
    assert(s->sequence->position >= s->begin_position + done->n_tokens);
    assert(s->sequence->position <= engine_limits(&e->m->engine)->n_context);
    memcpy(s->ids + s->sequence->position - done->n_tokens, done->tokens,
           done->n_tokens * sizeof *s->ids);
    if (done->n_tokens > 1 && done->wants_last_logits)
        sequence_mark(s->sequence);
}

static void run_batches(struct evaluation *e)
{
    const struct batch_hooks hooks = {.ctx = e, .before_layer = before_layer,
                                      .is_given_up = is_given_up, .fault = take_fault,
                                      .hidden = show_hidden, .route = show_route,
                                      .draft_experts = take_draft_experts,
                                      .logits_place = place_logits, .peak = take_peak,
                                      .logits = take_logits,
                                      .idle = use_idle,
                                      .times = is_profiled(e) ? show_times : NULL};
    uint32_t n_segments;
    while ((n_segments = fill_batch(e)) > 0) {
        const struct batch batch = {e->m->segments, n_segments, hooks};
        const uint32_t n_rows = e->n_rows;
        for (uint32_t i = 0; i < n_segments; i++)
            draft_mtp_follow(session_of(e, i), &batch.segments[i]);
        engine_run(&e->m->engine, &batch);
        e->n_done += n_rows - e->n_draft_rows;
        for (uint32_t i = 0; i < n_segments; i++)
            remember(e, i);
        e->n_passes++;
        e->n_pass_rows = n_rows;
    }
}

static void count_tokens(const struct evaluation *e, uint64_t elapsed_ns)
{
    struct fm_model *m = e->m;
    uint64_t n = 0;
    for (size_t i = 0; i < e->n_items; i++)
        n += e->items[i].rc == 0 ? e->items[i].n_ids : 0;
    if (n == 0)
        return;
    *(e->is_decode ? &m->n_decode_tokens : &m->n_prefill_tokens) += n;
    *(e->is_decode ? &m->decode_ns : &m->prefill_ns) += elapsed_ns;
    m->n_decode_passes += e->is_decode ? e->n_passes : 0;
    if (e->is_decode && e->n_passes == 1)
        draft_gate_time(&m->gate, e->n_pass_rows, elapsed_ns - e->predict_ns);
}

/* Rewinds sessions that were not finished to where they began, or to the nearest earlier
 * position. */
static void finish_items(const struct evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        struct fm_session *s = e->items[i].session;
        assert(e->items[i].rc != 0 ||
               s->sequence->position == s->begin_position + e->items[i].n_ids);
        if (e->items[i].rc == 0)
            continue;
        sequence_rewind(s->sequence, s->begin_position);
        s->draft.n = 0;
        assert(s->sequence->position <= s->begin_position && !s->sequence->is_torn);
        give_back(s);
        if (s->sequence->position < s->begin_position || s->has_new_logits)
            drop_logits(s);
    }
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* The one token of an item is a draft that was computed before: moves on to it. */
static void accept_draft(struct evaluation *e, struct fm_batch_item *item)
{
    struct fm_model *m = e->m;
    struct fm_session *s = item->session;
    const uint32_t at = s->draft.n_taken++;
    const uint32_t *experts = s->draft.experts + at * draft_experts_of(m);
    const size_t vocabulary = m->engine.model->shape.vocabulary;
    s->ids[s->begin_position] = item->ids[0];
    count_logits(s);
    peaks_forget(&m->peaks, s->logits);
    memcpy(s->logits, s->draft.logits + at * vocabulary, vocabulary * sizeof *s->logits);
    engine_accept_draft(&m->engine, s->sequence, at, experts);
    s->n_done = 1;
    draft_count_accepted(s, at);
    show_logits(e, s, s->begin_position, s->logits);
}

/* Looks whether the tokens of items are drafts that were computed before, and forgets drafts that
 * were wrong. */
static void take_drafts(struct evaluation *e)
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
static void make_drafts(struct evaluation *e)
{
    e->m->engine.stray_position = UINT32_MAX;
    if (e->is_decode && engine_limits(&e->m->engine)->n_drafts > 0)
        e->predict_ns = draft_make(e->m, e->items, e->n_items);
}

/* Reserves memory for all tokens before any is computed. An item that gets none fails alone. */
static void reach_all(const struct evaluation *e)
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
        const struct fm_failure why = failure_of(rc, err.text);
        if (rc != 0)
            fail_item(item, &why);
    }
}

/* Returns the result of the whole call from the outcomes of its items. */
static int batch_result(const struct evaluation *e, struct fm_error *err)
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

int fm_eval_batch(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                  struct fm_error *err)
{
    struct evaluation e = {.m = m, .items = items, .n_items = n_items, .is_decode = true};
    int rc = check_items(&e, err);
    for (size_t i = 0; i < n_items; i++)
        items[i].rc = rc;
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < n_items; i++) {
        e.n_tokens += items[i].n_ids;
        e.is_decode &= items[i].n_ids == 1 && items[i].session->sequence->position > 0;
        items[i].session->failure = failure_of(0, "");
    }
    const uint64_t begin_ns = plat_now_ns();
    fenv_t host;
    (void)feholdexcept(&host);  /* the host may have set another rounding mode; */
    (void)fesetenv(FE_DFL_ENV); /* the results must not depend on it */
    take_drafts(&e);
    for (size_t i = 0; i < n_items; i++)
        if (items[i].session->n_done == 0)
            mtp_state_go(&items[i].session->mtp, items[i].session->sequence->position);
    make_drafts(&e);
    reach_all(&e);
    e.n_foreign = 0;
    const long n_before = mem_count();
    run_batches(&e);
    (void)fesetenv(&host);
    assert(mem_count() == n_before + e.n_foreign); /* the token path allocates nothing */
    (void)n_before;
    finish_items(&e);
    count_tokens(&e, plat_now_ns() - begin_ns);
    return batch_result(&e, err);
}

const struct fm_failure *fm_session_failure(const struct fm_session *s)
{
    return &s->failure;
}

int fm_session_eval(struct fm_session *s, const int32_t *ids, size_t n_ids, struct fm_error *err)
{
    struct fm_batch_item item = {.session = s, .ids = ids, .n_ids = n_ids};
    return fm_eval_batch(s->owner, &item, 1, err);
}
