/* Rows of tables that stay on the disk. A pass asks for all of them when it begins; a layer waits
 * for its own. */
#include <assert.h>
#include <string.h>

#include "engine/forward_internal.h"

uint64_t forward_looked_up_floats(const struct model *model)
{
    uint64_t max = 0;
    for (uint32_t i = 0; i < model->n_row_tables; i++) {
        const uint64_t n = (uint64_t)model->row_tables[i].n_per_token * model->row_tables[i].n_cols;
        max = n > max ? n : max;
    }
    return max;
}

/* Finds token `row` of a segment and those before it; -1 where the sequence had not begun. */
static void find_recent(const struct batch_segment *s, uint32_t row, int32_t *recent, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i <= row)
            recent[i] = s->tokens[row - i];
        else
            recent[i] = i - row <= s->sequence->position
                            ? s->before[s->sequence->position - (i - row)] : -1;
    }
}

/* Rows keep their slots when others leave the pass: slots count all rows of the batch. */
void forward_ask_tables(struct forward *f)
{
    const struct model *model = f->model;
    uint64_t rows[64];
    int32_t recent[MODEL_MAX_RECENT];
    if (f->rows == NULL)
        return;
    row_store_begin(f->rows);
    for (uint32_t i = 0; i < model->n_row_tables; i++) {
        uint32_t slot = 0;
        assert(model->row_tables[i].n_per_token <= sizeof rows / sizeof rows[0]);
        for (uint32_t s = 0; s < f->pass->batch->n_segments; s++) {
            const struct batch_segment *segment = &f->pass->batch->segments[s];
            for (uint32_t t = 0; t < segment->n_tokens; t++, slot++) {
                find_recent(segment, t, recent, model->row_tables[i].n_recent);
                f->arch->table_rows(model->arch, i, recent, rows);
                row_store_ask(f->rows, i, slot, rows);
            }
        }
    }
}

/* Gives up a segment if a row of its tokens could not be read. Returns whether all are there. */
static bool check_segment(const struct forward *f, uint32_t table, uint32_t s, uint32_t first_slot)
{
    const struct pass *pass = f->pass;
    struct batch_fault fault = {.layer = (int)f->model->row_tables[table].layer, .expert = -1};
    for (uint32_t i = 0; i < pass->segments[s].n_rows; i++) {
        if (row_store_check(f->rows, table, first_slot + i, &fault.err) == 0)
            continue;
        pass->batch->hooks.fault(pass->batch->hooks.ctx, pass->in_batch[s], &fault);
        return false;
    }
    return true;
}

/* Decodes the rows of a segment, in pieces that memory_open has room for. Rows of a segment that is
 * given up here are zeros: nobody sees what comes of them. */
static void fill_segment(struct forward *f, uint32_t table, uint32_t s, uint32_t first_slot)
{
    const struct row_table *t = &f->model->row_tables[table];
    const struct backend_segment *segment = &f->pass->segments[s];
    const uint64_t width = (uint64_t)t->n_per_token * t->n_cols, row_bytes = width * sizeof(float);
    const uint32_t at_once = (uint32_t)(forward_piece_bytes(f->model) / row_bytes);
    const bool is_there = check_segment(f, table, s, first_slot);
    assert(at_once > 0);
    for (uint32_t i = 0, n; i < segment->n_rows; i += n) {
        float *at = f->step.looked_up + (segment->first_row + i) * width;
        n = segment->n_rows - i < at_once ? segment->n_rows - i : at_once;
        float *to = memory_open(f->be->memory, at, n * row_bytes, MEMORY_FILL);
        if (!is_there)
            memset(to, 0, n * row_bytes);
        for (uint32_t j = 0; is_there && j < n; j++)
            row_store_decode(f->rows, table, first_slot + i + j, to + j * width);
        memory_close(f->be->memory, at, n * row_bytes);
    }
}

/* Decodes the rows of the segments that are still computed. */
static void fill(struct forward *f, uint32_t table)
{
    const struct pass *pass = f->pass;
    uint32_t slot = 0, s = 0;
    memory_finish(f->be->memory); /* an earlier layer may still use the place */
    for (uint32_t b = 0; b < pass->batch->n_segments; b++) {
        if (s < pass->n_segments && pass->in_batch[s] == b)
            fill_segment(f, table, s++, slot);
        slot += pass->batch->segments[b].n_tokens;
    }
}

bool forward_take_table(struct forward *f, uint32_t layer)
{
    struct batch_fault fault = {.layer = (int)layer, .expert = -1};
    struct pass *pass = f->pass;
    for (uint32_t i = 0; i < f->model->n_row_tables; i++) {
        if (f->model->row_tables[i].layer != layer)
            continue;
        if (row_store_wait(f->rows, i, &fault.err) == 0) {
            fill(f, i);
            return true;
        }
        for (uint32_t s = 0; s < pass->n_segments; s++)
            pass->batch->hooks.fault(pass->batch->hooks.ctx, pass->in_batch[s], &fault);
        return false;
    }
    return true;
}
