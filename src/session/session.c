/* fm_session: one sequence. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "base/sized.h"
#include "session/draft_mtp.h"
#include "session/session_internal.h"

struct fm_failure session_failure(int code, const char *text)
{
    struct fm_failure why = {.code = code, .layer = -1, .expert = -1};
    (void)snprintf(why.text, sizeof why.text, "%s", text);
    memcpy(why.summary, why.text, sizeof why.summary);
    return why;
}

uint64_t session_logits_bytes(const struct fm_model *m)
{
    return m->engine.model->shape.vocabulary * sizeof(float);
}

size_t session_draft_experts(const struct fm_model *m)
{
    return (size_t)model_n_own_expert_layers(m->engine.model) *
           m->engine.model->shape.n_experts_per_token;
}

static bool open_logits(struct fm_session *s, struct fm_error *err)
{
    for (unsigned i = 0; i < 2; i++)
        if (engine_make_pages(&s->owner->engine, session_logits_bytes(s->owner), "the logits",
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
    s->draft.experts = mem_new(n * session_draft_experts(m), sizeof *s->draft.experts,
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
    s->failure = session_failure(0, "");
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

void session_give_back(struct fm_session *s)
{
    const int rc = session_reach(s, s->sequence->position, NULL);
    assert(rc == 0); /* no more positions than it has: sequence_own_bytes leaves room for them */
    (void)rc;
}

void session_drop_logits(struct fm_session *s)
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
    session_give_back(s);
    __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
    session_drop_logits(s);
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
    /* Tokens that are being computed may yet fail. */
    const uint32_t position =
        s->evaluation != NULL ? s->begin_position : s->sequence->position;
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
        session_give_back(s);
        __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
    }
    session_drop_logits(s);
    return to;
}

void session_forget_cancel(struct fm_session *s)
{
    __atomic_store_n(&s->is_cancelled, 0, __ATOMIC_RELAXED);
}

bool session_take_cancel(struct fm_session *s)
{
    return __atomic_exchange_n(&s->is_cancelled, 0, __ATOMIC_RELAXED) != 0;
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

void session_count_logits(struct fm_session *s)
{
    if (!s->is_counted) /* fails for NULL only */
        (void)XXH3_128bits_update(s->hash, s->logits, session_logits_bytes(s->owner));
    s->is_counted = true;
}

void fm_session_logits_hash(const struct fm_session *s, char hex[33])
{
    session_count_logits((struct fm_session *)(uintptr_t)s); /* only its hash changes */
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

const struct fm_failure *fm_session_failure(const struct fm_session *s)
{
    return &s->failure;
}

int fm_session_eval(struct fm_session *s, const int32_t *ids, size_t n_ids, struct fm_error *err)
{
    struct fm_batch_item item = {.session = s, .ids = ids, .n_ids = n_ids};
    return fm_eval_batch(s->owner, &item, 1, err);
}
