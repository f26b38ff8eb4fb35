/* The platform: files, clock, cores, memory. One file per platform family implements it
 * (plat_posix.c). Any thread may call anything. */
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

/* The same for what a read has given. */
int plat_explain_read(int64_t got, const char *path, uint64_t bytes, uint64_t offset,
                      struct fm_error *err);

/* A whole file, NUL-terminated for convenience; refused when larger than max_bytes. Free with
 * mem_free. */
int plat_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes,
                   struct fm_error *err);

bool plat_file_exists(const char *path);

/* ---- writing (plat_write_posix.c) ------------------------------------------------------- */

/* Creates a file for reading and writing; plat_dir_create says what happens to one that is there.
 * With `is_direct` writes bypass the page cache where the file system can; then *is_direct stays
 * true, and memory, offsets and sizes must be multiples of MEM_PAGE. */
int plat_create(const char *path, bool *is_direct, int *fd, struct fm_error *err);
/* Opens a file to read what the device holds, not what the page cache does: past it where the file
 * system can (*is_direct: as above), else after its pages were dropped. */
int plat_open_device(const char *path, int *fd, uint64_t *file_bytes, bool *is_direct,
                     struct fm_error *err);
/* Lets the page cache forget the pages that hold these bytes of a file, which were not written; a
 * hint. */
void plat_drop_pages(int fd, uint64_t offset, uint64_t bytes);
/* Reads of this file through the page cache bring only what they ask for; a hint. */
void plat_expect_random(int fd, bool is_random);
/* plat_read_some for such a file: `bytes` and `offset` are multiples of MEM_PAGE. */
int64_t plat_read_device(int fd, void *dst, uint64_t bytes, uint64_t offset);
/* Makes the file `bytes` long, its space taken from the disk where the file system can. */
int plat_reserve(int fd, const char *path, uint64_t bytes, struct fm_error *err);
/* All bytes or an error; a full disk is said to be one. */
int plat_write_at(int fd, const char *path, const void *src, uint64_t bytes, uint64_t offset,
                  struct fm_error *err);
/* Whether the disk is full, right after a function that writes has failed on this thread. */
bool plat_was_full(void);
/* Starts to move written bytes to the device; a hint. */
void plat_write_behind(int fd, uint64_t offset, uint64_t bytes);
int plat_sync(int fd, const char *path, struct fm_error *err);
/* Makes the names in a directory durable: after create, rename, remove. */
int plat_sync_dir(const char *path, struct fm_error *err);
int plat_rename(const char *from, const char *to, struct fm_error *err);
/* A small file for this user alone (0600), written aside, synced and renamed: whoever opens it
 * finds the old one or the new one, also after a power cut. After a failure nothing is left beside
 * it. */
int plat_replace_file(const char *path, const void *bytes, uint64_t n, struct fm_error *err);
int plat_make_dir(const char *path, struct fm_error *err); /* one that exists is fine */
int plat_make_private_dir(const char *path, struct fm_error *err); /* the same, with 0700 */
int plat_remove_dir(const char *path, struct fm_error *err); /* an empty one; none is fine */
/* Takes a name in a directory: see plat_dir_each_name. */
typedef int plat_name_fn(void *ctx, const char *name, struct fm_error *err);

struct plat_file_info {
    uint64_t bytes, device, inode, n_links;
    int64_t mtime_ns;
    bool is_link, is_dir, is_file;
    uint64_t owner; /* user id */
};
/* A link is not followed. False when there is no such file. */
bool plat_file_info(const char *path, struct plat_file_info *info);
bool plat_open_file_info(int fd, struct plat_file_info *info);
/* Whether names in a directory can be made and removed by this process. */
bool plat_may_change_dir(const char *path);
/* What an ordinary user may still write to the file system of `path`; UINT64_MAX when unknown. */
uint64_t plat_free_bytes(const char *path);
/* The path without links, "." and "..", into `out` (LIMIT_PATH_BYTES); false when it does not
 * exist. */
bool plat_real_path(const char *path, char out[]);

/* ---- the machine ------------------------------------------------------------------------ */
/* The directory of the running program; false when it is not known or does not fit. */
bool plat_program_dir(char *buffer, size_t bytes);

uint64_t plat_now_ns(void); /* monotonic */
int64_t plat_wall_ns(void); /* since 1970, as plat_file_info's mtime_ns */

/* pthread_create for a thread of the library: no signal of the host's is ever handled on it. 0, or
 * an errno. */
int plat_thread_start(pthread_t *thread, void *(*thread_main)(void *), void *arg);

/* ---- processors (plat_cpu_posix.c) ------------------------------------------------------- */

#define PLAT_CPUS_MAX 1024

/* Processors this process may run on, and those the machine has. */
unsigned plat_n_cpus(void);
unsigned plat_n_cpus_of_machine(void);
/* What computes runs one thread on each: the physical cores this process may run on, but no more
 * than its cgroup grants whole processors of time; on Apple's processors the fast ones. */
unsigned plat_n_cores(void);
/* Processors whose time the cgroup grants, as in 1.5; 0 without a limit. */
double plat_cpu_quota(void);
/* Keeps the calling thread on the i-th physical core this process may run on; false when there are
 * fewer or the system cannot. */
