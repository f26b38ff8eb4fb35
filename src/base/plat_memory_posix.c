/* The part of plat.h about memory. System files are read into stack buffers, because memory
 * pressure is sampled while tokens are computed and nothing may allocate then. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __linux__
#include <malloc.h>
#include <sys/sysinfo.h>
#else
#include <sys/resource.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#include <malloc/malloc.h>
#include <sys/sysctl.h>
#endif

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/plat_reads.h"

#ifdef __linux__

/* Size of the buffer for a system file; the longest, memory.stat, has about 4 KiB. */
#define TEXT_BYTES 8192

/* Reads a small file and adds a NUL. Returns false if it cannot be read. */
static bool read_text(const char *path, char text[TEXT_BYTES])
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    text[0] = '\0';
    if (fd < 0)
        return false;
    const int64_t n = plat_read_system(fd, text, TEXT_BYTES - 1, 0);
    plat_close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n >= 0;
}

/* Returns the first unsigned number in a file, or `fallback`, also for "max" in a cgroup file. */
static uint64_t number_in_file(const char *path, uint64_t fallback)
{
    char text[TEXT_BYTES];
    if (!read_text(path, text) || text[0] < '0' || text[0] > '9')
        return fallback;
    return strtoull(text, NULL, 10);
}

/* Returns the number after FIELD in a line "FIELD: N" or "FIELD N"; 0 if there is none. */
static uint64_t field_of(const char *text, const char *field)
{
    const size_t n = strlen(field);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, field, n) == 0 && (line[n] == ':' || line[n] == ' '))
            return strtoull(line + n + 1, NULL, 10);
    }
    return 0;
}

static uint64_t field_in_file(const char *path, const char *field)
{
    char text[TEXT_BYTES];
    return read_text(path, text) ? field_of(text, field) : 0;
}

/* File names of one cgroup version. */
struct cgroup_files {
    const char *root, *limit, *throttle, *usage; /* a group above `throttle` is slowed down */
    const char *active_file, *inactive_file;     /* lines of memory.stat */
    const char *pressure, *events, *failures;    /* events has lines high, max and oom_kill */
};

static const struct cgroup_files cgroup_v1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL, "memory.usage_in_bytes",
    "total_active_file", "total_inactive_file", NULL, "memory.oom_control", "memory.failcnt",
};
static const struct cgroup_files cgroup_v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "active_file",
    "inactive_file", "memory.pressure", "memory.events", NULL,
};

static bool cgroup_path(char path[LIMIT_PATH_BYTES], const char *root, const char *group,
                        const char *name)
{
    int n = snprintf(path, LIMIT_PATH_BYTES, "%s%s/%s", root, group, name);
    return n > 0 && n < LIMIT_PATH_BYTES;
}

/* Version 1 writes this when there is no limit: the largest multiple of a page below 2^63. */
#define CGROUP_NO_LIMIT ((uint64_t)INT64_MAX / 65536 * 65536)

/* Returns the limit of one group, and the file that states it. */
static uint64_t cgroup_limit(const struct cgroup_files *files, const char *root, const char *group,
                             char file[LIMIT_PATH_BYTES])
{
    const char *const names[] = {files->limit, files->throttle};
    uint64_t limit = UINT64_MAX;
    file[0] = '\0';
    for (unsigned i = 0; i < 2 && names[i] != NULL; i++) {
        char path[LIMIT_PATH_BYTES];
        const uint64_t here = cgroup_path(path, root, group, names[i])
                                  ? number_in_file(path, UINT64_MAX) : UINT64_MAX;
        if (here >= limit || here >= CGROUP_NO_LIMIT)
            continue;
        limit = here;
        memcpy(file, path, LIMIT_PATH_BYTES);
    }
    return limit;
}

/* Returns how much is left of one group's limit. Page cache counts as usage there but is reclaimed
 * when memory is needed; otherwise the model's own files would fill the group that runs it. */
