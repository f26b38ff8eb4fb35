/* `flashmoe chat`: a conversation with one model, turn by turn.
 *
 * The conversation is an array of messages for the model's chat template. Every turn renders all of
 * it and computes what the session has not computed yet. Undoing, answering again and loading only
 * change the array. The struct owns everything in it. One thread. A failure leaves the conversation
 * unchanged. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_H
#define FLASHMOE_APPS_CHAT_CHAT_H

#include <jansson.h>

#include "apps/chat/chat_input.h"
#include "apps/cli/common.h"
#include "apps/cli/options.h"
#include "apps/cli/sampling_options.h"
#include "apps/cli/term.h"

/* Statistics of the last turn. */
struct chat_turn {
    size_t n_prompt, n_reused, n_computed; /* prompt tokens: all, reused, computed */
    size_t n_answer;                       /* includes the stop token */
    uint64_t n_decoded, decode_ns, n_prefilled, prefill_ns, wall_ns;
    uint64_t n_hits, n_misses, bytes_read;
    uint64_t seed;
    const char *end; /* why the answer ended: "stop", "length", "context", "interrupted" */
};

struct chat {
    const struct args *args;
    bool is_terminal; /* interactive: prompts, status line, colours */
    bool is_quiet;
    bool is_out_gone; /* standard output can no longer be written */
    bool is_over;     /* /quit */
    struct chat_input *input;
    char name[APP_NAME_BYTES]; /* of the model */

    struct fm_model *model;
    struct fm_session *session;
    struct fm_snapshots *snapshots; /* NULL: none */
    struct fm_model_info info;
    unsigned n_context, prefill_chunk;

    struct fm_sampling sampling;
    struct fm_logit_bias bias[SAMPLING_BIAS_MAX];
    uint64_t n_max;  /* maximum tokens per answer; 0: limited by the context only */
    bool is_seed_set; /* /set changed the seed since the last answer, so /regen uses it */

    json_t *messages;
    int thinking;               /* enable_thinking of the template; -1: not set */
    struct fm_chat_options now; /* start of the conversation, for templates that write the date */
    struct chat_turn last;
};

/* ---- the conversation (chat_talk.c) ----------------------------------------------------- */

/* Appends a message; replaces invalid UTF-8. */
int chat_say(struct chat *chat, const char *role, const char *text, size_t text_bytes,
             struct fm_error *err);
/* Sets or replaces the system message; an empty text removes it. */
int chat_set_system(struct chat *chat, const char *text, size_t text_bytes, struct fm_error *err);
/* Removes and returns the last message if its role is `role`, else NULL. */
json_t *chat_take_last(struct chat *chat, const char *role);
/* Tokenizes the messages with the assistant's turn opened; free the ids with fm_free. */
int chat_tokens(const struct chat *chat, const json_t *messages, int32_t **ids, size_t *n_ids,
                struct fm_error *err);
/* Write and read the conversation as JSON, and the session's snapshot beside it in PATH.fmsnap. */
int chat_save(struct chat *chat, const char *path, struct fm_error *err);
int chat_load(struct chat *chat, const char *path, struct fm_error *err);

/* ---- a turn (chat_answer.c) ------------------------------------------------------------- */

/* Answers the conversation, which must end with a user message, and appends what was generated.
 * Reports errors on standard error. Returns false if nothing was generated. */
bool chat_answer(struct chat *chat);
/* Computes the common start of all conversations with this system message. */
int chat_read_ahead(struct chat *chat, struct fm_error *err);
/* Prints one line about the last turn on a terminal. */
void chat_show_status(const struct chat *chat);

/* ---- commands (chat_commands.c) --------------------------------------------------------- */

/* Runs a command line that begins with '/'. */
void chat_command(struct chat *chat, const char *line);
/* What Tab completes. */
extern const struct chat_words chat_words;

/* Sends a user message and prints the answer. */
void chat_ask(struct chat *chat, const char *text, size_t text_bytes);

#endif
