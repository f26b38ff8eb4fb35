/* Passes the dense weights from the binder, which lists their reads, to model_load_dense. */
#ifndef FLASHMOE_MODEL_DENSE_INTERNAL_H
#define FLASHMOE_MODEL_DENSE_INTERNAL_H

#include "model/binder_internal.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dense_plan {
    struct dense_read *reads;
    size_t n_reads;
    struct dense_pointer *pointers;
    size_t n_pointers;
    struct weight **products;
    size_t n_products;
    struct dense_copy *copies;
    size_t n_copies;
};

/* Takes ownership of the binder's lists, until the dense weights are read. */
int dense_plan_take(struct model *model, struct binder *b, struct fm_error *err);
void dense_plan_free(struct dense_plan *plan); /* accepts NULL */

/* Some of the reads, sorted by their place in memory, and the bytes that they fill with the gaps
 * before, between and, for the last ones, behind them. */
struct dense_window {
    size_t first, end;
    uint64_t begin_offset, end_offset;
};

void dense_sort_in_memory(struct dense_read *reads, size_t n);
/* Finds the reads, sorted by their place in memory, that must be in the window of the one before
 * them: (*joined)[i], which the caller frees, also after a failure. */
int dense_find_joined(const struct model *model, const struct dense_plan *plan, bool **joined,
                      struct fm_error *err);
/* Goes on to the next window; a zeroed one is before the first. It has at most `handy` bytes of
 * `all`, or the reads that are joined to one; handy 0: all of them. */
void dense_next_window(const struct dense_plan *plan, const bool *joined, uint64_t handy,
                       uint64_t all, struct dense_window *w);

/* Reads the rows of a turned matrix once more and compares the result with `memory`: rows of other
 * formats are not there to be hashed, and what is hashed of the file is another read. */
int dense_check_turned(const struct model *model, const struct packed_tensor *tensor,
                       const struct dense_read *r, const char *memory, struct fm_error *err);

/* Verifies a tensor of a packed model, unless none of `reads` has a part of it. They are sorted by
 * their offset in dense.bin. Their bytes are at `dense`, which is dense_offset `begin`, with rows
 * still in the file's order. Any thread may call. */
int dense_check_matrix(const struct model *model, const struct packed_tensor *tensor,
                       const char *dense, uint64_t begin, const struct dense_read *reads,
                       size_t n_reads, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
