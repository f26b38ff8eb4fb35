/* Finds markers such as "<think>" or "[TOOL_CALLS]" in a stream of bytes. The first byte of a
 * marker occurs nowhere else in any marker, so after a mismatch the only possible match starts at
 * the current byte. Owns nothing; one thread; never fails. */
#ifndef FLASHMOE_CHAT_MARKER_H
#define FLASHMOE_CHAT_MARKER_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARKER_BYTES 32 /* length of the longest marker, with its NUL */

/* Lists end with an empty entry. */
struct marker {
    const char *text;
    unsigned kind; /* one bit; a set of markers is the bitwise OR of kinds */
};

/* Returns true if a marker of the set begins with this text. Sets *whole to the marker that equals
 * the text, or to NULL. */
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
