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

void recurrent_run(struct backend *be, const struct layer_state *state,
                   const struct backend_segment *segments, size_t n, recurrent_fn *run, void *ctx)
{
    bool has_mark = false;
    for (size_t i = 0; i < n; i++)
        has_mark |= segments[i].mark_rows > 0;
    if (!has_mark) {
        run(ctx, be, segments, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (segments[i].mark_rows > 0)
            run_marked(be, state, &segments[i], run, ctx);
        else
            run(ctx, be, &segments[i], 1);
    }
}
