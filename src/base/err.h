/* Fills `struct fm_error`, the only error type of the project.
 *
 * A function that can fail returns int: 0 or a negative FM_ERR_* code. Its last parameter is
 * `struct fm_error *err`, which may be NULL. The function that detects the fault writes the
 * sentence (file, field, value); its callers only prepend context. Any thread; no allocation. */
#ifndef FLASHMOE_BASE_ERR_H
#define FLASHMOE_BASE_ERR_H

#include "flashmoe_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ERR_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#else
#define ERR_PRINTF(fmt_arg, first_arg)
#endif

/* Writes the sentence and returns `code`, so that a function can end with `return err_set(...)`. */
int err_set(struct fm_error *err, int code, const char *fmt, ...) ERR_PRINTF(3, 4);

/* Prepends "CONTEXT: " to the sentence already there and returns `code`. */
int err_wrap(struct fm_error *err, int code, const char *fmt, ...) ERR_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif
