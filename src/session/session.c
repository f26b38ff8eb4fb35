/* fm_session: one sequence, and the evaluation of one or several sequences. */
#include <assert.h>
#include <fenv.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "base/sized.h"
#include "session/session_internal.h"

/* Makes a failure that names no file. */
static struct fm_failure failure_of(int code, const char *text)
{
    struct fm_failure why = {.code = code, .layer = -1, .expert = -1};
    (void)snprintf(why.text, sizeof why.text, "%s", text);
    memcpy(why.summary, why.text, sizeof why.summary);
    return why;
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
    s->logits = mem_new(m->engine.model->shape.vocabulary, sizeof *s->logits, "the logits", err);
    s->ids = mem_new(engine_limits(&m->engine)->n_context, sizeof *s->ids, "the session's tokens",
                     err);
    s->hash = XXH3_createState();
    int rc = s->logits == NULL || s->ids == NULL || s->hash == NULL
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
    mem_free(s->logits);
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
    (void)XXH3_128bits_reset(s->hash); /* fails for NULL only */
}

void fm_session_reset(struct fm_session *s)
{
    sequence_reset(s->sequence);
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

int session_copy(struct fm_session *to, const struct fm_session *from, uint32_t position,
                 struct fm_error *err)
{
    assert(to != from && to->owner == from->owner && position <= from->sequence->position);
    fm_session_reset(to);
    const int rc = session_reach(to, position, err);
    if (rc != 0)
        return rc;
    memcpy(to->ids, from->ids, position * sizeof *to->ids);
    sequence_copy(to->sequence, from->sequence, position);
    return 0;
}

const float *fm_session_logits(const struct fm_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

void fm_session_logits_hash(const struct fm_session *s, char hex[33])
{
    XXH128_hash_t h = XXH3_128bits_digest(s->hash);
    (void)snprintf(hex, 33, "%016llx%016llx", (unsigned long long)h.high64,
                   (unsigned long long)h.low64);
}

int fm_session_observe(struct fm_session *s, const struct fm_observer *observer)
{
    struct fm_observer own;
    const int rc = sized_take(&own, sizeof own, observer, "fm_observer", NULL);
    if (rc == 0)
        s->observer = own;
    return rc;
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
    else
        (void)err_wrap(&full, why.code, "'%s'", e->m->engine.model->source->path);
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
                                 e->n_done * n_layers + (uint64_t)e->n_rows * layer,
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

static void take_logits(void *ctx, uint32_t segment, uint32_t row, const float *logits)
{
    struct evaluation *e = ctx;
    struct fm_session *s = session_of(e, segment);
    const uint32_t n = e->m->engine.model->shape.vocabulary;
    if (e->items[e->m->segment_sessions[segment]].rc != 0)
        return; /* an earlier row failed */
    assert(row < e->m->segments[segment].n_tokens);
    (void)XXH3_128bits_update(s->hash, logits, n * sizeof *logits); /* fails for NULL only */
    s->has_new_logits = true;
    const long n_before = mem_count();
    if (s->observer.logits != NULL)
        s->observer.logits(s->observer.ctx, s->sequence->position + row, logits, n);
    e->n_foreign += mem_count() - n_before;
    if (row + 1 == e->m->segments[segment].n_tokens) {
        memcpy(s->logits, logits, n * sizeof *logits);
        s->has_logits = true;
    }
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

/* Fills one batch with the next tokens of each item, up to the maximum number of rows. Returns the
 * number of segments. */
static uint32_t fill_batch(struct evaluation *e)
{
    struct fm_model *m = e->m;
    uint32_t n_segments = 0, rows_left = engine_limits(&m->engine)->max_rows;
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
        };
        m->segment_sessions[n_segments++] = i;
        s->n_done += n;
        rows_left -= n;
    }
    e->n_rows = engine_limits(&m->engine)->max_rows - rows_left;
    return n_segments;
}

/* Stores the tokens that a segment has computed. Marks the end of a prompt, because the next
 * request often differs from there on. */
static void remember(const struct evaluation *e, uint32_t segment)
{
    struct fm_session *s = session_of(e, segment);
    const struct batch_segment *done = &e->m->segments[segment];
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
                                      .logits = take_logits,
                                      .times = is_profiled(e) ? show_times : NULL};
    uint32_t n_segments;
    while ((n_segments = fill_batch(e)) > 0) {
        const struct batch batch = {e->m->segments, n_segments, hooks};
        engine_run(&e->m->engine, &batch);
        for (uint32_t i = 0; i < n_segments; i++)
            remember(e, i);
        e->n_done += e->n_rows;
        assert(e->n_done <= e->n_tokens);
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
        assert(s->sequence->position <= s->begin_position && !s->sequence->is_torn);
        give_back(s);
        if (s->sequence->position < s->begin_position || s->has_new_logits)
            drop_logits(s);
    }
}

/* Reserves memory for all tokens before any is computed. An item that gets none fails alone. */
static void reach_all(const struct evaluation *e)
{
    for (size_t i = 0; i < e->n_items; i++) {
        struct fm_batch_item *item = &e->items[i];
        struct fm_error err = {0};
        const uint32_t end = item->session->sequence->position + (uint32_t)item->n_ids;
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
    reach_all(&e);
    const uint64_t begin_ns = plat_now_ns();
    const long n_before = mem_count();
    fenv_t host;
    (void)feholdexcept(&host);  /* the host may have set another rounding mode; */
    (void)fesetenv(FE_DFL_ENV); /* the results must not depend on it */
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
