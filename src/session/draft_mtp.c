#include "session/draft_mtp.h"

#include <assert.h>

#include "base/plat.h"

int draft_mtp_open(struct fm_session *s, struct fm_error *err)
{
    const struct engine *e = &s->owner->engine;
    if (!e->model->has_mtp)
        return 0;
    return mtp_state_open(&s->mtp, engine_limits(e)->n_context, engine_limits(e)->n_drafts,
                          e->model->shape.hidden, err);
}

/* Returns the row at a position whose hidden state is known. `token` follows the session's first
 * n_ids. */
static struct mtp_row row_at(const struct fm_session *s, uint32_t position, uint32_t n_ids,
                             int32_t token)
{
    const struct mtp_state *mtp = &s->mtp;
    const uint32_t hidden = s->owner->engine.model->shape.hidden;
    assert(position >= mtp->first && position - mtp->first < mtp->n_hidden);
    return (struct mtp_row){
        .sequence = s->sequence, .place = mtp->n_rows, .position = position,
        .token = position + 1 < n_ids ? s->ids[position + 1] : token,
        .hidden = mtp->hidden + (size_t)(position - mtp->first) * hidden};
}

/* Writes the rows that the session lacks up to the position `end`. Returns how many. */
static uint32_t missing_rows(struct fm_session *s, uint32_t n_ids, int32_t token, uint32_t end,
                             struct mtp_row *rows)
{
    struct mtp_state *mtp = &s->mtp;
    uint32_t n = 0, at = mtp->first;
    if (mtp->n_rows > 0 && mtp->positions[mtp->n_rows - 1] >= at)
        at = mtp->positions[mtp->n_rows - 1] + 1;
    for (; at < end && at < mtp->first + mtp->n_hidden; at++) {
        rows[n++] = row_at(s, at, n_ids, token);
        mtp_state_add(mtp, at);
    }
    return n;
}

/* Makes the rows that the session lacks up to the position `end`. Returns how many. */
static uint32_t make_rows(struct fm_session *s, uint32_t n_ids, int32_t token, uint32_t end)
{
    struct fm_model *m = s->owner;
    const uint32_t n = missing_rows(s, n_ids, token, end, m->mtp_rows);
    if (n > 0)
        engine_mtp_keep(&m->engine, m->mtp_rows, n);
    return n;
}

bool draft_mtp_follows(const struct fm_session *s)
{
    return s->owner->mtp_rows != NULL && !s->draft.control.is_off;
}

void draft_mtp_follow(struct fm_session *s, const struct batch_segment *next)
{
    const struct fm_model *m = s->owner;
    const bool is_prompt = next->n_tokens > 1 + next->n_drafts;
    if (!draft_mtp_follows(s) ||
        (!is_prompt && !mtp_state_is_full(&s->mtp, engine_limits(&m->engine)->n_drafts)))
        return;
    (void)make_rows(s, next->position, next->tokens[0], next->position);
    mtp_state_trim(&s->mtp, m->engine.model->shape.hidden);
}

bool draft_mtp_can(const struct fm_session *s)
{
    return s->owner->mtp_rest == 0 && s->mtp.n_hidden > 0 &&
           s->mtp.first + s->mtp.n_hidden == s->sequence->position;
}

/* Returns whether an item gets a draft of this depth, counted from 1. */
static bool is_predicted(const struct fm_batch_item *item, uint32_t depth)
{
    const struct fm_session *s = item->session;
    return item->rc == 0 && s->n_done == 0 && s->draft.source == DRAFT_PREDICTED &&
           s->draft.n >= depth;
}

/* Returns the row that drafts: the first is the block's own, the others follow from the row and the
 * draft before and are forgotten. */
static struct mtp_row drafting_row(struct fm_session *s, uint32_t depth)
{
    const uint32_t end = s->sequence->position;
    struct mtp_row row = row_at(s, end - 1, end, s->draft.tokens[0]);
    if (depth > 1) {
        row.place += depth - 2; /* the first is counted already */
        row.position += depth - 1;
        row.token = s->draft.tokens[depth - 1];
        row.hidden = s->mtp.next;
    }
    row.next = s->mtp.next;
    return row;
}

/* Passes without predictions after one that failed: its experts cannot be read, and trying costs
 * time. */
#define MTP_REST 1024

/* Returns how many tokens a part of the vocabulary has. */
static uint32_t draft_mtp_tokens(const struct fm_model *m, uint32_t head)
{
    return engine_mtp_tokens(&m->engine, 1u << (DRAFT_HEADS - 1 - head));
}

