/* Helpers shared by the LD_PRELOAD libraries that inject faults (preload_reads.c for reads,
 * tests/pack/preload_writes.c for writes). Counts the intercepted calls and decides which of them
 * are faulty. Any thread may call these functions. Nothing allocates.
 *
 * The environment variables common to all such libraries:
 *
 *   FAULT_AT     number of the first faulty call, counted from 1 over all threads (default 1)
 *   FAULT_SPAN   number of faulty calls; 0 means every call from FAULT_AT on (default 1)
 *   FAULT_COUNT  file that receives the number of counted calls when the process ends */
#ifndef FLASHMOE_TESTS_FAULT_PRELOAD_H
#define FLASHMOE_TESTS_FAULT_PRELOAD_H

#include <stdbool.h>

#define PRELOAD_EXPORTED __attribute__((visibility("default")))

/* Size of a shortened read or write. A prime, so that nothing stays aligned. */
#define PRELOAD_SHORT_BYTES 977

#define PRELOAD_PATH_BYTES 8192

/* Returns the environment variable `name` as a number, or `fallback` when it is not set. */
long preload_env_number(const char *name, long fallback);

/* Writes the path of an open file to `path`, or an empty string if it is unknown. */
void preload_path_of_fd(int fd, char path[PRELOAD_PATH_BYTES]);

/* Counts a call and returns its number, from 1. */
long preload_count_call(void);

/* Returns whether FAULT_AT and FAULT_SPAN select the call with this number. */
bool preload_is_faulty(long call);

#endif
