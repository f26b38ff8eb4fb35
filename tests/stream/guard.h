/* Memory that nobody can look into but a backend's operations, for the backends of these tests:
 * every block is unreadable while no operation runs and the block is not open. A stray access by
 * the host ends the program with a line and status 6, as it would end in garbage on a device of its
 * own. Any thread. */
#ifndef FLASHMOE_TESTS_GUARD_H
#define FLASHMOE_TESTS_GUARD_H

#include "backend/backend.h"

/* Ends the program where a test's backend itself is wrong or is used wrongly. */
void guard_must(bool is_good);

/* Between these, all blocks can be read: around operations. They may be nested. */
void guard_begin(void);
void guard_end(void);

/* As in struct memory_ops. */
void *guard_make(const struct memory *m, uint64_t bytes, const char *what, struct fm_error *err);
void guard_free(const struct memory *m, void *at);
void guard_give_back(const struct memory *m, void *at, uint64_t bytes);
int guard_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                     uint64_t bytes, const char *what, struct fm_error *err);
int guard_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                       const char *what, struct fm_error *err);
void guard_range_close(const struct memory *m, struct mem_range *range);
void *guard_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use);
void guard_close(const struct memory *m, void *at, uint64_t bytes);

/* Before the first backend: a stray access ends the program from now on. Sees one end a child. */
void guard_start(void);

/* The backend that one of these tests stands in front of. */
int __real_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);
int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

#endif
