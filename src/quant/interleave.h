/* The order of rows that the kernels prefer: sixteen rows side by side. In a block of sixteen rows,
 * the codes are four bytes of each row, then the next four bytes of each; scales and biases are one
 * of each row, then the next one of each. A block keeps its size, so a matrix is reordered in place
 * and every row can still be found.
 *
 * Affine formats, int4-g32 and mxfp4-g32 support this order if the rows are whole blocks. Where
 * codes are whole bytes or nibbles, files may hold it. Affine formats of two, three, five and six
 * bits have it in memory only.
 *
 * So do GGUF's formats that are codes. Sixteen of their blocks, one of each row, lie together: the
 * unit at byte o of the block of row r is at 16 * o + r * its size. Units are words, except for a
 * scale of one or two bytes before or after them. The blocks of the next columns follow.
 *
 * The functions borrow their arguments, cannot fail, and may be called from any thread. */
#ifndef FLASHMOE_QUANT_INTERLEAVE_H
#define FLASHMOE_QUANT_INTERLEAVE_H

#include "quant/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INTERLEAVE_ROWS 16
/* Maximum size of the codes of sixteen rows: 16,384 columns of four bits. */
#define INTERLEAVE_BLOCK_BYTES (128u << 10)

/* Returns whether a matrix can have this order in files and in memory. */
bool interleave_suits(const struct quant *quant, uint64_t n_rows, uint64_t n_cols);
/* Same for the formats that have it in memory only. */
bool interleave_suits_memory(const struct quant *quant, uint64_t n_rows, uint64_t n_cols);

/* Reorders the blocks [begin, end) of a matrix stored by rows, in place. Uses
 * INTERLEAVE_BLOCK_BYTES of stack. */
void interleave_blocks(const struct quant *quant, uint64_t n_cols, void *const parts[],
                       uint64_t begin, uint64_t end);
/* Reorders n_blocks blocks of one part, starting at `rows`. */
void interleave_part(const struct quant *quant, unsigned part, uint64_t n_cols, void *rows,
                     uint64_t n_blocks);

/* Prepare weights in this order: those that may lie like this in files, for a backend whose kernels
 * take no others, or all that support it. */
extern const struct weight_preparer interleave_preparer;
extern const struct weight_preparer interleave_all_preparer;

/* Copies row `r` of an interleaved matrix to `to` (quant_row_bytes), part after part. parts[] says
 * where each part begins. */
void interleave_take_row(const struct weight *w, uint64_t r, void *to, const void *parts[]);

/* Copies one part of the sixteen rows at `from` to `to`, by rows as in files. Only for formats that
 * have this order in memory only. */
void interleave_restore(const struct quant *quant, unsigned part, uint64_t n_cols,
                        const void *from, void *to);

#ifdef __cplusplus
}
#endif
#endif
