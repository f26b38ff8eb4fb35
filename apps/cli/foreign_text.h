/* Makes text of a model or a file safe for a terminal.
 *
 * Control sequences can make a terminal erase text, rename its window, or answer as if somebody
 * typed. This removes ESC and C1 sequences with their parameters, even when they are split across
 * calls, and all control characters except newline and tab. Carriage returns are removed because
 * the following text would overwrite the line. Invalid UTF-8 becomes U+FFFD. A newline, or a
 * thousand characters, ends an unterminated sequence, so that no text disappears for good.
 *
 * The caller owns the struct. One thread per struct. Cannot fail. */
#ifndef FLASHMOE_APPS_CLI_FOREIGN_TEXT_H
#define FLASHMOE_APPS_CLI_FOREIGN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct foreign_text { /* initialize to zeros */
    int state;
    unsigned n_swallowed; /* characters of the current sequence */
    unsigned char held[4]; /* start of an incomplete character */
    size_t n_held;
    bool ends_line; /* the last character written was a newline */
};

/* Maximum output size for n bytes of input. */
#define FOREIGN_BYTES(n) (3 * ((n) + 4))

/* Writes the printable part of the text to `out`, which has room for FOREIGN_BYTES(bytes). Returns
 * the number of bytes written. */
size_t foreign_clean(struct foreign_text *f, const char *text, size_t bytes, char *out);
/* Ends the text; an incomplete character becomes U+FFFD. `out` has room for FOREIGN_BYTES(0). */
size_t foreign_finish(struct foreign_text *f, char *out);

#endif
