/* Finds the first of several stop strings in a text that arrives in pieces. For each string it
 * tracks how much of it the text so far ends with. The longest such part is held back, because it
 * may become the string; everything before it is safe to show. So the way the text is cut changes
 * neither what is found nor what is shown.
 *
 * The string that ends first counts; of those that end at the same byte, the longest. Owns copies
 * of the strings. One thread. Opening fails with FM_ERR_ARG for strings outside the limits; pushing
 * fails only with FM_ERR_NOMEM. */
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

/* Returns the text that is safe to show, valid until the next call. *found is the number of the
 * string found, now or earlier, or -1. If one is found, the text ends before it and later text is
 * ignored. */
int stop_match_push(struct stop_match *s, const char *text, size_t bytes, const char **shown,
                    size_t *shown_bytes, int *found, struct fm_error *err);
/* Returns the text that was held back, at the end of the answer or before text that no string may
 * span. */
void stop_match_finish(struct stop_match *s, const char **shown, size_t *shown_bytes);

#ifdef __cplusplus
}
#endif
#endif
