/* `flashmoe chat`: a conversation with one model, turn by turn.
 *
 * The conversation is an array of messages as the model's chat template takes them. Every turn
 * renders all of it and computes what the session has not computed yet, so that undoing, answering
 * again and loading are changes of the array and nothing else. Everything is owned by the struct
 * and used by one thread. A failure leaves the conversation as it was. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_H
#define FLASHMOE_APPS_CHAT_CHAT_H

#include <jansson.h>

#include "apps/chat/chat_input.h"
#include "apps/cli/options.h"
#include "apps/cli/sampling_options.h"
#include "apps/cli/term.h"

/* How the last turn went. */
struct chat_turn {
    size_t n_prompt, n_reused, n_computed; /* tokens: of the prompt; found; computed of it */
    size_t n_answer;                       /* the stop token included */
    uint64_t n_decoded, decode_ns, n_prefilled, prefill_ns, wall_ns;
    uint64_t n_hits, n_misses, bytes_read;
    uint64_t seed;
    const char *end; /* why the answer ended: "stop", "length", "context", "interrupted" */
};

struct chat {
    const struct args *args;
    bool is_terminal; /* a person sits there: prompts, status, colours */
    bool is_quiet;
    bool is_out_gone; /* standard output cannot be written any more */
    bool is_over;     /* /quit */
    struct chat_input *input;

    struct fm_model *model;
    struct fm_session *session;
    struct fm_snapshots *snapshots; /* NULL: none are kept */
    struct fm_model_info info;
    unsigned n_context, prefill_chunk;

    struct fm_sampling sampling;
    struct fm_logit_bias bias[SAMPLING_BIAS_MAX];
    uint64_t n_max;  /* tokens of an answer; 0: as many as the context holds */
    bool is_seed_set; /* by /set since the last answer: /regen takes it as it is */

    json_t *messages;
    int thinking;               /* enable_thinking for the template; -1: not given */
    struct fm_chat_options now; /* when the conversation began, for templates that say so */
    struct chat_turn last;
};

/* ---- the conversation (chat_talk.c) ----------------------------------------------------- */

/* Appends a message; text that is not UTF-8 is mended. */
int chat_say(struct chat *chat, const char *role, const char *text, size_t text_bytes,
             struct fm_error *err);
/* Sets or replaces the system message; an empty text removes it. */
int chat_set_system(struct chat *chat, const char *text, size_t text_bytes, struct fm_error *err);
/* Removes and returns the last message when it is `role`'s; NULL otherwise. */
json_t *chat_take_last(struct chat *chat, const char *role);
/* The tokens of these messages, ready to be answered; freed with fm_free. */
int chat_tokens(const struct chat *chat, const json_t *messages, int32_t **ids, size_t *n_ids,
                struct fm_error *err);
/* The conversation as JSON, and beside it, in PATH.fmsnap, what the session has computed. */
int chat_save(struct chat *chat, const char *path, struct fm_error *err);
int chat_load(struct chat *chat, const char *path, struct fm_error *err);

/* ---- a turn (chat_answer.c) ------------------------------------------------------------- */

/* Answers the conversation, which ends with the user's message, and appends the answer as far as it
 * was written. Says on standard error what went wrong. False: nothing was written. */
bool chat_answer(struct chat *chat);
/* Computes what every conversation with this system message begins with. */
int chat_read_ahead(struct chat *chat, struct fm_error *err);
/* One line about the last turn, for a terminal. */
void chat_show_status(const struct chat *chat);

/* ---- commands (chat_commands.c) --------------------------------------------------------- */

/* A line that begins with '/'. */
void chat_command(struct chat *chat, const char *line);

/* A message of the user, and its answer. */
void chat_ask(struct chat *chat, const char *text, size_t text_bytes);

#endif
