/* Where the drafts of a session come from. */
#include <string.h>

#include "base/sized.h"
#include "session/draft_mtp.h"

/* With replaced routes the rows of a wrong draft get experts of another token. */
static uint32_t ask_control(struct fm_session *s, uint32_t max)
{
    const struct fm_draft_control *control = &s->draft.control;
    const uint32_t position = s->sequence->position;
    unsigned n_right = 0;
    const uint32_t vocabulary = s->owner->engine.model->shape.vocabulary;
    const uint32_t given =
        control->draft(control->ctx, position, s->draft.tokens + 1, max, &n_right);
    uint32_t n = 0;
    while (n < given && n < max && (uint32_t)s->draft.tokens[1 + n] < vocabulary)
        n++; /* what is no token ends them */
    n_right = n_right < n ? n_right : n;
    s->owner->engine.stray_position = position + 1 + n_right;
    return n;
}

bool fm_session_has_computed(const struct fm_session *s, int32_t id)
{
    const struct draft *d = &s->draft;
    return d->n_taken < d->n && d->tokens[1 + d->n_taken] == id;
}

struct draft_offer *draft_offer_for(const struct fm_session *s, int32_t id, uint32_t *max)
{
    struct draft_offer *offer = s->draft.offer;
    if (offer == NULL || fm_session_has_computed(s, id))
        return NULL; /* none, or the token is computed already */
    *offer = (struct draft_offer){.position = s->sequence->position, .id = id};
    *max = engine_limits(&s->owner->engine)->n_drafts;
    return offer;
}

/* Takes the drafts that were offered for this token. Returns how many. */
static uint32_t take_offer(struct fm_session *s, int32_t id, uint32_t max)
{
    struct draft_offer *offer = s->draft.offer;
    uint32_t n = offer->n < max ? offer->n : max;
    if (offer->position != s->sequence->position || offer->id != id)
        n = 0;
    memcpy(s->draft.tokens + 1, offer->drafts, n * sizeof *offer->drafts);
    offer->n = 0;
    return n;
}

/* Returns how many drafts a session may have. Whoever watches rows sees no drafts. */
static uint32_t max_drafts(const struct fm_session *s, uint32_t n_rows)
{
    const struct budget *b = engine_limits(&s->owner->engine);
    const uint32_t behind = b->n_context - s->sequence->position - 1;
    const uint32_t rows_left = engine_max_rows(&s->owner->engine) - n_rows;
    const uint32_t max = b->n_drafts < behind ? b->n_drafts : behind;
    if (s->observer.hidden != NULL || s->observer.route != NULL ||
        s->owner->engine.cache_bias > 0 || s->draft.control.is_off)
        return 0;
    return max < rows_left ? max : rows_left;
}

/* Drafts what follows `id`, which the session is given next, in the pass that is put together, or
 * says that the model's own block shall do so. Returns whether it depends on the block what drafts
 * there are. */
static bool draft_choose(struct fm_session *s, int32_t id, const struct draft_pass *pass)
{
    const uint32_t max = max_drafts(s, pass->n_rows);
    struct draft *d = &s->draft;
    const enum fm_draft_source asked = s->owner->draft_source;
    const uint32_t position = s->sequence->position;
    d->tokens[0] = id;
    d->n = 0;
    d->source = DRAFT_NONE;
    memset(d->sure, 0, sizeof d->sure);
    if (max == 0)
        return false;
    if (d->control.draft != NULL) {
        d->n = ask_control(s, max);
        d->source = DRAFT_GIVEN;
        return false;
    }
    const uint32_t n_forced = take_offer(s, id, max);
    const bool can_predict = asked != FM_DRAFT_LOOKUP && draft_mtp_can(s);
    const bool predicts = can_predict && !pass->is_unpredicted;
    const int32_t forced = d->tokens[1];
    uint32_t match = 0;
    if (n_forced > 1) { /* one alone is less than a long match or the block gives */
        d->n = n_forced;
        d->source = DRAFT_FORCED;
        return false;
    }
    if (asked != FM_DRAFT_MTP)
        d->n = draft_look_up(s->ids, position, id, predicts ? DRAFT_LONG_MATCH : DRAFT_MATCH,
                             d->tokens + 1, max, &match);
    d->source = d->n > 0 ? DRAFT_LOOKED_UP : predicts ? DRAFT_PREDICTED : DRAFT_NONE;
    if (n_forced == 1 && !predicts && match < DRAFT_LONG_MATCH) {
        d->tokens[1] = forced;
        d->n = 1;
        d->source = DRAFT_FORCED;
        match = 0;
    }
    memset(d->sure, (int)draft_sure_of_match(match), sizeof d->sure);
    return can_predict && match < DRAFT_LONG_MATCH;
}