void draft_mtp_note(struct fm_model *m, int32_t id)
{
    bool in_part[DRAFT_HEADS];
    if (m->mtp_rows == NULL)
        return;
    for (uint32_t i = 0; i < DRAFT_HEADS; i++)
        in_part[i] = (uint32_t)id < draft_mtp_tokens(m, i);
    draft_gate_token(&m->gate, in_part);
}

/* Takes the draft that a row has made, if the gate finds it worth a row of the pass. */
static void take_draft(struct fm_session *s, uint32_t depth, const struct mtp_row *row,
                       struct draft_pass *pass)
{
    struct draft *d = &s->draft;
    const uint32_t sure = draft_sure_of_margin(row->margin);
    const enum draft_verdict verdict =
        draft_gate_judge(&s->owner->gate, &d->chain, sure, pass, d->n);
    d->tokens[depth] = row->draft;
    d->sure[depth - 1] = (uint8_t)sure;
    if (depth == 1)
        mtp_state_add(&s->mtp, s->sequence->position - 1);
    if (verdict != DRAFT_GO_ON)
        d->n = verdict == DRAFT_DROP ? depth - 1 : depth;
}

/* Returns whether drafts behind those of this depth are made. Ends all chains if not. */
static bool goes_on(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                    uint32_t depth, struct draft_pass *pass)
{
    if (draft_gate_goes_on(&m->gate, pass))
        return true;
    for (size_t i = 0; i < n_items; i++)
        if (is_predicted(&items[i], depth + 1))
            items[i].session->draft.n = depth;
    return false;
}

/* Makes the drafts of one depth. Returns whether to make the next ones. */
static bool predict(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                    uint32_t depth, struct draft_pass *pass)
{
    uint32_t n = 0, done = 0;
    for (size_t i = 0; i < n_items; i++)
        if (is_predicted(&items[i], depth))
            m->mtp_rows[n++] = drafting_row(items[i].session, depth);
    if (n == 0)
        return false;
    const bool is_good =
        engine_mtp_draft(&m->engine, m->mtp_rows, n, draft_mtp_tokens(m, m->gate.head));
    if (!is_good)
        m->mtp_rest = MTP_REST;
    for (size_t i = 0; i < n_items; i++) {
        struct fm_session *s = items[i].session;
        if (!is_predicted(&items[i], depth))
            continue;
        if (is_good)
            take_draft(s, depth, &m->mtp_rows[done++], pass);
        else
            s->draft.n = depth - 1;
    }
    return is_good && goes_on(m, items, n_items, depth, pass);
}

/* Makes room for the keys and values of all rows. That may wait for passes on other ranks. */
static void make_room(struct fm_session *s)
{
    if (session_reach(s, s->sequence->position + 1 + s->draft.n, NULL) != 0)
        s->draft.n = 0;
}

/* Prepares a session: makes the rows that it lacks before the one that drafts. Returns how many
 * these are. */
static uint32_t prepare(struct fm_session *s)
{
    const uint32_t position = s->sequence->position;
    s->draft.chain = (struct draft_chain){.is_right = 1};
    return s->draft.n > 0 ? make_rows(s, position, s->draft.tokens[0], position - 1) : 0;
}

uint64_t draft_mtp_predict(struct fm_model *m, struct fm_batch_item *items, size_t n_items,
                           struct draft_pass *pass)
{
    uint32_t n_rows = 0, n_sessions = 0;
    m->mtp_rest -= m->mtp_rest > 0;
    for (size_t i = 0; i < n_items; i++)
        if (is_predicted(&items[i], 1))
            make_room(items[i].session);
    const uint64_t begin_ns = plat_now_ns();
    for (size_t i = 0; i < n_items; i++)
        if (is_predicted(&items[i], 1)) {
            n_rows += prepare(items[i].session);
            n_sessions++;
        }
    /* Rows of many passes without drafts are not what the next drafts will take. */
    const bool is_usual = n_rows <= n_sessions * (1 + SEQUENCE_DRAFTS);
    const uint64_t ready_ns = plat_now_ns();
    for (uint32_t depth = 1; n_sessions > 0 && predict(m, items, n_items, depth, pass);)
        depth++;
    const uint64_t end_ns = plat_now_ns();
    draft_gate_prediction(&m->gate, pass, end_ns - (is_usual ? begin_ns : ready_ns));
    return end_ns - begin_ns;
}
