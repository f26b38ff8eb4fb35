/* Runs a program and collects what it prints. Its standard input is empty. Ctrl-C ends it too
 * (apps/cli/interrupt.h); it ends with this process. One thread, one child at a time. */
#ifndef FLASHMOE_APPS_BENCH_CHILD_H
#define FLASHMOE_APPS_BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define CHILD_MESSAGE_BYTES 600

struct child {
    char *out; /* standard output, NUL-terminated */
    size_t out_bytes;
    char message[CHILD_MESSAGE_BYTES]; /* the last line of standard error, without "flashmoe: " */
    int status;                        /* of its exit; negative: the signal that ended it */
    bool was_interrupted;              /* by Ctrl-C */
    uint64_t ns, first_ns;             /* until its end; until its first byte of output, 0: none */
};

/* Runs argv[0], which is a path, and waits for its end. PATH is not searched. A program that fails
 * is no error. Calls `tick` several times per second; it may be NULL. Free the result with
 * child_free, after an error too. */
int child_run(const char *const *argv, void (*tick)(void *ctx), void *ctx, struct child *child,
              struct fm_error *err);
void child_free(struct child *child);

#endif
