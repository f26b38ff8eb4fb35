/* Makes reads fail: an LD_PRELOAD library that intercepts pread. Reads of files in /proc and /sys
 * are neither counted nor changed. preload.h lists the variables that every such library reads;
 * this one also reads:
 *
 *   FAULT_KIND   what a faulty call does. eio: fails with EIO. zero: reports the end of the file.
 *                short: reads only a few bytes. eintr: fails with EINTR in two of three calls.
 *                storm: short and eintr together. slow: takes ten milliseconds longer.
 *                damage: gives a wrong bit in the middle
 *   FAULT_RANGE  a file that is read again at every call. While it has a line NAME BEGIN END,
 *                reads that touch bytes BEGIN to END of a file of that name fail with EIO. While
 *                it has a line HOLD PREFIX, reads of files whose name starts with PREFIX wait.
 *                SLOW PREFIX: large ones take a second and give 32 KiB at most.
 *                CUT PREFIX: they report the end of the file. DAMAGE PREFIX: they give a wrong bit.
 *                AGAIN PREFIX: they give a wrong bit from the second read of the same place on, as
 *                long as the file stays open
 *                LOSE FOLDER: reads of files whose path contains FOLDER fail with EIO
 *                LOSE FOLDER BEGIN END: likewise, those of these bytes alone
 *
 *   FAULT_SEEN   a file that is created when a read is held or slow for the first time
 *   FAULT_BLOCKS none: the process reads no blocks from disks, as with a file system of a network
 *   FAULT_CHILD  kill: a child process that asks to end with its parent is killed at once
 *
 * Without FAULT_KIND and FAULT_RANGE it only counts calls. */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

PRELOAD_EXPORTED ssize_t pread(int fd, void *dst, size_t bytes, off_t offset);
PRELOAD_EXPORTED ssize_t pread64(int fd, void *dst, size_t bytes, off64_t offset);
PRELOAD_EXPORTED int close(int fd);
PRELOAD_EXPORTED int prctl(int option, ...);

/* The largest read of a slow file. */
#define SLOW_BYTES (1u << 15)

static void nap_ms(long ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL);
}

/* Places that were read, by file and offset. Those of a closed file are forgotten. */
#define SEEN_MAX 65536
static struct {
    int fd; /* plus 1; 0: none */
    long long offset;
} seen[SEEN_MAX];
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

/* Remembers a place and returns whether it was known. */
static bool is_seen(int fd, long long offset)
{
    bool was = false;
    (void)pthread_mutex_lock(&seen_lock);
    unsigned at = (unsigned)((uint64_t)offset / 512 * 31 + (unsigned)fd * 7919u) % SEEN_MAX, n = 0;
    while (n < SEEN_MAX && seen[at].fd != 0 && !was) {
        was = seen[at].fd == fd + 1 && seen[at].offset == offset;
        at = (at + 1) % SEEN_MAX;
        n++;
    }
    if (!was && n < SEEN_MAX) {
        seen[at].fd = fd + 1;
        seen[at].offset = offset;
    }
    (void)pthread_mutex_unlock(&seen_lock);
    return was;
}

/* An entry that goes must not hide those behind it, so it stays as one of no file. */
static void forget(int fd)
{
    (void)pthread_mutex_lock(&seen_lock);
    for (unsigned i = 0; i < SEEN_MAX; i++)
        if (seen[i].fd == fd + 1)
            seen[i].fd = -1;
    (void)pthread_mutex_unlock(&seen_lock);
}

int close(int fd)
{
    int (*next)(int);
    *(void **)&next = dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && getenv("FAULT_RANGE") != NULL)
        forget(fd);
    return next(fd);
}

int prctl(int option, ...)
{
    int (*next)(int, ...);
    unsigned long more[4];
    va_list args;
    va_start(args, option);
    for (unsigned i = 0; i < 4; i++)
        more[i] = va_arg(args, unsigned long);
    va_end(args);
    const char *child = getenv("FAULT_CHILD");
    if (option == PR_SET_PDEATHSIG && child != NULL && strcmp(child, "kill") == 0)
        (void)raise(SIGKILL);
    *(void **)&next = dlsym(RTLD_NEXT, "prctl");
    return next(option, more[0], more[1], more[2], more[3]);
}

PRELOAD_EXPORTED int getrusage(__rusage_who_t who, struct rusage *usage)
{
    int (*next)(__rusage_who_t, struct rusage *);
    *(void **)&next = dlsym(RTLD_NEXT, "getrusage");
    const int rc = next(who, usage);
    const char *blocks = getenv("FAULT_BLOCKS");
    if (rc == 0 && blocks != NULL && strcmp(blocks, "none") == 0)
        usage->ru_inblock = usage->ru_majflt = 0;
    return rc;
}

enum demand { GO_ON, FAIL, HOLD, SLOW, CUT, DAMAGE, AGAIN };

