#include "backend/cuda/gpu_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/device_cuda.h"
#include "base/limits.h"
#include "base/plat.h"

#define LIBRARY_NAME "libflashmoe_cuda.so"

/* Where the library may be, from the directory of the program or of the library that this is part
 * of. FLASHMOE_LIBDIR is where it was installed, from the prefix on or absolute. */
static const char *const places[] = {"", "flashmoe/", "../" FLASHMOE_LIBDIR "/flashmoe/"};

static void *try_directory(const char *directory, bool *is_there)
{
    char path[2 * LIMIT_PATH_BYTES];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s" LIBRARY_NAME, directory, places[i]);
        if (n < 0 || (size_t)n >= sizeof path || !plat_file_exists(path))
            continue;
        *is_there = true;
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
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

/* The library is never unloaded: drivers do not expect that. */
static void *load(char *why, size_t why_bytes)
{
    char directory[LIMIT_PATH_BYTES];
    bool is_there = false;
    void *library = NULL;
    if (plat_program_dir(directory, sizeof directory))
        library = try_directory(directory, &is_there);
    if (library == NULL && !is_there && own_directory(directory, sizeof directory))
        library = try_directory(directory, &is_there);
    if (library == NULL)
        (void)snprintf(why, why_bytes, "%s",
                       is_there ? dlerror()
                                : LIBRARY_NAME " is not installed (it is built where nvcc is "
                                               "found)");
    return library;
}

struct gpu_device *gpu_library_open(unsigned index, bool *is_there, char *why, size_t why_bytes)
{
    device_cuda_open_fn *open;
    device_cuda_version_fn *version;
    *is_there = false;
    void *library = load(why, why_bytes);
    if (library == NULL)
        return NULL;
    void *found[] = {dlsym(library, "device_cuda_open"), dlsym(library, "device_cuda_version")};
    memcpy(&open, &found[0], sizeof open);
    memcpy(&version, &found[1], sizeof version);
    if (found[0] == NULL || found[1] == NULL || strcmp(version(), FLASHMOE_VERSION) != 0) {
        (void)snprintf(why, why_bytes, LIBRARY_NAME " is of version %s, and this is %s",
                       found[1] != NULL ? version() : "unknown", FLASHMOE_VERSION);
        return NULL;
    }
    return open(index, is_there, why, why_bytes);
}
