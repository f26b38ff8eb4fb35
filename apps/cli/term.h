/* The terminal: messages, the progress line, human-readable units, standard output.
 *
 * Messages and the progress line go to standard error, results to standard output. The progress
 * line is drawn only on a terminal and is erased before any message. One thread draws it; any
 * thread may print messages. */
#ifndef FLASHMOE_APPS_CLI_TERM_H
#define FLASHMOE_APPS_CLI_TERM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "apps/cli/foreign_text.h"
#include "apps/cli/wrap.h"

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2, STATUS_INTERRUPTED = 130 };

/* ---- messages: "flashmoe: ..." ---------------------------------------------------------- */

void say(const char *fmt, ...) ERR_PRINTF(1, 2);
void say_warning(const char *fmt, ...) ERR_PRINTF(1, 2);
/* Like say, for lines of figures: with `wraps` they break between words at a terminal's edge.
 * Messages do not, so that commands in them can be copied whole. */
void say_figures(bool wraps, const char *fmt, ...) ERR_PRINTF(2, 3);
/* Prints the error's sentence and returns `status`. */
int say_failed(const struct fm_error *err, int status);
/* Sends the library's warnings to say_warning and, with is_verbose, its other lines to say. */
void say_library_log(bool is_verbose);

/* ---- progress -------------------------------------------------------------------------- */

struct progress {
    const char *label;
    bool is_on;
    uint64_t start_ns, drawn_ns;
    uint64_t first_bytes; /* done before the start; not part of the rate */
};

/* Starts a progress line. Draws nothing if `is_wanted` is false or standard error is not a
 * terminal. */
void progress_begin(struct progress *progress, const char *label, bool is_wanted);
/* Draws a bar with bytes, rate and time left; an fm_progress_fn whose ctx is the struct. */
void progress_bytes(void *progress, uint64_t done_bytes, uint64_t total_bytes);
/* Draws a bar with "done of total" and `note`. */
void progress_steps(struct progress *progress, uint64_t done, uint64_t total, const char *note);
void progress_end(struct progress *progress); /* erases the line */

/* Erases the progress line, if any. Async-signal-safe. */
void progress_erase_from_signal(void);

/* ---- units ----------------------------------------------------------------------------- */

#define UNIT_BYTES 32

/* Write into `buffer` and return it. */
const char *human_bytes(uint64_t bytes, char buffer[UNIT_BYTES]);         /* "1.7 GiB" */
const char *human_rate(double bytes_per_s, char buffer[UNIT_BYTES]);      /* "12.3 GB/s" */
const char *human_count(uint64_t n, char buffer[UNIT_BYTES]);             /* "30.5 billion" */
const char *human_seconds(double seconds, char buffer[UNIT_BYTES]);       /* "2 min 5 s" */
const char *grouped_digits(uint64_t n, char buffer[UNIT_BYTES]);          /* "1,234,567" */
/* Returns n per second of `ns`; 0 if `ns` is 0. */
double per_second(uint64_t n, uint64_t ns);

/* ---- standard output ------------------------------------------------------------------- */

/* Writes and flushes. Returns false when standard output is gone; out_finish reports why. */
bool out_text(const char *text, size_t text_bytes);
/* Write text of a model or a file; on a terminal, without control sequences. out_foreign writes to
 * standard output, err_foreign to standard error. Use one `f` for the whole text. */
bool out_foreign(struct foreign_text *f, const char *text, size_t text_bytes);
/* Like out_foreign, for a terminal, and breaks lines between words at its edge. out_wrapped_end
 * writes what is still held back. */
bool out_wrapped(struct foreign_text *f, struct wrap *wrap, const char *text, size_t text_bytes);
bool out_wrapped_end(struct wrap *wrap);
void err_foreign(struct foreign_text *f, const char *text, size_t text_bytes);
/* Writes the program's own text to standard error; on a terminal it breaks between words. */
void err_wrapped(const char *text);
/* Returns a file name that is safe to print to standard output; uses `buffer` to clean it. */
#define NAME_BYTES 1024
const char *out_name(const char *name, char buffer[NAME_BYTES]);
/* Prints one JSON object on its own line and takes the reference. Fails like out_text, or when
 * `object` is NULL because memory ran out. */
bool out_json(json_t *object);
/* Prints any JSON value on standard error; borrows the reference. */
void err_json(const json_t *value);
/* Returns a JSON string; invalid UTF-8 becomes U+FFFD. */
json_t *json_text(const char *text, size_t text_bytes);
/* Returns the length of the valid UTF-8 character at the start of n > 0 bytes, or 0. */
size_t utf8_length(const unsigned char *s, size_t n);
/* Prints text on one line, with control characters, quotes and backslashes escaped as in C. */
void out_escaped(const char *text, size_t text_bytes);

/* Flushes standard output at the end and returns the exit status. A closed pipe gives
 * STATUS_FAILED without a message; other write errors also print one. */
int out_finish(int status);

#endif
