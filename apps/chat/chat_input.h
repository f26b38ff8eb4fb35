/* What a person types, or a script writes, to `flashmoe chat`: one message or command at a time.
 *
 * On a terminal lines are edited, with a history, where libedit was there at build time; otherwise
 * the terminal's own editing has to do. A message of several lines is a paste, a block between two
 * """, or lines that end with a backslash. From anything but a terminal lines are read as they
 * are. One thread. */
#ifndef FLASHMOE_APPS_CHAT_CHAT_INPUT_H
#define FLASHMOE_APPS_CHAT_CHAT_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum input_kind {
    INPUT_MESSAGE,
    INPUT_COMMAND, /* one line that begins with '/' */
    INPUT_NOTHING, /* an empty line, or one that Ctrl-C took back */
    INPUT_END,     /* Ctrl-D, or the end of the file */
    INPUT_FAILED,
};

struct chat_input;

/* `history` is a file, or NULL for none; it is borrowed. */
int chat_input_open(bool is_terminal, const char *history, struct chat_input **out,
                    struct fm_error *err);
void chat_input_close(struct chat_input *input); /* accepts NULL */
/* *text is NUL-terminated, without NUL in it, and valid until the next call. */
enum input_kind chat_input_read(struct chat_input *input, const char **text, size_t *text_bytes,
                                struct fm_error *err);

#endif
