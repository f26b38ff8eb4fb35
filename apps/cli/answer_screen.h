/* Shows an answer as it arrives: text on standard output, reasoning dim before it. Where standard
 * output is not a terminal, reasoning goes to standard error, so that a program gets the answer
 * alone; with is_quiet it is not shown at all.
 *
 * The caller owns the struct. One thread. Only writing to standard output fails. */
#ifndef FLASHMOE_APPS_CLI_ANSWER_SCREEN_H
#define FLASHMOE_APPS_CLI_ANSWER_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

#include "apps/cli/foreign_text.h"
#include "apps/cli/wrap.h"

#define SCREEN_DIM "\033[2m"
#define SCREEN_NORMAL "\033[0m"

struct answer_screen { /* set the first three, the rest to zeros */
    bool is_terminal, is_quiet;
    bool wraps; /* breaks lines between words, on a terminal */
    bool is_dim;
    bool is_line_open; /* the text on standard output does not end with a newline */
    bool is_note_open; /* nor does that on standard error */
    struct foreign_text shown, noted; /* state of standard output and standard error */
    struct wrap wrap;
};

/* Shows a piece of the answer. Returns false when standard output can no longer be written. */
bool answer_screen_show(struct answer_screen *s, bool is_reasoning, const char *text, size_t bytes);
/* Ends the answer: what follows is not dim. Leaves the last line of standard output open. */
void answer_screen_end(struct answer_screen *s);

#endif
