/* Tool-call dialects: how a family of models writes tool calls. One file and one line of
 * dialect_list.h per dialect.
 *
 * A chat uses the dialects that its template shows, or otherwise the default ones. Several may
 * share an opener; the first byte after it decides, and an opener for any byte comes last.
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
    char first;        /* first byte of the call after white space; '\0' for any byte. White space
                        * is skipped only if another dialect has the same opener */
    bool is_inner;     /* only after another call (toolcall.next), never in content */
    /* A closing tag that may follow such a call without an opening tag and is then ignored; NULL
     * for none. */
    const char *stray;
    bool ends_reasoning; /* a call may begin inside reasoning, which it ends unless it breaks */
};

/* What the header of a message says. The name is borrowed from the header. */
struct frame_header {
    bool is_reasoning;
    bool is_final; /* the answer itself, which a schema constrains */
    const char *name; /* of the function that is called; NULL: this is not a call */
    size_t name_bytes;
};

/* An answer made of messages: HEADER `message` BODY end, and again. The prompt ends inside the
 * first header. A body is reasoning, content, or the arguments of a call. Lists end with NULL. */
struct dialect_frames {
    const char *message;
    const char *const *begins; /* begin a header; the first begins that of a new message */
    const char *const *ends;   /* end a body */
    const char *recipient;     /* the only other text that a header may begin with, after a blank */
    void (*read)(const char *header, size_t bytes, struct frame_header *out);
};

struct dialect {
    const char *name;
    const char *in_template; /* a template that contains this text uses the dialect, */
    const char *also_in_template; /* if it contains this one too; NULL: none */
    const char *not_in_template;  /* unless it contains this one; NULL: none */
    /* Special tokens of a vocabulary whose text the parser needs; NULL-terminated. */
    const char *const *tokens;
    /* Tokens that end an answer, whatever the model's files say; NULL: none. NULL-terminated. */
    const char *const *stops;
    const struct dialect_opener *openers;
    const struct dialect_frames *frames; /* NULL: an answer is one message */
    /* The text of a past call may stand in the content of its message. False if templates must see
     * the call itself, to count calls or to name a result. */
    bool may_restore;
    bool may_begin_closed; /* an answer may begin with the end of reasoning, which is markup */
    bool has_lone_calls; /* templates write calls only of a message whose content is null */
    bool has_call_ids; /* templates and models write ids as functions.NAME:NUMBER */
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
/* Returns the default dialects, NULL-terminated. */
const struct dialect *const *dialect_defaults(void);
/* Returns the frames of the first dialect that has some, or NULL. */
const struct dialect_frames *dialect_frames_of(const struct dialect *const *dialects);
/* Returns how required calls are written: the format of the first dialect that has one, or NULL. */
const struct grammar_call *dialect_forced_call(const struct dialect *const *dialects);

/* Returns true for the text of a special token that marks calls or reasoning in these dialects; a
 * parser must see it. */
bool dialect_is_marker(const struct dialect *const *dialects, const char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
