/* Part of lanes.h: weights that come next are prefetched while those before them are multiplied;
 * otherwise unpacking would wait for memory. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_AHEAD_H
#define FLASHMOE_BACKEND_CPU_LANES_AHEAD_H

/* Bytes between two prefetches: a cache line, or two where the processor fetches the other one of a
 * pair by itself. */
#ifndef AHEAD_STEP
#define AHEAD_STEP MEM_CACHE_LINE
#endif

struct ahead {
    const char *at, *end; /* what is left of the part under way */
    struct {
        const char *at, *end;
    } rest[QUANT_MAX_PARTS];
    unsigned n_rest;
    size_t n_steps; /* of all parts together */
};

/* Returns n_rows rows from `row` on, or as many as there are. */
static struct ahead ahead_of(const struct weight *w, size_t row, size_t n_rows)
{
    const size_t n = w->n_rows - row < n_rows ? w->n_rows - row : n_rows;
    struct ahead a = {.n_rest = w->quant->n_parts};
    for (unsigned i = 0; i < a.n_rest; i++) {
        const size_t first = quant_part_row(w->quant, i, row);
        const size_t end = quant_part_row(w->quant, i, row + n - 1) + 1;
        const size_t row_bytes = quant_part_row_bytes(w->quant, i, w->n_cols);
        a.rest[i].at = (const char *)w->parts[i] + first * row_bytes;
        a.rest[i].end = (const char *)w->parts[i] + end * row_bytes;
        a.n_steps += ((end - first) * row_bytes + AHEAD_STEP - 1) / AHEAD_STEP;
    }
    return a;
}

/* Returns what this thread multiplies with after the rows before `next`. */
static struct ahead ahead_after(const struct kernel_matmul *m, size_t next, size_t n_rows)
{
    if (next < m->end)
        return ahead_of(m->w, next, n_rows);
    return m->next != NULL ? ahead_of(m->next, m->next_row, n_rows) : (struct ahead){.n_steps = 0};
}

/* Prefetches the next n steps. */
INLINE void ahead_fetch(struct ahead *a, size_t n)
{
    for (; n > 0; n--) {
        if (a->at >= a->end) {
            if (a->n_rest == 0)
                return;
            a->n_rest--;
            a->at = a->rest[a->n_rest].at;
            a->end = a->rest[a->n_rest].end;
        }
        __builtin_prefetch(a->at, 0, 2);
        a->at += AHEAD_STEP;
    }
}

#endif
