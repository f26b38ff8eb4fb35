#include "base/plat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <malloc.h>
#include <sys/mman.h>
#else
#include <sys/resource.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

#include "base/limits.h"
#include "base/mem.h"

int plat_open(const char *path, int *fd, uint64_t *file_bytes, struct fm_error *err)
{
    *fd = -1;
    *file_bytes = 0;
    /* O_NONBLOCK: a FIFO in place of a file must be refused below, not waited for. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f < 0)
        return err_set(err, FM_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    struct stat st;
    if (fstat(f, &st) != 0) {
        int why = errno;
        (void)close(f); /* read-only: nothing can be lost */
        return err_set(err, FM_ERR_IO, "cannot stat '%s': %s", path, strerror(why));
    }
    if (!S_ISREG(st.st_mode)) {
        (void)close(f);
        return err_set(err, FM_ERR_IO, "'%s' is not a regular file", path);
    }
    /* An io_uring takes it at its word. */
    const int flags = fcntl(f, F_GETFL);
    if (flags >= 0)
        (void)fcntl(f, F_SETFL, flags & ~O_NONBLOCK);
    *fd = f;
    *file_bytes = (uint64_t)st.st_size;
    return 0;
}

void plat_close(int fd)
{
    if (fd >= 0)
        (void)close(fd); /* read-only files: nothing can be lost */
}

int64_t plat_read_some(int fd, void *dst, uint64_t bytes, uint64_t offset)
{
    const uint64_t most_per_call = 1u << 30;
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t want = bytes - done < most_per_call ? bytes - done : most_per_call;
        ssize_t got = pread(fd, (char *)dst + done, (size_t)want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -(int64_t)errno;
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

int plat_read_at(int fd, const char *path, void *dst, uint64_t bytes, uint64_t offset,
                 struct fm_error *err)
{
    return plat_explain_read(plat_read_some(fd, dst, bytes, offset), path, bytes, offset, err);
}

int plat_explain_read(int64_t got, const char *path, uint64_t bytes, uint64_t offset,
                      struct fm_error *err)
{
    if (got < 0)
        return err_set(err, FM_ERR_IO, "cannot read '%s' at byte %llu: %s", path,
                       (unsigned long long)offset, strerror((int)-got));
    if ((uint64_t)got < bytes)
        return err_set(err, FM_ERR_IO, "'%s' ends early: %lld of %llu bytes at byte %llu", path,
                       (long long)got, (unsigned long long)bytes, (unsigned long long)offset);
    return 0;
}

int plat_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes,
                   struct fm_error *err)
{
    *text = NULL;
    *bytes = 0;
    int fd;
    uint64_t file_bytes;
    int rc = plat_open(path, &fd, &file_bytes, err);
    if (rc != 0)
        return rc;
    char *buffer = NULL;
    if (file_bytes > max_bytes)
        rc = err_set(err, FM_ERR_FORMAT, "'%s' has %llu bytes, more than the limit of %zu", path,
                     (unsigned long long)file_bytes, max_bytes);
    if (rc == 0) {
        buffer = mem_new(file_bytes + 1, 1, path, err);
        rc = buffer == NULL ? FM_ERR_NOMEM : plat_read_at(fd, path, buffer, file_bytes, 0, err);
    }
    plat_close(fd);
    if (rc != 0) {
        mem_free(buffer);
        return rc;
    }
    *text = buffer;
    *bytes = (size_t)file_bytes;
    return 0;
}

bool plat_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool plat_program_dir(char *buffer, size_t bytes)
{
#ifdef __APPLE__
    uint32_t n = (uint32_t)bytes;
    if (_NSGetExecutablePath(buffer, &n) != 0)
        return false;
#else
    ssize_t n = readlink("/proc/self/exe", buffer, bytes - 1);
    if (n <= 0 || (size_t)n >= bytes - 1)
        return false;
    buffer[n] = '\0';
#endif
    char *slash = strrchr(buffer, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

uint64_t plat_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int plat_thread_start(pthread_t *thread, void *(*thread_main)(void *), void *arg)
{
    sigset_t all, before;
    (void)sigfillset(&all); /* cannot fail */
    int rc = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (rc != 0)
        return rc;
    rc = pthread_create(thread, NULL, thread_main, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL); /* what was the mask is valid */
    return rc;
}

#ifdef __linux__

/* The first unsigned number in a file, or `fallback` ("max" in a cgroup file gives it too). */
static uint64_t number_in_file(const char *path, uint64_t fallback)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return fallback;
    unsigned long long n;
    uint64_t value = fscanf(f, "%llu", &n) == 1 ? n : fallback;
    (void)fclose(f);
    return value;
}

/* The number behind FIELD in a file of lines "FIELD: N" or "FIELD N"; 0 when there is none. */
static uint64_t field_in_file(const char *path, const char *field)
{
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    char line[256];
    const size_t n = strlen(field);
    uint64_t value = 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, field, n) == 0 && (line[n] == ':' || line[n] == ' ')) {
            value = strtoull(line + n + 1, NULL, 10);
            break;
        }
    (void)fclose(f);
    return value;
}

