#include "base/path.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

void path_folder(const char *path, char out[])
{
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        (void)snprintf(out, LIMIT_PATH_BYTES, ".");
    else
        slash[slash == out] = '\0'; /* for "/x" keep the slash */
}