static uint64_t cgroup_left(const struct cgroup_files *files, const char *root, const char *group)
{
    char path[LIMIT_PATH_BYTES];
    const uint64_t limit = cgroup_limit(files, root, group, path);
    uint64_t usage = cgroup_path(path, root, group, files->usage) ? number_in_file(path, 0) : 0;
    uint64_t cache = 0;
    char stat[TEXT_BYTES];
    if (cgroup_path(path, root, group, "memory.stat") && read_text(path, stat))
        cache = field_of(stat, files->active_file) + field_of(stat, files->inactive_file);
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* Walks from this process's group up to the root, because any ancestor may have the limit. */
static uint64_t cgroup_left_upwards(const struct cgroup_files *files, const char *root, char *group)
{
    uint64_t left = UINT64_MAX;
    for (;;) {
        uint64_t here = cgroup_left(files, root, group);
        left = here < left ? here : left;
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return left;
        *slash = '\0';
    }
}

/* Calls fn for every group in `own_groups` that counts memory. */
static void each_group(const char *own_groups, const char *root,
                       void (*fn)(void *ctx, const struct cgroup_files *files, const char *root,
                                  char *group),
                       void *ctx)
{
    char text[TEXT_BYTES];
    if (!read_text(own_groups, text))
        return;
    for (char *line = text; *line != '\0';) {
        char *end = line + strcspn(line, "\n");
        char *next = *end != '\0' ? end + 1 : end;
        *end = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        line = next;
        if (group == NULL)
            continue;
        *group++ = '\0';
        const struct cgroup_files *files =
            strcmp(controllers, ":") == 0                  ? &cgroup_v2
            : plat_has_controller(controllers, "memory") ? &cgroup_v1
                                                         : NULL;
        if (files != NULL)
            fn(ctx, files, root != NULL ? root : files->root, group);
    }
}

static void find_left(void *ctx, const struct cgroup_files *files, const char *root, char *group)
{
    uint64_t *left = ctx, here = cgroup_left_upwards(files, root, group);
    *left = here < *left ? here : *left;
}

uint64_t plat_cgroup_left(const char *own_groups, const char *root)
{
    uint64_t left = UINT64_MAX;
    each_group(own_groups, root, find_left, &left);
    return left;
}

struct found_limit {
    uint64_t bytes;
    char *file;
};

static void find_limit(void *ctx, const struct cgroup_files *files, const char *root, char *group)
{
    struct found_limit *found = ctx;
    for (char *slash; ; *slash = '\0') {
        char file[LIMIT_PATH_BYTES];
        const uint64_t here = cgroup_limit(files, root, group, file);
        if (here < found->bytes) {
            found->bytes = here;
            memcpy(found->file, file, LIMIT_PATH_BYTES);
        }
        slash = strrchr(group, '/');
        if (slash == NULL)
            return;
    }
}

uint64_t plat_cgroup_limit(const char *own_groups, const char *root, char file[LIMIT_PATH_BYTES])
{
    struct found_limit found = {UINT64_MAX, file};
    file[0] = '\0';
    each_group(own_groups, root, find_limit, &found);
    return found.bytes;
}

uint64_t plat_memory_limit(char file[LIMIT_PATH_BYTES])
{
    return plat_cgroup_limit("/proc/self/cgroup", NULL, file);
}

bool plat_parse_stall(const char *text, uint64_t *stall_us)
{
    const char *total = strncmp(text, "some ", 5) == 0 ? strstr(text, "total=") : NULL;
    const char *end = strchr(text, '\n');
    if (total == NULL || (end != NULL && total > end) || total[6] < '0' || total[6] > '9')
        return false;
    *stall_us = strtoull(total + 6, NULL, 10);
    return true;
}

/* The root of all groups has no events: its pressure is that of the whole machine. */
static void find_pressure(void *ctx, const struct cgroup_files *files, const char *root,
                          char *group)
{
    struct plat_pressure *p = ctx;
    char path[LIMIT_PATH_BYTES], text[TEXT_BYTES];
    const bool is_group = cgroup_path(path, root, group, files->events) && read_text(path, text);
    if (is_group) {
        p->n_kills += field_of(text, "oom_kill");
        p->n_limit_hits += field_of(text, "high") + field_of(text, "max");
    }
    if (is_group && files->pressure != NULL && cgroup_path(path, root, group, files->pressure) &&
        read_text(path, text))
        (void)plat_parse_stall(text, &p->stall_us); /* leaves 0 where PSI is switched off */
    if (files->failures != NULL && cgroup_path(path, root, group, files->failures))
        p->n_limit_hits += number_in_file(path, 0);
}

void plat_group_pressure(const char *own_groups, const char *root, const char *machine,
                         struct plat_pressure *p)
{
    char text[TEXT_BYTES];
    *p = (struct plat_pressure){0};
    if (read_text(machine, text))
        (void)plat_parse_stall(text, &p->machine_stall_us); /* leaves 0 on a kernel without PSI */
    each_group(own_groups, root, find_pressure, p);
}

/* Returns the resident memory, and in *file_bytes the part that can be read again from files. */
static uint64_t resident_bytes(uint64_t *file_bytes)
{
    char text[TEXT_BYTES];
    char *end = read_text("/proc/self/statm", text) ? strchr(text, ' ') : NULL;
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    if (end == NULL)
        return 0;
    const uint64_t resident = strtoull(end, &end, 10);
    *file_bytes = strtoull(end, NULL, 10) * page_bytes;
    return resident * page_bytes;
}

bool plat_memory_pressure(struct plat_pressure *p)
{
    plat_group_pressure("/proc/self/cgroup", NULL, "/proc/pressure/memory", p);
    uint64_t file_bytes = 0;
    const uint64_t resident = resident_bytes(&file_bytes);
    p->own = resident > file_bytes ? resident - file_bytes : 0;
    p->available = plat_memory_available();
    return p->own > 0;
}

uint64_t plat_memory_available(void)
{
    uint64_t machine = field_in_file("/proc/meminfo", "MemAvailable") * 1024; /* kB */
    struct sysinfo info; /* a root without /proc; what could be taken from caches is not counted */
    if (machine == 0 && sysinfo(&info) == 0)
        machine = ((uint64_t)info.freeram + info.bufferram) * info.mem_unit;
    uint64_t group = plat_cgroup_left("/proc/self/cgroup", NULL);
    return group < machine ? group : machine;
}

uint64_t plat_memory_total(void)
{
    struct sysinfo info;
    const uint64_t total = field_in_file("/proc/meminfo", "MemTotal") * 1024; /* kB */
    return total == 0 && sysinfo(&info) == 0 ? (uint64_t)info.totalram * info.mem_unit : total;
}

uint64_t plat_resident_bytes(void)
{
    uint64_t file_bytes;
    return resident_bytes(&file_bytes);
}

/* Not getrusage: its peak includes the memory of the process before exec. */
uint64_t plat_resident_peak_bytes(void)
{
    return field_in_file("/proc/self/status", "VmHWM") * 1024; /* kB */
}

bool plat_resident_peak_reset(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "we");
    if (f == NULL)
        return false;
    bool is_written = fputs("5\n", f) >= 0;
    return fclose(f) == 0 && is_written;
}

