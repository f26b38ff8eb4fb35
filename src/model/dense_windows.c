/* Dense weights for a memory that the host cannot write: they go through a piece of the host's own,
 * so many at a time that it stays small. What must be seen together is in one window: the parts of
 * a matrix, and all that is read of a tensor with a checksum. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/dense_internal.h"

static int by_place_in_memory(const void *a, const void *b)
{
    const struct dense_read *x = a, *y = b;
    return (x->dense_offset > y->dense_offset) - (x->dense_offset < y->dense_offset);
}

void dense_sort_in_memory(struct dense_read *reads, size_t n)
{
    qsort(reads, n, sizeof *reads, by_place_in_memory);
}

/* Joins all reads that begin behind `from` and before `to` to the one before them. */
static void join(const struct dense_plan *plan, uint64_t from, uint64_t to, bool *joined)
{
    size_t low = 0, high = plan->n_reads;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (plan->reads[middle].dense_offset > from)
            high = middle;
        else
            low = middle + 1;
    }
    for (size_t i = low; i < plan->n_reads && plan->reads[i].dense_offset < to; i++)
        joined[i] = true;
}

static void join_products(const struct model *model, const struct dense_plan *plan, bool *joined)
{
    for (size_t i = 0; i < plan->n_products; i++) {
        const struct weight *w = plan->products[i];
        uint64_t from = UINT64_MAX, to = 0;
        for (unsigned p = 0; p < w->quant->n_parts; p++) {
            const uint64_t at = (uint64_t)((const char *)w->parts[p] - (const char *)model->dense);
            const uint64_t end = at + quant_part_bytes(w->quant, p, w->n_rows, w->n_cols);
            from = at < from ? at : from;
            to = end > to ? end : to;
        }
        join(plan, from, to, joined);
    }
}

static void join_tensors(const struct packed *packed, const struct dense_plan *plan,
                         uint64_t *first, bool *joined)
{
    for (size_t i = 0; i < packed->n_tensors; i++)
        first[i] = UINT64_MAX;
    for (size_t i = 0; i < plan->n_reads; i++) {
        const struct packed_tensor *t = packed_tensor_at(packed, plan->reads[i].offset);
        uint64_t *at = t != NULL ? &first[t - packed->tensors] : NULL;
        if (at != NULL && *at == UINT64_MAX)
            *at = plan->reads[i].dense_offset;
        else if (at != NULL)
            join(plan, *at, plan->reads[i].dense_offset + 1, joined);
    }
}

int dense_find_joined(const struct model *model, const struct dense_plan *plan, bool **joined,
                      struct fm_error *err)
{
    const struct packed *packed = model->source->packed;
    *joined = mem_new(plan->n_reads + 1, sizeof **joined, "the list of reads", err);
    if (*joined == NULL)
        return FM_ERR_NOMEM;
    join_products(model, plan, *joined);
    if (packed == NULL)
        return 0;
    uint64_t *first = mem_new(packed->n_tensors + 1, sizeof *first, "the list of tensors", err);
    if (first == NULL)
        return FM_ERR_NOMEM;
    join_tensors(packed, plan, first, *joined);
    mem_free(first);
    return 0;
}

/* Returns where the bytes before read i end: where it begins, or at the end of all. */
static uint64_t offset_of(const struct dense_plan *plan, size_t i, uint64_t all)
{
    return i < plan->n_reads ? plan->reads[i].dense_offset : all;
}

/* Returns the first read behind i that is not joined to it. */
static size_t joined_end(const struct dense_plan *plan, const bool *joined, size_t i)
{
    for (i++; i < plan->n_reads && joined[i];)
        i++;
    return i < plan->n_reads ? i : plan->n_reads;
}

void dense_next_window(const struct dense_plan *plan, const bool *joined, uint64_t handy,
                       uint64_t all, struct dense_window *w)
{
    w->first = w->end;
    w->begin_offset = w->end_offset;
    w->end = handy > 0 ? joined_end(plan, joined, w->end) : plan->n_reads;
    while (w->end < plan->n_reads) {
        const size_t end = joined_end(plan, joined, w->end);
        if (offset_of(plan, end, all) - w->begin_offset > handy)
            break;
        w->end = end;
    }
    w->end_offset = offset_of(plan, w->end, all);
}