/* Returns whether the token of an item has to be computed. */
static bool is_computed(const struct fm_batch_item *item)
{
    return item->session->n_done == 0 && item->rc == 0;
}

/* Says for how many tokens the model's own block drafts: for the first sessions that it can draft
 * for, as many of them as the gate finds worth it. */
static void begin_chains(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                         struct draft_pass *pass)
{
    uint32_t n_sessions = 0, n_rows = pass->n_rows;
    for (size_t i = 0; i < n_items; i++)
        n_sessions += is_computed(&items[i]) && items[i].session->draft.source == DRAFT_PREDICTED;
    const uint32_t n =
        draft_gate_chains(&m->gate, pass, n_sessions, engine_limits(&m->engine)->n_drafts);
    uint32_t n_left = pass->n_chains;
    for (size_t i = 0; i < n_items; i++) {
        struct fm_session *s = items[i].session;
        if (!is_computed(&items[i]) || s->draft.source != DRAFT_PREDICTED)
            continue;
        const uint32_t max = n_left > 0 ? max_drafts(s, n_rows) : 0;
        s->draft.n = n < max ? n : max;
        n_rows += s->draft.n;
        n_left -= n_left > 0;
    }
}

uint64_t draft_make(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                    bool *depends_on_block)
{
    struct draft_pass pass;
    uint32_t n_sessions = 0;
    *depends_on_block = false;
    for (size_t i = 0; i < n_items; i++)
        n_sessions += is_computed(&items[i]);
    if (n_sessions > engine_max_rows(&m->engine))
        return 0;
    draft_gate_begin(&m->gate, &pass, n_sessions);
    for (size_t i = 0; i < n_items; i++) {
        struct fm_session *s = items[i].session;
        draft_mtp_note(m, items[i].ids[0]);
        if (!is_computed(&items[i]))
            continue;
        *depends_on_block |= draft_choose(s, items[i].ids[0], &pass);
        if (s->draft.source != DRAFT_PREDICTED)
            s->draft.n = draft_gate_choose(&m->gate, s->draft.source, s->draft.sure[0], &pass,
                                           s->draft.n);
    }
    begin_chains(m, items, n_items, &pass);
    const uint64_t ns = draft_mtp_predict(m, items, n_items, &pass);
    if (n_sessions > 0)
        draft_gate_end(&m->gate, &pass);
    for (size_t i = 0; i < n_items; i++)
        if (is_computed(&items[i]))
            draft_count_pass(items[i].session);
    return ns;
}

void draft_count_pass(struct fm_session *s)
{
    s->draft.counts.n_draft_passes[s->draft.n]++;
    s->owner->draft_counts.n_draft_passes[s->draft.n]++;
}

void draft_count_made(struct fm_session *s)
{
    for (uint32_t i = 0; i < s->draft.n; i++) {
        s->draft.counts.n_drafted_by[s->draft.source][i]++;
        s->owner->draft_counts.n_drafted_by[s->draft.source][i]++;
    }
}

void draft_count_accepted(struct fm_session *s, uint32_t at)
{
    s->draft.counts.n_drafts_accepted_by[s->draft.source][at]++;
    s->owner->draft_counts.n_drafts_accepted_by[s->draft.source][at]++;
}

int fm_session_control_drafts(struct fm_session *s, const struct fm_draft_control *control)
{
    struct fm_draft_control own;
    const int rc = sized_take(&own, sizeof own, control, "fm_draft_control", NULL);
    if (rc != 0)
        return rc;
    s->draft.control = own;
    s->draft.n = 0;
    return 0;
}

int fm_session_draft_counts(const struct fm_session *s, struct fm_draft_counts *out)
{
    return sized_give(out, &s->draft.counts, sizeof s->draft.counts);
}

const char *fm_draft_source_name(unsigned source)
{
    static const char *const names[FM_DRAFT_SOURCES] = {
        [FM_DRAFT_MTP] = "mtp", [FM_DRAFT_LOOKUP] = "lookup", [FM_DRAFT_GRAMMAR] = "grammar",
        [FM_DRAFT_GIVEN] = "given"};
    return source < FM_DRAFT_SOURCES ? names[source] : NULL;
}
