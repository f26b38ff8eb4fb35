/* Finds markers in a stream of bytes: texts that begin with '<' and have no other one, so that a
 * byte that does not fit can only begin anew. Owns nothing; one thread; never fails. */
#ifndef FLASHMOE_CHAT_MARKER_H
#define FLASHMOE_CHAT_MARKER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A set of markers is the sum of these. */
enum marker {
    MARKER_NONE = 0,
    MARKER_THINK = 1,
    MARKER_END_THINK = 2,
    MARKER_CALL = 4,
    MARKER_END_CALL = 8,
    MARKER_FUNCTION = 16,
    MARKER_END_FUNCTION = 32,
    MARKER_PARAMETER = 64,
};

static const struct {
    enum marker marker;
    const char *text;
} marker_list[] = {
    {MARKER_THINK, "<think>"},
    {MARKER_END_THINK, "</think>"},
    {MARKER_CALL, "<tool_call>"},
    {MARKER_END_CALL, "</tool_call>"},
    {MARKER_FUNCTION, "<function="},
    {MARKER_END_FUNCTION, "</function>"},
    {MARKER_PARAMETER, "<parameter="},
};

/* The markers that are special tokens in some vocabularies. A parser needs their text. */
#define MARKERS_OF_TOKENS (MARKER_THINK | MARKER_END_THINK | MARKER_CALL | MARKER_END_CALL)

/* True when one of the set begins with this text; *whole is the one that is this text. */
static inline bool marker_begins(unsigned set, const char *text, size_t bytes, enum marker *whole)
{
    bool begins = false;
    *whole = MARKER_NONE;
    for (size_t i = 0; i < sizeof marker_list / sizeof marker_list[0]; i++) {
        const size_t n = strlen(marker_list[i].text);
        if ((set & marker_list[i].marker) == 0 || bytes > n ||
            memcmp(marker_list[i].text, text, bytes) != 0)
            continue;
        begins = true;
        if (bytes == n)
            *whole = marker_list[i].marker;
    }
    return begins;
}

/* The marker of the set that this text begins with, MARKER_NONE where there is none. */
static inline enum marker marker_at(unsigned set, const char *text, size_t bytes)
{
    for (size_t i = 0; i < sizeof marker_list / sizeof marker_list[0]; i++) {
        const size_t n = strlen(marker_list[i].text);
        if ((set & marker_list[i].marker) != 0 && bytes >= n &&
            memcmp(marker_list[i].text, text, n) == 0)
            return marker_list[i].marker;
    }
    return MARKER_NONE;
}

#ifdef __cplusplus
}
#endif
#endif
