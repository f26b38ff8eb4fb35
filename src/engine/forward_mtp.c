/* The rows of the block for multi-token prediction (mtp.h). */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/carve.h"
#include "engine/forward_internal.h"

void forward_mtp_carve_rows(struct carver *c, struct forward_mtp *m, const struct model *model,
                            const struct forward_options *options)
{
    const uint64_t rows = model->has_mtp ? options->max_rows : 0, hidden = model->shape.hidden;
    m->hidden = carve(c, rows * hidden, sizeof(float));
    m->pairs = carve(c, 2 * rows * hidden, sizeof(float));
}

void forward_mtp_carve_host(struct carver *c, struct forward_mtp *m, const struct model *model,
                            const struct forward_options *options)
{
    const uint64_t rows = model->has_mtp ? options->max_rows : 0;
    const uint64_t segments = model->has_mtp ? options->max_segments : 0;
    m->pass.tokens = carve(c, rows, sizeof *m->pass.tokens);
    m->pass.positions = carve(c, rows, sizeof *m->pass.positions);
    m->pass.segments = carve(c, segments, sizeof *m->pass.segments);
    m->pass.in_batch = carve(c, segments, sizeof *m->pass.in_batch);
    m->wanted = carve(c, segments, sizeof *m->wanted);
}

/* ---- which rows are computed ----------------------------------------------------------------- */

static void begin_rows(struct forward *f)
{
    f->mtp.pass.n_rows = f->mtp.pass.n_segments = 0;
    f->mtp.has_failed = false;
}

/* Adds n rows of a sequence, whose keys and values go to `place` and behind it. */
static void add_segment(struct forward *f, struct sequence *sequence, uint32_t place, uint32_t n)
{
    struct pass *p = &f->mtp.pass;
    const struct sequence_part *part = &sequence->parts[f->options.stage];
    const struct sequence_layer *l = &part->layers[f->model->end_layer - part->first_layer];
    const uint32_t s = p->n_segments++;
    assert(p->n_segments <= f->options.max_segments && sequence_holds(sequence, place + n));
    p->segments[s] = (struct backend_segment){.first_row = p->n_rows, .n_rows = n,
                                              .position = place};
    for (uint32_t i = 0; i < BACKEND_STATE_PARTS; i++)
        p->segments[s].state[i] = l->state[i];
    p->in_batch[s] = s;
    f->mtp.wanted[s] = (struct batch_segment){.sequence = sequence, .n_tokens = n,
                                              .wants_last_logits = true};
}

static void add_row(struct forward *f, int32_t token, uint32_t position)
{
    struct pass *p = &f->mtp.pass;
    assert(p->n_rows < f->options.max_rows);
    p->tokens[p->n_rows] = token;
    p->positions[p->n_rows++] = position;
}

/* Makes the block's input of the rows that were added, with the hidden states in mtp.hidden. */
static void take_rows(struct forward *f)
{
    const struct pass *p = &f->mtp.pass;
    f->step.tokens = p->tokens;
    f->step.positions = p->positions;
    f->step.segments = p->segments;
    f->step.n_rows = p->n_rows;
    f->step.n_segments = p->n_segments;
    f->step.resident = NULL;
    f->arch->place(&f->step);
    f->arch->mtp->rows(&f->step, f->mtp.hidden, f->mtp.pairs);
}

static void take_given_rows(struct forward *f, const struct mtp_row *rows, uint32_t n)
{
    const struct memory *memory = f->be->memory;
    const size_t hidden = f->model->shape.hidden, bytes = hidden * sizeof(float);
    begin_rows(f);
    memory_finish(memory); /* the rows before may still be computed */
    for (uint32_t i = 0; i < n; i++) {
        float *at = f->mtp.hidden + i * hidden;
        memcpy(memory_open(memory, at, bytes, MEMORY_FILL), rows[i].hidden, bytes);
        memory_close(memory, at, bytes);
    }
    for (uint32_t i = 0, of_one; i < n; i += of_one) {
        of_one = 1;
        while (i + of_one < n && rows[i + of_one].sequence == rows[i].sequence)
            of_one++;
        add_segment(f, rows[i].sequence, rows[i].place, of_one);
        for (uint32_t j = i; j < i + of_one; j++)
            add_row(f, rows[j].token, rows[j].position);
    }
    take_rows(f);
}

void forward_mtp_keep(struct forward *f, const struct mtp_row *rows, uint32_t n)
{
    take_given_rows(f, rows, n);
    f->arch->mtp->keep(&f->step);
}

/* ---- following the model --------------------------------------------------------------------- */

/* Keeps the hidden states of a segment from which rows may follow. */
static void keep_hidden(struct forward *f, uint32_t s)
{
    const struct batch_segment *wanted = pass_segment(f->pass, s);
    const struct backend_segment *segment = &f->pass->segments[s];
    struct mtp_state *state = wanted->mtp;
    const size_t hidden = f->model->shape.hidden;
    const uint32_t n = 1 + wanted->n_drafts, at = segment->n_rows - n;
    assert(n <= state->max_hidden && n <= segment->n_rows);
    if (state->first + state->n_hidden != segment->position + at ||
        state->n_hidden + n > state->max_hidden)
        state->n_hidden = 0;
    if (state->n_hidden == 0)
        state->first = segment->position + at;
    for (uint32_t i = 0; i < n; i++)
        memory_fetch(f->be->memory, state->hidden + (size_t)state->n_hidden++ * hidden,
                     f->mtp.hidden + (segment->first_row + at + i) * hidden,
                     hidden * sizeof(float));
}

