#include "engine/mtp.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

/* ---- what is known of a sequence ------------------------------------------------------------- */

/* Rows that are made together, at most, beside those of a pass with drafts. */
#define ROWS_TOGETHER 32

uint32_t mtp_max_missing(uint32_t n_drafts)
{
    return ROWS_TOGETHER + 1 + n_drafts;
}

uint64_t mtp_state_bytes(uint32_t n_context, uint32_t n_drafts, uint32_t hidden)
{
    return n_context * sizeof(uint32_t) +
           (1ull + mtp_max_missing(n_drafts)) * hidden * sizeof(float);
}

int mtp_state_open(struct mtp_state *state, uint32_t n_context, uint32_t n_drafts, uint32_t hidden,
                   struct fm_error *err)
{
    *state = (struct mtp_state){.max_hidden = mtp_max_missing(n_drafts)};
    state->positions = mem_new(n_context, sizeof *state->positions, "the rows of drafts", err);
    state->hidden = mem_new((state->max_hidden + 1ull) * hidden, sizeof *state->hidden,
                            "the rows of drafts", err);
    if (state->positions == NULL || state->hidden == NULL)
        return FM_ERR_NOMEM;
    state->next = state->hidden + (size_t)state->max_hidden * hidden;
    return 0;
}

void mtp_state_close(struct mtp_state *state)
{
    mem_free(state->positions);
    mem_free(state->hidden);
    *state = (struct mtp_state){0};
}

bool mtp_state_is_full(const struct mtp_state *state, uint32_t n_drafts)
{
    return state->n_hidden + 1 + n_drafts > state->max_hidden;
}

void mtp_state_trim(struct mtp_state *state, uint32_t hidden)
{
    if (state->n_hidden <= 1)
        return;
    const uint32_t last = state->n_hidden - 1;
    memcpy(state->hidden, state->hidden + (size_t)last * hidden, hidden * sizeof *state->hidden);
    state->first += last;
    state->n_hidden = 1;
}

void mtp_state_reset(struct mtp_state *state)
{
    state->n_rows = state->n_hidden = 0;
}

/* A row needs the token behind its position, a hidden state does not. */
void mtp_state_go(struct mtp_state *state, uint32_t position)
{
    while (state->n_rows > 0 && state->positions[state->n_rows - 1] + 1 >= position)
        state->n_rows--;
    if (state->first >= position)
        state->n_hidden = 0;
    else if (state->n_hidden > position - state->first)
        state->n_hidden = position - state->first;
}

void mtp_state_copy(struct mtp_state *to, const struct mtp_state *from, uint32_t hidden)
{
    assert(to->max_hidden == from->max_hidden);
    to->n_rows = from->n_rows;
    to->first = from->first;
    to->n_hidden = from->n_hidden;
    memcpy(to->positions, from->positions, from->n_rows * sizeof *to->positions);
    memcpy(to->hidden, from->hidden, (size_t)from->n_hidden * hidden * sizeof *to->hidden);
}

void mtp_state_add(struct mtp_state *state, uint32_t position)
{
    assert(state->n_rows == 0 || state->positions[state->n_rows - 1] < position);
    state->positions[state->n_rows++] = position;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct forward *last_forward(const struct engine *e)
{
    return e->stages[e->n_stages - 1].forward;
}

void engine_mtp_keep(struct engine *e, const struct mtp_row *rows, uint32_t n)
{
    const uint32_t max = engine_max_rows(e);
    for (uint32_t i = 0; i < n; i += max)
        forward_mtp_keep(last_forward(e), rows + i, n - i < max ? n - i : max);
}

bool engine_mtp_draft(struct engine *e, struct mtp_row *rows, uint32_t n, uint32_t n_tokens)
{
    assert(n <= engine_limits(e)->n_sessions);
    return forward_mtp_draft(last_forward(e), rows, n, n_tokens);
}

/* Formats and layouts have blocks of up to 128 rows. */
#define TOKEN_BLOCK 128u

uint32_t engine_mtp_tokens(const struct engine *e, uint32_t divisor)
{
    const uint32_t all = e->model->shape.vocabulary;
    const uint32_t part = (all / divisor + TOKEN_BLOCK - 1) / TOKEN_BLOCK * TOKEN_BLOCK;
    return divisor == 1 || part > all ? all : part;
}
