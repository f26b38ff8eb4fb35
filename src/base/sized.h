/* Copies structs across the library's border. They begin with their size in bytes, a size_t that
 * the caller sets. A program compiled against another version of the header has fewer or more
 * fields at the end; only these functions have to know. Any thread; no allocation. */
#ifndef FLASHMOE_BASE_SIZED_H
#define FLASHMOE_BASE_SIZED_H

#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the caller's struct `given` to `own`, which has this library's layout and own_bytes bytes.
 * Fields that the caller does not have become 0; `own` gets its own size. NULL means a struct whose
 * other fields are all 0. Fails with FM_ERR_ARG and the struct's name if the size is not plausible
 * or if a field is set that this library does not know. */
int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err);

/* Checks the size of a struct that will be filled in later, before the work is done. */
int sized_check(const void *given, const char *name, struct fm_error *err);

/* Fills the caller's struct from `own` and keeps its size field. Fields that this library does not
 * know become 0. Fails with FM_ERR_ARG, without writing, if the size is not plausible. */
int sized_give(void *given, const void *own, size_t own_bytes);

#ifdef __cplusplus
}
#endif
#endif
