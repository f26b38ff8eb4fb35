/* Formats byte counts for people. Any thread; no allocation. */
#ifndef FLASHMOE_BASE_BYTES_TEXT_H
#define FLASHMOE_BASE_BYTES_TEXT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BYTES_TEXT 32

/* Writes for example "2.50 GiB" or "31.0 MiB" to `text` and returns it. */
const char *bytes_text(uint64_t bytes, char text[BYTES_TEXT]);

#ifdef __cplusplus
}
#endif
#endif
