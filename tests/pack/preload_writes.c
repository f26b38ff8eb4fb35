/* Makes writes fail, or ends the process at a chosen moment: an LD_PRELOAD library that intercepts
 * pwrite, fsync, rename, unlink, rmdir, mkdir, fallocate, ftruncate and their *at forms. preload.h
 * of tests/fault lists the variables that every such library reads; this one also reads:
 *
 *   FAULT_KIND   what a faulty call does. kill: kills the process instead. enospc, eio: fails.
 *                short: writes only a few bytes. eintr: fails with EINTR in two of three writes.
 *                slow: takes 20 ms longer. hold: creates FAULT_GATE.held, then waits until the
 *                file FAULT_GATE exists
 *   FAULT_ON     NAME or NAME:PART. Counts only calls of this name, or of this name on a path that
 *                contains PART. The names are those above; rmdir counts as unlink. Threads call in
 *                any order, so this is how a test puts a fault on a particular file
 *   FAULT_TRACE  file that receives a line per call: name, path and new path, separated by tabs
 *   FAULT_FREE   free bytes that statvfs reports
 *   FAULT_READ   number of the read that fails with EIO
 *   FAULT_FLIP   number of the read below a folder NAME.partial that returns wrong bits */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long n_reads, n_read_backs;

/* ---- which calls count ----------------------------------------------------------------------- */

static void path_in(int dir_fd, const char *name, char path[PRELOAD_PATH_BYTES])
{
    path[0] = '\0';
    if (dir_fd != AT_FDCWD && name[0] != '/')
        preload_path_of_fd(dir_fd, path);
    const size_t n = strlen(path);
    (void)snprintf(path + n, PRELOAD_PATH_BYTES - n, "%s%s", n > 0 ? "/" : "", name);
}

static void write_line(const char *name, const char *path, const char *to)
{
    const char *trace = getenv("FAULT_TRACE");
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    const int fd = trace != NULL ? open(trace, flags, 0600) : -1;
    char line[2 * PRELOAD_PATH_BYTES + 64];
    const int n = snprintf(line, sizeof line, "%s\t%s\t%s\n", name, path, to);
    if (fd < 0)
        return;
    const ssize_t written = write(fd, line, (size_t)n);
    (void)written; /* a lost line fails the test that reads the trace */
    (void)close(fd);
}

/* Returns whether FAULT_ON selects the call. */
static int is_meant(const char *name, const char *path)
{
    const char *on = getenv("FAULT_ON"), *colon = on != NULL ? strchr(on, ':') : NULL;
    if (colon == NULL)
        return on == NULL || strcmp(on, name) == 0;
    return strlen(name) == (size_t)(colon - on) && strncmp(on, name, strlen(name)) == 0 &&
           strstr(path, colon + 1) != NULL;
}

/* ---- what a faulty call does ----------------------------------------------------------------- */

/* Creates FAULT_GATE.held, then waits until FAULT_GATE exists. */
static void hold(void)
{
    const char *gate = getenv("FAULT_GATE");
    char held[PRELOAD_PATH_BYTES];
    (void)snprintf(held, sizeof held, "%s.held", gate);
    const int fd = open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)close(fd);
    while (access(gate, F_OK) != 0)
        (void)usleep(2000);
}

/* Returns true when the call fails here, with errno set. Otherwise may have reduced *bytes. */
static int inject(const char *name, const char *path, const char *to, size_t *bytes)
{
    write_line(name, path, to);
    if (!is_meant(name, path))
        return 0;
    const long call = preload_count_call();
    const char *kind = getenv("FAULT_KIND");
    if (kind == NULL || !preload_is_faulty(call))
        return 0;
    if (strcmp(kind, "kill") == 0)
        (void)kill(getpid(), SIGKILL);
    if (strcmp(kind, "slow") == 0)
        (void)usleep(20000);
    if (strcmp(kind, "hold") == 0)
        hold();
    if (strcmp(kind, "enospc") == 0 || strcmp(kind, "eio") == 0) {
        errno = kind[1] == 'n' ? ENOSPC : EIO;
        return 1;
    }
    if (bytes != NULL && strcmp(kind, "eintr") == 0 && call % 3 != 0) {
        errno = EINTR;
        return 1;
    }
    if (bytes != NULL && strcmp(kind, "short") == 0 && *bytes > PRELOAD_SHORT_BYTES)
        *bytes = PRELOAD_SHORT_BYTES;
    return 0;
}

