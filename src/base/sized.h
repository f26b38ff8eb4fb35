/* Structs that cross the library's border begin with their size in bytes, a size_t that the caller
 * sets. A program that was compiled with another version of the header has fewer or more fields at
 * the end; these functions are the only place that has to know. Any thread; no allocation. */
#ifndef FLASHMOE_BASE_SIZED_H
#define FLASHMOE_BASE_SIZED_H

#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the caller's struct `given` to `own`, which has the layout of this library and own_bytes
 * bytes. Fields that the caller does not know become 0; `own` gets its own size. NULL is a struct
 * whose other fields are 0. FM_ERR_ARG, with the struct's name in the sentence: the size cannot be
 * that of a struct, or a field is set that this library does not know. */
int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err);

/* Checks the size of a struct that is filled in later, so that no work is lost. */
int sized_check(const void *given, const char *name, struct fm_error *err);

/* Fills the caller's struct from `own`; the size stays. Fields that this library does not know
 * become 0. FM_ERR_ARG: the size cannot be that of a struct, and nothing is written. */
int sized_give(void *given, const void *own, size_t own_bytes);

#ifdef __cplusplus
}
#endif
#endif
