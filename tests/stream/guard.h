/* Memory that only a backend's operations can access, for the backends of these tests. A block is
 * unreadable while no operation runs and the block is not open. A stray access by the host ends the
 * program with a message and status 6, just as it would give garbage on a separate device. Any
 * thread may call. */
#ifndef FLASHMOE_TESTS_GUARD_H
#define FLASHMOE_TESTS_GUARD_H

#include "backend/backend.h"

/* Ends the program if a test's backend has a bug or is misused. */
void guard_must(bool is_good);

/* All blocks can be read between these two calls, which surround operations. They may be nested. */
void guard_begin(void);
void guard_end(void);

/* As in struct memory_ops. */
void *guard_make(const struct memory *m, uint64_t bytes, const char *what, struct fm_error *err);
void guard_free(const struct memory *m, void *at);
void guard_give_back(const struct memory *m, void *at, uint64_t bytes);
bool guard_take_back(const struct memory *m, void *at, uint64_t bytes);
/* Opens the piece, which waits for what is queued. */
void guard_fetch(const struct memory *m, void *to, const void *from, uint64_t bytes);
int guard_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                     uint64_t bytes, const char *what, struct fm_error *err);
int guard_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                       const char *what, struct fm_error *err);
void guard_range_close(const struct memory *m, struct mem_range *range);
void *guard_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use);
void guard_close(const struct memory *m, void *at, uint64_t bytes);

/* Call before opening the first backend: from then on a stray access ends the program. Checks in a
 * child process that it does. */
void guard_start(void);

/* The backend that these tests wrap. */
int __real_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);
int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

#endif
