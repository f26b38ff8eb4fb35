/* Decimal numbers as JSON writes them, compared digit by digit: nothing is rounded. A decimal
 * borrows the text it was read from. Any thread; nothing allocates or fails. */
#ifndef FLASHMOE_GRAMMAR_DECIMAL_H
#define FLASHMOE_GRAMMAR_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Digits d1 d2 ... dn, of which neither the first nor the last is 0, worth 0.d1d2...dn times 10 to
 * the `point`. Zero has none of them, and is not negative. */
struct decimal {
    const char *text; /* from the first digit that counts on; a point may be among them */
    uint32_t n;
    int32_t point;
    bool is_negative;
};

/* `text` is a JSON number; a NUL or anything else that is no part of one ends it. Exponents beyond
 * a million count as a million. */
struct decimal decimal_read(const char *text);

/* The i-th digit, 0 to 9; 0 past the last. */
unsigned decimal_digit(const struct decimal *d, uint32_t i);

/* Below, at or above 0. */
int decimal_compare(const struct decimal *a, const struct decimal *b);
int decimal_compare_magnitude(const struct decimal *a, const struct decimal *b);

bool decimal_is_integer(const struct decimal *d);
/* True when it is an integer from 0 to `max`. */
bool decimal_get_uint(const struct decimal *d, uint64_t max, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
