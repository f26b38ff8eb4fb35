/* Tool-call dialects: how a family of models writes tool calls. One file and one line of
 * dialect_list.h per dialect.
 *
 * A chat uses the dialects that its template shows, or otherwise the default ones. Several may
 * share an opener; the first byte after it decides.
 *
 * Everything is constant. Any thread; nothing fails. */
#ifndef FLASHMOE_CHAT_DIALECT_H
#define FLASHMOE_CHAT_DIALECT_H

#include "chat/toolcall.h"
#include "grammar/grammar_form.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A text that opens a call. Lists end with an empty entry. */
struct dialect_opener {
    const char *text;  /* shorter than MARKER_BYTES; chat/marker.h says which texts are allowed */
    char first;        /* first byte of the call after white space; '\0' for any byte, without white
                        * space */
    bool is_inner;     /* only after another call (toolcall.next), never in content */
    /* A closing tag that may follow such a call without an opening tag and is then ignored; NULL
     * for none. */
    const char *stray;
};

struct dialect {
    const char *name;
    const char *in_template; /* a template that contains this text uses the dialect */
    bool is_default;         /* used for templates that show no dialect */
    /* Special tokens of a vocabulary whose text the parser needs; NULL-terminated. */
    const char *const *tokens;
    const struct dialect_opener *openers;
    /* Takes the next byte after an opener (tc->opener). */
    enum toolcall_status (*push)(struct toolcall *tc, uint8_t byte);
    /* How a required call is written; NULL if calls cannot be forced in this dialect. */
    const struct grammar_call *call;
};

#define DIALECTS_MAX 16

/* Returns all dialects, NULL-terminated. */
const struct dialect *const *dialect_all(void);
/* Returns NULL if there is none of that name. */
const struct dialect *dialect_find(const char *name);
/* Returns the dialects that the templates show, or the default ones, NULL-terminated. A text may be
 * NULL. */
struct dialect_text {
    const char *text;
    size_t bytes;
};
void dialect_choose(const struct dialect_text *templates, size_t n,
                    const struct dialect *out[DIALECTS_MAX + 1]);
/* Returns how required calls are written: the format of the first dialect that has one, or NULL. */
const struct grammar_call *dialect_forced_call(const struct dialect *const *dialects);

/* Returns true for the text of a special token that marks calls or reasoning in any dialect; a
 * parser must see it. */
bool dialect_is_marker(const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
