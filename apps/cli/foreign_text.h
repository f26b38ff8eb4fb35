/* Text that comes from a model or a file, on its way to a terminal.
 *
 * A terminal obeys what it is sent: it can be made to erase, to rename its window, to answer as if
 * somebody typed. Here control sequences are removed: ESC and C1 sequences with their parameters,
 * however they are cut into pieces, and all other control characters but newline and tab. A
 * carriage return goes too: what follows it would overwrite the line. Bytes that are no UTF-8
 * become U+FFFD. A newline, or a thousand characters, end a sequence that nobody ended, so that no
 * text disappears for good. One thread. */
#ifndef FLASHMOE_APPS_CLI_FOREIGN_TEXT_H
#define FLASHMOE_APPS_CLI_FOREIGN_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct foreign_text { /* begins as zeros */
    int state;
    unsigned n_swallowed; /* characters of the sequence so far */
    unsigned char held[4]; /* the beginning of a character */
    size_t n_held;
    bool ends_line; /* the last character written was a newline */
};

/* Bytes that cleaning n bytes may give. */
#define FOREIGN_BYTES(n) (3 * ((n) + 4))

/* Writes what may be shown of the text to `out`, which has room for FOREIGN_BYTES(bytes), and
 * returns how many bytes that are. */
size_t foreign_clean(struct foreign_text *f, const char *text, size_t bytes, char *out);
/* Ends the text: a beginning of a character that is still held is none. `out` has room for
 * FOREIGN_BYTES(0). */
size_t foreign_finish(struct foreign_text *f, char *out);

#endif
