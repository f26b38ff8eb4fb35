/* Finds the first of several stop strings in a text that comes in pieces. Byte by byte, each string
 * knows how much of it the text so far ends with; the longest such part is kept back, since it may
 * become the string, and everything before it is safe to show. So no cut of the text changes what
 * is found or shown.
 *
 * The string that ends first counts; of those that end together, the longest. Owns copies of the
 * strings. One thread. Opening fails on strings outside the limits (FM_ERR_ARG); pushing only for
 * want of memory. */
#ifndef FLASHMOE_CHAT_STOP_MATCH_H
#define FLASHMOE_CHAT_STOP_MATCH_H

#include <stddef.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct stop_match;

int stop_match_open(const char *const *strings, size_t n_strings, struct stop_match **out,
                    struct fm_error *err);
void stop_match_close(struct stop_match *s); /* accepts NULL */

/* The text that is safe to show, valid until the next call. *found is the number of the string that
 * was found, now or before, or -1; the text then ends before it, and later text is ignored. */
int stop_match_push(struct stop_match *s, const char *text, size_t bytes, const char **shown,
                    size_t *shown_bytes, int *found, struct fm_error *err);
/* What is kept back, at the end of the text. */
void stop_match_finish(struct stop_match *s, const char **shown, size_t *shown_bytes);

#ifdef __cplusplus
}
#endif
#endif
