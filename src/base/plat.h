/* The platform: files, clock, cores, memory. One file per platform family implements it
 * (plat_posix.c). Any thread may call anything. */
#ifndef FLASHMOE_BASE_PLAT_H
#define FLASHMOE_BASE_PLAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a regular file for reading. The error says why it cannot be opened, or that the path is
 * not a regular file. Close with plat_close. */
int plat_open(const char *path, int *fd, uint64_t *file_bytes, struct fm_error *err);
void plat_close(int fd); /* accepts -1 */

/* One positioned read that continues after short reads and interrupts: bytes read, which is
 * less than `bytes` only at the end of the file, or -errno. */
int64_t plat_read_some(int fd, void *dst, uint64_t bytes, uint64_t offset);

/* Exactly `bytes` bytes or an error that names the file, the offset and how much came. */
int plat_read_at(int fd, const char *path, void *dst, uint64_t bytes, uint64_t offset,
                 struct fm_error *err);

/* A whole file, NUL-terminated for convenience; refused when larger than max_bytes. Free with
 * mem_free. */
int plat_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes,
                   struct fm_error *err);

bool plat_file_exists(const char *path);

/* The directory of the running program; false when it is not known or does not fit. */
bool plat_program_dir(char *buffer, size_t bytes);

uint64_t plat_now_ns(void); /* monotonic */

/* pthread_create for a thread of the library: no signal of the host's is ever handled on it. 0, or
 * an errno. */
int plat_thread_start(pthread_t *thread, void *(*thread_main)(void *), void *arg);

/* Processors this process may run on. */
unsigned plat_n_cpus(void);

/* Memory that can be taken now without swapping: what the machine has available, or what is
 * left of the cgroup's limit when that is less. 0 when unknown. */
uint64_t plat_memory_available(void);
/* What is left of the limits of the groups listed in `own_groups` (/proc/self/cgroup), page cache
 * not counted; UINT64_MAX without a limit. `root` NULL is where the system mounts them. */
uint64_t plat_cgroup_left(const char *own_groups, const char *root);
/* Resident memory of this process now, and the most it ever was. 0 when unknown. */
uint64_t plat_resident_bytes(void);
uint64_t plat_resident_peak_bytes(void);
/* Gives memory that was freed back to the system where the allocator can. */
void plat_memory_trim(void);

#ifdef __cplusplus
}
#endif
#endif
