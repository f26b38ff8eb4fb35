/* The platform: files, clock, processors, memory. One group of files per platform family implements
 * it (plat_*_posix.c). Any thread may call every function. Callers own what they open and must
 * close it. A function described as a hint cannot fail. */
#ifndef FLASHMOE_BASE_PLAT_H
#define FLASHMOE_BASE_PLAT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a regular file for reading. Fails if the path cannot be opened or is not a regular file.
 * Close with plat_close. */
int plat_open(const char *path, int *fd, uint64_t *file_bytes, struct fm_error *err);
void plat_close(int fd); /* accepts -1 */

/* Reads at an offset and continues after short reads and interrupts. Returns the number of bytes
 * read, which is less than `bytes` only at the end of the file, or -errno. */
int64_t plat_read_some(int fd, void *dst, uint64_t bytes, uint64_t offset);

/* Reads exactly `bytes` bytes, or fails with the file, the offset and the number of bytes read. */
int plat_read_at(int fd, const char *path, void *dst, uint64_t bytes, uint64_t offset,
                 struct fm_error *err);

/* Turns the result of plat_read_some into the same error, or returns 0 if it read everything. */
int plat_explain_read(int64_t got, const char *path, uint64_t bytes, uint64_t offset,
                      struct fm_error *err);

/* Reads a whole file and adds a NUL. Fails if the file is larger than max_bytes. Free with
 * mem_free. */
int plat_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes,
                   struct fm_error *err);

bool plat_file_exists(const char *path);

/* ---- writing (plat_write_posix.c) ------------------------------------------------------- */

/* Creates a file for reading and writing; plat_dir_create says what happens to an existing file.
 * With *is_direct, writes bypass the page cache if the file system can do that. *is_direct then
 * stays true, and memory, offsets and sizes must be multiples of MEM_PAGE. */
int plat_create(const char *path, bool *is_direct, int *fd, struct fm_error *err);
/* Opens a file to read what the device holds instead of what the page cache holds. Reads bypass the
 * page cache if the file system can do that (*is_direct, as above); otherwise the file's pages are
 * dropped first. */
int plat_open_device(const char *path, int *fd, uint64_t *file_bytes, bool *is_direct,
                     struct fm_error *err);
/* Drops clean pages with these bytes of a file from the page cache. A hint. */
void plat_drop_pages(int fd, uint64_t offset, uint64_t bytes);
/* Switches read-ahead of this file off or on. A hint. */
void plat_expect_random(int fd, bool is_random);
/* Like plat_read_some for a file of plat_open_device: `bytes` and `offset` must be multiples of
 * MEM_PAGE. */
int64_t plat_read_device(int fd, void *dst, uint64_t bytes, uint64_t offset);
/* Makes the file `bytes` long and allocates its disk space if the file system can do that. */
int plat_reserve(int fd, const char *path, uint64_t bytes, struct fm_error *err);
/* Makes the file `bytes` long; what was not written takes no disk space if the file system can do
 * that. */
int plat_set_size(int fd, const char *path, uint64_t bytes, struct fm_error *err);
/* Writes all bytes or fails; the message says so when the disk is full. */
int plat_write_at(int fd, const char *path, const void *src, uint64_t bytes, uint64_t offset,
                  struct fm_error *err);
/* Returns whether the disk was full, right after a write function failed on this thread. */
bool plat_was_full(void);
/* Starts moving written bytes to the device. A hint. */
void plat_write_behind(int fd, uint64_t offset, uint64_t bytes);
int plat_sync(int fd, const char *path, struct fm_error *err);
/* Makes created, renamed and removed names in a directory durable. */
int plat_sync_dir(const char *path, struct fm_error *err);
int plat_rename(const char *from, const char *to, struct fm_error *err);
/* Replaces a small file that only this user can read (0600). Writes a temporary file, syncs and
 * renames it, so that readers see the old or the new content, even after a power failure. Leaves
 * nothing behind on failure. */
int plat_replace_file(const char *path, const void *bytes, uint64_t n, struct fm_error *err);
int plat_make_dir(const char *path, struct fm_error *err); /* succeeds if it exists */
int plat_make_private_dir(const char *path, struct fm_error *err); /* the same, with mode 0700 */
/* removes an empty one; succeeds if there is none */
int plat_remove_dir(const char *path, struct fm_error *err);
/* Receives a name in a directory; see plat_dir_each_name. */
typedef int plat_name_fn(void *ctx, const char *name, struct fm_error *err);