static enum demand demand_of(const char *word)
{
    return strcmp(word, "HOLD") == 0 ? HOLD
           : strcmp(word, "SLOW") == 0 ? SLOW
           : strcmp(word, "CUT") == 0 ? CUT
           : strcmp(word, "AGAIN") == 0 ? AGAIN
           : strcmp(word, "DAMAGE") == 0 ? DAMAGE : GO_ON;
}

/* Returns what FAULT_RANGE demands of a call now. */
static enum demand look_up(const char *ranges, const char *path, long long from, long long to)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    char line[256], first[128], second[128];
    long long begin, end;
    int n;
    enum demand found = GO_ON;
    FILE *f = fopen(ranges, "r");
    while (f != NULL && found != HOLD && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%127s %127s", first, second) == 2 && demand_of(first) != GO_ON)
            found = strncmp(name, second, strlen(second)) == 0 ? demand_of(first) : found;
        else if ((n = sscanf(line, "LOSE %127s %lld %lld", second, &begin, &end)) > 0)
            found = strstr(path, second) != NULL && (n < 3 || (begin <= from && to <= end))
                        ? FAIL : found;
        else if (sscanf(line, "%127s %lld %lld", first, &begin, &end) == 3 &&
                 strcmp(first, name) == 0 && from < end && begin < to)
            found = FAIL;
    }
    if (f != NULL)
        (void)fclose(f);
    return found;
}

/* Tells the test that a read waits. */
static void tell(void)
{
    const char *seen_path = getenv("FAULT_SEEN");
    const int fd = seen_path != NULL ? open(seen_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        (void)close(fd);
}

/* Waits while FAULT_RANGE holds the file, then returns what it demands. */
static enum demand wait_for_range(const char *path, size_t bytes, long long offset)
{
    const char *ranges = getenv("FAULT_RANGE");
    if (ranges == NULL || path[0] == '\0')
        return GO_ON;
    enum demand found;
    /* Seldom after a while: a process whose disk does not answer uses no processor time. */
    const long long end = offset + (long long)bytes;
    for (int i = 0; (found = look_up(ranges, path, offset, end)) == HOLD; i++) {
        if (i == 0)
            tell();
        nap_ms(i < 50 ? 10 : 250);
    }
    return found;
}

/* Returns true when the call ends here with *result. Otherwise may have reduced *bytes, or says
 * that what is read is to be damaged. */
static bool inject(int fd, size_t *bytes, long long offset, ssize_t *result, bool *damages)
{
    *damages = false;
    char path[PRELOAD_PATH_BYTES];
    preload_path_of_fd(fd, path);
    if (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0)
        return false;
    const long call = preload_count_call();
    const enum demand demand = wait_for_range(path, *bytes, offset);
    if (demand == FAIL || demand == CUT) {
        errno = EIO;
        *result = demand == FAIL ? -1 : 0;
        return true;
    }
    if (demand == SLOW && *bytes > SLOW_BYTES) {
        tell();
        nap_ms(1000);
        *bytes = SLOW_BYTES;
    }
    *damages = demand == DAMAGE || (demand == AGAIN && is_seen(fd, offset));
    const char *kind = getenv("FAULT_KIND");
    if (kind == NULL || !preload_is_faulty(call))
        return false;
    const bool is_storm = strcmp(kind, "storm") == 0;
    *result = -1;
    if (strcmp(kind, "eio") == 0) {
        errno = EIO;
        return true;
    }
    if ((is_storm || strcmp(kind, "eintr") == 0) && call % 3 != 0) {
        errno = EINTR;
        return true;
    }
    *damages |= strcmp(kind, "damage") == 0;
    if (strcmp(kind, "slow") == 0)
        nap_ms(10);
    if (strcmp(kind, "zero") == 0) {
        *result = 0;
        return true;
    }
    if ((is_storm || strcmp(kind, "short") == 0) && *bytes > PRELOAD_SHORT_BYTES)
        *bytes = PRELOAD_SHORT_BYTES;
    return false;
}

static ssize_t damaged(void *dst, ssize_t got, bool damages)
{
    if (damages && got > 0)
        ((unsigned char *)dst)[got / 2] ^= 4;
    return got;
}

ssize_t pread(int fd, void *dst, size_t bytes, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t);
    ssize_t result;
    bool damages;
    if (inject(fd, &bytes, offset, &result, &damages))
        return result;
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    return damaged(dst, next(fd, dst, bytes, offset), damages);
}

ssize_t pread64(int fd, void *dst, size_t bytes, off64_t offset)
{
    ssize_t (*next)(int, void *, size_t, off64_t);
    ssize_t result;
    bool damages;
    if (inject(fd, &bytes, offset, &result, &damages))
        return result;
    *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    return damaged(dst, next(fd, dst, bytes, offset), damages);
}
