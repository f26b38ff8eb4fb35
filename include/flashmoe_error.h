/* What every header of the library shares: error codes, `struct fm_error`, and the receiver of log
 * lines. */
#ifndef FLASHMOE_ERROR_H
#define FLASHMOE_ERROR_H

/* ---- errors ---------------------------------------------------------------------------- */

enum {
    FM_ERR_NOMEM = -1,       /* an allocation failed */
    FM_ERR_IO = -2,          /* a file cannot be opened or read */
    FM_ERR_FORMAT = -3,      /* a file is not what it should be */
    FM_ERR_UNSUPPORTED = -4, /* well-formed, but nothing this version can run */
    FM_ERR_ARG = -5,         /* an argument is out of range */
    FM_ERR_BUDGET = -6,      /* it does not fit into the memory budget */
    FM_ERR_CANCELLED = -7,   /* fm_session_cancel was called, or a progress function said so */
};

#define FM_ERROR_BYTES 768

struct fm_error {
    int code;
    char text[FM_ERROR_BYTES]; /* one line that names file, field and value */
};

/* ---- log ------------------------------------------------------------------------------- */

enum { FM_LOG_INFO, FM_LOG_WARN };

typedef void fm_log_fn(void *ctx, int level, const char *module, const char *text);

#endif
