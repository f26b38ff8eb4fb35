/* A conversation for chat templates, independent of the dialect: an array of {role, content,
 * reasoning_content, tool_calls}, where content is always text.
 *
 * Leading system messages are merged; later ones become user messages, because templates refuse
 * them there. A tool call that this server generated gets back the exact bytes that the model wrote
 * (call_texts.h), so that the history matches the cached prefix. Owns its JSON. One thread. */
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
    struct text_buffer system; /* merged, until another message follows */
    bool has_system;
    json_t *tools;     /* [{type: function, function: {...}}]; NULL: none */
    json_t *strict;    /* 'strict' of each tool; NULL: none */
    json_t *variables; /* for the template; NULL: none */
    char effort[16];   /* how much to reason; empty: the template's default */
    enum { THINKS_BY_DEFAULT, THINKS, THINKS_NOT } thinks;
    bool is_forced;    /* a tool must be called: */
    const char *forced_name; /* this one, borrowed from the request; NULL: any */
    bool is_one_call;        /* at most one call per answer */
    bool is_continued; /* the answer continues the last message, which is the assistant's */
};

/* A message under construction; members are owned or NULL. */
struct turn {
    const char *role;
    struct text_buffer content, reasoning;
    json_t *calls; /* [{id, type, function: {name, arguments}}] */
    const char *call_id, *name; /* of a tool result; borrowed */
    bool ends_in_block; /* the content so far ends with lines of their own */
};

void turn_clear(struct turn *turn);
void conversation_clear(struct conversation *c);

/* Adds the message and clears it. Returns 0, or -1 when memory runs out. */
int conversation_add(struct conversation *c, struct turn *turn, struct call_texts *texts);
/* Adds a tool call to an assistant message. Arguments are text or an object. */
int turn_add_call(struct turn *turn, const char *id, const char *name, const json_t *arguments);
/* Adds a tool. `schema` may be NULL. */
int conversation_add_tool(struct conversation *c, const char *name, const char *description,
                          const json_t *schema);
/* Records 'strict' of the tool that was added last, NULL if it has none; `path` is the tool's path
 * in the request. Call it once per tool. */
int conversation_note_strict(struct conversation *c, const json_t *strict, const char *path,
                             struct api_error *error);
int conversation_set(struct conversation *c, const char *variable, json_t *value); /* takes it */
/* Reads the variables that a request gives to the template: 'chat_template_kwargs', and
 * 'continue_final_message' among them or for itself. */
int conversation_read_variables(struct conversation *c, const struct fields *f);
/* Records the effort of a request: "none" and "minimal" switch reasoning off, others on. NULL: none
 * was given. */
void conversation_set_effort(struct conversation *c, const char *effort);
/* Adapts the conversation to what the model's template reads (conversation_fit.c): names of the
 * effort, ids of calls, and one call per message where calls are messages. Returns 0, or -1 when
 * memory runs out. A second time it changes nothing. */
int conversation_fit(struct conversation *c, const struct fm_model *model);
/* Turns the arguments of all past calls into text, for templates that expect it. Returns false if
 * there are none or memory runs out. */
bool conversation_spell_arguments(struct conversation *c);
/* Reads OpenAI's tool_choice and parallel_tool_calls, and reads the tools with `read` unless the
 * choice is none. */
typedef int conversation_tools_fn(const struct fields *f, struct conversation *c);
int conversation_choose(struct conversation *c, const struct fields *f,
                        conversation_tools_fn *read);

/* Returns whether the last message of a request is the assistant's and has text and no calls. Some
 * dialects continue it. */
bool conversation_is_prefill(const json_t *messages);

/* ---- what a message contains (conversation_content.c) ------------------------------------- */

/* What becomes of a part that is not text, such as an image: the request is refused, or a line that
 * names the part takes its place. */
enum content_other { OTHER_REFUSED, OTHER_NAMED };
/* Who speaks in an element of a request's messages. */
enum content_speaker { SPEAKER_MODEL, SPEAKER_USER, SPEAKER_TOOL, SPEAKER_SYSTEM };
typedef enum content_speaker content_speaker_fn(const json_t *message);
/* Returns what becomes of other parts of messages[i]. They are refused in what the user says now:
 * the last message that is not the model's. If they were refused in tool results and in earlier
 * messages, an agent that keeps its history could never go on. An image right behind a tool result
 * is a tool's too: some APIs have no images in results, so agents send them as the user's. */
enum content_other content_other_at(const json_t *messages, size_t i, content_speaker_fn *speaker);
/* Adds a line that says that a part of this type is left out. */
bool content_name(struct turn *turn, const char *type);
/* Adds the text of a content: a string, null, or an array of parts. `path` names it in errors. */
int content_text(const json_t *content, const char *path, enum content_other other,
                 struct turn *turn, struct api_error *error);
/* The same for part i of an array. */
int content_part(const json_t *part, const char *path, size_t i, enum content_other other,
                 struct turn *turn, struct api_error *error);

/* ---- the prompt --------------------------------------------------------------------------- */

/* Renders and tokenizes the conversation into the job's prompt. */
int conversation_encode(struct conversation *c, struct api_call *call, struct job_spec *spec);
/* The same without a call; free the ids with fm_free. Refuses a conversation that certainly has
 * more than max_tokens (0: no limit) before tokenizing. */
int conversation_ids(struct conversation *c, const struct fm_model *model, size_t max_tokens,
                     int32_t **ids, size_t *n_ids, struct api_error *error);
int conversation_render(struct conversation *c, const struct fm_model *model, char **text,
                        size_t *bytes, struct api_error *error);

/* Read the messages and tools of a request in each dialect. */
int openai_conversation(const json_t *body, struct call_texts *texts, struct conversation *c,
                        struct api_error *error);
int anthropic_conversation(const json_t *body, struct call_texts *texts, struct conversation *c,
                           struct api_error *error);

#ifdef __cplusplus
}
#endif
#endif