/* Names of one cgroup version. */
struct cgroup_files {
    const char *root, *limit, *usage;
    const char *active_file, *inactive_file; /* lines of memory.stat */
};

static const struct cgroup_files cgroup_v1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
    "total_active_file", "total_inactive_file",
};
static const struct cgroup_files cgroup_v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", "active_file", "inactive_file",
};

static bool cgroup_path(char path[LIMIT_PATH_BYTES], const char *root, const char *group,
                        const char *name)
{
    int n = snprintf(path, LIMIT_PATH_BYTES, "%s%s/%s", root, group, name);
    return n > 0 && n < LIMIT_PATH_BYTES;
}

/* What is left of one group's limit. Its page cache counts as usage but is given back when memory
 * is wanted; the model's own files would otherwise fill the group that runs it. */
static uint64_t cgroup_left(const struct cgroup_files *files, const char *root, const char *group)
{
    char path[LIMIT_PATH_BYTES];
    if (!cgroup_path(path, root, group, files->limit))
        return UINT64_MAX;
    uint64_t limit = number_in_file(path, UINT64_MAX);
    uint64_t usage = cgroup_path(path, root, group, files->usage) ? number_in_file(path, 0) : 0;
    uint64_t cache = 0;
    if (cgroup_path(path, root, group, "memory.stat"))
        cache = field_in_file(path, files->active_file) + field_in_file(path, files->inactive_file);
    usage = usage > cache ? usage - cache : 0;
    return limit > usage ? limit - usage : 0;
}

/* Walks from this process's group up to the root, since any ancestor may hold the limit. */
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

uint64_t plat_cgroup_left(const char *own_groups, const char *root)
{
    uint64_t left = UINT64_MAX;
    FILE *f = fopen(own_groups, "re");
    if (f == NULL)
        return left;
    char line[LIMIT_PATH_BYTES];
    while (fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        const struct cgroup_files *files = strcmp(controllers, ":") == 0         ? &cgroup_v2
                                           : strcmp(controllers, ":memory") == 0 ? &cgroup_v1
                                                                                 : NULL;
        if (files == NULL)
            continue;
        uint64_t here = cgroup_left_upwards(files, root != NULL ? root : files->root, group);
        left = here < left ? here : left;
    }
    (void)fclose(f);
    return left;
}

uint64_t plat_memory_available(void)
{
    uint64_t machine = field_in_file("/proc/meminfo", "MemAvailable") * 1024; /* kB */
    uint64_t group = plat_cgroup_left("/proc/self/cgroup", NULL);
    return group < machine ? group : machine;
}

uint64_t plat_memory_total(void)
{
    return field_in_file("/proc/meminfo", "MemTotal") * 1024; /* kB */
}

uint64_t plat_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL)
        return 0;
    unsigned long long total, resident = 0;
    if (fscanf(f, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    (void)fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Not getrusage: its figure also counts what the process was before exec. */
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
    (void)madvise(at, (size_t)bytes, MADV_HUGEPAGE); /* a kernel without them says no */
}

void plat_refuse_large_pages(void *at, uint64_t bytes)
{
    (void)madvise(at, (size_t)bytes, MADV_NOHUGEPAGE); /* the same, and then there are none */
}

void plat_memory_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0); /* says only whether anything was released */
#endif
}

#else

uint64_t plat_cgroup_left(const char *own_groups, const char *root)
{
    (void)own_groups, (void)root; /* Linux only */
    return UINT64_MAX;
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

#endif
