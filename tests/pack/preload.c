/* Makes writing fail, or ends the process at a chosen moment: a shared object for LD_PRELOAD that
 * stands before pwrite, fsync, rename, unlink, rmdir, mkdir, fallocate and ftruncate, and before
 * what reaches the same through an open directory.
 *
 *   FAULT_KIND   kill: the process is killed instead of the call; enospc, eio: the call fails;
 *                short: writes of a few bytes only; eintr: two of three writes fail with EINTR;
 *                slow: the call takes 20 ms longer; hold: it waits until the file FAULT_GATE is
 *                there, and makes FAULT_GATE.held to say so
 *   FAULT_ON     NAME or NAME:PART: only calls of this name count, of a path with PART in it. The
 *                names are those above; rmdir is unlink. Threads call in any order: with this a
 *                fault comes at a certain file
 *   FAULT_TRACE  a file that gets a line for every call: name, path, new path, with tabs between
 *   FAULT_AT     the first call that is faulty, counted from 1 over all threads (default 1)
 *   FAULT_SPAN   how many are, 0 for all from there on (default 1)
 *   FAULT_COUNT  a file that gets the number of calls when the process ends
 *   FAULT_FREE   what statvfs says is free, in bytes
 *   FAULT_READ   the nth read fails with EIO
 *   FAULT_FLIP   the nth read below a folder NAME.partial gives wrong bits */
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

#define SHORT_BYTES 977 /* a prime, so that nothing stays aligned */

#define EXPORTED __attribute__((visibility("default")))

static atomic_long n_calls, n_reads, n_read_backs;

