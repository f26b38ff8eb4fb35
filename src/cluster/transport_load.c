#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/plat.h"
#include "cluster/transport.h"

#define MODULE_NAME "libflashmoe_mpi.so"

/* Where the module may be, from the directory of the program or of the library that this is part
 * of. FLASHMOE_LIBDIR is where it was installed, from the prefix on or absolute. */
static const char *const places[] = {"", "flashmoe/", "../" FLASHMOE_LIBDIR "/flashmoe/"};

/* Components of MPI look for the library's symbols in the whole process: RTLD_GLOBAL. */
static void *try_directory(const char *directory, bool *is_there)
{
    char path[2 * LIMIT_PATH_BYTES];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s" MODULE_NAME, directory, places[i]);
        if (n < 0 || (size_t)n >= sizeof path || !plat_file_exists(path))
            continue;
        *is_there = true;
        return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
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

int transport_open_mpi(struct transport **out, struct fm_error *err)
{
    char directory[LIMIT_PATH_BYTES];
    bool is_there = false;
    void *module = NULL;
    transport_open_fn *open;
    transport_version_fn *version;
    *out = NULL;
    if (plat_program_dir(directory, sizeof directory))
        module = try_directory(directory, &is_there);
    if (module == NULL && !is_there && own_directory(directory, sizeof directory))
        module = try_directory(directory, &is_there);
    if (module == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "several ranks need Open MPI: %s",
                       is_there ? dlerror()
                                : MODULE_NAME " is not installed (it is built where Open MPI is "
                                              "found; Debian: libopenmpi-dev)");
    void *found[] = {dlsym(module, "transport_mpi_open"), dlsym(module, "transport_mpi_version")};
    memcpy(&open, &found[0], sizeof open);
    memcpy(&version, &found[1], sizeof version);
    if (found[0] == NULL || found[1] == NULL || strcmp(version(), FLASHMOE_VERSION) != 0)
        return err_set(err, FM_ERR_UNSUPPORTED, MODULE_NAME " is of version %s, and this is %s",
                       found[1] != NULL ? version() : "unknown", FLASHMOE_VERSION);
    return open(out, err);
}
