/* Makes reads fail: a shared object for LD_PRELOAD that stands before pread. What the system says
 * of itself, in /proc and /sys, is read as ever.
 *
 *   FAULT_KIND   eio: the call fails with EIO; zero: the file ends here; short: a few bytes only;
 *                eintr: two of three calls fail with EINTR; storm: short and eintr; slow: each
 *                takes ten milliseconds more
 *   FAULT_AT     the first call that is faulty, counted from 1 over all threads (default 1)
 *   FAULT_SPAN   how many are, 0 for all from there on (default 1)
 *   FAULT_COUNT  a file that gets the number of calls when the process ends
 *   FAULT_RANGE  a file with lines NAME BEGIN END: calls that read bytes from BEGIN to END of a
 *                file of that name fail with EIO while the line is there; and with lines HOLD NAME:
 *                calls that read a file whose name begins so wait while the line is there
 *
 * Without FAULT_KIND and FAULT_RANGE calls are only counted. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* A prime, so that nothing stays aligned. */
#define SHORT_BYTES 977

#define EXPORTED __attribute__((visibility("default")))

EXPORTED ssize_t pread(int fd, void *dst, size_t bytes, off_t offset);
EXPORTED ssize_t pread64(int fd, void *dst, size_t bytes, off64_t offset);

static atomic_long n_calls;

static long env_number(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

static int is_faulty(long call)
{
    const long first = env_number("FAULT_AT", 1), span = env_number("FAULT_SPAN", 1);
    return call >= first && (span == 0 || call - first < span);
}

static int is_of_the_system(int fd)
{
    char link[32], path[16];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
}

static void nap(void)
{
    const struct timespec ten_ms = {.tv_nsec = 10000000};
    (void)nanosleep(&ten_ms, NULL);
}

/* What FAULT_RANGE says of a call now: 0 nothing, 1 it fails, 2 it waits. */
static int look_up(const char *ranges, const char *name, long long from, long long to)
{
    char line[256], first[128], second[128];
    long long begin, end;
    int found = 0;
    FILE *f = fopen(ranges, "r");
    while (f != NULL && found != 2 && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%127s %127s", first, second) == 2 && strcmp(first, "HOLD") == 0)
            found = strncmp(name, second, strlen(second)) == 0 ? 2 : found;
        else if (sscanf(line, "%127s %lld %lld", first, &begin, &end) == 3 &&
                 strcmp(first, name) == 0 && from < end && begin < to)
            found = 1;
    }
    if (f != NULL)
        (void)fclose(f);
    return found;
}

static int is_in_range(int fd, size_t bytes, long long offset)
{
    const char *ranges = getenv("FAULT_RANGE");
    char link[32], path[1024];
    int found;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = ranges != NULL ? readlink(link, path, sizeof path - 1) : -1;
    if (n <= 0)
        return 0;
    path[n] = '\0';
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    while ((found = look_up(ranges, name, offset, offset + (long long)bytes)) == 2)
        nap();
    return found;
}

/* True when the call is over with *result; otherwise *bytes may have become less. */
static int inject(int fd, size_t *bytes, long long offset, ssize_t *result)
{
    if (is_of_the_system(fd))
        return 0;
    const long call = atomic_fetch_add(&n_calls, 1) + 1;
    if (is_in_range(fd, *bytes, offset)) {
        errno = EIO;
        *result = -1;
        return 1;
    }
    const char *kind = getenv("FAULT_KIND");
    if (kind == NULL || !is_faulty(call))
        return 0;
    const int is_storm = strcmp(kind, "storm") == 0;
    *result = -1;
    if (strcmp(kind, "eio") == 0) {
        errno = EIO;
        return 1;
    }
    if ((is_storm || strcmp(kind, "eintr") == 0) && call % 3 != 0) {
        errno = EINTR;
        return 1;
    }
    if (strcmp(kind, "slow") == 0)
        nap();
    if (strcmp(kind, "zero") == 0) {
        *result = 0;
        return 1;
    }
    if ((is_storm || strcmp(kind, "short") == 0) && *bytes > SHORT_BYTES)
        *bytes = SHORT_BYTES;
    return 0;
}

ssize_t pread(int fd, void *dst, size_t bytes, off_t offset)
{
    ssize_t (*next)(int, void *, size_t, off_t);
    ssize_t result;
    if (inject(fd, &bytes, offset, &result))
        return result;
    *(void **)&next = dlsym(RTLD_NEXT, "pread");
    return next(fd, dst, bytes, offset);
}

ssize_t pread64(int fd, void *dst, size_t bytes, off64_t offset)
{
    ssize_t (*next)(int, void *, size_t, off64_t);
    ssize_t result;
    if (inject(fd, &bytes, offset, &result))
        return result;
    *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    return next(fd, dst, bytes, offset);
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
