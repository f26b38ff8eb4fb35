/* Tool-call dialects: how a family of models writes the calls of tools. One file and one line of
 * dialect_list.h per dialect.
 *
 * A chat uses the dialects that its template shows, or else the default ones. Several may share an
 * opener; the first byte behind it tells which one it is.
 *
 * Everything is constant. Any thread; nothing fails. */
#ifndef FLASHMOE_CHAT_DIALECT_H
#define FLASHMOE_CHAT_DIALECT_H

#include "chat/toolcall.h"
#include "grammar/grammar_form.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text that opens a call. Lists end with an empty one. */
struct dialect_opener {
    const char *text;  /* less than MARKER_BYTES; chat/marker.h says what it may be */
    char first;        /* what the call begins with behind white space; '\0': anything, at once */
    bool is_inner;     /* only behind another call (toolcall.next), never in content */
    /* May follow such a call, though nothing opened it, and is no text then; NULL: none. */
    const char *stray;
};

struct dialect {
    const char *name;
    const char *in_template; /* a template that has this text uses the dialect */
    bool is_default;         /* for templates that show no dialect */
    /* The special tokens of a vocabulary whose text the parser needs; NULL-terminated. */
    const char *const *tokens;
    const struct dialect_opener *openers;
    /* Takes the next byte behind an opener (tc->opener). */
    enum toolcall_status (*push)(struct toolcall *tc, uint8_t byte);
    /* How a call is written that has to come; NULL: it cannot be forced in this dialect. */
    const struct grammar_call *call;
};

#define DIALECTS_MAX 16

/* Every dialect, NULL-terminated. */
const struct dialect *const *dialect_all(void);
/* NULL when there is none of that name. */
const struct dialect *dialect_find(const char *name);
/* Those that the templates show, or the default ones, NULL-terminated. A text may be NULL. */
struct dialect_text {
    const char *text;
    size_t bytes;
};
void dialect_choose(const struct dialect_text *templates, size_t n,
                    const struct dialect *out[DIALECTS_MAX + 1]);
/* How calls that have to come are written: that of the first dialect that can; NULL: none can. */
const struct grammar_call *dialect_forced_call(const struct dialect *const *dialects);

/* True for the text of a special token that marks calls or reasoning in an answer, in any
 * dialect. A parser needs it. */
bool dialect_is_marker(const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
