/* Makes writing fail, or ends the process at a chosen moment: a shared object for LD_PRELOAD that
 * stands before pwrite, fsync, rename, unlink, rmdir, mkdir, fallocate and ftruncate.
 *
 *   FAULT_KIND   kill: the process is killed instead of the call; enospc, eio: the call fails;
 *                short: writes of a few bytes only; eintr: two of three writes fail with EINTR;
 *                slow: the call takes 20 ms longer
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

/* True when the call is over with -1; otherwise *bytes may have become less. */
static int inject(size_t *bytes)
{
    const long call = atomic_fetch_add(&n_calls, 1) + 1;
    const long first = env_number("FAULT_AT", 1), span = env_number("FAULT_SPAN", 1);
    const char *kind = getenv("FAULT_KIND");
    if (kind == NULL || call < first || (span != 0 && call - first >= span))
        return 0;
    if (strcmp(kind, "kill") == 0)
        (void)kill(getpid(), SIGKILL);
    if (strcmp(kind, "slow") == 0)
        (void)usleep(20000);
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

#define STAND_BEFORE(result, name, types, args, bytes)                                             \
    EXPORTED result name types;                                                                    \
    result name types                                                                              \
    {                                                                                              \
        result(*next) types;                                                                       \
        if (inject(bytes))                                                                         \
            return -1;                                                                             \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
        return next args;                                                                          \
    }

STAND_BEFORE(ssize_t, pwrite, (int fd, const void *src, size_t n, off_t at), (fd, src, n, at), &n)
STAND_BEFORE(ssize_t, pwrite64, (int fd, const void *src, size_t n, off64_t at), (fd, src, n, at),
             &n)
STAND_BEFORE(int, fsync, (int fd), (fd), NULL)
STAND_BEFORE(int, rename, (const char *from, const char *to), (from, to), NULL)
STAND_BEFORE(int, unlink, (const char *path), (path), NULL)
STAND_BEFORE(int, rmdir, (const char *path), (path), NULL)
STAND_BEFORE(int, mkdir, (const char *path, mode_t mode), (path, mode), NULL)
STAND_BEFORE(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), NULL)
STAND_BEFORE(int, ftruncate, (int fd, off_t n), (fd, n), NULL)

static void flip(int fd, char *dst, ssize_t got)
{
    const long at = env_number("FAULT_FLIP", 0);
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = at > 0 && got > 0 ? readlink(link, path, sizeof path - 1) : 0;
    path[n > 0 ? n : 0] = '\0';
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