bool plat_thread_pin(unsigned i);

/* The first allowed processor of each physical core, ascending, from the topology below `root`
 * (/sys/devices/system/cpu); a processor without topology is a core of its own. Returns how many;
 * `firsts` may be NULL. */
unsigned plat_find_cores(const char *root, const bool is_allowed[PLAT_CPUS_MAX],
                         unsigned firsts[PLAT_CPUS_MAX]);
/* plat_cpu_quota from the groups listed in `own_groups` (/proc/self/cgroup); `root` NULL is where
 * the system mounts them. */
double plat_cgroup_cpus(const char *own_groups, const char *root);
/* Whether a cgroup's list ":cpu,cpuacct" has a controller. */
bool plat_has_controller(const char *list, const char *name);

/* The processor's name as its maker writes it, "" when unknown. */
void plat_cpu_name(char *buffer, size_t bytes);
/* The last-level caches of the processors this process may run on, together; 0 when unknown. */
uint64_t plat_cache_bytes(void);
/* The same from the caches listed below `root` (/sys/devices/system/cpu). */
uint64_t plat_find_caches(const char *root, const bool is_allowed[PLAT_CPUS_MAX]);

/* ---- memory (plat_memory_posix.c) --------------------------------------------------------- */

/* What the machine has; 0 when unknown. */
uint64_t plat_memory_total(void);
/* When programs get large pages: "always", "madvise" or "never"; "" when unknown. */
void plat_huge_pages(char *buffer, size_t bytes);

/* Asks for large pages from here on; whole large pages only. A hint. */
void plat_want_large_pages(void *at, uint64_t bytes);
/* No large page may hold any of these bytes, whatever the machine's setting. `at` is at a multiple
 * of MEM_PAGE. */
void plat_refuse_large_pages(void *at, uint64_t bytes);

/* Gives the pages of these bytes back to the system; they hold anything afterwards. `at` and
 * `bytes` are multiples of MEM_PAGE, in memory of mem_new_bulk. */
void plat_give_back(void *at, uint64_t bytes);

/* Addresses without memory, aligned to MEM_LARGE_PAGE; NULL: the system has no more of them. */
void *plat_range_reserve(uint64_t bytes);
void plat_range_release(void *at, uint64_t bytes);
/* Whole pages of them become memory, zero and only taken where it is written; false when the system
 * cannot promise that. And no memory again, given back. */
bool plat_range_commit(void *at, uint64_t bytes);
void plat_range_decommit(void *at, uint64_t bytes);

/* Memory that can be taken now without swapping: what the machine has available, or what is
 * left of the cgroup's limit when that is less. 0 when unknown. */
uint64_t plat_memory_available(void);
/* What is left of the limits of the groups listed in `own_groups` (/proc/self/cgroup), page cache
 * not counted; UINT64_MAX without a limit. `root` NULL is where the system mounts them. */
uint64_t plat_cgroup_left(const char *own_groups, const char *root);
/* The tightest limit of those groups and of the groups above them; UINT64_MAX without one. `file`
 * is set to the file that states it, empty without one. */
uint64_t plat_cgroup_limit(const char *own_groups, const char *root, char file[LIMIT_PATH_BYTES]);
/* The same of this process. */
uint64_t plat_memory_limit(char file[LIMIT_PATH_BYTES]);

/* How scarce memory is. Counters begin anywhere: what they grow by tells. */
struct plat_pressure {
    uint64_t available; /* plat_memory_available */
    uint64_t own;       /* resident memory of this process, less its files' pages, which count as
                         * available */
    uint64_t stall_us; /* tasks of this process's group have waited for memory; 0 when unknown */
    uint64_t machine_stall_us; /* the same of all tasks of the machine */
    uint64_t n_limit_hits; /* the group came to its limit, be it with page cache */
    uint64_t n_kills;      /* processes of the group killed for want of memory */
};
/* False where the system does not tell. Allocates nothing. */
bool plat_memory_pressure(struct plat_pressure *pressure);
/* The counters, from the groups listed in `own_groups` and the machine's file. */
void plat_group_pressure(const char *own_groups, const char *root, const char *machine,
                         struct plat_pressure *pressure);
/* The time of the line "some ... total=N" of a pressure file; false when there is none. */
bool plat_parse_stall(const char *text, uint64_t *stall_us);

/* Resident memory of this process now, and the most it ever was. 0 when unknown. */
uint64_t plat_resident_bytes(void);
uint64_t plat_resident_peak_bytes(void);
/* Returns what a memory budget counts for the program itself: the resident memory now, or a fixed
 * size in builds with a sanitizer. */
uint64_t plat_program_bytes(void);
/* Lets the most it ever was begin anew; false where the system cannot. */
bool plat_resident_peak_reset(void);
/* Gives memory that was freed back to the system where the allocator can. */
void plat_memory_trim(void);
/* From now on, blocks of 128 KiB or more are given back as soon as they are freed, where the
 * allocator can. Call it before there are other threads. */
void plat_memory_return_large(void);
/* Bytes that can be used of a block of malloc; 0 when unknown. */
size_t plat_block_bytes(void *block);

#ifdef __cplusplus
}
#endif
#endif
