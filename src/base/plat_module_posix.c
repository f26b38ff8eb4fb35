#include "base/plat_module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/plat.h"

#ifdef FLASHMOE_STATIC

void *plat_load_module(const char *name, bool is_global, const char *hint,
                       char why[PLAT_MODULE_WHY_BYTES])
{
    (void)is_global;
    (void)hint;
    (void)snprintf(why, PLAT_MODULE_WHY_BYTES, "this program is linked statically and cannot load "
                   "%s: install a package of Flash-MoE, or build it from source", name);
    return NULL;
}

#else

/* Where a module may be, from the directory of the program or of the library that this is part of.
 * FLASHMOE_LIBDIR is where it was installed, from the prefix on or absolute. */
static const char *const places[] = {"", "flashmoe/", "../" FLASHMOE_LIBDIR "/flashmoe/"};

static void *try_directory(const char *directory, const char *name, int flags, bool *is_there)
{
    char path[2 * LIMIT_PATH_BYTES];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s%s", directory, places[i], name);
        if (n < 0 || (size_t)n >= sizeof path || !plat_file_exists(path))
            continue;
        *is_there = true;
        return dlopen(path, flags);
    }
    return NULL;
}

/* The directory of the shared library or program that has this code. */
static bool own_directory(char *directory, size_t bytes)
{
    Dl_info info;
    if (dladdr(places, &info) == 0 || info.dli_fname == NULL)
        return false;
    const char *slash = strrchr(info.dli_fname, '/');
    const size_t n = slash != NULL ? (size_t)(slash - info.dli_fname) : 0;
    if (n == 0 || n >= bytes)
        return false;
    memcpy(directory, info.dli_fname, n);
    directory[n] = '\0';
    return true;
}

void *plat_load_module(const char *name, bool is_global, const char *hint,
                       char why[PLAT_MODULE_WHY_BYTES])
{
    char directory[LIMIT_PATH_BYTES];
    const int flags = RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL);
    bool is_there = false;
    void *module = NULL;
    if (plat_program_dir(directory, sizeof directory))
        module = try_directory(directory, name, flags, &is_there);
    if (module == NULL && !is_there && own_directory(directory, sizeof directory))
        module = try_directory(directory, name, flags, &is_there);
    if (module == NULL && is_there)
        (void)snprintf(why, PLAT_MODULE_WHY_BYTES, "%s", dlerror());
    else if (module == NULL)
        (void)snprintf(why, PLAT_MODULE_WHY_BYTES, "%s is not installed (%s)", name, hint);
    return module;
}

#endif
