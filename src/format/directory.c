#include "format/directory.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/plat.h"

bool name_has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

bool directory_find(const char *dir, const char *const suffixes[], size_t n_suffixes,
                    char found[DIRECTORY_NAME_BYTES])
{
    found[0] = '\0';
    DIR *d = dir != NULL ? opendir(dir) : NULL;
    if (d == NULL)
        return false;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        for (size_t i = 0; i < n_suffixes; i++)
            if (name_has_suffix(e->d_name, suffixes[i]) &&
                (found[0] == '\0' || strcmp(e->d_name, found) < 0))
                (void)snprintf(found, DIRECTORY_NAME_BYTES, "%s", e->d_name);
    (void)closedir(d); /* opened for reading only: nothing can be lost */
    return found[0] != '\0';
}

bool directory_has(const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    int n = dir != NULL ? snprintf(path, sizeof path, "%s/%s", dir, name) : -1;
    return n > 0 && (size_t)n < sizeof path && plat_file_exists(path);
}
