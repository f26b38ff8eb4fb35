/* The terminal: messages, the progress line, human units, standard output.
 *
 * Messages and the progress line go to standard error, results to standard output. The progress
 * line is drawn only on a terminal and is erased before any message. One thread draws; messages
 * may come from any thread. */
#ifndef FLASHMOE_APPS_CLI_TERM_H
#define FLASHMOE_APPS_CLI_TERM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "apps/cli/foreign_text.h"

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_INTERRUPTED = 130 };

/* ---- messages: "flashmoe: ..." ---------------------------------------------------------- */

void say(const char *fmt, ...) ERR_PRINTF(1, 2);
void say_warning(const char *fmt, ...) ERR_PRINTF(1, 2);
/* Prints the error's sentence and returns `status`. */
int say_failed(const struct fm_error *err, int status);
/* Sends the library's warnings to say_warning and, with is_verbose, its other lines to say. */
void say_library_log(bool is_verbose);

/* ---- progress -------------------------------------------------------------------------- */

struct progress {
    const char *label;
    bool is_on;
    uint64_t start_ns, drawn_ns;
    uint64_t first_bytes; /* done before it began: no part of the rate */
};

/* `is_wanted` false draws nothing, as when standard error is no terminal. */
void progress_begin(struct progress *progress, const char *label, bool is_wanted);
/* A bar with bytes, rate and time left; an fm_progress_fn whose ctx is the struct. */
void progress_bytes(void *progress, uint64_t done_bytes, uint64_t total_bytes);
/* A bar with "done of total UNIT" and `note`. */
void progress_steps(struct progress *progress, uint64_t done, uint64_t total, const char *note);
void progress_end(struct progress *progress); /* erases the line */

/* Async-signal-safe: erases a progress line that is on the screen. */
void progress_erase_from_signal(void);

/* ---- units ----------------------------------------------------------------------------- */

#define UNIT_BYTES 32

/* All write into `buffer` and return it. */
const char *human_bytes(uint64_t bytes, char buffer[UNIT_BYTES]);         /* "1.7 GiB" */
const char *human_rate(double bytes_per_s, char buffer[UNIT_BYTES]);      /* "12.3 GB/s" */
const char *human_count(uint64_t n, char buffer[UNIT_BYTES]);             /* "30.5 billion" */
const char *human_seconds(double seconds, char buffer[UNIT_BYTES]);       /* "2 min 5 s" */
const char *grouped_digits(uint64_t n, char buffer[UNIT_BYTES]);          /* "1,234,567" */
/* n per second of `ns`, 0 when nothing was measured. */
double per_second(uint64_t n, uint64_t ns);

/* ---- standard output ------------------------------------------------------------------- */

/* Writes and flushes; false when standard output is gone. out_finish says why. */
bool out_text(const char *text, size_t text_bytes);
/* The same for text of a model or a file: a terminal gets it without control sequences. out_foreign
 * goes to standard output, err_foreign to standard error. `f` is the text's, all of it. */
bool out_foreign(struct foreign_text *f, const char *text, size_t text_bytes);
void err_foreign(struct foreign_text *f, const char *text, size_t text_bytes);
/* A name or a path of a file for printf to standard output; in `buffer` if it must be cleaned. */
#define NAME_BYTES 1024
const char *out_name(const char *name, char buffer[NAME_BYTES]);
/* One JSON object on a line of its own; takes the reference. False like out_text, or when
 * `object` is NULL because memory ran out. */
bool out_json(json_t *object);
/* Any JSON value on standard error; borrows the reference. */
void err_json(const json_t *value);
/* A JSON string; bytes that are not UTF-8 become U+FFFD. */
json_t *json_text(const char *text, size_t text_bytes);
/* Bytes of the valid UTF-8 character at the front of n > 0 bytes, 0 when there is none. */
size_t utf8_length(const unsigned char *s, size_t n);
/* Text for one line: control characters, quotes and backslashes escaped as in C. */
void out_escaped(const char *text, size_t text_bytes);

/* Flushes standard output at the end. A reader that went away gives STATUS_FAILED without a
 * message, another fault a message too. */
int out_finish(int status);

#endif
