#include "base/plat.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat_internal.h"
#include "base/plat_reads.h"

/* Bytes of one call: the most, and of what is read while a model opens, where a finished call says
 * that the process goes on. */
#define CALL_BYTES (1u << 30)
#define PIECE_BYTES (1u << 19)

static atomic_uint_fast64_t n_reads;

int plat_open_at(int dir_fd, const char *name, int flags, const char *path, int *fd,
                 uint64_t *file_bytes, struct fm_error *err)
{
    *fd = -1;
    *file_bytes = 0;
    /* O_NONBLOCK: a FIFO must be refused below instead of blocking here. */
    int f = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
    if (f < 0 && (flags & O_NOFOLLOW) != 0 && (errno == ELOOP || errno == EMLINK))
        return err_set(err, FM_ERR_IO, "'%s' is a link, which is not followed", path);
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
    /* Clear it again, because io_uring honours it. */
    const int is = fcntl(f, F_GETFL);
    if (is >= 0)
        (void)fcntl(f, F_SETFL, is & ~O_NONBLOCK);
    *fd = f;
    *file_bytes = (uint64_t)st.st_size;
    return 0;
}

int plat_open(const char *path, int *fd, uint64_t *file_bytes, struct fm_error *err)
{
    return plat_open_at(AT_FDCWD, path, 0, path, fd, file_bytes, err);
}

void plat_close(int fd)
{
    if (fd >= 0)
        (void)close(fd); /* read-only files: nothing can be lost */
}

void plat_count_read(void)
{
    atomic_fetch_add_explicit(&n_reads, 1, memory_order_relaxed);
}

uint64_t plat_reads_done(void)
{
    return atomic_load_explicit(&n_reads, memory_order_relaxed);
}

static int64_t read_pieces(int fd, void *dst, uint64_t bytes, uint64_t offset, uint64_t piece_bytes,
                           bool counts)
{
    uint64_t done = 0;
    while (done < bytes) {
        uint64_t want = bytes - done < piece_bytes ? bytes - done : piece_bytes;
        ssize_t got = pread(fd, (char *)dst + done, (size_t)want, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -(int64_t)errno;
        if (got == 0)
            break;
        done += (uint64_t)got;
        if (counts)
            plat_count_read();
    }
    return (int64_t)done;
}

int64_t plat_read_some(int fd, void *dst, uint64_t bytes, uint64_t offset)
{
    return read_pieces(fd, dst, bytes, offset, CALL_BYTES, true);
}

int64_t plat_read_system(int fd, void *dst, uint64_t bytes, uint64_t offset)
{
    return read_pieces(fd, dst, bytes, offset, CALL_BYTES, false);
}

int plat_read_at(int fd, const char *path, void *dst, uint64_t bytes, uint64_t offset,
                 struct fm_error *err)
{
    return plat_explain_read(read_pieces(fd, dst, bytes, offset, PIECE_BYTES, true), path, bytes,
                             offset, err);
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

int plat_read_opened(int fd, const char *path, uint64_t file_bytes, size_t max_bytes, char **text,
                     size_t *bytes, struct fm_error *err)
{
    int rc = 0;
    char *buffer = NULL;
    *text = NULL;
    *bytes = 0;
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

int plat_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes,
                   struct fm_error *err)
{
    int fd;
    uint64_t file_bytes;
    *text = NULL;
    *bytes = 0;
    int rc = plat_open(path, &fd, &file_bytes, err);
    return rc != 0 ? rc : plat_read_opened(fd, path, file_bytes, max_bytes, text, bytes, err);
}

bool plat_file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Writes the path of the running program, without links. */
static bool program_path(char path[PATH_MAX])
{
#ifdef __APPLE__
    char started[PATH_MAX];
    uint32_t n = sizeof started;
    return _NSGetExecutablePath(started, &n) == 0 && realpath(started, path) != NULL;
#else
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n > 0 && n < PATH_MAX - 1) {
        path[n] = '\0';
        return true;
    }
#if defined(__linux__)
    const char *started = (const char *)(uintptr_t)getauxval(AT_EXECFN); /* a root without /proc */
    return started != NULL && realpath(started, path) != NULL;
#else
    return false;
#endif
#endif
}

bool plat_program_dir(char *buffer, size_t bytes)
{
    char path[PATH_MAX];
    if (!program_path(path))
        return false;
    const char *slash = strrchr(path, '/');
    const size_t n = slash != NULL ? (size_t)(slash - path) : bytes;
    if (n >= bytes)
        return false;
    memcpy(buffer, path, n);
    buffer[n] = '\0';
    return true;
}

uint64_t plat_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t = {0};
    (void)clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void plat_work_done(uint64_t *cpu_ns, uint64_t *n_reads_done)
{
    struct rusage usage = {0};
    (void)getrusage(RUSAGE_SELF, &usage);
    *n_reads_done = (uint64_t)usage.ru_inblock + (uint64_t)usage.ru_majflt + plat_reads_done();
    const uint64_t all = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    const uint64_t own = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    *cpu_ns = all > own ? all - own : 0;
}

void plat_sleep_ns(uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u),
                               .tv_nsec = (long)(ns % 1000000000u)};
    if (ns == 0)
        (void)sched_yield();
    else
        (void)nanosleep(&t, NULL);
}

void plat_sleep_sharply(void)
{
#if defined(__linux__)
    (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
#endif
}

void plat_host_name(char *name, size_t bytes)
{
    if (gethostname(name, bytes) != 0)
        (void)snprintf(name, bytes, "unknown");
    name[bytes - 1] = '\0';
}

int64_t plat_wall_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t); /* cannot fail for this clock */
    return (int64_t)t.tv_sec * 1000000000 + (int64_t)t.tv_nsec;
}

int plat_thread_start(pthread_t *thread, void *(*thread_main)(void *), void *arg)
{
    sigset_t all, before;
    (void)sigfillset(&all); /* cannot fail */
    int rc = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (rc != 0)
        return rc;
    rc = pthread_create(thread, NULL, thread_main, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL); /* cannot fail for a mask that was in
                                                        * effect */
    return rc;
}

void plat_cond_open(pthread_cond_t *cond)
{
#ifdef __APPLE__
    (void)pthread_cond_init(cond, NULL); /* it waits for relative times */
#else
    pthread_condattr_t how; /* these calls cannot fail with valid arguments */
    (void)pthread_condattr_init(&how);
    (void)pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &how);
    (void)pthread_condattr_destroy(&how);
#endif
}

int plat_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
#ifdef __APPLE__
    const uint64_t now_ns = plat_now_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    const struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u),
                                  .tv_nsec = (long)(left_ns % 1000000000u)};
    return pthread_cond_timedwait_relative_np(cond, lock, &left);
#else
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                   .tv_nsec = (long)(until_ns % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &until);
#endif
}
