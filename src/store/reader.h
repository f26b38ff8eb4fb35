/* A reader reads bytes from files into memory on its own threads. `done` is called exactly once per
 * submit, on a thread of the reader, in any order. The caller owns the operation and its memory
 * until then. The reader continues short and interrupted reads itself. The result is the number of
 * bytes, less than asked only at the end of the file, or -errno.
 *
 * submit may be called from any thread, also from `done`, and does not wait for the disk. close
 * waits for everything that was submitted and frees the reader. */
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
    READ_GUESSED, /* may be needed later: served when no needed operation waits */
};

struct read_op {
    int fd;
    bool is_direct; /* plat_open_device opened the file past the page cache */
    uint64_t offset, bytes;
    void *dst;
    enum read_urgency urgency;
    void (*done)(struct read_op *op, int64_t result);
    void *ctx;
    struct read_op *next; /* owned by the reader */
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
    unsigned depth; /* maximum operations in flight: 1 to READER_MAX_DEPTH */
    /* A direct operation that is not page-aligned goes through a bounce buffer. This is the maximum
     * size of such an operation; 0: no buffers are allocated. */
    uint64_t bounce_bytes;
};

#define READER_MAX_DEPTH 64

/* Returns the memory that a reader takes, for both kinds. */
uint64_t reader_bytes(const struct reader_options *options);

/* Opens a reader whose threads call pread. Fails with FM_ERR_ARG for a bad depth, or
 * FM_ERR_NOMEM. */
int reader_pread_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err);

/* Opens a reader with one thread that drives an io_uring. Also fails with FM_ERR_UNSUPPORTED when
 * the system has no io_uring or forbids it. */
int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