static long env_number(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

/* ---- which call it is ------------------------------------------------------------------------ */

#define PATH_BYTES 8192

static void path_of_fd(int fd, char path[PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, PATH_BYTES - 1);
    path[n > 0 ? n : 0] = '\0';
}

static void path_in(int dir_fd, const char *name, char path[PATH_BYTES])
{
    path[0] = '\0';
    if (dir_fd != AT_FDCWD && name[0] != '/')
        path_of_fd(dir_fd, path);
    const size_t n = strlen(path);
    (void)snprintf(path + n, PATH_BYTES - n, "%s%s", n > 0 ? "/" : "", name);
}

static void write_line(const char *name, const char *path, const char *to)
{
    const char *trace = getenv("FAULT_TRACE");
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    const int fd = trace != NULL ? open(trace, flags, 0600) : -1;
    char line[2 * PATH_BYTES + 64];
    const int n = snprintf(line, sizeof line, "%s\t%s\t%s\n", name, path, to);
    if (fd < 0)
        return;
    const ssize_t written = write(fd, line, (size_t)n);
    (void)written; /* the test sees what is missing */
    (void)close(fd);
}

/* FAULT_ON: which calls are counted. */
static int is_meant(const char *name, const char *path)
{
    const char *on = getenv("FAULT_ON"), *colon = on != NULL ? strchr(on, ':') : NULL;
    if (colon == NULL)
        return on == NULL || strcmp(on, name) == 0;
    return strlen(name) == (size_t)(colon - on) && strncmp(on, name, strlen(name)) == 0 &&
           strstr(path, colon + 1) != NULL;
}

/* ---- what becomes of it ---------------------------------------------------------------------- */

/* Says that it has come this far, and waits until it may go on. */
static void hold(void)
{
    const char *gate = getenv("FAULT_GATE");
    char held[PATH_BYTES];
    (void)snprintf(held, sizeof held, "%s.held", gate);
    const int fd = open(held, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    (void)close(fd);
    while (access(gate, F_OK) != 0)
        (void)usleep(2000);
}

/* True when the call is over with -1; otherwise *bytes may have become less. */
static int inject(const char *name, const char *path, const char *to, size_t *bytes)
{
    write_line(name, path, to);
    if (!is_meant(name, path))
        return 0;
    const long call = atomic_fetch_add(&n_calls, 1) + 1;
    const long first = env_number("FAULT_AT", 1), span = env_number("FAULT_SPAN", 1);
    const char *kind = getenv("FAULT_KIND");
    if (kind == NULL || call < first || (span != 0 && call - first >= span))
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
    if (bytes != NULL && strcmp(kind, "short") == 0 && *bytes > SHORT_BYTES)
        *bytes = SHORT_BYTES;
    return 0;
}

/* `where` fills path, and to where there are two. */
#define STAND_BEFORE(result, symbol, name, types, args, where, bytes)                              \
    EXPORTED result symbol types;                                                                  \
    result symbol types                                                                            \
    {                                                                                              \
        result(*next) types;                                                                       \
        char path[PATH_BYTES], to[PATH_BYTES] = "";                                                \
        const int before = errno;                                                                  \
        where;                                                                                     \
        errno = before;                                                                            \
        if (inject(name, path, to, bytes))                                                         \
            return -1;                                                                             \
        *(void **)&next = dlsym(RTLD_NEXT, #symbol);                                               \
        return next args;                                                                          \
    }

STAND_BEFORE(ssize_t, pwrite, "pwrite", (int fd, const void *src, size_t n, off_t at),
             (fd, src, n, at), path_of_fd(fd, path), &n)
STAND_BEFORE(ssize_t, pwrite64, "pwrite", (int fd, const void *src, size_t n, off64_t at),
             (fd, src, n, at), path_of_fd(fd, path), &n)
STAND_BEFORE(int, fsync, "fsync", (int fd), (fd), path_of_fd(fd, path), NULL)
STAND_BEFORE(int, rename, "rename", (const char *from, const char *target), (from, target),
             (path_in(AT_FDCWD, from, path), path_in(AT_FDCWD, target, to)), NULL)
STAND_BEFORE(int, renameat, "rename",
             (int fd, const char *from, int to_fd, const char *target), (fd, from, to_fd, target),
             (path_in(fd, from, path), path_in(to_fd, target, to)), NULL)
STAND_BEFORE(int, unlink, "unlink", (const char *name), (name), path_in(AT_FDCWD, name, path), NULL)
STAND_BEFORE(int, unlinkat, "unlink", (int fd, const char *name, int flags), (fd, name, flags),
             path_in(fd, name, path), NULL)
STAND_BEFORE(int, rmdir, "unlink", (const char *name), (name), path_in(AT_FDCWD, name, path), NULL)
STAND_BEFORE(int, mkdir, "mkdir", (const char *name, mode_t mode), (name, mode),
             path_in(AT_FDCWD, name, path), NULL)
STAND_BEFORE(int, mkdirat, "mkdir", (int fd, const char *name, mode_t mode), (fd, name, mode),
             path_in(fd, name, path), NULL)
STAND_BEFORE(int, fallocate, "fallocate", (int fd, int mode, off_t at, off_t n), (fd, mode, at, n),
             path_of_fd(fd, path), NULL)
STAND_BEFORE(int, ftruncate, "ftruncate", (int fd, off_t n), (fd, n), path_of_fd(fd, path), NULL)

static void flip(int fd, char *dst, ssize_t got)
{
    const long at = env_number("FAULT_FLIP", 0);
    char path[PATH_BYTES] = "";
    if (at > 0 && got > 0)
        path_of_fd(fd, path);
    if (strstr(path, ".partial/") == NULL || atomic_fetch_add(&n_read_backs, 1) + 1 != at)
        return;
    for (ssize_t i = 0; i < got; i += 64) /* what is looked at may be a part of it */
        dst[i] ^= 4;
}

EXPORTED ssize_t pread(int fd, void *dst, size_t bytes, off_t offset);
ssize_t pread(int fd, void *dst, size_t bytes, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t);
    if (atomic_fetch_add(&n_reads, 1) + 1 == env_number("FAULT_READ", 0)) {
        errno = EIO;
        return -1;
    }
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    ssize_t got = next(fd, dst, bytes, offset);
    flip(fd, dst, got);
    return got;
}

EXPORTED int statvfs(const char *path, struct statvfs *fs);
int statvfs(const char *path, struct statvfs *fs)
{
    int (*next)(const char *, struct statvfs *);
    *(void **)&next = dlsym(RTLD_NEXT, "statvfs");
    int rc = next(path, fs);
    if (rc == 0 && getenv("FAULT_FREE") != NULL)
        fs->f_bavail = (fsblkcnt_t)env_number("FAULT_FREE", 0) / fs->f_frsize;
    return rc;
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("FAULT_COUNT");
    FILE *f = path != NULL ? fopen(path, "w") : NULL;
    if (f == NULL)
        return;
    fprintf(f, "%ld\n", atomic_load(&n_calls));
    (void)fclose(f);
}