struct plat_file_info {
    uint64_t bytes, device, inode, n_links;
    int64_t mtime_ns;
    bool is_link, is_dir, is_file;
    uint64_t owner; /* user id */
};
/* Does not follow a link. Returns false if the file does not exist. */
bool plat_file_info(const char *path, struct plat_file_info *info);
bool plat_open_file_info(int fd, struct plat_file_info *info);
/* Returns whether this process can create and remove names in a directory. */
bool plat_may_change_dir(const char *path);
/* Returns how much an ordinary user can still write to the file system of `path`; UINT64_MAX when
 * unknown. */
uint64_t plat_free_bytes(const char *path);
/* Writes the path without links, "." and ".." to `out` (LIMIT_PATH_BYTES). Returns false if it does
 * not exist. */
bool plat_real_path(const char *path, char out[]);

/* ---- the machine ------------------------------------------------------------------------ */
/* Writes the directory of the running program. Returns false if it is unknown or too long. */
bool plat_program_dir(char *buffer, size_t bytes);

uint64_t plat_now_ns(void); /* monotonic */
/* Sleeps about so long, or until a signal; 0: only lets other threads run. plat_sleep_sharply lets
 * the calling thread wake without the delay that systems add to save power. A hint. */
void plat_sleep_ns(uint64_t ns);
void plat_sleep_sharply(void);
/* Tells what this process has done so far: processor time of all threads but the calling one, and
 * reads: those that were finished, and blocks that came from disks. */
void plat_work_done(uint64_t *cpu_ns, uint64_t *n_reads_done);
/* Writes the machine's name, cut to `bytes`. */
void plat_host_name(char *name, size_t bytes);
int64_t plat_wall_ns(void); /* since 1970, comparable with plat_file_info.mtime_ns */

/* Starts a thread of the library, on which no signal handler of the host program ever runs. Returns
 * 0 or an errno. */
int plat_thread_start(pthread_t *thread, void *(*thread_main)(void *), void *arg);

/* Makes a condition that plat_cond_wait can wait for. Close with pthread_cond_destroy. */
void plat_cond_open(pthread_cond_t *cond);
/* Waits until plat_now_ns() reaches until_ns; setting the machine's time changes nothing. The lock
 * must be held. Returns 0, or ETIMEDOUT when the time has passed. */
int plat_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns);

/* ---- processors (plat_cpu_posix.c) ------------------------------------------------------- */

#define PLAT_CPUS_MAX 1024

/* Return the processors that this process may run on, and those of the machine. */
unsigned plat_n_cpus(void);
unsigned plat_n_cpus_of_machine(void);
/* Returns how many compute threads to run: the physical cores that this process may use, at most
 * the whole processors that its cgroup grants. On Apple processors, counts only the fast cores. */
unsigned plat_n_cores(void);
/* Returns the processor time that the cgroup grants, for example 1.5 processors; 0 without a
 * limit. */
double plat_cpu_quota(void);
/* Pins the calling thread to the i-th physical core that this process may use. Returns false if
 * there are fewer cores or the system cannot. */
bool plat_thread_pin(unsigned i);

/* Finds the first allowed processor of each physical core, in ascending order, from the topology
 * below `root` (/sys/devices/system/cpu). A processor without topology counts as its own core.
 * Returns the number of cores; `firsts` may be NULL. */
unsigned plat_find_cores(const char *root, const bool is_allowed[PLAT_CPUS_MAX],
                         unsigned firsts[PLAT_CPUS_MAX]);
/* Computes plat_cpu_quota from the groups listed in `own_groups` (/proc/self/cgroup). With `root`
 * NULL, looks where the system mounts them. */
double plat_cgroup_cpus(const char *own_groups, const char *root);
/* Returns whether a cgroup's list such as ":cpu,cpuacct" names a controller. */
bool plat_has_controller(const char *list, const char *name);

/* Writes the vendor's name of the processor, or "" when unknown. */
void plat_cpu_name(char *buffer, size_t bytes);
/* Returns the total size of the last-level caches of the processors that this process may use; 0
 * when unknown. */