void plat_want_large_pages(void *at, uint64_t bytes)
{
    (void)madvise(at, (size_t)bytes, MADV_HUGEPAGE); /* a kernel without large pages refuses */
}

void plat_refuse_large_pages(void *at, uint64_t bytes)
{
    (void)madvise(at, (size_t)bytes, MADV_NOHUGEPAGE); /* a kernel without large pages refuses,
                                                        * which has the same effect */
}

void plat_memory_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0); /* the result only says whether anything was released */
#endif
}

void plat_memory_return_large(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10); /* fails only for values out of range */
#endif
}

size_t plat_block_bytes(void *block)
{
    return malloc_usable_size(block);
}

void plat_give_back(void *at, uint64_t bytes)
{
    if (bytes > 0)
        (void)madvise(at, (size_t)bytes, MADV_DONTNEED); /* cannot fail for our own pages */
}

#else

bool plat_parse_stall(const char *text, uint64_t *stall_us)
{
    (void)text, (void)stall_us; /* Linux only */
    return false;
}

void plat_group_pressure(const char *own_groups, const char *root, const char *machine,
                         struct plat_pressure *p)
{
    (void)own_groups, (void)root, (void)machine; /* Linux only */
    *p = (struct plat_pressure){0};
}

bool plat_memory_pressure(struct plat_pressure *p)
{
    *p = (struct plat_pressure){0};
    return false;
}

