/* Reorders large arrays in place. Needs no memory beyond a fixed piece of the stack, because the
 * threads that read experts allocate nothing. Pure functions: any thread may call. */
#ifndef FLASHMOE_BASE_REORDER_H
#define FLASHMOE_BASE_REORDER_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum bytes of a row, and of a column, of a matrix that reorder_transpose takes. It is on the
 * stack, and some C libraries give threads 128 KiB. 2880 x 5760 BF16 take 277 ms; 314 with 32 KiB,
 * because fewer columns are moved together, and 286 with 128. */
#define REORDER_MAX_LINE (64u << 10)

/* Takes rows apart that alternate: of 2 * n rows the even ones come first, then the odd ones, both
 * in their order. */
void reorder_unzip(void *rows, size_t n, size_t row_bytes);

/* Transposes a matrix of n_rows rows of n_cols elements, of 1, 2 or 4 bytes each: it becomes n_cols
 * rows of n_rows elements. */
void reorder_transpose(void *at, size_t n_rows, size_t n_cols, size_t element_bytes);
/* Returns whether it can: rows and columns fit the stack. */
bool reorder_can_transpose(size_t n_rows, size_t n_cols, size_t element_bytes);

#ifdef __cplusplus
}
#endif
#endif
