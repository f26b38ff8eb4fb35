/* Reads the input of `flashmoe chat`, one message or command at a time.
 *
 * On a terminal, lines are edited with libedit, with a history, if it was available at build time;
 * otherwise with the terminal's own editing. A message of several lines is a paste, a block between
 * two """, or lines that end with a backslash. Without a terminal, lines are read as they are. The
 * struct owns its buffers. One thread. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_INPUT_H
#define FLASHMOE_APPS_CHAT_CHAT_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "apps/chat/chat_complete.h"

enum input_kind {
    INPUT_MESSAGE,
    INPUT_COMMAND, /* one line that begins with '/' */
    INPUT_NOTHING, /* an empty line, or one cancelled with Ctrl-C */
    INPUT_END,     /* Ctrl-D, or the end of the file */
    INPUT_FAILED,
};

struct chat_input;

/* Opens the input. The prompt names the model, whose name may have any characters. `history` is the
 * path of a file, borrowed, or NULL for no history; `words`, borrowed, are what Tab completes. */
int chat_input_open(bool is_terminal, const char *model, const char *history,
                    const struct chat_words *words, struct chat_input **out,
                    struct fm_error *err);
void chat_input_close(struct chat_input *input); /* accepts NULL */
/* Reads the next input. *text is NUL-terminated, contains no other NUL, and is valid until the next
 * call. */
enum input_kind chat_input_read(struct chat_input *input, const char **text, size_t *text_bytes,
                                struct fm_error *err);

#endif
