/* Line editing on a terminal with libedit. Without libedit, chat_edit_open returns false. One
 * instance at most. One thread. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_EDIT_H
#define FLASHMOE_APPS_CHAT_CHAT_EDIT_H

#include <stdbool.h>

#include "base/err.h"
#include "apps/chat/chat_complete.h"

struct chat_edit;

enum { EDIT_LINE, EDIT_CLEARED, EDIT_END, EDIT_FAILED };

/* Opens the editor; borrows everything. Returns false without libedit or on an unsuitable
 * terminal. */
bool chat_edit_open(const char *history, const struct chat_words *words, struct chat_edit **out);
void chat_edit_close(struct chat_edit *edit); /* accepts NULL */
/* Reads a line; `prompt` must be printable. *line is UTF-8 without the final newline, may contain
 * newlines of a paste, and is valid until the next call. */
int chat_edit_read(struct chat_edit *edit, const char *prompt, const char **line,
                   struct fm_error *err);
/* Adds a message to the history and writes the history file. */
void chat_edit_remember(struct chat_edit *edit, const char *text);

#endif
