/* Error codes, `struct fm_error` and the receiver of log lines: what every header of the library
 * shares. */
#ifndef FLASHMOE_ERROR_H
#define FLASHMOE_ERROR_H

enum {
    FM_ERR_NOMEM = -1,       /* an allocation failed */
    FM_ERR_IO = -2,          /* a file cannot be opened, read or written */
    FM_ERR_FORMAT = -3,      /* a file or a value in it is malformed */
    FM_ERR_UNSUPPORTED = -4, /* well-formed, but this version cannot run it */
    FM_ERR_ARG = -5,         /* an argument is out of range */
    FM_ERR_BUDGET = -6,      /* it does not fit into the memory budget */
    FM_ERR_CANCELLED = -7,   /* fm_session_cancel was called, or a callback ended the work */
};

#define FM_ERROR_BYTES 768

/* Filled in by the function that fails. */
struct fm_error {
    int code;
    char text[FM_ERROR_BYTES]; /* one line that names file, field and value */
};

enum { FM_LOG_INFO, FM_LOG_WARN };

/* Receives one log line, without a newline at its end. */
typedef void fm_log_fn(void *ctx, int level, const char *module, const char *text);

#endif