uint64_t plat_cache_bytes(void);
/* Computes the same from the caches listed below `root` (/sys/devices/system/cpu). */
uint64_t plat_find_caches(const char *root, const bool is_allowed[PLAT_CPUS_MAX]);

/* ---- memory (plat_memory_posix.c) --------------------------------------------------------- */

/* Returns the machine's memory in bytes; 0 when unknown. */
uint64_t plat_memory_total(void);
/* Writes when programs get large pages: "always", "madvise" or "never"; "" when unknown. */
void plat_huge_pages(char *buffer, size_t bytes);

/* Requests large pages for the whole large pages in this range. A hint. */
void plat_want_large_pages(void *at, uint64_t bytes);
/* Forbids large pages in this range, whatever the machine's setting. `at` must be a multiple of
 * MEM_PAGE. */
void plat_refuse_large_pages(void *at, uint64_t bytes);

/* Returns the pages of this range to the system; their content is then undefined. `at` and `bytes`
 * must be multiples of MEM_PAGE within memory of mem_new_bulk. */
void plat_give_back(void *at, uint64_t bytes);

/* Reserves addresses without memory, aligned to MEM_LARGE_PAGE. Returns NULL if the system has none
 * left. */
void *plat_range_reserve(uint64_t bytes);
void plat_range_release(void *at, uint64_t bytes);
/* Commit backs whole pages of the range with zeroed memory that is only taken when written; it
 * returns false if the system cannot promise the memory. Decommit returns them to the system. */
bool plat_range_commit(void *at, uint64_t bytes);
void plat_range_decommit(void *at, uint64_t bytes);

/* Returns the memory that can be taken now without swapping: the machine's available memory or the
 * rest of the cgroup's limit, whichever is smaller. 0 when unknown. */
uint64_t plat_memory_available(void);
/* Returns the rest of the limits of the groups listed in `own_groups` (/proc/self/cgroup), not
 * counting page cache as used; UINT64_MAX without a limit. With `root` NULL, looks where the system
 * mounts them. */
uint64_t plat_cgroup_left(const char *own_groups, const char *root);
/* Returns the tightest limit of those groups and their parents; UINT64_MAX without one. Sets `file`
 * to the file that states it, or to an empty string. */
uint64_t plat_cgroup_limit(const char *own_groups, const char *root, char file[LIMIT_PATH_BYTES]);
/* Returns the same for this process. */
uint64_t plat_memory_limit(char file[LIMIT_PATH_BYTES]);

/* Memory pressure. The counters start at arbitrary values: compare two samples. */
struct plat_pressure {
    uint64_t available; /* plat_memory_available */
    uint64_t own;       /* resident memory of this process without file pages, which count as
                         * available */
    uint64_t stall_us; /* time that tasks of this process's cgroup have waited for memory; 0 when
                        * unknown */
    uint64_t machine_stall_us; /* the same for all tasks of the machine */
    uint64_t n_limit_hits; /* how often the cgroup reached its limit, page cache included */
    uint64_t n_kills;      /* processes of the cgroup killed for lack of memory */
};
/* Returns false if the system does not provide it. Allocates nothing. */
bool plat_memory_pressure(struct plat_pressure *pressure);
/* Reads the counters from the groups listed in `own_groups` and from the machine's file. */
void plat_group_pressure(const char *own_groups, const char *root, const char *machine,
                         struct plat_pressure *pressure);
/* Parses the time in the line "some ... total=N" of a pressure file. Returns false if there is
 * none. */
bool plat_parse_stall(const char *text, uint64_t *stall_us);

/* Return the resident memory of this process now, and its peak. 0 when unknown. */
uint64_t plat_resident_bytes(void);
uint64_t plat_resident_peak_bytes(void);
/* Returns what a memory budget counts for the program itself: the resident memory now, or a fixed
 * size in builds with a sanitizer. */
uint64_t plat_program_bytes(void);
/* Resets the peak. Returns false if the system cannot. */
bool plat_resident_peak_reset(void);
/* Returns freed memory to the system if the allocator can. */
void plat_memory_trim(void);
/* Makes the allocator return blocks of 128 KiB or more as soon as they are freed, if it can. Call
 * this before starting other threads. */
void plat_memory_return_large(void);
/* Returns the usable size of a malloc block; 0 when unknown. */
size_t plat_block_bytes(void *block);

#ifdef __cplusplus
}
#endif
#endif
