/* What Tab completes in a line of the chat: commands, their words, and files. Cannot fail: what
 * cannot be read completes nothing. One thread. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_COMPLETE_H
#define FLASHMOE_APPS_CHAT_CHAT_COMPLETE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/limits.h"

/* What a command takes. */
enum chat_operand {
    OPERAND_NONE,
    OPERAND_TEXT,
    OPERAND_FILE,        /* the rest of the line */
    OPERAND_QUOTED_FILE, /* one word, or "several words"; text may follow */
    OPERAND_SETTING,
    OPERAND_SWITCH, /* on or off */
};

/* The words that are completed; each function returns NULL at the end. */
struct chat_words {
    const char *(*command)(unsigned i, enum chat_operand *operand);
    const char *(*setting)(unsigned i);
};

struct completion {
    size_t from; /* `text` replaces the line from here on */
    char text[LIMIT_PATH_BYTES + 4];
    size_t n;      /* words or files that fit; 0: nothing to complete */
    char *names;   /* all of them, sorted, each with a NUL behind it */
    size_t n_bytes;
};

/* Completes the line, which ends at the cursor. Names of files that a line cannot show, with
 * control characters or no UTF-8, are left out. Free with chat_complete_clear. */
void chat_complete(const struct chat_words *words, const char *line, struct completion *out);
void chat_complete_clear(struct completion *out);

#endif
