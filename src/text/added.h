/* Added tokens: texts that become one id before anything else happens to them. A set finds the
 * longest one at a position.
 *
 * A set owns its texts. It is written while a tokenizer is loaded; after that any number of threads
 * may read it. Adding fails for lack of memory or if a text occurs twice. */
#ifndef FLASHMOE_TEXT_ADDED_H
#define FLASHMOE_TEXT_ADDED_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct added_token {
    const char *text; /* not NUL-terminated */
    uint32_t bytes;
    uint32_t id;
};

struct added_set {
    struct added_token *tokens; /* [n] sorted by bytes */
    size_t n;
    char *texts;
    /* Tokens that begin with byte b are tokens[begin[b]] up to begin[b + 1]. */
    uint32_t begin[257];
};

/* Copies the texts of `n` tokens, which must not be empty, and sorts them. `file` is for
 * messages. */
int added_set_init(struct added_set *set, const char *file, const struct added_token *tokens,
                   size_t n, struct fm_error *err);
void added_set_clear(struct added_set *set); /* accepts a zeroed one */

/* Returns the longest token at the beginning of `text`, or NULL. `bytes` must be above 0. */
const struct added_token *added_set_match(const struct added_set *set, const char *text,
                                          size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