/* Adds the rows of a prompt whose next tokens are part of it. Their hidden states move up. */
static void add_prompt(struct forward *f, uint32_t s)
{
    const struct batch_segment *wanted = pass_segment(f->pass, s);
    const struct backend_segment *segment = &f->pass->segments[s];
    const size_t hidden = f->model->shape.hidden;
    const uint32_t n = segment->n_rows - 1, to = f->mtp.pass.n_rows;
    memory_copy(f->be->memory, f->mtp.hidden + to * hidden,
                f->mtp.hidden + segment->first_row * hidden, n * hidden * sizeof(float));
    add_segment(f, wanted->sequence, wanted->mtp->n_rows, n);
    for (uint32_t i = 0; i < n; i++) {
        add_row(f, wanted->tokens[i + 1], segment->position + i);
        mtp_state_add(wanted->mtp, segment->position + i);
    }
}

void forward_mtp_follow(struct forward *f)
{
    const struct pass *pass = f->pass;
    uint32_t n = 0;
    for (uint32_t s = 0; s < pass->n_segments; s++)
        n += pass_segment(pass, s)->mtp != NULL;
    if (n == 0)
        return;
    f->arch->final_norm(&f->step, f->step.x, pass->n_rows, f->mtp.hidden);
    for (uint32_t s = 0; s < pass->n_segments; s++)
        if (pass_segment(pass, s)->mtp != NULL)
            keep_hidden(f, s);
    begin_rows(f);
    for (uint32_t s = 0; s < pass->n_segments; s++)
        if (pass_segment(pass, s)->mtp != NULL && pass_segment(pass, s)->n_drafts == 0 &&
            pass->segments[s].n_rows > 1)
            add_prompt(f, s);
    if (f->mtp.pass.n_rows == 0)
        return;
    take_rows(f);
    f->arch->mtp->keep(&f->step);
}

/* ---- drafting -------------------------------------------------------------------------------- */

static bool has_failed(void *ctx, uint32_t segment)
{
    (void)segment;
    return ((const struct forward *)ctx)->mtp.has_failed;
}

static void note_fault(void *ctx, uint32_t segment, const struct batch_fault *fault)
{
    (void)segment;
    (void)fault;
    ((struct forward *)ctx)->mtp.has_failed = true;
}

#define LANES 16u

/* Finds the most likely token of a row and how far it is above the next one. In lanes, so that no
 * logit waits for the comparison before: one after the other they took a tenth of a draft of
 * nano. */
static void take_best(struct mtp_row *row, const float *logits, uint32_t n)
{
    float best[LANES], next[LANES], first = -INFINITY, second = -INFINITY;
    for (uint32_t j = 0; j < LANES; j++)
        best[j] = next[j] = -INFINITY;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) {
            const float x = logits[i + j], less = x < best[j] ? x : best[j];
            best[j] = x > best[j] ? x : best[j];
            next[j] = less > next[j] ? less : next[j];
        }
    for (; i < n; i++) {
        const float x = logits[i], less = x < best[0] ? x : best[0];
        best[0] = x > best[0] ? x : best[0];
        next[0] = less > next[0] ? less : next[0];
    }
    for (uint32_t j = 0; j < LANES; j++) {
        const float less = best[j] < first ? best[j] : first;
        first = best[j] > first ? best[j] : first;
        second = less > second ? less : second;
        second = next[j] > second ? next[j] : second;
    }
    uint32_t at = 0;
    while (at + 1 < n && !(logits[at] == first))
        at++;
    row->draft = (int32_t)at;
    row->margin = first - second;
}

/* Gives some rows their drafts. */
static void run_head(struct forward *f, struct mtp_row *rows, const float *hidden, uint32_t n,
                     uint32_t n_tokens)
{
    const struct memory *memory = f->be->memory;
    f->arch->mtp->head(&f->step, hidden, n, n_tokens, f->logits);
    for (uint32_t i = 0; i < n; i++) {
        float *at = f->logits + (size_t)i * n_tokens;
        const uint64_t bytes = n_tokens * sizeof *at;
        take_best(&rows[i], memory_open(memory, at, bytes, MEMORY_LOOK), n_tokens);
        memory_close(memory, at, bytes);
        memory_fetch(memory, rows[i].next, hidden + i * (size_t)f->model->shape.hidden,
                     f->model->shape.hidden * sizeof(float));
    }
}

bool forward_mtp_draft(struct forward *f, struct mtp_row *rows, uint32_t n, uint32_t n_tokens)
{
    const uint32_t layer = f->model->shape.n_layers;
    const struct batch batch = {
        .segments = f->mtp.wanted, .n_segments = n,
        .hooks = {.ctx = f, .is_given_up = has_failed, .fault = note_fault}};
    const uint32_t n_together = forward_head_rows(&f->options);
    take_given_rows(f, rows, n);
    f->mtp.pass.batch = &batch;
    f->pass = &f->mtp.pass;
    f->is_timed = f->routed.is_on = false;
    f->arch->mix(&f->step, layer);
    forward_run_experts(f, layer);
    far_settle(f);
    forward_verify_experts(f);
    f->pass = NULL;
    f->mtp.pass.batch = NULL;
    if (f->mtp.has_failed)
        return false;
    f->arch->mtp->norm(&f->step, f->step.x, n, f->mtp.hidden);
    for (uint32_t i = 0; i < n; i += n_together) {
        const uint32_t left = n - i;
        run_head(f, rows + i, f->mtp.hidden + i * (size_t)f->model->shape.hidden,
                 left < n_together ? left : n_together, n_tokens);
    }
    return true;
}
