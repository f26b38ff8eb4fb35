/* Finds markers in a stream of bytes: texts such as "<think>" or "[TOOL_CALLS]". The first byte of
 * any marker occurs nowhere else in any marker, so that a byte that does not fit can only begin
 * anew. Owns nothing; one thread; never fails. */
#ifndef FLASHMOE_CHAT_MARKER_H
#define FLASHMOE_CHAT_MARKER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARKER_BYTES 32 /* of the longest one, and a NUL */

/* Lists end with an empty one. */
struct marker {
    const char *text;
    unsigned kind; /* one bit; a set of markers is the sum of kinds */
};

/* True when one of the set begins with this text; *whole is the one that is this text, or NULL. */
static inline bool marker_begins(const struct marker *list, unsigned set, const char *text,
                                 size_t bytes, const struct marker **whole)
{
    bool begins = false;
    *whole = NULL;
    for (; list->text != NULL; list++) {
        const size_t n = strlen(list->text);
        if ((set & list->kind) == 0 || bytes > n || memcmp(list->text, text, bytes) != 0)
            continue;
        begins = true;
        if (bytes == n)
            *whole = list;
    }
    return begins;
}

#ifdef __cplusplus
}
#endif
#endif