void plat_give_back(void *at, uint64_t bytes)
{
#ifdef MADV_FREE
    if (bytes > 0)
        (void)madvise(at, (size_t)bytes, MADV_FREE); /* cannot fail for whole pages of our own */
#else
    (void)at, (void)bytes;
#endif
}

uint64_t plat_cgroup_left(const char *own_groups, const char *root)
{
    (void)own_groups, (void)root; /* Linux only */
    return UINT64_MAX;
}

uint64_t plat_cgroup_limit(const char *own_groups, const char *root, char file[LIMIT_PATH_BYTES])
{
    (void)own_groups, (void)root; /* Linux only */
    file[0] = '\0';
    return UINT64_MAX;
}

uint64_t plat_memory_limit(char file[LIMIT_PATH_BYTES])
{
    return plat_cgroup_limit(NULL, NULL, file);
}

uint64_t plat_memory_available(void)
{
#ifdef __APPLE__
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &count) == 0)
        return ((uint64_t)vm.free_count + vm.inactive_count + vm.purgeable_count) *
               (uint64_t)sysconf(_SC_PAGESIZE);
#endif
    return 0;
}

uint64_t plat_memory_total(void)
{
#ifdef __APPLE__
    uint64_t total = 0;
    size_t bytes = sizeof total;
    if (sysctlbyname("hw.memsize", &total, &bytes, NULL, 0) == 0)
        return total;
#endif
    return 0;
}

uint64_t plat_resident_bytes(void)
{
#ifdef __APPLE__
    struct mach_task_basic_info info;
    mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, (task_info_t)&info, &count) == 0)
        return info.resident_size;
#endif
    return 0;
}

uint64_t plat_resident_peak_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
#ifdef __APPLE__
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

bool plat_resident_peak_reset(void)
{
    return false;
}

void plat_want_large_pages(void *at, uint64_t bytes)
{
    (void)at;
    (void)bytes;
}

void plat_refuse_large_pages(void *at, uint64_t bytes)
{
    (void)at;
    (void)bytes;
}

void plat_memory_trim(void)
{
}

void plat_memory_return_large(void)
{
}

size_t plat_block_bytes(void *block)
{
#ifdef __APPLE__
    return malloc_size(block);
#else
    (void)block;
    return 0;
#endif
}

#endif

#ifdef __has_feature
#define PLAT_HAS_FEATURE(x) __has_feature(x)
#else
#define PLAT_HAS_FEATURE(x) 0
#endif

/* A sanitizer's shadow memory and the freed blocks that it keeps do not count, because they are not
 * part of the program and their size varies. */
uint64_t plat_program_bytes(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    PLAT_HAS_FEATURE(address_sanitizer) || PLAT_HAS_FEATURE(thread_sanitizer)
    return 8ull << 20;
#else
    return plat_resident_bytes();
#endif
}

/* ---- reserved addresses --------------------------------------------------------------------- */

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

void *plat_range_reserve(uint64_t bytes)
{
    const uint64_t all = bytes + MEM_LARGE_PAGE;
    if (all < bytes || all > SIZE_MAX / 2)
        return NULL;
    char *p = mmap(NULL, (size_t)all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    if (p == MAP_FAILED)
        return NULL;
    const uint64_t before = mem_round_up((uintptr_t)p, MEM_LARGE_PAGE) - (uintptr_t)p;
    if (before > 0)
        (void)munmap(p, (size_t)before); /* cannot fail for whole pages of our own */
    (void)munmap(p + before + bytes, (size_t)(MEM_LARGE_PAGE - before));
    return p + before;
}

void plat_range_release(void *at, uint64_t bytes)
{
    (void)munmap(at, (size_t)bytes); /* cannot fail for whole pages of our own */
}

bool plat_range_commit(void *at, uint64_t bytes)
{
    return mprotect(at, (size_t)bytes, PROT_READ | PROT_WRITE) == 0;
}

void plat_range_decommit(void *at, uint64_t bytes)
{
    plat_give_back(at, bytes);
    (void)mprotect(at, (size_t)bytes, PROT_NONE); /* the pages are released even if this fails */
}
