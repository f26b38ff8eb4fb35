#include "apps/pull/gguf_name.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/path.h"

#define SUFFIX ".gguf"
#define SET_BYTES 15 /* "-00001-of-00003" */

static bool has_suffix(const char *path)
{
    const size_t n = strlen(path), n_suffix = strlen(SUFFIX);
    return n > n_suffix && strcasecmp(path + n - n_suffix, SUFFIX) == 0;
}

bool gguf_is_model(const char *path)
{
    const char *name = path_base(path);
    return has_suffix(path) && strncasecmp(name, "mmproj", 6) != 0 &&
           strncasecmp(name, "imatrix", 7) != 0;
}

unsigned gguf_set(const char *path, unsigned *number)
{
    const size_t n = strlen(path);
    unsigned total = 0;
    int used = 0;
    *number = 1;
    if (!has_suffix(path) || n < SET_BYTES + strlen(SUFFIX))
        return 1;
    const char *at = path + n - strlen(SUFFIX) - SET_BYTES;
    if (sscanf(at, "-%5u-of-%5u%n", number, &total, &used) == 2 && used == SET_BYTES &&
        *number >= 1 && *number <= total)
        return total;
    *number = 1;
    return 1;
}

void gguf_stem(const char *path, char *out, size_t bytes)
{
    unsigned number;
    size_t n = strlen(path) - (has_suffix(path) ? strlen(SUFFIX) : 0);
    const size_t length = strlen(path);
    /* A set of one file has numbers, too. */
    if (gguf_set(path, &number) > 1 ||
        (length > SET_BYTES + strlen(SUFFIX) &&
         strncasecmp(path + n - SET_BYTES, "-00001-of-00001", SET_BYTES) == 0))
        n -= SET_BYTES;
    (void)snprintf(out, bytes, "%.*s", (int)n, path);
}

bool gguf_matches(const char *path, const char *wanted)
{
    char stem[512];
    const char *name = path_base(path);
    if (strcmp(path, wanted) == 0 || strcmp(name, wanted) == 0)
        return true;
    const size_t n_folder = (size_t)(name - path), n = strlen(wanted);
    if (n_folder == n + 1 && strncasecmp(path, wanted, n) == 0)
        return true;
    gguf_stem(path, stem, sizeof stem);
    if (strcmp(stem, wanted) == 0)
        return true;
    const char *base = path_base(stem);
    const size_t n_stem = strlen(base);
    if (n > n_stem || strcasecmp(base + n_stem - n, wanted) != 0)
        return false;
    const char before = n_stem > n ? base[n_stem - n - 1] : '-';
    return before == '-' || before == '.' || before == '_';
}
