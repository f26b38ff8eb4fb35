/* How many columns of a terminal a character takes. The tables are generated (tools/gen_width.py),
 * so that the result depends on neither the locale nor the C library. Any thread. */
#ifndef FLASHMOE_APPS_CLI_WIDTH_H
#define FLASHMOE_APPS_CLI_WIDTH_H

#include <stddef.h>
#include <stdint.h>

/* Returns 0, 1 or 2. Control characters have no width. */
unsigned width_of(uint32_t code_point);

/* Reads the character at the start of n > 0 bytes of UTF-8; *used is its length. Bytes that are no
 * character are U+FFFD, one at a time. */
uint32_t width_decode(const char *text, size_t n, size_t *used);

#endif
