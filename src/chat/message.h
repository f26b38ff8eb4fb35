/* Splits a model's answer into reasoning, content and tool calls (chat/toolcall.h) as it arrives.
 *
 * The answer is pushed in pieces of any size, with special tokens as text. Events are delivered
 * through a callback on the caller's thread during push and finish; their texts live only during
 * the callback. The way the answer is cut into pieces does not matter: the events are the same once
 * neighbouring text events of a kind are joined. Text is held back only while it may begin a
 * marker. No event ends inside a UTF-8 character.
 *
 * Reasoning begins with a marker (chat/reasoning.h: "<think>") at the very beginning of the answer
 * or in the prompt. It ends with the first matching end marker, with a whole call where the dialect
 * says so, or with the answer. Newlines at its start and end are dropped, and so are newlines
 * before the content, as in Qwen's templates.
 *
 * A call is an opener of a dialect and what the dialect reads after it. Newlines before a call
 * belong to it; newlines after the last call are dropped. Its last tag may be missing at the end of
 * the answer.
 *
 * A call begins as soon as its name is known and its arguments begin; the arguments are streamed.
 * If a call breaks before that, its text up to the unexpected byte is content, and parsing
 * continues from there. If it breaks later, it ends with MESSAGE_CALL_BROKEN, which carries the
 * text; a caller that has forwarded the call must not forward this text again. With hold_calls, a
 * call is held back until it is complete, and a broken call is only content. The limits of
 * toolcall.h, JSON_SCAN_DEPTH and call_bytes break a call. With is_call, content becomes markup,
 * and a call whose name is known is begun however it ends.
 *
 * If a dialect has frames (chat/dialect.h), the answer is a sequence of messages instead. Headers
 * and markers are markup; text keeps its newlines. Text where a header should be is content. Of a
 * call that breaks before it begins, the body is content.
 *
 * The text of special tokens is pushed with message_push_marked. Where the vocabulary has a special
 * token for a marker, the same characters in ordinary text are ordinary text.
 *
 * Nothing is lost: the texts of MESSAGE_REASONING, MESSAGE_CONTENT, MESSAGE_MARKUP,
 * MESSAGE_CALL_END and MESSAGE_CALL_BROKEN together are the answer, byte for byte and in order.
 *
 * A message owns its buffers and borrows the tools. One thread. Functions fail only with
 * FM_ERR_NOMEM; after that the message can only be closed. */
#ifndef FLASHMOE_CHAT_MESSAGE_H
#define FLASHMOE_CHAT_MESSAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MESSAGE_CALL_BYTES (4u << 20) /* enough for a file written by one call */
#define MESSAGE_ID_BYTES 30           /* "call_", 24 letters and digits, NUL */
#define MESSAGE_CALL_ID_BYTES 64      /* maximum, with its NUL: a model may write ids itself */

enum message_kind {
    MESSAGE_REASONING,
    MESSAGE_CONTENT,
    MESSAGE_MARKUP,         /* "<think>" and the like, and newlines that belong to no text */
    MESSAGE_CALL_BEGIN,     /* without text */
    MESSAGE_CALL_ARGUMENTS, /* a piece of the JSON object */
    MESSAGE_CALL_END,       /* the call as the model wrote it */
    MESSAGE_CALL_BROKEN,    /* the same up to the break; the arguments are incomplete */
    MESSAGE_END,            /* without text; the last event */
};

struct message_event {
    enum message_kind kind;
    const char *text; /* not NUL-terminated */
    size_t text_bytes;
    size_t lead_bytes; /* newlines before the first tag of a call's text */
    unsigned call;     /* number of the call, from 0 */
    const char *id, *name; /* of a call */
};
typedef void message_fn(void *ctx, const struct message_event *event);

struct dialect;

struct message_options {
    bool is_thinking;    /* the prompt has started the reasoning */
    /* The prompt ends inside the answer itself, or with is_thinking inside its reasoning. All of
     * the text is part of it: none is dropped at its beginning, and reasoning cannot begin. */
    bool is_continued;
    /* How calls are written (chat/dialect.h); NULL-terminated, borrowed. With NULL or with
     * is_without_calls, calls are content. */
    const struct dialect *const *dialects;
    bool is_without_calls;
    /* Returns true if the vocabulary has a special token with this text. NULL: it has none. */
    bool (*is_special)(const void *ctx, const char *text);
    const void *special_ctx;
    bool hold_calls;     /* begin a call only when it is complete */
    bool is_call;        /* the answer must be a call: none of it is content */
    const json_t *tools; /* the array of a request (chat/tool_schema.h), for parameter types; may be
                          * NULL */
    uint64_t id_seed;    /* the ids of calls are derived from it and their numbers */
    size_t call_bytes;   /* maximum size of one call; 0 for MESSAGE_CALL_BYTES */
};

struct message;

int message_open(const struct message_options *options, message_fn *fn, void *ctx,
                 struct message **out, struct fm_error *err);
void message_close(struct message *m); /* accepts NULL */
int message_push(struct message *m, const char *text, size_t bytes, struct fm_error *err);
/* The same for the text of special tokens, and for text that is known to be the template's. */
int message_push_marked(struct message *m, const char *text, size_t bytes, struct fm_error *err);
/* Returns what the text pushed so far ends in. */
enum message_place {
    MESSAGE_ANYWHERE, /* the answer has no frames: only the events tell */
    MESSAGE_IN_REASONING,
    MESSAGE_IN_ANSWER,
    MESSAGE_IN_HEADER,
    MESSAGE_BETWEEN, /* in a call, or in text before a call */
};
enum message_place message_place(const struct message *m);
/* Ends the answer; call it once. */
int message_finish(struct message *m, struct fm_error *err);
/* Ends an answer that was cut off: a call that has begun ends with MESSAGE_CALL_BROKEN, also with
 * hold_calls. */
int message_cut(struct message *m, struct fm_error *err);

/* Returns false if a forced call of a function with this name would not be read as such a call,
 * because the dialect writes the name as it is and its parser sees something else. */
bool message_can_name(const struct dialect *const *dialects, const char *name);

/* Writes "call_" and characters derived from the seed and the number. */
void message_call_id(uint64_t seed, unsigned call, char id[MESSAGE_ID_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
