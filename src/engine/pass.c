#include "engine/pass.h"

#include <assert.h>
#include <string.h>

#include "base/carve.h"
#include "base/mem.h"

static void carve_all(struct carver *c, struct pass *p, const struct pass_options *options)
{
    const uint64_t rows = options->max_rows;
    p->tokens = carve(c, rows, sizeof(int32_t));
    p->positions = carve(c, rows, sizeof(uint32_t));
    p->segments = carve(c, options->max_segments, sizeof(struct backend_segment));
    p->in_batch = carve(c, options->max_segments, sizeof(uint32_t));
    p->kept = carve(c, options->max_segments, sizeof(uint32_t));
    p->rows = carve(c, rows * options->row_floats, sizeof(float));
}

uint64_t pass_bytes(const struct pass_options *options)
{
    struct pass scratch;
    struct carver c = {0};
    carve_all(&c, &scratch, options);
    return c.bytes;
}

int pass_open(struct pass *pass, const struct pass_options *options, struct fm_error *err)
{
    struct carver c = {0};
    *pass = (struct pass){.options = *options};
    pass->block =
        mem_new_aligned(MEM_CACHE_LINE, pass_bytes(options), "the rows of a batch", err);
    if (pass->block == NULL)
        return FM_ERR_NOMEM;
    c.at = pass->block;
    carve_all(&c, pass, options);
    return 0;
}

void pass_close(struct pass *pass)
{
    mem_free(pass->block);
    *pass = (struct pass){0};
}

void pass_begin(struct pass *p, const struct batch *batch)
{
    for (uint32_t s = 0; s < batch->n_segments; s++) {
        const struct batch_segment *from = &batch->segments[s];
        sequence_expect(from->sequence, from->n_tokens, from->n_drafts);
    }
    pass_lay_out(p, batch);
}

void pass_lay_out(struct pass *p, const struct batch *batch)
{
    uint32_t row = 0, n_drafts = 0;
    p->batch = batch;
    for (uint32_t s = 0; s < batch->n_segments; s++) {
        const struct batch_segment *from = &batch->segments[s];
        assert(sequence_holds(from->sequence, from->sequence->position + from->n_tokens));
        n_drafts += from->n_drafts;
        p->segments[s] = (struct backend_segment){.first_row = row, .n_rows = from->n_tokens,
                                                  .position = from->sequence->position};
        p->in_batch[s] = s;
        for (uint32_t i = 0; i < from->n_tokens; i++) {
            p->tokens[row] = from->tokens[i];
            p->positions[row] = from->sequence->position + i;
            row++;
        }
    }
    assert(row <= p->options.max_rows && batch->n_segments <= p->options.max_segments);
    p->n_rows = row;
    p->n_segments = batch->n_segments;
    p->is_decode = row - n_drafts == batch->n_segments;
}

void pass_end(struct pass *p)
{
    assert(p->n_segments <= p->batch->n_segments);
    for (uint32_t s = 0; s < p->n_segments; s++)
        sequence_advance(pass_segment(p, s)->sequence, p->segments[s].n_rows);
}

bool pass_is_given_up(const struct pass *p, uint32_t segment)
{
    return p->batch->hooks.is_given_up(p->batch->hooks.ctx, p->in_batch[segment]);
}

bool pass_all_given_up(const struct pass *p)
{
    uint32_t s = 0;
    while (s < p->n_segments && pass_is_given_up(p, s))
        s++;
    return s == p->n_segments;
}

bool pass_any_given_up(const struct pass *p)
{
    uint32_t s = 0;
    while (s < p->n_segments && !pass_is_given_up(p, s))
        s++;
    return s < p->n_segments;
}

/* Drops the segments that are given up, or that `kept` [n_kept] does not name, if there is such a
 * list. */
static bool drop(struct pass *p, const uint32_t *kept, uint32_t n_kept,
                 const struct memory *memory, void *x, uint64_t row_bytes)
{
    uint32_t n = 0, n_rows = 0, n_found = 0;
    for (uint32_t s = 0; s < p->n_segments; s++) {
        struct backend_segment segment = p->segments[s];
        assert(segment.first_row >= n_rows && p->in_batch[s] >= s);
        if (kept == NULL ? pass_is_given_up(p, s)
                         : n_found == n_kept || kept[n_found] != p->in_batch[s])
            continue;
        n_found++;
        if (n < s) {
            if (x != NULL)
                memory_copy(memory, (char *)x + n_rows * row_bytes,
                            (char *)x + segment.first_row * row_bytes,
                            segment.n_rows * row_bytes);
            memmove(p->positions + n_rows, p->positions + segment.first_row,
                    segment.n_rows * sizeof *p->positions);
        }
        segment.first_row = n_rows;
        p->segments[n] = segment;
        p->in_batch[n++] = p->in_batch[s];
        n_rows += segment.n_rows;
    }
    assert(n_rows <= p->n_rows);
    const bool has_left = n < p->n_segments;
    p->n_segments = n;
    p->n_rows = n_rows;
    return has_left;
}

bool pass_drop_given_up(struct pass *p, const struct memory *memory, void *x, uint64_t row_bytes)
{
    return drop(p, NULL, 0, memory, x, row_bytes);
}

void pass_keep(struct pass *p, const uint32_t *in_batch, uint32_t n)
{
    (void)drop(p, in_batch, n, NULL, NULL, 0);
    assert(p->n_segments == n);
}
