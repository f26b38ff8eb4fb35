/* Copies structs between callers and the library. Such a struct begins with its size in bytes, set
 * by the caller. A program that was compiled with another version of the header has fewer or more
 * fields at the end; only these functions know that. Any thread may call them; none allocates.
 *
 * A new field must begin after the end of the old struct, its padding included: padding of a
 * caller's struct need not be 0. The test install.abi checks that. */
#ifndef FLASHMOE_BASE_SIZED_H
#define FLASHMOE_BASE_SIZED_H

#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the caller's struct `given` to `own`, which has the layout of this library and own_bytes
 * bytes. Sets fields that the caller does not know to 0, and the size of `own` to own_bytes. NULL
 * means that all fields are 0. FM_ERR_ARG: the size cannot be that of a struct, or a field is set
 * that this library does not know; the message has `name`, the name of the struct. */
int sized_take(void *own, size_t own_bytes, const void *given, const char *name,
               struct fm_error *err);

/* Checks the size of a struct that is filled in later, before any work is done. */
int sized_check(const void *given, const char *name, struct fm_error *err);

/* Fills the caller's struct in from `own`, up to its size, which stays. Sets fields that this
 * library does not know to 0. FM_ERR_ARG: the size cannot be that of a struct; nothing changed. */
int sized_give(void *given, const void *own, size_t own_bytes);

#ifdef __cplusplus
}
#endif
#endif
