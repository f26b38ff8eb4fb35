/* How backend_ops.find_not_finite notes a row. */
#ifndef FLASHMOE_BACKEND_NOT_FINITE_H
#define FLASHMOE_BACKEND_NOT_FINITE_H

#include "base/shared_fn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A row with a value that is not finite, as a number: 0 is none, and an earlier row has a higher
 * one. `has_nan`: one of its values is not a number; otherwise they are infinite. */
SHARED_FN uint32_t not_finite_code(size_t row, bool has_nan)
{
    return UINT32_MAX - 2 * (uint32_t)row - (has_nan ? 0 : 1);
}

SHARED_FN uint32_t not_finite_row(uint32_t code)
{
    return (UINT32_MAX - code) / 2;
}

SHARED_FN bool not_finite_has_nan(uint32_t code)
{
    return (UINT32_MAX - code) % 2 == 0;
}

#ifdef __cplusplus
}
#endif
#endif
