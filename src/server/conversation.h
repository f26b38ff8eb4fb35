/* A conversation in the form that chat templates take, whichever dialect it came in: an array of
 * {role, content, reasoning_content, tool_calls}, content always a text.
 *
 * System messages at the front become one; later ones are the user's, because templates refuse
 * them there. A tool call that this server has written is put back with the very bytes the model
 * wrote (recall.h), so that the history is the one that was computed. One thread; owns its JSON. */
#ifndef FLASHMOE_SERVER_CONVERSATION_H
#define FLASHMOE_SERVER_CONVERSATION_H

#include "flashmoe.h"
#include "server/api.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fields;

struct conversation {
    json_t *messages;
    struct text_buffer system; /* joined, until another message comes */
    bool has_system;
    json_t *tools;     /* [{type: function, function: {...}}]; NULL: none */
    json_t *strict;    /* whether each of them says 'strict'; NULL: none */
    json_t *variables; /* of the template; NULL: none */
    bool is_forced;    /* a tool has to be called: */
    const char *forced_name; /* this one, borrowed from the request; NULL: any */
    bool is_one_call;        /* an answer calls one tool at most */
};

/* A message as it comes together; each is owned, or NULL. */
struct turn {
    const char *role;
    struct text_buffer content, reasoning;
    json_t *calls; /* [{id, type, function: {name, arguments}}] */
    const char *call_id, *name; /* of a tool's result; borrowed */
};

void turn_clear(struct turn *turn);
void conversation_clear(struct conversation *c);

/* Adds the message and clears it. 0, or -1 for want of memory. */
int conversation_add(struct conversation *c, struct turn *turn, struct recall *recall);
/* A tool call of an assistant's message: arguments are text or an object. */
int turn_add_call(struct turn *turn, const char *id, const char *name, const json_t *arguments);
/* A tool that may be called. `schema` may be NULL. */
int conversation_add_tool(struct conversation *c, const char *name, const char *description,
                          const json_t *schema);
/* Notes 'strict' of the tool that was added last, NULL where it has none; `path` is where the tool
 * stands. Called once for each tool. */
int conversation_note_strict(struct conversation *c, const json_t *strict, const char *path,
                             struct api_error *error);
int conversation_set(struct conversation *c, const char *variable, json_t *value); /* takes it */
/* OpenAI's tool_choice and parallel_tool_calls, and the tools by `read`, unless there shall be
 * none. */
typedef int conversation_tools_fn(const struct fields *f, struct conversation *c);
int conversation_choose(struct conversation *c, const struct fields *f,
                        conversation_tools_fn *read);

/* The text of a content: a string, null, or an array of parts of which each is text. */
int content_text(const json_t *content, const char *path, struct text_buffer *out,
                 struct api_error *error);

/* Renders and tokenizes it into the job's prompt. */
int conversation_encode(struct conversation *c, struct api_call *call, struct job_spec *spec);
/* The same apart from a call: ids freed with fm_free. A conversation that surely has more than
 * max_tokens (0: any number) is refused before it is tokenized. */
int conversation_ids(struct conversation *c, const struct fm_model *model, size_t max_tokens,
                     int32_t **ids, size_t *n_ids, struct api_error *error);
int conversation_render(struct conversation *c, const struct fm_model *model, char **text,
                        size_t *bytes, struct api_error *error);

/* The readers of the dialects: a body's messages and tools. */
int openai_conversation(const json_t *body, struct recall *recall, struct conversation *c,
                        struct api_error *error);
int anthropic_conversation(const json_t *body, struct recall *recall, struct conversation *c,
                           struct api_error *error);

#ifdef __cplusplus
}
#endif
#endif
