/* The highest value of a row and where it lies, as one number that a device can raise. */
#ifndef FLASHMOE_BACKEND_PEAK_H
#define FLASHMOE_BACKEND_PEAK_H

#include <stdint.h>

#include "base/fmath.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a finite value. A higher value has a higher code, both zeros being alike; of equal values the
 * earlier one has. It is never 0. */
SHARED_FN uint64_t peak_code(float value, uint32_t index)
{
    const uint32_t bits = fmath_bits_of_float(value + 0.0f);
    const uint32_t key = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)key << 32 | (UINT32_MAX - index);
}

SHARED_FN uint32_t peak_index(uint64_t code)
{
    return UINT32_MAX - (uint32_t)code;
}

#ifdef __cplusplus
}
#endif
#endif
