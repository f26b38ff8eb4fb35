#include "preload.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long n_calls;

long preload_env_number(const char *name, long fallback)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

void preload_path_of_fd(int fd, char path[PRELOAD_PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, PRELOAD_PATH_BYTES - 1);
    path[n > 0 ? n : 0] = '\0';
}

long preload_count_call(void)
{
    return atomic_fetch_add(&n_calls, 1) + 1;
}

bool preload_is_faulty(long call)
{
    const long first = preload_env_number("FAULT_AT", 1);
    const long span = preload_env_number("FAULT_SPAN", 1);
    return call >= first && (span == 0 || call - first < span);
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
