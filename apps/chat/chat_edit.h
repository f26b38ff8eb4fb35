/* Edited lines on a terminal: libedit behind four functions. Compiled empty without it. One
 * thread; there is at most one. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_EDIT_H
#define FLASHMOE_APPS_CHAT_CHAT_EDIT_H

#include <stdbool.h>

#include "base/err.h"

struct chat_edit;

enum { EDIT_LINE, EDIT_CLEARED, EDIT_END, EDIT_FAILED };

/* False where there is no libedit, or it cannot work with this terminal. */
bool chat_edit_open(const char *history, struct chat_edit **out);
void chat_edit_close(struct chat_edit *edit); /* accepts NULL */
/* *line is UTF-8 without the newline at its end, may hold newlines of a paste, and is valid until
 * the next call. */
int chat_edit_read(struct chat_edit *edit, const char *prompt, const char **line,
                   struct fm_error *err);
/* Puts a message into the history, and the history into its file. */
void chat_edit_remember(struct chat_edit *edit, const char *text);

#endif
