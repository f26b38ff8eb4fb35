/* The order in which kernels like the rows of a matrix best: sixteen of them side by side. The
 * codes of a block of sixteen rows are four bytes of each row, then the next four of each; scales
 * and biases are one of each row, then the next one of each. A block takes the bytes it took
 * before, so a matrix changes its order in place, and any row can still be found.
 *
 * Affine formats of four and eight bits have this order, where the rows are whole blocks. Any
 * thread; nothing fails. */
#ifndef FLASHMOE_QUANT_INTERLEAVE_H
#define FLASHMOE_QUANT_INTERLEAVE_H

#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INTERLEAVE_ROWS 16
/* The most bytes that the codes of a block have: 16,384 columns of four bits. */
#define INTERLEAVE_BLOCK_BYTES (128u << 10)

bool interleave_suits(const struct quant *quant, uint64_t n_rows, uint64_t n_cols);

/* Brings the blocks [begin, end) of a matrix by rows into the order, in place. Takes
 * INTERLEAVE_BLOCK_BYTES of stack. */
void interleave_blocks(const struct quant *quant, uint64_t n_cols, void *const parts[],
                       uint64_t begin, uint64_t end);
/* The same for n_blocks of one part, which begin at `rows`. */
void interleave_part(const struct quant *quant, unsigned part, uint64_t n_cols, void *rows,
                     uint64_t n_blocks);

/* Row `r` of a matrix in this order, part after part, into `to` (quant_row_bytes); parts[] says
 * where each begins. */
void interleave_take_row(const struct weight *w, uint64_t r, void *to, const void *parts[]);

#ifdef __cplusplus
}
#endif
#endif
