/* Exact decimal numbers from JSON text, compared digit by digit without rounding. A decimal borrows
 * the text it was read from. Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_GRAMMAR_DECIMAL_H
#define FLASHMOE_GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The value is 0.d1d2...dn times 10^point, where neither the first nor the last digit is 0. Zero
 * has no digits and is not negative. */
struct decimal {
    const char *text; /* starts at the first significant digit; may contain the point */
    uint32_t n;
    int32_t point;
    bool is_negative;
};

/* Reads a JSON number from `text`. A NUL or any character that is not part of the number ends it.
 * Exponents beyond a million count as a million. */
struct decimal decimal_read(const char *text);

/* Returns digit number i, 0 to 9; 0 after the last digit. */
unsigned decimal_digit(const struct decimal *d, uint32_t i);

/* Returns a value below, at or above 0, as strcmp does. */
int decimal_compare(const struct decimal *a, const struct decimal *b);
int decimal_compare_magnitude(const struct decimal *a, const struct decimal *b);

bool decimal_is_integer(const struct decimal *d);
/* Returns true and sets *out if it is an integer from 0 to `max`. */
bool decimal_get_uint(const struct decimal *d, uint64_t max, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
