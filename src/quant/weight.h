/* A matrix in memory: y = W x with rows of n_cols columns in one number format. It borrows the
 * bytes. Row r of part p starts quant_part_row * quant_part_row_bytes bytes into parts[p], unless
 * the rows are interleaved (interleave.h). */
#ifndef FLASHMOE_QUANT_WEIGHT_H
#define FLASHMOE_QUANT_WEIGHT_H

#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct weight {
    const struct quant *quant;
    uint32_t n_rows, n_cols;
    bool is_interleaved;
    const void *parts[QUANT_MAX_PARTS];
};

/* One part of a matrix. */
struct weight_part {
    const struct quant *quant;
    unsigned part;
    uint32_t n_rows, n_cols;
    const char *at;
};

/* Converts weights into the layout that a backend's kernels want. The backend owns it; code that
 * reads weights borrows it. Any thread may call its functions. */
struct weight_preparer {
    /* Returns whether the kernels want the rows of this weight interleaved and they are not.
     * Depends on format and shape only. */
    bool (*changes)(const struct weight *w);
    /* Interleaves share `part` of n_parts in place; w->parts must be writable. Several threads may
     * prepare different shares at the same time. */
    void (*prepare)(const struct weight *w, unsigned part, unsigned n_parts);
};

/* Sets parts[] to where row `r` begins in each part of a weight stored by rows. */
static inline void weight_row(const struct weight *w, size_t r, const void *parts[])
{
    for (unsigned p = 0; p < w->quant->n_parts; p++)
        parts[p] = (const char *)w->parts[p] +
                   quant_part_row(w->quant, p, r) * quant_part_row_bytes(w->quant, p, w->n_cols);
}

static inline uint64_t weight_bytes(const struct weight *w)
{
    return quant_matrix_bytes(w->quant, w->n_rows, w->n_cols);
}

#ifdef __cplusplus
}
#endif
#endif
