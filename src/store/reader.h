/* A reader moves bytes from files into memory. The caller owns the operation until its `done`
 * has been called, which happens exactly once per submit, on a thread of the reader, in any
 * order. Short reads and interrupts are continued inside; the result is the number of bytes
 * (fewer than asked only at the end of the file) or -errno.
 *
 * submit may be called from any thread, also from `done`, and does not block on the disk. close
 * waits for everything submitted. */
#ifndef FLASHMOE_STORE_READER_H
#define FLASHMOE_STORE_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum read_urgency {
    READ_NEEDED,  /* a token waits for it */
    READ_GUESSED, /* may be wanted later: served when nothing needed waits */
};

struct read_op {
    int fd;
    bool is_direct; /* the file was opened by plat_open_device and said so */
    uint64_t offset, bytes;
    void *dst;
    enum read_urgency urgency;
    void (*done)(struct read_op *op, int64_t result);
    void *ctx;
    struct read_op *next; /* the reader's */
};

struct reader;

struct reader_ops {
    const char *name;
    void (*submit)(struct reader *reader, struct read_op *op);
    void (*close)(struct reader *reader);
};

struct reader {
    const struct reader_ops *ops;
};

struct reader_options {
    unsigned depth; /* operations under way at a time: 1 to READER_MAX_DEPTH */
    /* Direct operations that are no whole pages go through buffers, which are taken for operations
     * of up to so many bytes; 0: there are none. */
    uint64_t bounce_bytes;
};

#define READER_MAX_DEPTH 64

/* Memory a reader takes, whichever it is. */
uint64_t reader_bytes(const struct reader_options *options);

/* Threads that call pread. */
int reader_pread_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err);

/* One thread that drives an io_uring. FM_ERR_UNSUPPORTED when the system has none or forbids it. */
int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
