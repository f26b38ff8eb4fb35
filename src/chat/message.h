/* A model's answer taken apart as it comes: reasoning, content, tool calls (chat/toolcall.h).
 *
 * The answer is pushed in pieces of any size, special tokens as their text. Events come through a
 * callback, on the caller's thread, during push and finish; what they point to lives as long as the
 * callback runs. The pieces never matter: however the answer is cut, the events are the same once
 * neighbouring ones of a kind that carries text are joined. Text is kept back only while it may
 * begin a marker, and no event ends inside a UTF-8 character.
 *
 * Reasoning stands between a marker (chat/reasoning.h: "<think>"), at the very beginning or in the
 * prompt, and the first one that ends it, or the end; nothing in it is a call. Newlines at either
 * end of it are dropped, and so are those before the content, as the templates of Qwen do.
 *
 * A call is an opener of a dialect and what the dialect reads behind it. Newlines before a call
 * belong to it, those behind the last one to nobody. It may lack its last tag at the end of the
 * answer.
 *
 * A call is begun as soon as its name is known and its arguments begin, and these stream. One that
 * breaks before that is content, as it stands, up to the byte that cannot be; from there on the
 * answer is read as before. One that breaks later ends with MESSAGE_CALL_BROKEN, which has the
 * text: whoever has passed the call on must not pass that on again. With hold_calls a call is held
 * back until it is whole, and a broken call is content and nothing else. The limits of toolcall.h,
 * JSON_SCAN_DEPTH and call_bytes break a call. With is_call what would be content is markup, and a
 * call whose name is known is begun, however it ends.
 *
 * Nothing is lost: the texts of MESSAGE_REASONING, MESSAGE_CONTENT, MESSAGE_MARKUP,
 * MESSAGE_CALL_END and MESSAGE_CALL_BROKEN together are the answer, byte for byte, in its order.
 *
 * A message owns its buffers and borrows the tools. One thread. Only want of memory fails; the
 * message can only be closed then. */
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

#define MESSAGE_CALL_BYTES (4u << 20) /* a file written by one call */
#define MESSAGE_ID_BYTES 30           /* "call_", 24 letters and digits, NUL */

enum message_kind {
    MESSAGE_REASONING,
    MESSAGE_CONTENT,
    MESSAGE_MARKUP,         /* "<think>" and its like, and newlines that belong to no text */
    MESSAGE_CALL_BEGIN,     /* without text */
    MESSAGE_CALL_ARGUMENTS, /* a piece of the JSON object */
    MESSAGE_CALL_END,       /* the call as the model wrote it */
    MESSAGE_CALL_BROKEN,    /* likewise, as far as it goes; the arguments are not whole */
    MESSAGE_END,            /* without text; the last */
};

struct message_event {
    enum message_kind kind;
    const char *text; /* not NUL-terminated */
    size_t text_bytes;
    size_t lead_bytes; /* of a call's text: newlines before its first tag */
    unsigned call;     /* the call's number, from 0 */
    const char *id, *name; /* of a call */
};
typedef void message_fn(void *ctx, const struct message_event *event);

struct dialect;

struct message_options {
    bool is_thinking;    /* the prompt has begun the reasoning */
    /* How calls are written (chat/dialect.h); NULL-terminated, borrowed; NULL: calls are content */
    const struct dialect *const *dialects;
    bool hold_calls;     /* begin a call only when it is whole */
    bool is_call;        /* the answer must be a call: nothing of it is content */
    const json_t *tools; /* the array of a request (chat/tool_schema.h), for types; may be NULL */
    uint64_t id_seed;    /* the ids of the calls follow from it and their numbers */
    size_t call_bytes;   /* of one call; 0: MESSAGE_CALL_BYTES */
};

struct message;

int message_open(const struct message_options *options, message_fn *fn, void *ctx,
                 struct message **out, struct fm_error *err);
void message_close(struct message *m); /* accepts NULL */
int message_push(struct message *m, const char *text, size_t bytes, struct fm_error *err);
/* The end of the answer, once. */
int message_finish(struct message *m, struct fm_error *err);
/* The same where the answer was cut off: a call that has begun ends with MESSAGE_CALL_BROKEN, with
 * hold_calls too. */
int message_cut(struct message *m, struct fm_error *err);

/* "call_" and what follows from the seed and the number. */
void message_call_id(uint64_t seed, unsigned call, char id[MESSAGE_ID_BYTES]);

#ifdef __cplusplus
}
#endif
#endif
