/* A reader moves bytes from files into memory. The caller owns the operation until its `done`
 * has been called, which happens exactly once per submit, on a thread of the reader, in any
 * order. Short reads and interrupts are continued inside; the result is the number of bytes
 * (fewer than asked only at the end of the file) or -errno.
 *
 * submit may be called from any thread and does not block on the disk. close waits for
 * everything submitted. */
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

/* Threads that call pread. */
int reader_pread_open(unsigned n_threads, struct reader **out, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
