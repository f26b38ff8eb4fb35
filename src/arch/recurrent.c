#include "arch/recurrent.h"

static void copy_to_mark(struct backend *be, const struct layer_state *state,
                         const struct backend_segment *segment)
{
    for (uint32_t i = 0; i < state->n_parts; i++)
        if (state->parts[i].kind == STATE_RECURRENT)
            memory_copy(be->memory, segment->mark[i], segment->state[i], state->parts[i].bytes);
}

/* The rows before the mark, the mark, the rows behind it. */
static void run_marked(struct backend *be, const struct layer_state *state,
                       const struct backend_segment *segment, recurrent_fn *run, void *ctx)
{
    struct backend_segment part = *segment;
    part.n_rows = segment->mark_rows;
    run(ctx, be, &part, 1);
    copy_to_mark(be, state, segment);
    part.first_row += part.n_rows;
    part.position += part.n_rows;
    part.n_rows = segment->n_rows - part.n_rows;
    run(ctx, be, &part, 1);
}

/* Each row has a copy of the state before it, and leaves it behind in its own slot. */
static void run_trail(struct backend *be, const struct layer_state *state,
                      const struct backend_segment *segment, recurrent_fn *run, void *ctx)
{
    struct backend_segment row = *segment;
    row.n_rows = 1;
    row.n_slots = 0; /* for the operations it has no trail */
    for (uint32_t r = 0; r < segment->n_rows; r++) {
        const uint32_t slot = (segment->slot + r + 1) % segment->n_slots;
        for (uint32_t i = 0; i < state->n_parts; i++) {
            if (state->parts[i].kind != STATE_RECURRENT)
                continue;
            char *first = (char *)segment->state[i] - segment->slot * segment->slot_bytes;
            void *to = first + slot * segment->slot_bytes;
            memory_copy(be->memory, to, row.state[i], state->parts[i].bytes);
            row.state[i] = to;
        }
        run(ctx, be, &row, 1);
        row.first_row++;
        row.position++;
    }
}

void recurrent_run(struct backend *be, const struct layer_state *state,
                   const struct backend_segment *segments, size_t n, bool leaves_trails,
                   recurrent_fn *run, void *ctx)
{
    bool is_cut = false;
    for (size_t i = 0; i < n; i++)
        is_cut |= segments[i].mark_rows > 0 || (segments[i].n_slots > 0 && !leaves_trails);
    if (!is_cut) {
        run(ctx, be, segments, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (segments[i].n_slots > 0 && !leaves_trails)
            run_trail(be, state, &segments[i], run, ctx);
        else if (segments[i].mark_rows > 0)
            run_marked(be, state, &segments[i], run, ctx);
        else
            run(ctx, be, &segments[i], 1);
    }
}