/* Defines an intercepting function. `where` is a statement that sets `path`, and `to` for calls
 * with two paths. */
#define INTERCEPT(result, symbol, name, types, args, where, bytes)                                 \
    PRELOAD_EXPORTED result symbol types;                                                          \
    result symbol types                                                                            \
    {                                                                                              \
        result(*next) types;                                                                       \
        char path[PRELOAD_PATH_BYTES], to[PRELOAD_PATH_BYTES] = "";                                \
        const int before = errno;                                                                  \
        where;                                                                                     \
        errno = before;                                                                            \
        if (inject(name, path, to, bytes))                                                         \
            return -1;                                                                             \
        *(void **)&next = dlsym(RTLD_NEXT, #symbol);                                               \
        return next args;                                                                          \
    }

INTERCEPT(ssize_t, pwrite, "pwrite", (int fd, const void *src, size_t n, off_t at),
          (fd, src, n, at), preload_path_of_fd(fd, path), &n)
INTERCEPT(ssize_t, pwrite64, "pwrite", (int fd, const void *src, size_t n, off64_t at),
          (fd, src, n, at), preload_path_of_fd(fd, path), &n)
INTERCEPT(int, fsync, "fsync", (int fd), (fd), preload_path_of_fd(fd, path), NULL)
INTERCEPT(int, rename, "rename", (const char *from, const char *target), (from, target),
          (path_in(AT_FDCWD, from, path), path_in(AT_FDCWD, target, to)), NULL)
INTERCEPT(int, renameat, "rename",
          (int fd, const char *from, int to_fd, const char *target), (fd, from, to_fd, target),
          (path_in(fd, from, path), path_in(to_fd, target, to)), NULL)
INTERCEPT(int, unlink, "unlink", (const char *name), (name), path_in(AT_FDCWD, name, path), NULL)
INTERCEPT(int, unlinkat, "unlink", (int fd, const char *name, int flags), (fd, name, flags),
          path_in(fd, name, path), NULL)
INTERCEPT(int, rmdir, "unlink", (const char *name), (name), path_in(AT_FDCWD, name, path), NULL)
INTERCEPT(int, mkdir, "mkdir", (const char *name, mode_t mode), (name, mode),
          path_in(AT_FDCWD, name, path), NULL)
INTERCEPT(int, mkdirat, "mkdir", (int fd, const char *name, mode_t mode), (fd, name, mode),
          path_in(fd, name, path), NULL)
INTERCEPT(int, fallocate, "fallocate", (int fd, int mode, off_t at, off_t n), (fd, mode, at, n),
          preload_path_of_fd(fd, path), NULL)
INTERCEPT(int, ftruncate, "ftruncate", (int fd, off_t n), (fd, n), preload_path_of_fd(fd, path),
          NULL)

static void flip(int fd, char *dst, ssize_t got)
{
    const long at = preload_env_number("FAULT_FLIP", 0);
    char path[PRELOAD_PATH_BYTES] = "";
    if (at > 0 && got > 0)
        preload_path_of_fd(fd, path);
    if (strstr(path, ".partial/") == NULL || atomic_fetch_add(&n_read_backs, 1) + 1 != at)
        return;
    for (ssize_t i = 0; i < got; i += 64) /* the reader may use only a part of it */
        dst[i] ^= 4;
}

PRELOAD_EXPORTED ssize_t pread(int fd, void *dst, size_t bytes, off_t offset);
ssize_t pread(int fd, void *dst, size_t bytes, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t);
    if (atomic_fetch_add(&n_reads, 1) + 1 == preload_env_number("FAULT_READ", 0)) {
        errno = EIO;
        return -1;
    }
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    ssize_t got = next(fd, dst, bytes, offset);
    flip(fd, dst, got);
    return got;
}

PRELOAD_EXPORTED int statvfs(const char *path, struct statvfs *fs);
int statvfs(const char *path, struct statvfs *fs)
{
    int (*next)(const char *, struct statvfs *);
    *(void **)&next = dlsym(RTLD_NEXT, "statvfs");
    int rc = next(path, fs);
    if (rc == 0 && getenv("FAULT_FREE") != NULL)
        fs->f_bavail = (fsblkcnt_t)preload_env_number("FAULT_FREE", 0) / fs->f_frsize;
    return rc;
}
